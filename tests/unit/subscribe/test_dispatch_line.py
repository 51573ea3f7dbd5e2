"""Exclusive, Failover and Shared: who gets what, in which order, within which window."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict
from frazil.subscribe import Cursor, Notice, NoticeKind, SubscriptionType
from tests.unit.subscribe.desk import Desk

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
FAILOVER = SubscriptionType.FAILOVER


def test_records_come_in_offset_order_within_the_window():
    """No more than the window is out; each durable ack lets the next one through."""
    desk = Desk(EXCLUSIVE, limits={"max_unacked_messages": 3})
    desk.attach(1)
    desk.feed(6)
    assert desk.offsets() == [0, 1, 2]
    desk.ack(1)
    assert desk.offsets() == []
    desk.sync()
    assert desk.offsets() == [3]
    assert desk.dispatch.cursor == Cursor(0, [(1, 2)])
    desk.ack(0, 2)
    desk.sync()
    assert desk.offsets() == [4, 5]
    assert desk.dispatch.cursor == Cursor(3)


def test_the_window_in_bytes_lets_the_crossing_record_through():
    """Records go out while fewer bytes than the limit are out; a huge one goes alone."""
    desk = Desk(EXCLUSIVE, limits={"max_unacked_bytes": 25})
    desk.attach(1)
    desk.feed(5)
    assert desk.offsets() == [0, 1, 2]
    desk.ack(0, 1, 2)
    desk.sync()
    assert desk.offsets() == [3, 4]
    desk.feed(2, size=1_000)
    assert desk.offsets() == [5]


def test_a_consumer_gets_nothing_before_it_wants():
    """Messages and bytes that the stream takes are used up by deliveries."""
    desk = Desk(EXCLUSIVE)
    desk.attach(1, messages=0)
    desk.feed(9)
    assert desk.offsets() == []
    desk.dispatch.want(1, messages=2, size_bytes=100)
    assert desk.offsets() == [0, 1]
    desk.dispatch.want(1, messages=100, size_bytes=15)
    assert desk.offsets() == [2, 3]
    assert desk.offsets() == []
    assert desk.offsets() == []


def test_a_second_exclusive_consumer_is_refused():
    """Only one of the same name may come, and it displaces the first."""
    desk = Desk(EXCLUSIVE)
    desk.attach(1, "reader")
    with pytest.raises(Conflict, match="exclusive"):
        desk.attach(2, "other")
    desk.feed(2)
    assert desk.poll() == [(1, 0, 1), (1, 1, 1)]
    desk.attach(2, "reader")
    desk.poll()
    desk.sync()
    assert desk.poll() == [(2, 0, 2), (2, 1, 2)]
    desk.detach(2)
    desk.attach(3, "other")


def test_a_standby_is_promoted_when_the_active_consumer_is_gone():
    """The one that came next gets everything, what was unacked first."""
    desk = Desk(FAILOVER)
    desk.attach(1)
    desk.attach(2)
    desk.attach(3)
    desk.feed(2)
    assert desk.poll() == [(1, 0, 1), (1, 1, 1)]
    desk.detach(1)
    desk.feed(1)
    desk.poll()
    desk.sync()
    assert desk.poll() == [(2, 0, 2), (2, 1, 2), (2, 2, 1)]
    assert desk.reported() == [Notice(NoticeKind.PROMOTED)]
    assert desk.dispatch.status().active_id == 2
    desk.attach(1)
    desk.feed(1)
    assert desk.poll() == [(2, 3, 1)]
    assert desk.dispatch.status().active_id == 2
    desk.detach(3)
    assert desk.poll() == []


def test_what_is_held_is_bounded():
    """The reader learns how much it may bring."""
    desk = Desk(EXCLUSIVE, limits={"held_max": 7})
    assert desk.dispatch.room == 7
    desk.feed(7)
    assert desk.dispatch.room == 0
    desk.attach(1)
    desk.poll()
    assert desk.dispatch.room == 7


def test_gaps_of_a_topic_count_as_settled():
    """Offsets without a record are passed, and go into the journal with the next ack."""
    desk = Desk(EXCLUSIVE)
    desk.attach(1)
    desk.dispatch.feed([2, 3, 6], [1, 1, 1], offset_end=9)
    assert desk.offsets() == [2, 3, 6]
    assert desk.dispatch.cursor == Cursor(2, [(4, 6), (7, 9)])
    change = desk.ack(2, 3)
    assert sorted(change.ranges) == [(0, 2), (2, 4), (4, 6), (7, 9)]
    desk.refuse()
    assert sorted(desk.ack(2, 3, 6).ranges) == [(0, 2), (2, 4), (4, 6), (6, 7), (7, 9)]
    desk.sync()
    assert desk.dispatch.cursor == Cursor(9)


def test_a_status_says_what_goes_on():
    """Counts of consumers, held and unacked records, and progress are shown."""
    desk = Desk(EXCLUSIVE, limits={"max_unacked_messages": 2})
    desk.attach(4)
    desk.feed(5)
    desk.poll()
    desk.ack(1)
    desk.sync()
    status = desk.dispatch.status()
    assert (status.consumers, status.active_id, status.held) == (1, 4, 3)
    assert (status.unacked, status.unacked_bytes) == (1, 10)
    assert (status.cursor.acked_below, status.cursor.acked_above, status.cursor.range_count) == (
        0,
        1,
        1,
    )
    assert (status.blocked, status.paused) == (0, None)


def test_an_active_consumer_that_subscribes_again_stays_active():
    """A takeover by the same name is no reason to promote a standby."""
    desk = Desk(FAILOVER)
    desk.attach(1, "a")
    desk.attach(2, "b")
    desk.feed(1)
    desk.poll()
    desk.attach(1, "a")
    desk.poll()
    desk.sync()
    assert desk.poll() == [(1, 0, 2)]
    assert desk.reported() == []
