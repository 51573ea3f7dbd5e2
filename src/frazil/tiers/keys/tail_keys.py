"""The keys of the tail that is not folded yet: what a look-up of a few keys needs instead of a fold.

Beside a writer of single records the tail is never folded to its end. To fold the rest for one
key would mark rows, count and search below for all the others; to note the rest's keys is a
fraction of that.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import CorruptionError
from frazil.model import OP_UPSERT
from frazil.tiers.keys.key_index import CODE_SHIFT, PARTIAL_BIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.log import TailEntry
    from frazil.schema import Key, KeyShape
    from frazil.tiers.memory import TopicMemory

__all__ = ["CHANGES_MAX", "UNKNOWN", "TailKeys", "add_codes"]

UNKNOWN: Final = -1
"""What stands for a code where only a fold can tell it."""
CHANGES_MAX: Final = 8192
"""So many changes are noted; what is more is worth a fold."""

_entry_offset = itemgetter(0)


def add_codes(
    records: Sequence[Any], offset: int, shape: KeyShape, keys: list[Key], codes: list[int]
) -> None:
    """Add keys and codes of validated records: rows with their packed form, or changes."""
    for record in records:
        if type(record) is tuple:
            keys.append(shape.row_key(record[0]))
            codes.append(offset << CODE_SHIFT | OP_UPSERT)
        else:
            keys.append(record.key)
            code = offset << CODE_SHIFT | record.op
            codes.append(code if record.present is None else code | PARTIAL_BIT)
        offset += 1


class TailKeys:
    """The newest code of each key in `[_first, _end)`; what of it is folded by now does not matter.

    `of_arrow` returns keys and codes of an entry that is no row frame. May be called from any
    thread, and without the topic's lock: who folds or decodes may have that for milliseconds.
    """

    def __init__(
        self,
        memory: TopicMemory,
        shape_of: Callable[[int], KeyShape],
        of_arrow: Callable[[TailEntry], tuple[list[Key], list[int]]],
    ) -> None:
        self._memory = memory
        self._shape_of = shape_of
        self._of_arrow = of_arrow
        self._lock = threading.Lock()
        self._codes: dict[Key, int] = {}
        self._first = self._end = 0

    def newest(self, key: Key, *, folded_to: int, end: int) -> int | None:
        """Return the code of a key's newest change in `[folded_to, end)`, None if there is none.

        All below `end` is visible. UNKNOWN stands for what cannot be told: changes that are in
        chunks already, too many, damaged ones, partial ones, and those that newer ones hide.
        """
        with self._lock:
            if not self._reach(folded_to, end):
                return UNKNOWN
            code = self._codes.get(key)
        if code is None or code >> CODE_SHIFT < folded_to:
            return None
        # Whether a partial change did anything, only what it stands on tells.
        return UNKNOWN if code & PARTIAL_BIT or code >> CODE_SHIFT >= end else code

    def _reach(self, folded_to: int, end: int) -> bool:
        """Note all of `[folded_to, end)`; False if that cannot be."""
        if not self._first <= folded_to <= self._end or (
            self._end - self._first > CHANGES_MAX and folded_to > self._first
        ):
            self._codes = {}
            self._first = self._end = folded_to
        if end - self._first > 2 * CHANGES_MAX or end - folded_to > CHANGES_MAX:
            return False
        return self._end >= end or self._note(end)

    def _note(self, end: int) -> bool:
        """Note what lies between what is noted and `end`."""
        memory, first = self._memory, self._end
        tail = memory.tail.copy()
        # What is decoded is in chunks before it goes from the tail: the copy has all behind them.
        if memory.settled > first:
            return False
        keys: list[Key] = []
        codes: list[int] = []
        number = max(bisect_right(tail, first, key=_entry_offset) - 1, 0)
        for entry in tail[number:]:
            offset, count, records = entry[0], entry[1], entry[9]
            if offset >= end:
                break
            if offset + count <= first:
                continue
            part = slice(max(first - offset, 0), end - offset)
            if records is not None:
                add_codes(records[part], offset + part.start, self._shape_of(entry[6]), keys, codes)
                continue
            try:
                more_keys, more_codes = self._of_arrow(entry)
            except CorruptionError:
                return False
            keys += more_keys[part]
            codes += more_codes[part]
        self._codes.update(zip(keys, codes, strict=True))
        self._end = end
        return True
