"""Memory to disk: a flush of rows that lie in memory, against `write_table` of the same data.

The other side writes the same columns, the two of the system among them, with the same settings,
and neither syncs nor registers; a topic with a key has its bloom filter on both sides, and the map
of its keys on one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from bench import people, workload
from bench.harness import Bench, Row, absolute, compare, in_turn
from bench.quiet import wait_until_quiet
from bench.same_rows import ZSTD_LEVEL, file_paths
from frazil.topic import signals

if TYPE_CHECKING:
    import numpy as np

    import frazil

RATIO_MIN = 0.7
STAY = {
    "memory.flush_offsets": 1 << 40,
    "memory.flush_partition_bytes": 1 << 40,
    "memory.flush_age_s": 86_400.0,
}
"""Nothing is flushed but what the measure asks for."""


def run(bench: Bench) -> list[Row]:
    count = bench.pick(500_000, 100_000)
    rows: list[Row] = []
    signals.FLUSH_CHANGES = 1 << 40
    for kind, key in (("append topic", []), ("keyed topic", ["id"])):
        with workload.open_engine(bench.fresh("engine"), **STAY) as engine:
            topic = engine.create_topic("people", people.COLUMNS, primary_key=key)
            found = _rounds(bench, engine, topic, count, key)
        rows += [
            compare(
                f"flush of {count:,} rows, {kind}",
                found["flush"],
                found["write_table"],
                "MB/s",
                ratio_min=RATIO_MIN,
            ),
            compare(
                f"flush of {count:,} rows, {kind}, by CPU time",
                found["flush, CPU"],
                found["write_table, CPU"],
                "MB/s",
            ),
            absolute(f"flush of {count:,} rows, {kind}: rows", found["rows"], "rows/s"),
        ]
    return rows


def _rounds(
    bench: Bench, engine: frazil.Engine, topic: frazil.Topic, count: int, key: list[str]
) -> dict[str, list[float]]:
    path = bench.path("write_table.parquet")
    rounds = itertools.count()
    made: dict[str, Any] = {}

    def flush() -> tuple[float, float]:
        engine.tiers.evict()
        people.publish(topic, _ids(count, next(rounds)))
        wait_until_quiet(engine)
        return _timed(lambda: engine.tiers.flush("people"))

    def write() -> tuple[float, float]:
        return _timed(lambda: pq.write_table(made["table"], path, **made["options"]))

    flush()
    model = file_paths(engine, "people")[0]
    made["table"] = pq.read_table(model).replace_schema_metadata(None)
    made["options"] = _options(model, key)
    assert len(made["table"]) == count
    found = in_turn({"flush": flush, "write_table": write}, bench.pick(7, 2))
    size = made["table"].nbytes / 1e6
    return {
        "flush": [size / wall for wall, _cpu in found["flush"]],
        "write_table": [size / wall for wall, _cpu in found["write_table"]],
        "flush, CPU": [size / cpu for _wall, cpu in found["flush"]],
        "write_table, CPU": [size / cpu for _wall, cpu in found["write_table"]],
        "rows": [count / wall for wall, _cpu in found["flush"]],
    }


def _ids(count: int, number: int) -> np.ndarray:
    """Return the keys of a round: new ones, and a tenth of the round before."""
    ids = people.keys_in_random_order(count) + number * count * people.KEY_STEP
    if number:
        ids[::10] -= count * people.KEY_STEP
    return ids


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds that something took, and the seconds that the process ran in them."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _options(model: str, key: list[str]) -> dict[str, Any]:
    """Return the settings that a file of the engine was written with."""
    group = pq.read_metadata(model).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    options: dict[str, Any] = {
        "row_group_size": group.num_rows,
        "compression": "zstd",
        "compression_level": ZSTD_LEVEL,
        "use_dictionary": [c.path_in_schema for c in columns if c.has_dictionary_page],
        "column_encoding": dict.fromkeys(("_offset", "_time"), "DELTA_BINARY_PACKED"),
        "write_page_checksum": True,
        "write_page_index": True,
        "write_statistics": True,
        "version": "2.6",
        "sorting_columns": [pq.SortingColumn(0)],
    }
    if key:
        bloom = {"ndv": group.num_rows, "fpp": 0.01}
        options["bloom_filter_options"] = dict.fromkeys(key, bloom)
    return options
