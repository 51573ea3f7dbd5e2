"""Staged files become rows of a table, once, whatever others do to it, and every engine reads them."""

from __future__ import annotations

from pathlib import Path

import attrs
import pyarrow as pa
import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.fs import RealFileSystem
from frazil.lake import CATALOG_NAME, CommitResult, Failpoints, Request
from frazil.lake.spark_table import SparkTables
from frazil.lake.worker_jobs import SparkJob, commit_plan
from frazil.model import PartitionField
from tests.integration.lake.spark_world import MARKS
from tests.support import FaultyFileSystem

pytestmark = MARKS

READERS = ("by_spark", "by_pyiceberg", "by_duckdb")
COLUMNS = {"id": "long", "name": "string"}
DAY_MS = 86_400_000
BEYOND_MS = 1 << 62
"""A time beyond the range of microseconds."""


def rows(count, *, start=0):
    return [{"id": start + i, "name": f"n{start + i}"} for i in range(count)]


def move(topic, count, **options):
    """Stage and commit the next rows of a topic."""
    start = topic.ends[-1]
    return topic.commit(topic.plan(topic.stage(rows(count, start=start))), **options)


def test_every_engine_reads_what_was_staged(world):
    """Spark, PyIceberg and DuckDB return exactly the staged rows with their offsets and times."""
    topic = world.topic(COLUMNS)
    file = topic.stage(rows(100))
    result = topic.commit(topic.plan(file))
    assert (result.state, result.rows_in, result.rows_out) == ("committed", 100, 100)
    assert result.ends == {-1: 100}
    for reader in READERS:
        found = getattr(topic, reader)().to_pylist()
        assert [each["_offset"] for each in found] == list(range(100)), reader
        assert [each["name"] for each in found] == [f"n{i}" for i in range(100)]
        assert len({each["_time"] for each in found}) == 100
    summary = topic.snapshots()[-1].summary
    assert (summary.operation.value, summary["frazil.offset-end"]) == ("append", "100")
    assert summary["frazil.topic-id"] == topic.uid


def test_a_plan_that_runs_again_adds_nothing(world):
    """The second run of a plan is `already`, also with memory of the first lost."""
    topic = world.topic(COLUMNS)
    plan = topic.plan(topic.stage(rows(50)))
    first = topic.commit(plan)
    again = topic.commit(plan)
    forgot = topic.commit(plan, remembered={})
    assert [first.state, again.state, forgot.state] == ["committed", "already", "already"]
    assert topic.offsets() == list(range(50))


def worked(world, topic, plan, remembered):
    """Have the worker do a plan; return its answer, and what was synced before it was given."""
    seam = FaultyFileSystem(RealFileSystem())
    tables = SparkTables(world.session, world.catalog, name=CATALOG_NAME, file_system=seam)
    job = SparkJob(
        Request(1, "commit", topic.request(plan, remembered=remembered).body()),
        attrs.evolve(world.spark, tables=tables),
        answer=lambda _answer: None,
        halt=Failpoints({}, seam),
    )
    result = CommitResult.of(commit_plan(job))
    files = {call.path for call in seam.trace if call.verb == "sync"}
    return result, files, [call.path for call in seam.trace if call.verb == "sync_directory"]


def test_a_commit_is_on_the_disk_before_it_is_answered(world):
    """All new files of table and rejects and their directories, also of one that had landed."""
    topic = world.topic(
        {"id": "long", "at": "timestamp[ms, UTC]"}, partition_by=(PartitionField(2, "day"),)
    )
    tables = [world.catalog.load_table(tuple(t)) for t in (topic.table, topic.table.rejects)]
    places = [Path(table.location().removeprefix("file://")) for table in tables]

    def here():
        """Return the files of this topic's two tables."""
        return {str(path) for place in places for path in place.rglob("*") if path.is_file()}

    before = here()
    times = pa.array([DAY_MS * (i % 3) for i in range(11)] + [BEYOND_MS], pa.int64())
    data = pa.table({"id": range(12), "at": times.view(pa.timestamp("ms", "UTC"))})
    plan = topic.plan(topic.stage(data))
    result, files, directories = worked(world, topic, plan, {})
    new = here() - before
    assert (result.state, result.rows_out, result.rows_rejected) == ("committed", 11, 1)
    kinds = (".parquet", ".avro", ".metadata.json", ".crc")
    assert [sum(path.endswith(kind) for path in new) for kind in kinds] == [4, 4, 2, 8]
    assert files == new
    assert {str(Path(path).parent) for path in new} < set(directories)
    assert len(directories) == len(set(directories))
    landed, again, _directories = worked(world, topic, plan, {})
    assert (landed.state, again) == ("already", new)
    assert worked(world, topic, plan, result.ends)[1:] == (set(), [])


def test_a_table_in_the_middle_of_a_plan_gets_the_rest_of_it(world):
    """Rows below the table's watermark are filtered, not files."""
    topic = world.topic(COLUMNS)
    files = [topic.stage(rows(10, start=10 * i), first=10 * i) for i in range(4)]
    assert topic.commit(topic.plan(*files[:2], hi=15, lo=0)).rows_out == 15
    result = topic.commit(topic.plan(*files, lo=0))
    assert (result.state, result.rows_in, result.rows_out) == ("committed", 25, 25)
    assert topic.offsets() == list(range(40))


def test_parts_of_a_topic_share_a_table(world):
    """One commit moves all parts, each with its own watermark; a part that is done is left out."""
    topic = world.topic(COLUMNS, parts=3)
    ranges = [
        topic.range(topic.stage(rows(5 + part), first=0, part=part), part=part) for part in range(3)
    ]
    assert topic.commit(topic.plan_of(ranges[0])).ends == {0: 5, 1: 0, 2: 0}
    result = topic.commit(topic.plan_of(*ranges))
    assert (result.state, result.rows_out, result.ends) == ("committed", 13, {0: 5, 1: 6, 2: 7})
    wanted = [(part, offset) for part in range(3) for offset in range(5 + part)]
    for reader in READERS:
        found = getattr(topic, reader)("_part", "_offset").to_pylist()
        assert [(each["_part"], each["_offset"]) for each in found] == wanted, reader
    assert world.tables.load(topic.table).summary_ends == {0: 5, 1: 6, 2: 7}


def test_many_small_files_become_one(world):
    """Staged files of a few rows do not become files of a few rows."""
    topic = world.topic(COLUMNS)
    files = [topic.stage(rows(10, start=10 * i), first=10 * i) for i in range(40)]
    result = topic.commit(topic.plan(*files))
    assert (result.state, result.rows_out) == ("committed", 400)
    assert world.tables.made(result.sid).number("added-data-files") == 1
    assert topic.offsets() == list(range(400))


def test_columns_that_others_add_are_null(world):
    """An added column is filled with null; one that needs a value stops the commit."""
    topic = world.topic(COLUMNS)
    topic.foreign("ALTER TABLE {table} ADD COLUMN note string FIRST")
    assert move(topic, 4).state == "committed"
    found = topic.by_spark().to_pylist()
    assert [each["note"] for each in found] == [None] * 4
    assert [each["id"] for each in found] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE {table} DROP COLUMN name", "lacks a column"),
        ("ALTER TABLE {table} RENAME COLUMN name TO title", "lacks a column"),
        ("ALTER TABLE {table} ALTER COLUMN number TYPE bigint", "another type"),
    ],
)
def test_columns_that_others_change_stop_the_commit(world, change, message):
    """A foreign drop, rename or retype is named, and nothing is written."""
    topic = world.topic({"id": "long", "name": "string", "number": "int"})
    topic.foreign(change)
    data = [{"id": 1, "name": "n", "number": 1}]
    with pytest.raises(InvalidRequest, match=message):
        topic.commit(topic.plan(topic.stage(data)))
    assert topic.snapshots() == []


def test_a_staged_file_that_has_rotted_is_not_committed(world):
    """A flipped byte in a page is found by its checksum, a wrong footer before Spark runs."""
    topic = world.topic(COLUMNS)
    file = topic.stage(rows(2000))
    data = bytearray(Path(file.path).read_bytes())
    data[len(data) // 3] ^= 0x40
    Path(file.path).write_bytes(data)
    with pytest.raises(CorruptionError, match=r"damaged|cannot be read"):
        topic.commit(topic.plan(file))
    Path(file.path).write_bytes(data[:-7])
    with pytest.raises(CorruptionError, match="damaged"):
        topic.commit(topic.plan(file))
    assert topic.snapshots() == []


def test_a_staged_file_that_is_gone_or_another_is_named(world):
    """The message names the file; nothing is committed."""
    topic = world.topic(COLUMNS)
    one, other = topic.stage(rows(5)), topic.stage(rows(6))
    swapped = type(one)(other.path, one.rows, one.bytes, one.offset_first, one.offset_last)
    with pytest.raises(CorruptionError, match="not the one"):
        topic.commit(topic.plan(swapped))
    missing = type(one)(one.path + ".gone", 5, one.bytes, 0, 4)
    with pytest.raises(CorruptionError, match="is gone"):
        topic.commit(topic.plan(missing))
    assert topic.snapshots() == []
