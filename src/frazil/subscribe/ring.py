"""Dealing records to consumers in turn, exactly evenly."""

from __future__ import annotations

from frazil.subscribe.backlog import fitting
from frazil.subscribe.places import Consumer

__all__ = ["Ring"]

Dealt = list[tuple[Consumer, list[int]]]


class Ring:
    """Consumers in the order they came; each record goes to the next one that has room.

    While all have room, n records among m consumers differ by at most one. A consumer without room
    loses its turn: it never holds up the others. Of several consumers none has more than its share
    out, so that one that acks nothing does not collect what the others would work on.
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

    def room(self, share: int) -> int:
        """Return how many records the streams take now; `share` is what one of several may have."""
        if len(self.consumers) == 1:
            (only,) = self.consumers
            return only.messages if only.has_room else 0
        room = 0
        for each in self.consumers:
            if each.messages > 0 and each.size_bytes > 0 and each.out < share:
                room += min(each.messages, share - each.out)
        return room

    def deal(self, offsets: list[int], sizes: list[int], share: int) -> tuple[Dealt, int]:
        """Give records out in turn; return the hands, and how many records were dealt."""
        if not offsets or not self.consumers:
            return [], 0
        if len(self.consumers) == 1:
            return self._deal_all(offsets, sizes)
        takers = self._takers(share)
        if not takers:
            return [], 0
        most, total = -(-len(offsets) // len(takers)), sum(sizes)
        out_max = share - most
        for each in takers:
            if each.messages < most or each.out > out_max or each.size_bytes < total:
                return self._deal_in_turn(offsets, sizes, share)
        return self._deal_evenly(offsets, sizes, takers), len(offsets)

    def _takers(self, share: int) -> list[Consumer]:
        """Return those that take another record, in turn."""
        consumers, turn = self.consumers, self._turn
        in_turn = [*consumers[turn:], *consumers[:turn]] if turn else consumers
        return [
            each
            for each in in_turn
            if each.messages > 0 and each.size_bytes > 0 and each.out < share
        ]

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

    def _deal_evenly(self, offsets: list[int], sizes: list[int], takers: list[Consumer]) -> Dealt:
        among, dealt = len(takers), []
        for at, consumer in enumerate(takers[: len(offsets)]):
            hand = offsets[at::among]
            consumer.messages -= len(hand)
            consumer.size_bytes -= sum(sizes[at::among])
            dealt.append((consumer, hand))
        last = self.consumers.index(takers[(len(offsets) - 1) % among])
        self._turn = (last + 1) % len(self.consumers)
        return dealt

    def _deal_in_turn(self, offsets: list[int], sizes: list[int], share: int) -> tuple[Dealt, int]:
        hands: dict[Consumer, list[int]] = {each: [] for each in self.consumers}
        count = 0
        for offset, size in zip(offsets, sizes, strict=True):
            consumer = self._next(hands, share)
            if consumer is None:
                break
            consumer.messages -= 1
            consumer.size_bytes -= size
            hands[consumer].append(offset)
            count += 1
        return [(consumer, hand) for consumer, hand in hands.items() if hand], count

    def _next(self, hands: dict[Consumer, list[int]], share: int) -> Consumer | None:
        for _ in self.consumers:
            consumer = self.consumers[self._turn]
            self._turn = (self._turn + 1) % len(self.consumers)
            out = consumer.out + len(hands[consumer])
            if consumer.has_room and out < share:
                return consumer
        return None
