"""The key index: the newest change of each key within a bounded number of bytes.

A change is one integer, its code: `offset << 4 | partial << 3 | op`. The index evicts the keys
that were written longest ago; a missing key is then looked up in the tiers that hold the changes.
`UnflushedKeys` covers what is not folded into the index yet.
"""

from __future__ import annotations

import sys
import threading
from bisect import bisect_right
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from frazil.errors import CorruptionError
from frazil.model import OP_UPSERT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from frazil.log import TailEntry
    from frazil.schema import Key, KeyShape
    from frazil.tiers.memory import TopicMemory

__all__ = ["CODE_SHIFT", "OP_MASK", "PARTIAL_BIT", "UNKNOWN", "KeyIndex", "UnflushedKeys"]

CODE_SHIFT: Final = 4
PARTIAL_BIT: Final = 8
OP_MASK: Final = 7

ENTRY_BYTES: Final = 100
"""The bytes of an entry beside its key: its slot in a dict that is half full, and the code."""
_MOVE_RATIO: Final = 0.75
_SHRINK_RATIO: Final = 0.02
_SHRINK_KEYS_MIN: Final = 16

UNKNOWN: Final = -1
"""The code of a key whose newest change only a fold can find."""
CHANGES_MAX: Final = 8192
"""`UnflushedKeys` holds about so many changes; more are worth a fold."""

_entry_offset = itemgetter(0)


class KeyIndex:
    """A bounded map from key to the code of its newest change; the caller holds the topic's lock.

    The fold writes `codes` itself, for speed, by way of `take`, reports new keys to `added`, and
    then calls `shrink`.
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

    def take(self, count: int) -> Callable[[Key, None], int | None]:
        """Return the function that looks up keys before they are written, `count` of them.

        With ample room a key keeps its place in the order of writes, which is cheaper; otherwise
        it is removed, so that it comes last.
        """
        return self.codes.pop if self.tight(count) else self.codes.get

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
            count = max(_SHRINK_KEYS_MIN, int(len(codes) * _SHRINK_RATIO))
            oldest = list(islice(codes, count))
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
        codes_of: returns keys and codes of an entry without validated records.
    """

    def __init__(
        self,
        memory: TopicMemory,
        shape_of: Callable[[int], KeyShape],
        codes_of: Callable[[TailEntry], tuple[list[Key], list[int]]],
    ) -> None:
        self._memory = memory
        self._shape_of = shape_of
        self._codes_of = codes_of
        self._lock = threading.Lock()
        self._codes: dict[Key, int] = {}
        self._first = self._end = 0

    def newest(self, key: Key, *, folded_to: int, end: int) -> int | None:
        """Return the code of a key's newest change in `[folded_to, end)`, None if there is none.

        All below `end` is visible. UNKNOWN stands for changes that are in chunks already, too
        many, damaged, partial, or hidden by newer ones.
        """
        with self._lock:
            if not self._reach(folded_to, end):
                return UNKNOWN
            code = self._codes.get(key)
        if code is None or code >> CODE_SHIFT < folded_to:
            return None
        # Whether a partial change did anything depends on the row it builds on.
        return UNKNOWN if code & PARTIAL_BIT or code >> CODE_SHIFT >= end else code

    def _reach(self, folded_to: int, end: int) -> bool:
        """Cover `[folded_to, end)`; False if that is not possible."""
        if not self._first <= folded_to <= self._end or (
            self._end - self._first > CHANGES_MAX and folded_to > self._first
        ):
            self._codes = {}
            self._first = self._end = folded_to
        if end - self._first > 2 * CHANGES_MAX or end - folded_to > CHANGES_MAX:
            return False
        return self._end >= end or self._extend(end)

    def _extend(self, end: int) -> bool:
        memory, first = self._memory, self._end
        tail = memory.tail.copy()
        # An entry becomes part of a chunk before it leaves the tail: the copy has all that follow.
        if memory.settled > first:
            return False
        codes = self._codes
        number = max(bisect_right(tail, first, key=_entry_offset) - 1, 0)
        for entry in tail[number:]:
            offset, count, records = entry[0], entry[1], entry[9]
            if offset >= end:
                break
            if offset + count <= first:
                continue
            part = slice(max(first - offset, 0), end - offset)
            if records is None:
                try:
                    keys, found = self._codes_of(entry)
                except CorruptionError:
                    return False
                codes.update(zip(keys[part], found[part], strict=True))
                continue
            row_key = self._shape_of(entry[6]).row_key
            for number, record in enumerate(records[part], offset + part.start):
                code = number << CODE_SHIFT
                if type(record) is tuple:
                    codes[row_key(record[0])] = code | OP_UPSERT
                else:
                    partial = 0 if record.present is None else PARTIAL_BIT
                    codes[record.key] = code | record.op | partial
        self._end = end
        return True
