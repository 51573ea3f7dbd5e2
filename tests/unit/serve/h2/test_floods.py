"""Floods of cheap frames end the connection that sends them, after a bounded number."""

from __future__ import annotations

import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.frames import ErrorCode
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer, goaway_code

LIMITS = ServerLimits(resets_max=50, controls_max=50, window_updates_max=50)

FLOODS = {
    "ping": lambda peer, number: f.ping(b"12345678"),
    "answers to no ping": lambda peer, number: f.ping(b"12345678", ack=True),
    "settings": lambda peer, number: f.settings({}),
    "answers to settings": lambda peer, number: f.SETTINGS_ACK,
    "priority": lambda peer, number: f.frame(f.PRIORITY, 0, 1, b"\0\0\0\0\0"),
    "unknown": lambda peer, number: f.frame(99, 0, 0),
    "goaway": lambda peer, number: f.goaway(0, 0),
    "windows": lambda peer, number: f.window_update(0, 1),
    "windows of closed streams": lambda peer, number: f.window_update(1, 1),
    "rapid reset": lambda peer, number: peer.headers(2 * number + 3) + f.reset(2 * number + 3, 8),
    "resets of answered calls": lambda peer, number: f.reset(1, 8),
    "calls that are none": lambda peer, number: peer.headers(2 * number + 3, [("x", "1")]),
    "priority on itself": lambda peer, number: f.frame(f.PRIORITY, 0, 1, b"\0\0\0\1\0"),
}


@pytest.fixture
def peer():
    """Return a client of a server with small limits."""
    return Peer(LIMITS)


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_its_connection(name, peer):
    """The peer gets ENHANCE_YOUR_CALM, and what it caused to be sent is bounded."""
    peer.send(peer.call(1))
    sent = 0
    for number in range(200):
        frames = peer.send(FLOODS[name](peer, number))
        sent += len(frames)
        if not peer.alive:
            break
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM
    assert 40 <= number <= 52
    assert sent <= 110


@pytest.mark.parametrize("name", FLOODS)
def test_a_slow_peer_is_not_a_flood(name, peer):
    """As many frames in several ticks are nothing to complain about."""
    peer.send(peer.call(1))
    for number in range(200):
        if not number % 20:
            peer.connection.tick()
        peer.send(FLOODS[name](peer, number))
        assert peer.alive


def test_empty_data_is_a_flood(peer):
    """DATA frames without data that end nothing are counted."""
    frames = peer.send(peer.headers(1), f.frame(f.DATA, 0, 1) * 60)
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_header_block_without_end_is_a_flood():
    """Neither many empty CONTINUATION frames nor few large ones are kept for ever."""
    for payload in (b"", bytes(16_000)):
        peer = Peer(ServerLimits())
        frames = peer.send(f.frame(f.HEADERS, 0, 1))
        number = 0
        while peer.alive:
            frames = peer.send(f.frame(f.CONTINUATION, 0, 1, payload))
            number += 1
        assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM
        assert number <= 32


def test_the_memory_of_streams_that_we_ended_is_bounded():
    """Streams refused before their end are remembered up to a limit, the oldest forgotten first."""
    peer = Peer(ServerLimits(early_closed_max=10))
    for sid in range(1, 101, 2):
        peer.send(peer.headers(sid, [("x", "1")]))
    assert peer.send(f.frame(f.DATA, 0, 99, b"x")) == []
    assert goaway_code(peer.send(f.frame(f.DATA, 0, 1, b"x"))) == ErrorCode.STREAM_CLOSED


def test_a_client_that_measures_the_way_of_its_data_is_not_a_flood():
    """A ping and a window update for each DATA frame are paid for by the data."""
    peer = Peer(LIMITS, answer=None)
    peer.send(peer.call(1))
    stream = peer.app.streams[1]
    for number in range(500):
        peer.sender.write(stream, bytes(100))
        assert sum(kind == f.DATA for kind, *_ in peer.take()) == 1
        peer.send(f.ping(b"%08d" % number), f.window_update(number % 2, 200))
        assert peer.alive


def test_tiny_windows_are_paid_for_by_what_they_let_through():
    """A peer that opens its window byte by byte gets its answer so, and then has to calm down."""
    peer = Peer(LIMITS, answer=None)
    peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 0}), peer.call(1))
    peer.sender.reply([peer.app.streams[1]], [bytes(1000)])
    peer.take()
    sent = []
    while peer.alive:
        sent += peer.send(f.window_update(1, 1))
    assert goaway_code(sent) == ErrorCode.ENHANCE_YOUR_CALM
    assert sum(len(payload) for kind, *_, payload in sent if kind == f.DATA) == 1005
    assert len(sent) < 1100
    assert peer.sender.queued == 0


def test_small_data_is_a_flood(peer):
    """DATA frames of a few bytes that end nothing are counted; larger ones are not."""
    frames = peer.send(peer.headers(1), f.frame(f.DATA, 0, 1, bytes(64)) * 200)
    assert peer.alive
    frames = peer.send(f.frame(f.DATA, 0, 1, b"x") * 60)
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM


def test_one_settings_frame_with_thousands_of_settings_is_a_flood(peer):
    """Settings are counted by what they cost, not by their frames."""
    many = (b"\0\4\0\0\0\1" + b"\0\4\0\0\0\2") * 500
    frames = peer.send(f.frame(f.SETTINGS, 0, 0, many))
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM


def test_windows_of_many_streams_are_changed_once_a_frame():
    """Of a frame that names the size of windows often, the last one holds, and all are checked."""
    peer = Peer(answer=None)
    peer.send(*(peer.call(sid) for sid in range(1, 21, 2)))
    changes = []
    resize = peer.sender.resize
    peer.sender.resize = lambda size: (changes.append(size), resize(size))
    pairs = b"".join(b"\0\4" + size.to_bytes(4) for size in (7, 70_000, 5, 9))
    peer.send(f.frame(f.SETTINGS, 0, 0, pairs))
    assert changes == [9]
    assert {stream.window for stream in peer.app.streams.values()} == {9}
    bad = b"\0\4" + (1 << 31).to_bytes(4) + b"\0\4\0\0\0\1"
    assert goaway_code(peer.send(f.frame(f.SETTINGS, 0, 0, bad))) == ErrorCode.FLOW_CONTROL_ERROR


def test_changing_the_windows_of_many_streams_is_paid_for():
    """With many open streams each change counts as more than one frame."""
    peer = Peer(LIMITS, answer=None)
    peer.send(*(peer.call(sid) for sid in range(1, 3_201, 2)))
    frames = peer.send(*(f.settings({f.INITIAL_WINDOW_SIZE: size}) for size in (1, 2)))
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_closed_connection_window_is_looked_at_once():
    """However many streams have something to send, without a window none is visited."""
    peer = Peer(answer=None)
    peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 20}))
    peer.send(*(peer.call(sid) for sid in range(1, 201, 2)))
    for stream in peer.app.streams.values():
        peer.sender.write(stream, bytes(5_000))
    peer.take()
    visits = []
    pump = peer.sender._pump_stream
    peer.sender._pump_stream = lambda stream, limit: (
        visits.append(stream.sid) or pump(stream, limit)
    )
    for _ in range(50):
        assert len(peer.send(f.window_update(0, 1))) == 1
    assert len(visits) == 50
    answered = peer.send(f.window_update(0, 1 << 30))
    while peer.sender.has_more:
        answered += peer.take()
    assert peer.sender.queued == 0


def test_headers_of_many_fields_are_a_flood(peer):
    """A few bytes that unpack to kilobytes of headers count by what they unpack to."""
    costly = [*REQUEST, *(("n", "x" * 30) for _ in range(100))]
    peer.send(peer.headers(1, costly))
    frames = peer.send(*(peer.headers(sid, [*costly, ("o", str(sid))]) for sid in range(3, 203, 2)))
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM


def test_giving_up_all_streams_at_once_is_no_flood():
    """Streams that were open before the tick may all be reset in it; newer ones are counted."""
    peer = Peer(LIMITS, answer=None)
    peer.send(*(peer.call(sid) for sid in range(1, 401, 2)))
    peer.connection.tick()
    peer.send(*(f.reset(sid, 8) for sid in range(1, 401, 2)))
    assert peer.alive
    assert not peer.connection.table.open
    peer.send(*(peer.call(sid) + f.reset(sid, 8) for sid in range(401, 501, 2)))
    assert peer.alive
    frames = peer.send(peer.call(501), f.reset(501, 8))
    assert goaway_code(frames) == ErrorCode.ENHANCE_YOUR_CALM


def test_the_headers_of_open_calls_are_bounded_together():
    """Calls with large headers are refused above it; those that end make room for others."""
    peer = Peer(ServerLimits(open_header_bytes_max=50_000), answer=None)
    for number in range(20):
        large = [*REQUEST, ("x", str(number) + "y" * 8_000)]
        peer.send(peer.headers(2 * number + 1, large))
    assert len(peer.connection.table.open) == 7
    assert len(peer.app.refused) == 13
    peer.send(*(f.reset(sid, 8) for sid in list(peer.connection.table.open)))
    assert peer.connection.table.header_bytes == 0
    peer.send(peer.call(99))
    assert [sid for sid, _ in peer.app.requests] == [99]
