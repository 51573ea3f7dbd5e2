"""The schedule of KeyShared: a line for each key, one record of a key out at a time.

Order per key needs nothing else: the next record of a key leaves when the one before it is durably
settled, whoever owned the key then and whoever owns it now.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from frazil.subscribe.key_owners import KeyOwners
from frazil.subscribe.places import Consumer, Places, State
from frazil.subscribe.schedule import NOTHING, Assignment

if TYPE_CHECKING:
    from frazil.log.cursor import Cursor
    from frazil.subscribe.policy import Limits
    from frazil.subscribe.ring import Dealt

__all__ = ["KeyLines"]


class KeyLines:
    """Records wait in lines by key; the head of a line waits at the key's owner.

    A key that nobody accepts is an orphan. It is skipped, but not while a consumer that left
    less than `skip_grace_ms` ago would accept it, nor so soon after the start: consumers come back
    one by one.
    """

    def __init__(
        self,
        places: Places,
        sizes: dict[int, int],
        *,
        cursor: Cursor,
        limits: Limits,
        now_ms: int,
    ) -> None:
        self._cursor = cursor
        self._places = places
        self._sizes = sizes
        self._grace_ms = limits.skip_grace_ms
        self._owners = KeyOwners(limits.keys_max)
        self._members: dict[str, Consumer] = {}
        self._keys: dict[int, str] = {}
        self._lines: dict[str, deque[int]] = {}
        self._held: dict[int, int] = {}
        self._out: dict[str, int] = {}
        self._orphans: dict[str, None] = {}
        self._claims: list[tuple[int, Callable[[str], bool]]] = []
        self._skip_from_ms = now_ms + self._grace_ms
        self.special: set[int] = set()

    @property
    def held(self) -> int:
        """How many records were read and not yet delivered."""
        return len(self._held)

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

    def join(self, consumer: Consumer) -> None:
        """Let a consumer take part: in keys that have no owner."""
        self._members[consumer.name] = consumer
        orphans, self._orphans = self._orphans, {}
        for key in orphans:
            self._offer(key)

    def keep_owners(self, before: KeyLines) -> None:
        """Have the same owners of keys as the schedule in whose place this one comes."""
        self._owners = before._owners

    def leave(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part no more: keys with records to deliver move to others."""
        del self._members[consumer.name]
        self._offer_waiting(consumer, now_ms)

    def replace(self, old: Consumer, new: Consumer, now_ms: int) -> None:
        """Let a consumer take the place of another of the same name: its keys stay."""
        self.join(new)
        self._offer_waiting(old, now_ms)

    def _offer_waiting(self, consumer: Consumer, now_ms: int) -> None:
        """Offer again what waited for a consumer that is gone."""
        self._claims.append((now_ms + self._grace_ms, consumer.accepts))
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

    def settle(self, offsets: Sequence[int]) -> None:
        """Forget records that are durably settled; the next of their keys may leave."""
        keys, out, lines = self._keys, self._out, self._lines
        for offset in offsets:
            # One that is settled while it is held is special: it goes when it is its turn.
            if offset in self._held:
                continue
            key = keys.pop(offset, None)
            if key is not None and out.get(key) == offset:
                del out[key]
                if key in lines:
                    self._offer(key)

    def assign_again(self) -> Dealt:
        """Deal out records for another delivery, lowest offset first."""
        dealt = []
        # A key that moved may have left an entry with its old owner.
        taken: set[int] = set()
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

    def assign_new(self, *, messages: int, size_bytes: int) -> Assignment:
        """Deal out the heads of the lines, lowest offset first."""
        heads = [
            (each.fresh[0], at, each)
            for at, each in enumerate(self._members.values())
            if each.fresh and each.has_room
        ]
        if not heads or messages <= 0 or size_bytes <= 0:
            return NOTHING
        heapq.heapify(heads)
        hands: dict[Consumer, list[int]] = {}
        offsets: list[int] = []
        sizes: list[int] = []
        while heads and messages > len(offsets) and size_bytes > 0:
            offset, at, consumer = heads[0]
            if self._is_head(offset):
                if offset in self.special:
                    if offsets:
                        break
                    self.special.discard(offset)
                    heapq.heappop(consumer.fresh)
                    return Assignment([], [offset], [self._take(offset)], is_special=True)
                size = self._take(offset)
                size_bytes -= size
                consumer.messages -= 1
                consumer.size_bytes -= size
                hands.setdefault(consumer, []).append(offset)
                offsets.append(offset)
                sizes.append(size)
            heapq.heappop(consumer.fresh)
            if consumer.fresh and consumer.has_room:
                heapq.heapreplace(heads, (consumer.fresh[0], at, consumer))
            else:
                heapq.heappop(heads)
        return Assignment(list(hands.items()), offsets, sizes, is_special=False)

    def skip(self, now_ms: int) -> tuple[list[int], list[int]]:
        """Take out the records of keys that nobody accepts, nor did until lately."""
        offsets: list[int] = []
        sizes: list[int] = []
        self._claims = [claim for claim in self._claims if claim[0] > now_ms]
        if not self._members or not self._orphans or now_ms < self._skip_from_ms:
            return offsets, sizes
        for key in list(self._orphans):
            if not any(accepts(key) for _, accepts in self._claims):
                self._skip_key(key, offsets, sizes)
        return offsets, sizes

    def _skip_key(self, key: str, offsets: list[int], sizes: list[int]) -> None:
        line, out = self._lines.get(key, ()), self._out.get(key)
        if any(offset in self._places for offset in line):
            # One of them is being acked: that is to be known first.
            return
        del self._orphans[key]
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

    def skip_due_ms(self) -> int | None:
        """Return when `skip` may next have something."""
        if not self._members or not self._orphans:
            return None
        return max(self._skip_from_ms, min((due for due, _ in self._claims), default=0))

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
            self._orphans[key] = None
        elif out is not None:
            heapq.heappush(owner.again, out)
        elif line:
            heapq.heappush(owner.fresh, line[0])

    def _is_head(self, offset: int) -> bool:
        """Whether an entry is still true: held, first of its key, and nothing of the key is out."""
        if offset not in self._held:
            return False
        key = self._keys[offset]
        return key not in self._out and self._lines[key][0] == offset

    def _take(self, offset: int) -> int:
        """Take the head of a line out; return its size."""
        key = self._keys[offset]
        line = self._lines[key]
        line.popleft()
        if not line:
            del self._lines[key]
        self._out[key] = offset
        return self._held.pop(offset)
