"""How many connections one address has open: a flood from one leaves room for the others."""

from __future__ import annotations

from collections import Counter

from frazil.serve.auth.guard import client_of

__all__ = ["ConnectionCounts"]


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
        self.refusals = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, peer: str) -> bool:
        """Count a connection; False, and nothing counted, if there are too many already."""
        client = client_of(peer)
        is_full = self._connections_max is not None and self._total >= self._connections_max
        if is_full or self._open.get(client, 0) >= self._client_max:
            self.refusals += 1
            return False
        self._total += 1
        self._open[client] += 1
        return True

    def closed(self, peer: str) -> None:
        """Take back a connection that `opened` has counted."""
        client = client_of(peer)
        assert self._open[client] > 0
        self._total -= 1
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
