"""Keys with records that no attached consumer accepts, and when they are passed over."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

__all__ = ["Orphans"]

Accepts = Callable[[str], bool]


class Orphans:
    """Keys that wait for a consumer, each until the last claim to it runs out.

    A consumer that leaves has a claim to what it accepts, for a grace: consumers come back one by
    one. For the same reason nothing is passed over so soon after the first of them came; and
    without any of them nothing ever is.

    A key is compared with consumers when it comes here and when one joins, not with time: those
    that leave later do not accept it, or it would not be here.
    """

    def __init__(self, grace_ms: int) -> None:
        self._grace_ms = grace_ms
        self._keys: dict[str, int] = {}
        """Until when each is claimed."""
        self._line: list[tuple[int, str]] = []
        """A heap of the same."""
        self._claims: deque[tuple[int, Accepts]] = deque()
        self._from_ms: int | None = None
        """Not before this is anything passed over; None while nobody is attached."""

    def begin(self, now_ms: int) -> None:
        """Take note that the first consumer came."""
        # What those accept that left before is safe for as long by that alone.
        self._claims.clear()
        self._from_ms = now_ms + self._grace_ms

    def end(self) -> None:
        """Take note that the last consumer left."""
        self._claims.clear()
        self._from_ms = None

    def claim(self, accepts: Accepts, now_ms: int) -> None:
        """Let the keys of a consumer that left wait for it for a while."""
        self._claims.append((now_ms + self._grace_ms, accepts))

    def add(self, key: str, *, from_ms: int = 0) -> None:
        """Take in a key that no attached consumer accepts; it is not passed over before then."""
        if key in self._keys:
            return
        claimed = (due_ms for due_ms, accepts in reversed(self._claims) if accepts(key))
        until_ms = max(from_ms, next(claimed, 0))
        self._keys[key] = until_ms
        heapq.heappush(self._line, (until_ms, key))

    def adopt(self, accepts: Accepts) -> list[str]:
        """Let go of the keys that a consumer accepts; return them."""
        found = [key for key in self._keys if accepts(key)]
        if found:
            for key in found:
                del self._keys[key]
            self._line = [(until_ms, key) for key, until_ms in self._keys.items()]
            heapq.heapify(self._line)
        return found

    def take_due(self, now_ms: int) -> list[str]:
        """Let go of the keys that are to be passed over now; return them."""
        claims, line = self._claims, self._line
        due: list[str] = []
        while claims and claims[0][0] <= now_ms:
            claims.popleft()
        if self._from_ms is None or now_ms < self._from_ms:
            return due
        while line and line[0][0] <= now_ms:
            due.append(heapq.heappop(line)[1])
        for key in due:
            del self._keys[key]
        return due

    def due_ms(self) -> int | None:
        """Return when `take_due` next has something."""
        if self._from_ms is None or not self._line:
            return None
        return max(self._from_ms, self._line[0][0])
