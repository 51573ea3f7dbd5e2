"""Each call of the file seam fails once under a whole engine: metadata, upkeep and all."""

from __future__ import annotations

import copy
import errno
from contextlib import suppress
from functools import cache
from random import Random

import pytest

from frazil.errors import FrazilError
from tests.crash.engine_world import World
from tests.support import VERBS, Fault, FaultyFileSystem, SimulatedClock
from tests.support.simulated_clock import START_US

ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)
CALLS_MAX = 400
STEP_DENSE = 12
"""Every n-th call up to here is failed, beyond it one in seven: recovery repeats itself."""
UNUSED = {"allocate", "make_directory", "rename", "unlink", "truncate", "size", "close"}
"""Verbs that the second life may do without."""
BEFORE = ("append", "append_many", "append_arrow", "produce", "hold", "alter", "append")
AFTER = ("append", "produce", "tick", "append", "delete", "append")
"""What is done before and after a segment is full."""


def work(world):
    """Do a little of everything in one life, which ends cleanly unless something fails."""
    world.open()
    try:
        world.create(kind="message")
        world.create(kind="table")
        for verb in BEFORE:
            world.act(verb)
        journal = world.engine.log.journal
        try:
            journal.rotate()
        except OSError as error:
            # As at a segment that is full: an error of the disk ends the journal.
            journal.fail(error)
        for verb in AFTER:
            world.act(verb)
        world.note_freed()
        world.engine.upkeep.run_once()
    finally:
        world.engine.close()


@cache
def first_life():
    """Return a world after one life without faults."""
    world = World(Random(3))
    work(world)
    world.keep_all()
    return world


def on_disk(world, disk):
    """Return the same world on another disk, with models of its own."""
    twin = copy.copy(world)
    own = copy.deepcopy((world.models, world.creating, world.deleting))
    twin.models, twin.creating, twin.deleting = own
    twin.random, twin.clock = Random(5), SimulatedClock(now_us=START_US + 10**9)
    twin.disk = disk
    return twin


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("verb", VERBS)
def test_an_engine_stops_cleanly_or_goes_on(verb, error):
    """Whichever call fails, only errors of ours come out, and acked records are there again."""
    fired = 0
    nth = 1
    while nth < CALLS_MAX:
        disk = first_life().disk.kill_clone()
        faulty = FaultyFileSystem(disk, [Fault(verb, nth=nth, error=error)])
        world = on_disk(first_life(), faulty)
        with suppress(FrazilError, OSError) if verb == "space" else suppress(FrazilError):
            work(world)
        assert not faulty.sync_retried, nth
        if not faulty.fired:
            break
        fired += 1
        for clone, power in ((disk.crash_clone(nth), True), (disk.kill_clone(), False)):
            again = on_disk(world, clone)
            again.cache_lives = not power
            again.open()
            again.check()
            again.engine.close()
        nth += 1 if nth < STEP_DENSE else 7
    assert fired or verb in UNUSED
