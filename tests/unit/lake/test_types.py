"""Types of columns in the lake: mapped without loss or refused, as `docs/types.md` says."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.lake.types import (
    check_lake_schema,
    iceberg_schema,
    iceberg_type,
    partition_names,
    rejects_schema,
)
from frazil.model import PartitionField
from frazil.schema import (
    MESSAGE_SCHEMA,
    AddColumn,
    RenameColumn,
    declare_schema,
    evolve,
    parse_partition_spec,
    parse_type,
)
from tests.integration.lake.type_trial import page_rows

STORED = {row[0]: row[1] for row in page_rows("Stored")}
REFUSED = {row[0]: row[2] for row in page_rows("Refused")}


@pytest.mark.parametrize("text", STORED)
def test_each_line_of_the_page_is_what_is_stored(text):
    """A type becomes the Iceberg type that the page names."""
    found = str(iceberg_type(parse_type(text)))
    assert (
        found.partition("<")[0] == "struct" if STORED[text] == "struct" else found == STORED[text]
    )


@pytest.mark.parametrize("text", REFUSED)
def test_each_refusal_of_the_page_says_what_to_use(text):
    """A type that the page refuses is refused, at any depth, with the words of the page."""
    kind = parse_type(text)
    for nested in (kind, pa.list_(kind), pa.struct([pa.field("x", pa.map_(pa.string(), kind))])):
        with pytest.raises(InvalidRequest) as caught:
            check_lake_schema(declare_schema({"column": nested}))
        assert caught.value.details["instead"] == REFUSED[text]
        assert str(caught.value.details["column"]).startswith("column")


@pytest.mark.parametrize(
    "kind",
    [
        pa.float16(),
        pa.date64(),
        pa.time32("s"),
        pa.duration("us"),
        pa.null(),
        pa.decimal256(40, 2),
        pa.decimal128(5, -2),
        pa.large_list(pa.int8()),
        pa.list_(pa.int8(), 3),
        pa.dictionary(pa.int8(), pa.string()),
        pa.string_view(),
        pa.struct([]),
        pa.uuid(),
        pa.month_day_nano_interval(),
        pa.binary(0),
    ],
    ids=str,
)
def test_what_no_table_holds_is_refused(kind):
    """A type beyond the page is refused with something to use, not mapped by luck."""
    with pytest.raises(InvalidRequest, match="instead="):
        iceberg_type(kind)


def test_the_system_columns_come_first():
    """A table's columns are offset, time and part, all required, then the topic's in order."""
    schema = declare_schema({"b": "int not null", "a": "list<int not null>"})
    found = iceberg_schema(schema, partitioned=True).fields
    assert [(f.field_id, f.name, str(f.field_type), f.required) for f in found] == [
        (1, "_offset", "long", True),
        (2, "_time", "timestamptz", True),
        (3, "_part", "int", True),
        (4, "b", "int", True),
        (5, "a", "list<int>", False),
    ]
    assert found[4].field_type.element_required
    assert iceberg_schema(schema, partitioned=False).column_names[:2] == ["_offset", "_time"]


def test_message_topics_fit():
    """The envelope of messages has a place in a table, unsigned ids included."""
    check_lake_schema(MESSAGE_SCHEMA)
    found = iceberg_schema(MESSAGE_SCHEMA, partitioned=False)
    assert str(found.find_field("producer_id").field_type) == "decimal(20, 0)"
    assert found.find_field("payload").required
    assert rejects_schema(partitioned=True).find_field("_part").required


@pytest.mark.parametrize(
    "name", ["_deleted", "_Partition", "_row_id", "_spec_id", "_metadata", "_commit_snapshot_id"]
)
def test_reserved_names_are_refused(name):
    """A column that Iceberg or Spark would hide or shadow is refused; inside a struct it is not."""
    with pytest.raises(InvalidRequest, match="reserved"):
        check_lake_schema(declare_schema({name: "int"}))
    check_lake_schema(declare_schema({"s": pa.struct([pa.field(name, pa.int8())])}))


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "_1"), ("a b", "a_x20b"), ("\u0131", "i"), ("İ", "i"), ("x-y", "X_x2Dy")],
)
def test_names_that_spark_confuses_are_refused(one, other):
    """Two names that are one to Spark or in a file are refused, side by side at any depth."""
    for names in ((one, other), (other, one)):
        fields = [pa.field(name, pa.int8()) for name in names]
        for schema in (fields, [pa.field("s", pa.list_(pa.struct(fields)))]):
            with pytest.raises(InvalidRequest, match="cannot distinguish"):
                check_lake_schema(declare_schema(schema))


def test_paths_are_distinguished():
    """A column with a dot is fine unless a struct has a field of that path."""
    check_lake_schema(declare_schema({"a.b": "int", "a": "struct<c:int>"}))
    for kind, path in (
        ("struct<b:int>", "a.b"),
        ("list<int>", "a.element"),
        ("map<int,int>", "a.key"),
    ):
        with pytest.raises(InvalidRequest, match="one path"):
            check_lake_schema(declare_schema({path: "int", "a": kind}))


def test_partition_names_are_icebergs():
    """Partitions are called as Spark would call them."""
    schema = declare_schema({"ts": "timestamp", "id": "long", "n": "string", "c": "string"})
    spec = parse_partition_spec(["hour(ts)", "bucket[4](id)", "truncate[2](n)", "c"], schema)
    assert partition_names(schema, spec) == ["ts_hour", "id_bucket", "n_trunc", "c"]


def test_partitions_of_absent_columns_and_unknown_transforms_are_refused():
    """A partition names a column that exists and a transform that Iceberg has."""
    schema = declare_schema({"ts": "timestamp"})
    with pytest.raises(InvalidRequest, match="partition_by"):
        check_lake_schema(schema, (PartitionField(9, "day"),))
    with pytest.raises(InvalidRequest, match="not known to Iceberg"):
        check_lake_schema(schema, (PartitionField(1, "week"),))


def test_a_column_of_a_partitions_name_is_refused():
    """Spark cannot open a table with such a column; an older name of the partition counts too."""
    schema = declare_schema({"ts": "timestamp", "x": "int"})
    spec = parse_partition_spec(["day(ts)", "x"], schema)
    check_lake_schema(schema, spec)
    with pytest.raises(InvalidRequest, match="name of a partition"):
        check_lake_schema(evolve(schema, [AddColumn("TS_day", "int")]), spec)
    renamed = evolve(schema, [RenameColumn("ts", "t")])
    later = evolve(renamed, [AddColumn("ts_day", "int")])
    check_lake_schema(later, spec)
    with pytest.raises(InvalidRequest, match="name of a partition"):
        check_lake_schema(later, spec, former=[schema, renamed])


@pytest.mark.parametrize(
    ("kind", "transform"), [("fixed[4]", "identity"), ("decimal(9,2)", "truncate[10]")]
)
def test_transforms_that_lose_rows_are_refused(kind, transform):
    """Two transforms of the specification are refused, for what the trial of them showed."""
    schema = declare_schema({"c": kind})
    with pytest.raises(InvalidRequest, match="instead=bucket"):
        check_lake_schema(schema, (PartitionField(1, transform),))
    check_lake_schema(schema, (PartitionField(1, "bucket[4]"),))
