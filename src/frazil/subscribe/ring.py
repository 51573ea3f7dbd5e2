"""Dealing records to consumers in turn, exactly evenly."""

from __future__ import annotations

from frazil.subscribe.backlog import fitting
from frazil.subscribe.places import Consumer

__all__ = ["Ring"]

Dealt = list[tuple[Consumer, list[int]]]


class Ring:
    """Consumers in the order they came; each record goes to the next one that has room.

    While all have room, n records among m consumers differ by at most one. A consumer without room
    loses its turn: it never holds up the others.
    """

    __slots__ = ("_turn", "consumers")

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []
        self._turn = 0

    def add(self, consumer: Consumer) -> None:
        """Let a consumer take part; its turn is the last of the round."""
        self.consumers.insert(self._turn, consumer)
        self._turn = (self._turn + 1) % len(self.consumers)

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer take part no more; the others keep their turns."""
        if consumer not in self.consumers:
            return
        at = self.consumers.index(consumer)
        del self.consumers[at]
        if at < self._turn:
            self._turn -= 1
        if self._turn >= len(self.consumers):
            self._turn = 0

    def replace(self, old: Consumer, new: Consumer) -> None:
        """Let a consumer have the turns of another, if that takes part."""
        self.consumers = [new if each is old else each for each in self.consumers]

    @property
    def room(self) -> int:
        """How many records the streams take now."""
        return sum(each.messages for each in self.consumers if each.has_room)

    def deal(self, offsets: list[int], sizes: list[int]) -> tuple[Dealt, int]:
        """Give records out in turn; return the hands, and how many records were dealt."""
        count, among = len(offsets), len(self.consumers)
        if not count or not among:
            return [], 0
        if among == 1:
            return self._deal_all(offsets, sizes)
        share, total = -(-count // among), sum(sizes)
        if all(each.messages >= share and each.size_bytes >= total for each in self.consumers):
            return self._deal_evenly(offsets, sizes), count
        return self._deal_in_turn(offsets, sizes)

    def _deal_all(self, offsets: list[int], sizes: list[int]) -> tuple[Dealt, int]:
        """Give the only consumer what it has room for."""
        (consumer,) = self.consumers
        count = min(len(offsets), consumer.messages, fitting(sizes, consumer.size_bytes))
        if count <= 0:
            return [], 0
        if count < len(offsets):
            offsets, sizes = offsets[:count], sizes[:count]
        consumer.messages -= count
        consumer.size_bytes -= sum(sizes)
        return [(consumer, offsets)], count

    def _deal_evenly(self, offsets: list[int], sizes: list[int]) -> Dealt:
        among, dealt = len(self.consumers), []
        for at in range(min(among, len(offsets))):
            consumer = self.consumers[(self._turn + at) % among]
            hand = offsets[at::among]
            consumer.messages -= len(hand)
            consumer.size_bytes -= sum(sizes[at::among])
            dealt.append((consumer, hand))
        self._turn = (self._turn + len(offsets)) % among
        return dealt

    def _deal_in_turn(self, offsets: list[int], sizes: list[int]) -> tuple[Dealt, int]:
        hands: dict[Consumer, list[int]] = {}
        count = 0
        for offset, size in zip(offsets, sizes, strict=True):
            consumer = self._next()
            if consumer is None:
                break
            consumer.messages -= 1
            consumer.size_bytes -= size
            hands.setdefault(consumer, []).append(offset)
            count += 1
        return list(hands.items()), count

    def _next(self) -> Consumer | None:
        for _ in self.consumers:
            consumer = self.consumers[self._turn]
            self._turn = (self._turn + 1) % len(self.consumers)
            if consumer.has_room:
                return consumer
        return None
