"""How much of the loop's time goes to consumers that catch up while records are being published.

Whoever is far behind takes as much as it can get, and publishers would wait for it: a record's way
into the log goes through the loop's thread and the journal's in turn, and all run one at a time.
So those that catch up have what publishers leave, in small steps and in turn; at least a twelfth for
one of them, and more for many: all publishers together count as eleven. What follows the head of its
topic has no part in this, and what it takes is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

__all__ = ["Pace"]

PUBLISHERS_WEIGHT: Final = 11
"""Publishers who want all of the time have so many times as much as one that catches up."""
SHARE_LARGE: Final = 0.5
"""With less than this, steps are small."""
WAIT_S_MAX: Final = 0.1
"""From the beginning of a step to that of the next there is no more than this."""
WINDOW_S: Final = 0.05
"""How far back it counts how busy publishers were, about."""
TURN_S: Final = 0.0002
"""So long one that is not first in line waits for the first to come."""
BACK_S: Final = 0.002
"""A publisher that comes again within this had something to send all the time."""
GONE_S: Final = 0.01
"""After so long without any, publishers have stopped."""


class Pace:
    """The time of one loop. All methods belong to its thread; `time_s` never goes back."""

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._flying = 0
        self._since_s = time_s()
        """Up to here it is counted how long publishers waited."""
        self._waited = 0.0
        """The part of the time for which a publisher waited for its answer."""
        self.spent_s = 0.0
        """Used by those that catch up since the last step began."""
        self._next_s = 0.0
        self._line: dict[Hashable, None] = {}
        """Those that were told to wait, in the order of their turns."""
        self._among = 1
        """How many were in line for the last step."""
        self._asked: set[Hashable] = set()
        """Those that came since the step may begin, and were not the first in line."""

    # -- publishers ------------------------------------------------------------------------------

    def publish_begins(self) -> None:
        """Take note that records go to the log."""
        if not self._flying:
            self._count(self._time_s())
        self._flying += 1

    def publish_ends(self) -> None:
        """Take note that their publishers have their answer."""
        assert self._flying
        if self._flying == 1:
            self._count(self._time_s())
        self._flying -= 1

    @property
    def share(self) -> float:
        """The part of the time that those have that catch up."""
        return max(self._among / (self._among + PUBLISHERS_WEIGHT), 1 - self._waited)

    # -- consumers -------------------------------------------------------------------------------

    def spend(self, begun_s: float) -> None:
        """Count the time since then as used for consumers that catch up."""
        self.spent_s += self._time_s() - begun_s

    def wait_s(self, who: Hashable) -> float:
        """Return how long one that catches up has to wait; 0 begins its next step.

        All wait until the same time, and the loop may wake them in the same order every time: so
        the step is for the first in line. If that does not come, whoever comes twice has it.
        """
        now_s = self._time_s()
        if self._flying or now_s - self._since_s > GONE_S:
            self._count(now_s)
        if self._waited:
            wait_s = self._next_s - now_s
            if wait_s <= 0 and who not in self._asked and next(iter(self._line), who) != who:
                self._asked.add(who)
                wait_s = TURN_S
            if wait_s > 0:
                self._line.setdefault(who)
                return wait_s
        self._among = len(self._line) + (who not in self._line)
        self._end_turn(who)
        # From one beginning to the next; what the last one took is what this one will take.
        self._next_s = now_s + min(self.spent_s / self.share, WAIT_S_MAX)
        self.spent_s = 0.0
        return 0.0

    @property
    def has_small_steps(self) -> bool:
        """Whether a step is to be short, because publishers are at work all the time."""
        return self.share < SHARE_LARGE

    def _end_turn(self, who: Hashable) -> None:
        """Take one out of the line, and those before it that did not come."""
        self._asked.clear()
        for each in list(self._line):
            del self._line[each]
            if each == who:
                return

    def _count(self, now_s: float) -> None:
        passed_s = now_s - self._since_s
        if passed_s > 0:
            if not self._flying and passed_s > GONE_S:
                self._waited = 0.0
            else:
                is_busy = self._flying > 0 or passed_s <= BACK_S
                weight = passed_s / (passed_s + WINDOW_S)
                self._waited += weight * (is_busy - self._waited)
            self._since_s = now_s
