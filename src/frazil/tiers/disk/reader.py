"""Reading the disk tier: open files, decoded row groups, and history in offset order."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.log import RANGE_LOST, Batch, Piece
from frazil.model import OffsetRange
from frazil.schema import BitmapMoves, KeyShape
from frazil.tiers.disk.format import (
    RUNS_KEY,
    decode_runs,
    group_integers,
    ids_of,
    user_schema,
)
from frazil.tiers.disk.parquet import open_parquet, stored_schema
from frazil.tiers.disk.pins import HistoryPins
from frazil.topic import OP_FIELD, PRESENT_FIELD

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    import numpy.typing as npt

    from frazil.fs import FileSystem
    from frazil.tiers.disk.catalog import DiskCatalog, DiskDirectory, TopicFiles
    from frazil.tiers.disk.format import DiskFile, SentRun
    from frazil.tiers.disk.maintenance import DamagedFiles

T = TypeVar("T")

CACHE_BYTES: Final = 64 << 20
AHEAD_BYTES: Final = 16 << 20
"""About so many bytes of rows of several files are sorted by offset at once."""
WINDOW_ROWS_MIN: Final = 1024
FOREVER: Final = 1 << 62
SPREAD: Final = 4
"""Rows in memory take about so many times their bytes in a file."""


class FileGone(Exception):
    """A file was removed after its name was read: take a new picture."""


class LruCache(Generic[T]):
    """The most recently used values whose sizes sum up to a limit. Any thread may use it.

    Args:
        size_max: the limit.
        close: releases a value that leaves the cache; another thread may still use the value.
    """

    def __init__(self, size_max: int, *, close: Callable[[T], None] | None = None) -> None:
        self._size_max = size_max
        self._close = close
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def get(self, key: Hashable) -> T | None:
        """Return a value and note its use."""
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: T, size: int = 1) -> T:
        """Keep a value unless there is one, and return the one that is kept.

        A value above the limit is returned, not kept. The least recently used ones are dropped.
        """
        dropped: list[T] = []
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                dropped.append(value)
                value = found[0]
            elif size <= self._size_max:
                self._values[key] = (value, size)
                self.nbytes += size
                while self.nbytes > self._size_max:
                    _, (old, old_size) = self._values.popitem(last=False)
                    self.nbytes -= old_size
                    dropped.append(old)
        self._release(dropped)
        return value

    def forget(self, matches: Callable[[Hashable], bool] = lambda _key: True) -> None:
        """Drop the values whose key matches; all by default."""
        with self._lock:
            keys = [key for key in self._values if matches(key)]
            gone = [self._values.pop(key) for key in keys]
            self.nbytes -= sum(size for _, size in gone)
        self._release([value for value, _ in gone])

    def values(self) -> list[T]:
        """Return the values."""
        with self._lock:
            return [value for value, _ in self._values.values()]

    def _release(self, values: Iterable[T]) -> None:
        if self._close is not None:
            for value in values:
                self._close(value)


class RowsFile:
    """Reads a file's row groups; pages and footer are verified. Any thread may use it.

    Attributes:
        schema: all columns as they were written.
        columns: the topic's columns, without the system columns.
        shape: the key columns, None for a file of a topic without key.
        starts: the row with which each row group starts, and the number of rows at the end.
        bounds: the first and last offset of each row group.
        released: it was closed; open it again.
    """

    def __init__(self, file_system: FileSystem, path: str, file: DiskFile) -> None:
        self.file = file
        self.released = False
        self._path = path
        # pyarrow's reader is not safe for two threads at once.
        self._lock = threading.Lock()
        try:
            self._parquet, self._source = open_parquet(file_system, path)
        except CorruptionError as error:
            raise damaged_error(file, error) from error
        try:
            self._bind()
        except (CorruptionError, ValueError, pa.ArrowException) as error:
            self._source.release()
            raise damaged_error(file, error) from error
        except OSError:
            self._source.release()
            raise

    def _bind(self) -> None:
        file, metadata = self.file, self._parquet.metadata
        if self._source.size != file.bytes or self._source.footer_crc() != file.footer_crc:
            raise ValueError("footer is not the one that was written")
        self.schema: pa.Schema = stored_schema(self._parquet)
        self.columns = user_schema(self.schema)
        self.shape = KeyShape(self.columns, file.key_ids) if file.key_ids else None
        counts = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
        self.starts = [0, *accumulate(counts)]
        # `_offset` is the first column.
        self.bounds = group_integers(metadata, 0)
        self._lasts = [last for _, last in self.bounds]

    @property
    def groups(self) -> int:
        """Return the number of row groups."""
        return len(self.bounds)

    def group_of(self, row: int) -> int:
        """Return the row group of a row."""
        return bisect_right(self.starts, row) - 1

    def groups_between(self, first: int, end: int) -> range:
        """Return the row groups that may have offsets in `[first, end)`."""
        low = bisect_left(self._lasts, first)
        high = low
        while high < len(self.bounds) and self.bounds[high][0] < end:
            high += 1
        return range(low, high)

    def runs(self) -> list[SentRun]:
        """Return the producers' runs of the file's set, as far as this file has them.

        Raises:
            CorruptionError: if the footer's entry is damaged.
        """
        found = (self._parquet.metadata.metadata or {}).get(RUNS_KEY.encode())
        return [] if found is None else decode_runs(found.decode())

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.RecordBatch:
        """Return a row group, or some of its columns.

        Raises:
            CorruptionError: if its bytes are not those that were written.
            OSError: if they cannot be read.
        """
        with self._lock:
            if self.released:
                raise FileNotFoundError(self._path)
            try:
                table = self._parquet.read_row_group(group, columns=columns, use_threads=False)
                batch = self._restored(table)
            except (pa.ArrowException, OSError, ValueError) as error:
                failed, self._source.error = self._source.error, None
                if failed is not None:
                    raise failed from error
                raise damaged_error(self.file, error) from error
        if batch.num_rows != self.starts[group + 1] - self.starts[group]:
            raise damaged_error(self.file, ValueError("row group has another number of rows"))
        return batch

    def release(self) -> None:
        """Close the file once a read under way has finished."""
        with self._lock:
            if not self.released:
                self.released = True
                self._source.release()

    def _restored(self, table: pa.Table) -> pa.RecordBatch:
        """Return one batch with the types as they were written."""
        fields = [self.schema.field(name) for name in table.column_names]
        arrays: list[pa.Array] = []
        for column, field in zip(table.columns, fields, strict=True):
            # One chunk is the rule, and is not copied.
            array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


class DiskReaders:
    """Opens files and caches decoded row groups. Any thread may use it.

    Attributes:
        convert: converts a batch of a topic's columns from the version it was written under to
            the current one; set by the engine.
    """

    def __init__(
        self, catalog: DiskCatalog, directory: DiskDirectory, *, open_files_max: int
    ) -> None:
        self.convert: Callable[[int, int, pa.RecordBatch], pa.RecordBatch] | None = None
        self._catalog = catalog
        self._directory = directory
        self._open: LruCache[RowsFile] = LruCache(open_files_max, close=RowsFile.release)
        self._groups: LruCache[pa.RecordBatch] = LruCache(CACHE_BYTES)
        self._clock = itertools.count(1)
        self._used: dict[tuple[int, str], int] = {}

    @property
    def cache_bytes(self) -> int:
        """Return the memory of decoded row groups."""
        return self._groups.nbytes

    def reader(self, file: DiskFile) -> RowsFile:
        """Return a file, open.

        Raises:
            CorruptionError: its footer is damaged, or a registered file is gone.
            FileGone: it was removed meanwhile.
            Unavailable: it cannot be read now.
        """
        key = (file.topic, file.name)
        found = self._open.get(key)
        if found is not None:
            return found
        path = self._directory.path(file.topic, file.name)
        try:
            return self._open.put(key, RowsFile(self._directory.file_system, path, file))
        except FileNotFoundError as error:
            if file.name in self._catalog.picture(file.topic).by_name:
                raise damaged_error(file, error) from error
            raise FileGone(file.name) from error
        except OSError as error:
            raise Unavailable("file cannot be opened, try again", path=path, error=error) from error

    def group(
        self, file: DiskFile, number: int, names: tuple[str, ...] | None = None
    ) -> pa.RecordBatch:
        """Return a row group, or some of its columns; errors as of `reader`."""
        whole = self._groups.get((file.topic, file.name, number, None))
        if whole is not None:
            return whole if names is None else whole.select(list(names))
        key = (file.topic, file.name, number, names)
        found = self._groups.get(key)
        if found is None:
            found = self.read(file, number, names)
            self._groups.put(key, found, found.nbytes)
        return found

    def read(
        self, file: DiskFile, number: int, names: tuple[str, ...] | None = None
    ) -> pa.RecordBatch:
        """Return a row group without caching it; errors as of `reader`."""
        while True:
            reader = self.reader(file)
            try:
                return reader.read(number, None if names is None else list(names))
            except FileNotFoundError:
                # The cache closed it to open another file.
                self._open.forget(lambda key: key == (file.topic, file.name))
            except OSError as error:
                path = self._directory.path(file.topic, file.name)
                raise Unavailable("file cannot be read, try again", path=path) from error

    def note_use(self, files: Iterable[DiskFile]) -> None:
        """Note that files were read, so that others are evicted before them."""
        now = next(self._clock)
        for file in files:
            self._used[file.topic, file.name] = now

    def last_use(self, files: Iterable[DiskFile]) -> int:
        """Return when one of some files was last used."""
        return max(self._used.get((file.topic, file.name), 0) for file in files)

    def forget(self, file: DiskFile) -> None:
        """Close a file and drop what is cached of it."""
        prefix = (file.topic, file.name)
        self._open.forget(lambda key: key == prefix)
        self._groups.forget(lambda key: isinstance(key, tuple) and key[:2] == prefix)
        self._used.pop(prefix, None)

    def close(self) -> None:
        """Close all files and empty the cache."""
        self._open.forget()
        self._groups.forget()

    def current(self, file: DiskFile, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the layout of the log: the current columns, then operation and bitmap."""
        written = user_schema(batch.schema)
        users = batch.select(written.names)
        convert = self.convert
        wanted = users if convert is None else convert(file.topic, file.schema, users)
        if not file.key_ids:
            return wanted
        present = batch.column(PRESENT_FIELD.name)
        if present.null_count < len(present):
            present = _moves(written, wanted.schema).moved_array(present)
        return pa.RecordBatch.from_arrays(
            [*wanted.columns, batch.column(OP_FIELD.name), present],
            schema=pa.schema([*wanted.schema, OP_FIELD, PRESENT_FIELD]),
        )


class StoredRows(NamedTuple):
    """Consecutive rows as files have them: with system columns, under their own version."""

    batch: pa.RecordBatch
    offset: int
    version: int
    file: DiskFile
    """One of the files that they come from."""
    ahead: bool = False
    """Sorting these rows took work: rows beyond the request are cached."""


class DiskHistory(HistoryPins):
    """The records of the tier's files as a `HistorySource`. Any number of threads may read."""

    def __init__(self, catalog: DiskCatalog, readers: DiskReaders, damage: DamagedFiles) -> None:
        super().__init__()
        self._catalog = catalog
        self._readers = readers
        self._damage = damage
        self._ahead: LruCache[StoredRows] = LruCache(4 * AHEAD_BYTES)

    @property
    def cache_bytes(self) -> int:
        """Return the memory of rows that were sorted ahead of their readers."""
        return self._ahead.nbytes

    def range(self, topic: int) -> OffsetRange:
        """Return the offsets in files."""
        picture = self._catalog.picture(topic)
        return OffsetRange(picture.start, picture.flushed)

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Return records from `offset` on, as `HistorySource.read` says."""
        return self._damage.retried(topic, lambda picture: self._read(picture, offset, bytes_max))

    def _read(self, picture: TopicFiles, offset: int, bytes_max: int) -> Piece:
        if offset < picture.start:
            raise NotFound(
                "offset is no longer in the disk tier, start at the first available one",
                offset=offset,
                offset_first=picture.start,
            )
        gaps: list[OffsetRange] = []
        special = picture.gap_at(offset)
        while special is not None:
            if special.kind == RANGE_LOST:
                if gaps:
                    # The reader gets the gap before the loss first; its next read is refused.
                    return Piece([], offset, tuple(gaps))
                raise _lost(picture.topic, special.first, special.end, special.reason)
            gaps.append(OffsetRange(offset, special.end, special.reason))
            offset = special.end
            special = picture.gap_at(offset)
        if offset >= picture.flushed:
            return Piece([], offset, tuple(gaps))
        try:
            batch = self._shaped(self._run(picture, offset), bytes_max)
        except CorruptionError:
            if not gaps:
                raise
            return Piece([], offset, tuple(gaps))
        batch.gaps = tuple(gaps)
        return Piece([batch], batch.offset_next)

    def stored(self, topic: int, *, offset: int, bytes_max: int) -> StoredRows:
        """Return the rows from `offset` on as they were flushed, at most about `bytes_max`.

        Raises:
            NotFound: if files do not have the offset any more.
            CorruptionError: if it is in a declared gap, or lost, or its file is damaged.
        """

        def read(picture: TopicFiles) -> StoredRows:
            if not picture.start <= offset < picture.flushed:
                raise NotFound("offset is not in the disk tier", topic=topic, offset=offset)
            found = self._run(picture, offset)
            size = found.batch.nbytes
            if size <= bytes_max:
                return found
            count = max(1, found.batch.num_rows * bytes_max // size)
            return found._replace(batch=found.batch.slice(0, count))

        return self._damage.retried(topic, read)

    # -- rows --------------------------------------------------------------------------------------

    def _run(self, picture: TopicFiles, offset: int) -> StoredRows:
        """Return consecutive rows from `offset` on; an error has the range that cannot be read."""
        topic = picture.topic
        ahead = self._ahead.get((topic, offset))
        if ahead is not None:
            return ahead
        hole = picture.hole_at(offset)
        if hole is not None:
            raise _lost(topic, offset, hole[1], "no file holds this offset")
        limit = picture.gap_behind(offset) or picture.flushed
        first = picture.overlapping(offset, offset + 1)
        if len(first) == 1 and first[0].dense:
            return self._dense_run(first[0], offset, limit)
        return self._merged_run(picture, offset, limit)

    def _dense_run(self, file: DiskFile, offset: int, limit: int) -> StoredRows:
        """Return the rest of the row group with the offset; no other file shares its range."""
        end = file.offset_last + 1
        try:
            reader = self._readers.reader(file)
            row = offset - file.offset_first
            number = reader.group_of(row)
            end = reader.bounds[number][1] + 1
            batch = self._readers.group(file, number)
        except CorruptionError as error:
            raise _over(error, offset, end) from error
        batch = batch.slice(row - reader.starts[number], limit - offset)
        if int(offsets_of(batch)[0]) != offset:
            raise _over(damaged_error(file, ValueError("row has another offset")), offset, end)
        return StoredRows(batch, offset, file.schema, file)

    def _merged_run(self, picture: TopicFiles, offset: int, limit: int) -> StoredRows:
        """Sort the rows of all files that share a range of offsets."""
        end = min(limit, offset + _window_rows(picture, offset, limit))
        files = [file for file in picture.overlapping(offset, end) if file.rows]
        # Rows under other columns belong to later sets and make up a later run.
        end = min([end, *(file.set_first for file in files if file.schema != files[0].schema)])
        files = [file for file in files if file.schema == files[0].schema]
        pieces: list[pa.RecordBatch] = []
        damage = _lost(picture.topic, offset, end, "no file holds this offset")
        for file in files:
            damage = self._add_between(file, offset, end, pieces) or damage
        if not pieces:
            raise _over(damage, offset, end)
        merged = pa.Table.from_batches(pieces).combine_chunks()
        offsets = merged.column("_offset").to_numpy()
        order = np.argsort(offsets, kind="stable")
        count, following = _together(offsets[order], offset)
        if count == 0:
            raise _over(damage, offset, following)
        if following < offset + count:
            at = offset + count
            raise _lost(picture.topic, at - 1, at, "offset is in two files")
        ordered = merged.take(pa.array(order[:count])).combine_chunks().to_batches()
        return StoredRows(ordered[0], offset, files[0].schema, files[0], ahead=True)

    def _add_between(
        self, file: DiskFile, first: int, end: int, pieces: list[pa.RecordBatch]
    ) -> CorruptionError | None:
        """Add a file's rows in `[first, end)` to `pieces`; return its damage, if any."""
        fault: CorruptionError | None = None
        try:
            numbers = self._readers.reader(file).groups_between(first, end)
        except CorruptionError as error:
            return error
        for number in numbers:
            try:
                batch = self._readers.group(file, number)
            except CorruptionError as error:
                fault = error
                continue
            low, high = np.searchsorted(offsets_of(batch), [first, end])
            if low < high:
                pieces.append(batch.slice(int(low), int(high - low)))
        return fault

    def _shaped(self, run: StoredRows, bytes_max: int) -> Batch:
        """Cut a run to the requested bytes; cache the rest for the next read."""
        batch = run.batch
        size = batch.nbytes
        if size > bytes_max and batch.num_rows > 1:
            count = max(1, batch.num_rows * bytes_max // size)
            if run.ahead:
                rest = run._replace(offset=run.offset + count, batch=batch.slice(count))
                self._ahead.put((run.file.topic, rest.offset), rest, rest.batch.nbytes)
            batch = batch.slice(0, count)
        self._readers.note_use((run.file,))
        times = _time_runs(batch.column("_time"))
        return Batch(self._readers.current(run.file, batch), offset=run.offset, times=times)

    # -- times and pins ----------------------------------------------------------------------------

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none."""
        return self._damage.retried(topic, lambda picture: self._offset_at(picture, time_us))

    def _offset_at(self, picture: TopicFiles, time_us: int) -> int | None:
        best: int | None = None
        for file in picture.since(time_us):
            if best is not None and file.offset_first >= best:
                break
            for number in range(self._readers.reader(file).groups):
                rows = self._readers.group(file, number, ("_offset", "_time"))
                times = rows.column("_time").cast(pa.int64()).to_numpy()
                if times.max() < time_us:
                    continue
                offset = int(offsets_of(rows)[int(np.argmax(times >= time_us))])
                best = offset if best is None else min(best, offset)
                break
        return None if best is None else max(best, picture.start)

    def pinned(self, topic: int) -> int:
        """Return the lowest offset that a reader of the topic still needs; high without one."""
        return min(self.pinned_offsets(topic), default=FOREVER)


def damaged_error(file: DiskFile, reason: Exception) -> CorruptionError:
    """Return the error for a file whose rows cannot be read."""
    cause = reason.details.get("reason", reason) if isinstance(reason, CorruptionError) else reason
    return CorruptionError(
        "file of the disk tier is damaged, run `frazil doctor`; reading may go on at offset_next",
        topic=file.topic,
        offset_first=file.offset_first,
        offset_next=file.offset_last + 1,
        file=file.name,
        reason=cause,
    )


def offsets_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the offsets of rows."""
    found: npt.NDArray[np.int64] = batch.column("_offset").to_numpy(zero_copy_only=False)
    return found


def _moves(written: pa.Schema, wanted: pa.Schema) -> BitmapMoves:
    written_ids, wanted_ids = ids_of(written), ids_of(wanted)
    if min([*wanted_ids, *written_ids], default=-1) < 0:
        # Columns without ids are the same where their names are.
        names = {name: number for number, name in enumerate(written.names)}
        written_ids = list(range(len(written)))
        wanted_ids = [names.get(name, -1) for name in wanted.names]
    return BitmapMoves(written_ids, wanted_ids)


def _window_rows(picture: TopicFiles, offset: int, limit: int) -> int:
    """Return how many offsets to sort at once: about `AHEAD_BYTES` of rows."""
    files = [file for file in picture.overlapping(offset, offset + WINDOW_ROWS_MIN) if file.rows]
    size = sum(file.bytes for file in files) * SPREAD
    rows = sum(file.rows for file in files)
    return max(WINDOW_ROWS_MIN, rows * AHEAD_BYTES // max(size, 1)) if rows else limit - offset


def _together(offsets: npt.NDArray[np.int64], first: int) -> tuple[int, int]:
    """Return how many sorted offsets follow each other from `first` on, and the one after them."""
    steps = offsets - np.arange(first, first + len(offsets))
    if not steps.any():
        return len(offsets), first + len(offsets)
    count = int(np.argmax(steps != 0))
    return count, int(offsets[count])


def _time_runs(times: pa.Array) -> tuple[tuple[int, int], ...]:
    values = times.cast(pa.int64()).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    pairs = zip(starts, [*starts[1:], len(values)], strict=True)
    return tuple((end - start, int(values[start])) for start, end in pairs)


def _lost(topic: int, first: int, end: int, reason: str) -> CorruptionError:
    return CorruptionError(
        "records were lost to damage, run `frazil doctor`; reading may go on at offset_next",
        topic=topic,
        offset_first=first,
        offset_next=end,
        reason=reason,
    )


def _over(error: CorruptionError, first: int, end: int) -> CorruptionError:
    details = {**error.details, "offset_first": first, "offset_next": end}
    return CorruptionError(error.message, **details)
