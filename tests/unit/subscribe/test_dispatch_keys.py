"""KeyShared: sticky keys, order per key, filters."""

from __future__ import annotations

from frazil.subscribe import Cause, Cursor, NoticeKind, SubscriptionType
from tests.unit.subscribe.desk import Desk


def desk_of(*consumers, **options):
    desk = Desk(SubscriptionType.KEY_SHARED, **options)
    for consumer in consumers:
        desk.attach(consumer)
    return desk


def test_a_join_keeps_the_order_of_keys():
    """Keys stay with their owner; what is out stays out."""
    desk = desk_of(1)
    desk.feed(keys=["a", "a", "a"])
    desk.poll()
    desk.attach(2)
    assert desk.poll() == []
    desk.ack(0)
    desk.sync()
    assert desk.poll() == [(1, 1, 1)]


def test_keys_of_a_lost_consumer_move_in_order():
    """The unacked record of a key comes first, then those behind it."""
    desk = desk_of(1, 2)
    desk.feed(keys=["a", "b", "a", "b"])
    assert desk.poll() == [(1, 0, 1), (2, 1, 1)]
    desk.detach(1)
    desk.poll()
    desk.sync()
    assert desk.poll() == [(2, 0, 2)]
    desk.ack(0, 1)
    desk.sync()
    assert desk.poll() == [(2, 2, 1), (2, 3, 1)]


def test_a_nacked_record_holds_its_key_only():
    """While it waits, other keys go on and its own does not."""
    desk = desk_of(1, base_redelivery_delay_ms=100)
    desk.feed(keys=["a", "a", "b", "b"])
    assert desk.offsets() == [0, 2]
    desk.nack(0)
    desk.ack(2)
    desk.sync()
    assert desk.offsets() == [3]
    assert desk.poll(100) == [(1, 0, 2)]
    assert desk.poll() == []


def test_block_stops_one_key():
    """A record that failed too often blocks its key, the others go on; an ack lifts it."""
    desk = desk_of(1, max_redelivery_count=0)
    desk.feed(keys=["a", "b", "a", "b"])
    desk.poll()
    desk.nack(0)
    desk.ack(1)
    desk.sync()
    assert desk.offsets() == [3]
    assert [each.kind for each in desk.reported()] == [NoticeKind.BLOCKED]
    desk.ack(0)
    desk.sync()
    assert desk.offsets() == [2]


def test_a_stopped_consumer_holds_only_its_keys():
    """Keys of another consumer pass those of one whose stream is full."""
    desk = Desk(SubscriptionType.KEY_SHARED)
    desk.attach(1, messages=0)
    desk.attach(2)
    desk.feed(keys=["a", "b", "c", "d"])
    assert desk.poll() == [(2, 1, 1), (2, 3, 1)]
    desk.dispatch.want(1, messages=1, size_bytes=1)
    assert desk.poll() == [(1, 0, 1)]


def test_a_key_that_nobody_accepts_is_skipped_after_a_grace():
    """The cursor passes it durably, so that it holds nothing up."""
    desk = Desk(SubscriptionType.KEY_SHARED)
    desk.attach(1, filters=["eu-*"])
    desk.feed(keys=["us-1", "eu-1", "us-1"])
    assert desk.offsets() == [1]
    assert desk.dispatch.due_ms() == 10_000
    desk.poll(9_999)
    assert desk.changes == []
    desk.poll(1)
    (change,) = desk.changes
    assert (change.cause, change.ranges) == (Cause.SKIP, [(0, 1), (2, 3)])
    desk.sync()
    assert desk.dispatch.cursor == Cursor(1, [(2, 3)])
    desk.feed(keys=["us-1"])
    desk.poll()
    assert desk.changes[0].ranges == [(3, 4)]


def test_a_skipped_key_waits_for_the_journal():
    """A later record of the key does not go before the skip is durable."""
    desk = Desk(SubscriptionType.KEY_SHARED)
    desk.attach(1, filters=["eu-*"])
    desk.feed(keys=["us-1"])
    desk.poll(10_000)
    desk.attach(2)
    desk.feed(keys=["us-1"])
    assert desk.poll() == []
    desk.sync()
    assert desk.poll() == [(2, 1, 1)]


def test_a_skip_that_the_journal_refused_blocks_its_key():
    """An ack of the last skipped record lets nothing pass the ones before it."""
    desk = Desk(SubscriptionType.KEY_SHARED)
    desk.attach(1, filters=["eu-*"])
    desk.feed(keys=["us-1", "us-1", "us-1"])
    desk.poll(10_000)
    desk.refuse()
    desk.attach(2)
    desk.feed(keys=["us-1"])
    desk.ack(2)
    desk.sync()
    assert desk.poll() == []
    desk.poll(desk.limits.retry_ms)
    desk.sync()
    assert desk.poll() == [(2, 3, 1)]


def test_a_stuck_key_cannot_fill_memory():
    """Records held behind it count with the unacked ones: then reading stops, and says so."""
    desk = desk_of(1, limits={"held_max": 8})
    desk.feed(keys=["a"] * 8)
    assert desk.offsets() == [0]
    assert desk.dispatch.room == 0
    assert desk.dispatch.status().paused == "waiting keys"
    desk.ack(0)
    desk.sync()
    assert desk.dispatch.room == 1


def test_a_consumer_that_subscribes_again_keeps_its_keys():
    """A takeover by the same name moves neither what it had nor what waited for it."""
    desk = Desk(SubscriptionType.KEY_SHARED)
    desk.attach(1, "a", messages=1)
    desk.attach(2, "b")
    desk.feed(keys=["p", "q", "r"])
    assert desk.poll() == [(1, 0, 1), (2, 1, 1)]
    desk.attach(1, "a")
    assert desk.poll() == [(1, 2, 1)]
    desk.sync()
    assert desk.poll() == [(1, 0, 2)]
