"""New tables and metadata of older writers: ids, versions, properties."""

from __future__ import annotations

import copy

import pytest

from frazil.lake.catalog.metadata import completed, format_version_of, new_table
from frazil.lake.catalog.refusals import Refusal
from frazil.lake.catalog.schemas import check_schema, id_highest, same_schema, with_fresh_ids


def field(number, name, kind="long", **more):
    return {"id": number, "name": name, "required": False, "type": kind, **more}


def struct(*fields, **more):
    return {"type": "struct", "fields": list(fields), **more}


def table(schema, **more):
    given = {
        "spec": None,
        "order": None,
        "location": "/wh/t",
        "properties": {},
        "uuid": "u",
        "now_ms": 5,
        **more,
    }
    return new_table(schema=schema, **given)


NESTED = struct(
    field(10, "a"),
    field(
        20,
        "b",
        {
            "type": "map",
            "key-id": 21,
            "key": "string",
            "value-id": 22,
            "value-required": False,
            "value": struct(field(23, "x"), field(24, "y")),
        },
    ),
    field(30, "c", {"type": "list", "element-id": 31, "element": "int", "element-required": True}),
    field(40, "d"),
    **{"identifier-field-ids": [40, 10]},
)


def test_fresh_ids_number_a_struct_before_what_is_nested_in_it():
    """Top-level columns are 1 to n, then what is nested, as the reference does."""
    made, renumbered = with_fresh_ids(NESTED)
    assert [item["id"] for item in made["fields"]] == [1, 2, 3, 4]
    inner = made["fields"][1]["type"]
    assert (inner["key-id"], inner["value-id"]) == (5, 6)
    assert [item["id"] for item in inner["value"]["fields"]] == [7, 8]
    assert (made["fields"][2]["type"]["element-id"], made["identifier-field-ids"]) == (9, [1, 4])
    assert renumbered[24] == 8
    assert id_highest(made) == 9
    assert NESTED["fields"][0]["id"] == 10


def test_a_new_table_has_fresh_ids_everywhere():
    """Specs and orders follow their columns; partition fields start at 1000."""
    spec = {
        "spec-id": 7,
        "fields": [
            {"source-id": 40, "field-id": 1500, "name": "d_bucket", "transform": "bucket[4]"},
            {"source-id": 10, "field-id": 1501, "name": "a", "transform": "identity"},
        ],
    }
    order = {
        "order-id": 9,
        "fields": [
            {
                "source-id": 40,
                "transform": "identity",
                "direction": "asc",
                "null-order": "nulls-first",
            }
        ],
    }
    made = table(NESTED, spec=spec, order=order)
    fields = made["partition-specs"][0]["fields"]
    assert [(f["source-id"], f["field-id"]) for f in fields] == [(4, 1000), (1, 1001)]
    assert (made["last-partition-id"], made["default-spec-id"]) == (1001, 0)
    assert made["default-sort-order-id"] == 1
    assert made["sort-orders"] == [
        {"order-id": 1, "fields": [{**order["fields"][0], "source-id": 4}]}
    ]
    assert made["last-column-id"] == 9
    assert made["schemas"][0]["schema-id"] == made["current-schema-id"] == 0
    assert made["format-version"] == 2
    assert "next-row-id" not in made


def test_a_new_table_without_order_and_spec_has_empty_ones():
    """Unsorted is order 0, unpartitioned is spec 0 and the last partition id is 999."""
    made = table(struct(field(1, "a")))
    assert made["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert made["partition-specs"] == [{"spec-id": 0, "fields": []}]
    assert made["last-partition-id"] == 999


def test_reserved_properties_are_not_stored():
    """The format version is taken from the properties and is none of them; zstd is the default."""
    made = table(struct(field(1, "a")), properties={"format-version": "3", "k": "v", "uuid": "x"})
    assert (made["format-version"], made["next-row-id"]) == (3, 0)
    assert made["properties"] == {"k": "v", "write.parquet.compression-codec": "zstd"}
    own = table(struct(field(1, "a")), properties={"write.parquet.compression-codec": "gzip"})
    assert own["properties"]["write.parquet.compression-codec"] == "gzip"


@pytest.mark.parametrize("text", ["1", "4", "x", "", "-1", "2.0", "\u00b2"])
def test_a_format_version_that_is_none_is_refused(text):
    """Only 2 and 3 are format versions of the catalog."""
    with pytest.raises(Refusal) as caught:
        format_version_of({"format-version": text})
    assert caught.value.status == 400


BAD_SCHEMAS = {
    "no fields": {"type": "struct"},
    "no id": struct({"name": "a", "required": False, "type": "long"}),
    "an id twice": struct(field(1, "a"), field(1, "b")),
    "a name twice": struct(field(1, "a"), field(2, "a")),
    "a nested name twice": struct(field(1, "s", struct(field(2, "a"), field(3, "a")))),
    "no name": struct(field(1, "")),
    "no type": struct(field(1, "a", None)),
    "an unknown shape": struct(field(1, "a", {"type": "tuple"})),
    "an identifier that is no field": struct(field(1, "a"), **{"identifier-field-ids": [2]}),
    "a field that is none": struct("a"),
}


@pytest.mark.parametrize("name", BAD_SCHEMAS)
def test_a_schema_that_makes_no_sense_is_refused(name):
    """A bad schema is a bad request, never a table."""
    with pytest.raises(Refusal) as caught:
        check_schema(BAD_SCHEMAS[name])
    assert caught.value.kind == "BadRequestException"


def test_a_schema_nested_without_end_is_refused():
    """Depth has a limit, so that no request can exhaust the stack."""
    kind = "long"
    for number in range(100):
        kind = struct(field(number + 1, "a", kind))
    with pytest.raises(Refusal, match="too deep"):
        check_schema(struct(field(1000, "a", kind)))


def test_a_partition_column_that_does_not_exist_is_refused():
    """A spec names columns of the schema."""
    spec = {"fields": [{"source-id": 9, "name": "x", "transform": "identity"}]}
    with pytest.raises(Refusal, match="unknown source column"):
        table(struct(field(1, "a")), spec=spec)


def test_equal_schemas_are_found_whatever_is_left_out():
    """Null and absent are the same; a document or a type is not."""
    one = struct(field(1, "a", doc=None), **{"schema-id": 4, "identifier-field-ids": []})
    assert same_schema(one, struct(field(1, "a")))
    assert not same_schema(one, struct(field(1, "a", doc="x")))
    assert not same_schema(one, struct(field(1, "a", "int")))
    assert not same_schema(one, struct(field(1, "a"), **{"identifier-field-ids": [1]}))


LEAST = {
    "format-version": 2,
    "table-uuid": "u",
    "location": "/wh/t",
    "schemas": [struct(field(1, "a"), field(2, "b"), **{"schema-id": 0})],
    "current-schema-id": 0,
    "last-column-id": 2,
    "partition-specs": [{"spec-id": 0, "fields": []}],
    "default-spec-id": 0,
    "last-partition-id": 999,
    "current-snapshot-id": 44,
    "snapshots": [{"snapshot-id": 44, "timestamp-ms": 7}],
}


def test_what_other_writers_leave_out_is_completed():
    """Optional parts are there, and the current snapshot becomes the branch main."""
    before = copy.deepcopy(LEAST)
    made = completed(LEAST)
    assert before == LEAST
    assert made["refs"] == {"main": {"snapshot-id": 44, "type": "branch"}}
    assert made["sort-orders"] == [{"order-id": 0, "fields": []}]
    assert (made["metadata-log"], made["properties"], made["last-sequence-number"]) == ([], {}, 0)


@pytest.mark.parametrize("current", [None, -1])
def test_no_snapshot_is_none_in_both_spellings(current):
    """-1 and null both mean that there is no current snapshot."""
    made = completed({**LEAST, "current-snapshot-id": current})
    assert made["current-snapshot-id"] is None
    assert made["refs"] == {}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {**LEAST, "format-version": 1},
        {"format-version": 2, "location": "/x"},
        {**LEAST, "schemas": []},
    ],
)
def test_what_is_no_metadata_is_refused(metadata):
    """A file without the parts of a table is none."""
    with pytest.raises(Refusal):
        completed(metadata)
