"""Point look-ups in the disk tier: the newest change of a key, and single rows by offset.

Each file of a keyed topic has a map of the hashes of its keys beside it (`.keys`). It is derived:
missing or damaged, it is built again from the file. What a hash finds is compared by key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from frazil.errors import CorruptionError, NotFound
from frazil.log import OFFSET_FIELD, TIME_FIELD
from frazil.schema import KeyFile, KeyMap
from frazil.telemetry import warn
from frazil.tiers.disk.cache import OpenCache
from frazil.tiers.disk.file import keys_name
from frazil.tiers.disk.rows import FileGone, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.schema import Key, KeyShape
    from frazil.tiers.disk.catalog import TopicFiles
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["DiskLookup", "FoundRow", "Place"]

ATTEMPTS_MAX: Final = 10
T = TypeVar("T")
_NO_LIMIT: Final = 1 << 63


class FoundRow(NamedTuple):
    """The newest change of a key: its offset, its operation, and its row.

    `row` has one row: `_offset`, `_time`, the topic's current columns, `_op`, `_present`.
    """

    offset: int
    op: int
    row: pa.RecordBatch


class Place(NamedTuple):
    """Where a change lies, and its operation: the file may be merged away at any time."""

    offset: int
    file: DiskFile
    row: int
    op: int = 0


class DiskLookup:
    """Finds rows by key or offset. Any thread may use it."""

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._maps: OpenCache[KeyFile | KeyMap] = OpenCache(
            4 * tier.settings.open_files_max, close=_close
        )
        self.maps_built = 0

    @property
    def cache_bytes(self) -> int:
        """Return the memory of the maps of keys."""
        return sum(each.nbytes for each in self._maps.values())

    def find(self, topic: int, key: Key, shape: KeyShape, before: int | None) -> FoundRow | None:
        """Return the newest change of a key with an offset below `before`, None if there is none.

        Raises:
            CorruptionError: if a file that may hold it is damaged and cannot be rebuilt.
        """
        limit = _NO_LIMIT if before is None else before
        hashed = shape.hash_of(key)

        def find(picture: TopicFiles) -> FoundRow | None:
            place = self._find(picture, key, hashed, limit)
            return None if place is None else self._row(place)

        return self._retried(topic, find)

    def find_many(
        self, topic: int, keys: Sequence[Key], shape: KeyShape, before: int | None
    ) -> dict[Key, Place]:
        """Return where the newest change of each key below `before` lies; absent ones are left out.

        The offsets and operations hold for good, the files and rows only until the next merge.

        Raises:
            CorruptionError: if a file that may hold one is damaged and cannot be rebuilt.
        """
        limit = _NO_LIMIT if before is None else before
        wanted = list(dict.fromkeys(keys))
        hashes = shape.hashes_of(wanted)
        return self._retried(topic, lambda picture: self._find_many(picture, wanted, hashes, limit))

    def row_at(self, topic: int, offset: int) -> pa.RecordBatch | None:
        """Return the row of an offset in the layout of `FoundRow.row`, None if no file has it."""
        return self._retried(topic, lambda picture: self._row_at(picture, offset))

    def forget(self, file: DiskFile) -> None:
        """Close the map of a file that is gone."""
        self._maps.forget((file.topic, file.name))

    def close(self) -> None:
        """Close all maps."""
        self._maps.clear()

    def _retried(self, topic: int, call: Callable[[TopicFiles], T]) -> T:
        """Call with the newest picture, again when files moved or were rebuilt meanwhile."""
        for _ in range(ATTEMPTS_MAX):
            picture = self._tier.picture(topic)
            try:
                return call(picture)
            except FileGone:
                continue
            except CorruptionError as error:
                file = picture.by_name.get(str(error.details.get("file")))
                if file is None or not self._tier.damaged(file, error.details["reason"]):
                    raise
        raise NotFound("files are being moved, try again", topic=topic)

    # -- by key ----------------------------------------------------------------------------------

    def _find(self, picture: TopicFiles, key: Key, hashed: int, limit: int) -> Place | None:
        best: Place | None = None
        for file in picture.by_last:
            if best is not None and file.offset_last < best.offset:
                break
            if file.offset_first >= limit or not file.keyed or not file.rows:
                continue
            place = self._newest(file, key, hashed, limit)
            if place is not None and (best is None or place.offset > best.offset):
                best = place
        return best

    def _newest(self, file: DiskFile, key: Key, hashed: int, limit: int) -> Place | None:
        """Return the newest change of a key in one file; offsets grow with rows."""
        for row in self._with_map(file, lambda keys: list(keys.newest(hashed))):
            number, inside = self._inside(file, row)
            if file.dense and file.offset_first + row >= limit:
                continue
            batch = self._tier.readers.group(file, number)
            offset = batch.column(0)[inside].as_py()
            shape = self._tier.readers.reader(file).shape
            if offset < limit and shape is not None and shape.key_at(batch, inside) == key:
                return Place(offset, file, row)
        return None

    def _find_many(
        self, picture: TopicFiles, keys: Sequence[Key], hashes: Any, limit: int
    ) -> dict[Key, Place]:
        found: dict[Key, Place] = {}
        left = np.arange(len(keys))
        for file in picture.by_last:
            if file.offset_first >= limit or not file.keyed or not file.rows:
                continue
            # A key is done when this file and those behind it have older changes only.
            done = [
                (place := found.get(keys[number])) is not None and place.offset > file.offset_last
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
        found: dict[Key, Place],
    ) -> None:
        """Look many keys up in one file, row group by row group."""
        index, rows = self._with_map(file, lambda each: each.find_many(hashes))
        if not len(rows):
            return
        reader = self._tier.readers.reader(file)
        shape = reader.shape
        assert shape is not None
        groups = np.searchsorted(np.array(reader.starts), rows, "right") - 1
        for group in np.unique(groups).tolist():
            here = np.flatnonzero(groups == group)
            names = ("_offset", "_op", *shape.names)
            batch = self._tier.readers.columns(file, group, names)
            picked = batch.take(pa.array(rows[here] - reader.starts[group]))
            facts = (offsets_of(picked).tolist(), picked.column("_op").to_pylist())
            for place, key, offset, op in zip(
                here.tolist(), shape.keys(picked), *facts, strict=True
            ):
                wanted = keys[int(numbers[index[place]])]
                known = found.get(wanted)
                newer = known is None or offset > known.offset
                if newer and offset < limit and key == wanted:
                    found[wanted] = Place(offset, file, int(rows[place]), op)

    # -- rows ------------------------------------------------------------------------------------

    def _row_at(self, picture: TopicFiles, offset: int) -> pa.RecordBatch | None:
        for file in picture.overlapping(offset, offset + 1):
            reader = self._tier.readers.reader(file)
            for number in reader.groups_between(offset, offset + 1):
                if file.dense:
                    row = offset - file.offset_first
                else:
                    offsets = offsets_of(self._tier.readers.columns(file, number, ("_offset",)))
                    inside = int(np.searchsorted(offsets, offset))
                    if inside == len(offsets) or offsets[inside] != offset:
                        continue
                    row = reader.starts[number] + inside
                return self._row(Place(offset, file, row)).row
        return None

    def _row(self, place: Place) -> FoundRow:
        file = place.file
        number, inside = self._inside(file, place.row)
        batch = self._tier.readers.group(file, number).slice(inside, 1)
        self._tier.note_use((file,))
        data = self._tier.readers.current(file, batch)
        row = pa.RecordBatch.from_arrays(
            [*batch.columns[:2], *data.columns],
            schema=pa.schema([OFFSET_FIELD, TIME_FIELD, *data.schema]),
        )
        op = batch.column("_op")[0].as_py() if file.keyed else 0
        return FoundRow(place.offset, op, row)

    def _inside(self, file: DiskFile, row: int) -> tuple[int, int]:
        """Return the row group of a row, and its number in it."""
        reader = self._tier.readers.reader(file)
        number = reader.group_of(row)
        return number, row - reader.starts[number]

    # -- maps of keys ----------------------------------------------------------------------------

    def _with_map(self, file: DiskFile, use: Callable[[KeyFile | KeyMap], T]) -> T:
        """Use a file's map of keys; one that is missing or damaged is built again, once."""
        key = (file.topic, file.name)
        path = self._tier.directory.path(file.topic, keys_name(file.name))

        def open_one() -> KeyFile | KeyMap:
            opened = KeyFile(self._tier.file_system, path)
            if opened.count != file.rows:
                opened.close()
                raise CorruptionError("map of keys is of another file", path=path)
            return opened

        fault: Exception | None = None
        for _ in range(2):
            try:
                return use(self._maps.get(key, open_one))
            except (CorruptionError, OSError) as error:
                # A second attempt: another thread's need for descriptors may have closed it.
                self._maps.forget(key)
                fault = error
        built = self._build(file, fault)
        return use(self._maps.get(key, lambda: built))

    def _build(self, file: DiskFile, reason: Exception | None) -> KeyFile | KeyMap:
        """Build a map from the rows of its file and write it, if the disk takes it."""
        tier = self._tier
        reader = tier.readers.reader(file)
        shape = reader.shape
        assert shape is not None
        hashes = [
            shape.hashes(tier.readers.columns(file, number, shape.names))
            for number in range(reader.groups)
        ]
        built = KeyMap.build(np.concatenate(hashes))
        self.maps_built += 1
        warn("disk_keys_rebuilt", topic=file.topic, file=file.name, reason=reason)
        name = keys_name(file.name)
        try:
            tier.directory.remove_one(file.topic, f"{name}.tmp")
            tier.directory.remove_one(file.topic, name)
            tier.directory.write_keys(file.topic, file.name, built.to_bytes())
            return KeyFile(tier.file_system, tier.directory.path(file.topic, name))
        except (OSError, CorruptionError):
            # In memory it serves as well.
            return built


def _close(keys: KeyFile | KeyMap) -> None:
    if isinstance(keys, KeyFile):
        keys.close()
