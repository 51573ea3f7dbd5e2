"""Keys that no consumer accepts, and offsets that are met and not simply delivered."""

from __future__ import annotations

from frazil.subscribe.orphans import Orphans
from frazil.subscribe.specials import Specials

from tests.unit.subscribe.test_dispatch_keys import desk_of

GRACE_MS = 100


def orphans_since(begun_ms):
    orphans = Orphans(GRACE_MS)
    orphans.begin(begun_ms)
    return orphans


def test_a_key_is_passed_over_when_the_grace_is_over():
    """Not before, and once."""
    orphans = orphans_since(0)
    orphans.add("a")
    orphans.add("a")
    assert orphans.due_ms() == GRACE_MS
    assert orphans.take_due(GRACE_MS - 1) == []
    assert orphans.take_due(GRACE_MS) == ["a"]
    assert orphans.take_due(GRACE_MS) == []
    assert orphans.due_ms() is None


def test_a_key_waits_for_the_last_consumer_that_accepted_it():
    """Others that left later have no part in it."""
    orphans = orphans_since(0)
    orphans.claim(lambda key: key == "a", 500)
    orphans.claim(lambda key: key == "a", 550)
    orphans.claim(lambda key: key == "b", 590)
    orphans.add("a")
    orphans.add("c")
    assert orphans.take_due(600) == ["c"]
    assert orphans.due_ms() == 650
    assert orphans.take_due(649) == []
    assert orphans.take_due(650) == ["a"]


def test_without_consumers_nothing_is_passed_over():
    """The grace begins anew with the first that comes."""
    orphans = orphans_since(0)
    orphans.add("a")
    orphans.end()
    assert orphans.due_ms() is None
    assert orphans.take_due(10_000) == []
    orphans.begin(20_000)
    assert orphans.take_due(20_000 + GRACE_MS - 1) == []
    assert orphans.take_due(20_000 + GRACE_MS) == ["a"]


def test_a_consumer_adopts_what_it_accepts():
    """What is left keeps its time."""
    orphans = orphans_since(0)
    for key in ("a1", "b1", "a2"):
        orphans.add(key)
    assert orphans.adopt(lambda key: key.startswith("a")) == ["a1", "a2"]
    assert orphans.take_due(GRACE_MS) == ["b1"]


def test_a_key_with_an_ack_on_its_way_does_not_keep_the_loop_busy():
    """It is looked at again after a while, and not at once: there is a time to wake up."""
    desk = desk_of(limits={"skip_grace_ms": GRACE_MS, "retry_ms": 50}, attempts={0: 2})
    desk.attach(1, filters=["b"])
    desk.feed(keys=["a", "a"])
    desk.poll()
    desk.ack(0)
    desk.poll(GRACE_MS)
    assert desk.dispatch.due_ms() == desk.now + 50
    desk.sync()
    desk.poll(50)
    desk.sync()
    assert desk.dispatch.cursor.acked_below == 2


def test_the_lowest_special_offset_is_found_from_a_place_on():
    """Those taken out or below it do not count, and leave nothing behind."""
    specials = Specials()
    specials.update([9, 3, 5])
    specials.add(1)
    specials.add(5)
    assert specials.first_from(0) == 1
    specials.discard(3)
    assert specials.first_from(2) == 5
    specials.add(4)
    assert specials.first_from(3) == 4
    assert specials.first_from(10) is None
    assert specials == {1, 4, 5, 9}
    specials.difference_update([1, 4, 5, 9])
    specials.update([])
    assert not specials._heap
