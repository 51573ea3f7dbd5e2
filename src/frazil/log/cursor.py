"""A set of acked offsets: all below one offset, and ranges above it. Pure.

The stored form of a subscription's progress is in `frazil.log.cursor_state`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing import Self

__all__ = ["RANGES_MAX", "Cursor", "gaps_of", "ranges_of"]

RANGES_MAX: Final = 10_000
"""The limit of acked ranges of a subscription above the contiguous one."""


class Cursor:
    """A set of acked offsets: every one below `acked_below`, and disjoint ranges above it."""

    __slots__ = ("_ends", "_firsts", "acked_below")

    def __init__(self, acked_below: int = 0, ranges: Iterable[tuple[int, int]] = ()) -> None:
        assert acked_below >= 0
        self.acked_below = acked_below
        self._firsts: list[int] = []
        self._ends: list[int] = []
        for first, end in ranges:
            self.ack_range(first, end)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cursor):
            return NotImplemented
        return self.acked_below == other.acked_below and list(self.ranges()) == list(other.ranges())

    __hash__ = None  # type: ignore[assignment]  # it changes with every ack

    def __repr__(self) -> str:
        return f"Cursor({self.acked_below}, {list(self.ranges())})"

    def __contains__(self, offset: int) -> bool:
        if offset < self.acked_below:
            return True
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    @property
    def range_count(self) -> int:
        """The number of ranges above `acked_below`."""
        return len(self._firsts)

    @property
    def is_full(self) -> bool:
        """Whether the cursor has the maximum number of ranges."""
        return len(self._firsts) >= RANGES_MAX

    @property
    def end(self) -> int:
        """The offset after the highest acked one."""
        return self._ends[-1] if self._ends else self.acked_below

    @property
    def acked_above(self) -> int:
        """The number of acked offsets above `acked_below`."""
        return sum(self._ends) - sum(self._firsts)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the half-open ranges above `acked_below`, ascending."""
        return zip(self._firsts, self._ends, strict=True)

    def copy(self) -> Self:
        """Return an equal, independent cursor."""
        other = type(self)(self.acked_below)
        other._firsts = self._firsts.copy()  # noqa: SLF001 - one of its own class
        other._ends = self._ends.copy()  # noqa: SLF001 - one of its own class
        return other

    def ack(self, offset: int) -> None:
        """Count one offset as acked; a repeat changes nothing."""
        self.ack_range(offset, offset + 1)

    def ack_range(self, first: int, end: int) -> None:
        """Count `[first, end)` as acked; offsets already acked are unaffected."""
        if end <= self.acked_below or end <= first:
            return
        firsts, ends = self._firsts, self._ends
        if first <= self.acked_below:
            self.acked_below = end
            if firsts and firsts[0] <= end:
                self._absorb()
            return
        if not ends or first > ends[-1]:
            firsts.append(first)
            ends.append(end)
            return
        # Ranges that touch or overlap the new one: from the first range that ends at or after its
        # start, to the last range that starts at or before its end.
        low = bisect_left(ends, first)
        high = bisect_right(firsts, end)
        if low < high:
            first = min(first, firsts[low])
            end = max(end, ends[high - 1])
        firsts[low:high] = [first]
        ends[low:high] = [end]

    def _absorb(self) -> None:
        """Merge the lowest ranges into `acked_below` when it reaches them."""
        firsts, ends = self._firsts, self._ends
        count = bisect_right(firsts, self.acked_below)
        # Ranges never touch: the range after the last one reached stays.
        self.acked_below = max(self.acked_below, ends[count - 1])
        del firsts[:count]
        del ends[:count]


def ranges_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Return the half-open ranges of ascending, distinct offsets."""
    if not offsets:
        return []
    if offsets[-1] - offsets[0] == len(offsets) - 1:
        return [(offsets[0], offsets[-1] + 1)]
    ranges = []
    first = end = offsets[0]
    for offset in offsets:
        if offset != end:
            ranges.append((first, end))
            first = offset
        end = offset + 1
    ranges.append((first, end))
    return ranges


def gaps_of(offsets: Sequence[int], *, first: int, end: int) -> list[tuple[int, int]]:
    """Return the half-open ranges of `[first, end)` that are not among ascending offsets."""
    gaps = []
    for offset in (*offsets, end):
        if offset > first:
            gaps.append((first, offset))
        first = offset + 1
    return gaps
