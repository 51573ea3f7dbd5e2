"""How one object is read: which bytes hold an offset, and which requests bring them. Pure.

Requests have whole intervals of the sparse index. A seek takes one interval; whoever reads on
takes blocks of them, whose borders are the same for all readers, so that readers share requests.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from frazil.log import SpecialRange
from frazil.objects.fetch import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.objects.descriptor import Descriptor

__all__ = ["BLOCK_BYTES", "Layout"]

BLOCK_BYTES: Final = 8 << 20


class Layout:
    """The intervals of one topic's frames in an object."""

    __slots__ = ("blocks", "descriptor", "offsets", "positions", "ranges", "times")

    def __init__(self, descriptor: Descriptor, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.descriptor = descriptor
        entries = [entry for entry in descriptor.entries() if entry.position > descriptor.position]
        self.offsets = [descriptor.first, *(entry.offset for entry in entries)]
        self.times = [descriptor.time_first_us, *(entry.time_us for entry in entries)]
        self.positions = [descriptor.position, *(entry.position for entry in entries)]
        self.positions.append(descriptor.position + descriptor.length)
        self.ranges = tuple(
            SpecialRange(r.first, r.end, r.kind, r.reason) for r in descriptor.ranges
        )
        self.blocks = self._block_starts(block_bytes)

    def _block_starts(self, block_bytes: int) -> list[int]:
        """Return the number of each block's first interval, and one behind the last."""
        starts = [0]
        for number in range(1, self.intervals):
            if self.positions[number + 1] - self.positions[starts[-1]] > block_bytes:
                starts.append(number)
        starts.append(self.intervals)
        return starts

    @property
    def intervals(self) -> int:
        """Return how many intervals there are; at least one."""
        return len(self.offsets)

    def interval(self, offset: int) -> int:
        """Return the number of the interval that holds an offset."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def interval_at(self, position: int) -> int:
        """Return the number of the interval that has a position of the object."""
        return min(max(bisect_right(self.positions, position) - 1, 0), self.intervals - 1)

    def interval_before(self, time_us: int) -> int:
        """Return the number of the interval in which the first record at a time or later may be."""
        return max(bisect_left(self.times, time_us) - 1, 0)

    def span(self, first: int, end: int) -> Span:
        """Return the bytes of the intervals `[first, end)`."""
        start = self.positions[first]
        return Span(self.descriptor.key, start, self.positions[end] - start)

    def rest_of_block(self, number: int) -> Span:
        """Return the bytes from an interval up to the end of its block."""
        return self.span(number, self.blocks[bisect_right(self.blocks, number)])

    def blocks_from(self, position: int) -> Iterator[Span]:
        """Yield what a reader asks for from a position on, in order."""
        number = bisect_left(self.positions, position)
        while number < self.intervals:
            span = self.rest_of_block(number)
            if not span.length:
                # An object of gaps alone has no frames.
                return
            yield span
            number = bisect_left(self.positions, span.start + span.length)

    def offset_behind(self, position: int) -> int:
        """Return the offset at which reading can go on behind damage at a position."""
        number = bisect_right(self.positions, position)
        return self.offsets[number] if number < self.intervals else self.descriptor.end

    def limit(self, offset: int) -> int:
        """Return where records without a gap in between end at the latest."""
        later = (special.first for special in self.ranges if special.first > offset)
        return min(later, default=self.descriptor.end)
