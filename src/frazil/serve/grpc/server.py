"""The gRPC server: accepts connections, keeps them within their limits, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final

from frazil.clock import SystemClock
from frazil.serve.auth.guard import client_of
from frazil.serve.grpc.calls import Counters
from frazil.serve.grpc.protocol import ClientConnection
from frazil.serve.h2.limits import ServerLimits
from frazil.serve.listening import BACKLOG, Address
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from frazil.clock import Clock
    from frazil.serve.grpc.router import Guard, Router

__all__ = ["ConnectionLimits", "Server"]

IDLE_S: Final = 60.0
"""A connection without a call for so long may be closed for a new one."""
RECHECK_S: Final = 15.0
"""Streams are checked so often: their tokens end, and roles change."""
_DRAIN_POLL_S: Final = 0.01
_ACCEPT_PAUSE_S: Final = 0.5
"""Without descriptors or memory, connections wait so long in the system's queue."""
_TLS_SHUTDOWN_S: Final = 1.0


class ConnectionLimits:
    """How many connections there may be in all, and of one address; servers may share it.

    At a limit the oldest idle connection is closed for the new one: first those on which no call
    was ever accepted, then those without a call for a minute. With none of them the new one is
    refused. It belongs to the event loop's thread.
    """

    def __init__(self, *, client_max: int, connections_max: int) -> None:
        assert client_max > 0
        self._client_max = client_max
        self._connections_max = connections_max
        self._open: dict[ClientConnection, tuple[str, Server]] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, connection: ClientConnection, server: Server) -> bool:
        """Count a connection; False, and nothing counted, if there are too many in use."""
        client = client_of(connection.peer)
        rivals = [each for each, (own, _) in self._open.items() if own == client]
        is_full = len(rivals) >= self._client_max
        if not is_full:
            rivals = list(self._open)
            is_full = len(rivals) >= self._connections_max
        if is_full and not self._evict(rivals):
            return False
        self._open[connection] = client, server
        return True

    def forget(self, connection: ClientConnection) -> None:
        """Take back a connection that was counted."""
        del self._open[connection]

    def _evict(self, rivals: list[ClientConnection]) -> bool:
        """Close one idle connection of some."""
        idle = next((each for each in rivals if not each.is_used), None)
        idle = idle or max(rivals, key=lambda each: each.idle_s())
        if idle.is_used and idle.idle_s() <= IDLE_S:
            return False
        self._open[idle][1].evict(idle)
        return True


class Server:
    """Serves a router's calls on one address.

    All methods belong to the event loop's thread; so do the answers of handlers. A server starts
    once. `shared` counts the connections of several servers.
    """

    def __init__(
        self,
        router: Router,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
        shared: ConnectionLimits | None = None,
    ) -> None:
        self.router = router
        self.limits = limits = ServerLimits() if limits is None else limits
        self.clock: Clock = SystemClock() if clock is None else clock
        self.counters = Counters()
        self.buffer = memoryview(bytearray(limits.read_bytes_max))
        """Where every connection reads to: a read is copied out of it before the next one."""
        self.unanswered = 0
        """Bytes of requests of all connections that wait for their answers."""
        self.held = 0
        """Bytes of incomplete requests and unread answers of all connections."""
        self.streams = 0
        """Calls under way on all connections."""
        self.check: Guard | None = None
        """Returns why a stream may not go on; called every `RECHECK_S`, or never."""
        self._checked_s = self.clock.monotonic()
        most = limits.connections_max
        own = ConnectionLimits(client_max=most, connections_max=most)
        self._shared = own if shared is None else shared
        self._connections: dict[ClientConnection, None] = {}
        self._dirty: dict[ClientConnection, None] = {}
        self._is_flushing = False
        self._is_draining = False
        self._stops: list[Callable[[], object]] = []
        """What ends listening."""
        self._arriving: dict[ClientConnection, tuple[socket.socket, asyncio.Task[None]]] = {}
        """Connections whose handshake is under way."""
        self._ticker: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    async def start(
        self, host: str, port: int, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; return the address and the port (a free one if `port` was 0).

        Raises:
            OSError: The address cannot be had.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
        return await self.start_on(listener, ssl_context)

    async def start_on(
        self, listener: socket.socket, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen on a socket that is bound already; the server owns it from now on."""
        assert not self._stops
        self._loop = asyncio.get_running_loop()
        if ssl_context is not None:
            ssl_context.set_alpn_protocols(["h2"])
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._stops = [
            self._loop.create_task(self._accept(listener, ssl_context)).cancel,
            listener.close,
        ]
        self._tick()
        address = listener.getsockname()
        event("grpc_listening", host=address[0], port=address[1], tls=ssl_context is not None)
        return str(address[0]), int(address[1])

    def recheck(self) -> None:
        """End the server streams that `check` no longer allows, with its status."""
        if self.check is not None:
            for connection in tuple(self._connections):
                connection.recheck(self.check)

    def expect_end(self) -> None:
        """Prepare for `drain`: refuse new work from now on."""
        for connection in tuple(self._connections):
            connection.expect_end()

    async def drain(self, deadline_s: float) -> bool:
        """Accept nothing more, let open calls end, close; return whether all ended by themselves.

        Server streams end at once with UNAVAILABLE. Calls that are open after `deadline_s` get the
        same. A connection closes when its client asks for nothing more.
        """
        self._is_draining = True
        self._stop_listening()
        now = self.clock.monotonic()
        deadline = now + deadline_s
        while self._connections and now < deadline:
            for connection in tuple(self._connections):
                connection.drain(now)
            await asyncio.sleep(_DRAIN_POLL_S)
            now = self.clock.monotonic()
        left = tuple(self._connections)
        for connection in left:
            connection.end_calls()
        if left:
            await asyncio.sleep(0)
        self.close()
        return not left

    def close(self) -> None:
        """Close the listener and every connection now."""
        self._stop_listening()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        for connection in tuple(self._connections):
            connection.abort()

    # -- what connections ask for ----------------------------------------------------------------

    def forget(self, connection: ClientConnection) -> None:
        """Take back a connection that is gone."""
        if connection in self._connections:
            del self._connections[connection]
            self._dirty.pop(connection, None)
            self.counters.connections = len(self._connections)
            self._shared.forget(connection)

    def evict(self, connection: ClientConnection) -> None:
        """Close a connection, whether its handshake is over or not, in favour of another one."""
        self.counters.connections_cut_total += 1
        connection.abort()
        self.forget(connection)
        if connection in self._arriving:
            # The handshake meets the end of the stream, and fails.
            with contextlib.suppress(OSError):
                self._arriving[connection][0].shutdown(socket.SHUT_RDWR)

    def cut_idle(self) -> None:
        """Close connections that hold bytes, the longest silent first, until the cap is kept."""
        while self.held > self.limits.held_bytes_server_max:
            holders = [each for each in self._connections if each.held]
            min(holders, key=lambda each: (each.heard, -each.held)).cut_off()

    def flush_soon(self, connection: ClientConnection) -> None:
        """Flush a connection at the end of this turn of the loop, once."""
        self._dirty[connection] = None
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    # -- inside ----------------------------------------------------------------------------------

    async def _accept(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        """Accept connections, and count them before a handshake costs anything.

        The event loop's own listener announces a connection when its handshake is over: those that
        never finish it would be bounded by nothing but time.
        """
        while True:
            try:
                accepted, address = await self._loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                warn("accepting_paused", error=error.strerror, seconds=_ACCEPT_PAUSE_S)
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            counters = self.counters
            connection = ClientConnection(self, peer=str(Address(*address[:2])))
            if not self._shared.admit(connection, self):
                counters.connections_refused_total += 1
                accepted.close()
                continue
            counters.connections_total += 1
            self._connections[connection] = None
            counters.connections = len(self._connections)
            with contextlib.suppress(OSError):
                # Small answers are sent at once; the loop's own listener does the same.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._set_up(accepted, connection, context))
            self._arriving[connection] = accepted, task

    async def _set_up(
        self, accepted: socket.socket, connection: ClientConnection, context: ssl.SSLContext | None
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else self.limits.handshake_s,
                ssl_shutdown_timeout=None if context is None else _TLS_SHUTDOWN_S,
            )
        except OSError:
            # A peer that speaks no TLS, does not trust us, or is gone.
            accepted.close()
        finally:
            del self._arriving[connection]
            if connection.transport is None and connection in self._connections:
                self.counters.connections_failed_total += 1
                self.forget(connection)

    def _flush(self) -> None:
        """Flush each connection that has something to send, once for all its answers."""
        self._is_flushing = False
        dirty, self._dirty = self._dirty, {}
        for connection in dirty:
            connection.run_ready()
            connection.flush()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self.limits.tick_s, self._tick)
        now = self.clock.monotonic()
        for connection in tuple(self._connections):
            connection.tick(now)
        if now - self._checked_s >= RECHECK_S:
            self._checked_s = now
            self.recheck()

    def _stop_listening(self) -> None:
        for stop in self._stops:
            stop()
        for _, task in self._arriving.values():
            task.cancel()
