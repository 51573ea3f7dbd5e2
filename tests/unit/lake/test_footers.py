"""Footers tell how many rows a plan has and whether a value may not fit, without reading rows."""

from __future__ import annotations

import base64
from decimal import Decimal
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="the extra lake is not installed")

from frazil.errors import CorruptionError, InvalidRequest
from frazil.lake.plan import PartRange, Plan, StagedFile, TableName
from frazil.lake.stages.columns import decode_schema, quoted, spark_type, staged_schema
from frazil.lake.stages.context import sources_of
from frazil.lake.stages.footers import staged_facts
from frazil.lake.stages.size import size_files
from frazil.lake.stages.validate import MILLIS_MAX, MILLIS_MIN

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("ms")),
        (
            "nest",
            pa.struct([("l", pa.list_(pa.timestamp("s", "UTC"))), ("p", pa.decimal128(4, 1))]),
        ),
    ]
)


def staged(path, offsets, *, at=0, inner=0, price="1.5", schema=SCHEMA):
    """Write a staged file whose values are all the same."""
    count = len(offsets)
    times = pa.array([at] * count, pa.int64()).view(pa.timestamp("ms"))
    lists = pa.array([[inner]] * count, pa.list_(pa.int64())).cast(
        pa.list_(pa.timestamp("s", "UTC"))
    )
    prices = pa.array([Decimal(price)] * count, pa.decimal128(4, 1))
    nest = pa.StructArray.from_arrays([lists, prices], ["l", "p"])
    columns = {
        "_offset": pa.array(offsets, pa.int64()),
        "_time": pa.array(offsets, pa.int64()).view(pa.timestamp("us", "UTC")),
        "id": pa.array(offsets, pa.int64()),
        "at": times,
        "nest": nest,
    }
    table = pa.table({name: columns[name] for name in ["_offset", "_time", *schema.names]})
    pq.write_table(table, path)
    return StagedFile(str(path), count, path.stat().st_size, offsets[0], offsets[-1])


def sources(*files, lo, hi, start=None):
    plan = Plan(
        id="p",
        topic="/a/b",
        topic_id="u",
        table=TableName("a", "b"),
        kind="table",
        schema_version=1,
        schema="",
        parts=(PartRange(-1, 1, lo, hi, files),),
        created_us=0,
    )
    return list(sources_of(plan, {-1: lo if start is None else start}))


def test_whole_files_count_by_their_footers(tmp_path):
    """No row is read where the whole file is wanted."""
    files = [staged(tmp_path / f"{i}", range(10 * i, 10 * i + 10)) for i in range(3)]
    assert staged_facts(sources(*files, lo=0, hi=30), SCHEMA) == (30, False)


def test_a_file_that_is_cut_counts_what_is_inside(tmp_path):
    """By arithmetic where it is dense, by its offsets where it is not."""
    dense = staged(tmp_path / "dense", range(10))
    sparse = staged(tmp_path / "sparse", [10, 13, 14, 19])
    assert staged_facts(sources(dense, sparse, lo=0, hi=20, start=4), SCHEMA)[0] == 10
    assert staged_facts(sources(dense, sparse, lo=0, hi=20, start=14), SCHEMA)[0] == 2
    assert staged_facts(sources(dense, sparse, lo=0, hi=14), SCHEMA)[0] == 12


def test_a_part_without_a_start_has_nothing(tmp_path):
    """Neither has one that is done."""
    file = staged(tmp_path / "f", range(10))
    assert sources(file, lo=0, hi=10, start=10) == []


@pytest.mark.parametrize(
    ("values", "doubtful"),
    [
        ({}, False),
        ({"at": MILLIS_MAX}, False),
        ({"at": MILLIS_MIN}, False),
        ({"at": MILLIS_MAX + 1}, True),
        ({"at": MILLIS_MIN - 1}, True),
        ({"inner": (1 << 62) // 1000}, True),
        ({"inner": -5}, False),
    ],
)
def test_values_out_of_range_leave_doubt(tmp_path, values, doubtful):
    """On the top level and deep inside; the ends of the range are within it."""
    file = staged(tmp_path / "f", range(3), **values)
    assert staged_facts(sources(file, lo=0, hi=3), SCHEMA)[1] is doubtful


def test_a_decimal_with_too_many_digits_leaves_doubt(tmp_path):
    """Arrow itself does not check digits that come as bytes."""
    data = (99_999).to_bytes(16, "little", signed=True)
    prices = pa.Array.from_buffers(pa.decimal128(4, 1), 1, [None, pa.py_buffer(data)])
    schema = pa.schema([("p", pa.decimal128(4, 1))])
    moment = pa.array([0], pa.int64()).view(pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"_offset": [0], "_time": moment, "p": prices}), tmp_path / "f")
    file = StagedFile(str(tmp_path / "f"), 1, 1, 0, 0)
    assert staged_facts(sources(file, lo=0, hi=1), schema)[1] is True


def test_a_null_in_a_required_column_leaves_doubt(tmp_path):
    """Only where the file allows nulls and has one."""
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    moment = pa.array([0, 0], pa.int64()).view(pa.timestamp("us", "UTC"))
    for values, doubtful in (([1, 2], False), ([1, None], True)):
        path = tmp_path / f"{doubtful}"
        pq.write_table(pa.table({"_offset": [0, 1], "_time": moment, "n": values}), path)
        file = StagedFile(str(path), 2, 1, 0, 1)
        assert staged_facts(sources(file, lo=0, hi=2), schema)[1] is doubtful


def test_a_file_of_other_columns_is_not_read(tmp_path):
    """Spark would fill a missing column with nulls without a word."""
    other = pa.schema([SCHEMA.field("id"), SCHEMA.field("at")])
    file = staged(tmp_path / "f", range(3), schema=other)
    with pytest.raises(CorruptionError, match="not the one"):
        staged_facts(sources(file, lo=0, hi=3), SCHEMA)


def test_types_are_those_of_the_table():
    """Small and unsigned integers are read as what holds them; raw ones hold anything."""
    assert spark_type(pa.uint32()).simpleString() == "bigint"
    assert spark_type(pa.int8()).simpleString() == "int"
    assert spark_type(pa.uint64()).simpleString() == "decimal(20,0)"
    assert spark_type(pa.timestamp("ms")).simpleString() == "timestamp_ntz"
    assert spark_type(pa.timestamp("ms"), raw=True).simpleString() == "bigint"
    assert spark_type(pa.timestamp("us"), raw=True).simpleString() == "timestamp_ntz"
    text = "struct<_offset:bigint,_time:timestamp,id:bigint,at:timestamp_ntz,"
    assert staged_schema(SCHEMA).simpleString().startswith(text)
    with pytest.raises(InvalidRequest):
        spark_type(pa.time64("us"))


def test_names_are_quoted_whole():
    """A dot or a backtick in a name is no path."""
    assert quoted("a.b `c`") == "`a.b ``c```"


def test_a_plan_without_columns_is_refused():
    """Its schema comes as base64."""
    text = base64.b64encode(SCHEMA.serialize().to_pybytes()).decode()
    assert decode_schema(text).equals(SCHEMA)
    for wrong in ("", "*", "AAAA"):
        with pytest.raises(InvalidRequest):
            decode_schema(wrong)


def test_files_are_as_many_as_the_bytes_are_worth():
    """Rounded, at least one."""
    frame = SimpleNamespace(coalesce=lambda count: count)
    for staged_bytes, count in ((0, 1), (149, 1), (151, 2), (600, 6)):
        context = SimpleNamespace(staged_bytes=staged_bytes, target_file_bytes=100)
        assert size_files(frame, context) == count
