"""Background work in small pieces: between two of them other threads run.

Python runs one thread at a time and takes it from a busy one only after 5 ms. A round over
thousands of topics would hold up each ack by that, several times: its way goes through threads.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from frazil.clock import Clock

T = TypeVar("T")

WORK_S: Final = 0.0002
"""A piece of work is about so long, one that cannot be parted aside."""
PAUSE_S: Final = 0.0002


class Breath:
    """The pauses of one thread's work; without `pauses` (in a simulation) there are none."""

    def __init__(self, clock: Clock, *, pauses: bool) -> None:
        self._clock = clock
        self._pauses = pauses
        self._begun = 0.0
        self._never = threading.Event()

    def take(self) -> None:
        """Pause if the work since the last pause was long enough."""
        if not self._pauses:
            return
        if self._clock.monotonic() - self._begun >= WORK_S:
            self._never.wait(PAUSE_S)
            self._begun = self._clock.monotonic()

    def between(self, items: Iterable[T]) -> list[T]:
        """Return items as a list; who goes through it pauses between them."""
        return _Paused(self, items)


class _Paused(list[T]):
    """A list that lets others run while it is gone through."""

    def __init__(self, breath: Breath, items: Iterable[T]) -> None:
        super().__init__(items)
        self._breath = breath

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            self._breath.take()
            yield item
