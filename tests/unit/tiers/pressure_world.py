"""A pressure whose use, resident size and time a test sets."""

from __future__ import annotations

from frazil.config import MemorySettings
from frazil.tiers.pressure import Pressure
from tests.support.simulated_clock import SimulatedClock

BUDGET = 10**9
POINT = BUDGET // 100
SOON_S = 10.0


class World:
    """A pressure whose sources, resident size and time a test sets."""

    def __init__(self, **settings):
        self.settings = MemorySettings(**{"budget_bytes": BUDGET, **settings})
        self.clock = SimulatedClock(step_us=0)
        self.batches = 0
        self.index = 0
        self.rss = 0
        self.reclaimable = 0
        self.reclaims = 0
        self.waited_s = []
        self.while_waiting = []
        self.pressure = Pressure(
            self.settings, self.clock, rss=lambda: self.rss, sleep=self.sleep, reclaim=self.reclaim
        )
        self.pressure.add_source("batches", lambda: self.batches)
        self.pressure.add_source("index", lambda: self.index)

    def sleep(self, seconds):
        """Let simulated time pass; what a test planned happens before it."""
        self.waited_s.append(seconds)
        if self.while_waiting:
            self.while_waiting.pop(0)()
        self.clock.advance(seconds)

    def reclaim(self):
        self.reclaims += 1
        self.rss -= self.reclaimable
        self.reclaimable = 0

    def fill(self, percent):
        """Set the bytes of batches, and let everything be counted."""
        self.batches = round(percent * POINT)
        self.pressure.refresh()
