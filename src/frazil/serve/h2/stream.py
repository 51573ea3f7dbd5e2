"""Streams: the one object of a request, and the table of those that are open."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.serve.h2.headers import Head
    from frazil.serve.h2.limits import ServerLimits

SKIPS_MAX = 64


class Stream:
    """A request and its answer.

    Plain attributes with defaults of the class: most requests need three of them, and one is made
    for every call.
    """

    ended = False
    """The peer has sent all of its request."""
    closed = False
    """Nothing is sent any more: answered, or reset by either side."""
    begun = False
    """The answer's HEADERS are on their way."""
    size = 0
    """The received bytes of the request."""
    credit = 0
    """Bytes that the peer may still send."""
    body: bytearray | None = None

    window = 0
    """Bytes that may still be sent; may be negative."""
    queue: deque[bytes] | None = None
    queued = 0
    skipped = 0
    """Bytes of the queue's first piece that are sent already."""
    code: int | None = None
    """The status to end with when the queue is empty."""
    text = b""
    is_stopped = False
    """A `write` returned False, and `ready` has not returned the stream since."""

    call: object = None
    """The application's object for the stream."""

    def __init__(self, sid: int, head: Head, window: int) -> None:
        self.sid = sid
        self.head = head
        self.window = window

    def put(self, piece: bytes) -> None:
        """Queue bytes to be sent."""
        if self.queue is None:
            self.queue = deque()
        self.queue.append(piece)
        self.queued += len(piece)

    def pull(self, limit: int) -> list[bytes | memoryview]:
        """Take at most `limit` bytes off the queue, in as few pieces as there are, uncopied."""
        assert self.queue is not None
        assert limit > 0
        taken: list[bytes | memoryview] = []
        while limit and self.queued:
            first = self.queue[0]
            size = min(len(first) - self.skipped, limit)
            is_whole = size == len(first)
            taken.append(
                first if is_whole else memoryview(first)[self.skipped : self.skipped + size]
            )
            self.skipped += size
            if self.skipped == len(first):
                self.queue.popleft()
                self.skipped = 0
            limit -= size
            self.queued -= size
        return taken


class StreamTable:
    """The open streams and the state of closed ones.

    `last` is the highest stream of the peer. `unfinished` and `unanswered` are the bytes of
    incomplete and of unanswered requests. `header_bytes` is the sum of all.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.open: dict[int, Stream] = {}
        self.last = -1
        self.unfinished = 0
        self.unanswered = 0
        self.header_bytes = 0
        self._early: dict[int, None] = {}
        self._early_max = limits.early_closed_max
        self._skips: deque[tuple[int, int]] = deque(maxlen=SKIPS_MAX)

    def advance(self, sid: int) -> None:
        """Open a new stream number of the peer; skipped ones below it are closed."""
        if sid > self.last + 2:
            self._skips.append((self.last + 2, sid))
        self.last = sid

    def add(self, stream: Stream) -> None:
        """Remember a stream as open."""
        self.open[stream.sid] = stream
        self.header_bytes += stream.head.size

    def end(self, stream: Stream) -> None:
        """Mark a request as complete."""
        stream.ended = True
        self.unfinished -= stream.size
        self.unanswered += stream.size

    def was_left_out(self, sid: int) -> bool:
        """Return whether a closed stream was never used (as far as is remembered)."""
        return any(first <= sid < stop for first, stop in self._skips)

    def is_idle(self, sid: int) -> bool:
        """Return whether the peer names a stream that cannot exist yet."""
        return sid > self.last or not sid & 1

    def close(self, stream: Stream) -> None:
        """Forget an open stream; late frames of it are legal if the peer had not ended it."""
        stream.closed = True
        del self.open[stream.sid]
        self.header_bytes -= stream.head.size
        if stream.ended:
            self.unanswered -= stream.size
        else:
            self.unfinished -= stream.size
            self.expect_late(stream.sid)
        stream.body = stream.queue = None

    def answer_begins(self, stream: Stream) -> None:
        """Stop counting a request that is being answered: a stream's may stay open for ever."""
        if stream.ended:
            self.unanswered -= stream.size
            stream.size = 0

    def expect_late(self, sid: int) -> None:
        """Allow frames of a stream that this side ended before the peer did."""
        if len(self._early) >= self._early_max:
            del self._early[next(iter(self._early))]
        self._early[sid] = None

    def late(self, sid: int, *, ends: bool) -> bool:
        """Return whether a frame of a closed stream is legal; `ends` if it is the last one."""
        if sid not in self._early:
            return False
        if ends:
            del self._early[sid]
        return True
