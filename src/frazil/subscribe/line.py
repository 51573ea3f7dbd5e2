"""The schedule of Exclusive, Failover and Shared: one line of records, dealt in offset order."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from frazil.subscribe.backlog import Backlog
from frazil.subscribe.places import Consumer, Places, State
from frazil.subscribe.policy import SubscriptionType
from frazil.subscribe.ring import Dealt, Ring
from frazil.subscribe.schedule import NOTHING, Assignment
from frazil.subscribe.specials import Specials

__all__ = ["Line"]


class Line:
    """Records wait in one line; those to deliver again go before those never delivered.

    Unless the subscription is Shared, only the consumer that came first takes part in dealing. The
    window is nobody's in part: whose turn it is gets the next record.
    """

    def __init__(self, kind: SubscriptionType, places: Places, sizes: Mapping[int, int]) -> None:
        self._is_shared = kind is SubscriptionType.SHARED
        self._places = places
        self._sizes = sizes
        self._backlog = Backlog()
        self._ready: list[int] = []
        self._members: list[Consumer] = []
        self._ring = Ring()
        self._specials = Specials()
        self.special: set[int] = self._specials

    @property
    def held(self) -> int:
        """How many records were read and not yet delivered."""
        return len(self._backlog)

    def room(self, *, held_max: int, unacked: int) -> int:
        """Return how many more records may be read: held ones lie above all gaps of the cursor."""
        del unacked
        return held_max - len(self._backlog)

    @property
    def active(self) -> Consumer | None:
        """The one consumer that gets everything; None for Shared and without consumers."""
        return self._members[0] if self._members and not self._is_shared else None

    def join(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part."""
        del now_ms
        self._members.append(consumer)
        if self._is_shared or len(self._members) == 1:
            self._ring.add(consumer)

    def leave(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part no more; the one that came next takes its place."""
        del now_ms
        self._members.remove(consumer)
        self._ring.remove(consumer)
        if not self._ring.consumers and self._members:
            self._ring.add(self._members[0])

    def replace(self, old: Consumer, new: Consumer, now_ms: int) -> None:
        """Let a consumer take the place of another, active or in turn."""
        del now_ms
        self._members[self._members.index(old)] = new
        self._ring.replace(old, new)

    def feed(self, offsets: Sequence[int], sizes: Sequence[int], keys: Sequence[str]) -> None:
        """Take records in, with higher offsets than all before."""
        del keys
        self._backlog.add(offsets, sizes)

    def again(self, offset: int) -> None:
        """Put a record that is ready for another delivery in line."""
        heapq.heappush(self._ready, offset)

    def set_aside(self, offset: int) -> None:
        """Do nothing: whoever is next may have what somebody did not see."""

    def settle(self, offsets: Sequence[int]) -> None:
        """Forget settled records; the line knows only what waits."""

    def skip(self, now_ms: int) -> tuple[list[int], list[int]]:
        """Find nothing: without filters somebody accepts every record."""
        del now_ms
        return [], []

    def due_ms(self) -> int | None:
        """Return None: nothing depends on the time."""
        return None

    def assign_again(self) -> Dealt:
        """Deal out records that are ready for another delivery, lowest offset first."""
        ready, places = self._ready, self._places
        offsets: list[int] = []
        room = self._ring.room if ready else 0
        while ready and len(offsets) < room:
            offset = heapq.heappop(ready)
            # An entry may be stale (the record was acked meanwhile) or there twice.
            if places.get(offset) is State.READY and (not offsets or offsets[-1] != offset):
                offsets.append(offset)
        sizes = [self._sizes[offset] for offset in offsets]
        dealt, count = self._ring.deal(offsets, sizes)
        for offset in offsets[count:]:
            heapq.heappush(ready, offset)
        return dealt

    def assign_new(self, *, messages: int, size_bytes: int, share: int) -> Assignment:
        """Deal out records never delivered, lowest offset first."""
        del share
        backlog = self._backlog
        if not len(backlog) or messages <= 0 or size_bytes <= 0:
            return NOTHING
        below = None
        if self.special:
            head = backlog.head
            below = self._specials.first_from(head)
            if below == head:
                self.special.discard(head)
                offsets, sizes = backlog.peek(messages=1, size_bytes=1)
                backlog.drop(1)
                return Assignment([], offsets, sizes, is_special=True)
        room = self._ring.room
        offsets, sizes = backlog.peek(
            messages=min(messages, room), size_bytes=size_bytes, below=below
        )
        dealt, count = self._ring.deal(offsets, sizes)
        backlog.drop(count)
        return Assignment(dealt, offsets[:count], sizes[:count], is_special=False)
