"""The disk tier as a history source: rows of many files as one stream in the order of offsets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.errors import CorruptionError, NotFound
from frazil.log import RANGE_LOST, Batch, Piece
from frazil.model import OffsetRange
from frazil.tiers.disk.cache import BytesCache
from frazil.tiers.disk.pins import HistoryPin
from frazil.tiers.disk.rows import FileGone, damaged_error, offsets_of

if TYPE_CHECKING:
    from frazil.tiers.disk.catalog import TopicFiles
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["DiskHistory", "StoredRows"]

AHEAD_BYTES: Final = 16 << 20
"""Rows of several files are put in order for about so many bytes at once."""
WINDOW_ROWS_MIN: Final = 1024
SPREAD: Final = 4
"""Rows in memory take about so many times their bytes in a file."""
ATTEMPTS_MAX: Final = 10


class _Run(NamedTuple):
    """Consecutive rows from `offset` on, as they lie in files of one schema version."""

    file: DiskFile
    offset: int
    batch: pa.RecordBatch
    ahead: bool
    """It took work to put these rows in order: keep what is not asked for yet."""


class StoredRows(NamedTuple):
    """Consecutive rows as files have them: with the system's columns, under their own version."""

    batch: pa.RecordBatch
    offset: int
    version: int
    file: DiskFile
    """One of the files that they come from."""


class _Missing(NamedTuple):
    """No row for the wanted offset; the error names the range, and the damaged file if one is."""

    error: CorruptionError


class DiskHistory:
    """Gives the records of the tier's files back. Any number of threads may read."""

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._pins: set[HistoryPin] = set()
        # Re-entrant, because the garbage collector may close a forgotten reader at any point.
        self._lock = threading.RLock()
        self._ahead: BytesCache[_Run] = BytesCache(4 * AHEAD_BYTES)

    @property
    def cache_bytes(self) -> int:
        """Return the memory of rows that were put in order ahead of their readers."""
        return self._ahead.nbytes

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Return records from `offset` on, as `HistorySource.read` says."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._read(self._tier.picture(topic), offset, bytes_max)
            except FileGone:
                # Merged or evicted since the picture was taken.
                continue
        raise NotFound("offset is being moved, try again", topic=topic, offset=offset)

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
                    # The gap before is told first; the next read is refused.
                    return Piece([], offset, tuple(gaps))
                raise _lost(picture.topic, special.first, special.end, special.reason)
            gaps.append(OffsetRange(offset, special.end, special.reason))
            offset = special.end
            special = picture.gap_at(offset)
        if offset >= picture.flushed:
            return Piece([], offset, tuple(gaps))
        try:
            batch = self._batch(picture, offset, bytes_max)
        except CorruptionError:
            if not gaps:
                raise
            return Piece([], offset, tuple(gaps))
        batch.gaps = tuple(gaps)
        return Piece([batch], batch.offset_next)

    # -- rows ------------------------------------------------------------------------------------

    def stored(self, topic: int, *, offset: int, bytes_max: int) -> StoredRows:
        """Return the rows from `offset` on as they were flushed, at most about `bytes_max`.

        Raises:
            NotFound: if files do not have the offset any more.
            CorruptionError: if it is in a declared gap, or lost, or its file is damaged.
        """
        for _ in range(ATTEMPTS_MAX):
            picture = self._tier.picture(topic)
            if not picture.start <= offset < picture.flushed:
                break
            try:
                found = self._run(picture, offset)
            except FileGone:
                continue
            if isinstance(found, _Run):
                batch = found.batch
                if batch.nbytes > bytes_max:
                    count = max(1, batch.num_rows * bytes_max // batch.nbytes)
                    batch = batch.slice(0, count)
                return StoredRows(batch, offset, found.file.schema, found.file)
            if not self._rebuilt(picture, found.error):
                raise found.error
        raise NotFound("offset is not in the disk tier", topic=topic, offset=offset)

    def _batch(self, picture: TopicFiles, offset: int, bytes_max: int) -> Batch:
        """Return consecutive rows from `offset` on; a damaged file is rebuilt if possible."""
        for _ in range(ATTEMPTS_MAX):
            found = self._run(picture, offset)
            if isinstance(found, _Run):
                return self._shaped(found, bytes_max)
            if not self._rebuilt(picture, found.error):
                raise found.error
            picture = self._tier.picture(picture.topic)
        raise NotFound("offset is being moved, try again", topic=picture.topic, offset=offset)

    def _rebuilt(self, picture: TopicFiles, error: CorruptionError) -> bool:
        """Ask for a damaged file to be written anew; tell whether it is worth reading again."""
        file = picture.by_name.get(str(error.details.get("file")))
        return file is not None and self._tier.damaged(file, error.details["reason"])

    def _run(self, picture: TopicFiles, offset: int) -> _Run | _Missing:
        topic = picture.topic
        ahead = self._ahead.get((topic, offset))
        if ahead is not None:
            return ahead
        hole = picture.hole_at(offset)
        if hole is not None:
            return _Missing(_lost(topic, offset, hole[1], "no file holds this offset"))
        limit = picture.gap_behind(offset) or picture.flushed
        first = picture.overlapping(offset, offset + 1)
        if len(first) == 1 and first[0].dense:
            return self._dense_run(first[0], offset, limit)
        return self._merged_run(picture, offset, limit)

    def _dense_run(self, file: DiskFile, offset: int, limit: int) -> _Run | _Missing:
        """Return the rest of the row group that has the offset; no other file has any of it."""
        readers = self._tier.readers
        end = file.offset_last + 1
        try:
            reader = readers.reader(file)
            row = offset - file.offset_first
            number = reader.group_of(row)
            end = reader.bounds(number)[1] + 1
            batch = readers.group(file, number)
        except CorruptionError as error:
            return _Missing(_over(damaged_error(file, error), offset, end))
        batch = batch.slice(row - reader.starts[number], limit - offset)
        if int(offsets_of(batch)[0]) != offset:
            fault = damaged_error(file, ValueError("row has another offset"))
            return _Missing(_over(fault, offset, end))
        return _Run(file, offset, batch, ahead=False)

    def _merged_run(self, picture: TopicFiles, offset: int, limit: int) -> _Run | _Missing:
        """Put the rows of all files that share a stretch of offsets in order."""
        end = min(limit, offset + _window_rows(picture, offset, limit))
        files = [file for file in picture.overlapping(offset, end) if file.rows]
        others = [file.set_first for file in files if file.schema != files[0].schema]
        # Rows under other columns are of later sets: they are put in order by themselves.
        end = min([end, *others])
        files = [file for file in files if file.schema == files[0].schema]
        pieces: list[pa.RecordBatch] = []
        damage = _lost(picture.topic, offset, end, "no file holds this offset")
        for file in files:
            fault = self._between(file, offset, end, pieces)
            damage = fault or damage
        if not pieces:
            return _Missing(_over(damage, offset, end))
        merged = pa.Table.from_batches(pieces).combine_chunks()
        offsets = merged.column("_offset").to_numpy()
        order = np.argsort(offsets, kind="stable")
        offsets = offsets[order]
        # How many rows follow each other without a hole, from the wanted offset on.
        steps = offsets - np.arange(offset, offset + len(offsets))
        together = int(np.argmax(steps != 0)) if steps.any() else len(offsets)
        if together == 0:
            return _Missing(_over(damage, offset, int(offsets[0])))
        if together < len(offsets) and offsets[together] < offset + together:
            raise _lost(
                picture.topic, offset + together - 1, offset + together, "offset is in two files"
            )
        ordered = merged.take(pa.array(order[:together])).combine_chunks().to_batches()
        return _Run(files[0], offset, ordered[0], ahead=True)

    def _between(
        self, file: DiskFile, first: int, end: int, pieces: list[pa.RecordBatch]
    ) -> CorruptionError | None:
        """Add a file's rows in `[first, end)` to `pieces`; return its damage, if there is any."""
        readers = self._tier.readers
        fault: CorruptionError | None = None
        try:
            numbers = readers.reader(file).groups_between(first, end)
        except CorruptionError as error:
            return damaged_error(file, error)
        for number in numbers:
            try:
                batch = readers.group(file, number)
            except CorruptionError as error:
                fault = damaged_error(file, error)
                continue
            low, high = np.searchsorted(offsets_of(batch), [first, end])
            if low < high:
                pieces.append(batch.slice(int(low), int(high - low)))
        return fault

    def _shaped(self, run: _Run, bytes_max: int) -> Batch:
        """Cut a run to the bytes that were asked for; keep the rest for the next read."""
        batch = run.batch
        size = batch.nbytes
        if size > bytes_max and batch.num_rows > 1:
            count = max(1, batch.num_rows * bytes_max // size)
            rest = batch.slice(count)
            if run.ahead:
                topic, following = run.file.topic, run.offset + count
                kept = run._replace(offset=following, batch=rest)
                self._ahead.put((topic, following), kept, rest.nbytes)
            batch = batch.slice(0, count)
        self._tier.note_use((run.file,))
        times = _time_runs(batch.column("_time"))
        data = self._tier.readers.current(run.file, batch)
        return Batch(data, offset=run.offset, times=times)

    # -- times and pins --------------------------------------------------------------------------

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none."""
        for _ in range(ATTEMPTS_MAX):
            picture = self._tier.picture(topic)
            try:
                return self._offset_at(picture, time_us)
            except FileGone:
                continue
            except CorruptionError as error:
                if not self._rebuilt(picture, error):
                    raise
        raise NotFound("files are being moved, try again", topic=topic)

    def _offset_at(self, picture: TopicFiles, time_us: int) -> int | None:
        best: int | None = None
        readers = self._tier.readers
        for file in picture.since(time_us):
            if best is not None and file.offset_first >= best:
                break
            reader = readers.reader(file)
            for number in range(reader.groups):
                rows = readers.columns(file, number, ("_offset", "_time"))
                times = rows.column("_time").cast(pa.int64()).to_numpy()
                if times.max() < time_us:
                    continue
                offset = int(offsets_of(rows)[int(np.argmax(times >= time_us))])
                best = offset if best is None else min(best, offset)
                break
        return None if best is None else max(best, picture.start)

    def pin(self, topic: int, *, offset: int) -> HistoryPin:
        """Keep a topic's records from `offset` on from eviction."""
        pin = HistoryPin(self._unpin, topic, offset)
        with self._lock:
            self._pins.add(pin)
        return pin

    def pinned(self, topic: int) -> int | None:
        """Return the lowest offset that a reader of the topic still needs."""
        with self._lock:
            pins = tuple(self._pins)
        return min((pin.offset for pin in pins if pin.topic == topic), default=None)

    def _unpin(self, pin: HistoryPin) -> None:
        with self._lock:
            self._pins.discard(pin)


def _window_rows(picture: TopicFiles, offset: int, limit: int) -> int:
    """Return how many offsets to put in order at once: about `AHEAD_BYTES` of rows."""
    files = [file for file in picture.overlapping(offset, offset + WINDOW_ROWS_MIN) if file.rows]
    size = sum(file.bytes for file in files) * SPREAD
    rows = sum(file.rows for file in files)
    return max(WINDOW_ROWS_MIN, rows * AHEAD_BYTES // max(size, 1)) if rows else limit - offset


def _time_runs(times: pa.Array) -> tuple[tuple[int, int], ...]:
    values = times.cast(pa.int64()).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist()]
    ends = [*starts[1:], len(values)]
    pairs = zip(starts, ends, strict=True)
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
