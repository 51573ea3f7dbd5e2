"""The schedule of KeyShared: a line for each key, one record of a key out at a time.

Order per key needs nothing else: the next record of a key leaves when the one before it is durably
settled, whoever owned the key then and whoever owns it now.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frazil.subscribe.key_owners import KeyOwners
from frazil.subscribe.orphans import Orphans
from frazil.subscribe.places import Consumer, Places, State
from frazil.subscribe.schedule import NOTHING, Assignment

if TYPE_CHECKING:
    from frazil.log import Cursor
    from frazil.subscribe.policy import Limits
    from frazil.subscribe.ring import Dealt

__all__ = ["KeyLines"]


class KeyLines:
    """Records wait in lines by key; the head of a line waits at the key's owner.

    A key that nobody accepts is an orphan. It is skipped, but not while a consumer that left
    less than `skip_grace_ms` ago would accept it, nor so soon after the first consumer came:
    consumers come back one by one.

    What was delivered and not seen may be set aside: it waits for its key's owner as if it had
    never been delivered, but before all else of its key, and it is no part of the window.
    """

    def __init__(
        self,
        places: Places,
        sizes: dict[int, int],
        *,
        cursor: Cursor,
        limits: Limits,
    ) -> None:
        self._cursor = cursor
        self._places = places
        self._sizes = sizes
        self._owners = KeyOwners(limits.keys_max)
        self._members: dict[str, Consumer] = {}
        self._keys: dict[int, str] = {}
        self._lines: dict[str, deque[int]] = {}
        self._held: dict[int, int] = {}
        self._out: dict[str, int] = {}
        self._orphans = Orphans(limits.skip_grace_ms)
        self._retry_ms = limits.retry_ms
        self._aside: dict[int, int] = {}
        self.aside_bytes = 0
        self.special: set[int] = set()

    @property
    def held(self) -> int:
        """How many records were read and not yet delivered."""
        return len(self._held)

    @property
    def aside(self) -> int:
        """How many records are set aside, or were and are being acked."""
        return len(self._aside)

    @property
    def active(self) -> Consumer | None:
        """None: all consumers are equal."""
        return None

    def room(self, *, held_max: int, unacked: int) -> int:
        """Return how many more records may be read.

        Records held because of their keys are gaps of the cursor. Together with what is unacked
        they are bounded, so the cursor's ranges are, too.
        """
        return held_max - len(self._held) - unacked

    def join(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part: in keys that have no owner."""
        if not self._members:
            self._orphans.begin(now_ms)
        self._members[consumer.name] = consumer
        for key in self._orphans.adopt(consumer.accepts):
            # Nobody else accepts it.
            self._owners.choose(key, (consumer,), self._members)
            self._offer(key)

    def keep_owners(self, before: KeyLines) -> None:
        """Have the same owners of keys as the schedule in whose place this one comes."""
        self._owners = before._owners

    def leave(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part no more: keys with records to deliver move to others."""
        del self._members[consumer.name]
        if not self._members:
            self._orphans.end()
        self._offer_waiting(consumer, now_ms)

    def replace(self, old: Consumer, new: Consumer, now_ms: int) -> None:
        """Let a consumer take the place of another of the same name: its keys stay."""
        self.join(new, now_ms)
        self._offer_waiting(old, now_ms)

    def _offer_waiting(self, consumer: Consumer, now_ms: int) -> None:
        """Offer again what waited for a consumer that is gone."""
        if self._members:
            self._orphans.claim(consumer.accepts, now_ms)
        waiting = (*consumer.again, *consumer.fresh)
        consumer.again, consumer.fresh = [], []
        for offset in sorted(waiting):
            key = self._keys.get(offset)
            if key is not None:
                self._offer(key)

    def feed(self, offsets: Sequence[int], sizes: Sequence[int], keys: Sequence[str]) -> None:
        """Take records in, with higher offsets than all before."""
        lines, held, out = self._lines, self._held, self._out
        for offset, size, key in zip(offsets, sizes, keys, strict=True):
            self._keys[offset] = key
            held[offset] = size
            line = lines.get(key)
            if line is not None:
                line.append(offset)
                continue
            lines[key] = deque((offset,))
            if key not in out:
                self._offer(key)

    def again(self, offset: int) -> None:
        """Take in a record whose place is `State.READY`, for another delivery."""
        self._offer(self._keys[offset])

    def set_aside(self, offset: int) -> None:
        """Let a record that its consumer has not seen wait as if it had not been delivered."""
        self._aside[offset] = self._sizes[offset]
        self.aside_bytes += self._sizes[offset]

    def _take_aside(self, offset: int) -> int:
        size = self._aside.pop(offset, 0)
        self.aside_bytes -= size
        return size

    def settle(self, offsets: Sequence[int]) -> None:
        """Forget records that are durably settled; the next of their keys may leave."""
        keys, out, lines = self._keys, self._out, self._lines
        for offset in offsets:
            # One that is settled while it is held is special: it goes when it is its turn.
            if offset in self._held:
                continue
            key = keys.pop(offset, None)
            if self._aside:
                self._take_aside(offset)
            if key is not None and out.get(key) == offset:
                del out[key]
                if key in lines:
                    self._offer(key)

    def assign_again(self) -> Dealt:
        """Deal out records for another delivery, lowest offset first.

        They are part of the window already: whether their owner has its share makes no difference.
        """
        dealt = []
        # A key that moved may have left an entry with its old owner.
        taken: set[int] = set(self._aside)
        for consumer in self._members.values():
            hand: list[int] = []
            while consumer.again and consumer.has_room:
                offset = heapq.heappop(consumer.again)
                if self._places.get(offset) is State.READY and offset not in taken:
                    taken.add(offset)
                    hand.append(offset)
                    consumer.messages -= 1
                    consumer.size_bytes -= self._sizes[offset]
            if hand:
                dealt.append((consumer, hand))
        return dealt

    def assign_new(self, *, messages: int, size_bytes: int, share: int) -> Assignment:
        """Deal out the heads of the lines, lowest offset first.

        Those that have their share wait for the others: then they may have what is left.
        """
        if messages <= 0 or size_bytes <= 0:
            return NOTHING
        deal = _Deal(self._members, share)
        taken: list[tuple[int, int]] = []
        while deal.count < messages and size_bytes > 0:
            if not deal.heads and not deal.begin_rest():
                break
            offset = deal.heads[0][0]
            if not self._is_next(offset):
                deal.drop()
            elif offset in self.special:
                if deal.count:
                    break
                self.special.discard(offset)
                deal.drop()
                return Assignment([], [offset], [self._take(offset)], is_special=True)
            else:
                is_held = offset in self._held
                size = self._take(offset)
                size_bytes -= size
                deal.give(size)
                if is_held:
                    taken.append((offset, size))
        offsets, sizes = [offset for offset, _ in taken], [size for _, size in taken]
        return Assignment(deal.dealt(), offsets, sizes, is_special=False)

    def skip(self, now_ms: int) -> tuple[list[int], list[int]]:
        """Take out the records of keys that nobody accepts, nor did until lately."""
        offsets: list[int] = []
        sizes: list[int] = []
        for key in self._orphans.take_due(now_ms):
            if any(offset in self._places for offset in self._lines.get(key, ())):
                # One of them is being acked: that is to be known first.
                self._orphans.add(key, from_ms=now_ms + self._retry_ms)
            else:
                self._skip_key(key, offsets, sizes)
        return offsets, sizes

    def _skip_key(self, key: str, offsets: list[int], sizes: list[int]) -> None:
        line, out = self._lines.get(key, ()), self._out.get(key)
        if out is not None:
            if self._places.get(out) is not State.READY:
                return
            offsets.append(out)
            sizes.append(self._sizes[out])
        self._lines.pop(key, None)
        self.special.difference_update(line)
        for offset in line:
            size = self._held.pop(offset)
            if offset in self._cursor:
                del self._keys[offset]
                continue
            offsets.append(offset)
            sizes.append(size)
            # Out until that is durable, so that no later record of the key goes before.
            self._out[key] = offset

    def due_ms(self) -> int | None:
        """Return when there may be something to skip."""
        return self._orphans.due_ms()

    def has_idle(self, share: int) -> bool:
        """Whether somebody has room, less than its share, and nothing that waits for it."""
        return any(
            each.has_room and each.out < share and not each.fresh and not each.again
            for each in self._members.values()
        )

    def _offer(self, key: str) -> None:
        """Put what is next of a key, if anything, before its owner."""
        out, line = self._out.get(key), self._lines.get(key)
        if out is not None:
            if self._places.get(out) is not State.READY:
                return
        elif not line:
            return
        owner = self._owners.find(key, self._members)
        if owner is None:
            self._orphans.add(key)
        elif out is not None:
            heapq.heappush(owner.fresh if out in self._aside else owner.again, out)
        elif line:
            heapq.heappush(owner.fresh, line[0])

    def _is_next(self, offset: int) -> bool:
        """Whether an entry is still true: first of its key, and nothing of the key is out.

        Or it was set aside, and was not acked since.
        """
        if offset not in self._held:
            return offset in self._aside and self._places.get(offset) is State.READY
        key = self._keys[offset]
        return key not in self._out and self._lines[key][0] == offset

    def _take(self, offset: int) -> int:
        """Take out the head of a line, or what was set aside; return its size."""
        if offset in self._aside:
            return self._take_aside(offset)
        key = self._keys[offset]
        line = self._lines[key]
        line.popleft()
        if not line:
            del self._lines[key]
        self._out[key] = offset
        return self._held.pop(offset)


class _Deal:
    """Consumers with records that wait for them: who is next, and who has its share."""

    def __init__(self, members: dict[str, Consumer], share: int) -> None:
        self._share = share
        self._hands: dict[Consumer, list[int]] = {}
        self.count = 0
        self.heads: list[tuple[int, int, Consumer]] = []
        """A heap of those that have less than their share, by the offset that waits."""
        self.sated: list[tuple[int, int, Consumer]] = []
        """The others; a heap as soon as they have their turn."""
        self._is_rest = len(members) == 1
        for at, each in enumerate(members.values()):
            if each.fresh and each.has_room:
                is_sated = each.out >= share and not self._is_rest
                (self.sated if is_sated else self.heads).append((each.fresh[0], at, each))
        heapq.heapify(self.heads)

    def is_sated(self, consumer: Consumer) -> bool:
        """Whether a consumer has its share, with what it is given now."""
        return consumer.out + len(self._hands.get(consumer, ())) >= self._share

    def begin_rest(self) -> bool:
        """Let those have their turn that have their share; False if there are none."""
        self.heads, self.sated, self._is_rest = self.sated, [], True
        heapq.heapify(self.heads)
        return bool(self.heads)

    def give(self, size: int) -> None:
        """Give what is next to the consumer it waits for."""
        offset, _, consumer = self.heads[0]
        consumer.messages -= 1
        consumer.size_bytes -= size
        self._hands.setdefault(consumer, []).append(offset)
        self.count += 1
        self.drop()

    def drop(self) -> None:
        """Go on behind what is next."""
        _, at, consumer = self.heads[0]
        heapq.heappop(consumer.fresh)
        if not consumer.fresh or not consumer.has_room:
            heapq.heappop(self.heads)
        elif self._is_rest or not self.is_sated(consumer):
            heapq.heapreplace(self.heads, (consumer.fresh[0], at, consumer))
        else:
            heapq.heappop(self.heads)
            self.sated.append((consumer.fresh[0], at, consumer))

    def dealt(self) -> Dealt:
        """Return what each got."""
        return list(self._hands.items())
