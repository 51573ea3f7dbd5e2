"""FIFO dispatch for Exclusive, Failover and Shared: one queue of records in offset order."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence

from frazil.subscribe.delivery_state import DeliveryRecord, Member, State

__all__ = ["FifoDispatcher", "Hands", "first_ready", "room_of"]

Hands = list[tuple[Member, list[DeliveryRecord]]]
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

    def __init__(self, records: dict[int, DeliveryRecord], *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self._records = records
        self.waiting: deque[DeliveryRecord] = deque()
        """Records that were never delivered."""
        self.ready: list[int] = []
        """A heap of offsets to deliver again."""
        self._members: list[Member] = []
        self._turn = 0

    def begin(self, records: dict[int, DeliveryRecord]) -> None:
        """Reset the records; keep the consumers and their turns."""
        self._records, self.waiting, self.ready = records, deque(), []

    @property
    def held(self) -> int:
        """The number of records that were read and not yet delivered."""
        return len(self.waiting)

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

    def again(self, record: DeliveryRecord) -> None:
        """Queue a READY record for another delivery."""
        heapq.heappush(self.ready, record.offset)

    def assign_ready(self, reading: dict[int, DeliveryRecord]) -> Hands:
        """Assign READY records, lowest offset first; add those without a value to `reading`.

        Unless the subscription is Shared, nothing overtakes a record that is being read.
        """
        ready, hands = self.ready, dict[Member, list[DeliveryRecord]]()
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
        queue, hands = self.waiting, dict[Member, list[DeliveryRecord]]()
        only = self._members[0] if self._members and not self._is_shared else None
        special = None
        while queue and messages > 0 and size_bytes > 0:
            record = queue[0]
            if record.state is not HELD:
                queue.popleft()
                continue
            if (
                record.settling is not None
                or record.value is None
                or (record.attempt > 1 and record.is_special(now_ms, attempts_max))
            ):
                special = queue.popleft()
                break
            member = only if only is not None and only.messages > 0 else self._next()
            if member is None or member.size_bytes <= 0:
                break
            queue.popleft()
            size = record.size
            member.messages -= 1
            member.size_bytes -= size
            messages -= 1
            size_bytes -= size
            hand = hands.get(member)
            if hand is None:
                hands[member] = [record]
            else:
                hand.append(record)
        return list(hands.items()), special

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
