"""Point look-ups in the disk tier: the newest change of a key, and single rows by offset.

Each file of a keyed topic has a map of the hashes of its keys next to it (`.keys`). It is derived
data: missing or damaged, it is built again from the file. Rows that match by hash are compared by
key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from frazil.errors import CorruptionError
from frazil.log import OFFSET_FIELD, TIME_FIELD
from frazil.schema import KeyFile, KeyMap
from frazil.telemetry import warn
from frazil.tiers.disk.format import keys_name
from frazil.tiers.disk.reader import LruCache, offsets_of
from frazil.tiers.keys.index import Found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.schema import Key, KeyShape
    from frazil.tiers.disk.catalog import DiskDirectory, TopicFiles
    from frazil.tiers.disk.format import DiskFile
    from frazil.tiers.disk.maintenance import DamagedFiles
    from frazil.tiers.disk.reader import DiskReaders

T = TypeVar("T")


class DiskLookup:
    """Finds rows by key or offset. Any thread may use it."""

    def __init__(
        self,
        directory: DiskDirectory,
        readers: DiskReaders,
        damage: DamagedFiles,
        *,
        maps_max: int,
    ) -> None:
        self._directory = directory
        self._readers = readers
        self._damage = damage
        self._maps: LruCache[KeyFile | KeyMap] = LruCache(maps_max, close=_close)
        self.maps_built = 0

    @property
    def cache_bytes(self) -> int:
        """Return the memory of the maps of keys."""
        return sum(each.nbytes for each in self._maps.values())

    def find_many(
        self, topic: int, keys: Sequence[Key], shape: KeyShape, before: int
    ) -> dict[Key, Found]:
        """Return the newest change of each key that has one with an offset below `before`.

        Raises:
            CorruptionError: if a file that may hold one is damaged and cannot be rebuilt.
        """
        wanted = list(dict.fromkeys(keys))
        hashes = shape.hashes_of(wanted)
        return self._damage.retried(
            topic, lambda picture: self._find_many(picture, wanted, hashes, before)
        )

    def row_at(self, topic: int, offset: int) -> pa.RecordBatch | None:
        """Return one row under the current columns, None if no file has it.

        The columns are `_offset`, `_time`, the topic's, and for changes `_op` and `_present`.
        """
        return self._damage.retried(topic, lambda picture: self._row_at(picture, offset))

    def forget(self, file: DiskFile) -> None:
        """Close the map of a file that is gone."""
        self._maps.forget(lambda key: key == (file.topic, file.name))

    def close(self) -> None:
        """Close all maps."""
        self._maps.forget()

    # -- by key ------------------------------------------------------------------------------------

    def _find_many(
        self, picture: TopicFiles, keys: Sequence[Key], hashes: Any, limit: int
    ) -> dict[Key, Found]:
        found: dict[Key, Found] = {}
        left = np.arange(len(keys))
        for file in picture.by_last:
            if file.offset_first >= limit or not file.key_ids or not file.rows:
                continue
            # A key is done when this file and all further ones have older changes only.
            done = [
                (known := found.get(keys[number])) is not None and known.offset > file.offset_last
                for number in left.tolist()
            ]
            left = left[~np.array(done, np.bool_)]
            if not len(left):
                break
            self._find_in(file, keys, left, hashes[left], limit, found)
        return found

    def _find_in(
        self,
        file: DiskFile,
        keys: Sequence[Key],
        numbers: Any,
        hashes: Any,
        limit: int,
        found: dict[Key, Found],
    ) -> None:
        """Look up many keys in one file, row group by row group."""
        index, rows = self._with_map(file, lambda each: each.find_many(hashes))
        if not len(rows):
            return
        reader = self._readers.reader(file)
        shape = reader.shape
        assert shape is not None
        groups = np.searchsorted(np.array(reader.starts), rows, "right") - 1
        for group in np.unique(groups).tolist():
            here = np.flatnonzero(groups == group)
            batch = self._readers.group(file, group, ("_offset", "_op", "_present", *shape.names))
            picked = batch.take(pa.array(rows[here] - reader.starts[group]))
            present = picked.column("_present").to_pylist()
            facts = (offsets_of(picked).tolist(), picked.column("_op").to_pylist(), present)
            for match, key, offset, op, named in zip(
                here.tolist(), shape.keys(picked), *facts, strict=True
            ):
                wanted = keys[int(numbers[index[match]])]
                known = found.get(wanted)
                newer = known is None or offset > known.offset
                # A change with a bitmap is an update of a key without a row, which changes nothing.
                if newer and offset < limit and key == wanted and named is None:
                    found[wanted] = Found(offset, op)

    # -- rows --------------------------------------------------------------------------------------

    def _row_at(self, picture: TopicFiles, offset: int) -> pa.RecordBatch | None:
        for file in picture.overlapping(offset, offset + 1):
            reader = self._readers.reader(file)
            for number in reader.groups_between(offset, offset + 1):
                if file.dense:
                    inside = offset - file.offset_first - reader.starts[number]
                else:
                    offsets = offsets_of(self._readers.group(file, number, ("_offset",)))
                    inside = int(np.searchsorted(offsets, offset))
                    if inside == len(offsets) or offsets[inside] != offset:
                        continue
                batch = self._readers.group(file, number).slice(inside, 1)
                self._readers.note_use((file,))
                data = self._readers.current(file, batch)
                return pa.RecordBatch.from_arrays(
                    [*batch.columns[:2], *data.columns],
                    schema=pa.schema([OFFSET_FIELD, TIME_FIELD, *data.schema]),
                )
        return None

    # -- maps of keys ------------------------------------------------------------------------------

    def _with_map(self, file: DiskFile, use: Callable[[KeyFile | KeyMap], T]) -> T:
        """Use a file's map of keys; a missing or damaged one is built again, once."""
        fault: Exception | None = None
        for _ in range(2):
            try:
                return use(self._map(file))
            except (CorruptionError, OSError) as error:
                # The second attempt: the cache may have closed it to open another one.
                self.forget(file)
                fault = error
        return use(self._maps.put((file.topic, file.name), self._build(file, fault)))

    def _map(self, file: DiskFile) -> KeyFile | KeyMap:
        key = (file.topic, file.name)
        found = self._maps.get(key)
        if found is not None:
            return found
        path = self._directory.path(file.topic, keys_name(file.name))
        opened = KeyFile(self._directory.file_system, path)
        if opened.count != file.rows:
            opened.close()
            raise CorruptionError("map of keys is of another file", path=path)
        return self._maps.put(key, opened)

    def _build(self, file: DiskFile, reason: Exception | None) -> KeyFile | KeyMap:
        """Build a map from the rows of its file and write it, if the disk takes it."""
        reader = self._readers.reader(file)
        shape = reader.shape
        assert shape is not None
        hashes = [
            shape.hashes(self._readers.group(file, number, shape.names))
            for number in range(reader.groups)
        ]
        built = KeyMap.build(np.concatenate(hashes))
        self.maps_built += 1
        warn("disk_keys_rebuilt", topic=file.topic, file=file.name, reason=reason)
        directory, name = self._directory, keys_name(file.name)
        try:
            directory.remove_one(file.topic, f"{name}.tmp")
            directory.remove_one(file.topic, name)
            directory.write_keys(file.topic, file.name, built.to_bytes())
            return KeyFile(directory.file_system, directory.path(file.topic, name))
        except (OSError, CorruptionError):
            return built


def _close(keys: KeyFile | KeyMap) -> None:
    if isinstance(keys, KeyFile):
        keys.close()
