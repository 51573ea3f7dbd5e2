"""Columns inferred from rows."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from uuid import uuid4

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.schema.columns import infer_schema, strip_ids
from frazil.schema.rows import RowEncoder

ROW = {
    "a": True,
    "b": 1,
    "c": 1.5,
    "d": "x",
    "e": b"x",
    "f": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "g": dt.datetime(2026, 1, 1),  # noqa: DTZ001
    "h": dt.date(2026, 1, 1),
    "i": dt.time(1, 2),
    "j": Decimal("1.25"),
    "k": [1, None],
    "l": {"x": "y", "z": [0.5]},
}
TYPES = [
    pa.bool_(),
    pa.int64(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.date32(),
    pa.time64("us"),
    pa.decimal128(38, 2),
    pa.list_(pa.int64()),
    pa.struct([("x", pa.string()), ("z", pa.list_(pa.float64()))]),
]


def test_each_python_type_has_one_column_type():
    """A row's inferred types are the documented ones, and the row fits them."""
    schema = infer_schema(ROW)
    assert strip_ids(schema).types == TYPES
    encoder = RowEncoder(schema)
    assert encoder.batch([encoder.values(ROW)]).to_pylist()[0]["l"] == ROW["l"]


def test_several_rows_fill_each_others_gaps():
    """A null or a missing column in one row takes its type from another; int meets float."""
    schema = infer_schema(
        {"a": None, "b": 1}, {"a": "x", "b": 2.5, "c": {"x": 1}}, {"c": {"y": "q"}}
    )
    assert strip_ids(schema).types == [
        pa.string(),
        pa.float64(),
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
    ]


@pytest.mark.parametrize(
    "rows",
    [
        (),
        ({},),
        ({"a": None},),
        ({"a": []},),
        ({"a": {"x": None}},),
        ({"a": {}},),
        ({"a": 1}, {"a": "x"}),
        ({"a": object()},),
        ({"a": uuid4()},),
        ({1: 1},),
        ({"a": {1: 1}},),
        ([1],),
        ({"a": Decimal("NaN")},),
        ({"a": Decimal("1e40")},),
        ({"_offset": 1},),
        ({"a": [[[[[[[[[[1]]]]]]]]]]},),
    ],
)
def test_what_cannot_be_inferred_is_refused(rows):
    """Nulls alone, disagreeing rows and foreign objects are refused, never guessed."""
    with pytest.raises(InvalidRequest):
        infer_schema(*rows)


@pytest.mark.parametrize("row", [{"a": None}, {"a": []}, {"a": {"x": [None]}}])
def test_a_null_says_that_the_column_must_be_declared(row):
    """The error for nulls alone tells what to do, with the path of the null."""
    with pytest.raises(InvalidRequest, match="declare the type that the values") as caught:
        infer_schema(row)
    assert str(caught.value.details["column"]).startswith("a")
