"""Records between their reading and their first delivery."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.subscribe.record import Record

__all__ = ["Held"]


class Held:
    """Records by their offsets, mostly given back in the order and the portions they came in.

    While they are, they stay in a list; what is taken in another order is looked up by offset.
    """

    __slots__ = ("_at", "_by_offset", "_is_counted", "_offsets", "_records", "size_bytes")

    def __init__(self, *, is_counted: bool = False) -> None:
        self._is_counted = is_counted
        self._offsets: list[int] = []
        self._records: list[Record] = []
        self._at = 0
        self._by_offset: dict[int, Record] = {}
        self.size_bytes = 0
        """How large all of them are together; 0 if that is not counted."""

    def __len__(self) -> int:
        return len(self._offsets) - self._at + len(self._by_offset)

    def __iter__(self) -> Iterator[Record]:
        yield from self._records[self._at :]
        yield from self._by_offset.values()

    def add(self, offsets: list[int], records: list[Record]) -> None:
        """Take records in; those lists are kept, and not changed."""
        if self._is_counted:
            self.size_bytes += sum(record.size for record in records)
        if len(self):
            self._look_up()
            self._by_offset.update(zip(offsets, records, strict=True))
        else:
            self._offsets, self._records, self._at = offsets, records, 0

    def take(self, offsets: Sequence[int]) -> list[Record | None]:
        """Give records out, in the order asked for; None for those that are not here."""
        at = self._at
        end = at + len(offsets)
        found: list[Record | None]
        if offsets == self._offsets[at:end]:
            found = list(self._records[at:end])
            self._at = end
            if end == len(self._offsets):
                self._forget_list()
        else:
            self._look_up()
            pop = self._by_offset.pop
            found = [pop(offset, None) for offset in offsets]
        self._let_go(found)
        return found

    def drop(self, offsets: Sequence[int]) -> None:
        """Let go of those of some records that are here."""
        if not len(self) or not offsets:
            return
        if not self._by_offset and max(offsets) < self._offsets[self._at]:
            # So it is with acks: they come behind the delivery.
            return
        self._look_up()
        pop = self._by_offset.pop
        self._let_go([pop(offset) for offset in self._by_offset.keys() & set(offsets)])

    def trim(self, bytes_max: int) -> None:
        """Let go of those that came last, until the others are no larger together."""
        if self.size_bytes <= bytes_max:
            return
        self._look_up()
        while self.size_bytes > bytes_max and self._by_offset:
            # Offsets only grow: nothing else of its key goes later than this one.
            _, record = self._by_offset.popitem()
            self._let_go([record])

    def clear(self) -> None:
        """Let go of all."""
        self._forget_list()
        self._by_offset.clear()
        self.size_bytes = 0

    def _let_go(self, records: Iterable[Record | None]) -> None:
        if self._is_counted:
            self.size_bytes -= sum(record.size for record in records if record is not None)

    def _look_up(self) -> None:
        if self._offsets:
            at = self._at
            self._by_offset.update(zip(self._offsets[at:], self._records[at:], strict=True))
            self._forget_list()

    def _forget_list(self) -> None:
        self._offsets, self._records, self._at = [], [], 0
