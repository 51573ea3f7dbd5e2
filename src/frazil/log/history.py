"""History: whatever can give a topic's records back as they were published, by offset.

The log is the first `HistorySource`; memory, disk and objects come behind the same interface.
`ChainedHistory` makes one ordered stream of several, without a gap or a duplicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from frazil.errors import NotFound
from frazil.log.python_rows import python_rows
from frazil.model import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

OFFSET_FIELD = pa.field("_offset", pa.int64(), nullable=False)
TIME_FIELD = pa.field("_time", pa.timestamp("us", tz="UTC"), nullable=False)


class Batch:
    """Consecutive records of one topic.

    `data` holds the topic's columns as they lie in the log; `to_arrow` adds `_offset` and `_time`.
    `gaps` are declared ranges without records that lie right before this batch.
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
        """Return the offset behind the last record."""
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

        Without pandas, values finer than a microsecond are cut; `to_arrow` has them in full.
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
    """What one read gave: batches in offset order, and where to go on."""

    batches: list[Batch]
    offset_next: int
    gaps: tuple[OffsetRange, ...] = ()
    """Declared gaps behind the last batch, passed over."""


class Pin(Protocol):
    """Keeps a topic's records from `offset` on; `close` lets them go. A context manager."""

    offset: int

    def advance(self, offset: int) -> None:
        """Let the records below `offset` go."""

    def close(self) -> None:
        """Let all go."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class HistorySource(Protocol):
    """One place that holds an offset range of topics. All methods may run in any thread."""

    def range(self, topic: int) -> OffsetRange:
        """Return the offsets this source can give; empty (`first == end`) if it has none."""

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Return records from `offset` on, at most about `bytes_max` but at least one batch.

        An empty piece with `offset_next == offset` means that nothing is there yet.

        Raises:
            NotFound: if `offset` is below this source's range.
            CorruptionError: if `offset` is in a lost or damaged range; its details name the range.
        """

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none yet."""

    def pin(self, topic: int, *, offset: int) -> Pin:
        """Keep the records from `offset` on until the pin is closed or advanced."""


class ChainedHistory:
    """Several sources as one: each offset is read from the first source that has it.

    Sources are given oldest first and may overlap. A source may lose its oldest records while a
    reader is in it; the reader then goes on in the next one that has the offset.
    """

    def __init__(self, sources: Sequence[HistorySource]) -> None:
        assert sources
        self._sources = tuple(sources)

    def range(self, topic: int) -> OffsetRange:
        """Return the range over all sources."""
        ranges = [source.range(topic) for source in self._sources]
        held = [found for found in ranges if found.end > found.first] or ranges[-1:]
        return OffsetRange(min(r.first for r in held), max(r.end for r in held))

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Read from the first source that has `offset`.

        Records move from a source to the one before it while somebody reads: what none has at the
        first look is looked for once more.
        """
        try:
            return self._read(topic, offset, bytes_max)
        except NotFound:
            return self._read(topic, offset, bytes_max)

    def _read(self, topic: int, offset: int, bytes_max: int) -> Piece:
        first = None
        for source in self._sources:
            found = source.range(topic)
            if found.first <= offset < found.end:
                piece = self._try(source, topic, offset, bytes_max)
                if piece is not None:
                    return piece
            elif found.first > offset and found.end > found.first:
                first = found.first if first is None else min(first, found.first)
        last = self._sources[-1].range(topic)
        if first is not None or offset < last.first:
            raise NotFound(
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
        return piece if piece.offset_next > offset else None

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset at or after a time over all sources."""
        for source in self._sources:
            offset = source.offset_at(topic, time_us=time_us)
            if offset is not None:
                return offset
        return None

    def pin(self, topic: int, *, offset: int) -> Pin:
        """Pin in every source: which one will serve an offset is not known before."""
        return _PinAll([source.pin(topic, offset=offset) for source in self._sources], offset)


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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
