"""One connection on an event loop: a socket around `h2.Connection`.

Reading pauses while the peer does not read its answers, and while too many bytes of requests wait
for theirs. All that was answered in one turn of the loop leaves in one write.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol, cast

from frazil.serve.grpc.calls import Calls, Counters
from frazil.serve.h2.arriving import Arrivals
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.frames import ErrorCode
from frazil.telemetry import warn

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from frazil.clock import Clock
    from frazil.serve.grpc.router import Guard, Router
    from frazil.serve.h2.limits import ServerLimits


_ARRIVING_TIMES: Final = 12
"""So many times as long a first call may take to arrive."""
_RESTING_TIMES: Final = 16
"""What rests weighs so much more than what has just come: one request of the largest size that is on
its way is lighter than the parts of others that stopped, however many share them."""


class Host(Protocol):
    """What a connection needs of its server."""

    router: Router
    limits: ServerLimits
    counters: Counters
    clock: Clock
    buffer: memoryview
    """Where every connection reads to: a read is copied out of it before the next one begins."""
    unanswered: int
    """Bytes of requests of all connections that wait for their answers."""
    unfinished: int
    """Bytes of requests of all connections that are still arriving, with what they cost."""
    held: int
    """Bytes of answers of all connections that the peers have not taken, with what they cost."""
    crowd: Callable[[], None]
    """Tells the loop that several calls came at once."""

    def forget(self, shell: Shell) -> None:
        """Take note that a connection is gone."""

    def dismiss(self, shell: Shell) -> None:
        """Take note that a connection makes way, whether it is set up yet or not."""

    def flush_soon(self, shell: Shell) -> None:
        """Have `shell.flush` called at the end of this turn, once."""

    def relieve(self) -> None:
        """Cut off the connections that hold most, until all together hold no more than allowed."""

    def relieve_arriving(self) -> None:
        """Refuse the requests that arrive on the connections with most of them, until that fits."""


class Shell(asyncio.BufferedProtocol):
    """The life of one connection, from its accept to its end."""

    transport: asyncio.Transport | None = None
    """None until the connection, and TLS if there is any, is set up."""
    calls: Calls
    connection: Connection

    def __init__(self, host: Host, *, peer: str, number: int) -> None:
        self.peer = peer
        self._number = number
        self._host = host
        self._limits = host.limits
        self._is_live = False
        self._is_closing = False
        self._is_aborted = False
        self._is_reading = True
        self._is_full = False
        self._unanswered = 0
        self._rested = 0
        """What `unfinished` was at the last tick."""
        self._data_bytes = self._data_bytes_before = 0
        """Bytes of DATA that had come by the last tick, and by the one before."""
        self.unfinished = 0
        """Bytes of requests that still arrive, and what they cost, when they were counted last."""
        self.held = 0
        """Bytes of answers that the peer has not taken, when they were counted last."""
        self._born = self._heard = self._busy = host.clock.monotonic()
        self._accepted = 0
        self._pinged: float | None = None
        self._stalled: float | None = None
        self._closing_since: float | None = None
        self._drained_since: float | None = None
        self._streams_due = 0
        """How many streams of messages are to be asked for twice before this closes quietly."""
        self._draining_from: float | None = None
        self._asked = 0.0
        """When something came last from a client that is to go."""

    # -- the transport's side --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self._is_closing or not _speaks_h2(self.transport):
            self.transport.abort()
            return
        limits = self._limits
        self.transport.set_write_buffer_limits(high=limits.write_buffer_bytes)
        self.calls = Calls(
            self._host.router,
            self._host.counters,
            self._host.clock,
            peer=self.peer,
            number=self._number,
            long_calls_max=limits.long_calls_max,
        )
        self._is_live = True
        self._born = self._busy = self._host.clock.monotonic()
        self.connection = Connection(limits, self.calls, self._on_dirty)
        self.calls.sender = self.connection.sender
        self._arrivals = Arrivals(limits, self.connection.table, number=self._number)
        self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the loop's interface
        return self._host.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if not self._is_live or self._is_closing:
            return
        data = bytes(self._host.buffer[:nbytes])
        self._host.counters.received_bytes_total += nbytes
        self._pinged = None
        self._heard = 0.0
        if self._draining_from is not None:
            self._asked = self._host.clock.monotonic()
        counters = self._host.counters
        before = counters.calls_total
        is_alive = self.connection.receive(data)
        self.calls.end_run()
        if counters.calls_total - before > 1:
            self._host.crowd()
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
            self._host.counters.connections_failed_total += failed
            self.connection.cancel_all()
            self._is_aborted = True
            self._count()
            self._count_held(0)
        self._host.forget(self)

    def pause_writing(self) -> None:
        self.connection.sender.is_paused = True
        self._stalled = self._host.clock.monotonic()
        self._steer()

    def resume_writing(self) -> None:
        self.connection.sender.is_paused = False
        self._stalled = None
        self._host.flush_soon(self)

    # -- the server's side -----------------------------------------------------------------------

    def flush(self) -> None:
        """Send what was answered, let streams write on, and read on or not."""
        if not self._is_live or self.transport is None:
            return
        connection = self.connection
        sender = connection.sender
        data = sender.take()
        if data:
            self._host.counters.sent_bytes_total += len(data)
            self._host.counters.writes_total += 1
            self.transport.write(data)
        if sender.has_more or sender.has_ready:
            self._host.flush_soon(self)
        self._count()
        self._steer()
        if connection.is_refusing and not connection.table.open:
            self.close()

    def run_ready(self) -> None:
        """Let the streams write on that were told to wait, and input that waited for its turn."""
        if self._is_live and not self._is_closing:
            self.calls.on_ready(self.connection.sender.ready())
            if self.connection.has_input and not self._is_full:
                is_alive = self.connection.receive(b"")
                self.calls.end_run()
                if not is_alive:
                    self.flush()
                    self.close()

    def expect_end(self) -> None:
        """Hold calls for fresh work: many clients ask for a stream at once when theirs ends."""
        if self._is_live:
            self.calls.hold_fresh(self.calls.long_calls)
            self._streams_due += self.calls.long_calls

    def begin_drain(self, now: float) -> None:
        """End the streams of messages; the client may still ask."""
        if self._is_live:
            self.expect_end()
            self.calls.end_streams(self.connection.table.open.values())
            self._draining_from = self._asked = now
            self.flush()

    def go_on_draining(self, now: float) -> None:
        """Part from a client that is quiet; tell it to go elsewhere if it never is.

        A GOAWAY, or the end of the connection, that meets a new call on its way is a final error to
        clients that do not know better (hyper's): a consumer of theirs never comes back. Behind a
        refusal they wait before they ask again. So who asks for a stream is refused once, has the
        time to ack, and is held when he asks again; when all are, they are refused in the moment
        in which the connection closes.
        """
        if not self._is_live or self._is_closing or self.connection.is_draining:
            return
        if self._draining_from is None:
            # It was set up just now.
            self.begin_drain(now)
        assert self._draining_from is not None
        connection, calls = self.connection, self.calls
        if len(connection.table.open) > len(calls.held):
            self._draining_from = self._asked = now
        elif now - self._asked >= self._limits.quiet_s and calls.streams_held >= self._streams_due:
            calls.part()
            connection.begin_drain()
            connection.finish_drain()
            self.flush()
        elif now - self._draining_from >= self._limits.linger_s:
            calls.part()
            connection.begin_drain()
            self.flush()

    def recheck(self, check: Guard) -> None:
        """End the streams that the guard no longer lets go on."""
        if self._is_live:
            self.calls.recheck(self.connection.table.open.values(), check)
            self.flush()

    def end_calls(self) -> None:
        """End all calls that are open."""
        if self._is_live:
            self.connection.begin_drain()
            self.connection.finish_drain()
            self.calls.end_all(self.connection.table.open.values())
            self.flush()

    def close(self) -> None:
        """Close behind what is still to be sent."""
        if not self._is_closing:
            self._is_closing = True
            self._closing_since = self._host.clock.monotonic()
            if self.transport is not None:
                self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = self._is_aborted = True
        self._count_held(0)
        if self.transport is not None:
            self.transport.abort()

    def cut_off(self) -> None:
        """Close at once, because of what waits for the peer."""
        self._host.counters.connections_cut_total += 1
        warn("connection_cut", peer=self.peer, held_bytes=self.held)
        self.abort()

    def burden(self) -> int:
        """Return how much this connection's share of what still arrives weighs.

        What was there at the last tick rests, but for as much as has come since the one before: who
        sends one large request behind the other always has a part of one here.
        """
        if not self.unfinished:
            return 0
        came = self.connection.data_bytes - self._data_bytes_before
        resting = max(0, min(self.unfinished, self._rested) - came)
        return self.unfinished + (_RESTING_TIMES - 1) * resting

    def shed(self) -> None:
        """Refuse all requests that still arrive: the server holds too many bytes of such."""
        table = self.connection.table
        self.calls.shed(table.open.values())
        self._count_unfinished(table.unfinished + table.arriving)

    @property
    def is_used(self) -> bool:
        """Whether a call was ever accepted."""
        return self._is_live and self.calls.accepted > 0

    def idle_s(self) -> float:
        """Return for how long there was no call, by the tick."""
        if self._is_live and (self.connection.table.open or self.calls.accepted != self._accepted):
            return 0.0
        return self._host.clock.monotonic() - self._busy

    def evict(self) -> None:
        """Close at once, because somebody else needs the place."""
        self._host.counters.connections_cut_total += 1
        self.abort()
        self._host.dismiss(self)

    def tick(self, now: float) -> None:
        """Do what time demands: silent, stalled and slow clients, deadlines, allowances."""
        if not self._is_live:
            return
        limits = self._limits
        if self._is_closing:
            if self._closing_since is not None and now - self._closing_since > limits.handshake_s:
                self.abort()
            return
        connection = self.connection
        connection.tick()
        if self._heard == 0.0:
            self._heard = now
        if connection.table.open or self.calls.accepted != self._accepted:
            self._accepted = self.calls.accepted
            self._busy = now
        if self.calls.timed:
            self.calls.expire(now)
        if self.held:
            self._count()
        self._rested = self.unfinished
        self._data_bytes_before, self._data_bytes = self._data_bytes, connection.data_bytes
        if not self._is_full:
            self.calls.refuse_late(self._arrivals.tick(connection.data_bytes))
        if connection.is_draining and not connection.is_refusing:
            # A client that does not answer the ping has had a round trip's time anyway.
            if self._drained_since is None:
                self._drained_since = now
            elif now - self._drained_since >= 1.0:
                connection.finish_drain()
                self.flush()
        if not self.calls.accepted and self._waits_too_long(now):
            connection.fail(ErrorCode.ENHANCE_YOUR_CALM, "no call was accepted")
            self.flush()
            self.close()
            return
        self._look_for_life(now)

    # -- inside ----------------------------------------------------------------------------------

    def _on_dirty(self) -> None:
        self._host.flush_soon(self)

    def _waits_too_long(self, now: float) -> bool:
        """Return whether the time for a first call is over; one that arrives has longer."""
        allowed = self._limits.first_call_s
        if allowed is None or not self.connection.is_greeted:
            return False
        if self.connection.table.open:
            allowed *= _ARRIVING_TIMES
        return now - self._born > allowed

    def _look_for_life(self, now: float) -> None:
        limits = self._limits
        if not self.connection.is_greeted:
            if now - self._born > limits.handshake_s:
                self.abort()
        elif self._stalled is not None:
            if now - self._stalled > limits.stall_s:
                self.abort()
        elif not self._is_reading:
            # Nothing can be heard; the answers that are waited for are the server's.
            self._heard = now
        elif self._pinged is not None:
            if now - self._pinged > limits.keepalive_timeout_s:
                self.abort()
        elif now - self._heard > limits.keepalive_s:
            self._pinged = now
            self.connection.ping()

    def _count(self) -> None:
        """Keep the server's sums; when they are too high, whoever has most of them pays."""
        table = self.connection.table
        if table.unanswered != self._unanswered:
            self._host.unanswered += table.unanswered - self._unanswered
            self._unanswered = table.unanswered
        unfinished = table.unfinished + table.arriving
        if unfinished != self.unfinished:
            self._count_unfinished(unfinished)
        if not self._is_aborted and self.transport is not None:
            sender = self.connection.sender
            waiting = self.transport.get_write_buffer_size()
            self._count_held(sender.queued + sender.ending + waiting)

    def _count_unfinished(self, size: int) -> None:
        grown = size - self.unfinished
        self._host.unfinished += grown
        self.unfinished = size
        if grown > 0 and self._host.unfinished > self._limits.unfinished_bytes_server_max:
            self._host.relieve_arriving()

    def _count_held(self, size: int) -> None:
        grown = size - self.held
        if grown:
            self._host.held += grown
            self.held = size
            if grown > 0 and self._host.held > self._limits.held_bytes_server_max:
                self._host.relieve()

    def _steer(self) -> None:
        """Read, or not: never while answers pile up on either side, or input waits for its turn."""
        if self._is_full:
            self._is_full = not self._has_emptied()
        elif self._has_filled():
            self._is_full = True
            self._host.counters.reading_pauses_total += 1
        has_input = self.connection.has_input
        if has_input and not self._is_full:
            self._host.flush_soon(self)
        is_wanted = not self._is_full and not has_input
        if is_wanted is not self._is_reading:
            transport = self.transport
            assert transport is not None
            self._is_reading = is_wanted
            if not is_wanted:
                transport.pause_reading()
            elif not transport.is_closing():
                transport.resume_reading()

    def _has_filled(self) -> bool:
        unanswered = self.connection.table.unanswered
        return self._stalled is not None or (
            unanswered > 0
            and (
                unanswered > self._limits.unanswered_bytes_max
                or self._host.unanswered > self._limits.unanswered_bytes_server_max
            )
        )

    def _has_emptied(self) -> bool:
        unanswered = self.connection.table.unanswered
        return self._stalled is None and (
            not unanswered
            or (
                unanswered <= self._limits.unanswered_bytes_max // 2
                and self._host.unanswered <= self._limits.unanswered_bytes_server_max // 2
            )
        )


def _speaks_h2(transport: asyncio.Transport) -> bool:
    """Return whether TLS, if there is any, agreed on HTTP/2."""
    secured: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    return secured is None or secured.selected_alpn_protocol() == "h2"
