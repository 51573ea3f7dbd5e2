"""Producer runs of a stretch of the log: read from the frames themselves, through its index."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from frazil.fs import read_fully
from frazil.log import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.log.segment import Segment

__all__ = ["logged_runs"]

STRETCH_BYTES: Final = 4 << 20
"""Neighbouring frames are read together up to this size."""
HOLE_BYTES_MAX: Final = 4096


def logged_runs(
    segments: Sequence[Segment], topic: int, *, first: int, end: int
) -> Iterator[tuple[int, fmt.Run]]:
    """Yield the runs of a topic's frames in `[first, end)` with their first offsets, in order.

    Runs without a producer are left out, and so are frames that are damaged.

    Raises:
        OSError: if a segment cannot be read.
    """
    for segment in segments:
        summary = segment.summary(topic)
        if summary is None or summary[1] <= first or summary[0] >= end:
            continue
        index = segment.index(topic)
        if index is None:
            continue
        file = segment.file()
        stop = bisect_left(index.offsets, end, 0, index.count)
        for number, last, start, size in index.stretches(
            index.find(first), stop, hole_bytes_max=HOLE_BYTES_MAX, bytes_max=STRETCH_BYTES
        ):
            data = memoryview(read_fully(file, start, size))
            for each in range(number, last):
                at = (index.positions[each] << 3) - start
                for offset, run in _frame_runs(data, at, topic):
                    if first <= offset < end:
                        yield offset, run


def _frame_runs(data: memoryview, at: int, topic: int) -> Iterator[tuple[int, fmt.Run]]:
    if at + fmt.FRAME_HEAD_BYTES > len(data):
        return
    head = fmt.read_head(data, at)
    if not head.runs or head.topic != topic or fmt.frame_fault(data, at, head):
        return
    offset = head.offset
    for run in fmt.decode_runs(data[at + fmt.FRAME_PREFIX_BYTES :], head.runs):
        if run.producer:
            yield offset, run
        offset += run.records
