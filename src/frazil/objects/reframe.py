"""Rebuild frames of records that only files have. Pure.

Records, offsets, times, operations, schema versions and producer runs are those of the journal's
frames; the borders of frames may differ. A frame has one time and whole runs, so rows are cut
where the time changes and never inside a run.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.log import Frame
from frazil.log import format as fmt
from frazil.tiers import user_schema
from frazil.topic import CHANGE_FLAGS, OP_FIELD, PRESENT_FIELD, arrow_payload

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from frazil.tiers import SentRun, StoredRows

__all__ = ["FRAME_BYTES", "Reframer", "Runs"]

FRAME_BYTES: Final = 1 << 20
"""The approximate limit of a frame's bytes."""
SALT: Final = b"reframed"
"""Used instead of a segment's salt, because these frames were never in a segment."""


class _Rows(NamedTuple):
    """Consecutive rows of one time and one version."""

    batch: pa.RecordBatch
    offset: int
    time_us: int
    version: int

    @property
    def end(self) -> int:
        return self.offset + int(self.batch.num_rows)


class Runs:
    """The runs of a range, by offset."""

    def __init__(self, runs: Iterable[SentRun]) -> None:
        self._runs = sorted(runs)
        self._offsets = [run.offset for run in self._runs]

    def _across(self, offset: int) -> SentRun | None:
        """Return the run that begins below an offset and ends above it."""
        number = bisect_right(self._offsets, offset - 1) - 1
        run = self._runs[number] if number >= 0 else None
        return run if run is not None and run.offset + run.records > offset else None

    def whole(self, offset: int) -> int:
        """Return the end of the run around `offset`, else `offset`."""
        run = self._across(offset)
        return offset if run is None else run.offset + run.records

    def begun(self, offset: int, *, first: int) -> int:
        """Return the first offset of the run around `offset`, if above `first`, else `offset`."""
        run = self._across(offset)
        return offset if run is None or run.offset <= first else run.offset

    def between(self, first: int, end: int) -> list[fmt.Run]:
        """Return the runs of a frame `[first, end)`: none, or runs that cover all of it."""
        low, high = bisect_right(self._offsets, first - 1), bisect_right(self._offsets, end - 1)
        found: list[fmt.Run] = []
        at = first
        for run in self._runs[low:high]:
            if run.offset > at:
                found.append(fmt.Run(0, 0, 0, run.offset - at))
            found.append(fmt.Run(run.producer, run.epoch, run.sequence, run.records))
            at = run.offset + run.records
        if found and at < end:
            found.append(fmt.Run(0, 0, 0, end - at))
        return found


class Reframer:
    """Makes the frames of one topic's rows."""

    def __init__(self, runs: Runs, *, topic: int, keyed: bool) -> None:
        self._runs = runs
        self._topic = topic
        self._keyed = keyed
        self._options = pa.ipc.IpcWriteOptions()

    def frames(self, pieces: Iterable[StoredRows]) -> Iterator[Frame]:
        """Yield the frames of contiguous rows in offset order.

        The last rows are kept back until rows of another time follow, so that a caller that stops
        early has only whole runs.
        """
        held: _Rows | None = None
        for piece in pieces:
            for rows in _by_time(piece):
                if held is not None and self._go_on(held, rows):
                    table = pa.Table.from_batches([held.batch, rows.batch]).combine_chunks()
                    held = held._replace(batch=table.to_batches()[0])
                    continue
                if held is not None:
                    yield from self._cut(held)
                held = rows
        if held is not None:
            yield from self._cut(held)

    def _go_on(self, held: _Rows, rows: _Rows) -> bool:
        """Return whether rows of two reads belong to one frame: same time, and not too many."""
        same = (held.time_us, held.version, held.end) == (rows.time_us, rows.version, rows.offset)
        return same and (held.batch.nbytes < FRAME_BYTES or self._runs.whole(held.end) > held.end)

    def _cut(self, rows: _Rows) -> Iterator[Frame]:
        count = rows.end - rows.offset
        step = max(1, min(count, count * FRAME_BYTES // max(rows.batch.nbytes, 1)))
        at = rows.offset
        while at < rows.end:
            end = min(self._runs.whole(min(at + step, rows.end)), rows.end)
            yield self._frame(rows, at, end)
            at = end

    def _frame(self, rows: _Rows, first: int, end: int) -> Frame:
        batch = rows.batch.slice(first - rows.offset, end - first)
        names = user_schema(batch.schema).names
        if self._keyed:
            names = [*names, OP_FIELD.name, PRESENT_FIELD.name]
        own = pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=names)
        payload = arrow_payload(own, self._options, CHANGE_FLAGS if self._keyed else 0)
        runs = fmt.encode_runs(self._runs.between(first, end))
        head, data, padding, _size = fmt.frame_buffers(
            payload.kind,
            payload.data,
            payload.size,
            offset=first,
            salt=SALT,
            generation=0,
            lsn=0,
            synced=0,
            time_us=rows.time_us,
            topic=self._topic,
            count=end - first,
            schema=rows.version,
            flags=payload.flags,
            runs=runs,
        )
        whole = b"".join((head, memoryview(data), padding))
        return Frame(fmt.read_head(whole, 0), whole, fmt.FRAME_HEAD_BYTES + len(runs))


def _by_time(piece: StoredRows) -> Iterator[_Rows]:
    batch = piece.batch
    times: npt.NDArray[np.int64] = batch.column("_time").cast(pa.int64()).to_numpy()
    starts = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist()]
    for start, end in zip(starts, [*starts[1:], len(times)], strict=True):
        own = batch.slice(start, end - start)
        yield _Rows(own, piece.offset + start, int(times[start]), piece.version)
