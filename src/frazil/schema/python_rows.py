"""Rows as dicts, including columns with types finer than Python's own.

With pandas installed Arrow returns nanoseconds as its timestamps. Without it, a value finer than a
microsecond has no Python form: it is truncated to microseconds. Arrow keeps it in full.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from frazil.schema.columns import map_children

__all__ = ["coarse_type", "python_rows"]


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as dicts; without pandas, nanoseconds are truncated to microseconds."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except ValueError:
        columns = [_cut(column) for column in batch.columns]
        rows = pa.Table.from_arrays(columns, names=batch.schema.names).to_pylist()
    return rows


def _cut(column: Any) -> Any:
    coarse = coarse_type(column.type)
    return column if coarse == column.type else column.cast(coarse, safe=False)


def coarse_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with microseconds in place of nanoseconds."""
    if pt.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pt.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pt.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    return map_children(kind, lambda field: field.with_type(coarse_type(field.type)))
