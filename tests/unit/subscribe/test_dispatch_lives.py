"""Nacks of clients that outlived the broker: what an earlier life delivered is given back."""

from __future__ import annotations

import pytest

from frazil.subscribe import Cause, Cursor, Dispatch, FailurePolicy, Limits, Poison
from frazil.subscribe import SubscriptionType as Kind
from tests.unit.subscribe.desk import Desk


def next_life(kind=Kind.EXCLUSIVE, *, delivered_below=3, attempts=None, dues_ms=None, **policy):
    """Return a desk whose earlier life may have delivered some records, and acked none."""
    desk = Desk(kind, **policy)
    desk.dispatch = Dispatch(
        kind,
        policy=FailurePolicy(**{"base_redelivery_delay_ms": 100, **policy}),
        limits=Limits(max_unacked_messages=100),
        cursor=Cursor(0, []),
        attempts=attempts,
        dues_ms=dues_ms,
        delivered_below=delivered_below,
    )
    return desk


def feed(desk, count):
    is_by_key = desk.dispatch.kind is Kind.KEY_SHARED
    desk.feed(count, keys=[str(number) for number in range(count)] if is_by_key else None)


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("when", ["before feeding", "while held"])
def test_a_nack_of_what_an_earlier_life_delivered_counts(kind, when):
    """The record comes as the second attempt, when the delay is over; others do not wait for it."""
    desk = next_life(kind)
    if when == "while held":
        feed(desk, 5)
    assert desk.nack(1, delay_ms=300).attempts == [2]
    if when == "before feeding":
        feed(desk, 5)
    desk.attach(1)
    assert desk.offsets() == [0, 2, 3, 4]
    desk.sync()
    assert desk.offsets(299) == []
    assert desk.poll(1) == [(1, 1, 2)]


def test_a_nack_of_what_no_life_delivered_has_no_effect():
    """Nor does one of a record that this life has not sent yet."""
    desk = next_life(delivered_below=1)
    feed(desk, 3)
    assert desk.nack(1) is None
    desk.attach(1)
    assert desk.offsets() == [0, 1, 2]
    desk.dispatch.unsent(1, [0])
    assert desk.nack(0) is None


def test_a_delivery_that_was_counted_is_not_counted_again():
    """The nack may be why it was counted: it puts the next delivery off, and its number stays."""
    desk = next_life(attempts={1: 2})
    feed(desk, 3)
    assert desk.nack(1, delay_ms=5_000).attempts == [2]
    desk.sync()
    desk.attach(1)
    assert desk.offsets() == [0, 2]
    assert desk.offsets(4_999) == []
    assert desk.poll(1) == [(1, 1, 2)]


def test_one_that_waits_already_waits_as_long_as_it_did():
    """Its nack came before the restart: repeated it changes nothing."""
    desk = next_life(attempts={1: 2}, dues_ms={1: 400})
    assert desk.nack(1, delay_ms=5_000) is None
    feed(desk, 2)
    desk.attach(1)
    assert desk.offsets() == [0]
    assert desk.poll(400) == [(1, 1, 2)]


def test_a_repeated_nack_waits_for_the_first():
    """It is answered when that is durable, and counts nothing."""
    desk = next_life()
    first = desk.nack(1)
    again = desk.nack(1)
    assert (again.is_empty, again.after) == (True, [first])


@pytest.mark.parametrize("is_met", [True, False])
def test_a_refused_nack_leaves_the_record_as_it_was(is_met):
    """It is delivered as the first attempt; nothing was counted."""
    desk = next_life()
    desk.nack(1, delay_ms=5_000)
    feed(desk, 3)
    if is_met:
        desk.attach(1)
        assert desk.offsets() == [0, 2]
    desk.refuse()
    if not is_met:
        desk.attach(1)
    assert (1, 1, 1) in desk.poll()


def test_an_ack_after_the_nack_settles_the_record():
    """Whatever the journal says of the nack, it does not come."""
    desk = next_life()
    desk.nack(1)
    assert desk.ack(1).ranges == [(1, 2)]
    desk.sync()
    feed(desk, 3)
    desk.attach(1)
    assert desk.offsets(10_000) == [0, 2]


def test_a_last_nack_drops_the_record():
    """Without redeliveries it is settled before this life met it."""
    desk = next_life(max_redelivery_count=0, poison=Poison.DROP)
    assert desk.nack(1).cause is Cause.DROP
    desk.sync()
    feed(desk, 3)
    desk.attach(1)
    assert desk.offsets(10_000) == [0, 2]


def test_a_last_nack_blocks_when_the_record_is_met():
    """Under the policy block the subscription stops at it, and not before."""
    desk = next_life(max_redelivery_count=0, poison=Poison.BLOCK)
    desk.nack(1)
    desk.sync()
    desk.attach(1)
    feed(desk, 3)
    assert desk.offsets() == [0]
    assert desk.dispatch.status().blocked == 1


def test_the_failures_of_what_a_quota_took_are_forgotten():
    """A record that was given back and is no more leaves nothing behind."""
    desk = next_life(attempts={0: 2})
    desk.nack(1)
    desk.sync()
    desk.dispatch.feed([2], [10], offset_end=3)
    desk.attach(1)
    assert desk.offsets() == [2]
    assert not desk.dispatch._records._attempts
    assert not desk.dispatch._schedule.special
