"""The fixed cost of a commit: 1,000 rows from one staged file, against a plain append of them.

Both sides read the same file in the same session, each into a table of its own of the same age.
"""

from __future__ import annotations

from bench import workload
from bench.harness import Bench, Row, absolute, compare, in_turn, percentile
from bench.lake_session import BenchTopic, PlainTable, lake_session

RATIO_MAX = 1.5
WARM_UP = 30


def run(bench: Bench) -> list[Row]:
    with lake_session(bench.fresh("lake")) as lake:
        topic = BenchTopic(lake, "small", workload.BATCH_COLUMNS)
        plain = PlainTable(lake, "plain", topic)
        rows = workload.arrow_batch(1)
        staged = [topic.stage(rows)]

        def ours() -> float:
            staged[0] = topic.stage(rows)
            return topic.commit(staged) * 1e3

        def theirs() -> float:
            return plain.append([staged[0].path]) * 1e3

        found = in_turn(
            {"ours": ours, "theirs": theirs}, bench.pick(60, 5), warm_up=bench.pick(WARM_UP, 3)
        )
    title = f"a commit of {len(rows):,} rows"
    return [
        compare(title, found["ours"], found["theirs"], "ms", ratio_max=RATIO_MAX),
        absolute(f"{title}: p95", [percentile(found["ours"], 0.95)], "ms"),
        absolute(f"{title}: p95 of plain Spark", [percentile(found["theirs"], 0.95)], "ms"),
    ]
