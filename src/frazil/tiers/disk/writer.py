"""Writing the disk tier's sets of files: streaming flushes, and merges of small files.

A set is written in bounded memory and registered as a whole or not at all.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from frazil.errors import Conflict, CorruptionError, InvalidRequest, Unavailable
from frazil.schema import KeyMap
from frazil.telemetry import event
from frazil.tiers.disk.format import (
    MIXED,
    RUNS_KEY,
    TEMPORARY_SUFFIX,
    FileLabel,
    SetName,
    encode_runs,
    file_of,
    file_schema,
    kept_runs,
    set_name,
)
from frazil.tiers.disk.parquet import RowsWriter
from frazil.tiers.disk.reader import FileGone

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Self

    import numpy.typing as npt

    from frazil.log import SpecialRange
    from frazil.schema import KeyShape
    from frazil.tiers.disk.catalog import Span, TopicFiles
    from frazil.tiers.disk.format import DiskFile, SentRun
    from frazil.tiers.disk.tier import DiskLimits, DiskTier

FILES_MAX: Final = 256
"""A set has about so many files; rows of further partitions share files."""
OPEN_MAX: Final = 16
"""So many files are open at once; beyond it the largest one is finished."""
ROW_GROUP_BYTES_MAX: Final = 16 << 20
"""A reader of a few rows decodes their whole group, which must fit into the cache with others."""
KEYED_GROUP_ROWS_MAX: Final = 16 * 1024
"""Small, because a look-up by key decodes one row group; scans are not slower."""
SPANS_MIN: Final = 4
SPANS_MAX: Final = 256
INPUT_FILES_MAX: Final = 700
RUN_BYTES_MAX: Final = 1 << 30


class _Part(NamedTuple):
    """One file of the set while it is written."""

    number: int
    name: str
    partition: str
    writer: RowsWriter
    hashes: list[npt.NDArray[np.uint32]]


class SetWriter:
    """Writes a set of files for the offsets `[first, end)`. A context manager for one thread.

    Rows come in offset order. Leaving it before `commit` has succeeded removes the files, unless it
    is unknown whether the metadata store has registered them.

    Args:
        tier: where the files go.
        schema: the topic's columns with their ids.
        version: the number of that schema.
        shape: the key columns, None for a topic without key.
        gaps: the ranges in `[first, end)` without rows.
        runs: the producers of the records, for the footer of the first file.
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
        runs: Sequence[SentRun] = (),
    ) -> None:
        assert first < end
        self._tier = tier
        self._topic = topic
        self._schema = file_schema(schema, keyed=shape is not None)
        self._shape = shape
        self._first = first
        self._end = end
        self._gaps = tuple((gap.first, gap.end, gap.kind, gap.reason) for gap in gaps)
        self._runs = kept_runs(runs)
        self._id = tier.clock.random_bytes(4).hex()
        self._label = FileLabel(
            topic=topic,
            name="",
            set_files=0,
            schema=version,
            created_us=tier.clock.now_us(),
            key_ids=tuple(key_ids),
        )
        self._live: dict[str, _Part] = {}
        self._done: list[DiskFile] = []
        self._count = 0
        self._keep = False
        self._limits: DiskLimits = tier.limits

    def __enter__(self) -> Self:
        self._tier.directory.make_topic(self._topic)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._tier.writing.pop(id(self), None)
        if self._keep:
            return
        # The writers first: an unfinished one would write its footer when it is collected.
        for part in self._live.values():
            part.writer.abort()
        if kind is not None and not issubclass(kind, Exception):
            return
        for name in [part.name for part in self._live.values()] + [f.name for f in self._done]:
            self._tier.directory.remove(self._topic, name)
            self._tier.directory.remove_one(self._topic, name + TEMPORARY_SUFFIX)

    def add(self, pieces: Sequence[tuple[str, pa.RecordBatch]]) -> None:
        """Write rows, given by partition."""
        mixed: list[pa.RecordBatch] = []
        for partition, batch in pieces:
            part = self._part(partition)
            if part is None:
                mixed.append(batch)
            else:
                self._write(part, batch)
        if mixed:
            table = pa.Table.from_batches(mixed).combine_chunks()
            if len(mixed) > 1:
                table = table.sort_by("_offset")
            part = self._part(MIXED)
            assert part is not None
            for batch in table.to_batches():
                self._write(part, batch)
        self._shrink()

    def commit(self, replaces: Sequence[DiskFile] = ()) -> tuple[DiskFile, ...]:
        """Finish all files, make their names durable and register them in one transaction.

        Raises:
            OSError: a file could not be written or synced; nothing is registered.
            FrazilError: see `DiskTier.register`.
        """
        if not self._count:
            # A set without rows still has a file, which records its range and gaps.
            self._begin("")
        total = self._count
        for key in list(self._live):
            self._finish(key, total)
        files = tuple(msgspec.structs.replace(file, set_files=total) for file in self._done)
        self._tier.directory.publish(self._topic, [file.name for file in files])
        # From here on the files are removed only after a definite refusal.
        self._keep = True
        try:
            self._tier.register(self._topic, files, replaces)
        except (Conflict, InvalidRequest):
            self._keep = False
            raise
        return files

    def _part(self, partition: str) -> _Part | None:
        """Return the file for a partition's next rows, None if it must share one."""
        part = self._live.get(partition)
        if part is not None:
            if part.writer.bytes_written < self._limits.file_bytes:
                return part
            self._finish(partition, 0)
        if self._count >= FILES_MAX and partition != MIXED:
            return None
        return self._begin(partition)

    def _begin(self, partition: str) -> _Part:
        name = set_name(SetName(self._first, self._end, self._count, self._id))
        group_rows = self._limits.row_group_rows
        writer = RowsWriter(
            self._tier.file_system,
            self._tier.directory.path(self._topic, name) + TEMPORARY_SUFFIX,
            self._schema,
            key_names=self._shape.names if self._shape is not None else (),
            group_rows=min(group_rows, KEYED_GROUP_ROWS_MAX) if self._shape else group_rows,
            group_bytes=min(self._limits.writer_bytes_max, ROW_GROUP_BYTES_MAX),
        )
        part = self._live[partition] = _Part(self._count, name, partition, writer, [])
        self._count += 1
        return part

    def _write(self, part: _Part, batch: pa.RecordBatch) -> None:
        if self._shape is not None:
            part.hashes.append(self._shape.hashes(batch))
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
        label = msgspec.structs.replace(
            self._label,
            name=part.name,
            set_files=total,
            partition=part.partition,
            gaps=self._gaps if part.number == 0 else (),
        )
        metadata = label.to_metadata()
        if self._runs and part.number == 0:
            metadata[RUNS_KEY] = encode_runs(self._runs)
        facts = part.writer.finish(metadata)
        del self._live[key]
        self._done.append(file_of(label, facts))
        if part.hashes:
            keys = KeyMap.build(np.concatenate(part.hashes)).to_bytes()
            # Derived data: the file is complete without it, and the map is built on demand.
            with contextlib.suppress(OSError):
                size = self._tier.directory.write_keys(self._topic, part.name, keys)
                self._done[-1] = msgspec.structs.replace(self._done[-1], key_bytes=size)


def unavailable(error: OSError, *, topic: int) -> Unavailable:
    """Return the error for files that could not be written."""
    return Unavailable("files of the disk tier cannot be written", topic=topic, error=error)


def merge_once(tier: DiskTier, topic: int, *, keep: Collection[str] = ()) -> bool:
    """Merge one run of small sets, if one is worth it; tell whether there was one.

    The new files are synced and replace the old ones in one transaction; pins keep the old ones for
    their readers. A damaged file is reported and ends the attempt; sets with files known as damaged
    are left out, and so are files in `keep` and those of the lake's plans.
    """
    picture = tier.picture(topic)
    broken = {name for number, name in tier.damage.damaged() if number == topic}
    run = choose_run(
        picture,
        file_bytes=tier.limits.file_bytes,
        small_bytes=tier.limits.small_file_bytes,
        keep=broken.union(keep, tier.planned.get(topic, ())),
    )
    if not run:
        return False
    files = [file for span in run for file in span.files]
    try:
        with tier.pins.pin(files):
            _merge(tier, run, files)
    except (FileGone, Conflict):
        # The files were replaced or evicted meanwhile.
        return False
    except OSError as error:
        raise unavailable(error, topic=topic) from error
    except CorruptionError as error:
        damaged = picture.by_name.get(str(error.details.get("file")))
        if damaged is None:
            raise
        tier.damage.report(damaged, error.details["reason"])
        return False
    event("disk_merged", topic=topic, first=run[0].first, end=run[-1].end, files=len(files))
    return True


def choose_run(
    picture: TopicFiles, *, file_bytes: int, small_bytes: int, keep: Collection[str]
) -> tuple[Span, ...]:
    """Return adjacent sets to merge into one, empty if there are none.

    They are all committed or all not, of one schema version, each with small files only. A run is
    worth it if its oldest set is not larger than the others together: then a row is rewritten only
    a few times.
    """
    run: list[Span] = []
    for span in reversed(picture.spans):
        if run and not _fits(span, run, picture.marks.committed):
            if chosen := _worth_it(run, file_bytes):
                return chosen
            run = []
        if _is_small(span, small_bytes, keep):
            run.insert(0, span)
    return _worth_it(run, file_bytes)


def _fits(span: Span, run: Sequence[Span], committed: int) -> bool:
    after = run[0]
    return (
        span.end == after.first
        and span.files[0].schema == after.files[0].schema
        and (span.end <= committed) == (after.end <= committed)
        and len(run) < SPANS_MAX
    )


def _is_small(span: Span, small_bytes: int, keep: Collection[str]) -> bool:
    return all(file.bytes < small_bytes and file.name not in keep for file in span.files)


def _worth_it(run: Sequence[Span], file_bytes: int) -> tuple[Span, ...]:
    """Return the longest tail of a run that may become one set and is worth it."""
    total = files = best = 0
    partitions: dict[str, int] = {}
    for count, span in enumerate(reversed(run)):
        size = sum(file.bytes for file in span.files)
        for file in span.files:
            partitions[file.partition] = partitions.get(file.partition, 0) + file.bytes
        files += len(span.files)
        too_large = max(partitions.values()) > file_bytes or total + size > RUN_BYTES_MAX
        if too_large or files > INPUT_FILES_MAX or len(partitions) > FILES_MAX:
            # The result has full size and is not merged again.
            best = count if 2 * total >= file_bytes else best
            break
        if count + 1 >= SPANS_MIN and size <= total:
            best = count + 1
        total += size
    return tuple(run[len(run) - best :]) if best > 1 else ()


def _merge(tier: DiskTier, run: Sequence[Span], files: Sequence[DiskFile]) -> None:
    readers = tier.readers
    sample = next((file for file in files if file.rows), files[0])
    opened = readers.reader(sample)
    writer = SetWriter(
        tier,
        topic=sample.topic,
        schema=opened.columns,
        version=sample.schema,
        key_ids=sample.key_ids,
        shape=opened.shape,
        first=run[0].first,
        end=run[-1].end,
        gaps=sorted({gap for file in files for gap in file.ranges}),
        runs=[sent for file in files for sent in readers.reader(file).runs()],
    )
    with writer:
        # By partition, so that few files are open at a time.
        for file in sorted(files, key=lambda each: (each.partition, each.offset_first)):
            for number in range(readers.reader(file).groups):
                writer.add([(file.partition, readers.read(file, number))])
        writer.commit(replaces=files)
