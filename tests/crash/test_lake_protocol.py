"""The commit protocol in a world where everything fails: no record is lost, none is there twice.

The commit module is the real one; the five calls are made on tables in memory, which fail, land
late and are changed by others. `FRAZIL_TEST_LAKE_SEEDS` sets how many lives are tried.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter

import pytest

from frazil.lake import STEPS
from tests.crash.lake_world import EVENTS, World

SEEDS = int(os.environ.get("FRAZIL_TEST_LAKE_SEEDS", "3000"))
BASE = int(os.environ.get("FRAZIL_TEST_LAKE_BASE", "0"))
SHARDS = 4
EVENTS_A_LIFE = 90
POINTS_MAX = 60
FOREIGN = ("nothing", "compact", "expire", "expire_old", "delete", "append", "roll_back")
FAULTS = ("lost", "error", "conflict", "slow", "never", "down")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_lives_of_the_protocol_lose_and_double_nothing(shard):
    """Whatever fails, dies, stalls or is changed by others, each record ends in one table once."""
    lives = 0
    for seed in range(BASE + shard, BASE + SEEDS, SHARDS):
        world = World(seed)
        try:
            world.live(EVENTS_A_LIFE)
        except AssertionError as error:
            pytest.fail(f"World({seed}).live({EVENTS_A_LIFE}): {error}; {' '.join(world.trace)}")
        assert world.committed == world.durable
        lives += 1
    assert lives == len(range(shard, SEEDS, SHARDS))


class Quiet(World):
    """A world in which nothing happens by chance but the order of things."""

    def __init__(self, seed):
        super().__init__(seed)
        self.parts = (-1,)
        self.faults = 0.0
        self.foreign = True
        self.shares = (40, 10)
        self.durable, self.held, self.sets = {-1: 0}, {-1: 0}, {-1: []}

    def _some_table(self):
        return self.main

    def prepared(self):
        """Two commits are in the table, and there is more to move."""
        for _ in range(2):
            self.do_publish()
            self.do_publish()
            self.do_dispatch()
            while self.worker is not None:
                self._run_worker()
        for _ in range(3):
            self.do_publish()
        return self


@pytest.mark.timeout(0)
@pytest.mark.parametrize("end", ["kill", "stall", "crash"])
@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_crash_at_every_point_under_every_fault_and_foreign_act(fault, end):
    """A worker is ended at each point, a write failed each way, and others act at that moment."""
    lives = deepest = 0
    for foreign, write in itertools.product(FOREIGN, (0, 1)):
        for points in range(1, POINTS_MAX):
            world = Quiet(f"{fault}/{points % 5}").prepared()
            world.forced = ["none"] * write + [fault]
            world.do_dispatch()
            ended = world.worker.run(points)
            world.forced = []
            if not ended:
                getattr(world, f"do_{end}")()
                deepest = max(deepest, points)
            getattr(world, f"do_{foreign}")()
            world.do_recut()
            world.do_forget_plan()
            world.do_land()
            world.drain()
            assert world.committed == world.durable
            lives += 1
            if ended:
                break
    assert deepest >= 10
    assert lives > 10 * len(FOREIGN)


@pytest.mark.timeout(0)
def test_the_lives_meet_every_step_fault_and_stop():
    """The lives kill and stall workers at every step, and see each fault, result and foreign act."""
    seen = Counter()
    for seed in range(BASE, BASE + 1200):
        world = World(seed)
        world.live(EVENTS_A_LIFE)
        seen.update(world.seen)
    rare = {"property_lowered", "property_set"}
    wanted = {f"killed at {step}" for step in STEPS if step not in rare}
    wanted |= {f"stalled at {step}" for step in STEPS if step not in rare}
    wanted |= {f"fault {fault}" for fault in FAULTS}
    wanted |= {"late, landed", "late, fenced off", "rolled back", "rolled_back", "missing_range"}
    wanted |= {"committed", "already", "replan", "stopped", *EVENTS}
    assert wanted <= set(seen), wanted - set(seen)
