"""The broker's listening sockets, bound early so that errors are reported at once.

They also listen before the broker serves: the system queues connections during the recovery of the
log, so clients wait a moment instead of failing.
"""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

from frazil.errors import Unavailable

__all__ = ["BACKLOG", "Address", "address_of", "bind", "listen"]

BACKLOG: Final = 512
"""The number of connections that the system queues before they are accepted."""


class Address(NamedTuple):
    """A listening address, written as in URLs."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def url(self, *, tls: bool) -> str:
        """Return the address as a URL with the clients' scheme."""
        return f"{'https' if tls else 'http'}://{self}"


def bind(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a socket bound to the address; clients cannot connect before it listens.

    Args:
        host: an address or name; of several addresses the first that can be bound.
        port: 0 is any free one.
        setting: the name of the setting with the address, for the error.

    Raises:
        Unavailable: if none of its addresses can be bound.
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except (OSError, UnicodeError) as error:
        raise Unavailable(
            "the address to listen on is unknown, choose another one",
            host=host,
            setting=setting,
            error=error,
        ) from error
    problem: OSError | None = None
    for family, _, _, _, address in found:
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            listener.close()
            problem = error
        else:
            listener.setblocking(False)
            return listener
    raise _taken(Address(host, port), setting, problem) from problem


def listen(listener: socket.socket, *, setting: str) -> None:
    """Listen: clients can connect, and wait until their connection is accepted.

    Raises:
        Unavailable: if another process has listened on the address since it was bound.
    """
    try:
        listener.listen(BACKLOG)
    except OSError as error:
        raise _taken(address_of(listener), setting, error) from error


def address_of(listener: socket.socket) -> Address:
    """Return the address that a socket has."""
    name = listener.getsockname()
    return Address(str(name[0]), int(name[1]))


def _taken(address: Address, setting: str, problem: OSError | None) -> Unavailable:
    return Unavailable(
        "cannot listen on the address, choose another port or stop the process that uses it",
        host=address.host,
        port=address.port,
        setting=setting,
        error=problem.strerror if problem is not None else "no address",
    )
