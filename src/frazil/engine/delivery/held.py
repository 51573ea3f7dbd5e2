"""Records between their reading and their first delivery."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.engine.delivery.record import Record

__all__ = ["Held"]


class Held:
    """Records by their offsets, mostly given back in the order and the portions they came in.

    While they are, they stay in a list; what is taken in another order is looked up by offset.
    """

    __slots__ = ("_at", "_by_offset", "_offsets", "_records")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._records: list[Record] = []
        self._at = 0
        self._by_offset: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._offsets) - self._at + len(self._by_offset)

    def __iter__(self) -> Iterator[Record]:
        yield from self._records[self._at :]
        yield from self._by_offset.values()

    def add(self, offsets: list[int], records: list[Record]) -> None:
        """Take records in; those lists are kept, and not changed."""
        if len(self):
            self._look_up()
            self._by_offset.update(zip(offsets, records, strict=True))
        else:
            self._offsets, self._records, self._at = offsets, records, 0

    def take(self, offsets: Sequence[int]) -> list[Record | None]:
        """Give records out, in the order asked for; None for those that are not here."""
        at = self._at
        end = at + len(offsets)
        if offsets == self._offsets[at:end]:
            found: list[Record | None] = list(self._records[at:end])
            self._at = end
            if end == len(self._offsets):
                self._forget_list()
            return found
        self._look_up()
        pop = self._by_offset.pop
        return [pop(offset, None) for offset in offsets]

    def pop(self, offset: int) -> Record | None:
        """Give one record out, None if it is not here."""
        return self.take([offset])[0]

    def drop(self, offsets: Sequence[int]) -> list[Record]:
        """Let go of those of some records that are here; return them."""
        if not len(self) or not offsets:
            return []
        if not self._by_offset and max(offsets) < self._offsets[self._at]:
            # So it is with acks: they come behind the delivery.
            return []
        self._look_up()
        pop = self._by_offset.pop
        return [pop(offset) for offset in self._by_offset.keys() & set(offsets)]

    def clear(self) -> None:
        """Let go of all."""
        self._forget_list()
        self._by_offset.clear()

    def _look_up(self) -> None:
        if self._offsets:
            at = self._at
            self._by_offset.update(zip(self._offsets[at:], self._records[at:], strict=True))
            self._forget_list()

    def _forget_list(self) -> None:
        self._offsets, self._records, self._at = [], [], 0
