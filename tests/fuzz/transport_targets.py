"""What is fuzzed of the broker: bytes on their way to a handler, HTTP/2 and gRPC.

As in `targets`: any bytes go in, an error of ours is a fine answer. Where there is a second way to
the same answer (another split, plain `hpack`) both must give it.
"""

from __future__ import annotations

from contextlib import suppress

from hpack import Decoder, HPACKError

from frazil.serve.grpc.calls import Calls, Counters
from frazil.serve.grpc.codec import CallFailed, only_message, status_text
from frazil.serve.grpc.router import Router, Stream, Unary
from frazil.serve.h2 import frames as f
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.frames import ConnectionFailure
from frazil.serve.h2.headers import HeaderReader
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import prefixed

LIMITS = ServerLimits(
    message_bytes_max=3_000,
    streams_max=6,
    unfinished_bytes_max=5_000,
    connection_window=65_536,
    stream_window=2_000,
    stream_queue_bytes=400,
    connection_queue_bytes=900,
    queued_bytes_max=2_000,
    controls_max=30,
    resets_max=20,
    window_updates_max=30,
)
GREETING = f.PREFACE + f.settings({})
SIDS = (0, 1, 3, 5, 7, 9, 11, 2, 1 << 30)


def _echo(call, message):
    call.ok(message)


def _hold(call, message):
    call.on_cancel = lambda: None


def _feed(call, message):
    """Write as often as is allowed, at most a hundred times."""
    left = 100

    def go():
        nonlocal left
        while left:
            left -= 1
            if not call.write(prefixed(message[:50])):
                return
        call.finish()

    call.on_ready = go
    call.begin()
    go()


ROUTER = Router({"/t.T/Echo": Unary(_echo), "/t.T/Hold": Unary(_hold), "/t.T/Feed": Stream(_feed)})


class _Served:
    """A connection with its calls; what it says is checked and kept."""

    def __init__(self):
        self.counters = Counters()
        self.calls = Calls(ROUTER, self.counters, peer="fuzz")
        self.connection = Connection(LIMITS, self.calls, lambda: None)
        self.calls.sender = self.sender = self.connection.sender
        self.said = b""

    def feed(self, data):
        return self.connection.receive(data)

    def settle(self):
        """Let everything be sent that may be sent."""
        for _ in range(1_000):
            self.calls.on_ready(self.sender.ready())
            self.said += self.sender.take()
            if not (self.sender.has_more or self.sender.has_ready):
                return
        raise AssertionError("the connection never comes to rest")

    def end(self):
        """Return all that can be seen; nothing may be left of the calls."""
        self.settle()
        seen = (
            self.said,
            self.connection.is_over,
            self.counters.statuses,
            self.counters.calls_total,
        )
        self.connection.cancel_all()
        table = self.connection.table
        assert (table.unfinished, table.unanswered, self.sender.queued) == (0, 0, 0)
        assert not table.open
        assert self.counters.handler_errors_total == 0
        return seen


def _frames_of(data):
    """Cut junk into frames with heads that make sense: kind, flags, stream, size, payload."""
    made, at = [], 0
    while at + 4 <= len(data) and len(made) < 60:
        kind, flags, sid, size = data[at : at + 4]
        at += 4
        payload = data[at : at + size]
        at += size
        made.append(f.frame(kind % 12, flags & 0x2D, SIDS[sid % len(SIDS)], payload))
    return b"".join(made)


def h2(data):
    """A connection of HTTP/2 with calls behind it: raw bytes, frames, and two splits of both."""
    places = [byte + 1 for byte in data[:8]]
    for stream in (data, GREETING + data, GREETING + _frames_of(data)):
        whole, split = _Served(), _Served()
        whole.feed(stream)
        at = 0
        while at < len(stream):
            size = places[at % len(places)] if places else 7
            split.feed(stream[at : at + size])
            at += size
        assert whole.end() == split.end()


def headers(data):
    """Header blocks, through the cache and through `hpack` alone; then as a request's headers."""
    reader = HeaderReader(LIMITS, ROUTER.resolve)
    decoder = Decoder(max_header_list_size=LIMITS.header_bytes_max)
    blocks, at = [], 0
    while at < len(data) and len(blocks) < 40:
        size = data[at] % 48
        blocks.append(data[at + 1 : at + 1 + size])
        at += 1 + size
    for block in (*blocks, *blocks):
        try:
            plain = tuple((bytes(n), bytes(v)) for n, v in decoder.decode(block, raw=True))
        except HPACKError:
            plain = None
        try:
            read = reader.read(block).fields
        except ConnectionFailure:
            read = None
        assert read == plain
        assert len(reader.cache) <= LIMITS.cached_blocks_max
        if plain is None:
            break


def grpc(data):
    """What gRPC puts into HTTP/2: prefixes, time-outs, metadata, status texts."""
    with suppress(CallFailed):
        assert prefixed(only_message(data)) == data
    sent = status_text(data.decode("utf-8", "surrogateescape"))
    assert all(0x20 <= byte <= 0x7E for byte in sent)
    parts = data.split(b"\n")
    fields = [
        (b":method", b"POST"),
        (b":path", b"/t.T/Echo"),
        (b"content-type", b"application/grpc"),
    ]
    names = (b"grpc-timeout", b"x-bin", b"x", b"authorization", b"grpc-encoding")
    fields += [(names[number % len(names)], part) for number, part in enumerate(parts)]
    head = ROUTER.resolve(tuple(fields))
    assert (head.handler is None) == (head.refusal is not None)
    ROUTER.resolve(((b":method", data), (b":path", data), (b"content-type", data)))


TRANSPORT_TARGETS = {target.__name__: target for target in (h2, headers, grpc)}
