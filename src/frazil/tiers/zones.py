"""The zones of the memory budget: pure functions of whole numbers, without clock or lock."""

from __future__ import annotations

from typing import Final, NamedTuple

GREEN: Final = 0
YELLOW: Final = 1
RED: Final = 2
ZONES: Final = ("green", "yellow", "red")

MILLION: Final = 1_000_000
YELLOW_RATIO: Final = 0.6
"""The use of the budget from which on publishes are delayed."""
RED_RATIO: Final = 0.8
"""The use of the budget from which on publishes wait and all topics are flushed."""
HYSTERESIS_RATIO: Final = 0.05
"""A zone ends when use is this far below the mark at which it began."""
DELAY_MS_PER_POINT: Final = 5
"""The delay of a publish for each point of use above the yellow mark."""


class Zones(NamedTuple):
    """The rules of the zones, in whole numbers: the marks are millionths of the budget."""

    budget_bytes: int
    yellow: int = round(YELLOW_RATIO * MILLION)
    red: int = round(RED_RATIO * MILLION)
    hysteresis: int = round(HYSTERESIS_RATIO * MILLION)
    delay_ms_per_point: int = DELAY_MS_PER_POINT

    def level(self, before: int, used_bytes: int) -> int:
        """Return the zone that follows `before`: entered at its mark, left below it only."""
        scaled = used_bytes * MILLION
        entered = (scaled >= self.yellow * self.budget_bytes) + (
            scaled >= self.red * self.budget_bytes
        )
        level = before
        while level > entered:
            mark = self.red if level == RED else self.yellow
            if scaled > (mark - self.hysteresis) * self.budget_bytes:
                return level
            level -= 1
        return entered

    def delay_s(self, used_bytes: int) -> float:
        """Return the delay of a publish in yellow: points of use above its mark, times 5 ms."""
        above = used_bytes * MILLION - self.yellow * self.budget_bytes
        if above <= 0:
            return 0.0
        # One division of whole numbers: the result is the nearest float to the exact value.
        return above * self.delay_ms_per_point / (self.budget_bytes * (MILLION // 100) * 1000)

    def room_bytes(self, level: int, used_bytes: int) -> int:
        """Return the bytes that are left until the next zone; red has no next zone."""
        if level == RED:
            return self.budget_bytes
        mark = self.yellow if level == GREEN else self.red
        return -(-mark * self.budget_bytes // MILLION) - used_bytes
