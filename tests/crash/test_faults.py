"""Any call of the file seam may fail: the journal stops cleanly or goes on, and restarts right."""

from __future__ import annotations

import copy
import errno
import os
from contextlib import suppress

import pytest

from frazil.errors import FrazilError
from tests.crash.simulation import Simulation
from tests.crash.workload import Work
from tests.support import VERBS, Fault, FaultyFileSystem, SimulatedClock
from tests.support.simulated_clock import START_US

EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)
MORE_ERRORS = (errno.EDQUOT, errno.EINTR)
CALLS_MAX = 400
SEED = 5
SCRIPT = (
    *(Work.create, Work.append, Work.create, Work.append, Work.change_schema, Work.tick),
    *(Work.rotate, Work.append, Work.hold, Work.tick, Work.seal, Work.read, Work.append),
    *(Work.rotate, Work.append, Work.tick, Work.seal, Work.free, Work.create, Work.append),
)


class FaultyLives(Simulation):
    """Two lives of a journal whose file system may fail once, or from some call on for good."""

    def __init__(self, *plan):
        super().__init__(SEED)
        self.file_system = self.faulty = FaultyFileSystem(self.disk, plan)

    def run(self):
        """Run the script twice over the same directory; a failure ends the run."""
        with suppress(FrazilError, OSError):
            for _ in range(2):
                self.open_journal()
                self.script()
                if self.work.journal.failed is not None:
                    return

    def script(self):
        """Do a little of everything; sealing and freeing may fail and are done another time."""
        journal = self.work.journal
        for step in SCRIPT:
            with suppress(OSError if step in (Work.seal, Work.free) else ()):
                (step if self.work.models else Work.create)(self.work)
            if journal.failed is not None:
                return
        journal.close()

    def restarted(self, disk):
        """Return the same world on what is left on the disk, recovered and checked."""
        twin = copy.copy(self)
        twin.clock = SimulatedClock(9, now_us=START_US + 10**10)
        self.work.clock = self.work.journal = self.work.disk = None
        twin.work = copy.deepcopy(self.work)
        twin.work.clock = twin.clock
        twin.disk = twin.file_system = disk
        twin.cache_lives = False
        twin.open()
        for model in twin.work.models.values():
            twin.work.commit([twin.work._entry(model)])
        twin.restart()
        return twin


def run_with(fault):
    """Run two lives under a fault and check what they left; return whether the fault fired."""
    lives = FaultyLives(fault)
    lives.run()
    assert lives.faulty.sync_retried == 0, "a failed sync was tried again"
    assert lives.faulty.writes_after_failed_sync == 0
    lives.restarted(lives.disk.kill_clone())
    lives.restarted(lives.disk.crash_clone(fault.nth))
    return lives.faulty.fired > 0


def sweep(**fields):
    """Fail the first call, the second one and so on, until there are no more."""
    for nth in range(1, CALLS_MAX):
        fault = Fault(nth=nth, **fields)
        try:
            fired = run_with(fault)
        except Exception as error:
            error.add_note(f"fault: {fault}")
            raise
        if not fired:
            return nth - 1
    raise AssertionError("the sweep does not end")


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("error", ERRORS + (MORE_ERRORS if EXHAUSTIVE else ()))
@pytest.mark.parametrize("verb", VERBS)
def test_a_failing_call_stops_cleanly_or_is_survived(verb, error, persistent):
    """Whichever call fails, acked records are there after a restart and nothing else is."""
    count = sweep(verb=verb, error=error, persistent=persistent)
    used = verb not in ("space", "allocate", "lock")
    assert bool(count) == used, "the workload does not use this verb as it should"


@pytest.mark.parametrize("verb", ["read_at", "write_at"])
@pytest.mark.parametrize("short", ["one", "half"])
def test_a_short_call_is_continued(verb, short):
    """A read or a write that moves fewer bytes than asked for is gone on with."""
    assert sweep(verb=verb, short=short)
    assert sweep(verb=verb, short="half", persistent=True)


def test_without_faults_the_workload_reaches_everything():
    """The script rotates, seals, marks, frees and reopens, and ends without a failure."""
    lives = FaultyLives()
    lives.run()
    assert lives.work.journal.failed is None
    assert lives.work.journal.state.segment_first > 1
    assert all(len(model.values) > 5 for model in list(lives.work.models.values())[:2])
    verbs = {call.verb for call in lives.faulty.trace}
    assert {"rename", "unlink", "truncate", "sync_directory", "list_directory"} <= verbs
    lives.restarted(lives.disk.kill_clone())
