"""Aggregates over 10 M rows in files of an append topic, against DuckDB on the same rows in Parquet."""

from __future__ import annotations

import time

from bench import people, workload
from bench.harness import Bench, Row, absolute
from bench.quiet import freeze, wait_until_quiet
from bench.same_rows import SameRows, compare_aggregates, file_paths, write_like

RATIO_MAX = 1.3


def run(bench: Bench) -> list[Row]:
    count = bench.pick(10_000_000, 300_000)
    ids = people.keys_in_random_order(count)
    with workload.open_engine(bench.fresh("engine")) as engine:
        begin = time.perf_counter()
        people.publish(engine.create_topic("people", people.COLUMNS), ids)
        engine.tiers.flush()
        loaded_s = time.perf_counter() - begin
        wait_until_quiet(engine)
        engine.tiers.evict()
        files = engine.tiers.describe_files("people")
        models = file_paths(engine, "people")
        paths = []
        for number, file in enumerate(files):
            paths.append(bench.path(f"rows-{number}.parquet"))
            part = ids[file["offset_first"] : file["offset_last"] + 1]
            write_like(models[number], paths[-1], people.batches_of(part, rows=65_536))
        freeze()
        other = SameRows(engine)
        other.show_parquet(paths)
        title = f"{count:,} warm rows, append topic"
        rows = compare_aggregates(title, engine, other, bench, ratio_max=RATIO_MAX)
        other.close()
    return [
        *rows,
        absolute(f"{title}: files", [len(files)], "files"),
        absolute(f"{title}: publish and flush", [count / loaded_s], "rows/s"),
    ]
