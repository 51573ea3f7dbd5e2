"""The time that a record may be with a consumer: prolonged, or not counted at all."""

from __future__ import annotations

from frazil.subscribe import Alarms, Cause, SubscriptionType
from tests.unit.subscribe.desk import Desk

SHARED = SubscriptionType.SHARED
TIMEOUT_MS = 1_000


def desk_with(*consumers, kind=SHARED, count=3, **policy):
    """Return a desk that delivered records."""
    policy = {"ack_timeout_ms": TIMEOUT_MS, "base_redelivery_delay_ms": 0, **policy}
    desk = Desk(kind, **policy)
    for each in consumers:
        desk.attach(each)
    desk.feed(count)
    assert sorted(desk.offsets()) == list(range(count))
    return desk


def timed_out(desk, after_ms):
    """Let time pass; return what timed out."""
    assert desk.offsets(after_ms) == []
    changes = [each for each in desk.changes if each.cause is Cause.TIMEOUT]
    return [offset for each in changes for offset in each.offsets]


def test_a_record_that_is_prolonged_stays_until_then():
    """Others of the same delivery time out when they would; `overdue` returns them beforehand."""
    desk = desk_with(1)
    desk.dispatch.prolong(1, until_ms=2_500)
    assert desk.dispatch.due_ms() == 1_000
    assert timed_out(desk, 1_000) == [0, 2]
    desk.sync()
    assert sorted(desk.poll()) == [(1, 0, 2), (1, 2, 2)]
    assert timed_out(desk, 1_000) == [0, 2]
    assert desk.dispatch.due_ms() <= 2_500
    assert timed_out(desk, 499) == [0, 2]
    assert timed_out(desk, 1) == [0, 2, 1]


def test_more_time_may_be_given_again_and_again():
    """The last word counts, be it sooner or later than the one before."""
    desk = desk_with(1, count=1)
    for until_ms in (5_000, 3_000, 9_000):
        desk.dispatch.prolong(0, until_ms=until_ms)
        assert desk.dispatch.due_ms() <= until_ms
    assert timed_out(desk, 8_999) == []
    desk.dispatch.prolong(0, until_ms=12_000)
    assert timed_out(desk, 3_000) == []
    assert timed_out(desk, 1) == [0]
    desk.sync()
    assert desk.poll() == [(1, 0, 2)]
    # The next delivery has the time of every other.
    assert desk.dispatch.due_ms() == desk.now + TIMEOUT_MS


def test_only_what_is_with_a_consumer_can_be_prolonged():
    """Records that wait, are settled or were never delivered are as they were."""
    desk = desk_with(1, base_redelivery_delay_ms=500, max_redelivery_delay_ms=500)
    desk.nack(1)
    desk.ack(2)
    desk.sync()
    for offset in (1, 2, 7):
        desk.dispatch.prolong(offset, until_ms=50_000)
    assert desk.poll(500) == [(1, 1, 2)]
    assert timed_out(desk, 500) == [0]
    assert timed_out(desk, 500) == [0, 1]


def test_overdue_records_are_returned_before_they_count():
    """Looking changes nothing; what is not prolonged then fails with the next poll."""
    desk = desk_with(1, 2)
    desk.dispatch.prolong(2, until_ms=900)
    assert desk.dispatch.overdue(899) == []
    assert desk.dispatch.overdue(999) == [2]
    assert [desk.dispatch.overdue(1_000) for _ in range(2)] == [[0, 1, 2]] * 2
    assert [desk.dispatch.holder(offset) for offset in range(4)] == [1, 2, 1, None]
    desk.dispatch.prolong(0, until_ms=1_500)
    assert timed_out(desk, 1_000) == [1, 2]


def test_without_a_time_for_acks_nothing_is_overdue():
    """With a time-out of 0 a record stays for ever, also one that was given a time."""
    desk = desk_with(1, ack_timeout_ms=0)
    desk.dispatch.prolong(0, until_ms=10)
    assert desk.dispatch.overdue(10**9) == []
    assert desk.dispatch.due_ms() is None
    assert timed_out(desk, 10**9) == []


def test_what_is_taken_back_keeps_the_order_of_a_line():
    """With what a consumer had when it left it comes in offset order, before all else."""
    desk = desk_with(1, kind=SubscriptionType.EXCLUSIVE, count=4)
    desk.dispatch.take_back(1, [2, 3])
    desk.detach(1)
    desk.attach(2)
    desk.feed(1)
    assert desk.poll() == []
    desk.sync()
    assert desk.poll() == [(2, 0, 2), (2, 1, 2), (2, 2, 1), (2, 3, 1), (2, 4, 1)]


def test_an_alarm_rings_once_at_its_last_time():
    """Moved and cleared alarms do not ring at their first time, and do not pile up."""
    alarms = Alarms()
    for offset in range(100):
        alarms.set(offset, 1_000 - offset)
    alarms.set(99, 5_000)
    alarms.set(98, 902)
    alarms.clear(97)
    assert alarms.ring(905) == [95, 96, 98]
    assert alarms.ring(905) == []
    for _ in range(1_000):
        alarms.set(1, 7_000)
    assert len(alarms._heap) < 400
