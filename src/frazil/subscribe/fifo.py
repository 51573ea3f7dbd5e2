"""FIFO dispatch for Exclusive, Failover and Shared: one queue of records in offset order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from frazil.subscribe.delivery_state import DeliveryRecord, Member, Span, State

if TYPE_CHECKING:
    from frazil.subscribe.spans import Spans

__all__ = ["FifoDispatcher", "Hands", "first_ready", "room_of"]

Hands = list[tuple[Member, list[DeliveryRecord | Span]]]
"""Records to deliver, by consumer."""

HELD, IN_FLIGHT, READY, READING = State.HELD, State.IN_FLIGHT, State.READY, State.READING


def room_of(members: Iterable[Member]) -> int:
    """Return how many more messages consumers take."""
    return sum(each.messages for each in members if each.has_room)


def first_ready(ready: list[int], records: dict[int, DeliveryRecord]) -> DeliveryRecord | None:
    """Return the READY record of the lowest offset in a heap, None if there is none.

    Stale entries are dropped: the record was acked since, or is queued twice.
    """
    while ready:
        record = records.get(ready[0])
        if record is not None and record.state is READY and record.settling is None:
            return record
        heapq.heappop(ready)
    return None


class FifoDispatcher:
    """Assign records to consumers in turn, redeliveries before new records.

    Unless the subscription is Shared, only the consumer that attached first gets records. A
    consumer without room loses its turn and does not delay the others.
    """

    def __init__(
        self, records: dict[int, DeliveryRecord], spans: Spans, *, is_shared: bool
    ) -> None:
        self._is_shared = is_shared
        self._records = records
        self._spans = spans
        self.waiting: deque[DeliveryRecord | Span] = deque()
        """Records that were never delivered."""
        self.held = 0
        """The number of records that were read and not yet delivered."""
        self.ready: list[int] = []
        """A heap of offsets to deliver again."""
        self._members: list[Member] = []
        self._turn = 0

    def begin(self, records: dict[int, DeliveryRecord], spans: Spans) -> None:
        """Reset the records; keep the consumers and their turns."""
        self._records, self._spans = records, spans
        self.waiting, self.ready, self.held = deque(), [], 0

    @property
    def takes_turns(self) -> bool:
        """Whether records go to several consumers in turn, one by one."""
        return self._is_shared and len(self._members) > 1

    @property
    def active(self) -> Member | None:
        """The consumer that gets all records; None for Shared and without consumers."""
        return self._members[0] if self._members and not self._is_shared else None

    def join(self, member: Member) -> None:
        """Add a consumer; its turn is the last of the round."""
        if self._is_shared:
            self._members.insert(self._turn, member)
            self._turn = (self._turn + 1) % len(self._members)
        else:
            self._members.append(member)

    def leave(self, member: Member) -> None:
        """Remove a consumer; the others keep their turns."""
        at = self._members.index(member)
        del self._members[at]
        if at < self._turn:
            self._turn -= 1
        if self._turn >= len(self._members):
            self._turn = 0

    def replace(self, old: Member, new: Member) -> None:
        """Replace a consumer by another one, active or in turn."""
        self._members[self._members.index(old)] = new

    def feed(self, records: Sequence[DeliveryRecord]) -> None:
        """Take records in, with higher offsets than all before."""
        self.waiting.extend(records)
        self.held += len(records)

    def feed_span(self, span: Span) -> None:
        """Take a span in, with higher offsets than all before."""
        self.waiting.append(span)
        self.held += span.end - span.first

    def again(self, record: DeliveryRecord) -> None:
        """Queue a READY record for another delivery."""
        heapq.heappush(self.ready, record.offset)

    def assign_ready(self, reading: dict[int, DeliveryRecord]) -> Hands:
        """Assign READY records, lowest offset first; add those without a value to `reading`.

        Unless the subscription is Shared, nothing overtakes a record that is being read.
        """
        ready, hands = self.ready, dict[Member, list[DeliveryRecord | Span]]()
        while (record := first_ready(ready, self._records)) is not None:
            if record.value is None:
                members = self._members if self._is_shared else self._members[:1]
                if len(reading) >= room_of(members):
                    break
                record.state = READING
                reading[record.offset] = record
            else:
                member = None if reading and not self._is_shared else self._next()
                if member is None:
                    break
                member.take(record)
                hands.setdefault(member, []).append(record)
            heapq.heappop(ready)
        return list(hands.items())

    def assign_new(
        self, *, messages: int, size_bytes: int, now_ms: int, attempts_max: int
    ) -> tuple[Hands, DeliveryRecord | None]:
        """Assign new records, lowest offset first, within the window.

        The second value is the next record if it cannot simply be delivered: its ack is running,
        its value was dropped, or it failed or was delayed before a restart.
        """
        queue, hands = self.waiting, dict[Member, list[DeliveryRecord | Span]]()
        only = self._members[0] if self._members and not self.takes_turns else None
        while messages > 0 and size_bytes > 0 and (head := self._head()) is not None:
            if type(head) is DeliveryRecord and (
                head.settling is not None
                or head.value is None
                or (head.attempt > 1 and head.is_special(now_ms, attempts_max))
            ):
                queue.popleft()
                self.held -= 1
                return list(hands.items()), head
            member = only if only is not None and only.messages > 0 else self._next()
            if member is None or member.size_bytes <= 0:
                break
            taken, count = head, 1
            if type(head) is Span:
                records_max = min(messages, member.messages)
                end = head.end_within(records_max, min(size_bytes, member.size_bytes))
                count = end - head.first
                taken = self._spans.cut(head, head.first, end)
            if taken is head:
                queue.popleft()
            size = taken.size
            member.messages -= count
            member.size_bytes -= size
            messages -= count
            size_bytes -= size
            self.held -= count
            hand = hands.get(member)
            if hand is None:
                hands[member] = [taken]
            else:
                hand.append(taken)
        return list(hands.items()), None

    def _head(self) -> DeliveryRecord | Span | None:
        """Return the first HELD record, or its span if one consumer can take all of it."""
        queue = self.waiting
        while queue:
            head = queue[0]
            if type(head) is Span:
                if head.singles is None:
                    if not self.takes_turns:
                        return head
                    self._spans.dissolve(head)
                queue.popleft()
                queue.extendleft(reversed(head.singles or ()))
            elif head.state is HELD:
                return head
            else:
                queue.popleft()
                self.held -= 1
        return None

    def _next(self) -> Member | None:
        """Return the next consumer in turn that has room."""
        members = self._members
        if not self._is_shared:
            return members[0] if members and members[0].has_room else None
        for _ in members:
            member = members[self._turn]
            self._turn = (self._turn + 1) % len(members)
            if member.has_room:
                return member
        return None
