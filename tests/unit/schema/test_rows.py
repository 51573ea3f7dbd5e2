"""Dict rows: what is accepted, what is refused, and the two forms they take."""

from __future__ import annotations

import datetime as dt
import enum
import math
from decimal import Decimal
from types import MappingProxyType

import msgspec
import numpy as np
import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.schema.columns import IngestLimits, declare_schema
from frazil.schema.rows import RowEncoder, join_packed

FIVE = declare_schema(
    {"id": "long not null", "name": "string", "amount": "double", "raw": "bytes", "ok": "boolean"}
)
ROW = {"id": 7, "name": "Zoë", "amount": 1.5, "raw": b"\x00\xff", "ok": True}
VALUES = (7, "Zoë", 1.5, b"\x00\xff", True)
NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


class _Text(str):
    __slots__ = ()


class _Level(enum.IntEnum):
    LOW = 1


def value_of(data_type, value):
    """Return `value` as a column of `data_type` takes it, and as Arrow gives it back."""
    encoder = RowEncoder(declare_schema({"c": data_type}))
    (taken,) = encoder.values({"c": value})
    assert encoder.values({"c": None}) == (None,)
    return taken, encoder.batch([(taken,)]).to_pydict()["c"][0]


def test_values_come_in_column_order():
    """The order of the dict's keys does not matter, and a missing nullable column is null."""
    encoder = RowEncoder(FIVE)
    assert encoder.values(ROW) == VALUES
    assert encoder.values(dict(reversed(ROW.items()))) == VALUES
    assert encoder.values({"ok": False, "id": 1}) == (1, None, None, None, False)
    assert encoder.values(MappingProxyType(ROW)) == VALUES


def test_a_wide_row_in_any_order_is_accepted():
    """Rows of many columns are put in order, and an unknown column is still found."""
    names = [f"c{index}" for index in range(100)]
    encoder = RowEncoder(declare_schema(dict.fromkeys(names, "long")))
    row = {name: index for index, name in enumerate(names)}
    assert encoder.values(dict(reversed(row.items()))) == tuple(range(100))
    assert encoder.values({"c99": 1}) == (*[None] * 99, 1)
    with pytest.raises(InvalidRequest, match="does not exist"):
        encoder.values({**dict(reversed(row.items())), "c100": 1})


@pytest.mark.parametrize(
    ("data_type", "value", "taken"),
    [
        ("int8", -128, -128),
        ("uint32", 2**32 - 1, 2**32 - 1),
        ("long", -(2**63), -(2**63)),
        ("long", _Level.LOW, 1),
        ("double", 3, 3.0),
        ("double", 2**53, 2.0**53),
        ("double", -(2**53), -(2.0**53)),
        ("double", 1e300, 1e300),
        ("double", math.inf, math.inf),
        ("float", -math.inf, -math.inf),
        ("float", 2**24, 2.0**24),
        ("string", "", ""),
        ("string", _Text("x"), "x"),
        ("large_string", "x", "x"),
        ("bytes", bytearray(b"x"), b"x"),
        ("bytes", memoryview(b"xyz")[1:], b"yz"),
        ("fixed[2]", b"xy", b"xy"),
        ("date", dt.date(1, 1, 1), dt.date(1, 1, 1)),
        ("time", dt.time(1, 2, 3, 4), dt.time(1, 2, 3, 4)),
        ("timestamptz", NOON, NOON),
        ("timestamptz", NOON.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON),
        ("timestamp", NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        ("timestamp[s, UTC]", NOON, NOON),
        (
            "timestamp[ms]",
            NOON.replace(tzinfo=None, microsecond=5000),
            NOON.replace(tzinfo=None, microsecond=5000),
        ),
        ("decimal(5,2)", Decimal("-999.99"), Decimal("-999.99")),
        ("decimal(5,2)", Decimal("1.500"), Decimal("1.50")),
        ("decimal(5,2)", Decimal("1E+2"), Decimal("100.00")),
        ("decimal(5,2)", Decimal("0E-9"), Decimal("0.00")),
        ("decimal(5,2)", -999, Decimal("-999.00")),
        ("decimal(2,2)", 0, Decimal("0.00")),
        ("decimal(38,0)", 10**38 - 1, Decimal(10**38 - 1)),
        ("decimal(5,2)", np.int32(7), Decimal("7.00")),
        ("long", np.int64(-(2**63)), -(2**63)),
        ("int8", np.uint64(127), 127),
        ("double", np.int16(3), 3.0),
        ("double", np.float32(0.5), 0.5),
        ("boolean", np.bool_(True), True),
        ("string", np.str_("x"), "x"),
        ("list<int>", [np.int8(1)], [1]),
        ("list<int>", (1, None), [1, None]),
        ("struct<a:int,b:string>", {"b": "x"}, {"a": None, "b": "x"}),
        ("map<string,int>", {"k": 1}, [("k", 1)]),
        ("map<int,int>", [(1, None)], [(1, None)]),
    ],
)
def test_a_fitting_value_reaches_arrow_unchanged(data_type, value, taken):
    """Each legal value comes back from Arrow equal to what was given, boundaries included."""
    _, stored = value_of(data_type, value)
    assert stored == taken
    assert type(stored) is type(taken)


@pytest.mark.parametrize(
    ("data_type", "value"),
    [
        ("int8", 128),
        ("int16", -(2**15) - 1),
        ("int", 2**31),
        ("uint8", -1),
        ("uint32", 2**32),
        ("long", 2**63),
        ("long", -(2**63) - 1),
        pytest.param("long", 10**5000, id="huge"),
        ("long", True),
        ("long", 1.0),
        ("long", "1"),
        ("double", True),
        ("double", "1"),
        ("double", 2**53 + 1),
        ("double", -(2**53) - 1),
        pytest.param("double", 10**400, id="huge"),
        ("double", Decimal("1.5")),
        ("float", 2**24 + 1),
        ("float", 1e39),
        ("boolean", 1),
        ("string", b"x"),
        ("string", "\ud800"),
        ("string", "ok" * 50 + "\udfff"),
        ("string", 1),
        ("bytes", "eA=="),
        ("bytes", [1]),
        ("fixed[2]", b"xyz"),
        ("date", NOON),
        ("date", "2026-01-01"),
        ("time", dt.time(1, tzinfo=dt.UTC)),
        ("timestamptz", NOON.replace(tzinfo=None)),
        ("timestamp", NOON),
        ("timestamptz", "2026-01-01T00:00:00Z"),
        ("timestamptz", 5),
        ("timestamptz", NOON.date()),
        ("timestamp[s, UTC]", NOON.replace(microsecond=1)),
        ("timestamp[ms, UTC]", NOON.replace(microsecond=1)),
        ("timestamp[ns, UTC]", NOON.replace(year=2300)),
        ("timestamptz", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5)))),
        ("decimal(5,2)", Decimal(1000)),
        ("decimal(5,2)", Decimal("0.001")),
        ("decimal(5,2)", Decimal("NaN")),
        ("decimal(5,2)", Decimal("1e999999")),
        ("decimal(5,2)", 1.5),
        ("decimal(5,2)", 1000),
        ("decimal(5,2)", True),
        pytest.param("decimal(5,2)", 10**5000, id="huge"),
        ("int8", np.int64(128)),
        ("long", np.float64(1)),
        ("long", np.bool_(True)),
        ("boolean", np.int8(1)),
        ("double", np.bool_(True)),
        ("double", np.int64(2**53 + 1)),
        ("long", np.array([1, 2])),
        ("long", np.datetime64("2026-01-01", "ns")),
        ("list<int>", "12"),
        ("list<int>", [1, "x"]),
        ("list<int not null>", [None]),
        ("list<string>", ["\ud800"]),
        ("struct<a:int>", {"b": 1}),
        ("struct<a:int not null>", {}),
        ("struct<a:int>", [1]),
        ("map<string,int>", {1: 1}),
        ("map<string,int>", [("a", 1), ("a", 2)]),
        ("map<string,int>", [("a",)]),
        ("map<string,int>", [(None, 1)]),
        ("map<string,int not null>", {"a": None}),
    ],
)
def test_an_unfit_value_is_refused_with_its_column(data_type, value):
    """No value is rounded, parsed or wrapped: what does not fit is refused by column."""
    encoder = RowEncoder(declare_schema({"c": data_type}))
    with pytest.raises(InvalidRequest) as caught:
        encoder.values({"c": value})
    assert str(caught.value.details["column"]).split(".")[0] == "c"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, "missing"),
        ({"id": None}, "must not be null"),
        ({"id": 1, "nmae": "x"}, "nearest=name"),
        ({"id": 1, 5: "x"}, "must be a string"),
        ([("id", 1)], "must be a dict"),
        (None, "must be a dict"),
        ("id", "must be a dict"),
    ],
)
def test_a_row_of_a_wrong_shape_is_refused(row, message):
    """Missing, null, unknown and non-text names have different errors."""
    with pytest.raises(InvalidRequest, match=message):
        RowEncoder(FIVE).values(row)


@pytest.mark.parametrize(
    "data_type", ["timestamptz not null", "bytes not null", "list<int> not null"]
)
def test_a_required_column_that_python_checks_is_required(data_type):
    """Columns outside msgspec's fast check refuse null and absence as well."""
    encoder = RowEncoder(declare_schema({"c": data_type}))
    for row in ({}, {"c": None}):
        with pytest.raises(InvalidRequest, match="must not be null"):
            encoder.values(row)


def test_a_row_above_the_limit_is_refused():
    """A row at the limit passes and one byte more does not."""
    schema = declare_schema({"c": "string"})
    size = len(RowEncoder(schema).pack(("x" * 100,)))
    RowEncoder(schema, IngestLimits(message_bytes_max=size)).values({"c": "x" * 100})
    with pytest.raises(InvalidRequest, match="too large"):
        RowEncoder(schema, IngestLimits(message_bytes_max=size)).values({"c": "x" * 101})


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300, 70_000])
def test_rows_packed_one_by_one_equal_rows_packed_together(count):
    """Joining single rows gives the bytes of packing all of them, which unpack to the rows."""
    encoder = RowEncoder(FIVE)
    rows = [(index, "x", None, b"y", None) for index in range(count)]
    data = join_packed([encoder.pack(row) for row in rows])
    assert data == msgspec.msgpack.encode(rows)
    assert encoder.unpack_rows(memoryview(data)) == rows


def test_nested_columns_are_not_packable():
    """A schema with a nested column says so instead of packing it badly."""
    encoder = RowEncoder(declare_schema({"c": "list<int>"}))
    assert not encoder.packable
    with pytest.raises(InvalidRequest):
        encoder.unpack_rows(b"\x90")


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x91\x91\x01", b"\x91\x95\xa1x\xc0\xc0\xc0\xc0", b"\x90\x90"]
)
def test_damaged_packed_rows_are_reported(data):
    """Bytes that are no rows of the schema are corruption, not a crash."""
    with pytest.raises(CorruptionError):
        RowEncoder(FIVE).unpack_rows(data)


def test_a_batch_has_the_schema_with_its_ids():
    """A batch, an empty one too, carries the declared schema and holds the values."""
    encoder = RowEncoder(FIVE)
    batch = encoder.batch([VALUES, (8, None, None, None, None)])
    assert batch.schema.equals(FIVE, check_metadata=True)
    assert batch.to_pylist()[0] == ROW
    assert batch.column("name").null_count == 1
    empty = encoder.batch([])
    assert empty.num_rows == 0
    assert empty.schema.equals(FIVE, check_metadata=True)


class _Day(dt.date):
    """May be more than a date."""


def test_a_subclass_without_a_packed_form_is_refused():
    """It is the caller's mistake, and refused as one by the slow path."""
    encoder = RowEncoder(declare_schema({"c": "date"}))
    with pytest.raises(InvalidRequest, match="row does not fit"):
        encoder.encode({"c": _Day(2026, 1, 31)})
