"""4 producers of Arrow batches, 8 in flight each, against raw writes of the run's own group size."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import statistics
import time

import frazil
from bench import workload
from bench.baselines import write_in_pieces
from bench.harness import Bench, Row, absolute, compare

PRODUCERS = 4
IN_FLIGHT = 8
ROWS_MIN = 1_000_000


def run(bench: Bench) -> list[Row]:
    batches = [workload.arrow_batch(number) for number in range(32)]
    each = bench.pick(100, 20)
    ours: list[float] = []
    rows: list[float] = []
    raw: list[float] = []
    groups: list[float] = []
    # The first round warms up and is thrown away.
    for number in range(bench.pick(8, 4)):
        path = bench.fresh("engine")
        per_second, written, seconds, group_bytes = _publish(path, batches, each)
        shutil.rmtree(path)
        baseline = write_in_pieces(
            bench.path("pieces"), piece_bytes=group_bytes, total_bytes=written
        )
        if number:
            rows.append(per_second)
            ours.append(written / seconds / 1e6)
            raw.append(baseline / 1e6)
            groups.append(group_bytes / 1e3)
    title = "Arrow batches, 4 producers x 8 in flight"
    return [
        compare(f"{title}: bytes", ours, raw, "MB/s", ratio_min=0.5),
        absolute(f"{title}: rows", rows, "rows/s", value_min=ROWS_MIN),
        absolute(f"{title}: mean group", [statistics.median(groups)], "KB"),
    ]


def _publish(path: str, batches: list, each: int) -> tuple[float, int, float, int]:
    """Return rows per second, bytes written, seconds, and the mean size of a group."""
    with workload.open_log(path) as engine:
        engine.create_topic("batches", workload.BATCH_COLUMNS)
        before = engine.stats()["journal"]
        begin = time.perf_counter()
        asyncio.run(_produce(engine, batches, each))
        seconds = time.perf_counter() - begin
        after = engine.stats()["journal"]
    written = after["bytes_written"] - before["bytes_written"]
    groups = after["groups"] - before["groups"]
    count = PRODUCERS * IN_FLIGHT * each * workload.ROWS_IN_BATCH
    return count / seconds, written, seconds, written // groups


async def _produce(engine: frazil.Engine, batches: list, each: int) -> None:
    topic = frazil.AsyncEngine(engine).topic("batches")

    async def lane(number: int) -> None:
        for batch in itertools.islice(itertools.cycle(batches), number, number + each):
            await topic.append_arrow(batch)

    await asyncio.gather(*[lane(number) for number in range(PRODUCERS * IN_FLIGHT)])
