"""The server: listens, keeps its connections within their limits, and ends in good order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, Protocol

from frazil.clock import SystemClock
from frazil.serve.accepting import Acceptor
from frazil.serve.grpc.calls import Counters
from frazil.serve.grpc.shell import Shell
from frazil.serve.h2.limits import ServerLimits
from frazil.telemetry import event

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from frazil.clock import Clock
    from frazil.serve.grpc.router import Guard, Router


_LOOK_S: Final = 0.01
"""How often a server that drains looks at its connections."""


class Connections(Protocol):
    """Counts connections of more than one server."""

    def opened(self, peer: str, connection: Shell) -> bool:
        """Count a connection of an address; False, and nothing counted, if there are too many.

        Another one may be evicted for it.
        """

    def closed(self, peer: str, connection: Shell) -> None:
        """Take back a connection that was counted."""


class Server:
    """Serves a router's calls on one address.

    All methods belong to the event loop's thread; so do the answers of handlers. A server starts
    once. `connections` counts those of other servers, too, and may refuse more of them.
    """

    def __init__(
        self,
        router: Router,
        limits: ServerLimits | None = None,
        clock: Clock | None = None,
        connections: Connections | None = None,
    ) -> None:
        self.router = router
        self.limits = ServerLimits() if limits is None else limits
        self.clock: Clock = SystemClock() if clock is None else clock
        self.counters = Counters()
        self.buffer = memoryview(bytearray(self.limits.read_bytes_max))
        self.unanswered = 0
        self.unfinished = 0
        self.held = 0
        self.crowd: Callable[[], None] = _nothing
        self._connections = connections
        self._shells: set[Shell] = set()
        self._dirty: dict[Shell, None] = {}
        self._is_flushing = False
        self._is_draining = False
        self._gone: asyncio.Event | None = None
        """Set when a server that drains has no connection any more."""
        self._acceptor: Acceptor | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    async def start(
        self, host: str, port: int, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; return the address and the port (a free one if `port` was 0).

        Raises:
            OSError: The address cannot be had.
        """
        listener = socket.create_server((host, port), family=_family(host))
        return await self.start_on(listener, ssl_context)

    async def start_on(
        self, listener: socket.socket, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen on a socket that has its address already; it is the server's from now on."""
        assert self._acceptor is None
        self._loop = asyncio.get_running_loop()
        self.crowd = getattr(self._loop, "crowd", self.crowd)
        if ssl_context is not None:
            ssl_context.set_alpn_protocols(["h2"])
        self._acceptor = Acceptor(
            listener,
            make=self._arrive,
            failed=self._give_up,
            ssl_context=ssl_context,
            handshake_s=self.limits.handshake_s,
        )
        self._tick()
        address = listener.getsockname()
        event("grpc_listening", host=address[0], port=address[1], tls=ssl_context is not None)
        return str(address[0]), int(address[1])

    def recheck(self, check: Guard) -> None:
        """End the streams of messages that `check` no longer lets go on, with its status."""
        for shell in tuple(self._shells):
            shell.recheck(check)

    def expect_end(self) -> None:
        """Prepare for `drain`: something else will end the streams of messages before it."""
        for shell in tuple(self._shells):
            shell.expect_end()

    async def drain(self, deadline_s: float) -> bool:
        """Accept nothing more, let open calls end, close; return whether all ended by themselves.

        Streams of messages end at once with UNAVAILABLE. Calls that are open after `deadline_s`
        get the same. A connection closes when its client asks for nothing more.
        """
        self._is_draining = True
        self._stop_listening()
        now = self.clock.monotonic()
        deadline = now + deadline_s
        for shell in tuple(self._shells):
            shell.begin_drain(now)
        self._gone = asyncio.Event()
        while self._shells and now < deadline:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), min(_LOOK_S, deadline - now))
            now = self.clock.monotonic()
            for shell in tuple(self._shells):
                shell.go_on_draining(now)
        left = len(self._shells)
        for shell in tuple(self._shells):
            shell.end_calls()
            shell.close()
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
        for shell in tuple(self._shells):
            shell.abort()

    # -- what connections ask for ----------------------------------------------------------------

    def forget(self, shell: Shell) -> None:
        if shell not in self._shells:
            return
        self._shells.discard(shell)
        self._dirty.pop(shell, None)
        self.counters.connections = len(self._shells)
        if self._connections is not None:
            self._connections.closed(shell.peer, shell)
        if not self._shells and self._gone is not None:
            self._gone.set()

    def dismiss(self, shell: Shell) -> None:
        self.forget(shell)
        if self._acceptor is not None:
            self._acceptor.give_up(shell)

    def flush_soon(self, shell: Shell) -> None:
        self._dirty[shell] = None
        if not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def relieve(self) -> None:
        while self.held > self.limits.held_bytes_server_max:
            most = max(self._shells, key=lambda shell: shell.held)
            assert most.held > 0
            most.cut_off()

    def relieve_arriving(self) -> None:
        while self.unfinished > self.limits.unfinished_bytes_server_max:
            most = max(self._shells, key=Shell.burden)
            assert most.unfinished > 0
            most.shed()

    # -- inside ----------------------------------------------------------------------------------

    def _arrive(self, peer: str) -> Shell | None:
        """Count a connection from its first packet on; None if there are too many."""
        counters = self.counters
        shell = Shell(self, peer=peer, number=counters.connections_total + 1)
        if (
            self._is_draining
            or len(self._shells) >= self.limits.connections_max
            or (self._connections is not None and not self._connections.opened(peer, shell))
        ):
            counters.connections_refused_total += 1
            return None
        counters.connections_total += 1
        self._shells.add(shell)
        counters.connections = len(self._shells)
        return shell

    def _give_up(self, protocol: asyncio.BaseProtocol) -> None:
        """Take note of a connection that never came to be: most often a handshake that failed."""
        assert isinstance(protocol, Shell)
        if protocol in self._shells:
            self.counters.connections_failed_total += 1
            self.forget(protocol)

    def _flush(self) -> None:
        """Flush each connection that has something to send, once for all its answers."""
        self._is_flushing = False
        dirty = list(self._dirty)
        self._dirty.clear()
        for shell in dirty:
            shell.run_ready()
            shell.flush()

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self.limits.tick_s, self._tick)
        now = self.clock.monotonic()
        for shell in tuple(self._shells):
            shell.tick(now)

    def _stop_listening(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _nothing() -> None:
    """Tell a loop nothing that does not ask."""
