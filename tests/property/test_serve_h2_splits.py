"""However a network cuts the bytes of a client, the server says the same; junk never breaks it."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer, prefixed

LIMITS = ServerLimits(
    message_bytes_max=20_000,
    connection_window=65_536,
    stream_window=32_768,
    streams_max=8,
    unfinished_bytes_max=60_000,
)

EXTRA = st.sampled_from([(), (("x", "1"),), (("x", "2"),), (("content-length", "12"),)])
STEPS = st.one_of(
    st.tuples(st.just("call"), EXTRA, st.sampled_from([0, 7, 100, 16_379, 19_000, 21_000])),
    st.tuples(st.just("call"), st.just(()), st.just(7)),
    st.tuples(st.just("late call"), EXTRA, st.integers(0, 50)),
    st.tuples(st.just("open"), EXTRA, st.integers(0, 9_000)),
    st.tuples(st.just("padded"), st.integers(0, 50), st.integers(0, 255)),
    st.tuples(st.just("continued"), EXTRA, st.integers(1, 40)),
    st.tuples(st.just("reset"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("window"), st.integers(0, 3), st.integers(1, 70_000)),
    st.tuples(st.just("windows"), st.sampled_from([0, 5, 65_535, 200_000]), st.just(0)),
    st.tuples(st.just("table"), st.sampled_from([0, 4096]), st.just(0)),
    st.tuples(st.just("ping"), st.just(0), st.just(0)),
    st.tuples(st.just("left out"), st.just(0), st.just(0)),
)


class Script:
    """Turns steps into the bytes of a client that keeps to the rules, mostly."""

    def __init__(self):
        self.peer = Peer(LIMITS, greet=False)
        self.sid = -1
        self.parts = [f.PREFACE, f.settings({})]

    def add(self, kind, first, second):
        """Add the frames of one step."""
        name = kind.replace(" ", "_")
        self.parts.append(getattr(self, f"on_{name}")(first, second))

    def head(self, extra, flags=f.END_HEADERS):
        self.sid += 2
        return self.peer.headers(self.sid, [*REQUEST, *extra], flags)

    def data(self, body):
        """Return a body in frames, the last of which ends the stream."""
        pieces = [body[i : i + 16_384] for i in range(0, len(body), 16_384)] or [b""]
        flags = [0] * (len(pieces) - 1) + [f.END_STREAM]
        return b"".join(
            f.frame(f.DATA, flag, self.sid, piece)
            for flag, piece in zip(flags, pieces, strict=True)
        )

    def on_call(self, extra, size):
        return self.head(extra) + self.data(prefixed(bytes(size)))

    def on_late_call(self, extra, size):
        head = self.head(extra)
        return head + f.ping(b"between!") + self.data(prefixed(bytes(size)))

    def on_open(self, extra, size):
        return self.head(extra) + f.frame(f.DATA, 0, self.sid, bytes(size))

    def on_padded(self, size, padding):
        payload = bytes([padding]) + prefixed(bytes(size)) + bytes(padding)
        return self.head(()) + f.frame(f.DATA, f.PADDED | f.END_STREAM, self.sid, payload)

    def on_continued(self, extra, size):
        self.sid += 2
        block = self.peer.encoder.encode([*REQUEST, *extra])
        first = f.frame(f.HEADERS, f.END_STREAM, self.sid, block[:size])
        return first + f.frame(f.CONTINUATION, f.END_HEADERS, self.sid, block[size:])

    def on_reset(self, back, _):
        return f.reset(max(1, self.sid - 2 * back), 8) if self.sid > 0 else b""

    def on_window(self, back, size):
        sid = max(0, self.sid - 2 * back) if back else 0
        return f.window_update(sid, size)

    def on_windows(self, size, _):
        return f.settings({f.INITIAL_WINDOW_SIZE: size})

    def on_table(self, size, _):
        return f.settings({f.HEADER_TABLE_SIZE: size})

    def on_ping(self, _, __):
        return f.ping(b"12345678")

    def on_left_out(self, _, __):
        self.sid += 4
        return b""


def script(steps):
    made = Script()
    for step in steps:
        made.add(*step)
    return b"".join(made.parts)


def outcome(chunks):
    """Feed chunks to a new connection; return all that can be seen of it."""
    peer = Peer(LIMITS, greet=False)
    alive = True
    for chunk in chunks:
        alive = peer.connection.receive(chunk)
    said = peer.sender.take()
    while peer.sender.has_more:
        said += peer.sender.take()
    table = peer.connection.table
    seen = peer.app
    sums = (table.unfinished, table.unanswered, peer.sender.queued, sorted(table.open))
    return said, seen.requests, seen.cancelled, seen.excess, alive, sums


def cut(data, places):
    borders = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(borders)]


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=25), st.lists(st.integers(0, 1 << 20), max_size=40))
def test_any_split_gives_the_same_output(steps, places):
    """Calls, answers, cancellations and sums are the same for the whole and for its pieces."""
    data = script(steps)
    assert outcome(cut(data, places)) == outcome([data])


@settings(max_examples=25)
@given(st.lists(STEPS, max_size=6))
def test_byte_by_byte_gives_the_same_output(steps):
    """The slowest network of all changes nothing."""
    data = script(steps)[:3_000]
    assert outcome([data[i : i + 1] for i in range(len(data))]) == outcome([data])


@settings(max_examples=150)
@given(
    st.lists(STEPS, min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=20),
    st.lists(st.integers(0, 1 << 20), max_size=5),
)
def test_damaged_bytes_never_break_the_connection(steps, damage, places):
    """Whatever bytes come: no exception, one GOAWAY at most, and nothing is kept afterwards."""
    data = bytearray(script(steps))
    for place, value in damage:
        data[len(f.PREFACE) + place % (len(data) - len(f.PREFACE))] = value
    peer = Peer(LIMITS, greet=False)
    for chunk in cut(bytes(data), places):
        if not peer.connection.receive(chunk):
            break
    said = peer.take()
    assert sum(kind == f.GOAWAY for kind, *_ in said) == peer.connection.is_over
    peer.connection.cancel_all()
    table = peer.connection.table
    assert (table.unfinished, table.unanswered, peer.sender.queued) == (0, 0, 0)
    assert not table.open


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary())))
def test_frames_of_junk_never_break_the_connection(frames):
    """Well-formed frames of any kind, with any flags and any content, are answered or end it."""
    peer = Peer(LIMITS)
    for kind, flags, sid, payload in frames:
        peer.send(f.frame(kind, flags, sid, payload))
    assert peer.connection.is_over == (not peer.alive)
    peer.connection.cancel_all()
    assert peer.connection.table.unanswered == 0
