"""The changes of the guided run tell the rows that must be, and losses are found."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.cli.demo_changes import ChangeTally, change_of, row_behind, rows_of
from frazil.model import OP_DELETE, OP_UPDATE, OP_UPSERT

OPS = {"upsert": OP_UPSERT, "update": OP_UPDATE, "delete": OP_DELETE}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("number", pa.int64()),
        ("city", pa.string()),
        ("quantity", pa.int64()),
        ("_op", pa.int8()),
        ("_present", pa.binary()),
    ]
)


def stored(numbers, writer=1):
    """Changes as the log holds them: whole rows, a delete with its key alone."""
    rows = []
    for number in numbers:
        change = change_of(writer, number)
        row = row_behind(writer, number) or {"id": change.key}
        rows.append({**row, "_op": OPS[change.op], "_present": None})
    return rows


def batch(rows):
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA)


@given(st.integers(0, 1000), st.integers(0, 5))
def test_rows_are_the_changes_one_after_another(number_next, writer):
    """Applying the changes by hand gives the rows that the number of the next one tells."""
    rows = {}
    for number in range(number_next):
        change = change_of(writer, number)
        if change.op == "delete":
            del rows[change.key]
        elif change.op == "upsert":
            rows[change.key] = change.columns
        else:
            rows[change.key] = {**rows[change.key], **change.columns}
    expected = rows_of(writer, number_next)
    assert {key: row for key, row in expected.items() if row is not None} == rows
    assert len(expected) == 64


def test_all_operations_come():
    """A round has whole rows, partial updates and deletes, of keys that exist."""
    changes = [change_of(0, number) for number in range(24)]
    assert [change.op for change in changes].count("delete") == 2
    assert [change.op for change in changes].count("upsert") == 6
    assert {len(change.columns) for change in changes if change.op == "update"} == {2}


def test_whole_changes_have_no_problems():
    """What was written is found in order, deletes counted by their place."""
    tally = ChangeTally(acked_end=40)
    rows = stored(range(40))
    tally.take(batch(rows[:17]), 0)
    tally.take(batch(rows[17:]), 17)
    tally.finish()
    assert tally.problems == []
    assert (tally.records, tally.acked, tally.last) == (40, 40, {1: 39})


def test_a_history_that_begins_with_a_delete_is_fine():
    """After retention the first change of a writer may be a delete, whose number nobody knows."""
    tally = ChangeTally()
    tally.take(batch(stored(range(3, 9))), 3)
    assert tally.problems == []
    assert tally.last == {1: 8}


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda rows: rows[4].update(quantity=-1), "offset 4: the content"),
        (lambda rows: rows.pop(3), "has number 4, not 3"),
        (lambda rows: rows[3].update(id=1001), "offset 3: the content"),
        (lambda rows: rows[5].update(_op=OP_UPSERT), "offset 5: the content"),
        (lambda rows: rows.insert(2, rows[1]), "has number 1, not 2"),
    ],
)
def test_spoiled_changes_are_found(spoil, problem):
    """A wrong value, key or operation, a missing change and one that comes twice are told."""
    rows = stored(range(12))
    spoil(rows)
    tally = ChangeTally()
    tally.take(batch(rows), 0)
    assert problem in tally.problems[0]


def test_a_partial_change_is_compared_by_its_columns():
    """A change stored with the columns that it names alone is checked by these."""
    rows = stored(range(3))
    rows[2] = {"id": 1000, **change_of(1, 2).columns, "_op": OP_UPDATE, "_present": b"\x06"}
    tally = ChangeTally()
    tally.take(batch(rows), 0)
    assert tally.problems == []
    rows[2]["city"] = "elsewhere"
    tally = ChangeTally()
    tally.take(batch(rows), 0)
    assert tally.problems == ["offset 2: the content is not what was written"]
