"""The other side of aggregates: DuckDB on the same rows, as an Arrow table or in Parquet files.

It runs with the threads and the memory that the engine's queries have, and its result is taken out
the same way, as an Arrow table.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from bench.harness import Bench, Row, compare, in_turn

if TYPE_CHECKING:
    import frazil

AGGREGATES = {
    "count and sums": "SELECT count(*), sum(score), avg(age), max(seen) FROM people",
    "by city": "SELECT city, count(*), sum(score), max(age) FROM people GROUP BY city",
    "filtered": "SELECT count(*), min(score), max(name) FROM people WHERE age < 20",
    "by age, top 10": (
        "SELECT age, count(*) AS n, sum(score) AS total FROM people GROUP BY age"
        " ORDER BY total DESC LIMIT 10"
    ),
}
ARROW_CHUNK_ROWS = 65_536
ZSTD_LEVEL = 1
"""The default of `disk.zstd_level`."""


class SameRows:
    """A DuckDB of its own that knows one table `people`."""

    def __init__(self, engine: frazil.Engine) -> None:
        query = engine.settings.query
        threads = query.threads or len(os.sched_getaffinity(0))
        config = {"threads": str(threads), "memory_limit": f"{query.memory_bytes // 2**20}MiB"}
        self._connection = duckdb.connect(config=config)

    def show_arrow(self, table: pa.Table) -> None:
        """Let `people` be an Arrow table, in chunks of the size that the memory tier has."""
        chunks = table.combine_chunks().to_batches(max_chunksize=ARROW_CHUNK_ROWS)
        self._connection.register("people", pa.Table.from_batches(chunks))

    def show_parquet(self, paths: Sequence[str]) -> None:
        """Let `people` be Parquet files."""
        names = ", ".join(f"'{path}'" for path in paths)
        self._connection.execute(f"CREATE VIEW people AS FROM read_parquet([{names}])")

    def query(self, sql: str) -> pa.Table:
        """Run SQL."""
        return self._connection.execute(sql).to_arrow_table()

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def write_like(model: str, path: str, batches: Iterable[pa.RecordBatch]) -> None:
    """Write rows as pyarrow does it, with the settings that a file of the engine was written with."""
    footer = pq.read_metadata(model)
    group = footer.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    repeating = [c.path_in_schema for c in columns if c.has_dictionary_page]
    writer: pq.ParquetWriter | None = None
    for batch in batches:
        if writer is None:
            writer = pq.ParquetWriter(
                path,
                batch.schema,
                compression=columns[-1].compression,
                compression_level=ZSTD_LEVEL,
                use_dictionary=[name for name in repeating if name in batch.schema.names],
                write_page_checksum=True,
                write_page_index=True,
                version="2.6",
            )
        writer.write_batch(batch, row_group_size=group.num_rows)
    assert writer is not None
    writer.close()


def file_paths(engine: frazil.Engine, topic: str) -> list[str]:
    """Return where the files of a topic lie, in the order of `tier_files`."""
    found = engine.topic(topic).runtime.tiers
    assert found is not None
    return [found.disk.path(file) for file in found.disk.files(found.id)]


def compare_aggregates(
    title: str, engine: frazil.Engine, other: SameRows, bench: Bench, *, ratio_max: float
) -> list[Row]:
    """Run each aggregate on both sides in turn; return a row for each, and check the answers."""
    rows: list[Row] = []
    for name, sql in AGGREGATES.items():
        _check(name, engine.query(sql).arrow(), other.query(sql))
        calls = bench.pick(3, 3)
        found = in_turn(
            {
                "frazil": partial(_median_ms, partial(_answer, engine, sql), calls),
                "duckdb": partial(_median_ms, partial(other.query, sql), calls),
            },
            bench.pick(7, 3),
        )
        rows.append(
            compare(f"{title}: {name}", found["frazil"], found["duckdb"], "ms", ratio_max=ratio_max)
        )
    return rows


def _answer(engine: frazil.Engine, sql: str) -> pa.Table:
    return engine.query(sql).arrow()


def _median_ms(call: Callable[[], object], calls: int) -> float:
    seconds: list[float] = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1e3


def _check(name: str, one: pa.Table, other: pa.Table) -> None:
    """Compare answers; sums of doubles may differ in their last digits."""
    left, right = _ordered(one), _ordered(other)
    same = len(left) == len(right) and all(
        a == b or (isinstance(a, float) and abs(a - b) <= 1e-9 * abs(b))
        for row, row_other in zip(left, right, strict=True)
        for a, b in zip(row, row_other, strict=True)
    )
    if not same:
        raise SystemExit(f"aggregate {name!r} differs: {left[:3]} against {right[:3]}")


def _ordered(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*[column.to_pylist() for column in table.columns], strict=True), key=str)
