"""Rules that peers break, and what it costs them: a stream, or the connection."""

from __future__ import annotations

import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.frames import ErrorCode
from frazil.serve.h2.headers import literal
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer, goaway_code, prefixed, resets

DATA_END = f.frame(f.DATA, f.END_STREAM, 1, prefixed(b"x"))
SELF = (1).to_bytes(4) + b"\0"
TRAILER = literal(b"x", b"1")
BOTH = f.END_HEADERS | f.END_STREAM

ENDS_CONNECTION = {
    "data on the connection": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.DATA, 0, 0, b"x")]),
    "data on an idle stream": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.DATA, 0, 1, b"x")]),
    "data on a stream of ours": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.DATA, 0, 2, b"x")]),
    "headers on the connection": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.HEADERS, 4, 0, TRAILER)]),
    "headers on an even stream": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.HEADERS, 4, 2, TRAILER)]),
    "broken headers": (ErrorCode.COMPRESSION_ERROR, [f.frame(f.HEADERS, 4, 1, b"\x80")]),
    "headers shorter than priority": (
        ErrorCode.FRAME_SIZE_ERROR,
        [f.frame(f.HEADERS, f.END_HEADERS | f.PRIORITISED, 1, b"abc")],
    ),
    "padding of all": (
        ErrorCode.PROTOCOL_ERROR,
        [f.frame(f.HEADERS, f.END_HEADERS | f.PADDED, 1, b"\x05abc")],
    ),
    "continuation of nothing": (
        ErrorCode.PROTOCOL_ERROR,
        [f.frame(f.CONTINUATION, f.END_HEADERS, 1, TRAILER)],
    ),
    "ping in a header block": (
        ErrorCode.PROTOCOL_ERROR,
        [f.frame(f.HEADERS, 0, 1, TRAILER), f.ping(b"12345678")],
    ),
    "unknown kind in a header block": (
        ErrorCode.PROTOCOL_ERROR,
        [f.frame(f.HEADERS, 0, 1, TRAILER), f.frame(77, 0, 1, b"")],
    ),
    "continuation of another stream": (
        ErrorCode.PROTOCOL_ERROR,
        [f.frame(f.HEADERS, 0, 1, TRAILER), f.frame(f.CONTINUATION, 4, 3, TRAILER)],
    ),
    "priority of nothing": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.PRIORITY, 0, 0, SELF)]),
    "reset of an idle stream": (ErrorCode.PROTOCOL_ERROR, [f.reset(1, 0)]),
    "reset of the connection": (ErrorCode.PROTOCOL_ERROR, [f.reset(0, 0)]),
    "reset too short": (ErrorCode.FRAME_SIZE_ERROR, [f.frame(f.RST_STREAM, 0, 1, b"abc")]),
    "settings on a stream": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.SETTINGS, 0, 1)]),
    "settings in an answer": (ErrorCode.FRAME_SIZE_ERROR, [f.frame(f.SETTINGS, 1, 0, b"123456")]),
    "settings cut short": (ErrorCode.FRAME_SIZE_ERROR, [f.frame(f.SETTINGS, 0, 0, b"123")]),
    "push neither on nor off": (ErrorCode.PROTOCOL_ERROR, [f.settings({f.ENABLE_PUSH: 2})]),
    "window too large": (
        ErrorCode.FLOW_CONTROL_ERROR,
        [f.settings({f.INITIAL_WINDOW_SIZE: 1 << 31})],
    ),
    "frames too small": (ErrorCode.PROTOCOL_ERROR, [f.settings({f.MAX_FRAME_SIZE: 16_383})]),
    "frames too large": (ErrorCode.PROTOCOL_ERROR, [f.settings({f.MAX_FRAME_SIZE: 1 << 24})]),
    "push": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.PUSH_PROMISE, 4, 1, b"\0\0\0\2")]),
    "ping on a stream": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.PING, 0, 1, b"12345678")]),
    "ping too short": (ErrorCode.FRAME_SIZE_ERROR, [f.frame(f.PING, 0, 0, b"1234567")]),
    "goaway on a stream": (ErrorCode.PROTOCOL_ERROR, [f.frame(f.GOAWAY, 0, 1, b"12345678")]),
    "goaway too short": (ErrorCode.FRAME_SIZE_ERROR, [f.frame(f.GOAWAY, 0, 0, b"1234567")]),
    "window update too short": (ErrorCode.FRAME_SIZE_ERROR, [f.frame(f.WINDOW_UPDATE, 0, 0, b"1")]),
    "window update of nothing": (ErrorCode.PROTOCOL_ERROR, [f.window_update(0, 0)]),
    "window of an idle stream": (ErrorCode.PROTOCOL_ERROR, [f.window_update(1, 1)]),
    "window overflow": (ErrorCode.FLOW_CONTROL_ERROR, [f.window_update(0, f.WINDOW_LARGEST)]),
    "frame over the limit": (ErrorCode.FRAME_SIZE_ERROR, [f.head(16_385, f.DATA, 0, 1)]),
}


@pytest.fixture
def peer():
    """Return a client whose calls are answered."""
    return Peer()


@pytest.mark.parametrize("name", ENDS_CONNECTION)
def test_a_broken_rule_of_the_connection_ends_it(name):
    """One GOAWAY with the right code, and nothing is read any more."""
    code, frames = ENDS_CONNECTION[name]
    peer = Peer()
    assert goaway_code(peer.send(*frames)) == code
    assert not peer.alive
    assert peer.send(peer.call(1)) == []
    assert not peer.app.requests


@pytest.mark.parametrize("size", [1, 3, 23])
def test_garbage_is_refused_at_its_first_byte(size):
    """A peer that does not speak HTTP/2 is sent away at the first wrong byte."""
    peer = Peer(greet=False)
    peer.take()
    garbage = f.PREFACE[: size - 1] + b"!"
    assert goaway_code(peer.send(garbage)) == ErrorCode.PROTOCOL_ERROR
    assert not peer.alive


def test_settings_come_first():
    """Any other first frame ends the connection; so does an answer to settings."""
    for first in (f.ping(b"12345678"), f.SETTINGS_ACK):
        peer = Peer(greet=False)
        assert goaway_code(peer.send(f.PREFACE, first)) == ErrorCode.PROTOCOL_ERROR


def test_the_greeting_is_settings_and_a_wide_window(peer):
    """The server's limits go out first; the peer's settings are answered."""
    kinds = [(kind, flags) for kind, flags, _, _ in peer.greeting]
    assert kinds == [(f.SETTINGS, 0), (f.WINDOW_UPDATE, 0), (f.SETTINGS, f.ACK)]


ENDS_STREAM = {
    "depends on itself": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [
            f.frame(f.HEADERS, BOTH | f.PRIORITISED, 1, SELF + peer.encoder.encode(REQUEST))
        ],
    ),
    "no request": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1, [("x", "y")], BOTH)],
    ),
    "window update of nothing": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1), f.window_update(1, 0)],
    ),
    "window overflow": (
        ErrorCode.FLOW_CONTROL_ERROR,
        lambda peer: [peer.headers(1), f.window_update(1, f.WINDOW_LARGEST)],
    ),
    "priority on itself": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1), f.frame(f.PRIORITY, 0, 1, SELF)],
    ),
    "priority of another size": (
        ErrorCode.FRAME_SIZE_ERROR,
        lambda peer: [peer.headers(1), f.frame(f.PRIORITY, 0, 1, b"abc")],
    ),
    "trailers that do not end": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1), f.frame(f.HEADERS, f.END_HEADERS, 1, TRAILER)],
    ),
    "trailers with a path": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1), peer.headers(1, flags=BOTH)],
    ),
    "content shorter than said": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1, [*REQUEST, ("content-length", "7")]), DATA_END],
    ),
    "content longer than said": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [
            peer.headers(1, [*REQUEST, ("content-length", "1")]),
            f.frame(f.DATA, 0, 1, b"ab"),
        ],
    ),
    "content said and none": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: [peer.headers(1, [*REQUEST, ("content-length", "1")], BOTH)],
    ),
}


@pytest.mark.parametrize("name", ENDS_STREAM)
def test_a_broken_rule_of_a_stream_ends_that_stream_alone(name):
    """One RST_STREAM with the right code; the next call is answered."""
    code, build = ENDS_STREAM[name]
    peer = Peer()
    assert resets(peer.send(*build(peer))) == {1: code}
    assert not peer.app.requests
    assert peer.alive
    assert peer.answers(peer.send(peer.call(3)))[3][1] == prefixed(b"hi")
    assert peer.connection.table.unfinished == 0
    assert peer.connection.table.unanswered == 0


def test_frames_behind_the_end_of_a_request_end_the_connection():
    """A peer that ended its request says nothing more of it, answered or not."""
    for answer in (None, lambda sender, stream, body: sender.reply([stream], [b""])):
        for late in (DATA_END, f.frame(f.HEADERS, BOTH, 1, TRAILER)):
            peer = Peer(answer=answer)
            peer.send(peer.headers(1), DATA_END)
            assert goaway_code(peer.send(late)) == ErrorCode.STREAM_CLOSED


def test_frames_behind_the_peers_reset_end_the_connection(peer):
    """A peer that reset its request says nothing more of it."""
    peer.send(peer.headers(1), f.reset(1, 8))
    assert goaway_code(peer.send(f.frame(f.DATA, 0, 1, b"x"))) == ErrorCode.STREAM_CLOSED


def test_small_frames_of_closed_streams_are_harmless(peer):
    """Windows, resets and priorities may cross the answer on their way."""
    peer.send(peer.call(1))
    late = (f.window_update(1, 5), f.reset(1, 8), f.frame(f.PRIORITY, 0, 1, b"\0\0\0\3\0"))
    assert peer.send(*late) == []
    assert peer.alive


def test_a_stream_left_out_cannot_be_used_later(peer):
    """A lower number than the last one is an error, also if it never was a stream."""
    peer.send(peer.call(7))
    assert goaway_code(peer.send(peer.call(3))) == ErrorCode.PROTOCOL_ERROR


def test_frames_of_a_stream_that_we_ended_early_are_ignored_until_its_end(peer):
    """Their headers are read and their data counted; behind their end they are errors."""
    frames = peer.send(peer.headers(1), f.window_update(1, 0))
    assert resets(frames) == {1: ErrorCode.PROTOCOL_ERROR}
    credit = peer.connection.credit
    trailers = f.frame(f.HEADERS, BOTH, 1, literal(b"later", b"1", indexed=True))
    assert peer.send(f.frame(f.DATA, 0, 1, b"x" * 100), trailers) == []
    assert peer.connection.credit == credit - 100
    # What the trailers put into the table is there: index 62 is read.
    plain = [literal(name.encode(), value.encode()) for name, value in REQUEST]
    block = b"".join(plain) + b"\xbe"
    peer.send(f.frame(f.HEADERS, BOTH, 3, block))
    assert peer.app.streams[3].head.target[b"later"] == b"1"
    assert goaway_code(peer.send(f.frame(f.DATA, 0, 1, b"x"))) == ErrorCode.STREAM_CLOSED


def test_headers_of_refused_streams_change_the_table(peer):
    """A refused call's header block is read, so that the next call's block means the same."""
    peer.connection.go_away()
    fields = [*REQUEST, ("x-new", "1")]
    assert resets(peer.send(peer.headers(1, fields))) == {1: ErrorCode.REFUSED_STREAM}
    assert peer.send(f.frame(f.DATA, f.END_STREAM, 1, b"x")) == []
    peer.connection.is_refusing = False
    peer.send(peer.headers(3, fields, BOTH))
    assert peer.app.streams[3].head.target[b"x-new"] == b"1"


def test_one_stream_too_many_is_refused():
    """The peer may try it again; the others go on."""
    peer = Peer(ServerLimits(streams_max=2), answer=None)
    peer.send(peer.call(1), peer.call(3))
    assert resets(peer.send(peer.call(5))) == {5: ErrorCode.REFUSED_STREAM}
    peer.sender.reply([peer.app.streams[1]], [b""])
    assert resets(peer.send(peer.call(7))) == {}
    assert [sid for sid, _ in peer.app.requests] == [1, 3, 7]


def test_the_end_of_the_connection_cancels_its_calls():
    """Each open call is cancelled once, and answers to them go nowhere."""
    peer = Peer(answer=None)
    peer.send(peer.call(1), peer.call(3))
    assert goaway_code(peer.send(f.frame(f.DATA, 0, 0, b""))) == ErrorCode.PROTOCOL_ERROR
    assert peer.app.cancelled == [1, 3]
    peer.sender.reply([peer.app.streams[1]], [b"late"])
    assert peer.take() == []
    assert peer.connection.table.unanswered == 0


def test_a_goaway_of_the_peer_leaves_its_calls_alone():
    """The peer goes when it has its answers."""
    peer = Peer(answer=None)
    peer.send(peer.call(1), f.goaway(0, 0))
    assert peer.alive
    peer.sender.reply([peer.app.streams[1]], [b"a"])
    assert peer.answers(peer.take())[1][1] == prefixed(b"a")


def test_new_streams_are_refused_after_the_goaway():
    """It names the last stream that is answered; open calls go on."""
    peer = Peer(answer=None)
    peer.send(peer.call(1))
    peer.connection.go_away()
    (kind, _, _, payload) = peer.take()[-1]
    assert (kind, payload[:8]) == (f.GOAWAY, (1).to_bytes(4) + bytes(4))
    assert resets(peer.send(peer.call(3))) == {3: ErrorCode.REFUSED_STREAM}
    peer.sender.reply([peer.app.streams[1]], [b"late"])
    assert 1 in peer.answers(peer.take())
    assert peer.alive
