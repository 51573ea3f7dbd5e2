"""How often a client may call: one token bucket for each, for a bounded number of clients."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["RateLimiter"]


class RateLimiter:
    """Buckets that hold a second's worth and refill steadily. Pure: the time is an argument.

    A client is forgotten only when its bucket is full again, so that nobody gets a new bucket by
    pushing its old one out; until then clients that are new share one.
    """

    def __init__(self, *, rate_s: float, clients_max: int) -> None:
        assert rate_s > 0
        assert clients_max > 0
        self._one_s = 1 / rate_s
        # A full bucket holds a second's worth; the sum of as many parts may be a little above.
        self._empty_s = max(1.0, self._one_s) + self._one_s / 1000
        self._clients_max = clients_max
        # When the bucket would be full again, from the least to the most recently used.
        self._full_at: OrderedDict[str, float] = OrderedDict()
        self._others_full_at = 0.0
        self.refusals = 0

    def __len__(self) -> int:
        return len(self._full_at)

    def allow(self, client: str, now_s: float) -> bool:
        """Take one from the client's bucket; False, and nothing taken, if it is empty."""
        full_at = self._full_at.get(client)
        if full_at is None:
            if not self._has_room(now_s):
                return self._allow_others(now_s)
            full_at = now_s
        after = self._taken(full_at, now_s)
        self._full_at[client] = full_at if after is None else after
        self._full_at.move_to_end(client)
        return after is not None

    def _taken(self, full_at: float, now_s: float) -> float | None:
        """Return when a bucket is full after one more is taken, None if it is empty."""
        after = max(full_at, now_s) + self._one_s
        if after - now_s <= self._empty_s:
            return after
        self.refusals += 1
        return None

    def _has_room(self, now_s: float) -> bool:
        if len(self._full_at) < self._clients_max:
            return True
        oldest, full_at = next(iter(self._full_at.items()))
        if full_at > now_s:
            return False
        del self._full_at[oldest]
        return True

    def _allow_others(self, now_s: float) -> bool:
        after = self._taken(self._others_full_at, now_s)
        if after is None:
            return False
        self._others_full_at = after
        return True
