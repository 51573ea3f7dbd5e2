"""Parameters that are odd: the index, pruning and DuckDB take each for the same value, or refuse."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest

HUNDRED = Decimal(100).normalize()


@pytest.fixture
def asked(tiers):
    """An engine with keys of several types, each with the keys 1 and 100, or two days."""
    long = tiers.create("by_long", {"id": pa.int64(), "v": pa.int64()}, key=["id"])
    exact = tiers.create("by_decimal", {"id": pa.decimal128(10, 2), "v": pa.int64()}, key=["id"])
    day = tiers.create("by_day", {"id": pa.date32(), "v": pa.int64()}, key=["id"])
    moment = tiers.create("by_time", {"id": pa.timestamp("us", "UTC"), "v": pa.int64()}, key=["id"])
    for number in (1, 100):
        long.append({"id": number, "v": number}, op=3)
        exact.append({"id": Decimal(number), "v": number}, op=3)
        day.append({"id": dt.date(2026, 1, 1) + dt.timedelta(number), "v": number}, op=3)
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(number)
        moment.append({"id": at, "v": number}, op=3)
    return tiers.engine()


@pytest.mark.parametrize("topic", ["by_long", "by_decimal"])
@pytest.mark.parametrize("condition", ["id = ?", "id = ? AND v > 0", "id + 0 = ?", "id >= ?"])
def test_a_decimal_with_an_exponent_is_worth_what_it_says(asked, topic, condition):
    """1E+2 is 100 for the index, for files that are left out and for DuckDB."""
    sql = f"SELECT v FROM {topic} WHERE {condition}"
    assert asked.query(sql, [HUNDRED]).rows() == [(100,)]
    assert asked.query("SELECT ?, $2", [HUNDRED, [HUNDRED]]).rows() == [(100, [100])]


@pytest.mark.parametrize("value", [np.int64(100), np.int32(100)])
def test_numbers_of_numpy_are_numbers(asked, value):
    """They find the key they are, by the index and by a scan."""
    for condition in ("id = ?", "id + 0 = ?"):
        assert asked.query(f"SELECT v FROM by_long WHERE {condition}", [value]).rows() == [(100,)]


@pytest.mark.parametrize("topic", ["by_long", "by_decimal"])
@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("condition", ["id = ?", "v > ?", "id IN (?)"])
def test_decimals_that_are_no_numbers_find_nothing_or_are_refused(asked, topic, text, condition):
    """What comes is an answer, or a refusal of the tree, never an exception of Python."""
    try:
        found = asked.query(f"SELECT v FROM {topic} WHERE {condition}", [Decimal(text)]).rows()
    except InvalidRequest as error:
        assert str(error)
    else:
        assert found in ([], [(1,), (100,)])


@pytest.mark.parametrize("topic", ["by_day", "by_time"])
@pytest.mark.parametrize("condition", ["id = ?", "id > ?"])
def test_the_missing_time_of_pandas_is_null(asked, topic, condition):
    """NaT equals nothing and excludes nothing by mistake; explain knows it as well."""
    sql = f"SELECT v FROM {topic} WHERE {condition}"
    assert asked.query(sql, [pd.NaT]).rows() == []
    assert asked.explain(sql, [pd.NaT])["path"] == "scan"


@pytest.mark.parametrize("text", ["garbage", "2024-13-01"])
@pytest.mark.parametrize("operator", ["=", ">"])
def test_a_text_that_is_no_date_is_refused_for_a_key_too(asked, text, operator):
    """The index does not answer "no such row" where DuckDB says that the text is no date."""
    with pytest.raises(InvalidRequest, match="date field"):
        asked.query(f"SELECT v FROM by_day WHERE id {operator} '{text}'")
