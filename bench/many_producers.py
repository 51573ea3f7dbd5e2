"""256 asyncio tasks, and 64 threads, that each wait for their ack; against a minimal group commit."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

from bench import workload
from bench.baselines import GroupCommitLoop
from bench.harness import Bench, Row, absolute, compare, in_turn

if TYPE_CHECKING:
    import frazil

TASKS = 256
THREADS = 64
ACKS_MIN = 100_000
P99_MAX_MS = 10.0
THREAD_ACKS_MIN = 15_000


def run(bench: Bench) -> list[Row]:
    each = bench.pick(800, 200)
    payloads = [os.urandom(100) for _ in range(64)]
    dicts = [workload.row(number) for number in range(64)]
    with workload.open_engine(bench.fresh("engine")) as engine:
        engine.create_topic("bytes")
        engine.create_topic("rows", workload.COLUMNS)
        results = in_turn(
            {
                "minimal": lambda: _minimal(bench.path("minimal"), payloads, each),
                "bytes": lambda: workload.crowd_on(
                    engine, "bytes", payloads, tasks=TASKS, each=each
                ),
                "dicts": lambda: workload.crowd_on(engine, "rows", dicts, tasks=TASKS, each=each),
            },
            bench.pick(7, 3),
        )
        threads = in_turn(
            {"threads": lambda: _threads(engine, payloads[0], each)}, bench.pick(5, 3)
        )["threads"]
    acks = {name: [result[0] for result in found] for name, found in results.items()}
    p99 = {name: [result[2] * 1e3 for result in found] for name, found in results.items()}
    title = f"{TASKS} asyncio tasks"
    return [
        compare(f"{title}, bytes", acks["bytes"], acks["minimal"], "acks/s", ratio_min=0.5),
        absolute(f"{title}, bytes, by itself", acks["bytes"], "acks/s", value_min=ACKS_MIN),
        absolute(f"{title}, bytes: p99", p99["bytes"], "ms", value_max=P99_MAX_MS),
        compare(f"{title}, dicts", acks["dicts"], acks["minimal"], "acks/s", ratio_min=0.35),
        absolute(f"{title}, dicts: p99", p99["dicts"], "ms", value_max=P99_MAX_MS),
        absolute(f"{title}, minimal loop: p99", p99["minimal"], "ms"),
        absolute(f"{THREADS} threads, bytes", threads, "acks/s", value_min=THREAD_ACKS_MIN),
    ]


def _minimal(path: str, payloads: list[bytes], each: int) -> tuple[float, float, float]:
    async def publish() -> tuple[float, float, float]:
        loop = GroupCommitLoop(path, asyncio.get_running_loop())
        try:
            return await workload.crowd(loop.append, payloads, tasks=TASKS, each=each)
        finally:
            await asyncio.to_thread(loop.close)

    result = asyncio.run(publish())
    os.unlink(path)
    return result


def _threads(engine: frazil.Engine, payload: bytes, each: int) -> float:
    topic = engine.topic("bytes")
    start = threading.Barrier(THREADS + 1)

    def publish() -> None:
        start.wait()
        for _ in range(each):
            topic.append(payload)

    threads = [threading.Thread(target=publish) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    start.wait()
    begin = time.perf_counter()
    for thread in threads:
        thread.join()
    return THREADS * each / (time.perf_counter() - begin)
