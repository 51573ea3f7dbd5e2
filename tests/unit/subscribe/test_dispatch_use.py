"""Dispatch as its callers use it: with acks at once, at speed, at its limits."""

from __future__ import annotations

from frazil.log import RANGES_MAX
from frazil.subscribe import Change, Cursor, Deliver, Dispatch, Limits, SubscriptionType
from tests.unit.subscribe.counted_lines import lines_at_most
from tests.unit.subscribe.desk import MUCH, Desk


def test_ten_thousand_ranges_are_never_exceeded():
    """Every other record of the largest window is acked: the cursor takes it and goes on."""
    desk = Desk(SubscriptionType.SHARED, limits={"max_unacked_messages": RANGES_MAX})
    desk.attach(1)
    desk.feed(RANGES_MAX)
    got = desk.offsets()
    desk.ack(*got[1::2])
    desk.sync()
    desk.feed(RANGES_MAX)
    more = desk.offsets()
    desk.ack(*more[1::2])
    desk.sync()
    assert desk.dispatch.cursor.range_count <= RANGES_MAX
    desk.ack(*got, *more)
    desk.sync()
    assert desk.dispatch.cursor == Cursor(more[-1] + 1)


def test_a_cursor_that_is_full_delivers_what_makes_room():
    """New records pause while something is out; the gaps themselves are still delivered."""
    full = Cursor(0, [(2 * at + 1, 2 * at + 2) for at in range(RANGES_MAX)])
    desk = Desk(SubscriptionType.SHARED, cursor=full, limits={"max_unacked_messages": 2})
    desk.attach(1)
    desk.feed(10)
    assert desk.offsets() == [0, 2]
    assert desk.dispatch.status().paused == "ranges"
    desk.ack(0)
    desk.sync()
    assert desk.offsets() == [4]
    assert desk.dispatch.status().paused is None


def run_through(count, batch=250):
    """Feed, deliver, ack and confirm records, with a window of 10,000."""
    limits = Limits(max_unacked_messages=RANGES_MAX, max_unacked_bytes=MUCH)
    dispatch = Dispatch(SubscriptionType.EXCLUSIVE, limits=limits)
    dispatch.attach(1, name="reader", now_ms=0)
    dispatch.want(1, messages=MUCH, size_bytes=MUCH)
    for first in range(0, count, batch):
        offsets = list(range(first, first + batch))
        dispatch.feed(offsets, [1_000] * batch, offset_end=first + batch)
        for action in dispatch.poll(0):
            assert isinstance(action, Deliver)
            change = dispatch.ack(action.offsets, head=dispatch.offset_next)
            assert isinstance(change, Change)
            dispatch.confirmed(change, now_ms=0)
    return dispatch.cursor


def test_records_are_handled_in_batches():
    """Feeding, delivering, acking and confirming take a bounded number of lines per record."""
    with lines_at_most(40_000 * 80):
        assert run_through(40_000) == Cursor(40_000)
