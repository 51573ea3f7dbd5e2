"""Back-pressure: what counts as use, how long publishes wait, and what stats show."""

from __future__ import annotations

import logging

import pytest

from frazil.clock import SystemClock
from frazil.config import MemorySettings
from frazil.errors import Overloaded
from frazil.tiers.pressure import RED_POLL_S, RSS_BASE_BYTES, Pressure
from frazil.tiers.zones import GREEN, RED, YELLOW
from tests.unit.tiers.pressure_world import BUDGET, POINT, World


@pytest.fixture
def world():
    return World()


# -- use and zones -------------------------------------------------------------------------------


def test_the_use_is_the_sum_of_the_sources(world):
    """Batches and index share the budget, and the snapshot shows each."""
    world.batches, world.index = round(50 * POINT), round(12 * POINT)
    assert world.pressure.level == GREEN
    world.pressure.refresh()
    assert world.pressure.level == YELLOW
    found = world.pressure.snapshot()
    assert found.sources == {"batches": world.batches, "index": world.index}
    assert found.used_bytes == found.accounted_bytes == world.batches + world.index
    assert found.percent == pytest.approx(62)
    assert world.pressure.usage_ratio == pytest.approx(0.62)


def test_the_zones_follow_the_use_with_hysteresis(world):
    """A load that swings through all zones enters each, and leaves it five points lower."""
    seen = []
    for percent in (59, 60, 79, 80, 76, 74, 56, 54, 59, 81, 0):
        world.fill(percent)
        seen.append(world.pressure.snapshot().zone)
    assert seen == [
        *("green", "yellow", "yellow", "red", "red", "yellow"),
        *("yellow", "green", "green", "red", "green"),
    ]
    assert world.pressure.snapshot().entries == {"green": 2, "yellow": 2, "red": 2}


def test_the_resident_size_beyond_the_base_counts_if_it_is_more(world):
    """What the sources do not know of is seen, once it exceeds what they count."""
    base = RSS_BASE_BYTES
    world.rss = base + round(50 * POINT)
    world.fill(30)
    assert world.pressure.snapshot().percent == pytest.approx(50)
    world.fill(70)
    assert world.pressure.snapshot().percent == pytest.approx(70)
    world.rss = base + round(85 * POINT)
    world.pressure.refresh()
    assert world.pressure.level == RED
    assert world.pressure.snapshot().rss_base_bytes == base


def test_what_a_program_takes_for_itself_later_counts_no_more_than_twice_the_tiers(world):
    """A large table that a user loads beside empty tiers holds up no publish."""
    world.rss = RSS_BASE_BYTES + 5 * BUDGET
    world.fill(20)
    assert world.pressure.snapshot().percent == pytest.approx(40)
    assert world.pressure.level == GREEN
    world.fill(31)
    assert world.pressure.level == YELLOW


def test_what_the_process_held_before_does_not_count():
    """An engine inside a large program starts in green."""
    large = 5 * BUDGET
    pressure = Pressure(MemorySettings(budget_bytes=BUDGET), SystemClock(), rss=lambda: large)
    pressure.refresh()
    assert pressure.level == GREEN
    assert pressure.snapshot().rss_base_bytes == large


def test_memory_that_allocators_keep_is_taken_back_before_publishers_wait(world):
    """A resident size that can be given back changes no zone."""
    world.rss = RSS_BASE_BYTES + round(90 * POINT)
    world.reclaimable = round(60 * POINT)
    world.fill(45)
    assert world.reclaims == 1
    assert world.pressure.snapshot().entries == {"green": 0, "yellow": 0, "red": 0}
    assert world.pressure.snapshot().percent == pytest.approx(45)


def test_allocators_are_asked_once_a_second_at_most_and_only_if_it_helps(world):
    """A zone that the sources explain asks nobody; a resident size that stays is not nagged."""
    world.fill(90)
    assert (world.pressure.level, world.reclaims) == (RED, 0)
    world.rss = RSS_BASE_BYTES + round(90 * POINT)
    for _turn in range(20):
        world.fill(45)
        world.clock.advance(0.1)
    assert world.pressure.level == RED
    assert world.reclaims == 2


def test_growth_is_counted_when_it_may_change_the_zone():
    """Bytes that come between two refreshes enter yellow and red without waiting for the next."""
    world = World()
    counts = []
    world.pressure.add_source("counted", lambda: counts.append(1) or 0)
    for _turn in range(82):
        world.batches += round(POINT)
        world.pressure.grew(round(POINT))
        level = GREEN if world.batches < 0.6 * BUDGET else YELLOW
        level = level if world.batches < 0.8 * BUDGET else RED
        assert world.pressure.level == level
    assert len(counts) <= 4


def test_growth_that_was_freed_again_changes_nothing(world):
    """A counter that runs out leads to a count, not to a zone."""
    for _turn in range(300):
        world.pressure.grew(round(POINT))
    assert world.pressure.level == GREEN
    assert world.pressure.snapshot().entries["yellow"] == 0


def test_a_source_may_cause_a_refresh(world):
    """Measuring does not wait for itself."""
    world.pressure.add_source("nested", lambda: world.pressure.refresh() or 7)
    world.pressure.refresh()
    assert world.pressure.snapshot().sources["nested"] == 7


def test_a_source_that_fails_is_logged_and_measuring_goes_on(world, caplog):
    """Its last bytes count on, it is logged once, and the measuring thread goes on."""
    faults = []

    def read():
        if faults:
            raise faults.pop()
        return 61 * POINT

    world.pressure.add_source("faulty", read)
    world.pressure.refresh()
    faults += [OSError("gone"), OSError("gone")]
    with caplog.at_level(logging.WARNING):
        world.pressure.refresh()
        world.pressure.grew(BUDGET)
    assert not faults
    assert [record.message for record in caplog.records] == ["pressure_source_failed"]
    assert world.pressure.snapshot().sources["faulty"] == 61 * POINT
    assert world.pressure.level == YELLOW


# -- admission -----------------------------------------------------------------------------------


def test_no_delay_in_green_and_in_yellow_below_its_mark(world):
    """Within the hysteresis the formula gives nothing, and a publish goes through."""
    for percent in (59, 65, 57):
        world.fill(percent)
    assert world.pressure.level == YELLOW
    world.pressure.admit()
    assert world.waited_s == []


@pytest.mark.parametrize(("percent", "delay_ms"), [(61, 5), (70, 50), (79, 95)])
def test_yellow_delays_each_publish(world, percent, delay_ms):
    """The delay is five milliseconds for each point above sixty, counted and shown."""
    world.fill(percent)
    world.pressure.admit()
    world.pressure.admit()
    assert world.waited_s == [pytest.approx(delay_ms / 1000)] * 2
    found = world.pressure.snapshot()
    assert (found.delays, found.waits, found.refusals) == (2, 0, 0)
    assert found.delayed_s == pytest.approx(2 * delay_ms / 1000)
    assert found.delay_ms == pytest.approx(delay_ms)


def test_a_publish_outside_green_counts_again_what_is_old(world):
    """Memory that was freed since shortens the delay without a refresh by the background."""
    world.fill(79)
    world.batches = round(61 * POINT)
    world.pressure.admit()
    assert world.waited_s == [pytest.approx(0.095)]
    world.clock.advance(0.02)
    world.pressure.admit()
    assert world.waited_s[1] == pytest.approx(0.005)


def test_red_refuses_at_the_deadline(world):
    """A publish waits for five seconds; its error says how full memory is and when to come back."""
    world.fill(85)
    with pytest.raises(Overloaded, match="memory is nearly full") as caught:
        world.pressure.admit()
    assert sum(world.waited_s) == pytest.approx(5.0)
    assert caught.value.details["retry_after_ms"] == 1000
    assert caught.value.details["budget_bytes"] == BUDGET
    assert caught.value.details["used_bytes"] == round(85 * POINT)
    assert "raise memory.budget_bytes" not in str(caught.value)
    found = world.pressure.snapshot()
    assert (found.waits, found.refusals, found.waiting) == (1, 1, 0)


def test_a_refusal_because_of_the_resident_size_names_the_setting(world):
    """Who runs a large program around the engine learns what to change."""
    world.rss = RSS_BASE_BYTES + round(90 * POINT)
    world.fill(45)
    with pytest.raises(Overloaded, match=r"raise memory\.budget_bytes"):
        world.pressure.admit()


def test_the_end_of_red_lets_waiting_publishes_through(world):
    """A publish that waits goes on in yellow, with yellow's delay and without an error."""
    world.fill(85)
    world.while_waiting.append(lambda: world.fill(70))
    world.pressure.admit()
    assert world.waited_s == [RED_POLL_S, pytest.approx(0.05)]
    found = world.pressure.snapshot()
    assert (found.waits, found.delays, found.refusals) == (1, 1, 0)


def test_a_publish_waits_on_when_red_comes_back(world):
    """In the next red it waits for what is left of its time."""
    world.fill(85)

    def flicker():
        world.clock.advance(2.0)
        world.fill(50)
        world.fill(85)

    world.while_waiting.append(flicker)
    with pytest.raises(Overloaded):
        world.pressure.admit()
    assert sum(world.waited_s) == pytest.approx(3.0)
    assert world.pressure.snapshot().waits == 1


def test_red_calls_back_once_each_time_it_begins(world):
    """Flushes are started and queries cancelled at the beginning of red, not at every look."""
    calls = []
    world.pressure.on_red(lambda: calls.append("flush"))
    world.pressure.on_red(lambda: calls.append("cancel"))
    for percent in (70, 85, 90, 78):
        world.fill(percent)
    assert calls == ["flush", "cancel"]
    world.fill(10)
    world.fill(85)
    assert calls == ["flush", "cancel"] * 2


def test_what_nobody_can_free_counts_up_to_its_share_only(world):
    """Marks that fill the whole budget are shown in full, and still leave the zone green."""
    marks = [5 * POINT]
    world.pressure.add_source("marks", lambda: marks[0], share=0.1)
    world.fill(20)
    assert world.pressure.percent == pytest.approx(25)
    marks[0] = 200 * POINT
    world.rss = RSS_BASE_BYTES + 221 * POINT
    world.pressure.refresh()
    found = world.pressure.snapshot()
    assert found.sources["marks"] == 200 * POINT
    assert found.accounted_bytes == found.used_bytes - 1 * POINT == 30 * POINT
    assert world.pressure.level == GREEN
    world.fill(51)
    assert world.pressure.level == YELLOW


def test_what_grew_only_sets_the_zone_and_refresh_calls_back(world):
    """A journal's thread that reaches red runs no callback; the next refresh does, once."""
    calls = []
    world.pressure.on_red(lambda: calls.append(1))
    world.batches = 85 * POINT
    world.pressure.grew(85 * POINT)
    assert world.pressure.level == RED
    assert world.pressure.red_pending
    world.clock.advance(1.0)
    with pytest.raises(Overloaded):
        world.pressure.admit()
    assert not calls
    world.pressure.refresh()
    world.pressure.refresh()
    assert calls == [1]
    assert not world.pressure.red_pending


def test_red_that_has_ended_calls_nothing_back(world):
    """A red that ends before the background looks cancels no query."""
    calls = []
    world.pressure.on_red(lambda: calls.append(1))
    world.batches = 85 * POINT
    world.pressure.grew(85 * POINT)
    world.fill(10)
    assert not calls
    assert not world.pressure.red_pending


def test_a_callback_that_fails_does_not_keep_the_others(world):
    """Each one is called though one before it raises, and the refresh goes on."""
    calls = []

    def fail():
        raise ValueError("broken")

    world.pressure.on_red(fail)
    world.pressure.on_red(lambda: calls.append(1))
    world.fill(85)
    assert calls == [1]
    assert world.pressure.level == RED


def test_what_red_calls_may_free_memory_at_once(world):
    """A callback that frees and refreshes ends red within the same call."""

    def flush():
        world.batches = 0
        world.pressure.refresh()

    world.pressure.on_red(flush)
    world.fill(85)
    assert world.pressure.level == GREEN
    assert world.pressure.snapshot().entries == {"green": 1, "yellow": 0, "red": 1}


def test_closing_lets_everybody_through(world):
    """A closed engine admits every publish: the closed queue refuses them."""
    world.fill(85)
    world.while_waiting.append(world.pressure.close)
    world.pressure.admit()
    assert world.waited_s == [RED_POLL_S]
    world.fill(90)
    assert world.pressure.level == GREEN


def test_a_change_of_zone_is_an_event(world, caplog):
    """The log says which zone began, which ended, and how full memory is."""
    caplog.set_level(logging.INFO, logger="frazil")
    world.fill(70)
    world.fill(71)
    (record,) = [each for each in caplog.records if each.message == "pressure_zone"]
    assert record.facts["zone"] == "yellow"
    assert record.facts["before"] == "green"
    assert record.facts["percent"] == pytest.approx(70)
