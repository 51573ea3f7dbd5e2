"""Records that were read and not yet delivered, first in, first out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["Backlog", "fitting"]


class Backlog:
    """Ascending offsets with their sizes; taken from the front in slices."""

    __slots__ = ("_at", "_offsets", "_sizes")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._at = 0

    def __len__(self) -> int:
        return len(self._offsets) - self._at

    @property
    def head(self) -> int:
        """The lowest offset held."""
        return self._offsets[self._at]

    def add(self, offsets: Sequence[int], sizes: Sequence[int]) -> None:
        """Append records with higher offsets."""
        if self._at > 1024 and self._at * 2 > len(self._offsets):
            del self._offsets[: self._at], self._sizes[: self._at]
            self._at = 0
        self._offsets.extend(offsets)
        self._sizes.extend(sizes)

    def peek(
        self, *, messages: int, size_bytes: int, below: int | None = None
    ) -> tuple[list[int], list[int]]:
        """Return the first records within the limits; they stay until `drop`."""
        end = min(self._at + messages, len(self._offsets))
        if below is not None:
            end = bisect_left(self._offsets, below, self._at, max(end, self._at))
        offsets, sizes = self._offsets[self._at : end], self._sizes[self._at : end]
        count = fitting(sizes, size_bytes)
        return (offsets, sizes) if count == len(offsets) else (offsets[:count], sizes[:count])

    def drop(self, count: int) -> None:
        """Forget the first records."""
        self._at += count
        if self._at == len(self._offsets):
            self._offsets.clear()
            self._sizes.clear()
            self._at = 0


def fitting(sizes: list[int], size_bytes: int) -> int:
    """Return how many records fit; the one that crosses the limit does."""
    if size_bytes <= 0:
        return 0
    if sum(sizes) < size_bytes:
        return len(sizes)
    return bisect_left(list(accumulate(sizes)), size_bytes) + 1
