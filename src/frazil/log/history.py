"""History: sources that return a topic's records as they were published, by offset.

The log is the first `HistorySource`; memory, disk and objects have the same interface.
`ChainedHistory` makes one ordered stream of several, without a gap or a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from frazil.errors import CorruptionError, FrazilError, NotFound, Unavailable
from frazil.model import OffsetRange
from frazil.schema.python_rows import python_rows
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

OFFSET_FIELD = pa.field("_offset", pa.int64(), nullable=False)
TIME_FIELD = pa.field("_time", pa.timestamp("us", tz="UTC"), nullable=False)


class Batch:
    """Consecutive records of one topic.

    `data` holds the topic's columns as stored in the log; `to_arrow` adds `_offset` and `_time`.
    `gaps` are declared ranges without records directly before this batch.
    """

    __slots__ = ("count", "data", "gaps", "offset", "times")

    def __init__(
        self,
        data: pa.RecordBatch,
        *,
        offset: int,
        times: tuple[tuple[int, int], ...],
        gaps: tuple[OffsetRange, ...] = (),
    ) -> None:
        self.data = data
        self.offset = offset
        self.count: int = data.num_rows
        self.times = times
        self.gaps = gaps

    def __repr__(self) -> str:
        return f"Batch(offset={self.offset}, count={self.count})"

    def __len__(self) -> int:
        return self.count

    @property
    def offset_next(self) -> int:
        """Return the offset after the last record."""
        return self.offset + self.count

    @property
    def offset_last(self) -> int:
        """Return the offset of the last record."""
        return self.offset + self.count - 1

    @property
    def time_us(self) -> int:
        """Return the append time of the first record in microseconds."""
        return self.times[0][1]

    def slice(self, start: int, count: int | None = None) -> Batch:
        """Return part of the batch without copying."""
        data = self.data.slice(start, count)
        gaps = self.gaps if start == 0 else ()
        times = _slice_times(self.times, start, data.num_rows)
        return Batch(data, offset=self.offset + start, times=times, gaps=gaps)

    def to_arrow(self) -> pa.RecordBatch:
        """Return a record batch with `_offset` and `_time` before the topic's columns."""
        offsets = pa.array(range(self.offset, self.offset + self.count), pa.int64())
        return pa.RecordBatch.from_arrays(
            [offsets, self.time_array(), *self.data.columns],
            schema=pa.schema([OFFSET_FIELD, TIME_FIELD, *self.data.schema]),
        )

    def time_array(self) -> pa.Array:
        """Return the append time of each record."""
        arrays = [pa.repeat(pa.scalar(us, TIME_FIELD.type), n) for n, us in self.times]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    def records(self) -> list[dict[str, object]]:
        """Return the records as dicts, `_offset` and `_time` included.

        Without pandas, values finer than a microsecond are truncated; `to_arrow` keeps them.
        """
        return python_rows(self.to_arrow())


def _slice_times(
    times: tuple[tuple[int, int], ...], start: int, count: int
) -> tuple[tuple[int, int], ...]:
    if len(times) == 1:
        return ((count, times[0][1]),)
    result: list[tuple[int, int]] = []
    for n, us in times:
        if start >= n:
            start -= n
            continue
        take = min(n - start, count)
        start = 0
        count -= take
        if take:
            result.append((take, us))
    return tuple(result)


class Piece(NamedTuple):
    """The result of one read: batches in offset order, and the offset of the next read."""

    batches: list[Batch]
    offset_next: int
    gaps: tuple[OffsetRange, ...] = ()
    """Declared gaps after the last batch that the read skipped."""


class Pin(Protocol):
    """Keeps a topic's records from `offset` on; `close` releases them."""

    offset: int

    def advance(self, offset: int) -> None:
        """Release the records below `offset`."""

    def close(self) -> None:
        """Release all records."""


class HistorySource(Protocol):
    """One tier that holds an offset range of topics. All methods may run in any thread."""

    def range(self, topic: int) -> OffsetRange:
        """Return the offsets this source holds; empty (`first == end`) if it has none."""

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Return records from `offset` on, at most about `bytes_max` but at least one batch.

        An empty piece with `offset_next == offset` means that there are no records there yet.

        Raises:
            NotFound: if `offset` is below this source's range.
            CorruptionError: if `offset` is in a lost or damaged range; its details name the range.
        """

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none yet."""

    def pin(self, topic: int, *, offset: int) -> Pin:
        """Keep the records from `offset` on until the pin is closed or advanced."""


class FarSource(HistorySource, Protocol):
    """A source whose reads go over a network."""

    def time_at(self, topic: int, *, offset: int) -> int | None:
        """Return about when a record was appended, from local knowledge; None if unknown."""


class ChainedHistory:
    """Several sources as one: each offset is read from the first source that has it.

    Sources are given oldest first and may overlap. A source may lose its oldest records during a
    read; the reader then continues in the next source that has the offset.

    `far` is a source over a network; it is slow and may be unreachable. It is read only for records
    that every other source lacks, has damaged, or has as a gap.
    """

    def __init__(self, sources: Sequence[HistorySource], *, far: FarSource | None = None) -> None:
        assert sources
        self._sources = tuple(sources)
        self._far = far

    def range(self, topic: int) -> OffsetRange:
        """Return the range over all sources."""
        near = self._near(topic)
        if self._far is None:
            return near
        held = self._far.range(topic)
        if held.first >= held.end:
            return near
        if near.first >= near.end:
            return OffsetRange(held.first, max(held.end, near.end))
        return OffsetRange(min(near.first, held.first), max(near.end, held.end))

    def _near(self, topic: int) -> OffsetRange:
        """Return the range over the local sources."""
        ranges = [source.range(topic) for source in self._sources]
        held = [found for found in ranges if found.end > found.first] or ranges[-1:]
        return OffsetRange(min(r.first for r in held), max(r.end for r in held))

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Read from the first source that has `offset`.

        Records move from a source to the one before it during reads: an offset that no source has
        at the first look is looked up once more.

        Raises:
            NotFound: if no source has it or will have it.
            Unavailable: if a source claims to have it and does not find it, twice.
            CorruptionError: as the sources.
        """
        found = self._look(topic, offset, bytes_max)
        if not isinstance(found, Piece):
            found = self._look(topic, offset, bytes_max)
        if not isinstance(found, Piece):
            raise found
        return found

    def _look(self, topic: int, offset: int, bytes_max: int) -> Piece | FrazilError:
        """Return the result of one look at all sources: records, or why there are none."""
        first = None
        is_claimed = False
        far = () if self._far is None else (self._far,)
        for source in (*self._sources, *far):
            held = source.range(topic)
            if held.first <= offset < held.end:
                is_claimed = True
                piece = self._try(source, topic, offset, bytes_max)
                if piece is not None:
                    return piece
            elif offset < held.first < held.end:
                first = held.first if first is None else min(first, held.first)
        last = self._sources[-1].range(topic)
        if is_claimed:
            # The records are not gone: a reader that skips lost records must not skip these.
            return Unavailable("records are being moved, try again", topic_id=topic, offset=offset)
        if first is not None or offset < last.first:
            return NotFound(
                "offset is no longer held anywhere, start at the first available one",
                offset=offset,
                offset_first=last.first if first is None else first,
            )
        return Piece([], offset)

    def _try(self, source: HistorySource, topic: int, offset: int, bytes_max: int) -> Piece | None:
        try:
            piece = source.read(topic, offset=offset, bytes_max=bytes_max)
        except NotFound:
            return None
        except CorruptionError as error:
            spared = self._spared(source, topic, offset, bytes_max)
            if spared is None:
                raise
            warn("history_served_from_far", topic=topic, offset=offset, error=error)
            return spared
        if self._far is not None and _begins_with_gap(piece, offset):
            # A log that is older than the far source has a gap where the far source has records.
            spared = self._spared(source, topic, offset, bytes_max)
            if spared is not None and not _begins_with_gap(spared, offset):
                return spared
        return piece if piece.offset_next > offset else None

    def _spared(
        self, damaged: HistorySource, topic: int, offset: int, bytes_max: int
    ) -> Piece | None:
        """Return the far source's copy of records that are damaged here, None without one."""
        if self._far is None or damaged is self._far:
            return None
        found = self._far.range(topic)
        if not found.first <= offset < found.end:
            return None
        try:
            piece = self._far.read(topic, offset=offset, bytes_max=bytes_max)
        except (NotFound, CorruptionError):
            return None
        return piece if piece.offset_next > offset else None

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset at or after a time over all sources."""
        near = None
        for source in self._sources:
            near = source.offset_at(topic, time_us=time_us)
            if near is not None:
                break
        if self._far is None:
            return near
        held, far = self._near(topic), self._far.range(topic)
        is_older_here = held.first < (held.end if near is None else min(near, held.end))
        if is_older_here or far.first >= min(far.end, held.first):
            # The local records begin before that time, or the far source has nothing older.
            return near
        found = self._far.offset_at(topic, time_us=time_us)
        return found if near is None or (found is not None and found < near) else near

    def time_at(self, topic: int, *, offset: int) -> int | None:
        """Return when a record was appended, approximate if it is not local; None if unknown.

        The far source is not read: statistics must not wait for a network.
        """
        near = ChainedHistory(self._sources)
        try:
            piece = near.read(topic, offset=offset, bytes_max=1)
        except (NotFound, Unavailable):
            return None if self._far is None else self._far.time_at(topic, offset=offset)
        return piece.batches[0].time_us if piece.batches else None

    def pin(self, topic: int, *, offset: int) -> Pin:
        """Pin in every source: the source that will serve an offset is not known in advance."""
        sources = self._sources if self._far is None else (*self._sources, self._far)
        return _PinAll([source.pin(topic, offset=offset) for source in sources], offset)


def _begins_with_gap(piece: Piece, offset: int) -> bool:
    """Return whether the piece starts with a gap at `offset`."""
    return piece.batches[0].offset > offset if piece.batches else bool(piece.gaps)


class _PinAll:
    def __init__(self, pins: Sequence[Pin], offset: int) -> None:
        self._pins = pins
        self.offset = offset

    def advance(self, offset: int) -> None:
        self.offset = offset
        for pin in self._pins:
            pin.advance(offset)

    def close(self) -> None:
        for pin in self._pins:
            pin.close()
