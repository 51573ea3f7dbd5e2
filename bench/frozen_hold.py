"""One topic's hold stands still while 100 topics write: the disk stays bounded, p99 the same."""

from __future__ import annotations

import asyncio
import shutil
import time

import attrs

import frazil
from bench import workload
from bench.harness import Bench, Row, absolute, compare, directory_bytes, in_turn, percentile
from bench.many_topics import freeze, open_loop
from bench.stand_in import StandIn
from frazil.engine import upkeep
from frazil.log import ChainedHistory

TOPICS = 100
RECORDS_PER_SECOND = 5_000
PAYLOAD_BYTES = 400
HELD_PER_SECOND = 100
FLUSH_AGE_S = 2.0
SETTINGS = {
    "log.segment_bytes_max": 4 << 20,
    "log.write_bytes_max": 2 << 20,
    "log.retention_age_s": 1.0,
}


@attrs.frozen
class Result:
    """What one run gave."""

    p99_ms: float
    disk: list[tuple[float, int]]
    published: int
    read: int
    flushes: int


def run(bench: Bench) -> list[Row]:
    seconds = bench.pick(30.0, 12.0)
    results = in_turn(
        {
            "frozen": lambda: _one(bench, seconds, frozen=True),
            "moving": lambda: _one(bench, seconds, frozen=False),
        },
        bench.pick(4, 2),
        warm_up=0,
    )
    p99 = {name: [each.p99_ms for each in found] for name, found in results.items()}
    growth, levels = [], []
    for result in results["frozen"]:
        level = max(size for at, size in result.disk if at <= seconds / 3)
        growth.append(max(size for at, size in result.disk if at > seconds / 3) / 1e6)
        levels.append(level / 1e6)
    # The hold that moves is no baseline of the disk's bar, but shows what is normal.
    normal = [max(size for _at, size in result.disk) / 1e6 for result in results["moving"]]
    frozen = results["frozen"]
    title = "a frozen hold beside 100 topics"
    return [
        compare(f"{title}: p99 of the others", p99["frozen"], p99["moving"], "ms", ratio_max=1.2),
        compare(f"{title}: disk after the first third", growth, levels, "MB", ratio_max=1.5),
        absolute(f"{title}: disk when the hold moves", normal, "MB"),
        compare(
            f"{title}: records read back",
            [each.read for each in frozen],
            [each.published for each in frozen],
            "records",
            ratio_min=1.0,
            ratio_max=1.0,
        ),
        absolute(f"{title}: flushes", [each.flushes for each in frozen], "files"),
    ]


def _one(bench: Bench, seconds: float, *, frozen: bool) -> Result:
    path = bench.fresh("engine")
    upkeep.RETENTION_CHECK_S = 0.25
    with workload.open_log(path, **SETTINGS) as engine:
        held = engine.create_topic("held")
        for number in range(TOPICS):
            engine.create_topic(f"topic-{number}")
        held.hold("reader", 0)
        stand_in = StandIn(engine, bench.fresh("taken"), age_s=FLUSH_AGE_S)
        for runtime in engine.runtimes:
            # As the tiers come before the log at the opening.
            sources = [stand_in, *engine._sources, runtime.log.source]  # noqa: SLF001
            runtime.history = ChainedHistory(sources)
        stand_in.start()
        freeze()
        latencies, published, disk = asyncio.run(_load(engine, seconds, frozen=frozen))
        stand_in.stop()
        read = _read_all(held) if frozen else 0
    shutil.rmtree(path)
    return Result(percentile(latencies, 0.99) * 1e3, disk, published, read, stand_in.flushes)


async def _load(engine: frazil.Engine, seconds: float, *, frozen: bool):
    wrapped = frazil.AsyncEngine(engine)
    handles = [wrapped.topic(f"topic-{number}") for number in range(TOPICS)]
    held = wrapped.topic("held")
    done = asyncio.Event()
    published = 0
    disk: list[tuple[float, int]] = []
    begin = time.perf_counter()

    async def write_held() -> None:
        nonlocal published
        while not done.is_set():
            ack = await held.append(bytes(PAYLOAD_BYTES))
            published += 1
            if not frozen and published % 50 == 0:
                await held.advance("reader", ack.offset)
            await asyncio.sleep(1 / HELD_PER_SECOND)

    async def watch_disk() -> None:
        directory = engine.paths.journal
        while not done.is_set():
            size = await asyncio.to_thread(directory_bytes, directory)
            disk.append((time.perf_counter() - begin, size))
            await asyncio.sleep(0.1)

    beside = [asyncio.create_task(write_held()), asyncio.create_task(watch_disk())]
    latencies = await open_loop(
        handles, payload=bytes(PAYLOAD_BYTES), per_second=RECORDS_PER_SECOND, seconds=seconds
    )
    done.set()
    await asyncio.gather(*beside)
    return latencies, published, disk


def _read_all(topic: frazil.Topic) -> int:
    """Read the frozen topic from its first record: from the stand-in, then from the log."""
    expected = 0
    for batch in topic.read(0):
        if batch.offset != expected:
            raise SystemExit(f"offset {batch.offset} came where {expected} was due")
        expected = batch.offset_next
    return expected
