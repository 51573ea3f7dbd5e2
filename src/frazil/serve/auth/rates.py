"""How often a client may call: one token bucket for each, for a bounded number of clients."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["RateLimiter"]

LOOKS_MAX: Final = 8
"""So many clients are looked at for one that can be forgotten."""


class RateLimiter:
    """Buckets that hold a second's worth and refill steadily. Pure: the time is an argument.

    A client is forgotten only when its bucket is full again, so that nobody gets a new bucket by
    pushing its old one out; while no such client is found, new ones share one bucket.
    """

    def __init__(self, *, rate_s: float, clients_max: int) -> None:
        assert rate_s > 0
        assert clients_max > 0
        self._one_s = 1 / rate_s
        # A full bucket holds a second's worth; the sum of as many parts may be a little above.
        self._empty_s = max(1.0, self._one_s) + self._one_s / 1000
        self._clients_max = clients_max
        self._full_at: dict[Hashable, float] = {}
        """When each bucket would be full again. Those at the front were not looked at longest."""
        self._others_full_at = 0.0
        self.refusals = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def allow(self, client: Hashable, now_s: float) -> bool:
        """Take one from the client's bucket; False, and nothing taken, if it is empty."""
        full_at = self._full_at.get(client)
        if full_at is None:
            if not self._has_room(now_s):
                return self._allow_others(now_s)
            full_at = now_s
        elif full_at < now_s:
            full_at = now_s
        after = full_at + self._one_s
        if after - now_s > self._empty_s:
            self.refusals += 1
            return False
        self._full_at[client] = after
        return True

    def allow_some(self, client: Hashable, now_s: float, count: int) -> int:
        """Take up to `count` from the client's bucket; return how many. The rest is not counted.

        A client that has no bucket of its own gets none this way.
        """
        full_at = self._full_at.get(client)
        if full_at is None:
            if not self._has_room(now_s):
                return 0
            full_at = now_s
        full_at = max(full_at, now_s)
        taken = max(0, min(count, int((self._empty_s - (full_at - now_s)) / self._one_s)))
        self._full_at[client] = full_at + taken * self._one_s
        return taken

    def _has_room(self, now_s: float) -> bool:
        if len(self._full_at) < self._clients_max:
            return True
        for _ in range(min(LOOKS_MAX, len(self._full_at))):
            client = next(iter(self._full_at))
            full_at = self._full_at.pop(client)
            if full_at <= now_s:
                return True
            self._full_at[client] = full_at
        return False

    def _allow_others(self, now_s: float) -> bool:
        after = max(self._others_full_at, now_s) + self._one_s
        if after - now_s > self._empty_s:
            self.refusals += 1
            return False
        self._others_full_at = after
        return True
