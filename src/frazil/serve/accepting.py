"""Taking connections: counted from the first packet on, before a TLS handshake costs anything.

An event loop's own listener tells its protocols of a connection when the handshake is over. Clients
that never finish it would be bounded by nothing but time, so connections are accepted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from frazil.serve.listening import BACKLOG
from frazil.telemetry import warn

if TYPE_CHECKING:
    import ssl

__all__ = ["Acceptor", "peer_text"]

TURN_MAX: Final = 64
"""So many are taken before others in the loop have their turn."""
PAUSE_S: Final = 0.5
"""Without descriptors or memory the rest waits so long in the system's queue."""
SHUTDOWN_S: Final = 1.0


class Acceptor:
    """Takes connections from a listening socket. It belongs to the event loop's thread.

    Args:
        listener: has its address, and may listen already; it is the acceptor's from now on.
        make: returns the protocol of a connection from an address, None to refuse it.
        failed: is told each protocol whose connection ended before it was made.
        ssl_context: for TLS.
        handshake_s: the time that a handshake may take.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        make: Callable[[str], asyncio.BaseProtocol | None],
        failed: Callable[[asyncio.BaseProtocol], None],
        ssl_context: ssl.SSLContext | None,
        handshake_s: float,
    ) -> None:
        self._listener = listener
        self._make = make
        self._failed = failed
        self._ssl_context = ssl_context
        self._handshake_s = handshake_s
        self._loop = asyncio.get_running_loop()
        self._arriving: set[asyncio.Task[None]] = set()
        self._sockets: dict[asyncio.BaseProtocol, socket.socket] = {}
        """Of those that are not set up yet."""
        self._pause: asyncio.TimerHandle | None = None
        self._is_closed = False
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Take no more, and give up those that are not set up yet."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._arriving:
            task.cancel()

    def give_up(self, protocol: asyncio.BaseProtocol) -> None:
        """End a connection that is not set up yet: its handshake meets the end, and fails."""
        connection = self._sockets.get(protocol)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        for _ in range(TURN_MAX):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                warn("accepting_paused", error=error.strerror, seconds=PAUSE_S)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(PAUSE_S, self._resume)
                return
            protocol = self._make(peer_text(address))
            if protocol is None:
                connection.close()
                continue
            connection.setblocking(False)
            # Small answers go at once; the loop's own listener would see to this itself.
            with contextlib.suppress(OSError):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[protocol] = connection
            task = self._loop.create_task(self._set_up(connection, protocol))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def _set_up(self, connection: socket.socket, protocol: asyncio.BaseProtocol) -> None:
        is_made = False
        context = self._ssl_context
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self._handshake_s,
                ssl_shutdown_timeout=None if context is None else SHUTDOWN_S,
            )
            is_made = True
        except OSError:
            # A peer that speaks no TLS, or trusts us not, or is gone: whoever counts is told.
            connection.close()
        finally:
            self._sockets.pop(protocol, None)
            if not is_made:
                self._failed(protocol)


def peer_text(address: object) -> str:
    """Return a peer's address as one text, `host:port`."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = str(address[0])
        return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"
    return "local"
