"""Measure a disk, and the log on it: each function runs for some seconds and returns numbers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from frazil.engine import AsyncEngine, Engine
from frazil.fs import RealFileSystem, write_fully

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "disk_sequential",
    "disk_sync",
    "log_arrow",
    "log_read",
    "log_single",
    "log_tasks",
    "log_threads",
    "percentile",
]

REGION_BYTES: Final = 64 << 20
CHUNK_BYTES: Final = 4 << 20
RECORD: Final = b"r" * 100
THREADS: Final = 64
TASKS: Final = 256
ARROW_ROWS: Final = 1000
ARROW_PRODUCERS: Final = 4


def percentile(values: list[float], share: float) -> float:
    """Return the value below which a share of the values lies; 0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _latencies(values: list[float], seconds: float) -> dict[str, float]:
    return {
        "p50_us": percentile(values, 0.5) * 1e6,
        "p99_us": percentile(values, 0.99) * 1e6,
        "per_s": len(values) / seconds if seconds else 0.0,
    }


def disk_sync(directory: str, *, size: int, seconds: float) -> dict[str, float]:
    """Time a write of `size` bytes and its fdatasync, in a file that was filled before."""
    file = RealFileSystem().open(f"{directory}/raw-{size}", "create")
    try:
        write_fully(file, 0, [bytes(CHUNK_BYTES)])
        file.sync()
        data = b"d" * size
        found: list[float] = []
        position = 0
        begin = time.perf_counter()
        while (started := time.perf_counter()) - begin < seconds or not found:
            write_fully(file, position, [data])
            file.sync()
            found.append(time.perf_counter() - started)
            position = (position + size) % (CHUNK_BYTES - size)
        return _latencies(found, time.perf_counter() - begin)
    finally:
        file.close()


def disk_sequential(directory: str, *, seconds: float) -> dict[str, float]:
    """Write pieces of 4 MiB one behind another, synced every 64 MiB."""
    file = RealFileSystem().open(f"{directory}/sequential", "create")
    try:
        data = b"s" * CHUNK_BYTES
        written = 0
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or not written:
            for position in range(0, REGION_BYTES, CHUNK_BYTES):
                write_fully(file, position, [data])
            file.sync()
            written += REGION_BYTES
        return {"mb_per_s": written / 1e6 / (time.perf_counter() - begin)}
    finally:
        file.close()


def log_single(engine: Engine, *, seconds: float) -> dict[str, float]:
    """Time one producer that waits for each ack."""
    topic = engine.create_topic("/bench/single")
    found: list[float] = []
    begin = time.perf_counter()
    while (started := time.perf_counter()) - begin < seconds or not found:
        topic.append(RECORD)
        found.append(time.perf_counter() - started)
    return _latencies(found, time.perf_counter() - begin)


def _in_threads(count: int, work: Callable[[int], None]) -> float:
    """Run `work` in threads; return the seconds that all of them took."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begin


def log_threads(engine: Engine, *, seconds: float) -> dict[str, float]:
    """Time 64 threads that each wait for their acks."""
    topic = engine.create_topic("/bench/threads")
    found: list[float] = []
    end = time.perf_counter() + seconds

    def work(_number: int) -> None:
        while (started := time.perf_counter()) < end or not found:
            topic.append(RECORD)
            found.append(time.perf_counter() - started)

    return _latencies(found, _in_threads(THREADS, work))


def log_tasks(engine: Engine, *, seconds: float) -> dict[str, float]:
    """Time 256 asyncio tasks that each wait for their acks."""
    engine.create_topic("/bench/tasks")
    found: list[float] = []

    async def work(topic: Any, end: float) -> None:
        while (started := time.perf_counter()) < end or not found:
            await topic.append(RECORD)
            found.append(time.perf_counter() - started)

    async def run() -> float:
        topic = AsyncEngine(engine).topic("/bench/tasks")
        begin = time.perf_counter()
        await asyncio.gather(*(work(topic, begin + seconds) for _ in range(TASKS)))
        return time.perf_counter() - begin

    return _latencies(found, asyncio.run(run()))


def log_arrow(engine: Engine, *, seconds: float) -> dict[str, float]:
    """Time 4 producers of Arrow batches of 1,000 rows of 100 bytes."""
    topic = engine.create_topic("/bench/arrow", {"id": "long", "body": "string"})
    texts = ["b" * 92] * ARROW_ROWS
    batch = pa.record_batch({"id": pa.array(range(ARROW_ROWS)), "body": pa.array(texts)})
    counts = [0] * ARROW_PRODUCERS
    end = time.perf_counter() + seconds

    def work(number: int) -> None:
        while time.perf_counter() < end or not counts[number]:
            topic.append_arrow(batch)
            counts[number] += 1

    took = _in_threads(ARROW_PRODUCERS, work)
    return {
        "rows_per_s": sum(counts) * ARROW_ROWS / took,
        "mb_per_s": sum(counts) * batch.nbytes / 1e6 / took,
    }


def log_read(engine: Engine, *, seconds: float) -> dict[str, float]:
    """Time reading the Arrow topic back, again and again."""
    topic: Any = engine.topic("/bench/arrow")
    size = rows = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or not rows:
        for batch in topic.read():
            size += batch.data.nbytes
            rows += batch.count
            if time.perf_counter() - begin >= seconds:
                break
    took = time.perf_counter() - begin
    return {"mb_per_s": size / 1e6 / took, "rows_per_s": rows / took}
