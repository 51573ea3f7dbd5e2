"""The change feed of a topic: each change with its row before and after."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE, OP_NAMES, OP_UPSERT
from frazil.schema import KeyShape, positions_of
from frazil.schema.python_rows import python_rows
from frazil.topic.reading import Reader
from frazil.units import is_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.log import Batch
    from frazil.schema import Key
    from frazil.topic.runtime import TopicRuntime

    Row = dict[str, Any]

KEYS_MAX: Final = 100_000
"""The newest rows of this number of keys are cached; other keys are looked up again."""


class ChangeFeed:
    """Iterates over a topic's changes in offset order, up to the head at its start."""

    def __init__(self, runtime: TopicRuntime, *, from_offset: Any, limit: int | None) -> None:
        if not is_whole(from_offset):
            raise InvalidRequest("from_offset must be an offset", got=type(from_offset).__name__)
        self._runtime = runtime
        self._lookup: Any = None if runtime.tiers is None else runtime.tiers.lookup
        self._keyed = bool(runtime.state.spec.primary_key)
        self._rows: dict[Key, Row | None] = {}
        self._names: list[str] = []
        self._reader = Reader(
            runtime, start=from_offset, follow=False, limit=limit, bytes_max=None, timeout_s=None
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._reader:
            for batch in self._reader:
                yield from self._changes(batch)

    def _changes(self, batch: Batch) -> Iterator[dict[str, Any]]:
        # Use the columns that the batch was read with: newer ones may exist by now.
        fields = list(batch.data.schema)
        schema = pa.schema(fields[:-2] if self._keyed else fields)
        names = schema.names
        if names != self._names:
            self._rows.clear()
            self._names = names
        times = [us for count, us in batch.times for _each in range(count)]
        rows = python_rows(batch.data.select(names))
        if self._keyed:
            yield from self._keyed_changes(batch, schema, times, rows)
            return
        for number, row in enumerate(rows):
            yield _change(batch.offset + number, times[number], "append", None, None, row)

    def _keyed_changes(
        self, batch: Batch, schema: pa.Schema, times: list[int], rows: list[Row]
    ) -> Iterator[dict[str, Any]]:
        shape = KeyShape(schema, self._runtime.state.spec.primary_key)
        keys = shape.keys(batch.data)
        ops = batch.data.column("_op").to_pylist()
        bitmaps = batch.data.column("_present").to_pylist()
        for number, row in enumerate(rows):
            offset, op, present = batch.offset + number, ops[number], bitmaps[number]
            before = self._before(keys[number], offset, schema)
            after = _after(op, present, before, row, schema.names)
            self._remember(keys[number], after)
            key = {name: row[name] for name in shape.names}
            yield _change(offset, times[number], OP_NAMES[op], key, before, after)

    def _before(self, key: Key, offset: int, schema: pa.Schema) -> Row | None:
        if key in self._rows or self._lookup is None:
            return self._rows.get(key)
        row: Row | None = self._lookup.row_before(key, offset, schema)
        return row

    def _remember(self, key: Key, row: Row | None) -> None:
        if len(self._rows) >= KEYS_MAX:
            self._rows.clear()
        self._rows[key] = row


def _change(
    offset: int, time_us: int, op: str, key: Row | None, before: Row | None, after: Row | None
) -> dict[str, Any]:
    time = dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC)
    return {"offset": offset, "time": time, "op": op, "key": key, "before": before, "after": after}


def _after(
    op: int, present: bytes | None, before: Row | None, row: Row, names: list[str]
) -> Row | None:
    """Fold one change."""
    if op == OP_DELETE:
        return None
    if present is None:
        return row
    if before is None:
        return row if op == OP_UPSERT else None
    named = [names[position] for position in positions_of(present)]
    return {**before, **{name: row[name] for name in named}}
