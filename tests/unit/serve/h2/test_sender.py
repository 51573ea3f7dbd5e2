"""What is sent keeps to the peer's windows, and to nobody else's patience."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.h2 import frames as f
from frazil.serve.h2.frames import ErrorCode
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import Peer, goaway_code, prefixed, resets

WIDE = f.settings({f.INITIAL_WINDOW_SIZE: 1 << 30}) + f.window_update(0, 1 << 30)


def opened(*greeting, limits=None, sids=(1,)):
    """Return a peer with open streams."""
    peer = Peer(limits, answer=None)
    peer.send(*greeting)
    peer.send(*(peer.call(sid) for sid in sids))
    return peer, [peer.app.streams[sid] for sid in sids]


def data_sizes(frames, sid=1):
    return [len(payload) for kind, _, found, payload in frames if (kind, found) == (f.DATA, sid)]


def test_a_large_answer_is_cut_into_frames():
    """Frames are no larger than the peer takes, and the bytes are the same."""
    peer, [stream] = opened(WIDE)
    message = bytes(range(256)) * 200
    peer.sender.reply([stream], [message])
    frames = peer.take()
    assert max(data_sizes(frames)) == 16_384
    lists, data, ended = peer.answers(frames)[1]
    assert data == prefixed(message)
    assert lists[-1] == {"grpc-status": "0"}
    assert ended


def test_an_answer_waits_for_the_streams_window():
    """Nothing goes beyond the window; an update lets exactly its bytes through."""
    peer, [stream] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 7}))
    peer.sender.reply([stream], [b"0123456789"])
    frames = peer.take()
    assert data_sizes(frames) == [7]
    assert data_sizes(peer.send(f.window_update(1, 3))) == [3]
    last = peer.send(f.window_update(1, 100))
    assert data_sizes(last) == [5]
    assert peer.answers(frames + last)[1][2]


def test_an_answer_waits_for_the_connections_window():
    """Streams share the connection's window, and all go on when it opens."""
    peer, streams = opened(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 20}), sids=(1, 3))
    for stream in streams:
        peer.sender.reply([stream], [bytes(60_000)])
    frames = peer.take()
    assert sum(data_sizes(frames) + data_sizes(frames, 3)) == 65_535
    frames += peer.send(f.window_update(0, 1 << 20))
    answers = peer.answers(frames)
    assert [len(answers[sid][1]) for sid in (1, 3)] == [60_005, 60_005]
    assert all(answers[sid][2] for sid in (1, 3))


def test_new_settings_change_open_windows_by_the_difference():
    """A window may become negative, and must be filled up before anything is sent."""
    peer, [stream] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 10}))
    peer.sender.write(stream, bytes(8))
    assert data_sizes(peer.take()) == [8]
    peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 3}))
    assert stream.window == -5
    peer.sender.write(stream, bytes(9))
    assert data_sizes(peer.take()) == []
    assert data_sizes(peer.send(f.window_update(1, 5))) == []
    assert data_sizes(peer.send(f.window_update(1, 2))) == [2]
    assert data_sizes(peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 5}))) == [2]
    assert data_sizes(peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 50}))) == [5]


def test_settings_that_overflow_an_open_window_end_the_connection():
    """The difference counts, not the size itself."""
    peer, _ = opened(f.window_update(0, 1))
    peer.send(f.window_update(1, f.WINDOW_LARGEST - 65_535))
    frames = peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 65_536}))
    assert goaway_code(frames) == ErrorCode.FLOW_CONTROL_ERROR


def test_headers_of_a_stream_go_out_before_its_messages():
    """A client knows that its stream stands before there is a message."""
    peer, [stream] = opened()
    peer.sender.begin(stream)
    frames = peer.take()
    assert [(kind, flags) for kind, flags, *_ in frames] == [(f.HEADERS, f.END_HEADERS)]
    peer.sender.begin(stream)
    assert peer.take() == []


def test_small_messages_share_frames():
    """What was written in one turn leaves in as few frames as it fits into."""
    peer, [stream] = opened(WIDE)
    for _ in range(100):
        assert peer.sender.write(stream, prefixed(bytes(1000)))
    sizes = data_sizes(peer.take())
    assert len(sizes) == 7
    assert sum(sizes) == 100_500


def test_a_writer_is_stopped_and_asked_again():
    """False stops a writer at the limit; it is ready again once, when the queue is at half."""
    limits = ServerLimits(stream_queue_bytes=10_000)
    peer, [stream] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 0}), limits=limits)
    count = 0
    while peer.sender.write(stream, bytes(1000)):
        count += 1
    assert count == 9
    peer.take()
    assert peer.sender.ready() == []
    peer.send(f.window_update(1, 4_999))
    assert not peer.sender.has_ready
    peer.send(f.window_update(1, 1))
    assert peer.sender.has_ready
    assert peer.sender.ready() == [stream]
    assert peer.sender.ready() == []


def test_a_paused_transport_holds_messages_back():
    """Nothing of a stream goes to a transport that takes no more; control frames do."""
    peer, [stream] = opened(WIDE)
    peer.sender.is_paused = True
    peer.sender.write(stream, bytes(300_000))
    assert data_sizes(peer.send(f.ping(b"12345678"))) == []
    assert not peer.sender.has_more
    assert peer.sender.ready() == []
    peer.sender.is_paused = False
    assert peer.sender.has_more
    sent = 0
    while peer.sender.has_more:
        sent += sum(data_sizes(peer.take()))
    assert sent == 300_000
    assert peer.sender.ready() == [stream]


def test_one_turn_sends_a_bounded_number_of_bytes():
    """Much that may be sent is sent in turns, each stream in each of them."""
    limits = ServerLimits(turn_bytes_max=64_000, stream_queue_bytes=32_000)
    peer, streams = opened(WIDE, limits=limits, sids=(1, 3, 5))
    for stream in streams:
        peer.sender.write(stream, bytes(200_000))
    order = []
    while peer.sender.has_more:
        frames = peer.take()
        assert (
            sum(len(payload) for kind, *_, payload in frames if kind == f.DATA) <= 64_000 + 16_384
        )
        order.append({sid for kind, _, sid, _ in frames if kind == f.DATA})
    assert set().union(*order[:2]) == {1, 3, 5}
    assert peer.sender.queued == 0


def test_the_queues_of_all_streams_together_are_bounded():
    """Many streams that the peer does not read have a frame each once they have much together."""
    limits = ServerLimits(stream_queue_bytes=100_000, connection_queue_bytes=200_000)
    sids = range(1, 201, 2)
    peer, streams = opened(f.settings({f.INITIAL_WINDOW_SIZE: 0}), limits=limits, sids=sids)
    for stream in streams:
        while peer.sender.write(stream, bytes(1000)):
            pass
    assert peer.sender.queued < 300_000 + len(streams) * 17_384
    peer.send(f.reset(1, 8), f.reset(3, 8))
    assert peer.sender.queued == sum(stream.queued for stream in streams)


def test_streams_that_nobody_reads_do_not_stop_one_that_is_read():
    """However much is queued for others of the connection, an open window is served."""
    limits = ServerLimits(stream_queue_bytes=100_000, connection_queue_bytes=200_000)
    peer, streams = opened(
        f.window_update(0, 1 << 30),
        f.settings({f.INITIAL_WINDOW_SIZE: 0}),
        limits=limits,
        sids=range(1, 41, 2),
    )
    for stream in streams[:-1]:
        while peer.sender.write(stream, bytes(1000)):
            pass
    last = streams[-1]
    peer.send(f.window_update(last.sid, 1 << 30))
    sent = 0
    for _ in range(100):
        while peer.sender.write(last, bytes(1000)):
            pass
        sent += sum(data_sizes(peer.take(), last.sid))
        assert last in peer.sender.ready()
    assert sent >= 100 * 16_000


def test_calls_are_refused_while_large_answers_are_not_read():
    """Answers without window are kept up to a limit; behind it calls may be tried elsewhere."""
    peer, streams = opened(
        f.settings({f.INITIAL_WINDOW_SIZE: 0}),
        limits=ServerLimits(queued_bytes_max=50_000),
        sids=(1, 3, 5),
    )
    for stream in streams:
        peer.sender.reply([stream], [bytes(20_000)])
    assert resets(peer.send(peer.call(7))) == {7: ErrorCode.REFUSED_STREAM}
    opening = (f.window_update(sid, 30_000) for sid in (1, 3, 5))
    peer.send(f.window_update(0, 1 << 20), *opening)
    assert resets(peer.send(peer.call(9))) == {}


def test_writing_when_ready_never_recurses():
    """A writer that writes whenever it may, message by message of odd sizes, goes on for ever.

    `write` calls nobody back: thousands of turns use no stack.
    """
    peer, [stream] = opened(WIDE, limits=ServerLimits(stream_queue_bytes=16_384))
    written = received = 0
    for _ in range(3000):
        while peer.sender.write(stream, bytes(1091)):
            written += 1091
        written += 1091
        received += sum(data_sizes(peer.take()))
        assert peer.sender.ready() == [stream]
    assert received + stream.queued == written


def test_a_status_waits_behind_the_messages():
    """What was written before the end arrives before the end."""
    peer, [stream] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 4}))
    peer.sender.write(stream, b"abcdef")
    peer.sender.finish(stream, 14, b"bye")
    assert not peer.sender.write(stream, b"more")
    frames = peer.take()
    assert not peer.answers(frames)[1][2]
    lists, data, ended = peer.answers(peer.send(f.window_update(1, 9)))[1]
    assert data == b"ef"
    assert lists == [{"grpc-status": "14", "grpc-message": "bye"}]
    assert ended
    assert peer.connection.table.open == {}


@pytest.mark.parametrize("begun", [True, False])
def test_an_answer_before_the_end_of_the_request_tells_the_peer_to_stop(begun):
    """Behind the status comes a reset without error."""
    peer = Peer(answer=None)
    peer.send(peer.headers(1))
    stream = peer.connection.table.open[1]
    if begun:
        peer.sender.begin(stream)
    peer.sender.finish(stream, 3, b"")
    frames = peer.take()
    assert frames[-1][0] == f.RST_STREAM
    assert frames[-1][3] == bytes(4)
    assert frames[-2][1] & f.END_STREAM


def test_a_reset_stream_frees_its_queue():
    """What waited for a client that is gone is dropped and not counted."""
    peer, [stream] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 0}))
    peer.sender.write(stream, bytes(5000))
    peer.take()
    peer.send(f.reset(1, 8))
    assert peer.sender.queued == 0
    assert peer.send(f.window_update(0, 100)) == []
    assert not peer.sender.has_more


def test_a_smaller_table_of_the_peer_is_answered_in_the_next_headers():
    """After the setting the decoder that allows nothing still reads all answers."""
    peer = Peer()
    peer.answers(peer.send(peer.call(1), peer.call(3)))
    peer.send(f.settings({f.HEADER_TABLE_SIZE: 0}))
    peer.decoder.max_allowed_table_size = 0
    answers = peer.answers(peer.send(peer.call(5), peer.call(7)))
    assert [answers[sid][0][1] for sid in (5, 7)] == [{"grpc-status": "0"}] * 2


def test_a_small_answer_waits_for_the_connections_window_too():
    """An answer of few bytes is not sent into a window that others have used up."""
    peer, [first, second, third] = opened(
        f.settings({f.INITIAL_WINDOW_SIZE: 1 << 20}), sids=(1, 3, 5)
    )
    peer.sender.reply([first], [b""])
    peer.sender.reply([second], [bytes(65_525)])
    peer.take()
    assert peer.sender.window == 0
    peer.sender.reply([third], [b"abc"])
    assert data_sizes(peer.take(), 5) == []
    assert data_sizes(peer.send(f.window_update(0, 100)), 5) == [8]


def test_a_stream_that_is_finished_is_not_asked_for_more():
    """The end of a stream is the end of its wait."""
    peer, [stream] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 0}))
    assert not peer.sender.write(stream, bytes(300_000))
    peer.sender.finish(stream, 0)
    peer.send(f.window_update(1, 290_000), f.window_update(0, 290_000))
    while peer.sender.has_more:
        peer.take()
    assert stream.queued == 10_000
    assert not peer.sender.has_ready


def test_an_end_needs_no_window():
    """A stream without anything queued ends although others have used the connection's window up."""
    peer, [first, second] = opened(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 20}), sids=(1, 3))
    peer.sender.begin(second)
    peer.sender.write(first, bytes(100_000))
    peer.take()
    assert peer.sender.window == 0
    peer.sender.finish(second, 14, b"bye")
    frames = peer.take()
    assert [(kind, flags, sid) for kind, flags, sid, _ in frames] == [(f.HEADERS, 5, 3)]
    assert list(peer.connection.table.open) == [1]


STEPS = st.tuples(
    st.sampled_from(["write", "window", "window of all", "reset", "pause", "ready"]),
    st.integers(0, 7),
    st.integers(1, 3_000),
)


@given(st.lists(STEPS, max_size=120))
def test_every_stream_that_may_write_on_is_found(steps):
    """Whatever shrinks, grows, ends or pauses in between: each stopped stream with an empty queue is
    asked for more, once.
    """
    limits = ServerLimits(
        stream_queue_bytes=1_000, connection_queue_bytes=2_000, queued_bytes_max=8_000
    )
    peer = Peer(limits, answer=None)
    peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 0}), *(peer.call(sid) for sid in range(1, 16, 2)))
    sender, streams, stopped = peer.sender, peer.app.streams, set()
    for kind, number, size in steps:
        stream = streams[2 * number + 1]
        if kind == "write" and not stream.closed:
            (stopped.discard if sender.write(stream, bytes(size)) else stopped.add)(stream)
        elif kind == "window":
            peer.send(f.window_update(stream.sid, size))
        elif kind == "window of all":
            peer.send(f.window_update(0, size))
        elif kind == "reset" and not stream.closed:
            peer.send(f.reset(stream.sid, 8))
        elif kind == "pause":
            sender.is_paused = not sender.is_paused
        elif kind == "ready" and not sender.is_paused:
            found = sender.ready()
            assert len(found) == len(set(found))
            assert not any(each.closed or each.is_stopped for each in found)
            assert {each for each in stopped if not each.closed and not each.queued} <= set(found)
            stopped -= set(found)
