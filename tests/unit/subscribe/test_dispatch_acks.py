"""Acks and nacks: what counts, what is durable before it is answered, what a refusal leaves."""

from __future__ import annotations

import pytest

from frazil.subscribe import (
    Backoff,
    Cause,
    Cursor,
    DeadLetter,
    FailurePolicy,
    Limits,
    NoticeKind,
    Poison,
    SubscriptionType,
)
from tests.unit.subscribe.desk import Desk

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED
DEAD = {"poison": Poison.DEAD_LETTER, "dead_letter_topic": "/default/dead"}


def delivered(kind=EXCLUSIVE, count=3, **options):
    """Return a desk with one consumer that was given some records."""
    desk = Desk(kind, **options)
    desk.attach(1)
    desk.feed(count)
    desk.poll()
    return desk


def kinds(desk):
    return [each.kind for each in desk.reported()]


def test_acks_below_the_head_count_and_others_have_no_effect():
    """A held record is settled and not delivered; settled ones and those beyond change nothing."""
    desk = delivered(limits={"max_unacked_messages": 2})
    assert desk.ack(99) is None
    assert desk.ack(2).ranges == [(2, 3)]
    desk.ack(0)
    desk.sync()
    assert desk.ack(0) is None
    assert desk.ack(2) is None
    assert desk.offsets() == []
    desk.feed(1)
    assert desk.offsets() == [3]


def test_a_late_ack_counts():
    """An ack after a time-out cancels the redelivery, in whatever state that is."""
    desk = delivered(ack_timeout_ms=100, base_redelivery_delay_ms=50)
    assert desk.poll(100) == []
    desk.ack(0)
    desk.sync()
    desk.ack(1)
    desk.sync()
    assert desk.poll(50) == [(1, 2, 2)]
    assert desk.poll(10_000) == []
    assert desk.dispatch.cursor == Cursor(2)


def test_time_outs_are_counted_durably_before_the_redelivery():
    """The next attempt waits for its delay and for the journal."""
    desk = delivered(count=1, ack_timeout_ms=200, base_redelivery_delay_ms=50)
    assert desk.dispatch.due_ms() == 200
    assert desk.poll(199) == []
    assert desk.changes == []
    desk.poll(1)
    (change,) = desk.changes
    assert (change.cause, change.offsets, change.attempts) == (Cause.TIMEOUT, [0], [2])
    assert desk.poll(60) == []
    desk.sync()
    assert desk.poll() == [(1, 0, 2)]


def test_late_nacks_are_ignored_and_repeated_ones_wait():
    """Only a record with a consumer can be given back; a repeat waits for the first."""
    desk = delivered()
    first = desk.nack(0)
    again = desk.nack(0)
    assert again.is_empty
    assert again.after == [first]
    desk.sync()
    assert desk.nack(0) is None
    assert desk.nack(77) is None
    desk.ack(1)
    assert desk.nack(1) is None


def test_a_refused_nack_leaves_the_record_with_its_consumer():
    """The consumer may nack again; the attempt was not counted."""
    desk = delivered()
    desk.nack(0)
    desk.refuse()
    assert desk.nack(0).attempts == [2]


def test_back_off_doubles():
    """Failure after failure the wait grows; fixed stays."""
    for backoff, waits in ((Backoff.EXPONENTIAL, [50, 100, 200]), (Backoff.FIXED, [50, 50, 50])):
        desk = delivered(count=1, base_redelivery_delay_ms=50, backoff=backoff)
        for attempt, wait in enumerate(waits, 2):
            desk.nack(0)
            desk.sync()
            assert desk.poll(wait - 1) == []
            assert desk.poll(1) == [(1, 0, attempt)]


def test_no_redeliveries_means_that_the_first_nack_exhausts():
    """With a count of 0 the record goes to the dead letters with the nack's reason."""
    desk = delivered(max_redelivery_count=0, **DEAD)
    desk.nack(0, reason="bad payload")
    desk.poll()
    assert desk.reported() == []
    desk.sync()
    desk.poll()
    assert desk.reported() == [DeadLetter(0, 1, "bad payload")]
    desk.dispatch.dead_letter_failed(0, now_ms=desk.now)
    desk.poll(999)
    assert desk.reported() == []
    desk.poll(1)
    assert desk.reported() == [DeadLetter(0, 1, "bad payload")]
    change = desk.dispatch.dead_lettered(0)
    assert (change.cause, change.ranges) == (Cause.DEAD_LETTER, [(0, 1)])
    assert desk.dispatch.cursor == Cursor(0)
    desk.dispatch.confirmed(change, now_ms=desk.now)
    assert desk.dispatch.cursor == Cursor(1)
    assert desk.dispatch.dead_lettered(0) is None


def test_a_dead_letter_is_settled_although_the_journal_refused_once():
    """Dispatch itself tries again: the record is not published twice."""
    desk = delivered(max_redelivery_count=0, **DEAD)
    desk.nack(0)
    desk.sync()
    desk.poll()
    desk.reported()
    desk.dispatch.failed(desk.dispatch.dead_lettered(0), now_ms=desk.now)
    desk.poll(1_000)
    assert desk.reported() == []
    assert desk.changes[0].cause is Cause.DEAD_LETTER
    desk.sync()
    assert desk.dispatch.cursor == Cursor(1)


def test_drop_settles_with_the_last_failure():
    """The nack's own change settles the record."""
    desk = delivered(max_redelivery_count=0, poison=Poison.DROP)
    change = desk.nack(0, reason="bad")
    assert (change.cause, change.ranges) == (Cause.DROP, [(0, 1)])
    desk.sync()
    desk.poll()
    (notice,) = desk.reported()
    assert (notice.kind, notice.offset, notice.reason) == (NoticeKind.DROPPED, 0, "bad")
    assert desk.dispatch.cursor == Cursor(1)


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_block_stops_the_subscription_until_the_record_is_acked(kind):
    """Nothing is delivered while a record blocks; a late ack lifts it."""
    desk = delivered(kind, max_redelivery_count=0)
    desk.nack(1)
    desk.sync()
    desk.feed(2)
    assert desk.offsets(10_000) == []
    assert kinds(desk) == [NoticeKind.BLOCKED]
    assert desk.dispatch.status().paused == "blocked"
    desk.ack(1)
    assert desk.offsets() == []
    desk.sync()
    assert desk.offsets() == [3, 4]
    assert kinds(desk) == [NoticeKind.UNBLOCKED]


def test_another_policy_judges_blocked_records_anew():
    """More redeliveries deliver it again; dead letters take it."""
    desk = delivered(count=2, max_redelivery_count=0)
    desk.nack(0, reason="bad")
    desk.nack(1)
    desk.sync()
    desk.poll()
    desk.dispatch.configure(FailurePolicy(max_redelivery_count=1), desk.limits, now_ms=desk.now)
    assert desk.poll() == [(1, 0, 2), (1, 1, 2)]
    desk.nack(0, reason="worse")
    desk.sync()
    desk.poll()
    desk.reported()
    desk.dispatch.configure(
        FailurePolicy(max_redelivery_count=1, **DEAD),
        Limits(max_unacked_messages=5),
        now_ms=desk.now,
    )
    desk.poll()
    assert DeadLetter(0, 2, "worse") in desk.reported()


@pytest.mark.parametrize("poison", list(Poison))
def test_clients_that_go_fail_no_record_for_good(poison):
    """Consumers may come and go for ever: the last attempt is repeated, in order."""
    desk = delivered(ack_timeout_ms=0, max_redelivery_count=1, **{**DEAD, "poison": poison})
    for consumer in range(2, 9):
        desk.detach(consumer - 1)
        desk.attach(consumer)
        got = desk.poll()
        desk.sync()
        got += desk.poll()
        assert got == [(consumer, offset, 2) for offset in (0, 1, 2)]
    assert desk.reported() == []
    assert len(desk.ack(0, 1, 2).offsets) == 3


def test_a_record_that_blocked_blocks_after_a_restart():
    """What comes before it is delivered, what comes behind it is not."""
    desk = Desk(EXCLUSIVE, attempts={1: 2}, max_redelivery_count=0)
    desk.attach(1)
    desk.feed(4)
    assert desk.offsets() == [0]
    assert desk.dispatch.status().blocked == 1


def test_a_record_that_was_to_be_dropped_is_dropped_after_a_restart():
    """A policy that drops settles it without another delivery."""
    desk = Desk(EXCLUSIVE, attempts={0: 2}, max_redelivery_count=0, poison=Poison.DROP)
    desk.attach(1)
    desk.feed(2)
    assert desk.offsets() == [1]
    desk.poll()
    assert desk.changes[0].ranges == [(0, 1)]


def test_a_refused_ack_after_the_record_was_passed_over_delivers_it():
    """A held record whose ack was on its way is not lost when the ack fails."""
    desk = Desk(EXCLUSIVE, attempts={0: 2})
    desk.feed(2)
    desk.ack(0)
    desk.attach(1)
    assert desk.offsets() == [1]
    desk.refuse()
    assert desk.poll() == [(1, 0, 2)]


def test_an_ack_before_the_dead_letter_prevents_it():
    """A record that a late ack settled is not published as a dead letter."""
    desk = delivered(max_redelivery_count=0, **DEAD)
    desk.nack(0)
    desk.sync()
    desk.ack(0)
    desk.sync()
    desk.poll(10_000)
    assert desk.reported() == []
    assert desk.dispatch.cursor == Cursor(1)
