"""Lives of a journal on a simulated disk: work, crash, recover, check, and again, from one seed."""

from __future__ import annotations

from random import Random

import attrs

from frazil.config import ProducerSettings
from frazil.config.sections import DAY, LogSettings
from frazil.errors import FrazilError, Unavailable
from frazil.log import Journal
from tests.crash.checker import check_report, check_topic, lsn_chain, require
from tests.crash.workload import Work
from tests.support import (
    Fault,
    FaultyFileSystem,
    SimulatedClock,
    SimulatedCrash,
    SimulatedFileSystem,
)
from tests.support.log_limits import set_log_limits

DIRECTORY = "/data/journal"
SETTINGS = tuple(
    LogSettings(
        segment_bytes_max=64 << 10,
        write_bytes_max=write,
        sync_interval_s=1.0,
    )
    for write in (1 << 20, 4096, 2048)
)
PREFILL_BYTES = (4096, 0, 1024)
"""What is filled ahead under each of the settings."""
PRODUCERS = ProducerSettings(window_age_s=365 * DAY)


@attrs.frozen
class Profile:
    """What a simulation does besides working and crashing."""

    journal: type[Journal] = Journal
    operations: tuple[int, int] = (3, 12)
    kill_share: float = 0.3
    sync_fault_share: float = 0.03
    restart_share: float = 0.05


class CrashBeforeSync:
    """Crash where unsynced writes may be torn: right before the n-th sync of a file."""

    def __init__(self, nth):
        self.left = nth

    def __call__(self, event):
        if event.startswith("before sync "):
            self.left -= 1
            if self.left <= 0:
                raise SimulatedCrash


class Simulation:
    """One seed: several lives, each ended by a kill or a power loss, on one disk."""

    def __init__(self, seed, profile=None):
        self.seed = seed
        self.profile = profile or Profile()
        self.random = Random(seed * 2)
        self.clock = SimulatedClock(seed)
        self.disk = SimulatedFileSystem(seed)
        self.disk.make_directory("/data")
        self.disk.sync_directory("/")
        self.file_system = self.disk
        self.settings = self.random.choice(SETTINGS)
        self.work = Work(self.random, self.clock)
        self.cache_lives = True
        """No power was lost since the last recovery: all that was written is still to be seen."""
        self.recoveries = 0
        self.crashes = 0
        self.reports = []

    def run(self):
        """Run all lives; raises `Violation` when a promise is broken."""
        for _ in range(self.random.choice((1, 2, 2, 3, 4))):
            self.life()
        self.last_life()

    def life(self):
        """Open, work, and crash at some sync point or at the end."""
        random = self.random
        points = random.choice((random.randint(1, 14), random.randint(5, 40), 1 << 30))
        if random.random() < 0.5:
            self.disk.crash_at = points
        else:
            self.disk.on_sync = CrashBeforeSync(random.randint(1, 12))
        self.file_system = self.disk
        if random.random() < self.profile.sync_fault_share:
            fault = Fault("sync", nth=random.randint(1, 8))
            self.file_system = FaultyFileSystem(self.disk, [fault])
        try:
            self.open()
            self.operate(random.randint(*self.profile.operations))
        except (SimulatedCrash, OSError, Unavailable):
            pass
        self.crash()

    def last_life(self):
        """Recover, go on writing, and come back from a clean end."""
        self.file_system = self.disk
        self.disk.crash_at = None
        self.disk.on_sync = None
        self.open()
        for model in self.work.models.values():
            self.work.commit([self.work._entry(model)])
        self.restart()

    # -- the parts of a life ---------------------------------------------------------------------

    def open(self):
        """Recover the journal, then check it."""
        self.open_journal()
        self.check()
        self.cache_lives = True

    def open_journal(self, **more):
        """Open the journal."""
        set_log_limits(prefill_bytes=PREFILL_BYTES[SETTINGS.index(self.settings)])
        self.work.disk = self.disk
        self.work.journal = self.profile.journal.open(
            self.file_system,
            DIRECTORY,
            clock=self.clock,
            settings=self.settings,
            producers=PRODUCERS,
            **more,
        )

    def check(self, *, damaged=False):
        """Check a recovered journal against what was acked and read before."""
        work = self.work
        journal = work.journal
        self.recoveries += 1
        self.reports.append(journal.report)
        work.reconcile()
        for model in work.models.values():
            if self.cache_lives and not damaged:
                model.kept_end = max(model.kept_end, model.exposed)
            check_topic(model, journal, damaged=damaged)
        invented = set(journal.state.topics) - set(work.models)
        require(not invented, "topics were invented", topics=invented)
        if not damaged:
            check_report(journal.report)
            lsn_chain(self.disk, journal)
        lsn = journal.state.lsn
        require(lsn >= work.lsn_kept, "sequence falls back", lsn=lsn, kept=work.lsn_kept)
        work.lsn_kept = work.lsn_acked = lsn
        work.settle_producers()

    def operate(self, count):
        """Do operations on the journal, now and then with a clean restart between them."""
        for _ in range(count):
            if self.random.random() < self.profile.restart_share:
                self.restart()
            self.work.step()
            if self.work.journal.failed is not None:
                return

    def restart(self):
        """Close cleanly and open again: nothing may be missing, not even unsynced records."""
        journal = self.work.journal
        journal.close()
        if journal.failed is not None:
            raise OSError("the journal failed at its end")
        self.open()

    def crash(self):
        """End the process, or the power as well."""
        self.crashes += 1
        if self.random.random() < self.profile.kill_share:
            self.disk = self.disk.kill_clone()
        else:
            self.cache_lives = False
            self.disk = self.disk.crash_clone(self.random.getrandbits(48))


def run_seed(seed, *, profile=None):
    """Run one seed and return its simulation."""
    simulation = Simulation(seed, profile)
    simulation.run()
    return simulation


def run_seeds(seeds):
    """Run many seeds; return (seed, what went wrong) of the first one that fails, or None."""
    for seed in seeds:
        try:
            run_seed(seed)
        except (AssertionError, FrazilError, OSError, SimulatedCrash) as error:
            return seed, f"{type(error).__name__}: {error}"
    return None


def replay_command(seed):
    """Return the command that repeats a seed with its traceback."""
    return f"PYTHONPATH=src .venv/bin/python -m tests.crash.replay --seed {seed}"
