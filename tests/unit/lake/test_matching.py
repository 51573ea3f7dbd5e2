"""A table's columns beside its topic's: what others may have done to it, and what stops."""

from __future__ import annotations

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from frazil.errors import Conflict
from frazil.lake.evolve import match
from frazil.lake.plan import TableName
from frazil.lake.types import iceberg_schema
from frazil.schema import declare_schema

TABLE = TableName("a", "b")
TOPIC = declare_schema(
    {"a": "int not null", "s": "struct<x:int>", "l": "list<int>", "m": "map<string,int>"}
)
FIELDS = {field.name: field for field in iceberg_schema(TOPIC, partitioned=False).fields}


def matched(*others, **changed):
    """Match the topic with its own table, some fields changed (or None) and others added."""
    fields = [changed.get(name, field) for name, field in FIELDS.items()]
    return match(TABLE, Schema(*filter(None, fields), *others), TOPIC, partitioned=False)


def field(name, kind, *, required=False):
    return NestedField(90, name, kind, required=required)


def test_its_own_table_matches():
    """A table as it was made has nothing that the topic has not, in whatever order."""
    assert matched() is None
    turned = Schema(*reversed(FIELDS.values()))
    assert match(TABLE, turned, TOPIC, partitioned=False) is None


def test_what_others_may_do():
    """A nullable column more, and a required one made nullable, do not stop."""
    loose = NestedField(3, "a", FIELDS["a"].field_type, required=False)
    assert matched(field("note", StringType()), a=loose) is None


STOPS = {
    "gone": ({"a": None}, "a"),
    "system": ({"_time": None}, "_time"),
    "wider": ({"a": field("a", LongType(), required=True)}, "a"),
    "case": ({"a": field("A", FIELDS["a"].field_type, required=True)}, "a"),
    "required": ({"s": field("s", FIELDS["s"].field_type, required=True)}, "s"),
    "inside": ({"s": field("s", StructType(NestedField(91, "x", LongType())))}, "s.x"),
    "element": ({"l": field("l", ListType(91, LongType(), element_required=False))}, "l.element"),
    "strict": (
        {"l": field("l", ListType(91, FIELDS["a"].field_type, element_required=True))},
        "l.element",
    ),
    "value": (
        {"m": field("m", MapType(91, StringType(), 92, LongType(), value_required=False))},
        "m.value",
    ),
    "other": ({"m": field("m", StringType())}, "m"),
}


@pytest.mark.parametrize("kind", STOPS)
def test_what_stops(kind):
    """A column that is gone, of another type or narrower than the topic's is named."""
    changed, column = STOPS[kind]
    with pytest.raises(Conflict, match="frazil lake resume") as caught:
        matched(**changed)
    assert caught.value.details["column"] == column


def test_a_foreign_column_that_needs_a_value_stops():
    """A column that others added and that cannot be empty would fail every commit."""
    with pytest.raises(Conflict, match="cannot be empty") as caught:
        matched(field("note", StringType(), required=True))
    assert caught.value.details["column"] == "note"


def test_a_table_without_parts_is_not_one_of_a_partitioned_topic():
    """The column of parts belongs to a partitioned topic's table."""
    with pytest.raises(Conflict) as caught:
        match(TABLE, Schema(*FIELDS.values()), TOPIC, partitioned=True)
    assert caught.value.details["column"] == "_part"
