"""The metadata store in memory, for tests and for engines without stored metadata."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

from frazil.metadata.local import Change, LocalStore
from frazil.metadata.transaction import Entry, Revision, page_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.clock import Clock
    from frazil.metadata.store import Page

__all__ = ["MemoryRows", "MemoryStore"]


class MemoryRows:
    """Entries in a dictionary and their keys in a sorted list."""

    def __init__(self, revision: Revision, entries: dict[str, Entry]) -> None:
        self.revision = revision
        self.entries = entries
        self._keys = sorted(entries)

    def read(self, key: str) -> Entry | None:
        return self.entries.get(key)

    def scan(self, *, first: str, end: str, after: str | None, limit: int) -> Page:
        start = bisect.bisect_left(self._keys, first)
        if after is not None:
            start = max(start, bisect.bisect_right(self._keys, after))
        stop = min(bisect.bisect_left(self._keys, end), start + limit)
        return page_of(map(self.entries.__getitem__, self._keys[start:stop]))

    def write(self, revision: Revision, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.after is None:
                del self.entries[change.key]
                self._keys.pop(bisect.bisect_left(self._keys, change.key))
                continue
            if change.before is None:
                bisect.insort(self._keys, change.key)
            self.entries[change.key] = change.after
        self.revision = revision

    def close(self) -> None:
        pass


class MemoryStore(LocalStore):
    """A metadata store that lives as long as its process."""

    def __init__(self, *, clock: Clock, rows: MemoryRows | None = None) -> None:
        self._clock = clock
        self._memory = rows if rows is not None else MemoryRows(Revision(0), {})
        super().__init__(self._memory, clock)

    def clone(self) -> MemoryStore:
        """Return another open store with the same entries, as a restart would find them.

        The clone has no held leases, and works also after this store is closed. A clone taken
        before the last k transactions is a store that lost them.
        """
        with self._lock:
            rows = MemoryRows(self._memory.revision, dict(self._memory.entries))
        return MemoryStore(clock=self._clock, rows=rows)
