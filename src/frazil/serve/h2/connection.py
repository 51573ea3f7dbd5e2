"""One server-side HTTP/2 connection without a socket: bytes in, application calls out.

`receive` has a fast path for cached HEADERS and for a DATA frame that is a whole request; `_frame`
handles every other frame, with the same outcome (RFC 9113, sections 5 and 6). A stream error resets
the stream; a connection error raises `ConnectionFailure`. The header block of every HEADERS frame
is decoded, also for refused and closed streams: otherwise the peer's header table and the server's
would differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import attrs

from frazil.serve.h2 import frames as f
from frazil.serve.h2.frames import ConnectionFailure, ErrorCode, require
from frazil.serve.h2.headers import Fields, Head, HeaderReader, trailers_problem
from frazil.serve.h2.sender import Sender
from frazil.serve.h2.stream import Stream, StreamTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.serve.h2.limits import ServerLimits


_SMALL_BYTES: Final = 64
"""A smaller DATA frame that does not end its stream costs more to read than it is worth."""
_SETTINGS_A_CONTROL: Final = 16
_STREAMS_A_CONTROL: Final = 64
_HEADER_BYTES_A_CONTROL: Final = 4_096
"""So many items, or header bytes, in one frame count as one more control frame."""
_CONTROLS: Final = "control frames"
_UPDATES: Final = "window updates"
_ALIVE_PING: Final = b"frzalive"


_OF_CONNECTION: Final = frozenset({f.SETTINGS, f.PING, f.GOAWAY})
_SIZES: Final = {f.RST_STREAM: 4, f.PING: 8, f.WINDOW_UPDATE: 4}


class _Rule(NamedTuple):
    """The range of a setting, and the error of a value out of it."""

    least: int
    most: int
    code: ErrorCode
    text: str


_SETTINGS: Final = {
    f.ENABLE_PUSH: _Rule(0, 1, ErrorCode.PROTOCOL_ERROR, "push is neither on nor off"),
    f.INITIAL_WINDOW_SIZE: _Rule(
        0, f.WINDOW_LARGEST, ErrorCode.FLOW_CONTROL_ERROR, "window too large"
    ),
    # A size in the range changes nothing: larger frames would make other streams wait.
    f.MAX_FRAME_SIZE: _Rule(
        f.FRAME_BYTES_DEFAULT,
        f.FRAME_BYTES_LARGEST,
        ErrorCode.PROTOCOL_ERROR,
        "frame size out of range",
    ),
}


class Application(Protocol):
    """The application that a connection calls. No method may raise; all may use the sender."""

    def resolve(self, fields: Fields) -> object:
        """Return the target of a request's headers; it is cached for equal headers."""

    def refuse_large(self) -> object:
        """Return the target of requests with too large headers."""

    def admits(self, stream: Stream) -> bool:
        """Return whether to keep a request until it is complete; answer it if not.

        Called once, with the first piece, for each request in several pieces.
        """

    def on_request(self, stream: Stream, body: bytes) -> None:
        """Handle a complete request."""

    def on_refused(self) -> None:
        """Count a request that the connection has no room for."""

    def on_large(self, stream: Stream, bytes_max: int) -> None:
        """Answer a request that is larger than any may be."""

    def on_excess(self, stream: Stream) -> None:
        """Answer a request beyond the limit of incomplete ones."""

    def on_cancel(self, stream: Stream) -> None:
        """Forget a request that was cancelled; its stream is closed."""


@attrs.define
class PartialBlock:
    """A header block with outstanding CONTINUATION frames."""

    sid: int
    ends: bool
    depends_on_itself: bool
    data: bytearray
    frames: int = 1


class Connection:
    """One server side connection; feed it with `receive`, send what `sender.take` gives.

    Not thread-safe: all calls belong to the event loop's thread.
    """

    def __init__(
        self, limits: ServerLimits, application: Application, on_dirty: Callable[[], None]
    ) -> None:
        self.limits = limits
        self.application = application
        self.table = StreamTable(limits)
        self.sender = Sender(limits, self.table, on_dirty)
        self.headers = HeaderReader(limits, application.resolve, application.refuse_large)
        self.credit = limits.connection_window
        """Bytes of DATA that the peer may still send."""
        self._credit_low = limits.connection_window // 2
        self.short_bytes_max = min(f.FRAME_BYTES_DEFAULT, limits.message_bytes_max + 5)
        self.is_over = False
        self.is_refusing = False
        """After the GOAWAY: new streams of the peer are ignored."""
        self.is_crowded = False
        """The whole server has no room for another stream."""
        self.failure = ""
        self._buffer = b""
        self._has_preface = False
        self.is_greeted = False
        """Whether the peer has sent a valid HTTP/2 preface."""
        self._partial: PartialBlock | None = None
        self._most = {_CONTROLS: limits.controls_max, _UPDATES: limits.window_updates_max}
        self._paid = dict.fromkeys(self._most, 0)
        self._kinds = {
            f.DATA: self._on_data,
            f.HEADERS: self._on_headers,
            f.PRIORITY: self._on_priority,
            f.RST_STREAM: self._on_reset,
            f.SETTINGS: self._on_settings,
            f.PUSH_PROMISE: self._on_push,
            f.PING: self._on_ping,
            f.GOAWAY: self._on_goaway,
            f.WINDOW_UPDATE: self._on_window_update,
            f.CONTINUATION: self._on_continuation,
        }
        self.tick()
        self.sender.emit(
            f.settings(
                {
                    f.MAX_CONCURRENT_STREAMS: limits.streams_max,
                    f.INITIAL_WINDOW_SIZE: limits.stream_window,
                    f.MAX_HEADER_LIST_SIZE: limits.header_bytes_max,
                }
            )
            + f.window_update(0, limits.connection_window - f.WINDOW_DEFAULT)
        )

    def receive(self, data: bytes) -> bool:
        """Take bytes of the peer; return False when the connection is over (send, then close)."""
        if self.is_over:
            return False
        # The caller calls `take` after this, so it needs no notice.
        self.sender.is_dirty = True
        if self._buffer:
            data = self._buffer + data
        position = 0
        try:
            if not self._has_preface:
                position = self._preface(data)
            if self._has_preface:
                position = self._frames(data, position)
        except ConnectionFailure as failure:
            self._buffer = b""
            self.fail(failure.code, failure.text)
            return False
        self._buffer = data[position:]
        return not self.is_over

    def tick(self) -> None:
        """Grant the control frames of one tick."""
        self._resets_left = self.limits.resets_max
        self._last_before = self.table.last
        self._left = dict(self._most)

    def ping(self) -> None:
        """Ping the peer."""
        self.sender.emit(f.ping(_ALIVE_PING))

    def fail(self, code: ErrorCode, text: str) -> None:
        """End the connection with a GOAWAY; all its calls are cancelled."""
        if not self.is_over:
            self.is_over = True
            self.failure = text
            self.sender.emit(f.goaway(max(self.table.last, 0), code, text))
            self.cancel_all()

    def cancel_all(self) -> None:
        """Cancel every open call: the peer has disconnected."""
        self.is_over = True
        for stream in list(self.table.open.values()):
            self.sender.drop(stream)
            self.application.on_cancel(stream)

    def go_away(self) -> None:
        """Refuse new streams from now on; open calls continue."""
        if not self.is_over and not self.is_refusing:
            self.is_refusing = True
            last = max(self.table.last, 0)
            self.sender.emit(f.goaway(last, ErrorCode.NO_ERROR, "shutting down"))

    def has_room(self) -> bool:
        """Return whether one more call may be taken."""
        limits = self.limits
        return (
            len(self.table.open) < limits.streams_max
            and self.table.header_bytes <= limits.open_header_bytes_max
            and self.sender.queued <= limits.queued_bytes_max
            and not self.is_crowded
            and not self.is_refusing
        )

    # -- the short way ---------------------------------------------------------------------------

    def _preface(self, buffer: bytes) -> int:
        if buffer.startswith(f.PREFACE):
            self._has_preface = True
            return len(f.PREFACE)
        if not f.PREFACE.startswith(buffer):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "this port speaks gRPC")
        return 0

    def _frames(self, buffer: bytes, position: int) -> int:
        """Handle all whole frames from `position` on; return where an incomplete one begins."""
        unpack = f.HEAD.unpack_from
        cache = self.headers.cache
        table = self.table
        open_streams = table.open
        window = self.limits.stream_window
        end = len(buffer)
        while end - position >= 9:
            high, low, kind, flags, sid = unpack(buffer, position)
            start = position + 9
            size = high << 8 | low
            stop = start + size
            if size > f.FRAME_BYTES_DEFAULT:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame too large")
            if stop > end:
                break
            position = stop
            if kind == 0 and flags == 1:
                stream = open_streams.get(sid)
                if (
                    stream is not None
                    and stream.body is None
                    and not stream.ended
                    and size <= self.short_bytes_max
                    and size <= stream.credit
                    and stream.head.content_length in {-1, size}
                    and self._partial is None
                ):
                    self.credit -= size
                    if self.credit < self._credit_low:
                        self._grant()
                    stream.ended = True
                    stream.size = size
                    table.unanswered += size
                    self.application.on_request(stream, buffer[start:stop])
                    continue
            elif kind == 1 and flags == 4 and sid == table.last + 2:
                head = cache.get(buffer[start:stop])
                if (
                    head is not None
                    # A reserved bit is none of the number.
                    and sid <= f.STREAM_LARGEST
                    and head.problem is None
                    and self._partial is None
                    and self.has_room()
                ):
                    table.last = sid
                    stream = Stream(sid, head, self.sender.stream_window)
                    stream.credit = window
                    open_streams[sid] = stream
                    table.header_bytes += head.size
                    continue
            self._frame(kind, flags, sid & 0x7FFFFFFF, buffer[start:stop])
        return position

    def _frame(self, kind: int, flags: int, sid: int, payload: bytes) -> None:
        """Handle one frame.

        Raises:
            ConnectionFailure: The connection cannot continue.
        """
        if not self.is_greeted and (kind != f.SETTINGS or flags & f.ACK):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "settings must come first")
        if self._partial is not None and kind != f.CONTINUATION:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "header block interrupted")
        if sid and kind in _OF_CONNECTION:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "frame of the connection on a stream")
        if len(payload) != _SIZES.get(kind, len(payload)):
            raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "frame of another size")
        handler = self._kinds.get(kind)
        if handler is None:
            self._count(_CONTROLS)
        else:
            handler(flags, sid, payload)

    def _grant(self) -> None:
        """Send a window update: half of the window is used.

        Raises:
            ConnectionFailure: The peer sent more than the window allows.
        """
        if self.credit < 0:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "connection window exceeded")
        self.sender.emit(f.window_update(0, self.limits.connection_window - self.credit))
        self.credit = self.limits.connection_window

    # -- requests --------------------------------------------------------------------------------

    def _on_headers(self, flags: int, sid: int, payload: bytes) -> None:
        require(sid % 2 == 1, ErrorCode.PROTOCOL_ERROR, "headers on a stream of the server")
        block = f.unpad(payload) if flags & f.PADDED else payload
        depends = False
        if flags & f.PRIORITISED:
            require(len(block) >= 5, ErrorCode.FRAME_SIZE_ERROR, "headers without priority")
            depends = _depends_on(block) == sid
            block = block[5:]
        ends = bool(flags & f.END_STREAM)
        if flags & f.END_HEADERS:
            self._on_block(sid, block, ends=ends, depends_on_itself=depends)
        else:
            self._partial = PartialBlock(sid, ends, depends, bytearray(block))

    def _on_continuation(self, flags: int, sid: int, payload: bytes) -> None:
        partial = self._partial
        if partial is None or partial.sid != sid:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "continuation of nothing")
        partial.data += payload
        partial.frames += 1
        limits = self.limits
        most = max(limits.header_bytes_read_max, limits.header_bytes_max)
        is_small = len(partial.data) <= most and partial.frames <= limits.continuations_max
        require(is_small, ErrorCode.ENHANCE_YOUR_CALM, "header block too large")
        if flags & f.END_HEADERS:
            self._partial = None
            self._on_block(
                sid,
                bytes(partial.data),
                ends=partial.ends,
                depends_on_itself=partial.depends_on_itself,
            )

    def _on_block(self, sid: int, block: bytes, *, ends: bool, depends_on_itself: bool) -> None:
        head = self.headers.cache.get(block)
        if head is None:
            head = self.headers.read(block)
            self._count(_CONTROLS, head.size // _HEADER_BYTES_A_CONTROL)
        table = self.table
        stream = table.open.get(sid)
        if stream is not None:
            self._on_trailers(stream, head, ends=ends)
        elif sid > table.last:
            table.advance(sid)
            if depends_on_itself or head.problem is not None:
                self._refuse(sid, ErrorCode.PROTOCOL_ERROR, ended=ends)
            elif not self.has_room():
                self.application.on_refused()
                self._refuse(sid, ErrorCode.REFUSED_STREAM, ended=ends)
            else:
                self._open(sid, head, ended=ends)
        elif not table.late(sid, ends=ends):
            unused = table.was_left_out(sid)
            require(not unused, ErrorCode.PROTOCOL_ERROR, "headers on a stream that was left out")
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, "headers on a closed stream")

    def _open(self, sid: int, head: Head, *, ended: bool) -> None:
        stream = Stream(sid, head, self.sender.stream_window)
        stream.credit = self.limits.stream_window
        self.table.add(stream)
        if ended:
            self._end(stream)

    def _on_trailers(self, stream: Stream, head: Head, *, ends: bool) -> None:
        is_open = not stream.ended
        require(is_open, ErrorCode.STREAM_CLOSED, "headers after the end of a request")
        if not ends or head.is_large or trailers_problem(head.fields) is not None:
            self._reset(stream.sid, ErrorCode.PROTOCOL_ERROR)
        else:
            self._end(stream)

    def _on_data(self, flags: int, sid: int, payload: bytes) -> None:
        if self.table.is_idle(sid):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "data on an idle stream")
        self.credit -= len(payload)
        if self.credit < self._credit_low:
            self._grant()
        data = f.unpad(payload) if flags & f.PADDED else payload
        ends = bool(flags & f.END_STREAM)
        if len(data) < _SMALL_BYTES and not ends:
            self._count(_CONTROLS)
        stream = self.table.open.get(sid)
        if stream is None:
            if not self.table.late(sid, ends=ends):
                raise ConnectionFailure(ErrorCode.STREAM_CLOSED, "data on a closed stream")
            return
        if stream.ended:
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, "data after the end of a request")
        stream.credit -= len(payload)
        if stream.credit < 0:
            self._reset(stream.sid, ErrorCode.FLOW_CONTROL_ERROR)
            return
        self._gather(stream, data, ends=ends)

    def _gather(self, stream: Stream, data: bytes, *, ends: bool) -> None:
        """Add to a request; end it, refuse it, or let the peer send more of it."""
        limits = self.limits
        body = stream.body
        if body is None:
            if not ends and not self.application.admits(stream):
                return
            body = stream.body = bytearray()
        body += data
        stream.size += len(data)
        self.table.unfinished += len(data)
        if ends:
            self._end(stream)
        elif -1 < stream.head.content_length < stream.size:
            self._reset(stream.sid, ErrorCode.PROTOCOL_ERROR)
        elif stream.size > limits.message_bytes_max + 5:
            self.application.on_large(stream, limits.message_bytes_max)
        elif self.table.unfinished > limits.unfinished_bytes_max:
            self.application.on_excess(stream)
        elif stream.credit < limits.stream_window // 2:
            self.sender.emit(f.window_update(stream.sid, limits.stream_window - stream.credit))
            stream.credit = limits.stream_window

    def _end(self, stream: Stream) -> None:
        """Pass a complete request to the application."""
        self.table.end(stream)
        if stream.head.content_length not in {-1, stream.size}:
            self._reset(stream.sid, ErrorCode.PROTOCOL_ERROR)
            return
        body = bytes(stream.body or b"")
        stream.body = None
        if len(body) > self.limits.message_bytes_max + 5:
            self.application.on_large(stream, self.limits.message_bytes_max)
        else:
            self.application.on_request(stream, body)

    def _refuse(self, sid: int, code: ErrorCode, *, ended: bool) -> None:
        """Reset a stream that was never opened."""
        self._reset(sid, code)
        if not ended:
            self.table.expect_late(sid)

    def _reset(self, sid: int, code: ErrorCode) -> None:
        """Reset a stream, open or not, because of a peer's error."""
        self._count_reset()
        self.sender.emit(f.reset(sid, code))
        stream = self.table.open.get(sid)
        if stream is not None:
            self.sender.drop(stream)
            self.application.on_cancel(stream)

    # -- control ---------------------------------------------------------------------------------

    def _on_reset(self, _flags: int, sid: int, _payload: bytes) -> None:
        is_idle = self.table.is_idle(sid)
        require(not is_idle, ErrorCode.PROTOCOL_ERROR, "reset of an idle stream")
        stream = self.table.open.get(sid)
        if stream is None or sid > self._last_before:
            self._count_reset()
        if stream is None:
            self.table.late(sid, ends=True)
            return
        # The reset ends it: no frame of it may follow.
        if not stream.ended:
            self.table.end(stream)
        self.sender.drop(stream)
        self.application.on_cancel(stream)

    def _on_settings(self, flags: int, _sid: int, payload: bytes) -> None:
        self._count(_CONTROLS)
        if flags & f.ACK:
            require(not payload, ErrorCode.FRAME_SIZE_ERROR, "settings in an answer")
            return
        require(len(payload) % 6 == 0, ErrorCode.FRAME_SIZE_ERROR, "settings cut short")
        self.is_greeted = True
        window = self.sender.stream_window
        for position, (name, value) in enumerate(f.settings_items(payload), 1):
            if not position % _SETTINGS_A_CONTROL:
                self._count(_CONTROLS)
            rule = _SETTINGS.get(name)
            if rule is not None:
                require(rule.least <= value <= rule.most, rule.code, rule.text)
            if name == f.INITIAL_WINDOW_SIZE:
                window = value
            elif name == f.HEADER_TABLE_SIZE:
                self.sender.blocks.peer_table(value)
        if window != self.sender.stream_window:
            # Only the last one is applied: to change the windows of all streams is work.
            self._count(_CONTROLS, len(self.table.open) // _STREAMS_A_CONTROL)
            self.sender.resize(window)
        self.sender.emit(f.SETTINGS_ACK)

    def _on_ping(self, flags: int, _sid: int, payload: bytes) -> None:
        self._count(_CONTROLS)
        if not flags & f.ACK:
            self.sender.emit(f.ping(payload, ack=True))

    def _on_goaway(self, _flags: int, _sid: int, payload: bytes) -> None:
        require(len(payload) >= 8, ErrorCode.FRAME_SIZE_ERROR, "goaway cut short")
        # The peer opens no more streams; those that are open are answered.
        self._count(_CONTROLS)

    def _on_window_update(self, _flags: int, sid: int, payload: bytes) -> None:
        if sid and self.table.is_idle(sid):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "window of an idle stream")
        self._count(_UPDATES)
        increment = int.from_bytes(payload) & 0x7FFFFFFF
        if not sid:
            require(increment > 0, ErrorCode.PROTOCOL_ERROR, "window update of nothing")
            self.sender.widen(increment)
            return
        stream = self.table.open.get(sid)
        if stream is None:
            return
        if not increment:
            self._reset(stream.sid, ErrorCode.PROTOCOL_ERROR)
        elif not self.sender.widen_stream(stream, increment):
            self._reset(stream.sid, ErrorCode.FLOW_CONTROL_ERROR)

    def _on_priority(self, _flags: int, sid: int, payload: bytes) -> None:
        require(sid > 0, ErrorCode.PROTOCOL_ERROR, "priority of no stream")
        self._count(_CONTROLS)
        if len(payload) != 5:
            self._reset(sid, ErrorCode.FRAME_SIZE_ERROR)
        elif _depends_on(payload) == sid:
            self._reset(sid, ErrorCode.PROTOCOL_ERROR)

    @staticmethod
    def _on_push(_flags: int, _sid: int, _payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "clients do not push")

    # -- floods ----------------------------------------------------------------------------------

    # Clients answer data with pings (to measure the round trip) and window updates: when an
    # allowance is used up, each DATA frame sent since then grants one more.

    def _count(self, what: str, count: int = 1) -> None:
        for _ in range(count):
            if not self._left[what]:
                sent = self.sender.data_frames
                self._left[what] = min(sent - self._paid[what], self._most[what])
                self._paid[what] = sent
                if not self._left[what]:
                    raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}")
            self._left[what] -= 1

    def _count_reset(self) -> None:
        self._resets_left -= 1
        if self._resets_left < 0:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too many resets")


def _depends_on(payload: bytes) -> int:
    return int.from_bytes(payload[:4]) & 0x7FFFFFFF
