"""A rejected record as text: all of it, so that it can be published again.

JSON in UTF-8, one object with the topic's columns by name, without nulls. Values that JSON would
change are encoded:

    timestamps    a number, in microseconds; in milliseconds for columns of seconds or milliseconds
    date          a number, the days since 1970
    decimal       text with all its digits
    binary        base64
    float         a number, or the text NaN, Infinity, -Infinity
    map           a list of {"key": ..., "value": ...}, so that keys keep their type
"""

from __future__ import annotations

import base64
import decimal
import functools
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import CorruptionError

__all__ = ["ENCODING", "decode_original"]

ENCODING: Final = "json"
_UNREADABLE: Final = (
    msgspec.MsgspecError,
    ArithmeticError,
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
)


def decode_original(data: bytes, schema: pa.Schema) -> dict[str, Any]:
    """Return a record's values by column, as Arrow takes them for the topic's columns.

    Raises:
        CorruptionError: if it is not a record of these columns.
    """
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
        return {field.name: _value(found.get(field.name), field.type) for field in schema}
    except _UNREADABLE as error:
        raise CorruptionError("original of a reject cannot be read", reason=error) from error


def _value(value: Any, data_type: pa.DataType) -> Any:
    return None if value is None else _read(data_type, value)


@functools.singledispatch
def _read(data_type: pa.DataType, value: Any) -> Any:
    for test, read in _READERS:
        if test(data_type):
            return read(value, data_type)
    return value


@_read.register(pa.StructType)
def _(data_type: Any, value: Any) -> Any:
    return {child.name: _value(value.get(child.name), child.type) for child in data_type}


@_read.register(pa.MapType)
def _(data_type: Any, value: Any) -> Any:
    key, item = data_type.key_type, data_type.item_type
    return [(_value(each["key"], key), _value(each.get("value"), item)) for each in value]


@_read.register(pa.ListType)
def _(data_type: Any, value: Any) -> Any:
    return [_value(each, data_type.value_type) for each in value]


def _timestamp(value: int, data_type: pa.DataType) -> int:
    return value // 1000 if data_type.unit == "s" else value


def _is_binary(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
        or pt.is_fixed_size_binary(data_type)
    )


_READERS: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...]
] = (
    (pt.is_timestamp, _timestamp),
    (pt.is_decimal, lambda value, _type: decimal.Decimal(value)),
    (pt.is_uint64, lambda value, _type: int(value)),
    (pt.is_floating, lambda value, _type: float(value)),
    (_is_binary, lambda value, _type: base64.b64decode(value, validate=True)),
)
