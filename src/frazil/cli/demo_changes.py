"""The changes of the guided run: what each writer does to its keys, and the rows that must be. Pure.

A writer goes round its keys. To each it does four things: it sets the whole row, updates two
columns, updates another two, and in the end updates again or, every third time, deletes the row. So
the number of a writer's next change tells all of its rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import attrs

from frazil.cli.demo_records import CITIES, Fields, Tally
from frazil.model import OP_DELETE, OP_UPDATE, OP_UPSERT

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["CHANGE_COLUMNS", "ChangeTally", "DemoChange", "change_of", "rows_of"]

CHANGE_COLUMNS: Final = {
    "id": "long",
    "number": "long not null",
    "city": "string",
    "quantity": "long",
}
KEYS: Final = 64
"""Keys of one writer."""
WRITER_KEYS: Final = 1000
"""The first key of each writer is a multiple of it."""
STEPS: Final = 4
DELETE_EVERY: Final = 3

_OPS: Final = {"upsert": OP_UPSERT, "update": OP_UPDATE, "delete": OP_DELETE}


class DemoChange(NamedTuple):
    """One change: the operation, the key, and the columns that it names."""

    op: Literal["upsert", "update", "delete"]
    key: int
    columns: dict[str, Any]


def change_of(writer: int, number: int) -> DemoChange:
    """Return a writer's change of a number."""
    turn, step = divmod(number, STEPS)
    key = writer * WRITER_KEYS + turn % KEYS
    city = CITIES[(turn + step) % len(CITIES)]
    quantity = number * 7 % 100
    if step == 0:
        row = {"id": key, "number": number, "city": city, "quantity": quantity}
        return DemoChange("upsert", key, row)
    if step == STEPS - 1 and turn % DELETE_EVERY == 0:
        return DemoChange("delete", key, {})
    changed: dict[str, Any] = {"city": city} if step == 2 else {"quantity": quantity}
    return DemoChange("update", key, {"number": number, **changed})


def row_behind(writer: int, number: int) -> dict[str, Any] | None:
    """Return the row of the changed key behind a change, None if it is deleted."""
    row: dict[str, Any] | None = None
    for each in range(number - number % STEPS, number + 1):
        change = change_of(writer, each)
        row = None if change.op == "delete" else {**(row or {}), **change.columns}
    return row


def rows_of(writer: int, number_next: int) -> dict[int, dict[str, Any] | None]:
    """Return what each key of a writer must be before its next change; None: there is no row."""
    rows: dict[int, dict[str, Any] | None] = {
        writer * WRITER_KEYS + slot: None for slot in range(KEYS)
    }
    first = max(0, (number_next - 1) // STEPS - KEYS + 1)
    for turn in range(first, (number_next + STEPS - 1) // STEPS):
        last = min(turn * STEPS + STEPS, number_next) - 1
        rows[change_of(writer, last).key] = row_behind(writer, last)
    return rows


@attrs.define
class ChangeTally(Tally):
    """What reading the changes back found. A delete has no number: it is the next of its writer."""

    def _fields(self, batch: pa.RecordBatch) -> Iterator[Fields | None]:
        for row in batch.to_pylist():
            writer = row["id"] // WRITER_KEYS
            number = row["number"]
            if row["_op"] == OP_DELETE:
                if writer not in self.last:
                    yield None
                    continue
                number = self.last[writer] + 1
            yield writer, number, _fits(row, writer, number)


def _fits(row: dict[str, Any], writer: int, number: int) -> bool:
    change = change_of(writer, number)
    if row["id"] != change.key or row["_op"] != _OPS[change.op]:
        return False
    if change.op == "delete":
        return True
    # A change that was stored with the columns it names alone has nulls in the others.
    expected = row_behind(writer, number) if row["_present"] is None else change.columns
    return expected is not None and all(row[name] == value for name, value in expected.items())
