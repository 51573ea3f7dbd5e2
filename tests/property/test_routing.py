"""Equal keys go to one part, in whatever form they come."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from enum import IntEnum

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.schema import RowEncoder, declare_schema, part_of_row, part_of_values, parts_of_batch

PARTS = 1 << 30
"""So many that two forms of a key never share a part by chance."""

ZONES = [dt.UTC, *(dt.timezone(dt.timedelta(minutes=each)) for each in (-720, -90, 60, 345))]
FIRST = dt.datetime.fromisoformat("1700-01-01")
LAST = dt.datetime.fromisoformat("2200-01-01")
AWARE = st.datetimes(FIRST, LAST, timezones=st.sampled_from(ZONES))
NAIVE = st.datetimes(FIRST, LAST)
DECIMALS = st.decimals(-(10**8) + 1, 10**8 - 1, places=2)

KEYS = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "boolean": st.booleans(),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "bytes": st.binary() | st.binary().map(bytearray) | st.binary().map(memoryview),
    "fixed[3]": st.binary(min_size=3, max_size=3),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": NAIVE,
    "timestamptz": AWARE,
    "timestamp[ns]": NAIVE,
    "timestamptz of ns": AWARE,
    "decimal(10,2)": DECIMALS,
    "decimal(38,10)": st.decimals(-(10**27), 10**27, places=10),
}


@pytest.mark.parametrize("kind", KEYS)
def test_a_row_and_its_arrow_form_have_one_part(kind):
    """A row's part is that of the same row as Arrow, for each type that a key may have."""
    declared = pa.timestamp("ns", "UTC") if kind == "timestamptz of ns" else kind
    schema = declare_schema({"id": declared, "v": "long"}, primary_key=["id"])
    encoder = RowEncoder(schema)

    @given(KEYS[kind])
    def check(value):
        row = {"id": value, "v": 1}
        batch = encoder.batch([encoder.values(row)])
        assert parts_of_batch(batch, ["id"], PARTS) == [part_of_row(row, ["id"], PARTS)]

    check()


@given(DECIMALS, st.integers(0, 6))
def test_zeros_behind_a_decimal_change_nothing(value, zeros):
    """Decimals of one value have one part, however many zeros they are written with."""
    sign, digits, exponent = value.as_tuple()
    longer = Decimal((sign, (0, *digits, *[0] * zeros), exponent - zeros))
    assert longer == value
    assert part_of_values([longer], PARTS) == part_of_values([value], PARTS)
    assert part_of_values([value + Decimal("0.01")], PARTS) != part_of_values([value], PARTS)


@given(AWARE, st.sampled_from(ZONES))
def test_the_zone_of_a_time_changes_nothing(moment, zone):
    """One instant has one part, whatever zone it is given in."""
    assert part_of_values([moment.astimezone(zone)], PARTS) == part_of_values([moment], PARTS)


def test_numbers_of_zero_are_one():
    """Zero has one part with any sign and scale."""
    zeros = ["0", "-0", "0.00", "0E+5", "-0.0"]
    assert len({part_of_values([Decimal(each)], PARTS) for each in zeros}) == 1


def test_subclasses_go_where_their_value_goes():
    """A value of a subclass has the part of the plain value."""

    class Text(str):
        __slots__ = ()

    class Number(IntEnum):
        ONE = 1

    assert part_of_values([Text("a"), Number.ONE], PARTS) == part_of_values(["a", 1], PARTS)


def test_nanoseconds_have_a_part():
    """Times that only Arrow can hold differ and do not fail."""
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        batch = pa.record_batch({"id": pa.array([1000, 1001, 1002, 1001], pa.int64()).cast(kind)})
        parts = parts_of_batch(batch, ["id"], PARTS)
        assert parts[1] == parts[3]
        assert len(set(parts)) == 3


@pytest.mark.parametrize("row", [{}, {"id": object()}, {"id": "\ud800"}, [], b"x", 5, None])
def test_what_has_no_key_is_refused(row):
    """A record without a usable key is an invalid request, not a crash."""
    with pytest.raises(InvalidRequest):
        part_of_row(row, ["id"], 4)
