"""An engine with tiers in which records move, are let go and age when a test says so."""

from __future__ import annotations

import random

from frazil.engine import Engine
from tests.integration.engine.opening import rotate, small_settings
from tests.support import SimulatedClock, SimulatedFileSystem

KEEP_S = 60
"""How long the log keeps what files have, as the settings say."""


class World:
    """An engine without threads on a simulated disk: what happens, happens when a test says so."""

    def __init__(self, **settings):
        self.disk = SimulatedFileSystem(1)
        self.clock = SimulatedClock(1)
        self._settings = small_settings("/data", **settings)
        self.db = self.open()

    def open(self):
        """Open the directory, again after the engine was closed or the disk was replaced."""
        self.db = Engine(self._settings, file_system=self.disk, clock=self.clock, threads=False)
        return self.db

    def round(self, seconds=0.0):
        """Let time pass, then let tiers and log do all they would do by themselves."""
        self.clock.advance(seconds)
        self.db.tiers.run_once()
        self.db.upkeep.task.make_all_due()
        self.db.upkeep.run_once()

    def move(self):
        """Bring everything to files and let all journals go of it."""
        self.db.tiers.flush()
        rotate(self.db)
        self.round(KEEP_S + 1)

    def segments(self):
        """Return how many segments the shared journal has."""
        return self.db.stats()["journal"]["segments"]

    def files(self, topic):
        """Return how many files a topic has."""
        return len(self.db.tiers.disk.files(topic.runtime.state.id))


def noise(seed, count=1000):
    """Return bytes that no compression makes smaller."""
    return random.Random(seed).randbytes(count)
