"""The records that the measures publish, and how a crowd of tasks publishes them."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable, Sequence

import pyarrow as pa

import frazil
from bench.harness import percentile

COLUMNS = {"id": "long", "at": "long", "name": "string", "value": "double", "active": "boolean"}
BATCH_COLUMNS = {"id": "long", "at": "long", "value": "double", "name": "string", "body": "binary"}
ROWS_IN_BATCH = 1000
ROW_BYTES = 100


def row(number: int) -> dict[str, object]:
    """Return a dict of five columns."""
    return {
        "id": number,
        "at": 1_700_000_000_000_000 + number,
        "name": f"sensor-{number % 1000:05d}",
        "value": number * 0.25,
        "active": number % 2 == 0,
    }


def arrow_batch(number: int) -> pa.RecordBatch:
    """Return a batch of 1,000 rows of 100 bytes: three numbers, a text, a body, two offsets."""
    first = number * ROWS_IN_BATCH
    ids = range(first, first + ROWS_IN_BATCH)
    body = os.urandom(52 * ROWS_IN_BATCH)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([1_700_000_000_000_000 + each for each in ids], pa.int64()),
            "value": pa.array([each * 0.25 for each in ids], pa.float64()),
            "name": pa.array([f"sensor-{each % 1000:09d}" for each in ids], pa.string()),
            "body": pa.array([body[at : at + 52] for at in range(0, len(body), 52)], pa.binary()),
        }
    )


def open_engine(path: str, **overrides) -> frazil.Engine:
    """Open an engine on defaults, but with no stop for a disk that is full of other things."""
    return frazil.open(path, **{"log.free_ratio_min": 0.0, **overrides})


def open_log(path: str, **overrides) -> frazil.Engine:
    """Open an engine with the log alone, for what is compared with raw files; see `bench/tiers.py`."""
    return open_engine(path, **{"memory.enabled": False, **overrides})


async def crowd(
    append: Callable[[object], Awaitable[object]],
    records: Sequence[object],
    *,
    tasks: int,
    each: int,
) -> tuple[float, float, float]:
    """Let tasks publish in a loop; return acks per second and the p50 and p99 in seconds."""
    latencies: list[float] = []
    clock = time.perf_counter

    async def publish(first: int) -> None:
        source = itertools.islice(itertools.cycle(records), first, first + each)
        for record in source:
            begin = clock()
            await append(record)
            latencies.append(clock() - begin)

    begin = clock()
    await asyncio.gather(*[publish(number) for number in range(tasks)])
    seconds = clock() - begin
    return tasks * each / seconds, percentile(latencies, 0.5), percentile(latencies, 0.99)


def crowd_on(
    engine: frazil.Engine, topic: str, records: Sequence[object], *, tasks: int, each: int
):
    """Run a crowd on a topic through the asyncio API, in a loop of its own."""

    async def run() -> tuple[float, float, float]:
        handle = frazil.AsyncEngine(engine).topic(topic)
        return await crowd(handle.append, records, tasks=tasks, each=each)

    return asyncio.run(run())


def journal_files(engine: frazil.Engine) -> list[str]:
    """Return the paths of the shared journal's segments, oldest first."""
    return [segment.path for segment in engine.log.journal.segments]
