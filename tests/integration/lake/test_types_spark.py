"""Every type of `docs/types.md` through Spark, read back by Spark, PyIceberg and DuckDB."""

from __future__ import annotations

import duckdb
import duckdb_extensions
import pyarrow as pa
import pytest

from frazil.lake import check_lake_schema
from frazil.lake.evolve import evolve as evolve_table
from frazil.schema import (
    AddColumn,
    DropColumn,
    RenameColumn,
    WidenColumn,
    declare_schema,
    evolve,
    field_with_ids,
    parse_partition_spec,
    schema_with,
)
from tests.integration.lake.spark_world import MARKS
from tests.integration.lake.type_trial import (
    CASES,
    ROWS,
    page_rows,
    stage,
    trial_columns,
    values_of,
)

pytestmark = MARKS

READERS = ("by_spark", "by_pyiceberg", "by_duckdb")
PARTITIONS = [
    *("boolean", "int8", "uint32", "long", "float", "double", "string", "bytes", "date"),
    *("timestamp", "timestamptz", "decimal(38,0)", "timestamp[s]"),
]
BUCKETS = ["int16", "uint16", "large_string", "fixed[16]", "decimal(9,2)", "timestamp[ms]"]
TIMES = [
    "year(timestamp)",
    "month(timestamptz)",
    "day(timestamp[ms, UTC])",
    "hour(timestamp[s, UTC])",
]
ODD_NAMES = ["a b", "1", "ü", "x-y", "$", "a`b", 'a"b', "select", "\U0001f600", "a.b", "element"]


def numbered(fields):
    """Return a topic's schema of fields that no topic could declare, such as uint64."""
    result, following = [], 1
    for field in fields:
        done, following = field_with_ids(field, next_id=following)
        result.append(done)
    return schema_with(result, last=following - 1)


def committed(world, fields, arrays, **options):
    schema = numbered(fields)
    if "partition_by" in options:
        options["partition_by"] = parse_partition_spec(options["partition_by"], schema)
    check_lake_schema(schema, options.get("partition_by", ()))
    topic = world.topic(schema, **options)
    file = stage(topic.directory / "trial.parquet", schema, arrays)
    result = topic.commit(topic.plan(file))
    assert (result.state, result.rows_out, result.rows_rejected) == ("committed", len(arrays[0]), 0)
    return topic


@pytest.fixture(scope="module")
def tried(world):
    """A table with a column of each type."""
    fields, arrays = trial_columns()
    return committed(world, fields, arrays), dict(zip(CASES, arrays, strict=True))


@pytest.mark.parametrize("reader", READERS)
def test_every_value_is_read_as_it_was_written(tried, reader):
    """What an engine reads of each column is exactly what was staged."""
    topic, arrays = tried
    found = getattr(topic, reader)()
    assert found.column("_offset").to_pylist() == list(range(ROWS))
    different = {}
    for name, array in arrays.items():
        got, wanted = values_of(found.column(name)), values_of(array)
        if got != wanted:
            different[name] = [pair for pair in zip(wanted, got, strict=True) if pair[0] != pair[1]]
    assert not different


def test_the_page_names_the_types_that_engines_show(tried):
    """Each line of the page has the type that the engine itself reports."""
    topic, _ = tried
    spark = {
        f.name: f.dataType.simpleString()
        for f in topic.world.session.table(topic.spark_name).schema
    }
    loaded = topic.world.catalog.load_table(tuple(topic.table))
    iceberg = {f.name: str(f.field_type) for f in loaded.schema().fields}
    arrow = {f.name: str(f.type) for f in loaded.scan().to_arrow().schema}
    duck = duckdb_types(loaded)
    different = []
    for name, *cells in page_rows("Stored"):
        described = iceberg[name].partition("<1")[0] if "struct" in name else iceberg[name]
        seen = [described.partition("<")[0] if "struct" in name else described]
        seen += [spark[name], arrow[name], duck[name]]
        if cells != seen:
            different.append((name, cells, seen))
    assert not different


def duckdb_types(loaded):
    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        duckdb_extensions.import_extension(name, con=connection)
        connection.load_extension(name)
    rows = connection.execute(
        "DESCRIBE SELECT * FROM iceberg_scan(?)", [loaded.metadata_location.removeprefix("file://")]
    ).fetchall()
    return {row[0]: row[1] for row in rows}


def test_structs_with_required_fields(world):
    """A required field inside of a struct that is null is no missing value."""
    kind = pa.struct([pa.field("a", pa.int8(), nullable=False)])
    values = [{"a": 1}, None]
    topic = committed(world, [pa.field("s", kind)], [pa.array(values, kind)])
    rows = world.session.table(topic.spark_name).orderBy("_offset").collect()
    assert [row["s"] and row["s"].asDict() for row in rows] == values
    assert topic.by_pyiceberg("s", "_offset").column("s").to_pylist() == values
    assert topic.by_duckdb("s", "_offset").column("s").to_pylist() == values


@pytest.mark.parametrize("reader", READERS)
def test_every_kind_of_partition(partitioned, reader):
    """Rows of a table that is partitioned by each transform are found, all of them, unchanged."""
    topic, arrays = partitioned
    found = getattr(topic, reader)()
    assert found.column("_offset").to_pylist() == list(range(ROWS))
    different = [n for n, array in arrays.items() if values_of(found.column(n)) != values_of(array)]
    assert not different


@pytest.fixture(scope="module")
def partitioned(world):
    """A table with a partition of each transform and type that a topic with a lake may have."""
    fields, arrays = trial_columns()
    chosen = [
        (field, array)
        for field, array in zip(fields, arrays, strict=True)
        if not pa.types.is_nested(field.type)
    ]
    spec = [f"identity({name})" for name in PARTITIONS]
    spec += [f"bucket[16]({name})" for name in BUCKETS]
    spec += ["truncate[10](int)", "truncate[3](large_binary)", "truncate[2](string)", *TIMES]
    topic = committed(world, *map(list, zip(*chosen, strict=True)), partition_by=spec)
    return topic, {field.name: array for field, array in chosen}


def test_odd_names_of_columns(world):
    """Columns keep names that need quotes, in every engine."""
    fields = [pa.field(name, pa.int32()) for name in ODD_NAMES]
    fields.append(
        pa.field("s", pa.struct([pa.field("a b", pa.int32()), pa.field("1", pa.int32())]))
    )
    arrays = [pa.array([number], pa.int32()) for number in range(len(ODD_NAMES))]
    arrays.append(pa.array([{"a b": 1, "1": 2}], fields[-1].type))
    topic = committed(world, fields, arrays)
    for reader in READERS:
        row = getattr(topic, reader)().to_pylist()[0]
        assert [row[name] for name in ODD_NAMES] == list(range(len(ODD_NAMES)))
        assert row["s"] == {"a b": 1, "1": 2}


def test_changed_columns_in_every_engine(world):
    """Rows from before and behind a change of columns are read alike by all three engines."""
    before = declare_schema(
        {"a": "int", "b": "string", "c": "float", "d": "long", "s": "struct<x:int>"}
    )
    topic = world.topic(before, partition_by=parse_partition_spec(["bucket[4](a)"], before))
    row = {"a": 2**31 - 1, "b": "old", "c": 0.5, "d": 4, "s": {"x": 1}}
    assert topic.commit(topic.plan(topic.stage([row]))).state == "committed"
    changes = [
        WidenColumn("a", "long"),
        WidenColumn("c", "double"),
        DropColumn("d"),
        RenameColumn("b", "d"),
        RenameColumn("s", "b"),
        AddColumn("s", "list<struct<y:string>>"),
    ]
    after = evolve(before, changes)
    evolve_table(
        world.catalog,
        topic.table,
        topic_id=topic.uid,
        wanted=2,
        columns={1: before, 2: after}.__getitem__,
        partitioned=False,
    )
    topic.foreign(
        "INSERT INTO {table} SELECT 1, current_timestamp(), 9223372036854775807, 'new', 1e300D, "
        "named_struct('x', 2), array(named_struct('y', 'z'))"
    )
    old = {"a": 2**31 - 1, "d": "old", "c": 0.5, "b": {"x": 1}, "s": None}
    new = {"a": 2**63 - 1, "d": "new", "c": 1e300, "b": {"x": 2}, "s": [{"y": "z"}]}
    for reader in READERS:
        found = getattr(topic, reader)().drop_columns(["_offset", "_time"]).to_pylist()
        assert found == [old, new], reader
