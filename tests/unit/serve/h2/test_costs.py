"""What streams cost is counted, as much as they cost, and taken back however they end."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.costs import ANSWER_COST_BYTES, BODY_COST_BYTES, REQUEST_COST_BYTES
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import REQUEST, Peer, prefixed

STREAMS = 2_000
CLOSED = f.settings({f.INITIAL_WINDOW_SIZE: 0})


def opened(peer, sid):
    return peer.headers(sid)


def begun(peer, sid):
    return peer.headers(sid) + f.frame(f.DATA, 0, sid, bytes(64))


def with_own_headers(peer, sid):
    return peer.headers(sid, [*REQUEST, ("x", f"{sid}".zfill(1_000))])


def answered(peer, sid):
    return peer.call(sid, b"")


@pytest.mark.parametrize("make", [opened, begun, with_own_headers, answered])
def test_a_stream_costs_what_is_counted_for_it(make):
    """Its memory is no more than that, and no less than a third of it.

    How much it is depends on the tests before this one (see `REQUEST_COST_BYTES`).
    """
    peer = Peer(ServerLimits(controls_max=1 << 30))
    peer.send(CLOSED)
    # Without its notes about requests.
    peer.app.on_request = lambda stream, body: peer.sender.reply(stream, b"")
    peer.app.parted = peer.app.cancelled = type("Nothing", (), {"append": lambda *_: None})()
    parts = [make(peer, sid) for sid in range(1, 2 * STREAMS, 2)]
    gc.collect()
    tracemalloc.start()
    try:
        peer.send(*parts)
        while peer.connection.has_input:
            peer.send()
        del parts
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    table, sender = peer.connection.table, peer.sender
    assert len(table.open) == STREAMS
    counted = table.arriving + table.unfinished + sender.ending + sender.queued
    assert counted / 3 < taken < counted


def test_a_request_costs_while_it_arrives():
    """On the short way and on the long one, with and without a body."""
    peer = Peer(answer=None)
    table = peer.connection.table
    peer.send(peer.call(1), peer.call(3))
    assert table.arriving == 0
    peer.send(peer.headers(5))
    assert table.arriving == REQUEST_COST_BYTES
    peer.send(f.frame(f.DATA, 0, 5, bytes(100)))
    assert table.arriving == REQUEST_COST_BYTES + BODY_COST_BYTES
    peer.send(peer.headers(7, [*REQUEST, ("own", "headers")]))
    assert table.arriving > 2 * REQUEST_COST_BYTES + BODY_COST_BYTES
    peer.send(f.frame(f.DATA, f.END_STREAM, 5), f.frame(f.DATA, f.END_STREAM, 7))
    assert table.arriving == 0
    assert len(peer.app.requests) == 4


ENDS = {
    "end": lambda peer, sid: f.frame(f.DATA, f.END_STREAM, sid, prefixed(b"")),
    "trailers": lambda peer, sid: peer.headers(sid, (("x", "y"),), f.END_HEADERS | f.END_STREAM),
    "bad trailers": lambda peer, sid: peer.headers(sid, ((":x", "y"),), 5),
    "reset": lambda peer, sid: f.reset(sid, 8),
    "too large": lambda peer, sid: f.frame(f.DATA, 0, sid, bytes(16_000)) * 2,
    "window": lambda peer, sid: f.window_update(sid, 0),
    "failure": lambda peer, sid: f.frame(f.PUSH_PROMISE, 0, sid),
}


@pytest.mark.parametrize("make", [opened, begun, with_own_headers])
@pytest.mark.parametrize("end", ENDS)
def test_what_arrives_no_more_costs_nothing(make, end):
    """However it ends, and whoever ends it."""
    peer = Peer(ServerLimits(message_bytes_max=20_000))
    peer.send(peer.call(1), peer.call(3))
    peer.send(*(make(peer, sid) for sid in (5, 7)))
    for sid in (5, 7):
        peer.send(ENDS[end](peer, sid))
    table = peer.connection.table
    assert (table.arriving, table.unfinished, table.unanswered) == (0, 0, 0)
    assert not table.open


@pytest.mark.parametrize("end", ["window", "reset", "failure"])
def test_an_answer_costs_while_it_waits(end):
    """From its status on, until it is sent or nobody waits for it."""
    peer = Peer()
    peer.send(peer.call(1), peer.call(3))
    peer.send(CLOSED, peer.call(5), peer.call(7))
    assert peer.sender.ending == 2 * (ANSWER_COST_BYTES + REQUEST_COST_BYTES)
    for sid in (5, 7):
        peer.send(f.window_update(sid, 1000) if end == "window" else ENDS[end](peer, sid))
    peer.take()
    assert (peer.sender.ending, peer.sender.queued) == (0, 0)
    assert not peer.connection.table.open


def test_streams_of_messages_cost_nothing_more():
    """They may be many and stay open for ever, also while nobody reads them."""
    peer = Peer(answer=None)
    peer.send(CLOSED, *(peer.call(sid) for sid in (1, 3, 5)))
    for stream in peer.app.streams.values():
        peer.sender.begin(stream)
        peer.sender.write(stream, prefixed(b"message"))
    assert (peer.connection.table.arriving, peer.sender.ending) == (0, 0)
    assert peer.sender.queued == 3 * len(prefixed(b"message"))
