"""Consumers that catch up have what publishers leave of the loop's time, and at least a twelfth."""

from __future__ import annotations

import pytest
from frazil.subscribe.pace import Pace

from frazil.subscribe import pace as pace_module


class World:
    """A loop with one publisher and one consumer that is far behind, in virtual time."""

    def __init__(self):
        self.now_s = 100.0
        self.pace = Pace(lambda: self.now_s)
        self.consumed_s = 0.0

    def publish(self, *, for_s, pause_s, seconds):
        """Publish records that take so long, with such pauses, and catch up between the two."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.pace.publish_begins()
            self.now_s += for_s
            self.pace.publish_ends()
            idle_until_s = self.now_s + pause_s
            self.step(0.001)
            self.now_s = max(self.now_s, idle_until_s)

    def step(self, size_s):
        """Let the consumer have a step if it is its turn."""
        if not self.pace.wait_s("a"):
            begun_s = self.now_s
            self.now_s += size_s
            self.consumed_s += size_s
            self.pace.spend(begun_s)


def test_without_publishers_nobody_waits():
    """Step follows step, and steps are large."""
    world = World()
    for _ in range(100):
        assert world.pace.wait_s("a") == 0
        begun_s = world.now_s
        world.now_s += 0.01
        world.pace.spend(begun_s)
    assert world.pace.share == 1
    assert not world.pace.has_small_steps


def test_beside_publishers_at_full_rate_it_is_a_twelfth():
    """In small steps, and neither more nor much less than that."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.0005, seconds=5)
    assert world.pace.share == pytest.approx(1 / 12)
    assert world.pace.has_small_steps
    assert 0.04 < world.consumed_s / 5 < 0.11


def test_beside_publishers_with_little_to_do_it_is_nearly_all():
    """One record in 50 ms takes its time, and no more."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.05, seconds=5)
    assert world.pace.share > 0.8
    assert not world.pace.has_small_steps


def test_nobody_waits_for_long():
    """One long step is not followed by a pause that is as many times as long."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.0, seconds=1)
    world.pace.publish_begins()
    world.pace.spend(world.now_s - 10)
    while world.pace.wait_s("a"):
        world.now_s += 0.001
    assert world.pace.wait_s("a") == pytest.approx(pace_module.WAIT_S_MAX)


def test_when_publishers_stop_the_time_is_free_again():
    """A pause that was begun beside them ends soon after the last of them."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.0, seconds=1)
    world.pace.publish_begins()
    world.pace.spend(world.now_s - 10)
    while world.pace.wait_s("a"):
        world.now_s += 0.001
    assert world.pace.wait_s("a") > 0.05
    world.pace.publish_ends()
    world.now_s += 0.005
    assert world.pace.wait_s("a") > 0.05
    world.now_s += 0.006
    assert world.pace.wait_s("a") == 0
    assert world.pace.share == 1


def test_several_at_once_count_as_one():
    """The time is counted for which anybody waits, not the sum over all that wait."""
    world = World()
    for _ in range(4):
        world.pace.publish_begins()
    world.now_s += 0.05
    for _ in range(4):
        world.pace.publish_ends()
    assert 0.4 < world.pace.share < 0.6


def steps_of(world, wakes, *, seconds):
    """Let consumers that share a pace step beside publishers; return how many steps each had.

    Who is to be woken at the same time is woken in the order of the names, as some loops do.
    """
    steps = dict.fromkeys(wakes, 0)
    wakes = dict(wakes)
    end_s = world.now_s + seconds
    while world.now_s < end_s:
        who = min(wakes, key=lambda each: (round(wakes[each], 4), each))
        world.now_s = max(world.now_s, wakes[who])
        wait_s = world.pace.wait_s(who)
        if not wait_s:
            steps[who] += 1
            begun_s = world.now_s
            world.now_s += 0.0005
            world.pace.spend(begun_s)
            wait_s = world.pace.wait_s(who)
        wakes[who] = world.now_s + wait_s
    return steps


def test_those_that_share_it_have_their_steps_in_turn():
    """However they are woken, none has many more steps than another."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.0, seconds=1)
    world.pace.publish_begins()
    steps = steps_of(world, dict.fromkeys("abcd", world.now_s), seconds=5)
    assert min(steps.values()) > 200
    assert max(steps.values()) - min(steps.values()) <= 2


def test_many_have_more_than_one():
    """Each has an eleventh of what all publishers have together; steps are large again."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.0, seconds=1)
    world.pace.publish_begins()
    begun_s = world.now_s
    steps = steps_of(world, dict.fromkeys("abcdefghijklmnop", begun_s), seconds=5)
    passed_s = world.now_s - begun_s
    assert world.pace.share == pytest.approx(16 / 27)
    assert not world.pace.has_small_steps
    assert 0.45 < sum(steps.values()) * 0.0005 / passed_s < 0.62
    assert max(steps.values()) - min(steps.values()) <= 2


def test_one_that_left_holds_up_nobody():
    """The step of one that does not come for it goes to the next, and its place is forgotten."""
    world = World()
    world.publish(for_s=0.001, pause_s=0.0, seconds=1)
    world.pace.publish_begins()
    steps_of(world, dict.fromkeys("abcd", world.now_s), seconds=1)
    steps = steps_of(world, {"b": world.now_s}, seconds=1)
    assert 140 < steps["b"] < 190
