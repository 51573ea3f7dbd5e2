"""1,000 topics against 1 at the same rate, open loop: latency counts from the scheduled time."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Sequence

import frazil
from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn, percentile

TOPICS = 1000
RECORDS_PER_SECOND = 20_000
TICK_S = 0.001
SEED = 7


def run(bench: Bench) -> list[Row]:
    seconds = bench.pick(5.0, 2.0)
    one, many = bench.fresh("one"), bench.fresh("many")
    with workload.open_log(one) as single, workload.open_log(many) as crowded:
        single.create_topic("topic-0")
        for number in range(TOPICS):
            crowded.create_topic(f"topic-{number}")
        freeze()
        results = in_turn(
            {
                "one": lambda: _p99_ms(single, 1, seconds),
                "many": lambda: _p99_ms(crowded, TOPICS, seconds),
            },
            bench.pick(9, 4),
        )
    p99 = {name: [result[1] for result in found] for name, found in results.items()}
    p50 = {name: [result[0] for result in found] for name, found in results.items()}
    title = f"{TOPICS:,} topics against 1 at {RECORDS_PER_SECOND:,} records/s"
    return [
        compare(f"{title}: p99", p99["many"], p99["one"], "ms", ratio_max=1.5),
        absolute(f"{title}: p50 of many", p50["many"], "ms"),
        absolute(f"{title}: p50 of one", p50["one"], "ms"),
    ]


def freeze() -> None:
    """Take what exists out of the garbage collector's rounds, for both sides.

    Else its pauses over the libraries' modules, some in a second at this rate, are the p99.
    """
    gc.collect()
    gc.freeze()


def _p99_ms(engine: frazil.Engine, topics: int, seconds: float) -> tuple[float, float]:
    async def publish() -> list[float]:
        wrapped = frazil.AsyncEngine(engine)
        handles = [wrapped.topic(f"topic-{number}") for number in range(topics)]
        return await open_loop(
            handles, payload=bytes(100), per_second=RECORDS_PER_SECOND, seconds=seconds
        )

    latencies = asyncio.run(publish())
    return percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.99) * 1e3


async def open_loop(
    handles: Sequence,
    *,
    payload: bytes,
    per_second: int,
    seconds: float,
) -> list[float]:
    """Publish at fixed times to topics drawn at random, whatever the acks do.

    A record that is sent late, because the loop or the log was busy, waits from its scheduled time.
    """
    count = int(per_second * seconds)
    draw = random.Random(SEED)
    order = [draw.randrange(len(handles)) for _ in range(count)]
    clock = time.perf_counter
    latencies: list[float] = []

    async def send(number: int, due: float) -> None:
        await handles[order[number]].append(payload)
        latencies.append(clock() - due)

    running: set[asyncio.Task[None]] = set()
    begin = clock() + 0.01
    number = 0
    while number < count:
        now = clock()
        while number < count and begin + number / per_second <= now:
            task = asyncio.create_task(send(number, begin + number / per_second))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(TICK_S)
    if running:
        await asyncio.gather(*running)
    return latencies
