"""Rows are split by Iceberg's transforms, with its hashes and its names."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from frazil.model import PartitionField
from frazil.tiers.partitions import Partitioner, bucket_hashes


def _when(*parts):
    """Return a time without a zone, as columns without one hold it."""
    return dt.datetime(*parts, tzinfo=dt.UTC).replace(tzinfo=None)


def schema_of(**types):
    """Return a schema with the ids 1, 2, ..."""
    return pa.schema(
        [
            pa.field(name, data_type, metadata={"frazil.id": str(number)})
            for number, (name, data_type) in enumerate(types.items(), 1)
        ]
    )


def split(values, data_type, transform):
    """Return text -> values of one column split by one transform."""
    schema = schema_of(c=data_type)
    batch = pa.record_batch([pa.array(values, data_type)], schema=schema)
    partitioner = Partitioner(schema, [PartitionField(1, transform)])
    return {text: piece.column("c").to_pylist() for text, piece in partitioner.split(batch)}


@pytest.mark.parametrize(
    ("value", "data_type", "expected"),
    [
        (34, pa.int32(), 2017239379),
        (34, pa.int64(), 2017239379),
        (34, pa.uint8(), 2017239379),
        (Decimal("14.20"), pa.decimal128(4, 2), -500754589),
        (dt.date(2017, 11, 16), pa.date32(), -653330422),
        (dt.time(22, 31, 8), pa.time64("us"), -662762989),
        (_when(2017, 11, 16, 22, 31, 8), pa.timestamp("us"), -2047944441),
        (_when(2017, 11, 16, 22, 31, 8), pa.timestamp("s"), -2047944441),
        (_when(2017, 11, 16, 22, 31, 8), pa.timestamp("ms"), -2047944441),
        (1510871468000001001, pa.timestamp("ns"), -1207196810),
        ("iceberg", pa.string(), 1210000089),
        ("iceberg", pa.large_string(), 1210000089),
        (b"\x00\x01\x02\x03", pa.binary(), -188683207),
        (b"\x00\x01\x02\x03", pa.binary(4), -188683207),
    ],
)
def test_hashes_are_those_of_the_specification(value, data_type, expected):
    """The examples of the Iceberg specification's appendix have the hashes it gives."""
    array = pa.array([value, None, value], data_type).slice(2)
    assert bucket_hashes(array).view(np.int32).tolist() == [expected]


def test_hashes_of_text_do_not_depend_on_the_neighbours():
    """A text has one hash, alone or beside texts of other lengths, sliced or with nulls."""
    texts = ["", "a", "ab", "abc", "abcd", "abcde", "é" * 7, None, "a" * 100]
    together = bucket_hashes(pa.array(["x", *texts]).slice(1)).tolist()
    alone = [int(bucket_hashes(pa.array([text], pa.string()))[0]) for text in texts]
    assert together == alone
    assert len(set(together)) == len(texts) - 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_units_do_not_matter(unit):
    """One instant has one day, whatever the unit of its column."""
    found = split([_when(1969, 12, 31, 23, 59, 59)], pa.timestamp(unit, "UTC"), "day")
    assert list(found) == ["c_day=1969-12-31"]


TIMES = [_when(2026, 11, 15, 12, 59), _when(1969, 12, 31, 23, 1), None]
DATES = [dt.date(2024, 2, 29), dt.date(1960, 1, 1)]
DECIMALS = [Decimal("10.65"), Decimal("-0.05")]


@pytest.mark.parametrize(
    ("values", "data_type", "transform", "names"),
    [
        # Floored, before 1970 too, and named as people read them.
        (TIMES, pa.timestamp("us"), "year", ["year=2026", "year=1969", "year=null"]),
        (TIMES[:2], pa.timestamp("us"), "month", ["month=2026-11", "month=1969-12"]),
        (TIMES[:2], pa.timestamp("us"), "day", ["day=2026-11-15", "day=1969-12-31"]),
        (TIMES[:2], pa.timestamp("us"), "hour", ["hour=2026-11-15-12", "hour=1969-12-31-23"]),
        (DATES, pa.date32(), "day", ["day=2024-02-29", "day=1960-01-01"]),
        (DATES, pa.date32(), "month", ["month=2024-02", "month=1960-01"]),
        # Numbers go down to a multiple, text keeps its first characters, bytes their first.
        (
            [7, -1, 10, None],
            pa.int32(),
            "truncate[10]",
            ["trunc=0", "trunc=-10", "trunc=10", "trunc=null"],
        ),
        (["éclair", "éclat"], pa.string(), "truncate[3]", ["trunc=%C3%A9cl"]),
        ([b"\x01\x02\x03"], pa.binary(), "truncate[2]", ["trunc=0102"]),
        (DECIMALS, pa.decimal128(9, 2), "truncate[50]", ["trunc=10.50", "trunc=-0.50"]),
        # The hash's lower 31 bits modulo N.
        ([34], pa.int64(), "bucket[16]", [f"bucket={2017239379 % 16}"]),
    ],
)
def test_partitions_are_named_by_their_transform(values, data_type, transform, names):
    """The name of a partition is that of the column, the transform and its value."""
    assert list(split(values, data_type, transform)) == [f"c_{name}" for name in names]


def test_identity_quotes_what_a_path_cannot_have():
    """An identity partition is named by the column and its value."""
    assert list(split(["a/b c", None], pa.string(), "identity")) == ["c=a%2Fb+c", "c=null"]
    assert list(split([True, False], pa.bool_(), "identity")) == ["c=true", "c=false"]


def test_order_is_kept_within_partitions():
    """Rows of a partition keep their order, partitions come in the order of their first rows."""
    schema = schema_of(id=pa.int64(), country=pa.string())
    fields = [PartitionField(2, "identity"), PartitionField(1, "bucket[4]")]
    countries = ["b", "a", "b", "c", "a", "b", None, "a"] * 50
    data = pa.record_batch([pa.array(range(400)), pa.array(countries)], schema=schema)
    pieces = Partitioner(schema, fields).split(data)
    back = {}
    for partition, piece in pieces:
        ids = piece.column("id").to_pylist()
        assert ids == sorted(ids)
        assert len(set(piece.column("country").to_pylist())) == 1
        back.update(dict.fromkeys(ids, partition))
    assert sorted(back) == list(range(400))
    firsts = [piece.column("id")[0].as_py() for _, piece in pieces]
    assert firsts == sorted(firsts)
    assert len({partition for partition, _ in pieces}) == len(pieces) == 16


def test_counts_agree_with_split():
    """Counting rows by partition gives what splitting gives."""
    schema = schema_of(n=pa.int64())
    partitioner = Partitioner(schema, [PartitionField(1, "truncate[10]")])
    batch = pa.record_batch([pa.array(range(95))], schema=schema)
    expected = {partition: piece.num_rows for partition, piece in partitioner.split(batch)}
    assert partitioner.counts(batch) == expected
    assert sum(expected.values()) == 95


def test_without_a_spec_there_is_one_partition():
    """A topic without a partition spec has one partition with an empty name and no copy."""
    schema = schema_of(n=pa.int64())
    batch = pa.record_batch([pa.array([1, 2])], schema=schema)
    ((partition, piece),) = Partitioner(schema, ()).split(batch)
    assert partition == ""
    assert piece is batch
    assert Partitioner(schema, ()).split(batch.slice(2)) == []


def test_a_dropped_column_is_null():
    """A spec whose column is gone puts all rows into the partition of null."""
    schema = schema_of(n=pa.int64())
    batch = pa.record_batch([pa.array([1, 2])], schema=schema)
    ((partition, piece),) = Partitioner(schema, [PartitionField(9, "bucket[4]")]).split(batch)
    assert partition == "column_9_bucket=null"
    assert piece.num_rows == 2
