"""Calls: what a handler holds, and what stands between a connection and the handlers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

import attrs

from frazil.serve.grpc.codec import CallFailed, Code, only_message, status_text
from frazil.serve.grpc.runs import RUN_CALLS_MIN, CallRun
from frazil.serve.h2.stream import Stream
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.serve.grpc.router import CallHead, Guard, Router
    from frazil.serve.grpc.runs import RunHandler
    from frazil.serve.h2.hpack_cache import Head
    from frazil.serve.h2.sender import Sender
    from frazil.serve.h2.validation import Fields


GOES_AWAY: Final = "server is shutting down"
TOO_SLOW: Final = "the request arrives too slowly"
TOO_MANY_STREAMS: Final = "too many streams on this connection, open another one"
_KEPT_BYTES_MAX: Final = 1024
"""A request's message is kept with its stream up to this size."""


@attrs.define
class Counters:
    """What a server has done since it started; only ever grows (but `connections`)."""

    connections: int = 0
    connections_total: int = 0
    connections_refused_total: int = 0
    connections_failed_total: int = 0
    connections_cut_total: int = 0
    calls_total: int = 0
    cancelled_total: int = 0
    handler_errors_total: int = 0
    received_bytes_total: int = 0
    sent_bytes_total: int = 0
    writes_total: int = 0
    reading_pauses_total: int = 0
    statuses: list[int] = attrs.field(factory=lambda: [0] * len(Code))


class Gathered:
    """Stands in a stream's `call` for one that came with others and has no object of its own."""


GATHERED: Final = Gathered()


class UnseenStream(Stream):
    """Stands for one that was refused before it was opened: there is nothing to answer."""

    closed = True


class Call:
    """One call, from its request to its status. All methods belong to the event loop's thread.

    Answer once: what comes after the status, or after the client went away, is dropped.
    `on_cancel` is called when nobody waits for the answer any more; `on_ready` when a `write` that
    returned False may go on. Neither is called from inside one of the call's own methods.
    """

    deadline: float | None = None
    """When the client stops waiting, in seconds of the monotonic clock."""
    is_ended_here: bool = False
    """Whether the server ended it in its handler's place; when `on_cancel` comes else, the client
    is gone."""
    on_ready: Callable[[], None] | None = None
    on_cancel: Callable[[], None] | None = None

    def __init__(self, calls: Calls, stream: Stream, head: CallHead, message: bytes) -> None:
        self.head = head
        self.message = message
        self._calls = calls
        self._stream = stream

    @property
    def path(self) -> str:
        """Return `/package.Service/Method`."""
        return self.head.path

    @property
    def metadata(self) -> Mapping[str, str]:
        """Return the request's metadata; names are in lower case."""
        return self.head.metadata

    @property
    def binary(self) -> Mapping[str, bytes]:
        """Return the metadata whose names end in `-bin`, decoded."""
        return self.head.binary

    @property
    def peer(self) -> str:
        """Return the client's address."""
        return self._calls.peer

    @property
    def connection(self) -> int:
        """Return the number of the client's connection, which no other one ever has."""
        return self._calls.number

    @property
    def is_open(self) -> bool:
        """Return whether an answer is still wanted."""
        return not self._stream.closed and self._stream.code is None

    def ok(self, message: bytes) -> None:
        """Answer with one message and the status OK."""
        stream = self._stream
        if not stream.closed and stream.code is None:
            calls = self._calls
            calls.counters.statuses[0] += 1
            calls.sender.reply(stream, message)
            self._let_go()

    def fail(self, code: Code, text: str) -> None:
        """End with a status, behind what was written before."""
        if self.is_open:
            self._calls.counters.statuses[code] += 1
            self._calls.sender.finish(self._stream, code, status_text(text))
            self._let_go()

    def finish(self, code: Code = Code.OK, text: str = "") -> None:
        """End a stream with a status, behind what was written before."""
        self.fail(code, text)

    def break_off(self, error: BaseException) -> None:
        """End with INTERNAL because of a bug of ours, which is logged."""
        self._calls.on_bug(self, error)

    def begin(self) -> None:
        """Send the answer's HEADERS at once, before there is a message.

        A large message of the request is let go of: a stream may stay open for ever.
        """
        if len(self.message) > _KEPT_BYTES_MAX:
            self.message = b""
        self._calls.sender.begin(self._stream)

    def write(self, framed: bytes) -> bool:
        """Send messages, each with its prefix (`codec.framed`); return False to stop for now.

        What was given is taken in either case; with False nothing more should come before
        `on_ready`, or at all if the call is over.
        """
        return self._calls.sender.write(self._stream, framed)

    def _let_go(self) -> None:
        """Part from the stream, so that neither waits for the collector of cycles."""
        calls = self._calls
        self._stream.call = None
        if self.head.is_stream:
            calls.long_calls -= 1
        if calls.held:
            calls.held.pop(self._stream.sid, None)
        if self.deadline is not None:
            calls.timed.pop(self._stream.sid, None)


class Calls:
    """The application of one connection: requests to handlers, their errors to statuses."""

    def __init__(
        self,
        router: Router,
        counters: Counters,
        clock: Clock,
        *,
        peer: str,
        number: int,
        long_calls_max: int | None = None,
    ) -> None:
        self.peer = peer
        self.number = number
        self.counters = counters
        self.sender: Sender
        """Set by whoever makes the connection: each of the two knows the other."""
        self.timed: dict[int, Call] = {}
        self.accepted = 0
        """Calls that the guard let through."""
        self.long_calls = 0
        """Streams of messages that are open."""
        self.held: dict[int, Call] = {}
        """Calls that wait for their refusal, by their streams."""
        self.streams_held = 0
        """Streams of messages that were asked for and held since this connection is to end."""
        self._streams_spared = 0
        self._long_calls_max = long_calls_max
        self._is_ending = self._is_parting = False
        self._router = router
        self._run_many: RunHandler | None = None
        self._run_streams: list[Stream] = []
        self._run_bodies: list[bytes] = []
        self._clock = clock

    def resolve(self, fields: Fields) -> CallHead:
        return self._router.resolve(fields)

    def refuse_large(self) -> CallHead:
        return self._router.large

    def admits(self, stream: Stream) -> bool:
        """Refuse at once what will be refused anyway: nobody keeps a part of its request."""
        head = cast("CallHead", stream.head.target)
        if head.handler is None:
            self.counters.calls_total += 1
            self._refuse(stream, head)
            return False
        foresee = self._router.foresee
        if foresee is None:
            return True
        if head.is_stream:
            # It is not counted as one yet.
            head = attrs.evolve(head, is_stream=False)
        call = Call(self, stream, head, b"")
        try:
            refusal = foresee(call)
            if refusal is not None:
                call.fail(*refusal)
        except Exception as error:  # noqa: BLE001 - as for a handler
            self.on_bug(call, error)
        self.counters.calls_total += stream.closed
        return not stream.closed

    def on_request(self, stream: Stream, body: bytes) -> None:
        head = cast("CallHead", stream.head.target)
        if head.many is not None and stream.head.problem is None:
            if head.many is not self._run_many:
                self.end_run()
                self._run_many = head.many
            stream.call = GATHERED
            self._run_streams.append(stream)
            self._run_bodies.append(body)
            return
        if self._run_streams:
            # What came before is handled before.
            self.end_run()
        self._begin(stream, head, body)

    def end_run(self) -> None:
        """Handle the calls that were gathered; to be called behind every portion of input."""
        streams, bodies = self._run_streams, self._run_bodies
        if not streams:
            return
        self._run_streams, self._run_bodies = [], []
        free = 0
        if len(streams) >= RUN_CALLS_MIN and not self._is_ending:
            router = self._router
            if router.guard is None:
                free = len(streams)
            elif router.free_calls is not None:
                free = router.free_calls(self.peer, len(streams))
        if free:
            self._begin_run(streams[:free], bodies[:free])
        for stream, body in zip(streams[free:], bodies[free:], strict=True):
            self._begin(stream, cast("CallHead", stream.head.target), body)

    def _begin_run(self, streams: list[Stream], bodies: list[bytes]) -> None:
        self.counters.calls_total += len(streams)
        places: list[Stream] = []
        messages: list[bytes] = []
        for stream, body in zip(streams, bodies, strict=True):
            try:
                message = only_message(body)
            except CallFailed as error:
                self.call_of(stream).fail(error.code, error.text)
                continue
            if not stream.closed:
                places.append(stream)
                messages.append(message)
        self.accepted += len(places)
        many = self._run_many
        assert many is not None
        try:
            many(CallRun(self, places, messages))
        except Exception as error:  # noqa: BLE001 - as for a handler; whoever waits is told
            for stream in places:
                if not stream.closed:
                    self.on_bug(self.call_of(stream), error)

    def _begin(self, stream: Stream, head: CallHead, body: bytes) -> None:
        """Let the guard see a call that came alone, and then its handler."""
        self.counters.calls_total += 1
        if head.handler is None or stream.head.problem is not None:
            self._refuse(stream, head)
            return
        call = Call(self, stream, head, b"")
        stream.call = call
        try:
            if head.is_stream:
                self._count_long()
            call.message = only_message(body)
            if head.timeout_s is not None:
                self._expect(call, head.timeout_s)
            if self._is_ending and head.is_fresh:
                self._hold(call)
            else:
                if self._router.guard is not None:
                    refusal = self._router.guard(call)
                    if refusal is not None:
                        call.fail(*refusal)
                        return
                self.accepted += 1
                head.handler(call, call.message)
        except CallFailed as error:
            call.fail(error.code, error.text)
        except Exception as error:  # noqa: BLE001 - a handler's bug is its call's status, no more
            self.on_bug(call, error)
        if call.deadline is not None and not stream.closed:
            self.timed[stream.sid] = call

    def handle(self, call: Call) -> None:
        """Give a call that may be served to its handler."""
        assert call.head.handler is not None
        try:
            call.head.handler(call, call.message)
        except CallFailed as error:
            call.fail(error.code, error.text)
        except Exception as error:  # noqa: BLE001 - as in `_begin`
            self.on_bug(call, error)

    def call_of(self, stream: Stream, message: bytes = b"") -> Call:
        """Return the call of a stream; one that was gathered gets its own object now."""
        call = stream.call
        if not isinstance(call, Call):
            call = Call(self, stream, cast("CallHead", stream.head.target), message)
            if not stream.closed:
                stream.call = call
        return call

    def on_refused(self, head: Head) -> None:
        self.counters.calls_total += 1
        stream = UnseenStream(0, head, 0)
        self._is_one_too_many(stream, cast("CallHead", head.target))

    def on_large(self, stream: Stream, bytes_max: int) -> None:
        # Clients retry RESOURCE_EXHAUSTED, a send for ever; this one never fits.
        text = f"message too large, the maximum is {bytes_max} bytes"
        self._turn_away(stream, Code.OUT_OF_RANGE, text)

    def on_excess(self, stream: Stream) -> None:
        self._turn_away(stream, Code.RESOURCE_EXHAUSTED, "too many unfinished requests")

    def refuse_late(self, streams: Iterable[Stream]) -> None:
        """Refuse requests that arrive too slowly."""
        for stream in streams:
            self._turn_away(stream, Code.DEADLINE_EXCEEDED, TOO_SLOW)

    def shed(self, streams: Iterable[Stream]) -> None:
        """Refuse the requests that are still arriving: the server holds too many bytes of such."""
        for stream in list(streams):
            if not stream.ended:
                self.on_excess(stream)

    def on_cancel(self, stream: Stream) -> None:
        call = stream.call
        if isinstance(call, Call):
            stream.call = None
            if call.head.is_stream:
                self.long_calls -= 1
            if self.held:
                self.held.pop(stream.sid, None)
            self.counters.cancelled_total += 1
            self._tell(call, call.on_cancel)
        elif call is GATHERED:
            stream.call = None
            # One with a status has its answer, which waited for a window.
            self.counters.cancelled_total += stream.code is None

    def on_ready(self, streams: Iterable[Stream]) -> None:
        """Let handlers write on."""
        for stream in streams:
            call = stream.call
            if isinstance(call, Call) and call.is_open:
                self._tell(call, call.on_ready)

    def expire(self, now: float) -> None:
        """End the calls whose clients no longer wait."""
        for sid, call in list(self.timed.items()):
            if not call.is_open:
                del self.timed[sid]
            elif call.deadline is not None and call.deadline <= now:
                del self.timed[sid]
                self._end(call, Code.DEADLINE_EXCEEDED, "deadline exceeded")

    def hold_fresh(self, streams: int) -> None:
        """Leave calls for fresh work without an answer from now on, until `part`.

        The first `streams` of messages are refused at once: a client that waits for one, as
        Danube's in Rust does, cannot ack meanwhile.
        """
        self._is_ending = True
        self._streams_spared += streams

    def part(self) -> None:
        """Refuse what was held, all at once, and whatever comes of the kind from now on."""
        self._is_ending = self._is_parting = True
        held = list(self.held.values())
        self.held.clear()
        for call in held:
            call.fail(Code.UNAVAILABLE, GOES_AWAY)

    def end_streams(self, streams: Iterable[Stream]) -> None:
        """End the streams of messages: this server goes away."""
        for stream in list(streams):
            call = stream.call
            if isinstance(call, Call) and call.head.is_stream:
                self._end(call, Code.UNAVAILABLE, GOES_AWAY)

    def recheck(self, streams: Iterable[Stream], check: Guard) -> None:
        """End the streams of messages that the guard no longer lets go on."""
        for stream in list(streams):
            call = stream.call
            if isinstance(call, Call) and call.head.is_stream and call.is_open:
                refusal = check(call)
                if refusal is not None:
                    self._end(call, *refusal)

    def end_all(self, streams: Iterable[Stream]) -> None:
        """End whatever is open: the time to drain is over."""
        for stream in list(streams):
            call = stream.call
            if call is GATHERED and stream.code is None:
                call = self.call_of(stream)
            if isinstance(call, Call):
                self._end(call, Code.UNAVAILABLE, GOES_AWAY)

    # -- inside ----------------------------------------------------------------------------------

    def _is_one_too_many(self, stream: Stream, head: CallHead) -> bool:
        """Have a call counted that no handler sees; return whether its client makes too many."""
        guard = self._router.guard
        if guard is None:
            return False
        call = Call(self, stream, attrs.evolve(head, path="", is_stream=False), b"")
        try:
            refusal = guard(call)
        except Exception as error:  # noqa: BLE001 - as for a handler
            self.on_bug(call, error)
            return False
        return refusal is not None and refusal[0] is Code.RESOURCE_EXHAUSTED

    def _turn_away(self, stream: Stream, code: Code, text: str) -> None:
        """Answer a call whose request was not read to its end, or is not looked at."""
        self.counters.calls_total += 1
        self._is_one_too_many(stream, cast("CallHead", stream.head.target))
        self.counters.statuses[code] += 1
        self.sender.finish(stream, code, status_text(text))

    def _refuse(self, stream: Stream, head: CallHead) -> None:
        if self._is_one_too_many(stream, head):
            self.counters.statuses[Code.RESOURCE_EXHAUSTED] += 1
            self.sender.finish(stream, Code.RESOURCE_EXHAUSTED, b"too many requests")
        elif head.refusal is not None:
            code, text = head.refusal
            self.counters.statuses[code] += 1
            self.sender.finish(stream, code, status_text(text))
        else:
            self.sender.plain(stream, head.plain_status)

    def _hold(self, call: Call) -> None:
        """Let a call wait for its refusal."""
        if self._is_parting:
            raise CallFailed(Code.UNAVAILABLE, GOES_AWAY)
        if call.head.is_stream:
            if self._streams_spared:
                self._streams_spared -= 1
                raise CallFailed(Code.UNAVAILABLE, GOES_AWAY)
            self.streams_held += 1
        self.held[call._stream.sid] = call  # noqa: SLF001 - a call is a part of this

    def _count_long(self) -> None:
        self.long_calls += 1
        if self._long_calls_max is not None and self.long_calls > self._long_calls_max:
            raise CallFailed(Code.RESOURCE_EXHAUSTED, TOO_MANY_STREAMS)

    def _expect(self, call: Call, seconds: float) -> None:
        call.deadline = self._clock.monotonic() + seconds
        if seconds <= 0:
            raise CallFailed(Code.DEADLINE_EXCEEDED, "deadline exceeded")

    def _end(self, call: Call, code: Code, text: str) -> None:
        """End a call in its handler's place, and tell the handler."""
        if call.is_open:
            call.is_ended_here = True
            call.fail(code, text)
            self._tell(call, call.on_cancel)

    def _tell(self, call: Call, callback: Callable[[], None] | None) -> None:
        if callback is None:
            return
        try:
            callback()
        except CallFailed as error:
            call.fail(error.code, error.text)
        except Exception as error:  # noqa: BLE001 - as for the handler itself
            self.on_bug(call, error)

    def on_bug(self, call: Call, error: BaseException) -> None:
        """Answer INTERNAL; the log gets the kind and the place, never the text (it may be data)."""
        self.counters.handler_errors_total += 1
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = "" if trace is None else f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
        warn("call_handler_failed", path=call.path, error=type(error).__name__, place=place)
        call.fail(Code.INTERNAL, "internal error")
