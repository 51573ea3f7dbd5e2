"""Aggregates over 1 M rows in memory, against DuckDB on the same Arrow table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from bench import people, workload
from bench.quiet import freeze, wait_until_quiet
from bench.same_rows import SameRows, compare_aggregates

if TYPE_CHECKING:
    import frazil
    from bench.harness import Bench, Row

APPEND_RATIO_MAX = 1.3
KEYED_RATIO_MAX = 2.5


def run(bench: Bench) -> list[Row]:
    count = bench.pick(1_000_000, 100_000)
    ids = people.keys_in_random_order(count)
    rows: list[Row] = []
    with workload.open_engine(bench.fresh("append")) as engine:
        people.publish(engine.create_topic("people", people.COLUMNS), ids)
        rows += _compare(bench, engine, pa.Table.from_batches(people.batches_of(ids)), keyed=False)
    changed = ids[: count // 10]
    with workload.open_engine(bench.fresh("keyed")) as engine:
        topic = engine.create_topic("people", people.COLUMNS, primary_key=["id"])
        people.publish(topic, ids)
        people.publish(topic, changed, version=1)
        now = [*people.batches_of(changed, version=1), *people.batches_of(ids[len(changed) :])]
        rows += _compare(bench, engine, pa.Table.from_batches(now), keyed=True)
    return rows


def _compare(bench: Bench, engine: frazil.Engine, table: pa.Table, *, keyed: bool) -> list[Row]:
    wait_until_quiet(engine)
    freeze()
    other = SameRows(engine)
    other.show_arrow(table)
    kind = "keyed topic, a tenth changed" if keyed else "append topic"
    title = f"{len(table):,} hot rows, {kind}"
    ratio_max = KEYED_RATIO_MAX if keyed else APPEND_RATIO_MAX
    try:
        return compare_aggregates(title, engine, other, bench, ratio_max=ratio_max)
    finally:
        other.close()
