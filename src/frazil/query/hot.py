"""Records in memory as one Arrow table for DuckDB: the batches as they are, nothing is copied.

Offsets, times, parts and marks are made only when the statement names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.query.arrow_scan import as_scanned, scanned_type
from frazil.query.pruning import Known
from frazil.query.views import TIME_TYPE, ViewColumn, column_id

if TYPE_CHECKING:
    from frazil.query.arrow_scan import ScanRules
    from frazil.query.pruning import Limits
    from frazil.query.sources import ChunkView, TopicSnapshot

__all__ = ["LIVE", "OPERATION", "HotChunk", "hot_table", "kept_chunks", "rows_table"]

LIVE: Final = "_live"
OPERATION: Final = "_op"
_OPERATION_TYPE: Final = pa.int8()


class HotChunk(NamedTuple):
    """A chunk and the part of the topic that it belongs to."""

    chunk: ChunkView
    part: int | None


def kept_chunks(snapshots: Sequence[TopicSnapshot], limits: Limits) -> list[HotChunk]:
    """Return the chunks that can have rows within the limits, in order."""
    return [
        HotChunk(chunk, snapshot.part)
        for snapshot in snapshots
        for chunk in snapshot.chunks
        if limits.may_match(_ChunkBounds(chunk, snapshot.part).of)
    ]


def hot_table(
    chunks: Sequence[HotChunk],
    columns: Sequence[ViewColumn],
    *,
    operation: bool,
    live: bool,
    rules: ScanRules,
) -> pa.Table:
    """Return the columns of the chunks; `operation` adds the coded one, `live` the marks.

    `rules` say which of its timestamps are numbers (`arrow_scan.py`).
    """
    visible = [column for column in columns if column.name != OPERATION]
    fields = [pa.field(column.name, scanned_type(column.type, rules)) for column in visible]
    if operation:
        fields.append(pa.field(OPERATION, _OPERATION_TYPE))
    if live:
        fields.append(pa.field(LIVE, pa.bool_()))
    schema = pa.schema(fields)
    batches = []
    places = _Places(visible)
    for chunk, part in chunks:
        found = places.of(chunk.batch.schema)
        arrays = [
            as_scanned(
                _system_column(chunk, part, column.name)
                if column.field is None
                else _own_column(chunk.batch, place, column.type),
                rules,
            )
            for column, place in zip(visible, found, strict=True)
        ]
        if operation:
            arrays.append(chunk.batch.column(OPERATION))
        if live:
            arrays.append(pa.array(chunk.live))
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return pa.Table.from_batches(batches, schema=schema)


def rows_table(
    rows: Sequence[tuple[int | None, Any]], columns: Sequence[ViewColumn], *, rules: ScanRules
) -> pa.Table:
    """Return rows that were looked up by key, with the part each was found in, as a table."""
    arrays = []
    for column in columns:
        if column.name == "_part":
            values = [part for part, _ in rows]
        else:
            values = [row[column.name] for _, row in rows]
        arrays.append(as_scanned(pa.array(values, column.type), rules))
    return pa.Table.from_arrays(arrays, names=[column.name for column in columns])


def _system_column(chunk: ChunkView, part: int | None, name: str) -> pa.Array:
    rows = chunk.batch.num_rows
    if name == "_offset":
        return pa.array(np.arange(chunk.offset, chunk.offset + rows, dtype=np.int64))
    if name == "_time":
        counts = [count for count, _ in chunk.times]
        times = np.repeat(np.array([us for _, us in chunk.times], dtype=np.int64), counts)
        return pa.array(times).view(TIME_TYPE)
    assert name == "_part"
    return pa.repeat(pa.scalar(part, pa.int32()), rows)


def _own_column(batch: pa.RecordBatch, place: int, data_type: pa.DataType) -> pa.Array:
    """Return a column; it is null in a batch from before it was added."""
    if place < 0:
        return pa.nulls(batch.num_rows, data_type)
    array = batch.column(place)
    return array if array.type.equals(data_type) else array.cast(data_type)


class _Places:
    """Where the columns stand in a batch; most batches of a topic have one schema."""

    def __init__(self, columns: Sequence[ViewColumn]) -> None:
        self._columns = columns
        self._schema: pa.Schema | None = None
        self._places: list[int] = []

    def of(self, schema: pa.Schema) -> list[int]:
        if self._schema is None or not schema.equals(self._schema, check_metadata=True):
            self._schema = schema
            self._places = [
                -1 if column.field is None else _place_of(schema, column.field)
                for column in self._columns
            ]
        return self._places


def _place_of(schema: pa.Schema, field: pa.Field) -> int:
    """Find a field by id where both have one, else by name."""
    place: int = schema.get_field_index(field.name)
    number = column_id(field)
    if number is None:
        return place
    if place >= 0 and column_id(schema.field(place)) in {number, None}:
        return place
    for index, other in enumerate(schema):
        if column_id(other) == number:
            return index
    return -1


class _ChunkBounds:
    """The least and greatest values in a chunk."""

    def __init__(self, chunk: ChunkView, part: int | None) -> None:
        self._chunk = chunk
        self._part = part

    def of(self, column: ViewColumn) -> Known | None:
        chunk = self._chunk
        if column.field is not None:
            return self._own(column.field)
        if column.name == "_offset":
            last = chunk.offset + chunk.batch.num_rows - 1
            return Known(chunk.offset, last, column.type, nulls=0)
        if column.name == "_time" and chunk.times:
            times = [us for _, us in chunk.times]
            return Known(min(times), max(times), column.type, nulls=0)
        if column.name == "_part":
            return Known(self._part, self._part, column.type)
        return None

    def _own(self, field: pa.Field) -> Known | None:
        schema = self._chunk.batch.schema
        if self._chunk.bounds is None:
            return None
        place = _place_of(schema, field)
        if place < 0:
            return None
        found = self._chunk.bounds(schema.field(place).name)
        return None if found is None else Known(*found, schema.field(place).type)
