"""KeyShared dispatch: one queue per key, one record of a key in flight at a time.

This alone keeps the order per key: the next record of a key is delivered when the previous one is
durably settled, also if the key has moved to another consumer.
"""

from __future__ import annotations

import fnmatch
import hashlib
import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from frazil.subscribe.delivery_state import DeliveryRecord, Member, Span, State
from frazil.subscribe.fifo import first_ready, room_of

if TYPE_CHECKING:
    from frazil.subscribe.fifo import Hands
    from frazil.subscribe.policy import Limits
    from frazil.subscribe.spans import Spans

__all__ = ["KeyOwners", "KeySharedDispatcher", "key_filter"]

HELD, READY, PASSED = State.HELD, State.READY, State.PASSED
DONE: Final = (PASSED, State.SETTLED)
"""The states of records that need no delivery."""


class KeySharedDispatcher:
    """Deal the first record of each key to the key's owner.

    A key that no attached consumer's filter matches is skipped `skip_grace_ms` after the last
    consumer attached or left: consumers that reconnect one by one do not lose each other's records.
    """

    active: Member | None = None
    """All consumers are equal."""

    def __init__(self, records: dict[int, DeliveryRecord], limits: Limits) -> None:
        self._records = records
        self._owners = KeyOwners(limits.keys_max)
        self._members: dict[str, Member] = {}
        self.ready = True
        """There may always be something to deliver again."""
        self.waiting: dict[str, deque[DeliveryRecord]] = {}
        """The unsettled records of each key, the one in flight first."""
        self.held = 0
        """The number of records that were read and not yet delivered."""
        self._unmatched: dict[str, None] = {}
        """Keys with records that no attached consumer accepts."""
        self.skip_ms = 0
        """Unmatched keys are not skipped before this time."""
        self._retry_ms = limits.retry_ms

    def begin(self, records: dict[int, DeliveryRecord], _spans: Spans) -> None:
        """Reset the records; keep the consumers and the owners of keys."""
        self._records, self.waiting, self.held, self._unmatched = records, {}, 0, {}
        for member in self._members.values():
            member.ready, member.new = [], []

    def join(self, member: Member) -> None:
        """Add a consumer; it gets keys that have no owner."""
        self._members[member.name] = member
        for key in [key for key in self._unmatched if member.accepts(key)]:
            self._offer(key)

    def leave(self, member: Member) -> None:
        """Remove a consumer: keys with records to deliver move to others."""
        del self._members[member.name]
        self._offer_again(member)

    def replace(self, old: Member, new: Member) -> None:
        """Replace a consumer by another one of the same name: its keys stay."""
        self.join(new)
        self._offer_again(old)

    def _offer_again(self, member: Member) -> None:
        """Queue again the records of a consumer that has left."""
        waiting = sorted({*member.ready, *member.new})
        member.ready, member.new = [], []
        for record in map(self._records.get, waiting):
            if record is not None:
                self._offer(record.key)

    def feed(self, records: Sequence[DeliveryRecord]) -> None:
        """Take records in, with higher offsets than all before."""
        queues = self.waiting
        self.held += len(records)
        for record in records:
            queue = queues.get(record.key)
            if queue is None:
                queues[record.key] = deque((record,))
                self._offer(record.key)
            else:
                queue.append(record)

    def again(self, record: DeliveryRecord) -> None:
        """Queue a READY record for another delivery."""
        self._offer(record.key)

    def settled(self, records: Sequence[DeliveryRecord]) -> None:
        """Offer the next record of each settled record's key."""
        for record in records:
            # A record settled out of turn is removed when it is the first of its key.
            queue = self.waiting.get(record.key)
            if queue is not None and queue[0] is record:
                self.held -= record.state is PASSED
                queue.popleft()
                while queue and queue[0].state in DONE:
                    self.held -= queue.popleft().state is PASSED
                if queue:
                    self._offer(record.key)
                else:
                    del self.waiting[record.key]
                    self._unmatched.pop(record.key, None)

    def assign_ready(self, reading: dict[int, DeliveryRecord]) -> Hands:
        """Deal out READY records, lowest offset first for each consumer.

        Those without a value are added to `reading`.
        """
        hands: Hands = []
        for member in self._members.values():
            hand: list[DeliveryRecord | Span] = []
            while member.has_room:
                record = first_ready(member.ready, self._records)
                if record is None:
                    break
                if record.value is not None:
                    member.take(record)
                    hand.append(record)
                elif len(reading) < room_of(self._members.values()):
                    record.state = State.READING
                    reading[record.offset] = record
                else:
                    break
                heapq.heappop(member.ready)
            if hand:
                hands.append((member, hand))
        return hands

    def assign_new(
        self, *, messages: int, size_bytes: int, now_ms: int, attempts_max: int
    ) -> tuple[Hands, DeliveryRecord | None]:
        """Deal out the first records of the keys, lowest offset first, within the window.

        The second value is the next record if it cannot simply be delivered, as for FIFO.
        """
        hands: dict[Member, list[DeliveryRecord | Span]] = {}
        # A heap of consumers by the lowest offset that is queued for them.
        heads = [
            (member.new[0], at, member)
            for at, member in enumerate(self._members.values())
            if member.new and member.has_room
        ]
        heapq.heapify(heads)
        special = None
        while heads and messages > 0 and size_bytes > 0:
            offset, at, member = heads[0]
            heapq.heappop(member.new)
            record = self._records.get(offset)
            if record is not None and self._is_next(record):
                self.held -= 1
                if (
                    record.settling is not None
                    or record.value is None
                    or (record.attempt > 1 and record.is_special(now_ms, attempts_max))
                ):
                    special = record
                    break
                messages -= 1
                size_bytes -= record.size
                member.take(record)
                hands.setdefault(member, []).append(record)
            if member.new and member.has_room:
                heapq.heapreplace(heads, (member.new[0], at, member))
            else:
                heapq.heappop(heads)
        return list(hands.items()), special

    def _is_next(self, record: DeliveryRecord) -> bool:
        """Return whether a queued offset is still the first of its key and not delivered."""
        return record.state is HELD and self.waiting[record.key][0] is record

    def skip(self, now_ms: int) -> list[DeliveryRecord]:
        """Return the records of unmatched keys, to be settled without a delivery."""
        if not self._unmatched or not self._members or now_ms < self.skip_ms:
            return []
        skipped: list[DeliveryRecord] = []
        for key in list(self._unmatched):
            queue = self.waiting[key]
            if any(record.settling is not None for record in queue):
                # That ack must finish first.
                self.skip_ms = now_ms + self._retry_ms
                continue
            del self._unmatched[key]
            self.held -= sum(record.state in (HELD, PASSED) for record in queue)
            # They block later records of the key until the skip is durable.
            queue = deque(record for record in queue if record.state not in DONE)
            skipped += queue
            self.waiting[key] = queue
        return skipped

    def due_ms(self) -> int | None:
        """Return when there may be something to skip."""
        return self.skip_ms if self._unmatched and self._members else None

    def _offer(self, key: str) -> None:
        """Queue the first record of a key for the key's owner, unless it is in flight."""
        queue = self.waiting.get(key)
        if queue is None:
            return
        record = queue[0]
        if record.state is not HELD and record.state is not READY:
            return
        owner = self._owners.find(key, self._members)
        if owner is None:
            self._unmatched[key] = None
        else:
            self._unmatched.pop(key, None)
            heapq.heappush(owner.new if record.state is HELD else owner.ready, record.offset)


class KeyOwners:
    """The consumer of each key, by name, so that a reconnected consumer has its keys.

    A new key is assigned to the eligible consumer with the fewest keys. A key moves only when its
    owner has left or does not accept it. At most `keys_max` keys are remembered; further keys are
    assigned by hash.
    """

    __slots__ = ("_counts", "_keys_max", "_owners")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._owners: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, key: str, members: dict[str, Member]) -> Member | None:
        """Return the attached consumer that gets the key, None if no one accepts it."""
        name = self._owners.get(key)
        owner = None if name is None else members.get(name)
        if owner is not None and owner.accepts(key):
            return owner
        eligible = [each for each in members.values() if each.accepts(key)]
        if not eligible:
            return None
        if name is None and len(self._owners) >= self._keys_max:
            self._forget_absent(members)
            if len(self._owners) >= self._keys_max:
                return _by_hash(key, eligible)
        counts = self._counts
        chosen = min(eligible, key=lambda each: counts.get(each.name, 0))
        if name is not None:
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        self._owners[key] = chosen.name
        counts[chosen.name] = counts.get(chosen.name, 0) + 1
        return chosen

    def _forget_absent(self, members: dict[str, Member]) -> None:
        gone = self._counts.keys() - members.keys()
        if gone:
            self._owners = {key: name for key, name in self._owners.items() if name not in gone}
            for name in gone:
                del self._counts[name]


def _by_hash(key: str, eligible: Sequence[Member]) -> Member:
    """Choose by the highest hash of key and name: few keys move when consumers change."""
    data = key.encode("utf-8", "surrogatepass")

    def weight(member: Member) -> tuple[bytes, str]:
        mixed = b"%d:%b%b" % (len(data), data, member.name.encode("utf-8", "surrogatepass"))
        return hashlib.blake2b(mixed, digest_size=8).digest(), member.name

    return max(eligible, key=weight)


def key_filter(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that matches keys with patterns of `*` and `?`; no pattern matches all."""
    # Brackets are characters of keys here, and no sets. Each part of a pattern matches at its first
    # position only (an atomic group): a long key takes no exponential time.
    texts = [fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns]
    if not texts:
        return _accept_all
    matches = re.compile("|".join(texts)).match
    return lambda key: matches(key) is not None


def _accept_all(_key: str) -> bool:
    return True
