"""Values become strict JSON by the rules that the documentation states."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.cli.output import csv_text, plain, plain_row, plain_rows, size_text, stamp, to_json

VALUES = [
    (b"text", "text"),
    (b"\xff", {"base64": "/w=="}),
    (float("nan"), "NaN"),
    (float("inf"), "Infinity"),
    (float("-inf"), "-Infinity"),
    (Decimal("1.50"), "1.50"),
    (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2026-01-02T03:04:05Z"),
    (dt.date(2026, 1, 2), "2026-01-02"),
    ({"a": [b"x", None, True]}, {"a": ["x", None, True]}),
    (pa.MonthDayNano([0, 1, 0]), "P1D"),
    (pa.MonthDayNano([14, -3, 4_500_000_000]), "P1Y2M-3DT4.5S"),
    (pa.MonthDayNano([-1, 0, -1_000]), "P-1MT-0.000001S"),
    (pa.MonthDayNano([0, 0, 0]), "PT0S"),
]


@pytest.mark.parametrize(("value", "wanted"), VALUES, ids=[str(value) for value, _ in VALUES])
def test_each_value_has_one_form(value, wanted):
    """Bytes, times, decimals and numbers that JSON lacks are written as documented."""
    assert plain(value) == wanted
    assert json.loads(to_json(value)) == wanted


def test_rows_of_arrow_types():
    """Maps are objects, an empty one too; nanoseconds are kept; nulls stay null."""
    batch = pa.record_batch(
        {
            "m": pa.array([[("k", b"\xff")], [], None], pa.map_(pa.string(), pa.binary())),
            "n": pa.array([1, None, 3], pa.timestamp("ns", tz="UTC")),
            "l": pa.array([[1.0, float("nan")], [], None]),
        }
    )
    first, second, third = plain_rows(batch)
    assert first["m"] == {"k": {"base64": "/w=="}}
    assert (second["m"], third["m"]) == ({}, None)
    assert first["n"].endswith("00:00:00.000000001Z")
    assert (first["l"], second["l"], third["l"]) == ([1.0, "NaN"], [], None)


def test_maps_are_objects_wherever_they_are():
    """In a struct, a list or another map, from Arrow and from a look-up; pairs stay pairs."""
    pairs = pa.map_(pa.string(), pa.int32())
    struct = pa.struct([("m", pairs), ("l", pa.list_(pa.list_(pa.int32())))])
    schema = pa.schema([("s", struct), ("ms", pa.list_(pairs)), ("mm", pa.map_(pa.int32(), pairs))])
    row = {
        "s": {"m": [("x", 1)], "l": [[1, 2]]},
        "ms": [[("y", None)], None],
        "mm": [(7, [("z", 3)])],
    }
    wanted = {
        "s": {"m": {"x": 1}, "l": [[1, 2]]},
        "ms": [{"y": None}, None],
        "mm": {"7": {"z": 3}},
    }
    assert plain_row(row, schema) == wanted
    batch = pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema)
    assert plain_rows(batch) == [wanted, dict.fromkeys(row)]


def test_csv_tells_nulls_from_empty_texts():
    """A null is nothing, an empty text two quotes; what would break a line is quoted."""
    rows = [["a", None, ""], [1, 1.5, True], [[1, None], {"k": 'q"'}, "x,\ny"], [None]]
    assert csv_text(rows) == ('a,,""\n1,1.5,true\n"[1, null]","{""k"": ""q\\""""}","x,\ny"\n\n')
    assert list(csv.reader(io.StringIO(csv_text(rows))))[2][1] == '{"k": "q\\""}'


def test_sizes_and_times_for_people():
    """Sizes have three digits; a time beyond the calendar stays a number."""
    assert [size_text(n) for n in (0, 999, 1234, 5_000_000, 7 * 10**13)] == [
        *("0 B", "999 B", "1.23 kB", "5 MB", "70.00 TB"),
    ]
    assert stamp(0) == "1970-01-01T00:00:00Z"
    assert stamp(10**18) == str(10**18)
