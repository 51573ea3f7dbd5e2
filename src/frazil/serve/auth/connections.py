"""How many connections one address has open: a flood from one leaves room for the others.

When all places are taken, whoever uses none makes way: first connections on which no call was ever
accepted, the oldest of them first; then those without a call for a minute. Only if all are in use
the newcomer is refused.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Final, Protocol

from frazil.serve.auth.guard import client_of

__all__ = ["IDLE_S", "ConnectionCounts", "Evictable"]

IDLE_S: Final = 60.0
"""A connection that was used makes way after so long without a call."""
LOOKS_MAX: Final = 32
"""So many connections that were used are looked at for a newcomer; the next one goes on there."""


class Evictable(Protocol):
    """A connection that can make way."""

    @property
    def is_used(self) -> bool:
        """Whether a call was ever accepted on it."""

    def idle_s(self) -> float:
        """Return for how long there was no call on it."""

    def evict(self) -> None:
        """Close it now; it is taken back with `closed` before this returns."""


class ConnectionCounts:
    """Counts open connections by address, and all of them if there is a limit of all.

    As many addresses as connections are remembered.

    Not thread-safe: it belongs to the event loop's thread, and may be shared by its listeners.
    """

    def __init__(self, *, client_max: int, connections_max: int | None = None) -> None:
        assert client_max > 0
        self._client_max = client_max
        self._connections_max = connections_max
        self._total = 0
        self._open: Counter[str] = Counter()
        self._new: OrderedDict[Evictable, str] = OrderedDict()
        """Those without an accepted call when they were looked at last, the oldest first."""
        self._new_of: dict[str, OrderedDict[Evictable, None]] = {}
        self._used: OrderedDict[Evictable, str] = OrderedDict()
        self.refusals = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, peer: str, connection: Evictable | None = None) -> bool:
        """Count a connection; False, and nothing counted, if there are too many in use already."""
        client = client_of(peer)
        if not self._has_room(client):
            self.refusals += 1
            return False
        self._total += 1
        self._open[client] += 1
        if connection is not None:
            self._new[connection] = client
            self._new_of.setdefault(client, OrderedDict())[connection] = None
        return True

    def closed(self, peer: str, connection: Evictable | None = None) -> None:
        """Take back a connection that `opened` has counted."""
        client = client_of(peer)
        assert self._open[client] > 0
        self._total -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
        if connection is not None:
            self._used.pop(connection, None)
            self._no_longer_new(connection)

    # -- inside ----------------------------------------------------------------------------------

    def _has_room(self, client: str) -> bool:
        if self._open.get(client, 0) >= self._client_max:
            return self._make_room(client)
        if self._connections_max is not None and self._total >= self._connections_max:
            return self._make_room(None)
        return True

    def _make_room(self, client: str | None) -> bool:
        """Evict one connection, of an address if one is given."""
        idle = self._oldest_new(client) or self._longest_unused(client)
        if idle is None:
            return False
        idle.evict()
        return True

    def _oldest_new(self, client: str | None) -> Evictable | None:
        while True:
            among = self._new if client is None else self._new_of.get(client)
            if not among:
                return None
            found = next(iter(among))
            if not found.is_used:
                return found
            self._used[found] = self._new[found]
            self._no_longer_new(found)

    def _longest_unused(self, client: str | None) -> Evictable | None:
        for _ in range(min(LOOKS_MAX, len(self._used))):
            found, owner = self._used.popitem(last=False)
            self._used[found] = owner
            if (client is None or owner == client) and found.idle_s() > IDLE_S:
                return found
        return None

    def _no_longer_new(self, connection: Evictable) -> None:
        client = self._new.pop(connection, None)
        if client is not None:
            of_client = self._new_of[client]
            del of_client[connection]
            if not of_client:
                del self._new_of[client]
