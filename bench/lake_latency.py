"""From an event to SQL and to its table, at 1,000 events a second and a commit each 5 seconds.

An event's time is when its row was made. It has reached SQL when the answer of a query has it, and
the table when the engine says so, which it does once the table does; both are looked at all along.
"""

from __future__ import annotations

import bisect
import threading
import time
from typing import TYPE_CHECKING, Any, Self

from bench import workload
from bench.harness import Bench, Row, absolute, percentile
from bench.lake_engine import begin, committed, lake_engine, wait_committed
from bench.pacing import PacedWriter
from bench.quiet import freeze

if TYPE_CHECKING:
    from collections.abc import Callable

    import frazil

EVENTS_PER_SECOND = 1_000
INTERVAL_S = 5.0
WARM_UP_COMMITS = 5
SQL_S_MAX = 1.0
COMMITTED_S_MAX = INTERVAL_S + 3.0


def run(bench: Bench) -> list[Row]:
    seconds = bench.pick(60.0, 12.0)
    with lake_engine(bench.fresh("engine"), interval_s=INTERVAL_S) as engine:
        topic = engine.create_topic("events", workload.COLUMNS, lake=True)
        begin(engine, topic, commits=bench.pick(WARM_UP_COMMITS, 1))
        freeze()
        first = topic.describe()["watermarks"]["head"]
        made: list[float] = []

        def event(number: int) -> dict[str, Any]:
            made.append(time.perf_counter())
            return workload.row(number)

        with (
            Reached(lambda: committed(engine, topic) - first, pause_s=0.005) as table,
            Reached(lambda: _newest(engine) + 1, pause_s=0.02) as answers,
        ):
            with PacedWriter(topic, event, EVENTS_PER_SECOND) as writer:
                time.sleep(seconds)
            wait_committed(engine, topic)
            time.sleep(0.2)
        took = engine.lake.topics[topic.name].results
    to_sql, to_table = answers.delays(made), table.delays(made)
    title = f"{EVENTS_PER_SECOND:,} events/s, a commit each {INTERVAL_S:g} s"
    return [
        absolute(
            f"{title}: event to SQL, p99", [percentile(to_sql, 0.99)], "s", value_max=SQL_S_MAX
        ),
        absolute(f"{title}: event to SQL, p50", [percentile(to_sql, 0.5)], "s"),
        absolute(
            f"{title}: event to committed, p99",
            [percentile(to_table, 0.99)],
            "s",
            value_max=COMMITTED_S_MAX,
        ),
        absolute(f"{title}: event to committed, p50", [percentile(to_table, 0.5)], "s"),
        absolute(f"{title}: event to committed, at most", [max(to_table)], "s"),
        absolute(f"{title}: a commit took", list(took), "s"),
        absolute(f"{title}: acks", [writer.acks_per_second], "acks/s"),
    ]


def _newest(engine: frazil.Engine) -> int:
    [(newest,)] = engine.query("SELECT max(id) FROM events").rows()
    return int(newest)


class Reached:
    """Looks at a number that only grows, again and again, and notes when it was what."""

    def __init__(self, look: Callable[[], int], *, pause_s: float) -> None:
        self._look = look
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._counts: list[int] = []
        self._times: list[float] = []

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
            while not self._stop.wait(self._pause_s):
                found = self._look()
                if not self._counts or found > self._counts[-1]:
                    self._times.append(time.perf_counter())
                    self._counts.append(found)
        except BaseException as error:  # noqa: BLE001 - the thread's top: the context raises it
            self._failure = error

    def delays(self, made: list[float]) -> list[float]:
        """Return how long after its time each event was in."""
        return [
            self._times[bisect.bisect_right(self._counts, number)] - at
            for number, at in enumerate(made)
        ]
