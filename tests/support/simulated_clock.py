"""A clock that a test turns: every call steps on a little, and time may jump both ways."""

from __future__ import annotations

import threading
from random import Random

__all__ = ["SimulatedClock"]

START_US = 1_750_000_000_000_000
STEP_US = 7


class SimulatedClock:
    """Wall time, monotonic time and random bytes that depend on the seed and the calls alone.

    Wall and monotonic time go on together with each call and with `advance`; only wall time jumps.
    """

    def __init__(self, seed: int = 0, *, now_us: int = START_US, step_us: int = STEP_US) -> None:
        self._random = Random(seed)
        self._mutex = threading.Lock()
        self._now_us = now_us
        self._elapsed_us = 0
        self.step_us = step_us

    def now_us(self) -> int:
        with self._mutex:
            self._now_us += self.step_us
            self._elapsed_us += self.step_us
            return self._now_us

    def monotonic(self) -> float:
        with self._mutex:
            self._now_us += self.step_us
            self._elapsed_us += self.step_us
            return self._elapsed_us / 1e6

    def random_bytes(self, size: int) -> bytes:
        with self._mutex:
            return self._random.randbytes(size)

    def advance(self, seconds: float) -> None:
        """Let time pass: both clocks go on."""
        if seconds < 0:
            raise ValueError(f"time does not pass backwards: use jump (seconds={seconds})")
        with self._mutex:
            passed_us = round(seconds * 1e6)
            self._now_us += passed_us
            self._elapsed_us += passed_us

    def jump(self, seconds: float) -> None:
        """Set wall time forwards or backwards; monotonic time does not notice."""
        with self._mutex:
            self._now_us += round(seconds * 1e6)
