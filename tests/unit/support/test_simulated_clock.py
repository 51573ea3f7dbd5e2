"""The simulated clock."""

from __future__ import annotations

import pytest

from tests.support import SimulatedClock


def test_every_call_steps_on():
    """Two readings are never the same, and monotonic time grows."""
    clock = SimulatedClock(1)
    assert clock.now_us() < clock.now_us()
    assert clock.monotonic() < clock.monotonic()


def test_wall_time_jumps_alone():
    """A jump back or forth moves wall time and leaves monotonic time growing."""
    clock = SimulatedClock(1, now_us=10_000_000)
    before = clock.monotonic()
    clock.jump(-5)
    assert clock.now_us() < 10_000_000 - 4_000_000
    clock.jump(3600)
    assert clock.now_us() > 3_600_000_000
    assert before < clock.monotonic() < before + 0.001


def test_passing_time_moves_both():
    """`advance` moves both clocks by the same, and only forwards."""
    clock = SimulatedClock(1, now_us=0)
    clock.advance(2.5)
    assert 2_500_000 < clock.now_us() < 2_501_000
    assert 2.5 < clock.monotonic() < 2.501
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)


def test_random_bytes_follow_the_seed():
    """One seed gives the same bytes again, another seed others."""
    assert SimulatedClock(3).random_bytes(16) == SimulatedClock(3).random_bytes(16)
    assert SimulatedClock(3).random_bytes(16) != SimulatedClock(4).random_bytes(16)
    clock = SimulatedClock(3)
    assert clock.random_bytes(16) != clock.random_bytes(16)
