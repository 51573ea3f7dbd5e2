"""Sets of offsets as ordered half-open ranges. Pure.

`RangeSet` is a tuple of `(first, end)` pairs: it compares with plain tuples and is encoded as one.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

__all__ = ["Range", "RangeSet"]

Range: TypeAlias = tuple[int, int]
_MAX: Final = 1 << 64


class RangeSet(tuple[Range, ...]):
    """Offsets as half-open ranges in ascending order that neither overlap nor touch. Immutable."""

    __slots__ = ()

    def __new__(cls, ranges: Iterable[Range] = ()) -> Self:
        """Return the offsets of all ranges; empty ranges are dropped, adjacent ones are joined."""
        found: list[Range] = []
        for first, end in sorted(each for each in ranges if each[0] < each[1]):
            if found and first <= found[-1][1]:
                found[-1] = (found[-1][0], max(found[-1][1], end))
            else:
                found.append((first, end))
        return super().__new__(cls, found)

    def __or__(self, other: Iterable[Range]) -> RangeSet:
        return RangeSet((*self, *other))

    def __and__(self, other: Iterable[Range]) -> RangeSet:
        return RangeSet(piece for first, end in other for piece in self.within(first, end))

    def __sub__(self, other: Iterable[Range]) -> RangeSet:
        others = other if isinstance(other, RangeSet) else RangeSet(other)
        return RangeSet(piece for first, end in self for piece in others.missing(first, end))

    @property
    def size(self) -> int:
        """Return the number of offsets."""
        return sum(end - first for first, end in self)

    @property
    def end(self) -> int:
        """Return the end of the last range, 0 for an empty set."""
        return self[-1][1] if self else 0

    def has(self, offset: int) -> bool:
        """Tell whether an offset is in the set."""
        index = bisect_right(self, (offset, _MAX)) - 1
        return index >= 0 and offset < self[index][1]

    def within(self, first: int, end: int) -> RangeSet:
        """Return the offsets of the set that are in `[first, end)`."""
        return RangeSet((max(low, first), min(high, end)) for low, high in self)

    def missing(self, first: int, end: int) -> RangeSet:
        """Return the offsets of `[first, end)` that are not in the set."""
        left: list[Range] = []
        for low, high in self:
            left.append((first, min(low, end)))
            first = max(first, high)
        left.append((first, end))
        return RangeSet(left)
