"""What a commit costs when a table is old: after 5,000 commits, and with 2,000 data files.

The old table and the young one are made first, then they are committed to in turn: a JVM that has
just started would make the young table look slow. `BENCH_COMMITS` is another number than 5,000.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from bench import workload
from bench.harness import Bench, Row, absolute, compare, directory_bytes, in_turn
from bench.lake_session import BenchTopic, LakeSession, lake_session
from frazil.model import PartitionField

if TYPE_CHECKING:
    from frazil.lake import StagedFile

COMMITS = 5_000
YOUNG_COMMITS = 50
FILES = 2_000
YOUNG_FILES = 20
FILES_A_COMMIT = 100
COMMITS_RATIO_MAX = 1.5
FILES_RATIO_MAX = 2.0
METADATA_MB_MAX = 100.0
ROWS = 20
REPORT_EVERY = 250


def run(bench: Bench) -> list[Row]:
    commits = int(os.environ.get("BENCH_COMMITS", bench.pick(COMMITS, 60)))
    with lake_session(bench.fresh("lake")) as lake:
        old = BenchTopic(lake, "old", workload.COLUMNS)
        build(old, commits)
        return [*compare_commits(lake, old, commits, bench), *compare_files(lake, bench)]


def build(topic: BenchTopic, commits: int, between: Callable[[], None] = lambda: None) -> None:
    """Bring a table to a number of commits."""
    seconds: list[float] = []
    for number in range(1, commits + 1):
        between()
        seconds.append(topic.commit([_staged(topic)]))
        if number % REPORT_EVERY == 0:
            median = statistics.median(seconds[-REPORT_EVERY:])
            size = _metadata_mb(topic)
            print(f"{number} commits: {median:.3f} s, {size:.1f} MB", file=sys.stderr, flush=True)


def compare_commits(lake: LakeSession, old: BenchTopic, commits: int, bench: Bench) -> list[Row]:
    """Commit to the old table and to one that is young, in turn."""
    young = BenchTopic(lake, "young", workload.COLUMNS)
    build(young, YOUNG_COMMITS)
    before = len(old.upkeep_s)
    size = _metadata_mb(old)
    found = in_turn(
        {
            "old": lambda: old.commit([_staged(old)]),
            "young": lambda: young.commit([_staged(young)]),
        },
        bench.pick(30, 4),
    )
    title = f"a commit after {commits:,} commits"
    upkeep = old.upkeep_s[:before] or [0.0]
    return [
        compare(
            f"{title} against {YOUNG_COMMITS}",
            [each * 1e3 for each in found["old"]],
            [each * 1e3 for each in found["young"]],
            "ms",
            ratio_max=COMMITS_RATIO_MAX,
        ),
        absolute(f"{title}: metadata directory", [size], "MB", value_max=METADATA_MB_MAX),
        absolute(f"{title}: expiry of snapshots took", upkeep, "s"),
        absolute(f"{title}: expiries so far", [before], "times"),
    ]


def compare_files(lake: LakeSession, bench: Bench) -> list[Row]:
    """Commit one file to a table of many files and to one of few, in turn."""
    files = bench.pick(FILES, 200)
    many, few = (_partitioned(lake, name) for name in ("many", "few"))
    for _number in range(files // FILES_A_COMMIT):
        many.commit([_spread(many, FILES_A_COMMIT)])
    few.commit([_spread(few, YOUNG_FILES)])
    found = in_turn(
        {
            "many": lambda: many.commit([_spread(many, 1)]),
            "few": lambda: few.commit([_spread(few, 1)]),
        },
        bench.pick(30, 4),
    )
    return [
        compare(
            f"a commit with {files:,} data files against {YOUNG_FILES}",
            [each * 1e3 for each in found["many"]],
            [each * 1e3 for each in found["few"]],
            "ms",
            ratio_max=FILES_RATIO_MAX,
        )
    ]


def _staged(topic: BenchTopic) -> StagedFile:
    rows = [workload.row(topic.end + number) for number in range(ROWS)]
    return topic.stage(pa.Table.from_pylist(rows, schema=topic.schema))


def _partitioned(lake: LakeSession, name: str) -> BenchTopic:
    # Columns are numbered from 1 in the order in which they are declared.
    field = PartitionField(2, "identity")
    return BenchTopic(lake, name, {"id": "long", "part": "int"}, partition_by=(field,))


def _spread(topic: BenchTopic, files: int) -> StagedFile:
    """Stage rows that become so many files of the table: each has a value of its own."""
    ids = range(topic.end, topic.end + files)
    return topic.stage(
        pa.table(
            {"id": pa.array(ids, pa.int64()), "part": pa.array(range(files), pa.int32())},
            schema=topic.schema,
        )
    )


def _metadata_mb(topic: BenchTopic) -> float:
    return directory_bytes(f"{topic.location}/metadata") / 1e6
