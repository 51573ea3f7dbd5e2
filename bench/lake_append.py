"""Staged files into Iceberg, 1 GB, against plain Spark that reads and appends the same files.

An engine publishes and flushes the files. Each side fills a fresh table, each time; what a side
wrote is dropped outside of its time.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn
from bench.lake_session import BenchTopic, LakeSession, PlainTable, lake_session
from bench.quiet import wait_until_quiet
from bench.same_rows import file_paths
from frazil.lake import StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable

RATIO_MIN = 0.7
MIB = 1 << 20
CORES = 2
BATCHES = 500
"""So many different batches are published again and again; far apart, nothing compresses them."""


def run(bench: Bench) -> list[Row]:
    files = _staged(bench, bench.pick(1_000_000_000, 20_000_000))
    size = sum(file.bytes for file in files) / MIB
    with lake_session(bench.fresh("lake")) as lake:
        heap = lake.jvm_heap_bytes_max() / MIB
        found = in_turn(_sides(lake, files), bench.pick(3, 2), warm_up=1)
    title = f"append of {size:,.0f} MiB in {len(files)} staged files"
    return [
        compare(
            title,
            [size / CORES / seconds for seconds in found["ours"]],
            [size / CORES / seconds for seconds in found["theirs"]],
            "MiB/s a core",
            ratio_min=RATIO_MIN,
        ),
        absolute(f"{title}: heap at most", [heap], "MiB", value_max=1024),
    ]


def _staged(bench: Bench, bytes_min: int) -> list[StagedFile]:
    """Publish rows until their files have that many bytes."""
    with workload.open_engine(bench.fresh("engine")) as engine:
        topic = engine.create_topic("rows", workload.BATCH_COLUMNS)
        batches = [workload.arrow_batch(number) for number in range(BATCHES)]
        size = 0
        while size < bytes_min:
            for batch in batches:
                topic.append_arrow(batch)
            engine.tiers.flush("rows")
            size = sum(file["bytes"] for file in engine.tiers.describe_files("rows"))
        wait_until_quiet(engine)
        facts = engine.tiers.describe_files("rows")
        paths = file_paths(engine, "rows")
    return [
        StagedFile(
            path, fact["rows"], os.stat(path).st_size, fact["offset_first"], fact["offset_last"]
        )
        for fact, path in zip(facts, paths, strict=True)
    ]


def _sides(lake: LakeSession, files: list[StagedFile]) -> dict[str, Callable[[], float]]:
    numbers = itertools.count()
    paths = [file.path for file in files]

    def ours() -> float:
        topic = BenchTopic(lake, f"ours{next(numbers)}", workload.BATCH_COLUMNS)
        seconds = topic.commit(files)
        topic.drop()
        return seconds

    def theirs() -> float:
        model = BenchTopic(lake, f"model{next(numbers)}", workload.BATCH_COLUMNS)
        plain = PlainTable(lake, f"plain{next(numbers)}", model)
        seconds = plain.append(paths)
        plain.drop()
        model.drop()
        return seconds

    return {"ours": ours, "theirs": theirs}
