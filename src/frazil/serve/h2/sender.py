"""The output of a connection: answers, message streams, window updates, control frames.

Output is collected until `take`, which the protocol calls once per turn of the loop: one write for
all answers of the turn. `take` also cuts the messages of a stream into frames, as many as the
peer's windows allow. The sender never calls the application, so a handler may write from any
callback.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from frazil.serve.h2 import frames as f
from frazil.serve.h2.headers import ReplyBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.serve.h2.limits import ServerLimits
    from frazil.serve.h2.stream import Stream, StreamTable

_PREFIX: Final = struct.Struct(">BI")
_END_BOTH: Final = f.END_HEADERS | f.END_STREAM
_WHOLE_SIZES: Final = 64
_WHOLE: Final = tuple(
    (
        struct.Struct(f">5sI7sI5s{size}s5sIs").pack,
        bytes((0x88, 0xBF, *(0, 0, size + 5, f.DATA, 0))),
        _PREFIX.pack(0, size),
    )
    for size in range(_WHOLE_SIZES)
)
"""The constant bytes of a short answer between the stream's numbers, by message size."""
_WHOLE_BEGIN: Final = bytes((0, 0, 2, f.HEADERS, f.END_HEADERS))
_WHOLE_TAIL: Final = bytes((0, 0, 1, f.HEADERS, _END_BOTH))
_WHOLE_END: Final = b"\xbe"


class Sender:
    """The sending half of one connection.

    `on_dirty` is called when there is new output that the protocol may not know of; it must only
    record that.
    """

    def __init__(
        self, limits: ServerLimits, table: StreamTable, on_dirty: Callable[[], None]
    ) -> None:
        self.blocks = ReplyBlocks()
        self.window = f.WINDOW_DEFAULT
        self.stream_window = f.WINDOW_DEFAULT
        self.is_dirty = False
        self.is_paused = False
        """The transport's buffer is full: messages stay queued."""
        self.data_frames = 0
        """The number of DATA frames sent."""
        self.queued = 0
        """Bytes of queued messages."""
        self._limits = limits
        self._table = table
        self._on_dirty = on_dirty
        self._out: list[bytes | memoryview] = []
        self._writable: OrderedDict[int, Stream] = OrderedDict()
        self._ready: list[Stream] = []

    # -- answers ---------------------------------------------------------------------------------

    def reply(self, streams: Sequence[Stream], messages: Sequence[bytes]) -> int:
        """Answer complete requests, each with one message and OK; return how many were open."""
        out, table, is_short = self._out, self._table, self.blocks.are_short
        answered = 0
        for stream, message in zip(streams, messages, strict=True):
            if stream.closed or stream.code is not None:
                continue
            answered += 1
            length = len(message)
            size = length + 5
            if (
                not is_short
                or length >= _WHOLE_SIZES
                or size > self.window
                or size > stream.window
                or stream.begun
                or not stream.ended
            ):
                self._reply_in_frames(stream, message)
                is_short = self.blocks.are_short
                continue
            self.data_frames += 1
            self.window -= size
            sid = stream.sid
            pack, data_head, prefix = _WHOLE[length]
            # Few arguments: each costs as much as a small call.
            out.append(
                pack(
                    _WHOLE_BEGIN, sid, data_head, sid, prefix, message, _WHOLE_TAIL, sid, _WHOLE_END
                )
            )
            # As the table closes it; nothing of a body or a queue is left of such a stream.
            stream.closed = True
            del table.open[sid]
            table.header_bytes -= stream.head.size
            table.unanswered -= stream.size
        if out and not self.is_dirty:
            self._mark_dirty()
        return answered

    def _reply_in_frames(self, stream: Stream, message: bytes) -> None:
        size = len(message) + 5
        self.begin(stream)
        data = _PREFIX.pack(0, len(message)) + message
        if (
            size > f.FRAME_BYTES_DEFAULT
            or size > self.window
            or size > stream.window
            or stream.queued
        ):
            self._put(stream, data)
            self.finish(stream, 0)
        else:
            self.window -= size
            self.data_frames += 1
            self.emit(f.frame(f.DATA, 0, stream.sid, data))
            self._last(stream, self.blocks.good_end())

    def begin(self, stream: Stream) -> None:
        """Send the answer's HEADERS, if that has not been done."""
        if stream.closed or stream.begun:
            return
        stream.begun = True
        self._table.answer_begins(stream)
        self.emit(f.frame(f.HEADERS, f.END_HEADERS, stream.sid, self.blocks.begin()))

    def write(self, stream: Stream, messages: bytes) -> bool:
        """Queue messages with their prefixes; return False to stop until `ready`."""
        if stream.closed or stream.code is not None:
            return False
        self.begin(stream)
        self._put(stream, messages)
        stream.is_stopped = stream.queued >= self._allowance()
        return not stream.is_stopped

    def finish(self, stream: Stream, code: int, text: bytes = b"") -> None:
        """End the answer with a status, after the queued messages."""
        if stream.closed or stream.code is not None:
            return
        if not stream.begun:
            block = self.blocks.only_end(code, text)
            self._last(stream, block)
        elif not stream.queued:
            self._last(stream, self.blocks.end(code, text))
        else:
            stream.code = code
            stream.text = text
            stream.is_stopped = False
            self._writable[stream.sid] = stream
            self._mark_dirty()

    def plain(self, stream: Stream, status: int) -> None:
        """Answer a request that is not a call with an HTTP status."""
        if not stream.closed:
            self._last(stream, self.blocks.plain(status))

    def drop(self, stream: Stream) -> None:
        """Drop a stream that was reset, with its queued output."""
        self.queued -= stream.queued
        stream.queued = 0
        self._writable.pop(stream.sid, None)
        self._table.close(stream)

    # -- frames ----------------------------------------------------------------------------------

    def emit(self, data: bytes) -> None:
        """Send whole frames."""
        self._out.append(data)
        if not self.is_dirty:
            self._mark_dirty()

    def take(self) -> bytes:
        """Return all that can be sent now."""
        if self._writable and not self.is_paused:
            self._pump()
        self.is_dirty = False
        data = b"".join(self._out)
        self._out.clear()
        return data

    @property
    def has_more(self) -> bool:
        """Whether another `take` would return bytes without new input."""
        return bool(self._writable) and not self.is_paused and self.window > 0

    @property
    def has_ready(self) -> bool:
        """Whether `ready` would return a stream."""
        return bool(self._ready) and not self.is_paused

    def ready(self) -> list[Stream]:
        """Return the streams that were stopped and may write on, each once."""
        if self.is_paused:
            return []
        found, self._ready = self._ready, []
        return [
            stream
            for stream in found
            if not stream.closed and not stream.is_stopped and stream.code is None
        ]

    # -- windows ---------------------------------------------------------------------------------

    def widen(self, increment: int) -> None:
        """Add to the connection's window.

        Raises:
            ConnectionFailure: It is larger than a window may be.
        """
        self.window += increment
        is_allowed = self.window <= f.WINDOW_LARGEST
        f.require(is_allowed, f.ErrorCode.FLOW_CONTROL_ERROR, "window too large")
        self._mark_dirty()

    def widen_stream(self, stream: Stream, increment: int) -> bool:
        """Add to a stream's window; return False if it is larger than a window may be."""
        stream.window += increment
        if stream.queued and stream.window > 0:
            self._writable[stream.sid] = stream
            self._mark_dirty()
        return stream.window <= f.WINDOW_LARGEST

    def resize(self, size: int) -> None:
        """Take the peer's new size of windows: open streams change by the difference.

        Raises:
            ConnectionFailure: A window is larger than it may be.
        """
        difference = size - self.stream_window
        self.stream_window = size
        for stream in self._table.open.values():
            is_allowed = self.widen_stream(stream, difference)
            f.require(is_allowed, f.ErrorCode.FLOW_CONTROL_ERROR, "window too large")

    # -- inside ----------------------------------------------------------------------------------

    def _mark_dirty(self) -> None:
        if not self.is_dirty:
            self.is_dirty = True
            self._on_dirty()

    def _allowance(self) -> int:
        """Return the bytes a stream may have queued.

        When all of them together have many, each still has a frame, and in the end one message:
        those that the peer does not read must not stop those that it reads, or the next call.
        """
        limits = self._limits
        if self.queued < limits.connection_queue_bytes:
            return limits.stream_queue_bytes
        if self.queued < limits.queued_bytes_max // 2:
            return min(limits.stream_queue_bytes, f.FRAME_BYTES_DEFAULT)
        return 1

    def _put(self, stream: Stream, data: bytes) -> None:
        stream.put(data)
        self.queued += len(data)
        self._writable[stream.sid] = stream
        self._mark_dirty()

    def _last(self, stream: Stream, block: bytes) -> None:
        """End a stream with a header block; the peer may stop sending an unfinished request."""
        self.emit(f.frame(f.HEADERS, _END_BOTH, stream.sid, block))
        if not stream.ended:
            self.emit(f.reset(stream.sid, f.ErrorCode.NO_ERROR))
        self._writable.pop(stream.sid, None)
        self._table.close(stream)

    def _pump(self) -> None:
        """Cut queued messages into frames: each stream in turn, a bounded number of bytes."""
        left = self._limits.turn_bytes_max
        for _ in range(len(self._writable)):
            # All of these have queued output; without a window the others are skipped.
            if left <= 0 or self.window <= 0:
                return
            _, stream = self._writable.popitem(last=False)
            left -= self._pump_stream(stream, min(left, self._limits.stream_queue_bytes))
            if stream.queued:
                # At the end of the queue; a stream without window is queued again when it has one.
                if stream.window > 0:
                    self._writable[stream.sid] = stream
            elif stream.code is not None:
                self._last(stream, self.blocks.end(stream.code, stream.text))

    def _pump_stream(self, stream: Stream, limit: int) -> int:
        sent = 0
        while stream.queued and sent < limit:
            allowed = min(self.window, stream.window, f.FRAME_BYTES_DEFAULT, stream.queued)
            if allowed <= 0:
                break
            self.data_frames += 1
            self._out.append(f.head(allowed, f.DATA, 0, stream.sid))
            self._out += stream.pull(allowed)
            self.window -= allowed
            stream.window -= allowed
            sent += allowed
        self.queued -= sent
        if stream.is_stopped and stream.queued <= self._allowance() // 2:
            stream.is_stopped = False
            self._ready.append(stream)
        return sent
