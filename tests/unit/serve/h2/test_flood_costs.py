"""What one connection can make the server do before it is cut off, in processor time.

The measure is what calls with new headers cost on the same machine in the same moment, so that no
figure depends on how fast the machine is.
"""

from __future__ import annotations

import gc
import time

import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from frazil.serve.h2.reply_blocks import literal
from tests.unit.serve.h2.peer import REQUEST, Peer
from tests.unit.serve.h2.test_floods import FLOODS

CALLS = 2_000
TIMES_MAX = 6
SIDS = range(1, 2_001, 2)
CROWD = range(1, 22_001, 2)
ROUND = 500


def seconds_of(work):
    """Return the processor time of some work, without what the collector does meanwhile."""
    gc.disable()
    try:
        began = time.process_time()
        work()
        return time.process_time() - began
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def seconds_of_calls():
    """Return what calls cost whose headers were not seen before."""
    peer = Peer()
    calls = [
        peer.call(sid, b"x", [*REQUEST, ("n", str(sid))]) for sid in range(1, 2 * CALLS + 1, 2)
    ]

    def work():
        for call in calls:
            peer.connection.receive(call)
            peer.sender.take()

    return seconds_of(work)


def crowded():
    """Return a peer with as many open streams of messages as it may have, that all have something to send."""
    peer = Peer(answer=None)
    peer.send(f.settings({f.INITIAL_WINDOW_SIZE: 1 << 20}))
    peer.send(*(peer.call(sid) for sid in CROWD))
    for stream in peer.app.streams.values():
        peer.sender.write(stream, bytes(300))
    peer.take()
    return peer


def tiny_window(peer, number):
    return f.window_update(CROWD[number % len(CROWD)], 1)


def changing_windows(peer, number):
    pair = b"\0\4" + (number % 7 + 1).to_bytes(4)
    return f.frame(f.SETTINGS, 0, 0, pair * 2000)


def last_stream(peer, number):
    return 2 * number + CROWD[-1] + 2


MORE = {
    "tiny windows": tiny_window,
    "changing windows": changing_windows,
    "small data": lambda peer, number: f.frame(f.DATA, 0, last_stream(peer, -1), b"x"),
    "rapid reset": lambda peer, number: (
        peer.headers(last_stream(peer, number)) + f.reset(last_stream(peer, number), 8)
    ),
    "calls that are none": lambda peer, number: peer.headers(
        last_stream(peer, number), [("x", "1")]
    ),
}


@pytest.mark.parametrize("name", sorted({*FLOODS, *MORE}))
def test_a_flood_costs_no_more_than_some_thousand_calls(name, seconds_of_calls):
    """Each frame in a packet of its own, on a connection with all the streams that it may have."""
    peer = crowded()
    make = MORE.get(name) or FLOODS[name]
    frames = [make(peer, number) for number in range(ROUND)]
    sent = 0

    def work():
        nonlocal sent
        while sent < 40 * ROUND and peer.connection.receive(frames[sent % ROUND]):
            peer.sender.take()
            peer.sender.ready()
            sent += 1

    assert seconds_of(work) < TIMES_MAX * seconds_of_calls


def seconds_of_turns():
    """Return what each turn costs in which header blocks are read that are dear."""
    peer = Peer(ServerLimits())
    plain = b"".join(literal(name.encode(), value.encode()) for name, value in REQUEST)
    blocks = (plain + b"\x90" * 400 + literal(b"n", b"%d" % sid) for sid in SIDS)
    calls = b"".join(
        f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, sid, block)
        for sid, block in zip(SIDS, blocks, strict=True)
    )
    turns = [seconds_of(lambda: peer.connection.receive(calls))]
    while peer.connection.has_input:
        turns.append(seconds_of(lambda: peer.connection.receive(b"")))
        peer.sender.take()
    assert len(peer.app.requests) == len(SIDS)
    return turns


def test_costly_headers_never_hold_the_others_up(seconds_of_calls):
    """One turn with header blocks that are dear to read costs what some hundred calls cost.

    The turns of each round are the same. Of some hundred of them one is interrupted by the machine
    now and then, which counts as its time; not the same one in all rounds.
    """
    rounds = [seconds_of_turns() for _ in range(3)]
    assert len(rounds[0]) > 100
    turns = [min(turn) for turn in zip(*rounds, strict=True)]
    assert max(turns) < seconds_of_calls / 4
