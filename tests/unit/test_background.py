"""The background task: its rounds, its errors, its end."""

from __future__ import annotations

import itertools
import threading
import time
from types import SimpleNamespace

from frazil.background import PAUSE_S, Task, in_slices
from frazil.clock import SystemClock
from frazil.errors import Closed
from tests.support.simulated_clock import SimulatedClock


def make(work, *, clock=None, pause_s=60.0):
    return Task(
        "test-task",
        work,
        clock=clock or SystemClock(),
        pause_s=lambda: pause_s,
        failed_event="test_failed",
        expected=lambda error: isinstance(error, Closed),
    )


def fail(error):
    raise error


def test_a_wake_begins_the_next_round_at_once():
    """A round begins when somebody wakes the task, long before its pause ends."""
    done = threading.Event()
    task = make(done.set)
    task.start()
    task.wake()
    assert done.wait(10)
    task.stop()
    assert not task.is_running


def test_a_failed_step_stops_no_other_and_is_forgotten_when_it_succeeds():
    """An error is kept under its step until the step succeeds; an expected one is not kept."""
    task = make(lambda: None)
    task.run("flush", lambda: fail(ValueError("boom")))
    task.run("closed", lambda: fail(Closed("closing")))
    task.run("other", lambda: None)
    assert task.errors == {"flush": "ValueError: boom"}
    task.run("flush", lambda: None)
    assert not task.errors


def test_a_failed_round_does_not_end_the_thread():
    """The thread goes on after a round that raised."""
    rounds, done = [], threading.Event()

    def work():
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("first")
        done.set()

    task = make(work, pause_s=0.001)
    task.start()
    assert done.wait(10)
    task.stop()


def test_steps_are_due_at_their_intervals():
    """A step is due at first, then after its interval, and at once when all are made due."""
    clock = SimulatedClock(step_us=0)
    task = make(lambda: None, clock=clock)
    assert task.is_due("scrub", 5.0)
    assert not task.is_due("scrub", 5.0)
    clock.advance(5.0)
    assert task.is_due("scrub", 5.0)
    task.put_off("scrub", 10.0)
    clock.advance(5.0)
    assert not task.is_due("scrub", 5.0)
    task.make_all_due()
    assert task.is_due("scrub", 5.0)


def test_work_on_many_items_pauses_after_each_slice():
    """Other threads get the interpreter between slices; all items come, in order."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__)
    begun = time.monotonic()
    assert list(in_slices([3, 1, 2], clock)) == [3, 1, 2]
    assert time.monotonic() - begun >= 3 * PAUSE_S
