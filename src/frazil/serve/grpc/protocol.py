"""One client connection on the event loop: a socket around `h2.Connection`.

Reading pauses while the peer does not read its answers, and while too many request bytes are
unanswered. All answers of one turn of the loop are sent in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from frazil.serve.grpc.calls import Calls
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.frames import ErrorCode
from frazil.telemetry import warn

if TYPE_CHECKING:
    import ssl

    from frazil.serve.grpc.router import Guard
    from frazil.serve.grpc.server import Server

__all__ = ["ClientConnection"]


class ClientConnection(asyncio.BufferedProtocol):
    """One connection from accept to close."""

    transport: asyncio.Transport | None = None
    """None until the connection, and TLS if there is any, is set up."""
    calls: Calls
    connection: Connection

    def __init__(self, server: Server, *, peer: str) -> None:
        self.peer = peer
        self.held = 0
        """Bytes of incomplete requests and of answers that the peer has not read, as last counted."""
        self.heard = server.clock.monotonic()
        """The tick at which bytes last arrived."""
        self._server = server
        self._limits = server.limits
        self._is_live = False
        self._is_closing = False
        self._is_full = False
        """Reading pauses: too many unanswered requests, or the peer does not read its answers."""
        self._unanswered = 0
        self._streams = 0
        self._has_heard = False
        self._opened = self._busy = self.heard
        self._accepted = 0
        self._pinged: float | None = None
        self._stalled: float | None = None
        self._closing_since = 0.0
        self._draining_from: float | None = None
        self._asked = 0.0
        """The last time at which a client that is disconnected last had or made a call."""
        ticks = max(1, round(self._limits.request_s / self._limits.tick_s))
        self._last_streams: deque[int] = deque(maxlen=ticks + 1)
        """The highest stream number at each of the last ticks in which the peer was read from."""

    # -- the transport's side --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._is_closing or not _speaks_h2(self.transport):
            self.transport.abort()
            return
        limits, server = self._limits, self._server
        self.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        self.calls = Calls(
            server.router,
            server.counters,
            peer=self.peer,
            long_calls_max=limits.long_calls_max,
        )
        self._is_live = True
        self._opened = self._busy = server.clock.monotonic()
        self.connection = Connection(limits, self.calls, self._on_dirty)
        self.calls.sender = self.connection.sender
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        return self._server.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_live or self._is_closing:
            return
        counters = self._server.counters
        counters.received_bytes_total += nbytes
        self._has_heard = True
        is_alive = self.connection.receive(bytes(self._server.buffer[:nbytes]))
        self.calls.end_run()
        self.flush()
        if not is_alive:
            self.close()

    def eof_received(self) -> bool:
        """Close: a client that sends no more cannot take part in HTTP/2 (windows, settings)."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_live:
            self._is_live = False
            failed = bool(self.connection.failure) or exc is not None
            self._server.counters.connections_failed_total += failed
            self.connection.cancel_all()
            self._count()
        self._server.forget(self)

    def pause_writing(self) -> None:
        self.connection.sender.is_paused = True
        self._stalled = self._server.clock.monotonic()
        self._steer()

    def resume_writing(self) -> None:
        self.connection.sender.is_paused = False
        self._stalled = None
        self._server.flush_soon(self)

    # -- the server's side -----------------------------------------------------------------------

    def flush(self) -> None:
        """Send the answers, then pause or resume reading."""
        transport = self.transport
        if not self._is_live or transport is None:
            return
        sender = self.connection.sender
        data = sender.take()
        if data:
            counters = self._server.counters
            counters.sent_bytes_total += len(data)
            counters.writes_total += 1
            transport.write(data)
        if sender.has_more or sender.has_ready:
            self._server.flush_soon(self)
        self._count()
        self._steer()
        if self.connection.is_refusing and not self.connection.table.open:
            self.close()

    def run_ready(self) -> None:
        """Request more messages from the stopped streams."""
        if self._is_live and not self._is_closing and self.connection.sender.has_ready:
            self.calls.on_ready(self.connection.sender.ready())

    def expect_end(self) -> None:
        """Refuse new work from now on: many clients reopen a stream at once when theirs ends."""
        if self._is_live:
            self.calls.is_ending = True

    def drain(self, now: float) -> None:
        """End this connection in order; called at short intervals until it is closed.

        For clients such as hyper's, a GOAWAY or a close that crosses a new call is a final error,
        and their consumers never reconnect. So server streams end with UNAVAILABLE, new work is
        refused with UNAVAILABLE, and the connection closes as soon as the client is quiet. A client
        that is never quiet gets a GOAWAY, and its open calls run to their end.
        """
        if not self._is_live or self._is_closing or self.connection.is_refusing:
            return
        if self._draining_from is None:
            self.calls.is_ending = True
            self.calls.end_all(self.connection.table.open.values(), only_streams=True)
            self._draining_from = self._asked = now
        elif self.connection.table.open or self._has_heard:
            self._has_heard = False
            self._asked = now
        if (
            now - self._asked >= self._limits.quiet_s
            or now - self._draining_from >= self._limits.linger_s
        ):
            self.connection.go_away()
        self.flush()

    def recheck(self, check: Guard) -> None:
        """End the server streams that the guard no longer allows."""
        if self._is_live:
            self.calls.recheck(self.connection.table.open.values(), check)
            self.flush()

    def end_calls(self) -> None:
        """End all open calls, and close."""
        if self._is_live:
            self.connection.go_away()
            self.calls.end_all(self.connection.table.open.values())
            self.flush()
        self.close()

    def close(self) -> None:
        """Close after the remaining output is sent."""
        if not self._is_closing:
            self._is_closing = True
            self._closing_since = self._server.clock.monotonic()
            if self.transport is not None:
                self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        if self.transport is not None:
            self.transport.abort()

    def cut_off(self) -> None:
        """Close at once to free the connection's memory."""
        self._server.counters.connections_cut_total += 1
        warn("connection_cut", peer=self.peer, held_bytes=self.held)
        self._server.held -= self.held
        self.held = 0
        self.abort()

    @property
    def is_used(self) -> bool:
        """Whether a call was ever accepted."""
        return self._is_live and self.calls.accepted > 0

    def idle_s(self) -> float:
        """Return the time since the last call, by the tick."""
        if self._is_live and (self.connection.table.open or self.calls.accepted != self._accepted):
            return 0.0
        return self._server.clock.monotonic() - self._busy

    def tick(self, now: float) -> None:
        """Handle time: silent, stalled and slow clients, deadlines, allowances."""
        if not self._is_live:
            return
        limits, connection = self._limits, self.connection
        if self._is_closing:
            if now - self._closing_since > limits.handshake_s:
                self.abort()
            return
        connection.tick()
        self._note_signs(now)
        if self.held:
            self._count()
        if not self._is_full:
            self._refuse_late()
        if not self.calls.accepted and self._waits_too_long(now):
            connection.fail(ErrorCode.ENHANCE_YOUR_CALM, "no call was accepted")
            self.flush()
            self.close()
        else:
            self._look_for_life(now)

    # -- inside ----------------------------------------------------------------------------------

    def _note_signs(self, now: float) -> None:
        """Note when the peer was last heard of, and when it last had a call."""
        if self._has_heard and self._draining_from is None:
            self._has_heard = False
            self.heard = now
            self._pinged = None
        if self.connection.table.open or self.calls.accepted != self._accepted:
            self._accepted = self.calls.accepted
            self._busy = now

    def _on_dirty(self) -> None:
        self._server.flush_soon(self)

    def _refuse_late(self) -> None:
        """Refuse requests that are still incomplete after `request_s`."""
        table, last = self.connection.table, self._last_streams
        last.append(table.last)
        if table.open and len(last) == last.maxlen:
            late = [
                stream
                for stream in table.open.values()
                if not stream.ended and stream.sid <= last[0]
            ]
            if late:
                self.calls.refuse_late(late)
                self.flush()

    def _waits_too_long(self, now: float) -> bool:
        """Return whether the time for a first call is over; an incomplete one has longer."""
        allowed = self._limits.first_call_s
        if self.connection.table.open:
            allowed = max(allowed, self._limits.request_s)
        return self.connection.is_greeted and now - self._opened > allowed

    def _look_for_life(self, now: float) -> None:
        limits, since, allowed = self._limits, now, 0.0
        if not self.connection.is_greeted:
            since, allowed = self._opened, limits.handshake_s
        elif self._stalled is not None:
            since, allowed = self._stalled, limits.stall_s
        elif self._is_full:
            # Nothing can be heard; the answers that the client waits for are the server's.
            self.heard = now
        elif self._pinged is not None:
            since, allowed = self._pinged, limits.keepalive_timeout_s
        elif now - self.heard > limits.keepalive_s:
            self._pinged = now
            self.connection.ping()
        if now - since > allowed:
            self.abort()

    def _count(self) -> None:
        """Update the server's totals; above the cap the longest silent connection is closed."""
        server, table = self._server, self.connection.table
        server.unanswered += table.unanswered - self._unanswered
        self._unanswered = table.unanswered
        server.streams += len(table.open) - self._streams
        self._streams = len(table.open)
        self.connection.is_crowded = server.streams > self._limits.streams_server_max
        held = 0
        if self._is_live and not self._is_closing and self.transport is not None:
            held = self.connection.sender.queued + table.unfinished
            held += self.transport.get_write_buffer_size()
        server.held += held - self.held
        self.held = held
        if server.held > self._limits.held_bytes_server_max:
            server.cut_idle()

    def _steer(self) -> None:
        """Read, or not: never while answers pile up on either side."""
        unanswered = self.connection.table.unanswered
        is_full = self._stalled is not None or (unanswered > 0 and self._has_over(unanswered))
        if is_full is self._is_full:
            return
        self._is_full = is_full
        self._server.counters.reading_pauses_total += is_full
        transport = self.transport
        assert transport is not None
        if not transport.is_closing():
            (transport.pause_reading if is_full else transport.resume_reading)()

    def _has_over(self, unanswered: int) -> bool:
        """Return whether too many bytes wait for answers; once full, half of them are too many."""
        limits, divisor = self._limits, 2 if self._is_full else 1
        return (
            unanswered > limits.unanswered_bytes_max // divisor
            or self._server.unanswered > limits.unanswered_bytes_server_max // divisor
        )


def _speaks_h2(transport: asyncio.Transport) -> bool:
    """Return whether TLS, if there is any, agreed on HTTP/2."""
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return secured is None or secured.selected_alpn_protocol() == "h2"
