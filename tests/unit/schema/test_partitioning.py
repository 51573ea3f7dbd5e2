"""Partition specs as text."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest
from frazil.model import PartitionField
from frazil.schema.columns import declare_schema
from frazil.schema.evolution import RenameColumn, evolve
from frazil.schema.partitioning import parse_partition_spec, partition_spec_text

SCHEMA = declare_schema(
    {
        "id": "long",
        "ts": "timestamptz",
        "d": "date",
        "name": "string",
        "f": "double",
        "b": "boolean",
        "l": "list<int>",
        "odd(name)": "int",
    }
)


def test_a_spec_reads_and_prints():
    """Every transform reads to its field and prints in canonical form."""
    spec = ["day(ts)", "bucket[16](id)", "name", "Truncate[ 4 ]( name )", "identity(f)", "year(d)"]
    fields = parse_partition_spec(spec, SCHEMA)
    assert fields[:2] == (PartitionField(2, "day"), PartitionField(1, "bucket[16]"))
    texts = partition_spec_text(fields, SCHEMA)
    assert texts == [
        "day(ts)",
        "bucket[16](id)",
        "identity(name)",
        "truncate[4](name)",
        "identity(f)",
        "year(d)",
    ]
    assert parse_partition_spec(texts, SCHEMA) == fields


def test_a_spec_follows_a_rename():
    """A field names its column by id, so its text shows the present name."""
    fields = parse_partition_spec(["hour(ts)"], SCHEMA)
    renamed = evolve(SCHEMA, [RenameColumn("ts", "time")])
    assert partition_spec_text(fields, renamed) == ["hour(time)"]


def test_a_column_named_like_a_call_is_found():
    """A column whose name has parentheses is partitioned by like any other."""
    fields = parse_partition_spec(["odd(name)"], SCHEMA)
    assert parse_partition_spec(partition_spec_text(fields, SCHEMA), SCHEMA) == fields


@pytest.mark.parametrize(
    "spec",
    [
        ["nope"],
        ["day(nope)"],
        ["week(ts)"],
        ["hour(d)"],
        ["day(id)"],
        ["bucket(id)"],
        ["bucket[0](id)"],
        ["bucket[9999999999](id)"],
        ["bucket[4](f)"],
        ["bucket[4](b)"],
        ["truncate[4](ts)"],
        ["truncate[4](f)"],
        ["day[3](ts)"],
        ["l"],
        ["day(ts)", "hour(ts)"],
        ["id", "identity(id)"],
        ["bucket[4](id)", "bucket[8](id)"],
        ["day("],
        [1],
        "id",
        [""],
    ],
)
def test_a_spec_that_iceberg_could_not_carry_out_is_refused(spec):
    """Unknown names, unfit types, bad parameters and redundant fields are refused."""
    with pytest.raises(InvalidRequest):
        parse_partition_spec(spec, SCHEMA)
