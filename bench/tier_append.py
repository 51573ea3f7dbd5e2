"""256 tasks that each wait for their ack, with index and memory tier, against the log alone."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from typing import TYPE_CHECKING, Any

import frazil
from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn
from bench.quiet import freeze, wait_until_quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TASKS = 256
RATIO_MIN = 0.6
ACKS_MIN = 60_000
COLUMNS = {"id": "long", "at": "long", "name": "string", "value": "double", "body": "string"}
KEYS = 1_000_000
REST_S = 1.2


def run(bench: Bench) -> list[Row]:
    each = bench.pick(1_000, 100)
    payloads = [os.urandom(100) for _ in range(64)]
    counter = itertools.count()

    def record() -> dict[str, Any]:
        return _record(next(counter) * 7919 % KEYS)

    with (
        workload.open_engine(bench.fresh("tiers")) as tiers,
        workload.open_engine(bench.fresh("log"), **{"memory.enabled": False}) as log,
    ):
        for engine in (tiers, log):
            engine.create_topic("keyed", COLUMNS, primary_key=["id"])
            engine.create_topic("rows", COLUMNS)
            engine.create_topic("bytes")
        freeze()
        sides = {
            f"{name} {topic}": _side(engine, topic, record, payloads, each)
            for topic in ("keyed", "rows", "bytes")
            for name, engine in (("tiers", tiers), ("log", log))
        }
        found = in_turn(sides, bench.pick(9, 2))
    rows: list[Row] = []
    titles = {"keyed": "keyed rows of 100 B", "rows": "rows of 100 B", "bytes": "bytes of 100 B"}
    for topic, kind in titles.items():
        values, cpu = zip(*found[f"tiers {topic}"], strict=True)
        baselines, cpu_baselines = zip(*found[f"log {topic}"], strict=True)
        title = f"{TASKS} tasks, {kind}"
        rows += [
            compare(f"{title}, with tiers", values, baselines, "acks/s", ratio_min=RATIO_MIN),
            absolute(f"{title}, with tiers, by itself", values, "acks/s", value_min=ACKS_MIN),
            compare(f"{title}, with tiers, CPU time of a record", cpu, cpu_baselines, "us"),
        ]
    return rows


def _record(key: int) -> dict[str, Any]:
    """Return a row that is 100 bytes packed: numbers, a name and a body."""
    return {
        "id": key,
        "at": 1_700_000_000_000_000 + key,
        "name": f"sensor-{key % 1000:05d}",
        "value": key * 0.25,
        "body": f"{key:060d}",
    }


def _side(
    engine: frazil.Engine,
    topic: str,
    record: Callable[[], dict[str, Any]],
    payloads: Sequence[bytes],
    each: int,
) -> Callable[[], tuple[float, float]]:
    """Return a side that gives acks a second and the CPU time of a record in microseconds.

    Its records are made before the time starts. The CPU time includes what the tiers do afterwards.
    """

    def side() -> tuple[float, float]:
        count = TASKS * each
        made: list[Any]
        if topic == "bytes":
            made = list(itertools.islice(itertools.cycle(payloads), count))
        else:
            made = [record() for _ in range(count)]
        cpu = time.process_time()
        acks_per_second = asyncio.run(_publish(engine, topic, made))
        if engine.has_tiers:
            # What it has left to do in the background must not slow the other side down.
            wait_until_quiet(engine, rest_s=REST_S)
        return acks_per_second, (time.process_time() - cpu) / count * 1e6

    return side


async def _publish(engine: frazil.Engine, name: str, records: Sequence[Any]) -> float:
    topic = frazil.AsyncEngine(engine).topic(name)
    source = iter(records)

    async def publish() -> None:
        # The tasks share one iterator: a free task takes the next record.
        for record in source:
            await topic.append(record)

    begin = time.perf_counter()
    await asyncio.gather(*[publish() for _ in range(TASKS)])
    return len(records) / (time.perf_counter() - begin)
