"""A writer beside a measure: so many single records a second, sent at fixed times."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from bench.harness import percentile

if TYPE_CHECKING:
    import frazil

TICK_S = 0.001
WINDOW = 4096
BURST_S = 0.001
PAUSE_S = 0.001


class PacedWriter:
    """Publishes records one by one in a thread while the context is open; waits for all acks.

    Attributes:
        acks_per_second: what it came to, known when the context is left.
    """

    def __init__(
        self, topic: frazil.Topic, records: Callable[[int], dict[str, Any]], per_second: int
    ) -> None:
        self._topic = topic
        self._records = records
        self._per_second = per_second
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="paced-writer")
        self.acks_per_second = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            begin = time.perf_counter()
            sent = self._send(begin)
            self.acks_per_second = sent / (time.perf_counter() - begin)
        except BaseException as error:  # noqa: BLE001 - the thread's top: the context raises it
            self._failure = error

    def _send(self, begin: float) -> int:
        send, records = self._topic.send, self._records
        waiting: deque[Any] = deque()
        sent = 0
        while not self._stop.is_set():
            due = int((time.perf_counter() - begin) * self._per_second)
            for number in range(sent, due):
                waiting.append(send(records(number)))
            sent = max(sent, due)
            while len(waiting) > WINDOW:
                waiting.popleft().result()
            time.sleep(TICK_S)
        for pending in waiting:
            pending.result()
        return sent


class Timed(NamedTuple):
    """Calls: the seconds that each took, and the seconds that its own thread ran of them.

    On a machine that others use too the second tells what the call itself needs.
    """

    wall: list[float]
    cpu: list[float]


def timed(calls: Iterator[Callable[[], object]], *, seconds: float, beside: bool = False) -> Timed:
    """Time calls one after the other for a while; `beside` a writer in bursts.

    Between bursts others may run: one reader that never waits would take the interpreter for itself
    and hold up the very writer beside which it is measured.
    """
    clock, own = time.perf_counter, time.thread_time
    found = Timed([], [])
    until = clock() + seconds
    while clock() < until:
        pause_at = clock() + BURST_S
        for call in calls:
            own_begin = own()
            begin = clock()
            call()
            end = clock()
            found.cpu.append(own() - own_begin)
            found.wall.append(end - begin)
            if end > pause_at:
                break
        if beside:
            time.sleep(PAUSE_S)
    return found


def percentiles_us(rounds: Sequence[Timed], share: float, *, cpu: bool = False) -> list[float]:
    """Return a percentile of each round in microseconds."""
    return [percentile(each.cpu if cpu else each.wall, share) * 1e6 for each in rounds]
