"""Write the files of one set: streaming, in bounded memory, registered together or not at all."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from frazil.errors import Conflict, InvalidRequest, Unavailable
from frazil.tiers.disk.file import (
    MIXED,
    TEMPORARY_SUFFIX,
    FileLabel,
    Member,
    SetName,
    file_of,
    file_schema,
    packed_values,
    set_name,
)
from frazil.tiers.disk.parquet_file import ParquetSettings, RowsWriter
from frazil.tiers.disk.rows import offsets_of
from frazil.tiers.disk.runs import RUNS_KEY, encode_runs, kept_runs
from frazil.tiers.keys.growing_keys import GrowingKeys
from frazil.tiers.partitions import UNPARTITIONED, Partition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    import numpy.typing as npt

    from frazil.clock import Clock
    from frazil.log import SpecialRange
    from frazil.schema import KeyShape
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.runs import SentRun
    from frazil.tiers.disk.tier import DiskTier, TierSettings

__all__ = ["FILES_MAX", "OPEN_MAX", "SetWriter"]

FILES_MAX: Final = 256
"""A set has about so many files; rows of further partitions share files."""
OPEN_MAX: Final = 16
"""So many files are open at once; beyond it the largest is finished, and another one begun."""
ROW_GROUP_BYTES_MAX: Final = 16 << 20
"""A reader that wants a few rows decodes their whole group, which must fit into what is kept of
them, beside those of other readers."""
KEYED_GROUP_ROWS_MAX: Final = 16 * 1024
"""A look-up by key decodes one row group: those of keyed topics are small. Scans do not mind."""


class _Part:
    """One file of the set while it is written."""

    def __init__(
        self, name: SetName, partition: Partition, writer: RowsWriter, keys: GrowingKeys | None
    ) -> None:
        self.name = set_name(name)
        self.number = name.number
        self.partition = partition
        self.writer = writer
        self.keys = keys
        self.deltas = 0


class SetWriter:
    """Writes a set of files for the offsets `[first, end)`. A context manager for one thread.

    Rows come in the order of offsets. Leaving it before `commit` has succeeded removes what was
    written, unless the metadata store cannot tell whether the files are registered.

    Args:
        tier: where the files go.
        schema: the topic's columns with their ids.
        version: the number of that schema.
        shape: the key columns, None for a topic without key.
        gaps: the ranges in `[first, end)` without rows.
        deltas: sorted offsets of changes whose base row was written to files before.
        runs: who sent the records, for the footer of the first file.
        throttle: told of the bytes as they are written; may wait.
    """

    def __init__(
        self,
        tier: DiskTier,
        *,
        topic: int,
        schema: pa.Schema,
        version: int,
        key_ids: Sequence[int],
        shape: KeyShape | None,
        first: int,
        end: int,
        gaps: Sequence[SpecialRange],
        deltas: npt.NDArray[np.int64] | None = None,
        runs: Sequence[SentRun] = (),
        clock: Clock | None = None,
        settings: TierSettings | None = None,
        throttle: Callable[[int], None] | None = None,
    ) -> None:
        assert first < end
        self._tier = tier
        self._topic = topic
        self._schema = file_schema(schema, keyed=shape is not None)
        self._version = version
        self._key_ids = tuple(key_ids)
        self._shape = shape
        self._first = first
        self._end = end
        self._gaps = tuple((gap.first, gap.end, gap.kind, gap.reason) for gap in gaps)
        self._deltas = deltas
        self._runs = kept_runs(runs)
        self._throttle = throttle
        clock = clock or tier.clock
        self._id = clock.random_bytes(4).hex()
        self._created_us = clock.now_us()
        self._live: dict[str, _Part] = {}
        self._done: list[DiskFile] = []
        self._count = 0
        self._keep = False
        # Its thread starts with the first piece of keys that is worth it.
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="frazil-keys")
        self._limits = settings = settings or tier.settings
        group_rows = settings.row_group_rows
        self._settings = ParquetSettings(
            row_group_rows=min(group_rows, KEYED_GROUP_ROWS_MAX) if shape else group_rows,
            row_group_bytes=min(settings.writer_bytes_max, ROW_GROUP_BYTES_MAX),
            level=settings.zstd_level,
        )

    def __enter__(self) -> Self:
        self._tier.directory.make_topic(self._topic)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tier.writing.pop(id(self), None)
        self._beside.shutdown(cancel_futures=True)
        if self._keep:
            return
        # The writers first: an unfinished one would write its footer when it is forgotten.
        for part in self._live.values():
            part.writer.abort()
        if kind is not None and not issubclass(kind, Exception):
            return
        for name in [part.name for part in self._live.values()] + [f.name for f in self._done]:
            self._tier.directory.remove(self._topic, name)
            self._tier.directory.remove_one(self._topic, name + TEMPORARY_SUFFIX)

    def add(self, pieces: Sequence[tuple[Partition, pa.RecordBatch]], *, deltas: int = 0) -> None:
        """Take rows, given by partition; `deltas` of them are known to be deltas."""
        mixed: list[pa.RecordBatch] = []
        for partition, batch in pieces:
            part = self._part(partition)
            if part is None:
                mixed.append(batch)
            else:
                self._write(part, batch, deltas)
        if mixed:
            table = pa.Table.from_batches(mixed).combine_chunks()
            if len(mixed) > 1:
                table = table.sort_by("_offset")
            part = self._part(Partition((), MIXED))
            assert part is not None
            for batch in table.to_batches():
                self._write(part, batch, deltas)
        self._shrink()

    def commit(self, replaces: Sequence[DiskFile] = ()) -> tuple[DiskFile, ...]:
        """Finish all files, make their names durable and register them in one transaction.

        Raises:
            OSError: a file could not be written or synced; nothing is registered.
            FrazilError: see `DiskTier.register`.
        """
        if not self._count:
            # Without any row the set still has a file, which tells its range and gaps.
            self._begin(UNPARTITIONED)
        total = self._count
        for key in list(self._live):
            self._finish(key, total)
        files = tuple(
            msgspec.structs.replace(
                file, members=(msgspec.structs.replace(file.members[0], set_files=total),)
            )
            for file in self._done
        )
        self._tier.directory.publish(self._topic, [file.name for file in files])
        # From here on only a definite refusal lets the files be removed.
        self._keep = True
        try:
            self._tier.register(self._topic, files, replaces)
        except (Conflict, InvalidRequest):
            self._keep = False
            raise
        return files

    def _part(self, partition: Partition) -> _Part | None:
        """Return the file for a partition's next rows, None if it has to share one."""
        part = self._live.get(partition.text)
        if part is not None and part.writer.bytes_written >= self._limits.file_bytes:
            self._finish(partition.text, 0)
            part = None
        if part is not None:
            return part
        if self._count >= FILES_MAX and partition.text != MIXED:
            return None
        return self._begin(partition)

    def _begin(self, partition: Partition) -> _Part:
        name = SetName(self._first, self._end, self._count, self._id)
        writer = RowsWriter(
            self._tier.file_system,
            self._tier.directory.path(self._topic, set_name(name)) + TEMPORARY_SUFFIX,
            self._schema,
            key_names=self._shape.names if self._shape is not None else (),
            settings=self._settings,
            throttle=self._throttle,
        )
        self._count += 1
        keys = None if self._shape is None else GrowingKeys(self._beside)
        part = self._live[partition.text] = _Part(name, partition, writer, keys)
        return part

    def _write(self, part: _Part, batch: pa.RecordBatch, deltas: int) -> None:
        if self._shape is not None and part.keys is not None:
            part.keys.add(self._shape.hashes(batch))
        part.deltas += deltas
        if self._deltas is not None and len(self._deltas):
            places = np.searchsorted(self._deltas, offsets_of(batch))
            places = np.minimum(places, len(self._deltas) - 1)
            part.deltas += int((self._deltas[places] == offsets_of(batch)).sum())
        part.writer.write(batch)

    def _shrink(self) -> None:
        """Keep the rows held in memory and the number of open files within their limits."""
        held = sum(part.writer.held_bytes for part in self._live.values())
        while held > self._limits.writer_bytes_max:
            part = max(self._live.values(), key=lambda each: each.writer.held_bytes)
            held -= part.writer.held_bytes
            part.writer.drain()
            opened = [key for key, each in self._live.items() if each.writer.started]
            if len(opened) > OPEN_MAX:
                self._finish(max(opened, key=self._written), 0)
        self._tier.writing[id(self)] = held

    def _written(self, key: str) -> int:
        return self._live[key].writer.bytes_written

    def _finish(self, key: str, total: int) -> None:
        """Finish one file; `total` is the number of files of the set, 0 while it is not known."""
        part = self._live[key]
        label = FileLabel(
            topic=self._topic,
            members=(Member(self._first, self._end, total, part.name),),
            schema=self._version,
            created_us=self._created_us,
            partition=part.partition.text,
            values=packed_values(part.partition.values),
            key_ids=self._key_ids,
            deltas=part.deltas,
            gaps=self._gaps if part.number == 0 else (),
        )
        if part.keys is not None:
            part.keys.end()
        metadata = label.to_metadata()
        if self._runs and part.number == 0:
            metadata[RUNS_KEY] = encode_runs(self._runs)
        facts = part.writer.finish(metadata)
        del self._live[key]
        self._done.append(file_of(part.name, label, facts))
        if part.keys is not None and part.writer.rows:
            keys = part.keys.file_form()
            # Derived data: without it the file is complete, and the map is built when needed.
            with contextlib.suppress(OSError):
                size = self._tier.directory.write_keys(self._topic, part.name, keys)
                self._done[-1] = msgspec.structs.replace(self._done[-1], key_bytes=size)


def unavailable(error: OSError, *, topic: int) -> Unavailable:
    """Return the error for files that could not be written."""
    return Unavailable("files of the disk tier cannot be written", topic=topic, error=error)
