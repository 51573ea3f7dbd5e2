"""Requests that never come are found, and those that come slowly but steadily are not."""

from __future__ import annotations

import attrs
import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.arriving import Arrivals
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.h2.peer import Peer

LEAST = 1_000
LIMITS = ServerLimits(
    tick_s=1.0,
    arriving_s=4.0,
    arriving_bytes_min=LEAST,
    arriving_looks_min=1,
    message_bytes_max=10_000,
)


class Watched(Peer):
    """A peer whose requests are watched; the connection looks with every fourth tick."""

    def __init__(self, limits=LIMITS, number=0):
        super().__init__(limits, answer=None)
        self.arrivals = Arrivals(limits, self.connection.table, number=number)

    def tick(self):
        """Let a tick pass; return the streams that are too slow."""
        return [stream.sid for stream in self.arrivals.tick(self.connection.data_bytes)]

    def look(self):
        """Let ticks pass until the connection has looked; return the streams that are too slow."""
        return [sid for _ in range(4) for sid in self.tick()]

    def bring(self, sid, size):
        self.send(f.frame(f.DATA, 0, sid, bytes(size)))


def test_requests_that_never_come_are_found():
    """Those without a body, and those whose body stops, when they are looked at again."""
    peer = Watched()
    peer.send(peer.headers(1), peer.headers(3), peer.headers(5))
    peer.bring(3, 5 * LEAST)
    assert peer.look() == []
    peer.send(peer.headers(7))
    assert peer.look() == [1, 3, 5]
    assert peer.look() == [1, 3, 5, 7]


def test_a_request_that_keeps_the_rate_is_never_too_slow():
    """The slowest that is allowed takes its time until the largest message is here."""
    peer = Watched()
    peer.send(peer.headers(1))
    for _ in range(LIMITS.message_bytes_max // LEAST):
        assert peer.look() == []
        peer.bring(1, LEAST)
    assert peer.look() == []
    peer.send(f.frame(f.DATA, f.END_STREAM, 1))
    assert peer.app.requests == [(1, bytes(LIMITS.message_bytes_max))]


def test_a_request_a_byte_below_the_rate_is_too_slow():
    """What it brought before does not help."""
    peer = Watched()
    peer.send(peer.headers(1))
    peer.bring(1, 8 * LEAST)
    assert peer.look() == []
    peer.bring(1, LEAST - 1)
    assert peer.look() == [1]


def test_requests_that_share_a_slow_link_are_not_too_slow():
    """Each brings a little in turn with the others: it is enough that all bring it together."""
    peer = Watched()
    sids = range(1, 21, 2)
    peer.send(*(peer.headers(sid) for sid in sids))
    for _ in range(8):
        assert peer.look() == []
        for sid in sids:
            peer.bring(sid, LEAST // 10)
    assert peer.look() == []
    peer.bring(1, LEAST - 1)
    assert peer.look() == list(sids)


def test_one_request_may_wait_for_the_other():
    """A client that sends them one behind the other brings enough for all of them."""
    peer = Watched()
    peer.send(*(peer.headers(sid) for sid in (1, 3, 5)))
    for sid in (1, 1, 3, 3, 5):
        assert peer.look() == []
        peer.bring(sid, LEAST)
    assert peer.look() == []
    assert peer.look() == [1, 3, 5]


def test_headers_may_come_long_before_small_requests():
    """Clients with many calls write all headers first; what follows in one piece is progress, too."""
    peer = Watched()
    sids = range(1, 19, 2)
    peer.send(*(peer.headers(sid) for sid in sids))
    for sid in sids:
        assert peer.look() == []
        peer.send(f.frame(f.DATA, f.END_STREAM, sid, bytes(LEAST)))
    assert [sid for sid, _ in peer.app.requests] == list(sids)


def test_nobody_waits_longer_than_the_largest_message_takes():
    """Others that bring enough do not keep a request open for ever that brings nothing."""
    peer = Watched()
    peer.send(peer.headers(1))
    looks = 0
    for sid in range(3, 1_000, 2):
        peer.send(peer.headers(sid))
        peer.bring(sid, 4 * LEAST)
        if found := peer.look():
            assert found == [1]
            break
        peer.send(f.frame(f.DATA, f.END_STREAM, sid))
        looks += 1
    assert looks == LIMITS.message_bytes_max // LEAST + 1


def test_requests_wait_for_each_other_however_small_the_largest_is():
    """A server of small messages has as many of them on their way, so it looks no less often."""
    peer = Watched(attrs.evolve(LIMITS, message_bytes_max=LEAST, arriving_looks_min=10))
    peer.send(peer.headers(1))
    found = []
    for sid in range(3, 25, 2):
        found.append(peer.look())
        peer.send(peer.call(sid, bytes(LEAST)))
    assert found == [[]] * 11
    assert peer.look() == [1]


def test_requests_that_are_here_are_never_too_slow():
    """Whether they wait for their answer, have begun to get it, or have it."""
    peer = Watched()
    peer.send(*(peer.call(sid) for sid in (1, 3, 5)))
    peer.sender.begin(peer.app.streams[3])
    peer.sender.reply(peer.app.streams[5], b"")
    assert [peer.look() for _ in range(20)] == [[]] * 20
    assert list(peer.connection.table.open) == [1, 3]


def test_a_bounded_number_is_refused_with_one_tick():
    """The others have their turn with the next ones, unless they came meanwhile."""
    limits = ServerLimits(tick_s=1.0, arriving_s=4.0, arriving_refused_max=2)
    peer = Watched(limits)
    peer.send(*(peer.headers(sid) for sid in (1, 3, 5, 7, 9)))
    assert peer.look() == []
    assert [peer.tick() for _ in range(4)] == [[], [], [], [1, 3]]
    peer.send(f.frame(f.DATA, f.END_STREAM, 5), f.reset(7, 8))
    assert [peer.tick(), peer.tick()] == [[], [9]]


@pytest.mark.parametrize("number", range(4))
def test_connections_look_at_different_ticks(number):
    """One after the other, so that not all refuse at once; each request has the whole time."""
    peer = Watched(number=number)
    peer.send(peer.headers(1))
    found = [peer.tick() for _ in range(8)]
    assert found.index([1]) == 7 - number
    assert found.count([1]) == 1
