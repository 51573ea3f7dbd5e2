"""Nested types of a table against the topic's; no Spark session is needed for types."""

from __future__ import annotations

import pytest
from pyspark.sql import types as T  # noqa: N812 - the name that everybody knows it by

from frazil.lake.stages.shapes import Difference, difference, without_others

INT, TEXT = T.IntegerType(), T.StringType()


def struct(**fields):
    """Return a struct of optional fields."""
    return T.StructType([T.StructField(name, each) for name, each in fields.items()])


def test_optional_fields_of_others_are_no_difference():
    """Wherever they are: in a struct, a list of structs, a map's value; and in any order."""
    own = struct(a=INT)
    more = struct(z=TEXT, a=INT)
    for wrap in (lambda each: each, T.ArrayType, lambda each: T.MapType(TEXT, each)):
        assert difference(wrap(more), wrap(own), "c") is None
        assert without_others(wrap(more), wrap(own)) == wrap(own)


@pytest.mark.parametrize(
    ("found", "wanted", "path"),
    [
        (struct(b=INT), struct(a=INT), "c.a"),
        (struct(a=TEXT), struct(a=INT), "c.a"),
        (T.ArrayType(struct(b=INT)), T.ArrayType(struct(a=INT)), "c.element.a"),
        (T.MapType(struct(a=INT, b=INT), INT), T.MapType(struct(a=INT), INT), "c.key"),
        (T.MapType(TEXT, TEXT), T.MapType(TEXT, INT), "c.value"),
        (T.ArrayType(INT), INT, "c"),
        (
            T.StructType([T.StructField("a", INT), T.StructField("b", INT, nullable=False)]),
            struct(a=INT),
            "c.b",
        ),
    ],
)
def test_what_rows_would_get_lost_in_is_named_by_its_path(found, wanted, path):
    """A field that is gone, of another type, or must not be empty."""
    assert difference(found, wanted, "c").path == path


def test_a_difference_has_both_types():
    """What is there, and what the topic has."""
    assert difference(TEXT, INT, "c") == Difference("c", "string", "int")


def test_leaf_types_are_the_tables_where_others_are_left_out():
    """A column that was widened since is compared in the wider type."""
    found = without_others(struct(a=T.LongType(), b=TEXT), struct(a=INT))
    assert found == struct(a=T.LongType())
