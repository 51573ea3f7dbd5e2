"""Casts of constants that Python can do exactly as DuckDB does; all others are left to it.

Texts count only in the one form that DuckDB itself writes: whether it then compares texts or
values makes no difference.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

__all__ = ["NOT_CAST", "NotCast", "cast_value", "text_value"]

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", re.ASCII)
_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{0,5}[1-9])?", re.ASCII
)
_ZONE: Final = "+00"
_BITS: Final = {
    "TINYINT": (True, 8),
    "SMALLINT": (True, 16),
    "INTEGER": (True, 32),
    "BIGINT": (True, 64),
    "UTINYINT": (False, 8),
    "USMALLINT": (False, 16),
    "UINTEGER": (False, 32),
    "UBIGINT": (False, 64),
}


class NotCast:
    """DuckDB must do it: of the value nothing is known here."""


NOT_CAST: Final = NotCast()


def cast_value(value: Any, type_id: str) -> Any:
    """Return a constant cast to a type of SQL, `NOT_CAST` where only DuckDB knows."""
    if value is None:
        return None
    if type_id in _BITS:
        return _integer(value, *_BITS[type_id])
    if type_id == "DATE":
        return value if type(value) is dt.date else _text_date(value)
    if type_id == "TIMESTAMP":
        is_local = type(value) is dt.datetime and value.tzinfo is None
        return value if is_local else _text_timestamp(value)
    if type_id == "TIMESTAMP WITH TIME ZONE":
        is_zoned = type(value) is dt.datetime and value.tzinfo is not None
        return value if is_zoned else _text_zoned(value)
    return NOT_CAST


def text_value(text: str, data_type: pa.DataType) -> Any:
    """Return the value that a text stands for when a column is compared with it."""
    if pt.is_integer(data_type):
        return int(text) if _INTEGER.fullmatch(text) else NOT_CAST
    if pt.is_date32(data_type):
        return _text_date(text)
    if pt.is_timestamp(data_type) and data_type.unit == "us":
        return _text_timestamp(text) if data_type.tz is None else _text_zoned(text)
    return NOT_CAST


def _integer(value: Any, signed: bool, bits: int) -> Any:  # noqa: FBT001 - from the table alone
    if type(value) is str and _INTEGER.fullmatch(value):
        value = int(value)
    if type(value) is not int:
        return NOT_CAST
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    # DuckDB refuses what does not fit: it shall say so.
    return value if low <= value < high else NOT_CAST


def _text_date(text: Any) -> Any:
    if type(text) is not str or not _DATE.fullmatch(text):
        return NOT_CAST
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        return NOT_CAST


def _text_timestamp(text: Any) -> Any:
    if type(text) is not str or not _TIMESTAMP.fullmatch(text):
        return NOT_CAST
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return NOT_CAST


def _text_zoned(text: Any) -> Any:
    if type(text) is not str or not text.endswith(_ZONE):
        return NOT_CAST
    found = _text_timestamp(text.removesuffix(_ZONE))
    return found.replace(tzinfo=dt.UTC) if isinstance(found, dt.datetime) else NOT_CAST
