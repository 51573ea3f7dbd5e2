"""Calls: the object that a handler answers through, and the dispatch of requests to handlers.

The handler gets the calls of one method in one read as a run: a run saves, for each call, the
object, the guard's check and the separate answer.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import attrs

from frazil.serve.grpc.codec import CallFailed, Code, only_message, status_text
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from frazil.serve.grpc.router import CallHead, Guard, Router, RunHandler
    from frazil.serve.h2.headers import Fields
    from frazil.serve.h2.sender import Sender
    from frazil.serve.h2.stream import Stream


GOES_AWAY: Final = "server is shutting down"
TOO_SLOW: Final = "the request arrives too slowly"
TOO_MANY_STREAMS: Final = "too many streams on this connection, open another one"
_KEPT_BYTES_MAX: Final = 1024
"""A server stream keeps its request's message up to this size."""
_RUN_CALLS_MIN: Final = 2


@attrs.define
class Counters:
    """A server's counters since its start; only `connections` can decrease."""

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


GATHERED: Final = object()
"""The `call` of a stream that belongs to a run and has no separate object."""


class Call:
    """One call, from its request to its status. All methods belong to the event loop's thread.

    Answer once: output after the status, or after the client has disconnected, is dropped.
    `on_cancel` is called when the client cancels the call; `on_ready` when writing may continue
    after a `write` that returned False. Neither is called from inside a method of the call.
    """

    on_ready: Callable[[], None] | None = None
    on_cancel: Callable[[], object] | None = None

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
    def peer(self) -> str:
        """Return the client's address."""
        return self._calls.peer

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
            calls.sender.reply((stream,), (message,))
            self._detach()

    def fail(self, code: Code, text: str) -> None:
        """End with a status, after the messages written before."""
        if self.is_open:
            self._calls.end_with(self._stream, code, text)
            self._detach()

    def finish(self, code: Code = Code.OK, text: str = "") -> None:
        """End a stream with a status, after the messages written before."""
        self.fail(code, text)

    def break_off(self, error: BaseException) -> None:
        """End with INTERNAL because of a bug of ours, which is logged."""
        self._calls.on_bug(self, error)

    def begin(self) -> None:
        """Send the answer's HEADERS at once, before there is a message.

        A large request message is released, as a stream may stay open indefinitely.
        """
        if len(self.message) > _KEPT_BYTES_MAX:
            self.message = b""
        self._calls.sender.begin(self._stream)

    def write(self, framed: bytes) -> bool:
        """Send messages, each with its prefix of five bytes; return False to stop for now.

        The messages are accepted in either case; after False write nothing before `on_ready`, or at
        all if the call is over.
        """
        return self._calls.sender.write(self._stream, framed)

    def _detach(self) -> None:
        """Break the reference cycle with the stream."""
        calls = self._calls
        self._stream.call = None
        if self.head.is_stream:
            calls.long_calls -= 1


class CallRun:
    """Calls of one method, in the order they came. All methods belong to the loop's thread.

    `messages[i]` is the message of `streams[i]`. Each call is answered once, by `ok_all`, by
    `fail_all`, or `apart` by the handler of single calls; later answers, and those after the client
    has disconnected, are dropped.
    """

    __slots__ = ("_calls", "messages", "streams")

    def __init__(self, calls: Calls, streams: list[Stream], messages: list[bytes]) -> None:
        self._calls = calls
        self.streams = streams
        self.messages = messages

    def apart(self, at: int) -> None:
        """Let the handler of single calls have one of them."""
        self._calls.handle(self.call(self.streams[at], self.messages[at]))

    def call(self, stream: Stream, message: bytes = b"") -> Call:
        """Return one call of the run as a separate object."""
        return self._calls.call_of(stream, message)

    def ok_all(self, streams: list[Stream], replies: list[bytes]) -> None:
        """Answer some of them, each with one message and the status OK."""
        calls = self._calls
        calls.counters.statuses[0] += calls.sender.reply(streams, replies)

    def fail_all(self, streams: list[Stream], code: Code, text: str) -> None:
        """End some of them with a status."""
        for stream in streams:
            if not stream.closed and stream.code is None:
                self._calls.end_with(stream, code, text)


class Calls:
    """The application of one connection: requests to handlers, their errors to statuses."""

    def __init__(
        self,
        router: Router,
        counters: Counters,
        *,
        peer: str,
        long_calls_max: int = sys.maxsize,
    ) -> None:
        self.peer = peer
        self.counters = counters
        self.sender: Sender
        """Set when the connection is made: each refers to the other."""
        self.accepted = 0
        """Calls that the guard allowed."""
        self.long_calls = 0
        """Open server streams."""
        self._long_calls_max = long_calls_max
        self.is_ending = False
        """The server stops: calls for new work are refused from now on."""
        self._router = router
        self._run_many: RunHandler | None = None
        self._run_streams: list[Stream] = []
        self._run_bodies: list[bytes] = []

    def resolve(self, fields: Fields) -> CallHead:
        return self._router.resolve(fields)

    def refuse_large(self) -> CallHead:
        return self._router.large

    def admits(self, stream: Stream) -> bool:
        """Refuse a request before it is complete if its headers are enough to refuse it."""
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

        def refuse() -> None:
            refusal = foresee(call)
            if refusal is not None:
                call.fail(*refusal)

        self._attempt(call, refuse)
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
            # Calls are handled in the order they came.
            self.end_run()
        self._begin(stream, head, body)

    def end_run(self) -> None:
        """Handle the calls that were gathered; called after each portion of input."""
        streams, bodies = self._run_streams, self._run_bodies
        if not streams:
            return
        self._run_streams, self._run_bodies = [], []
        free = 0
        if len(streams) >= _RUN_CALLS_MIN and not self.is_ending:
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
        valid: list[Stream] = []
        messages: list[bytes] = []
        for stream, body in zip(streams, bodies, strict=True):
            try:
                message = only_message(body)
            except CallFailed as error:
                self.call_of(stream).fail(error.code, error.text)
                continue
            if not stream.closed:
                valid.append(stream)
                messages.append(message)
        self.accepted += len(valid)
        many = self._run_many
        assert many is not None
        try:
            many(CallRun(self, valid, messages))
        except Exception as error:  # noqa: BLE001 - as for a handler
            for stream in valid:
                if not stream.closed:
                    self.on_bug(self.call_of(stream), error)

    def _begin(self, stream: Stream, head: CallHead, body: bytes) -> None:
        """Pass a single call to the guard, then to its handler."""
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
            guard, refusal = self._router.guard, None
            if self.is_ending and head.is_fresh:
                refusal = Code.UNAVAILABLE, GOES_AWAY
            elif guard is not None:
                refusal = guard(call)
            if refusal is not None:
                call.fail(*refusal)
                return
            self.accepted += 1
            head.handler(call, call.message)
        except CallFailed as error:
            call.fail(error.code, error.text)
        except Exception as error:  # noqa: BLE001 - a handler's bug is its call's status, no more
            self.on_bug(call, error)

    def handle(self, call: Call) -> None:
        """Call the handler of a call that the guard allowed."""
        assert call.head.handler is not None
        self._attempt(call, partial(call.head.handler, call, call.message))

    def call_of(self, stream: Stream, message: bytes = b"") -> Call:
        """Return the call of a stream; a call of a run gets its own object now."""
        call = stream.call
        if not isinstance(call, Call):
            call = Call(self, stream, cast("CallHead", stream.head.target), message)
            if not stream.closed:
                stream.call = call
        return call

    def end_with(self, stream: Stream, code: Code, text: str) -> None:
        """End an open call with a status."""
        self.counters.statuses[code] += 1
        self.sender.finish(stream, code, status_text(text))

    def on_refused(self) -> None:
        self.counters.calls_total += 1

    def on_large(self, stream: Stream, bytes_max: int) -> None:
        # Clients retry RESOURCE_EXHAUSTED, a send forever; this one never fits.
        text = f"message too large, the maximum is {bytes_max} bytes"
        self._turn_away(stream, Code.OUT_OF_RANGE, text)

    def on_excess(self, stream: Stream) -> None:
        self._turn_away(stream, Code.RESOURCE_EXHAUSTED, "too many unfinished requests")

    def refuse_late(self, streams: Iterable[Stream]) -> None:
        """Refuse requests that did not become complete in time."""
        for stream in streams:
            self._turn_away(stream, Code.DEADLINE_EXCEEDED, TOO_SLOW)

    def on_cancel(self, stream: Stream) -> None:
        call = stream.call
        if isinstance(call, Call):
            stream.call = None
            if call.head.is_stream:
                self.long_calls -= 1
            self.counters.cancelled_total += 1
            self._attempt(call, call.on_cancel)
        elif call is GATHERED:
            stream.call = None
            # A stream with a status has its answer, which waited for a window.
            self.counters.cancelled_total += stream.code is None

    def on_ready(self, streams: Iterable[Stream]) -> None:
        """Request more messages from handlers."""
        for stream in streams:
            call = stream.call
            if isinstance(call, Call) and call.is_open:
                self._attempt(call, call.on_ready)

    def recheck(self, streams: Iterable[Stream], check: Guard) -> None:
        """End the server streams that the guard no longer allows."""
        for stream in list(streams):
            call = stream.call
            if isinstance(call, Call) and call.head.is_stream and call.is_open:
                refusal = check(call)
                if refusal is not None:
                    self._end(call, *refusal)

    def end_all(self, streams: Iterable[Stream], *, only_streams: bool = False) -> None:
        """End all calls, or only the server streams: the server stops."""
        for stream in list(streams):
            call = stream.call
            if call is GATHERED and stream.code is None:
                call = self.call_of(stream)
            if isinstance(call, Call) and (call.head.is_stream or not only_streams):
                self._end(call, Code.UNAVAILABLE, GOES_AWAY)

    # -- inside ----------------------------------------------------------------------------------

    def _turn_away(self, stream: Stream, code: Code, text: str) -> None:
        """Answer a call that no handler sees."""
        self.counters.calls_total += 1
        self.end_with(stream, code, text)

    def _refuse(self, stream: Stream, head: CallHead) -> None:
        if head.refusal is not None:
            self.end_with(stream, *head.refusal)
        else:
            self.sender.plain(stream, head.plain_status)

    def _count_long(self) -> None:
        self.long_calls += 1
        if self.long_calls > self._long_calls_max:
            raise CallFailed(Code.RESOURCE_EXHAUSTED, TOO_MANY_STREAMS)

    def _end(self, call: Call, code: Code, text: str) -> None:
        """End a call and notify its handler."""
        if call.is_open:
            call.fail(code, text)
            self._attempt(call, call.on_cancel)

    def _attempt(self, call: Call, work: Callable[[], object] | None) -> None:
        """Call a handler's callback, if it is set; an error that it raises becomes the status."""
        try:
            if work is not None:
                work()
        except CallFailed as error:
            call.fail(error.code, error.text)
        except Exception as error:  # noqa: BLE001 - a handler's bug is its call's status, no more
            self.on_bug(call, error)

    def on_bug(self, call: Call, error: BaseException) -> None:
        """Answer INTERNAL; log the error's type and line, never its text (it may be data)."""
        self.counters.handler_errors_total += 1
        warn(
            "call_handler_failed", path=call.path, error=type(error).__name__, place=place_of(error)
        )
        call.fail(Code.INTERNAL, "internal error")


def place_of(error: BaseException | None) -> str:
    """Return the function and line that raised an error."""
    trace = None if error is None else error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_name}:{trace.tb_lineno}"
