"""What a connection receives: bytes in any portions, calls of the application out.

HEADERS that were seen before and a DATA frame that is all of a request go the short way in
`receive`; every other frame goes through `reception`, with the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from frazil.serve.h2 import frames as f
from frazil.serve.h2.reception import Application, Reception
from frazil.serve.h2.stream import Stream

if TYPE_CHECKING:
    from frazil.serve.h2.limits import ServerLimits

_DRAIN_PING: Final = b"frzdrain"
_ALIVE_PING: Final = b"frzalive"


class Connection(Reception):
    """One server side connection; feed it with `receive`, send what `sender.take` gives.

    Not safe for threads: all calls belong to the thread of the event loop.
    """

    def __init__(
        self, limits: ServerLimits, application: Application, on_dirty: Callable[[], None]
    ) -> None:
        super().__init__(limits, application, on_dirty)
        self._buffer = b""
        self._has_preface = False
        self._has_left = False
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
        # Whoever feeds the connection takes afterwards: no need to be told.
        self.sender.is_dirty = True
        buffer = self._buffer + data if self._buffer else data
        try:
            position = self._preface(buffer)
            if self._has_preface:
                position = self._frames(buffer, position)
        except f.ConnectionFailure as failure:
            self._buffer = b""
            self.fail(failure.code, failure.text)
            return False
        self._buffer = buffer[position:]
        return not self.is_over

    @property
    def has_input(self) -> bool:
        """Whether bytes wait for their turn: `receive` goes on with them, given nothing."""
        return self._has_left and not self.is_over

    @property
    def is_greeted(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2."""
        return self._has_settings

    def tick(self) -> None:
        """Let the peer send as many frames of control again as are allowed in a tick."""
        self.refill()

    def ping(self) -> None:
        """Ask the peer for a sign of life."""
        self.sender.emit(f.ping(_ALIVE_PING))

    def fail(self, code: f.ErrorCode, text: str) -> None:
        """End the connection with a GOAWAY; all its calls are cancelled."""
        if not self.is_over:
            self.is_over = True
            self.failure = text
            self.sender.emit(f.goaway(max(self.table.last, 0), code, text))
            self.cancel_all()

    def cancel_all(self) -> None:
        """Cancel every open call: nobody is there for the answer."""
        self.is_over = True
        for stream in list(self.table.open.values()):
            self.sender.drop(stream)
            self.application.on_cancel(stream)

    def begin_drain(self) -> None:
        """Tell the peer that this connection will end; calls on their way are still taken."""
        if not self.is_over and not self.is_draining:
            self.is_draining = True
            self.sender.emit(f.goaway(f.STREAM_LARGEST, f.ErrorCode.NO_ERROR, "shutting down"))
            self.sender.emit(f.ping(_DRAIN_PING))

    def finish_drain(self) -> None:
        """Refuse what comes from now on: the peer has had the time of a round trip."""
        if not self.is_over and self.is_draining and not self.is_refusing:
            self.is_refusing = True
            self.sender.emit(f.goaway(max(self.table.last, 0), f.ErrorCode.NO_ERROR))

    def on_ping_answer(self, payload: bytes) -> None:
        if payload == _DRAIN_PING:
            self.finish_drain()

    # -- inside ----------------------------------------------------------------------------------

    def _preface(self, buffer: bytes) -> int:
        if self._has_preface:
            return 0
        if buffer.startswith(f.PREFACE):
            self._has_preface = True
            return len(f.PREFACE)
        if not f.PREFACE.startswith(buffer):
            raise f.ConnectionFailure(f.ErrorCode.PROTOCOL_ERROR, "this port speaks gRPC")
        return 0

    def _frames(self, buffer: bytes, position: int) -> int:
        """Handle all whole frames from `position` on; return where the first part of one begins.

        It stops before, with `has_input`, when headers have cost as much as they may in a turn.
        """
        unpack = f.HEAD.unpack_from
        headers = self.headers
        cache = headers.cache
        headers.work = 0
        self._has_left = False
        table = self.table
        open_streams = table.open
        end = len(buffer)
        while end - position >= 9:
            high, low, kind, flags, sid = unpack(buffer, position)
            start = position + 9
            size = high << 8 | low
            stop = start + size
            if size > f.FRAME_BYTES_DEFAULT:
                raise f.ConnectionFailure(f.ErrorCode.FRAME_SIZE_ERROR, "frame too large")
            if stop > end:
                break
            if kind == 0 and flags == 1:
                stream = open_streams.get(sid)
                if stream is not None and self._is_whole(stream, size):
                    self._take_whole(stream, size, buffer[start:stop])
                    position = stop
                    continue
            elif kind == 1 and flags == 4 and sid == table.last + 2:
                head = cache.get(buffer[start:stop])
                if (
                    head is not None
                    # A reserved bit is none of the number.
                    and sid <= f.STREAM_LARGEST
                    and head.problem is None
                    and self._partial is None
                    and not self.is_refusing
                    and self.has_room()
                ):
                    table.last = sid
                    stream = Stream(sid, head, self.sender.stream_window)
                    stream.credit = self.limits.stream_window
                    open_streams[sid] = stream
                    table.header_bytes += head.size
                    table.arriving += head.cost
                    position = stop
                    continue
            self.frame(kind, flags, sid & 0x7FFFFFFF, buffer[start:stop])
            position = stop
            if headers.work > self.limits.turn_work_max:
                self._has_left = position < end
                break
        return position

    def _is_whole(self, stream: Stream, size: int) -> bool:
        """Return whether a last DATA frame is all of a request, and nothing is wrong with it."""
        return (
            stream.body is None
            and not stream.ended
            and size <= self.short_bytes_max
            and size <= stream.credit
            and stream.head.content_length in {-1, size}
            and self._partial is None
        )

    def _take_whole(self, stream: Stream, size: int, body: bytes) -> None:
        self.spend(size)
        stream.ended = True
        stream.size = size
        table = self.table
        table.arriving -= stream.head.cost
        table.unanswered += size
        self.application.on_request(stream, body)
