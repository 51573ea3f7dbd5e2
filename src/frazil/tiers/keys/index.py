"""The key index: the newest change of each key within a bounded number of bytes.

A change is one integer, its code: `offset << 3 | op`. The index evicts the keys that were written
longest ago; a missing key is then looked up in the tiers that hold the changes. `UnflushedKeys`
covers the records that are not folded into the index yet.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from frazil.log import TailEntry
    from frazil.schema import Key
    from frazil.tiers.memory import TopicMemory

CODE_SHIFT: Final = 3
OP_MASK: Final = 7

ENTRY_BYTES: Final = 100
"""The bytes of an entry without its key: its slot in a dict that is half full, and the code."""
_MOVE_RATIO: Final = 0.75
_SHRINK_RATIO: Final = 0.02
_SHRINK_KEYS_MIN: Final = 16

UNKNOWN: Final = -1
"""The code of a key whose newest change only a fold can find."""
CHANGES_MAX: Final = 8192
"""`UnflushedKeys` holds about so many changes; more are worth a fold."""

entry_offset = attrgetter("offset")


class Found(NamedTuple):
    """The newest change of a key."""

    offset: int
    op: int


class KeyIndex:
    """A bounded map from key to the code of its newest change; the caller holds the topic's lock.

    The fold writes `codes` itself, for speed, reports new keys to `added`, and then calls `shrink`.
    """

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self.codes: dict[Key, int] = {}
        self.bytes = 0
        self.evictions = 0
        self.moves = 0
        """Odd while known keys may be missing for a moment."""
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self.codes)

    def tight(self, count: int) -> bool:
        """Tell whether so many more keys make room short, so that the order of writes matters."""
        return self.bytes + 2 * ENTRY_BYTES * count > _MOVE_RATIO * self._bytes_max()

    @property
    def over(self) -> bool:
        """Tell whether the index is above its bytes."""
        return self.bytes > self._bytes_max()

    def added(self, keys: Collection[Key]) -> None:
        """Count keys that were not in `codes` before."""
        self.bytes += keys_bytes(keys)

    def fits(self, keys: Collection[Key]) -> bool:
        """Tell whether there is room for more keys."""
        return self.bytes + keys_bytes(keys) <= self._bytes_max()

    def shrink(self) -> None:
        """Evict keys until the rest fits."""
        bytes_max = self._bytes_max()
        codes = self.codes
        # Each scan walks over the gaps that deleted keys leave at the head of a dict, so that
        # many are evicted at once.
        while self.bytes > bytes_max and codes:
            oldest = list(islice(codes, max(_SHRINK_KEYS_MIN, int(len(codes) * _SHRINK_RATIO))))
            for key in oldest:
                del codes[key]
            self.bytes -= keys_bytes(oldest)
            self.evictions += len(oldest)


def keys_bytes(keys: Collection[Key]) -> int:
    """Return the bytes that keys of one topic take in the index."""
    size = ENTRY_BYTES * len(keys) + sum(map(sys.getsizeof, keys))
    if type(next(iter(keys), None)) is tuple:
        size += sum(map(sys.getsizeof, chain.from_iterable(keys)))
    return size


class UnflushedKeys:
    """The newest code of each key in the part `[_first, _end)` of the tail.

    While single records are written, the tail is never folded to its end. A look-up of one key
    then needs only the keys of the rest, a fraction of the cost of a fold. Any thread may call it,
    without the topic's lock, which a fold may hold for milliseconds.

    Args:
        codes_of: returns keys and codes of the changes among the records `[start, stop)` of an
            entry.
    """

    def __init__(
        self,
        memory: TopicMemory,
        codes_of: Callable[[TailEntry, int, int], tuple[list[Key], list[int]]],
    ) -> None:
        self._memory = memory
        self._codes_of = codes_of
        self._lock = threading.Lock()
        self._codes: dict[Key, int] = {}
        self._first = self._end = 0

    def newest(self, key: Key, *, folded_to: int, end: int) -> int | None:
        """Return the code of a key's newest change in `[folded_to, end)`, None if there is none.

        All below `end` is visible. UNKNOWN stands for changes that are in chunks already, too
        many, damaged, or hidden by newer ones.
        """
        with self._lock:
            if not self._reach(folded_to, end):
                return UNKNOWN
            code = self._codes.get(key)
        if code is None or code >> CODE_SHIFT < folded_to:
            return None
        return UNKNOWN if code >> CODE_SHIFT >= end else code

    def _reach(self, folded_to: int, end: int) -> bool:
        """Cover `[folded_to, end)`; False if that is not possible."""
        if end - folded_to > CHANGES_MAX:
            return False
        if self._end - self._first > 2 * CHANGES_MAX or not self._first <= folded_to <= self._end:
            self._codes = {}
            self._first = self._end = folded_to
        return self._end >= end or self._extend(end)

    def _extend(self, end: int) -> bool:
        memory, first = self._memory, self._end
        tail = memory.tail.copy()
        # An entry becomes part of a chunk before it leaves the tail: the copy has all that follow.
        if memory.settled > first:
            return False
        number = max(bisect_right(tail, first, key=entry_offset) - 1, 0)
        for entry in tail[number:]:
            offset, count = entry.offset, entry.count
            if offset >= end:
                break
            if offset + count <= first:
                continue
            try:
                pairs = self._codes_of(entry, max(first - offset, 0), min(end - offset, count))
            except CorruptionError:
                return False
            self._codes.update(zip(*pairs, strict=True))
        self._end = end
        return True
