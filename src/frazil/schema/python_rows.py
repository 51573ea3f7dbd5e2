"""Rows as dicts, also where Python's own types are coarser than a column's.

With pandas installed Arrow gives nanoseconds as its timestamps. Without it a value that is finer
than a microsecond has no Python form: it is cut to microseconds. Arrow has it in full.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from frazil.schema.columns import map_children

__all__ = ["coarse_type", "python_rows"]


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return rows as dicts; without pandas, nanoseconds are cut to microseconds."""
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
    """Return a type with microseconds where it has nanoseconds."""
    if pt.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pt.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pt.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    return map_children(kind, lambda field: field.with_type(coarse_type(field.type)))
