"""The seam of time and randomness: the only clock, sleep and random bytes of the engine."""

from __future__ import annotations

import os
import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Time and random bytes. All methods may be called from any thread."""

    def now_us(self) -> int:
        """Return microseconds since 1970 in UTC; it may go backwards: never order by it."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards, for timeouts and intervals."""

    def random_bytes(self, size: int) -> bytes:
        """Return `size` unpredictable bytes (seeded in a simulation)."""


class SystemClock:
    """The operating system's clock and random source.

    Two methods are the C functions themselves: an append reads the clock six times.
    """

    monotonic = staticmethod(time.monotonic)
    random_bytes = staticmethod(os.urandom)

    def now_us(self) -> int:
        return time.time_ns() // 1000
