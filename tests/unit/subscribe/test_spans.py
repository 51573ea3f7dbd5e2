"""Records that are delivered together share their state until something happens to one alone."""

from __future__ import annotations

from frazil.subscribe import Cursor, SubscriptionType
from tests.unit.subscribe.desk import Desk


def desk_of_twenty(**options):
    desk = Desk(SubscriptionType.SHARED, ack_timeout_ms=1000, **options)
    desk.attach(1)
    desk.feed(20)
    assert desk.offsets() == list(range(20))
    return desk


def test_records_that_go_out_together_cost_one_object():
    """A batch has one state, before its delivery and after it, and after an ack of its middle."""
    desk = desk_of_twenty()
    assert (len(desk.dispatch._spans), len(desk.dispatch._records)) == (1, 0)
    desk.ack(*range(5, 15))
    assert (len(desk.dispatch._spans), len(desk.dispatch._records)) == (3, 0)
    desk.sync()
    assert desk.dispatch.cursor == Cursor(0, [(5, 15)])
    assert desk.dispatch.unacked_bytes == 100


def test_a_record_with_a_fate_of_its_own_leaves_the_others_alone():
    """One of them is nacked, one has more time, one is delivered again: the others time out."""
    desk = desk_of_twenty()
    desk.nack(3)
    desk.dispatch.prolong(7, until_ms=5000)
    desk.dispatch.take_back(1, [9])
    desk.sync()
    assert desk.poll() == [(1, 9, 1)]
    desk.poll(1000)
    (change,) = desk.changes
    assert change.offsets == [each for each in range(20) if each not in (3, 7)]


def test_a_refused_ack_gives_each_record_back_to_its_consumer():
    """The ack can be repeated; a consumer that left meanwhile loses what the ack did not settle."""
    desk = desk_of_twenty()
    desk.ack(*range(10))
    repeated = desk.ack(4, 5)
    assert repeated.is_empty
    assert repeated.after
    desk.detach(1)
    desk.refuse()
    desk.attach(2)
    desk.poll()
    desk.sync()
    assert [offset for _, offset, _ in desk.poll()] == list(range(20))
