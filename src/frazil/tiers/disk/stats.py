"""The smallest and largest value of each column of a Parquet file, from its footer.

Values are what msgpack can hold: integers (dates, times and timestamps as their storage integers
in the column's own unit), floats, text, bytes, booleans; decimals are text. None means "not
known": it never excludes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ColumnRange", "RangeValue", "column_ranges", "group_integers"]

RangeValue = bool | int | float | str | bytes | None
COLUMNS_MAX: Final = 100
"""Ranges are kept for so many columns; the footer has those of all."""
CHARACTERS_MAX: Final = 64
_MILLIS: Final = 1000


class ColumnRange(msgspec.Struct, frozen=True, array_like=True):
    """No value of a column is below `low` or above `high`; `nulls` is how many are null.

    Both are a `RangeValue`, which msgspec cannot say: it knows no union of text and bytes.
    """

    low: Any = None
    high: Any = None
    nulls: int | None = None


def column_ranges(
    metadata: pq.FileMetaData, schema: pa.Schema, *, nan: Collection[str] = ()
) -> dict[str, ColumnRange]:
    """Return the ranges of a file's scalar columns, at most `COLUMNS_MAX` of them.

    Args:
        metadata: the file's footer.
        schema: the columns as they were written; the footer may have other units.
        nan: float columns with values that are not a number: statistics leave those out, while
            SQL sorts them above all others.
    """
    ranges: dict[str, ColumnRange] = {}
    leaf = 0
    for field in schema:
        leaves = _leaves(field.type)
        if leaves == 1 and not pt.is_nested(field.type) and len(ranges) < COLUMNS_MAX:
            found = _column_range(metadata, leaf, field.type)
            if field.name in nan:
                found = ColumnRange(found.low, None, found.nulls)
            ranges[field.name] = found
        leaf += leaves
    return ranges


def group_integers(metadata: pq.FileMetaData, leaf: int) -> list[tuple[int, int]]:
    """Return the smallest and largest value of an integer column for each row group.

    Raises:
        ValueError: if a row group does not tell.
    """
    found: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(leaf).statistics
        if statistics is None or not statistics.has_min_max:
            raise ValueError(f"row group {number} has no statistics")
        found.append((int(statistics.min_raw), int(statistics.max_raw)))
    return found


def _leaves(data_type: pa.DataType) -> int:
    """Return how many columns of the file a field is stored in."""
    if data_type.num_fields == 0:
        return 1
    return sum(_leaves(data_type.field(index).type) for index in range(data_type.num_fields))


def _column_range(metadata: pq.FileMetaData, leaf: int, data_type: pa.DataType) -> ColumnRange:
    low: RangeValue = None
    high: RangeValue = None
    nulls: int | None = 0
    known = True
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(leaf).statistics
        if statistics is None:
            return ColumnRange()
        if nulls is not None:
            nulls = nulls + statistics.null_count if statistics.has_null_count else None
        if not statistics.has_min_max:
            # Only nulls, or values too long to be kept.
            known = known and statistics.null_count == group.num_rows
            continue
        first, last = _bounds(statistics, data_type)
        low = first if low is None or first < low else low  # type: ignore[operator]
        high = last if high is None or last > high else high  # type: ignore[operator]
    if not known or low is None:
        return ColumnRange(None, None, nulls)
    return ColumnRange(_low(low), _high(high), nulls)


def _bounds(statistics: pq.Statistics, data_type: pa.DataType) -> tuple[RangeValue, RangeValue]:
    if pt.is_temporal(data_type):
        low, high = int(statistics.min_raw), int(statistics.max_raw)
        if pt.is_timestamp(data_type) and data_type.unit == "s":
            # Parquet has no seconds.
            return low // _MILLIS, high // _MILLIS
        return low, high
    return statistics.min, statistics.max


def _low(value: RangeValue) -> RangeValue:
    if isinstance(value, (str, bytes)):
        return value[:CHARACTERS_MAX]
    return _plain(value)


def _high(value: RangeValue) -> RangeValue:
    if isinstance(value, (str, bytes)):
        # A shortened text would be below the values it stands for.
        return value if len(value) <= CHARACTERS_MAX else None
    return _plain(value)


def _plain(value: object) -> RangeValue:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return str(value)
