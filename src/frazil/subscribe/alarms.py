"""Offsets with a time at which something is to be done about them."""

from __future__ import annotations

import heapq

__all__ = ["Alarms"]


class Alarms:
    """At most one alarm an offset, rung in the order of their times."""

    __slots__ = ("_dues_ms", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._dues_ms: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._dues_ms)

    def set(self, offset: int, due_ms: int) -> None:
        """Set or move the alarm of an offset."""
        self._dues_ms[offset] = due_ms
        heapq.heappush(self._heap, (due_ms, offset))
        self._tidy()

    def clear(self, offset: int) -> int | None:
        """Take back the alarm of an offset; return when it would have rung."""
        due_ms = self._dues_ms.pop(offset, None)
        self._tidy()
        return due_ms

    def due_ms(self, offset: int) -> int | None:
        """Return when the alarm of an offset rings."""
        return self._dues_ms.get(offset)

    def first_ms(self) -> int | None:
        """Return the time of the next alarm."""
        heap = self._heap
        while heap and self._dues_ms.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def rung(self, now_ms: int) -> list[int]:
        """Return the offsets whose time has come; their alarms stay."""
        found, look = [], [0]
        while look:
            # Nothing below an entry of a heap comes before it.
            at = look.pop()
            if at < len(self._heap) and self._heap[at][0] <= now_ms:
                due_ms, offset = self._heap[at]
                if self._dues_ms.get(offset) == due_ms:
                    found.append(offset)
                look += (2 * at + 1, 2 * at + 2)
        return list(dict.fromkeys(found))

    def ring(self, now_ms: int) -> list[int]:
        """Return, ascending, the offsets whose time has come, and forget their alarms."""
        rung = set()
        while (first_ms := self.first_ms()) is not None and first_ms <= now_ms:
            offset = heapq.heappop(self._heap)[1]
            del self._dues_ms[offset]
            rung.add(offset)
        return sorted(rung)

    def _tidy(self) -> None:
        # Entries of alarms taken back or moved stay in the heap until their time; they must not
        # pile up.
        if len(self._heap) > 64 + 2 * len(self._dues_ms):
            self._heap = [(due_ms, offset) for offset, due_ms in self._dues_ms.items()]
            heapq.heapify(self._heap)
