"""The newest change of each key, in as many bytes as it may have.

What does not fit is forgotten, the keys written longest ago first; whoever misses a key then looks
where the changes themselves lie. A change is one integer here: its offset, whether it names some
columns only, and its operation.
"""

from __future__ import annotations

import sys
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from frazil.schema import Key

__all__ = ["CODE_SHIFT", "OP_MASK", "PARTIAL_BIT", "KeyIndex"]

CODE_SHIFT: Final = 4
PARTIAL_BIT: Final = 8
OP_MASK: Final = 7
"""A change's code is `offset << 4 | partial << 3 | op`."""

ENTRY_BYTES: Final = 100
"""What a key takes beside itself: its slot in a dict that is half full, and the code."""
_MOVE_RATIO: Final = 0.75
_SHRINK_RATIO: Final = 0.02
_SHRINK_KEYS_MIN: Final = 16


class KeyIndex:
    """A bounded map from key to the code of its newest change; the caller has the topic's lock.

    The fold writes `codes` itself, for speed, by way of `take`, and tells `added` which keys are
    new; then it calls `shrink`.
    """

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self.codes: dict[Key, int] = {}
        self.bytes = 0
        self.evictions = 0
        self.moves = 0
        """Odd while keys that are there may be out for a moment."""
        self._bytes_max = bytes_max

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, count: int) -> Callable[[Key, None], int | None]:
        """Return how to look keys up that are written next, of which there are `count`.

        As long as there is ample room, a key stays where it is in the order of writes, which is
        cheaper; then it is taken out, so that it comes last.
        """
        return self.codes.pop if self.tight(count) else self.codes.get

    def tight(self, count: int) -> bool:
        """Tell whether so many more keys make room short, so that the order of writes matters."""
        return self.bytes + 2 * ENTRY_BYTES * count > _MOVE_RATIO * self._bytes_max()

    @property
    def over(self) -> bool:
        """Tell whether it takes more than it may."""
        return self.bytes > self._bytes_max()

    def added(self, keys: Collection[Key]) -> None:
        """Count keys that were not in `codes` before."""
        self.bytes += keys_bytes(keys)

    def fits(self, keys: Collection[Key]) -> bool:
        """Tell whether there is room for more keys."""
        return self.bytes + keys_bytes(keys) <= self._bytes_max()

    def shrink(self) -> None:
        """Forget keys until the rest fits."""
        bytes_max = self._bytes_max()
        codes = self.codes
        # The gaps that deleted keys leave at the head of a dict are walked over each time, so
        # that many are forgotten at once.
        while self.bytes > bytes_max and codes:
            count = max(_SHRINK_KEYS_MIN, int(len(codes) * _SHRINK_RATIO))
            oldest = list(islice(codes, count))
            for key in oldest:
                del codes[key]
            self.bytes -= keys_bytes(oldest)
            self.evictions += len(oldest)

    def forget_all(self) -> None:
        """Forget all keys; the caller keeps others from reading a miss as absence."""
        self.evictions += len(self.codes)
        self.codes.clear()
        self.bytes = 0


def keys_bytes(keys: Collection[Key]) -> int:
    """Return what keys of one topic take in the index."""
    size = ENTRY_BYTES * len(keys) + sum(map(sys.getsizeof, keys))
    if type(next(iter(keys), None)) is tuple:
        size += sum(map(sys.getsizeof, chain.from_iterable(keys)))
    return size
