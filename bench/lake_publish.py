"""Publishing while the lake commits and while readers ask the catalog all the time.

One engine, one topic, the same load throughout; on the idle side the lake is paused. Commits come
one a second. The readers are threads of another process that ask for the table's metadata in a
loop; they run at the lowest priority, as what they take of the two cores is not Frazil's.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import frazil
from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn, percentile
from bench.lake_engine import begin, lake_engine, wait_committed
from bench.many_topics import open_loop
from bench.quiet import freeze

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDS_PER_SECOND = 2_000
INTERVAL_S = 1.0
READERS = 4
RATIO_MAX = 1.5
REST_S = 1.0


def run(bench: Bench) -> list[Row]:
    seconds = bench.pick(8.0, 3.0)
    with lake_engine(bench.fresh("engine"), interval_s=INTERVAL_S) as engine:
        topic = engine.create_topic("events", workload.COLUMNS, lake=True)
        begin(engine, topic, commits=bench.pick(20, 2))
        freeze()
        commits: list[float] = []
        asked: list[float] = []

        def idle() -> float:
            return _p99_ms(engine, seconds)

        def committing() -> float:
            before = _commits(engine)
            engine.lake.resume("events")
            wait_committed(engine, topic)
            found = _p99_ms(engine, seconds)
            engine.lake.pause("events")
            commits.append(_commits(engine) - before)
            _wait_paused(engine)
            return found

        def hammered() -> float:
            with _readers(engine) as rate:
                found = _p99_ms(engine, seconds)
                asked.append(rate())
            return found

        engine.lake.pause("events")
        _wait_paused(engine)
        sides = {"idle": idle, "committing": committing, "hammered": hammered}
        found = in_turn(sides, bench.pick(4, 1))
    title = f"publish at {RECORDS_PER_SECOND:,} records/s"
    return [
        compare(
            f"{title} while the lake commits: p99",
            found["committing"],
            found["idle"],
            "ms",
            ratio_max=RATIO_MAX,
        ),
        absolute(f"{title} while the lake commits: commits in {seconds:g} s", commits, "commits"),
        compare(
            f"{title} while {READERS} readers ask the catalog: p99",
            found["hammered"],
            found["idle"],
            "ms",
            ratio_max=RATIO_MAX,
        ),
        absolute(f"{title} while {READERS} readers ask the catalog: answers", asked, "answers/s"),
    ]


def _p99_ms(engine: frazil.Engine, seconds: float) -> float:
    async def publish() -> list[float]:
        handle = frazil.AsyncEngine(engine).topic("events")
        return await open_loop(
            [handle], payload=workload.row(1), per_second=RECORDS_PER_SECOND, seconds=seconds
        )

    time.sleep(REST_S)
    return percentile(asyncio.run(publish()), 0.99) * 1e3


def _commits(engine: frazil.Engine) -> int:
    return int(engine.lake.status()["topics"]["/default/events"]["commits"])


def _wait_paused(engine: frazil.Engine) -> None:
    """Wait until the commit that was under way has come to its end."""
    while engine.lake.status()["topics"]["/default/events"]["plan"] is not None:
        time.sleep(0.05)


@contextmanager
def _readers(engine: frazil.Engine) -> Iterator[Callable[[], float]]:
    """Have readers ask from now on; what is given ends them and returns their rate."""
    address = engine.lake.catalog.address()
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lake_readers.py")
    command = [sys.executable, script, str(READERS)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{address.uri} {address.token} default events\n")
    child.stdin.flush()
    child.stdout.readline()

    def rate() -> float:
        output, _nothing = child.communicate()
        return float(output)

    try:
        yield rate
    finally:
        child.kill()
        child.wait()
