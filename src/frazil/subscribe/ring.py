"""Dealing records to consumers in turn, exactly evenly."""

from __future__ import annotations

from frazil.subscribe.backlog import fitting
from frazil.subscribe.places import Consumer

__all__ = ["Ring"]

Dealt = list[tuple[Consumer, list[int]]]


class Ring:
    """Consumers in the order they came; each record goes to the next one that has room.

    While all have room, n records among m consumers differ by at most one. A consumer without room
    loses its turn: it never holds up the others. Whoever has its share out gets more only while
    nobody with less has room, so that one that acks nothing does not collect what others would
    work on, and those that cannot take anything keep nobody from using all of the window.
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

    def deal(self, offsets: list[int], sizes: list[int], share: int) -> tuple[Dealt, int]:
        """Give records out in turn; return the hands, and how many records were dealt.

        `share` is what each of several has before others have more.
        """
        if not offsets or not self.consumers:
            return [], 0
        if len(self.consumers) == 1:
            return self._deal_all(offsets, sizes)
        takers = self._takers(share)
        most, total = -(-len(offsets) // max(1, len(takers))), sum(sizes)
        out_max = share - most
        for each in takers:
            if each.messages < most or each.out > out_max or each.size_bytes < total:
                return self._deal_in_turn(offsets, sizes, share)
        if not takers:
            return self._deal_in_turn(offsets, sizes, share)
        return self._deal_evenly(offsets, sizes, takers), len(offsets)

    def _takers(self, share: int) -> list[Consumer]:
        """Return those that have room and less than their share, in turn."""
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
        """Return whose turn it is: one that has room, first of those without their share."""
        count, turn = len(self.consumers), self._turn
        in_turn = [self.consumers[(turn + at) % count] for at in range(count)]
        with_room = [each for each in in_turn if each.has_room]
        unsated = (each for each in with_room if each.out + len(hands[each]) < share)
        found = next(unsated, with_room[0] if with_room else None)
        if found is not None:
            self._turn = (turn + in_turn.index(found) + 1) % count
        return found
