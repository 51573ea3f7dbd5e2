"""Offsets that must not simply be delivered, and which of them comes next."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

__all__ = ["Specials"]


class Specials(set[int]):
    """A set of offsets that finds the lowest from an offset on, if that never goes back.

    It grows by `add` and `update` only.
    """

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[int] = []

    def add(self, offset: int) -> None:
        """Take in an offset."""
        if offset not in self:
            super().add(offset)
            heapq.heappush(self._heap, offset)

    def update(self, *others: Iterable[int]) -> None:
        """Take in offsets."""
        super().update(*others)
        # Also those that were here before: entries of offsets that are gone do not pile up.
        self._heap = sorted(self)

    def first_from(self, offset: int) -> int | None:
        """Return the lowest offset that is not below this one; those below are not asked for again."""
        heap = self._heap
        while heap and (heap[0] < offset or heap[0] not in self):
            heapq.heappop(heap)
        return heap[0] if heap else None
