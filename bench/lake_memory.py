"""The worker's memory over 200 commits of 1,000 rows, one behind the other."""

from __future__ import annotations

import statistics

from bench import workload
from bench.harness import Bench, Row, absolute, compare
from bench.lake_engine import begin, java_option, lake_engine, resident_mb, wait_committed

COMMITS = 200
INTERVAL_S = 0.1
HEAP_MIB_MAX = 1024.0
GROWTH_MAX = 1.1
WINDOW = 0.2


def run(bench: Bench) -> list[Row]:
    commits = bench.pick(COMMITS, 20)
    java: list[float] = []
    python: list[float] = []
    with lake_engine(bench.fresh("engine"), interval_s=INTERVAL_S) as engine:
        topic = engine.create_topic("events", workload.COLUMNS, lake=True)
        begin(engine, topic)
        worker = engine.lake.status()["worker"]
        pids = worker["java_pid"], worker["pid"]
        heap = java_option(pids[0], "-Xmx")
        rows = [workload.row(number) for number in range(1_000)]
        for _number in range(commits):
            topic.append_many(rows)
            wait_committed(engine, topic)
            java.append(resident_mb(pids[0]))
            python.append(resident_mb(pids[1]))
        if engine.lake.status()["worker"]["java_pid"] != pids[0]:
            raise SystemExit("the worker did not live through the commits")
    title = f"worker over {commits} commits"
    size = max(int(commits * WINDOW), 1)
    half = commits // 2
    return [
        absolute(f"{title}: heap at most", [_mib(heap)], "MiB", value_max=HEAP_MIB_MAX),
        compare(
            f"{title}: memory of Java, last fifth against the one before the middle",
            [statistics.median(java[-size:])],
            [statistics.median(java[half - size : half])],
            "MB",
            ratio_max=GROWTH_MAX,
        ),
        compare(
            f"{title}: memory of Python, last fifth against the one before the middle",
            [statistics.median(python[-size:])],
            [statistics.median(python[half - size : half])],
            "MB",
            ratio_max=GROWTH_MAX,
        ),
        absolute(f"{title}: memory of Java, at most", [max(java)], "MB"),
        absolute(f"{title}: memory of Java after the first commit", java[:1], "MB"),
    ]


def _mib(text: str) -> float:
    """Return a size as Java writes it."""
    return float(text[:-1]) * {"k": 1 / 1024, "m": 1.0, "g": 1024.0}[text[-1].lower()]
