"""Who of several consumers gets a free place of the window."""

from __future__ import annotations

import pytest

from frazil.subscribe import Poison, SubscriptionType
from tests.unit.subscribe.desk import Desk

SHARED, BY_KEY = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def desk_of(kind, *consumers, window=10, **policy):
    desk = Desk(kind, limits={"max_unacked_messages": window}, **policy)
    for consumer in consumers:
        desk.attach(consumer)
    return desk


def got_by(delivered, consumer):
    return [offset for who, offset, _ in delivered if who == consumer]


def test_shared_consumers_take_turns_whatever_they_have():
    """Each free place is for whose turn it is, so that who acks late is not left out."""
    desk = desk_of(SHARED, 1, 2)
    desk.feed(40)
    delivered = desk.poll()
    assert len(got_by(delivered, 1)) == len(got_by(delivered, 2)) == 5
    late = got_by(delivered, 2)
    while mine := got_by(delivered, 1):
        for offset in mine:
            desk.ack(offset)
            desk.sync()
        delivered = desk.poll()
        late += got_by(delivered, 2)
    assert len(late) == 10


def test_who_takes_nothing_keeps_nobody_from_the_window():
    """Consumers whose streams are full lose their turns: all of it goes to the one that has room."""
    desk = desk_of(SHARED, *range(1, 11))
    for consumer in range(2, 11):
        desk.dispatch.want(consumer, messages=0, size_bytes=0)
    desk.feed(100)
    assert got_by(desk.poll(), 1) == [*range(10)]
    desk.ack(0, 1, 2)
    desk.sync()
    assert desk.dispatch.is_hungry
    assert got_by(desk.poll(), 1) == [10, 11, 12]


def test_by_key_the_window_is_whoevers_records_wait():
    """Records of different keys fill it in offset order, however unevenly their owners have them."""
    desk = Desk(BY_KEY, limits={"max_unacked_messages": 10})
    desk.attach(1, filters=["a*"])
    desk.attach(2, filters=["b"])
    desk.feed(keys=["b"])
    assert desk.poll() == [(2, 0, 1)]
    desk.ack(0)
    desk.sync()
    desk.feed(keys=[f"a{number}" for number in range(20)])
    assert desk.offsets() == [*range(1, 11)]
    desk.ack(1)
    desk.sync()
    desk.feed(keys=["b"])
    assert desk.poll() == [(1, 11, 1)]


def test_ten_records_of_different_keys_are_out_at_once():
    """However many consumers there are: a new key goes to the one that has fewest."""
    for consumers in range(1, 12):
        desk = desk_of(BY_KEY, *range(1, consumers + 1))
        desk.feed(keys=[f"k{number}" for number in range(10)])
        assert sorted(desk.offsets()) == [*range(10)]


def test_a_policy_that_shrinks_delivers_what_was_taken_back():
    """It was met in this life, so it is not judged as one that failed before it began."""
    desk = Desk(BY_KEY, base_redelivery_delay_ms=0, max_redelivery_count=5)
    desk.attach(1)
    desk.feed(keys=["a", "a"])
    desk.poll()
    desk.nack(0)
    desk.sync()
    assert desk.poll() == [(1, 0, 2)]
    policy = desk.dispatch._policy
    desk.dispatch.configure(type(policy)(max_redelivery_count=0), desk.limits, now_ms=desk.now)
    desk.dispatch.take_back(1, [0])
    assert desk.poll() == [(1, 0, 2)]
    assert desk.dispatch.status().unacked_bytes == 10


@pytest.mark.parametrize("limit", [{"max_unacked_messages": 2}, {"max_unacked_bytes": 20}])
def test_blocked_records_are_beside_the_window_of_other_keys(limit):
    """Neither their number nor their bytes stop keys that are not blocked; once settled they are not."""
    desk = Desk(BY_KEY, limits=limit, max_redelivery_count=0, poison=Poison.BLOCK)
    desk.attach(1)
    desk.feed(keys=["a", "b", "c", "d", "e"])
    assert desk.offsets() == [0, 1]
    desk.nack(0)
    desk.nack(1)
    desk.sync()
    assert desk.offsets() == [2, 3]
    desk.ack(0)
    desk.sync()
    assert desk.offsets() == []
    desk.ack(2)
    desk.sync()
    assert desk.offsets() == [4]
