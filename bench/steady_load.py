"""100,000 records of 100 B a second for minutes, in 1,000 calls a second, on the default budget."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import frazil
from bench import program, workload
from bench.harness import Bench, Row, absolute, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS_PER_SECOND = 1_000
RECORDS_PER_CALL = 100
RECORD_BYTES = 100
MINUTES = 5.0
QUICK_MINUTES = 0.2
RSS_MAX_MB = 2_000.0
LARGE_SHARE_MIN = 0.8
LARGE_BYTES = 64 << 20
TICK_S = 0.001


def run(bench: Bench) -> list[Row]:
    minutes = program.minutes(bench.pick(MINUTES, QUICK_MINUTES))
    with workload.open_engine(bench.fresh("engine")) as engine:
        engine.create_topic("bytes")
        with Watch(engine) as watch:
            load = asyncio.run(_load(engine, minutes * 60))
            staged = [file["bytes"] for file in engine.tiers.describe_files("bytes")]
        pressure = engine.stats()["tiers"]["pressure"]
        errors = engine.stats()["tiers"]["errors"]
        head = engine.topic("bytes").describe()["watermarks"]["head"]
    if head != load.records:
        raise SystemExit(f"{load.records} records were acked and {head} are there")
    if errors:
        raise SystemExit(f"the tiers failed: {errors}")
    large = sum(size for size in staged if size >= LARGE_BYTES)
    title = f"{CALLS_PER_SECOND * RECORDS_PER_CALL:,} records/s for {minutes:g} min"
    return [
        absolute(f"{title}: RSS", [max(watch.rss) / 1e6], "MB", value_max=RSS_MAX_MB),
        absolute(f"{title}: red zone", [watch.red], "samples", value_max=0),
        absolute(f"{title}: red zone entered", [pressure["entries"]["red"]], "times", value_max=0),
        absolute(
            f"{title}: staged bytes in files of 64 MB and more",
            [large / max(sum(staged), 1)],
            "of all",
            value_min=LARGE_SHARE_MIN,
        ),
        absolute(f"{title}: staged", [sum(staged) / 1e6], "MB"),
        absolute(f"{title}: files", [len(staged)], "files"),
        absolute(f"{title}: yellow zone entered", [pressure["entries"]["yellow"]], "times"),
        absolute(f"{title}: use of the budget at most", [max(watch.percent)], "%"),
        absolute(f"{title}: acks", [load.records / load.seconds], "records/s"),
        absolute(f"{title}: the latest call was late by", [load.late_s * 1e3], "ms"),
    ]


class Watch:
    """Looks at the process and at the zones ten times a second."""

    def __init__(self, engine: frazil.Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.rss: list[int] = []
        self.percent: list[float] = []
        self.red = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        pressure = self._engine.tiers.pressure
        while not self._stop.wait(0.1):
            found: Any = pressure.snapshot()
            self.rss.append(resident_bytes())
            self.percent.append(found.percent)
            self.red += found.zone == "red"


class Load(NamedTuple):
    """What came of the load; `late_s` is the worst delay of the start of a call."""

    records: int
    seconds: float
    late_s: float


async def _load(engine: frazil.Engine, seconds: float) -> Load:
    """Make calls at fixed times, and wait for all acks."""
    topic = frazil.AsyncEngine(engine).topic("bytes")
    clock = time.perf_counter
    records = _records()
    running: set[asyncio.Task[object]] = set()
    calls = int(seconds * CALLS_PER_SECOND)
    late_s = 0.0
    begin = clock()
    number = 0
    while number < calls:
        now = clock()
        while number < calls and begin + number / CALLS_PER_SECOND <= now:
            late_s = max(late_s, now - begin - number / CALLS_PER_SECOND)
            task = asyncio.create_task(topic.append_many(next(records)))
            running.add(task)
            task.add_done_callback(_finished(running))
            number += 1
        await asyncio.sleep(TICK_S)
    if running:
        await asyncio.gather(*running)
    return Load(calls * RECORDS_PER_CALL, clock() - begin, late_s)


def _finished(running: set[asyncio.Task[object]]):
    def done(task: asyncio.Task[object]) -> None:
        running.discard(task)
        # An append that failed ends the run.
        task.result()

    return done


def _records() -> Iterator[list[bytes]]:
    """Yield records that do not compress, each call's of its own."""
    source = os.urandom(16 << 20)
    draw = random.Random(1)
    while True:
        first = draw.randrange(len(source) - RECORDS_PER_CALL * RECORD_BYTES)
        stop = first + RECORDS_PER_CALL * RECORD_BYTES
        yield [source[at : at + RECORD_BYTES] for at in range(first, stop, RECORD_BYTES)]
