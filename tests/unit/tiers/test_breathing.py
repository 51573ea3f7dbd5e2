"""Background work pauses between its pieces, and nowhere else."""

from __future__ import annotations

import threading

from frazil.clock import SystemClock
from frazil.tiers.breathing import PAUSE_S, WORK_S, Breath


class Hands(SystemClock):
    """A clock whose hands move by a piece of work each time somebody looks."""

    def __init__(self, piece_s):
        self.piece_s = piece_s
        self.now_s = 0.0

    def monotonic(self):
        """Return the time, which has passed by a piece."""
        self.now_s += self.piece_s
        return self.now_s


class Pauses(threading.Event):
    """Counts how often somebody waits."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def wait(self, timeout=None):
        """Take note of the pause; it need not be waited for."""
        self.waits.append(timeout)
        return False


def pauses_of(clock, items, *, pauses=True):
    breath = Breath(clock, pauses=pauses)
    breath._never = Pauses()
    assert list(breath.between(items)) == list(items)
    return breath._never.waits


def test_long_pieces_are_followed_by_pauses():
    """A piece longer than the limit is followed by a pause before the next one."""
    assert pauses_of(Hands(2 * WORK_S), range(5)) == [PAUSE_S] * 5


def test_short_pieces_share_a_pause():
    """Nobody pauses after each of many short pieces of work."""
    waits = pauses_of(Hands(WORK_S / 10), range(100))
    assert 1 <= len(waits) <= 100 / 9


def test_a_simulation_has_no_pauses():
    """Without threads there is nobody to let run."""
    assert pauses_of(Hands(WORK_S), range(5), pauses=False) == []
