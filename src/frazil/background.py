"""One background thread of the engine: it runs rounds of work until it is stopped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeVar

from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from frazil.clock import Clock

__all__ = ["Task", "in_slices"]

T = TypeVar("T")

SLICE_S: Final = 0.0001
"""The work on many items after which their thread pauses for `PAUSE_S`."""
PAUSE_S: Final = 0.0002


def in_slices(items: Iterable[T], clock: Clock) -> Iterator[T]:
    """Yield items, with a pause after each short time of work on them.

    Python takes its lock from a busy thread only after 5 ms, so without pauses a round over
    thousands of topics would delay each ack by that, several times.
    """
    begun = clock.monotonic()
    for item in items:
        if clock.monotonic() - begun >= SLICE_S:
            threading.Event().wait(PAUSE_S)
            begun = clock.monotonic()
        yield item


class Task:
    """A thread that calls `work` after each pause, or as soon as `wake` is called.

    An error of one step is logged once and kept in `errors` under the step's name until the step
    succeeds; it stops neither the other steps nor the thread. Without a thread (simulations) the
    owner calls `work` itself; `run` and `is_due` work the same.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        *,
        clock: Clock,
        pause_s: Callable[[], float],
        failed_event: str,
        expected: Callable[[Exception], bool] = lambda _error: False,
    ) -> None:
        """Define a task; nothing runs before `start`.

        Args:
            name: the name of the thread.
            work: one round; it is a step by itself, and calls `run` for its own steps.
            clock: the clock of `is_due`.
            pause_s: returns the longest pause before the next round.
            failed_event: the log event of a failed step.
            expected: tells whether an error is normal, such as `Closed` during a stop.
        """
        self._work = work
        self._clock = clock
        self._pause_s = pause_s
        self._failed_event = failed_event
        self._expected = expected
        self._woken = threading.Event()
        self._due: dict[str, float] = {}
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self.stopping = False
        self.errors: dict[str, str] = {}
        """The last error of each failing step, by the step's name."""

    @property
    def is_running(self) -> bool:
        """Tell whether the thread is running."""
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Tell whether the caller is this task's thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float | None = None) -> None:
        """End the thread after its current step; wait at most `timeout_s`."""
        self.stopping = True
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def wake(self) -> None:
        """Start the next round now; from any thread."""
        self._woken.set()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for `wake` or `stop`; tell whether one was called."""
        woken = self._woken.wait(seconds)
        self._woken.clear()
        return woken

    def run(self, step: str, function: Callable[[], object]) -> None:
        """Run one step; an error is kept and logged."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - a bug in one step must not end the others
            if self._expected(error):
                self.errors.pop(step, None)
                return
            text = f"{type(error).__name__}: {error}"
            if self.errors.get(step) != text:
                warn(self._failed_event, task=step, error=text)
            self.errors[step] = text
        else:
            if self.errors:
                self.errors.pop(step, None)

    def is_due(self, step: str, interval_s: float) -> bool:
        """Tell whether a step is due, and restart its interval if it is."""
        now = self._clock.monotonic()
        if now < self._due.get(step, now):
            return False
        self._due[step] = now + interval_s
        return True

    def put_off(self, step: str, seconds: float) -> None:
        """Postpone a step by `seconds`."""
        self._due[step] = self._due.get(step, self._clock.monotonic()) + seconds

    def make_all_due(self) -> None:
        """Make every step due at once and begin the next round now."""
        self._due.clear()
        self._woken.set()

    def _loop(self) -> None:
        while not self.stopping:
            self.wait(self._pause_s())
            if not self.stopping:
                self.run("round", self._work)
