"""What DuckDB 1.5.5 must not filter inside of a scan, and how it is kept from it.

DuckDB hands filters to the scans of Arrow tables and Parquet files, and some of them lose rows:

- A list of values, or those of a join, reach Arrow as Python values. On timestamps with a time
  zone this fails unless pytz is installed, on nanoseconds it finds too few rows. Where a statement
  could lead to such a filter the scan gives numbers, and SQL makes timestamps of them.
- NaN is the greatest number to DuckDB, but no comparison holds for it in Arrow, and statistics of
  Parquet leave it out. Where a statement could filter, a sign that changes nothing stands before
  floating-point columns: DuckDB then compares them itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from frazil.query.views import quoted_name

if TYPE_CHECKING:
    from frazil.query.parse import Node

__all__ = [
    "EVERY_FILTER",
    "ScanRules",
    "as_scanned",
    "float_sign",
    "scan_rules",
    "scanned",
    "scanned_type",
]

_MICROSECONDS: Final = pa.timestamp("us", "UTC")
_JOINS: Final = frozenset(
    {
        *("JOIN", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "SHOW_REF", "PIVOT"),
        *("SUBQUERY", "WINDOW", "COMPARE_IN", "COMPARE_NOT_IN"),
    }
)
_FILTERS: Final = frozenset(
    {*_JOINS, "COMPARISON", "BETWEEN", "LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"}
)


class ScanRules(NamedTuple):
    """Which filters a statement can lead to: those of lists and joins, and any at all."""

    joins: bool
    filters: bool


EVERY_FILTER: Final = ScanRules(joins=True, filters=True)


def scan_rules(statement: Node) -> ScanRules:
    """Find out what a statement consists of."""
    joins = filters = False
    todo: list[Any] = [statement]
    while todo and not (joins and filters):
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            kinds = {kind for kind in (item.get("type"), item.get("class")) if type(kind) is str}
            joins = joins or not kinds.isdisjoint(_JOINS)
            filters = filters or not kinds.isdisjoint(_FILTERS)
            todo += item.values()
    return ScanRules(joins, filters)


def _is_number(data_type: pa.DataType, rules: ScanRules) -> bool:
    """Tell whether timestamps are scanned as numbers."""
    if not pt.is_timestamp(data_type):
        return False
    if data_type.tz is None:
        return bool(data_type.unit == "ns")
    return rules.joins or data_type.unit != "us"


def scanned_type(data_type: pa.DataType, rules: ScanRules) -> pa.DataType:
    """Return the type that a column has in the scan of an Arrow table."""
    return pa.int64() if _is_number(data_type, rules) else data_type


def as_scanned(array: pa.Array, rules: ScanRules) -> pa.Array:
    """Return an array as the scan of an Arrow table gives it."""
    if not _is_number(array.type, rules):
        return array
    if array.type.tz is not None and array.type.unit != "us":
        array = array.cast(_MICROSECONDS, safe=False)
    return array.view(pa.int64())


def scanned(name: str, data_type: pa.DataType, rules: ScanRules) -> str:
    """Return the SQL that makes a column of what the scan of an Arrow table gives."""
    column = quoted_name(name)
    if _is_number(data_type, rules):
        function = "make_timestamp_ns" if data_type.tz is None else "make_timestamptz"
        return f"{function}({column}) AS {column}"
    sign = float_sign(data_type, rules)
    return f"{sign}{column} AS {column}" if sign else column


def float_sign(data_type: pa.DataType, rules: ScanRules) -> str:
    """Return what must stand before a column so that its comparisons are DuckDB's own."""
    return "+" if rules.filters and pt.is_floating(data_type) else ""
