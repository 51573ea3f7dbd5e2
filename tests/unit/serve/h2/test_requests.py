"""Requests arrive whole, however they are cut, and never larger than allowed."""

from __future__ import annotations

import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.frames import ErrorCode
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer, goaway_code, prefixed, resets


@pytest.fixture
def peer():
    """Return a client whose calls are answered."""
    return Peer()


def test_a_call_in_one_go_is_answered_in_one_go(peer):
    """HEADERS and DATA in one piece give HEADERS, DATA and trailers in one piece."""
    for sid in (1, 3, 5):
        frames = peer.send(peer.call(sid, b"m%d" % sid))
        assert [kind for kind, *_ in frames] == [f.HEADERS, f.DATA, f.HEADERS]
        lists, data, ended = peer.answers(frames)[sid]
        assert lists[0] == {":status": "200", "content-type": "application/grpc"}
        assert data == prefixed(b"m%d" % sid)
        assert lists[1] == {"grpc-status": "0"}
        assert ended
    # The third came by the short way: its headers were seen before.
    assert peer.app.resolved == 2


def test_the_short_way_is_open_for_one_number_after_the_other_only(peer):
    """A stream whose number leaves some out is taken as well, and they are closed by it."""
    peer.send(peer.call(1), peer.call(3), peer.call(9))
    assert [sid for sid, _ in peer.app.requests] == [1, 3, 9]
    assert goaway_code(peer.send(peer.call(5))) == ErrorCode.PROTOCOL_ERROR


def test_a_reserved_bit_is_none_of_a_stream_number(peer):
    """Behind the largest number there is none, also if the bit makes a frame's look like the next."""
    largest = f.STREAM_LARGEST
    peer.send(*(peer.headers(sid) for sid in (largest - 4, largest - 2, largest)))
    assert list(peer.connection.table.open) == [largest - 4, largest - 2, largest]
    frames = peer.send(peer.headers(largest + 2))
    assert goaway_code(frames) == ErrorCode.PROTOCOL_ERROR
    assert not peer.alive


def test_a_request_in_pieces_is_admitted_once(peer):
    """The application is asked with the first piece, and not about a request that is whole."""
    piece = f.frame(f.DATA, 0, 3, bytes(100))
    peer.send(peer.call(1), peer.headers(3), piece, piece, f.frame(f.DATA, 1, 3, bytes(100)))
    assert [sid for sid, _ in peer.app.requests] == [1, 3]
    assert peer.app.parted == [3]


def test_padding_is_counted_and_left_out(peer):
    """Padding uses the windows in full and is no part of the request."""
    credit = peer.connection.credit
    padded = bytes([200]) + prefixed(b"x") + bytes(200)
    peer.send(peer.headers(1), f.frame(f.DATA, f.PADDED | f.END_STREAM, 1, padded))
    assert peer.app.requests == [(1, prefixed(b"x"))]
    assert peer.connection.credit == credit - len(padded)
    stream_credit = peer.connection.limits.stream_window
    peer.send(peer.headers(3), f.frame(f.DATA, f.PADDED, 3, padded))
    assert peer.connection.table.open[3].credit == stream_credit - len(padded)
    assert peer.connection.credit == credit - 2 * len(padded)


def test_padded_headers_with_priority_are_read(peer):
    """Padding and priority stand around the header block."""
    block = peer.encoder.encode(REQUEST)
    payload = b"\x03" + b"\0\0\0\0\x10" + block + b"\0\0\0"
    flags = f.END_HEADERS | f.END_STREAM | f.PADDED | f.PRIORITISED
    peer.send(f.frame(f.HEADERS, flags, 1, payload))
    assert peer.app.requests == [(1, b"")]
    assert peer.app.streams[1].head.target[b":path"] == b"/t.T/Echo"


def test_headers_in_many_frames_are_one_block(peer):
    """CONTINUATION frames are put together; END_STREAM of the first one holds."""
    block = peer.encoder.encode([*REQUEST, ("x", "y" * 3000)])
    parts = [block[i : i + 400] for i in range(0, len(block), 400)]
    frames = [f.frame(f.HEADERS, f.END_STREAM, 1, parts[0])]
    frames += [f.frame(f.CONTINUATION, 0, 1, part) for part in parts[1:]]
    frames.append(f.frame(f.CONTINUATION, f.END_HEADERS, 1))
    peer.send(*frames)
    assert peer.app.streams[1].head.target[b"x"] == b"y" * 3000


def test_the_short_way_does_not_look_into_an_open_header_block():
    """A known HEADERS frame, or the rest of a request, behind an open block is an error."""
    part = f.frame(f.HEADERS, 0, 7, b"")
    for before, behind in (("", "headers"), ("headers", "data")):
        peer = Peer()
        peer.send(peer.call(1), peer.call(3))
        frames = {
            "": b"",
            "headers": peer.headers(5),
            "data": f.frame(f.DATA, f.END_STREAM, 5, prefixed(b"x")),
        }
        peer.send(frames[before])
        assert goaway_code(peer.send(part, frames[behind])) == ErrorCode.PROTOCOL_ERROR
        assert len(peer.app.requests) == 2


def test_calls_may_have_their_headers_all_together(peer):
    """Clients with many calls send their headers first; each gets its own request and answer."""
    peer.answers(peer.send(peer.call(1), peer.call(3)))
    sids = range(5, 25, 2)
    headers = [peer.headers(sid) for sid in sids]
    data = [f.frame(f.DATA, f.END_STREAM, sid, prefixed(b"%d" % sid)) for sid in reversed(sids)]
    frames = peer.send(*headers, *data)
    assert peer.app.requests[2:] == [(sid, prefixed(b"%d" % sid)) for sid in reversed(sids)]
    answers = peer.answers(frames)
    assert {sid: answers[sid][1] for sid in answers} == {sid: prefixed(b"%d" % sid) for sid in sids}
    assert peer.app.resolved == 2


def test_trailers_end_a_request(peer):
    """A request may end with trailers in place of its last DATA frame."""
    data = f.frame(f.DATA, 0, 1, prefixed(b"x"))
    request = peer.headers(1)
    trailers = peer.headers(1, [("x", "1")], f.END_HEADERS | f.END_STREAM)
    peer.send(request, data, trailers)
    assert peer.app.requests == [(1, prefixed(b"x"))]


def test_windows_are_given_back_at_half():
    """A large request is let through by updates of both windows, each at half."""
    limits = ServerLimits(
        stream_window=65_536, connection_window=131_072, message_bytes_max=1 << 20
    )
    peer = Peer(limits)
    frames = peer.send(peer.headers(1))
    for _ in range(20):
        frames += peer.send(f.frame(f.DATA, 0, 1, bytes(16_384)))
    updates = [(sid, int.from_bytes(payload)) for kind, _, sid, payload in frames if kind == 8]
    assert updates.count((1, 49_152)) == 6
    assert updates.count((0, 81_920)) == 4
    assert peer.connection.table.unfinished == 20 * 16_384


@pytest.mark.parametrize("stream_window", [4096, 1 << 20])
def test_more_than_the_window_allows_is_refused(stream_window):
    """A stream's window costs the stream, the connection's the connection."""
    whole = ServerLimits(
        stream_window=stream_window, connection_window=65_536, message_bytes_max=1 << 20
    )
    peer = Peer(whole)
    peer.connection.credit = 10_000
    frames = peer.send(peer.headers(1), f.frame(f.DATA, 0, 1, bytes(9_000)))
    if stream_window == 4096:
        assert resets(frames) == {1: ErrorCode.FLOW_CONTROL_ERROR}
        assert peer.connection.table.unfinished == 0
    else:
        peer.connection.credit = 500
        assert goaway_code(peer.send(f.frame(f.DATA, 0, 1, bytes(501)))) == 3


@pytest.mark.parametrize("ends", [True, False])
def test_a_message_too_large_is_answered_and_stopped(ends):
    """The answer comes before the rest; the rest is ignored and not kept."""
    peer = Peer(ServerLimits(message_bytes_max=1000))
    flags = f.END_STREAM if ends else 0
    frames = peer.send(peer.headers(1), f.frame(f.DATA, flags, 1, bytes(1006)))
    assert peer.app.excess == [(1, "larger than 1000")]
    assert peer.answers(frames)[1][0][0]["grpc-status"] == "11"
    assert resets(frames) == ({} if ends else {1: ErrorCode.NO_ERROR})
    if not ends:
        assert peer.send(f.frame(f.DATA, f.END_STREAM, 1, bytes(5000))) == []
    assert peer.connection.table.open == {}
    assert peer.connection.table.unfinished == peer.connection.table.unanswered == 0


def test_a_message_too_large_is_refused_on_the_short_way_too():
    """The limit of messages below a frame's size holds for calls that come in one go."""
    peer = Peer(ServerLimits(message_bytes_max=1000))
    peer.send(peer.call(1), peer.call(3))
    peer.send(peer.call(5, bytes(1001)), peer.call(7, bytes(1000)))
    assert peer.app.excess == [(5, "larger than 1000")]
    assert [sid for sid, _ in peer.app.requests] == [1, 3, 7]


def test_requests_that_never_end_are_bounded():
    """The one that goes over the sum of all unfinished ones is refused; its bytes are freed."""
    peer = Peer(ServerLimits(unfinished_bytes_max=40_000))
    for sid in (1, 3, 5):
        peer.send(peer.headers(sid), f.frame(f.DATA, 0, sid, bytes(16_000)))
    assert peer.app.excess == [(5, "one too many")]
    assert peer.connection.table.unfinished == 32_000
    peer.send(f.frame(f.DATA, f.END_STREAM, 1, b""))
    assert peer.connection.table.unfinished == 16_000


def test_unanswered_bytes_are_counted_until_the_answer():
    """Both ways add to the sum; an answer, a failure or a reset takes off."""
    peer = Peer(answer=None)
    peer.send(peer.call(1, bytes(95)), peer.call(3, bytes(95)), peer.call(5, bytes(95)))
    table = peer.connection.table
    assert table.unanswered == 300
    peer.sender.reply([peer.app.streams[1]], [b""])
    assert table.unanswered == 200
    peer.sender.finish(peer.app.streams[3], 5, b"no")
    assert table.unanswered == 100
    peer.send(f.reset(5, 8))
    assert table.unanswered == 0
    assert peer.app.cancelled == [5]


def test_a_stream_that_has_begun_is_not_unanswered():
    """A consumer's stream may stay open for ever: its request must not keep others from asking."""
    peer = Peer(answer=None)
    peer.send(peer.call(1, bytes(95)), peer.call(3, bytes(95)))
    table = peer.connection.table
    peer.sender.begin(peer.app.streams[1])
    assert table.unanswered == 100
    peer.sender.write(peer.app.streams[3], prefixed(b"first"))
    assert table.unanswered == 0
    peer.sender.finish(peer.app.streams[1], 0)
    peer.send(f.reset(3, 8))
    assert table.unanswered == 0


def test_an_answer_to_a_reset_call_is_dropped():
    """The client went away meanwhile: nothing is sent for it."""
    peer = Peer(answer=None)
    peer.send(peer.call(1), f.reset(1, 8))
    stream = peer.app.streams[1]
    peer.sender.reply([stream], [b"late"])
    peer.sender.finish(stream, 13, b"late")
    assert not peer.sender.write(stream, b"late")
    assert peer.take() == []


def test_a_second_answer_is_dropped():
    """A call has one status, also while its answer waits for the window."""
    peer = Peer(answer=None)
    peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 3}), peer.call(1))
    stream = peer.app.streams[1]
    for _ in range(2):
        peer.sender.reply([stream], [b"abc"])
        peer.sender.finish(stream, 13, b"late")
    frames = peer.take() + peer.send(f.window_update(1, 1000))
    lists, data, ended = peer.answers(frames)[1]
    assert data == prefixed(b"abc")
    assert lists[-1] == {"grpc-status": "0"}
    assert ended


def test_answers_later_ask_for_one_flush():
    """Answers to many calls at once flush the connection once."""
    peer = Peer(answer=None)
    peer.send(*(peer.call(sid) for sid in range(1, 201, 2)))
    before = peer.dirtied
    for stream in peer.app.streams.values():
        peer.sender.reply([stream], [b"ok"])
    assert peer.dirtied == before + 1
    assert len(peer.answers(peer.take())) == 100


def test_the_short_way_takes_requests_only(peer):
    """Headers that were seen before and are no request cost the stream each time."""
    fields = [(":method", "POST"), ("x", "1")]
    for sid in (1, 3, 5):
        frames = peer.send(peer.call(sid, b"hi", fields))
        assert resets(frames) == {sid: ErrorCode.PROTOCOL_ERROR}
    assert not peer.app.requests


def test_the_short_way_gives_the_window_back():
    """Whole calls use the connection's window, which is filled up at half."""
    peer = Peer(ServerLimits(connection_window=65_536))
    frames = []
    for sid in range(1, 41, 2):
        frames += peer.send(peer.call(sid, bytes(5_000)))
    updates = [int.from_bytes(payload) for kind, _, sid, payload in frames if (kind, sid) == (8, 0)]
    assert updates == [35_035, 35_035]
    assert peer.connection.credit == 65_536 - 6 * 5_005


LENGTH = [*REQUEST, ("content-length", "7")]
SHORT_WAY = {
    "window of the connection": (
        ErrorCode.FLOW_CONTROL_ERROR,
        lambda peer: peer.call(5, bytes(100)),
    ),
    "size of frames": (
        ErrorCode.FRAME_SIZE_ERROR,
        lambda peer: peer.headers(5) + f.head(20_000, f.DATA, f.END_STREAM, 5),
    ),
    "window of the stream": (
        ErrorCode.FLOW_CONTROL_ERROR,
        lambda peer: peer.call(5, bytes(80)),
    ),
    "content-length": (
        ErrorCode.PROTOCOL_ERROR,
        lambda peer: peer.call(5, b"hello", LENGTH),
    ),
}


@pytest.mark.parametrize("rule", SHORT_WAY)
def test_the_short_way_keeps_to_every_rule(rule):
    """Calls with headers that were seen before break a rule at the same price as others."""
    peer = Peer(ServerLimits(stream_window=80))
    fields = LENGTH if rule == "content-length" else REQUEST
    peer.send(peer.call(1, fields=fields), peer.call(3, fields=fields))
    peer.connection.credit = 100
    code, breaking = SHORT_WAY[rule]
    frames = peer.send(breaking(peer))
    is_of_stream = rule in {"window of the stream", "content-length"}
    assert resets(frames) == ({5: code} if is_of_stream else {})
    assert goaway_code(frames) == (None if is_of_stream else code)
    assert [sid for sid, _ in peer.app.requests] == [1, 3]
