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


def test_by_key_what_a_consumer_failed_at_and_waits_is_its_own():
    """One that lets everything time out is not before the others each time."""
    policy = {"ack_timeout_ms": 100, "base_redelivery_delay_ms": 10_000}
    desk = Desk(BY_KEY, limits={"max_unacked_messages": 4}, **policy)
    desk.attach(1, filters=["a*"])
    desk.attach(2, filters=["b*"])
    desk.feed(keys=["a0", "a1", "b0", "b1"])
    assert sorted(desk.poll()) == [(1, 0, 1), (1, 1, 1), (2, 2, 1), (2, 3, 1)]
    desk.poll(100)
    desk.sync()
    desk.ack(2)
    desk.sync()
    desk.feed(keys=["a2", "b2"])
    assert desk.poll() == [(2, 5, 1)]


@pytest.mark.parametrize("how", ["comes again", "is settled", "is dropped"])
def test_what_a_consumer_failed_at_is_its_own_no_longer(how):
    """When the record goes to somebody or is settled, its consumer owes nothing."""
    policy = {"max_redelivery_count": 0} if how == "is dropped" else {}
    desk = desk_of(
        BY_KEY, 1, 2, window=2, base_redelivery_delay_ms=100, poison=Poison.DROP, **policy
    )
    desk.feed(keys=["a", "b"])
    assert sorted(desk.poll()) == [(1, 0, 1), (2, 1, 1)]
    desk.nack(0)
    if how == "is settled":
        desk.ack(0)
    desk.sync()
    if how == "comes again":
        assert desk.dispatch._members[1].out == 1
        assert desk.poll(100) == [(1, 0, 2)]
        desk.ack(0)
        desk.sync()
    desk.poll()
    assert desk.dispatch._members[1].out == 0


def test_by_key_those_that_have_less_go_first():
    """Whoever has its share waits for the others, and then has what is left."""
    desk = desk_of(BY_KEY, 1, 2, window=4)
    desk.feed(keys=["a", "b"])
    assert sorted(desk.poll()) == [(1, 0, 1), (2, 1, 1)]
    desk.feed(keys=["c", "d", "e", "f"])
    assert sorted(desk.poll()) == [(1, 2, 1), (2, 3, 1)]


def test_by_key_the_window_is_whoevers_records_wait():
    """Records of different keys fill it, however unevenly their owners have them or had them."""
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
    assert desk.poll() == [(2, 21, 1)]


def test_by_key_what_idle_consumers_wait_for_is_looked_for_behind_a_full_window():
    """It is read ahead of: or who has a backlog would get each place before others are even read."""
    desk = Desk(BY_KEY, limits={"max_unacked_messages": 4})
    desk.attach(1, filters=["a*"])
    desk.attach(2, filters=["b"])
    desk.feed(keys=[f"a{number}" for number in range(9)])
    assert desk.offsets() == [0, 1, 2, 3]
    assert desk.dispatch.is_full
    assert desk.dispatch.is_hungry
    desk.feed(keys=["b"])
    assert not desk.dispatch.is_hungry
    assert desk.poll() == []
    desk.ack(0)
    desk.sync()
    assert desk.poll() == [(2, 9, 1)]
    desk.ack(9)
    desk.sync()
    assert desk.poll() == [(1, 4, 1)]
    desk.dispatch.want(2, messages=0, size_bytes=0)
    assert not desk.dispatch.is_hungry


def test_ten_records_of_different_keys_are_out_at_once():
    """However many consumers there are: a new key goes to the one that has fewest."""
    for consumers in range(1, 12):
        desk = desk_of(BY_KEY, *range(1, consumers + 1))
        desk.feed(keys=[f"k{number}" for number in range(10)])
        assert sorted(desk.offsets()) == [*range(10)]


def test_by_key_what_nobody_saw_leaves_its_place_to_others():
    """It waits for its owner beside the window, before all else of its key, and is delivered once."""
    desk = Desk(BY_KEY, limits={"max_unacked_messages": 2})
    desk.attach(1, filters=["a*"])
    desk.feed(keys=["a1", "a2"])
    assert desk.offsets() == [0, 1]
    desk.attach(2, filters=["b*"])
    desk.dispatch.want(1, messages=0, size_bytes=0)
    desk.feed(keys=["a1", "b1", "b2", "b3"])
    assert desk.poll() == []
    desk.dispatch.take_back(1, [0, 1])
    assert desk.poll() == [(2, 3, 1), (2, 4, 1)]
    desk.dispatch.want(1, messages=10, size_bytes=1000)
    assert desk.poll() == []
    desk.ack(3, 4)
    desk.sync()
    assert desk.poll() == [(1, 0, 1), (2, 5, 1)]
    desk.ack(0, 5)
    desk.sync()
    assert desk.poll() == [(1, 1, 1), (1, 2, 1)]


def test_by_key_what_nobody_saw_may_be_acked():
    """A late ack settles it where it waits, and the next of its key follows."""
    desk = Desk(BY_KEY, limits={"max_unacked_messages": 2})
    desk.attach(1)
    desk.feed(keys=["a", "a"])
    assert desk.offsets() == [0]
    desk.dispatch.take_back(1, [0])
    desk.ack(0)
    desk.sync()
    assert desk.offsets() == [1]
    assert desk.dispatch._window() == (1, desk.dispatch._limits.max_unacked_bytes - 10)


def test_a_policy_that_shrinks_delivers_what_was_set_aside():
    """It was met in this life, so it is not judged as one that failed before it began."""
    desk = Desk(BY_KEY, base_redelivery_delay_ms=0, max_redelivery_count=5)
    desk.attach(1)
    desk.feed(keys=["a", "a"])
    desk.poll()
    desk.nack(0)
    desk.sync()
    assert desk.poll() == [(1, 0, 2)]
    policy = desk.dispatch._records._policy
    desk.dispatch.configure(type(policy)(max_redelivery_count=0), now_ms=desk.now)
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
