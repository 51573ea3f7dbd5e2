"""10 M keys in files that are not sorted by key: look-ups of random keys, and aggregates."""

from __future__ import annotations

import itertools
import random
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from bench import people, workload
from bench.harness import Bench, Row, absolute
from bench.pacing import Timed, percentiles_us, timed
from bench.quiet import freeze, wait_until_quiet
from bench.same_rows import SameRows, compare_aggregates, file_paths, write_like

if TYPE_CHECKING:
    import frazil

P99_MAX_MS = 10.0
RATIO_MAX = 2.5


def run(bench: Bench) -> list[Row]:
    count = bench.pick(10_000_000, 200_000)
    ids = people.keys_in_random_order(count)
    changed = ids[::10]
    with workload.open_engine(bench.fresh("engine")) as engine:
        begin = time.perf_counter()
        topic = engine.create_topic("people", people.COLUMNS, primary_key=["id"])
        people.publish(topic, ids)
        people.publish(topic, changed, version=1)
        engine.tiers.flush()
        loaded_s = time.perf_counter() - begin
        wait_until_quiet(engine)
        engine.tiers.evict()
        freeze()
        title = f"{count:,} warm keys"
        rows = _look_ups(title, bench, engine, topic, count)
        rows += _aggregates(title, bench, engine, ids, changed)
        files = engine.tiers.describe_files("people")
    return [
        *rows,
        absolute(f"{title}: files", [len(files)], "files"),
        absolute(f"{title}: publish and flush", [count / loaded_s], "rows/s"),
    ]


def _look_ups(
    title: str, bench: Bench, engine: frazil.Engine, topic: frazil.Topic, count: int
) -> list[Row]:
    def by_sql(key: int) -> object:
        return engine.query("SELECT * FROM people WHERE id = ?", [key]).rows()

    for key in (0, 2 * (count // 3)):
        if [row["id"] for row in (topic.get(key),) if row] != [key] or by_sql(key + 1):
            raise SystemExit(f"key {key} is not as it was published")
    found: dict[str, list[Timed]] = {"SQL": [], "get": []}
    for number in range(-1, bench.pick(7, 3)):
        for name, call in {"SQL": by_sql, "get": topic.get}.items():
            draw = random.Random(f"{number} {name}")
            # An odd number is absent: half of them are.
            calls = (partial(call, draw.randrange(2 * count)) for _ in itertools.count())
            seconds = timed(calls, seconds=bench.pick(5.0, 0.5))
            if number >= 0:
                found[name].append(seconds)
    rows: list[Row] = []
    for name, rounds in found.items():
        p99 = [value / 1e3 for value in percentiles_us(rounds, 0.99)]
        p50 = [value / 1e3 for value in percentiles_us(rounds, 0.5)]
        kind = f"{title}, half of those asked for absent, {name}"
        rows.append(absolute(f"{kind}: p99", p99, "ms", value_max=P99_MAX_MS))
        rows.append(absolute(f"{kind}: p50", p50, "ms"))
        own = [value / 1e3 for value in percentiles_us(rounds, 0.99, cpu=True)]
        rows.append(absolute(f"{kind}: p99, CPU time", own, "ms"))
    return rows


def _aggregates(
    title: str, bench: Bench, engine: frazil.Engine, ids: np.ndarray, changed: np.ndarray
) -> list[Row]:
    """Compare with Parquet files of the rows as they are now, one file for each of the engine's."""
    files = max(len(engine.tiers.describe_files("people")), 1)
    parts = [
        *[(part, 0) for part in np.array_split(np.setdiff1d(ids, changed), max(files - 1, 1))],
        (changed, 1),
    ]
    model = file_paths(engine, "people")[0]
    paths = []
    for number, (part, version) in enumerate(parts):
        paths.append(bench.path(f"rows-{number}.parquet"))
        shuffled = np.random.default_rng(number).permutation(part)
        batches = people.batches_of(shuffled, version, rows=16_384)
        write_like(model, paths[-1], batches)
    other = SameRows(engine)
    other.show_parquet(paths)
    try:
        return compare_aggregates(
            f"{title}, a tenth changed", engine, other, bench, ratio_max=RATIO_MAX
        )
    finally:
        other.close()
