"""Dead rows stay out of a scan, as a list or as bits."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.query.relations import without_dead


@pytest.fixture(scope="module")
def connection():
    """Open a DuckDB of its own."""
    with duckdb.connect() as opened:
        yield opened


def alive(connection, offsets, dead, *, first, last):
    """Return the offsets that a scan leaves over, and the join it used."""
    connection.register("f", pa.table({"_offset": pa.array(offsets, pa.int64())}))

    def register(table):
        connection.register("marks", table)
        return "marks"

    marks = np.array(dead, np.int64)
    join, conditions = without_dead(marks, first=first, last=last, register=register)
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = connection.execute(f"SELECT f._offset FROM f {join} {where}").fetchall()
    return sorted(row[0] for row in rows), join


@given(st.data())
def test_exactly_the_dead_rows_are_left_out(connection, data):
    """Any offsets, any of them dead, from any first offset on: the others are all that is left."""
    first = data.draw(st.sampled_from([0, 1, 63, 64, 1000, (1 << 40) + 17]))
    count = data.draw(st.integers(1, 400))
    offsets = range(first, first + count)
    present = sorted(data.draw(st.sets(st.sampled_from(offsets), min_size=1)))
    dead = sorted(data.draw(st.sets(st.sampled_from(offsets), min_size=1)))
    left, _ = alive(connection, present, dead, first=first, last=offsets[-1])
    assert left == [offset for offset in present if offset not in dead]


def test_few_dead_rows_are_listed_and_many_are_bits(connection):
    """What is registered never has more than two blocks for a dead row."""
    offsets = list(range(100_000))
    left, join = alive(connection, offsets, [64, 99_999], first=0, last=99_999)
    assert (len(left), "ANTI" in join) == (99_998, True)
    left, join = alive(connection, offsets, offsets[::50], first=0, last=99_999)
    assert (len(left), "ANTI" in join) == (98_000, False)
