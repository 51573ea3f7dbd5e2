"""Strict checks of one value against one column type, and the value as Arrow will take it.

A check returns the value it was given, or an equal one of the plain type (bytes for a memoryview,
float for an int in a float column, an int for one of NumPy's). It never rounds, truncates, parses or guesses: what does not
fit is refused with the column, what was expected and what came. None is the caller's business.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.schema.columns import type_name

__all__ = ["Check", "cell_check", "check_cell", "float_exact_max", "integer_range"]

Check = Callable[[object], object]

SHOWN_CHARACTERS_MAX: Final = 80
SHOWN_BITS_MAX: Final = 256
FLOAT32_MAX: Final = 3.4028234663852886e38
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US: Final = dt.timedelta(microseconds=1)
_NS_MAX_US: Final = (2**63 - 1) // 1000
_GRAIN_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def cell_check(field: pa.Field, *, path: str) -> Check:
    """Return the check for values (not None) of `field`, which errors call `path`."""
    data_type = field.type
    if pt.is_struct(data_type):
        return _struct_check(data_type, path=path)
    if pt.is_map(data_type):
        return _map_check(data_type, path=path)
    if pt.is_list(data_type):
        return _list_check(data_type, path=path)
    if pt.is_integer(data_type):
        return _integer_check(data_type, path=path)
    for is_type, make in _SCALARS:
        if is_type(data_type):
            return make(data_type, path)
    raise InvalidRequest("column type takes no row values", column=path, type=data_type)


def check_cell(check: Check, value: object, *, nullable: bool, path: str) -> object:
    """Return `value` checked; None passes in a nullable column only."""
    if value is not None:
        return check(value)
    if not nullable:
        raise InvalidRequest("column must not be null", column=path)
    return None


def integer_range(data_type: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    width: int = data_type.bit_width
    if pt.is_signed_integer(data_type):
        return -(1 << (width - 1)), (1 << (width - 1)) - 1
    return 0, (1 << width) - 1


def float_exact_max(data_type: pa.DataType) -> int:
    """Return the bound up to which every int has an exact float of this type."""
    return 1 << 24 if pt.is_float32(data_type) else 1 << 53


def _refuse(path: str, expected: str, got: object, *, why: str = "") -> NoReturn:
    facts: dict[str, object] = {}
    if isinstance(got, int) and got.bit_length() > SHOWN_BITS_MAX:
        # Python refuses to print an int of thousands of digits.
        facts = {"value_bits": got.bit_length()}
    elif isinstance(got, (int, float, str, Decimal, dt.date, dt.time)):
        facts = {"value": ascii(got)[:SHOWN_CHARACTERS_MAX]}
    raise InvalidRequest(
        why or "column value has the wrong type",
        column=path,
        expected=expected,
        got=type(got).__name__,
        **facts,
    )


def _whole_number(value: object, *, path: str, expected: str) -> int:
    """Return what is no int of Python's as one, if it is an integer of NumPy's."""
    if isinstance(value, np.integer):
        return int(value)
    _refuse(path, expected, value)


def _integer_check(data_type: pa.DataType, *, path: str) -> Check:
    least, greatest = integer_range(data_type)
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, int) or isinstance(value, bool):
            value = _whole_number(value, path=path, expected=expected)
        if not least <= value <= greatest:
            _refuse(path, f"{least}..{greatest}", value, why="column value is out of range")
        return int(value)

    return check


def _boolean_check(data_type: pa.DataType, path: str) -> Check:
    expected = type_name(data_type)

    def check(value: object) -> object:
        if isinstance(value, bool):
            return value
        # NumPy's bool is no subclass of Python's.
        return bool(value) if isinstance(value, np.bool_) else _refuse(path, expected, value)

    return check


def _float_check(data_type: pa.DataType, path: str) -> Check:
    exact_max = float_exact_max(data_type)
    narrow = bool(pt.is_float32(data_type))
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, float) and isinstance(value, np.floating):
            value = float(value)
        if isinstance(value, float):
            if narrow and math.isfinite(value) and abs(value) > FLOAT32_MAX:
                _refuse(path, expected, value, why="column value is out of range")
            return float(value)
        if not isinstance(value, int) or isinstance(value, bool):
            value = _whole_number(value, path=path, expected=expected)
        if abs(value) > exact_max:
            why = "integer is too large for an exact float, pass a float"
            _refuse(path, f"at most {exact_max}", value, why=why)
        return float(value)

    return check


def _string_check(data_type: pa.DataType, path: str) -> Check:
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, str):
            _refuse(path, expected, value)
        try:
            value.encode()
        except UnicodeEncodeError:
            _refuse(path, "valid UTF-8", value, why="column value has a lone surrogate")
        # A subclass may override anything; its plain text is what was checked.
        return str.__str__(value)

    return check


def _binary_check(data_type: pa.DataType, path: str) -> Check:
    width = data_type.byte_width if pt.is_fixed_size_binary(data_type) else -1
    expected = type_name(data_type)

    def check(value: object) -> object:
        if type(value) is not bytes:
            if not isinstance(value, (bytes, bytearray, memoryview)):
                _refuse(path, expected, value)
            value = bytes(value)
        if width >= 0 and len(value) != width:
            why = "column value has the wrong length"
            raise InvalidRequest(why, column=path, expected=expected, got_bytes=len(value))
        return value

    return check


def _date_check(data_type: pa.DataType, path: str) -> Check:
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
            _refuse(path, expected, value)
        return value

    return check


def _time_check(data_type: pa.DataType, path: str) -> Check:
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, dt.time):
            _refuse(path, expected, value)
        if value.tzinfo is not None:
            _refuse(path, "time without a zone", value)
        return value

    return check


def _timestamp_check(data_type: pa.DataType, path: str) -> Check:
    aware = data_type.tz is not None
    unit = data_type.unit
    grain_us = _GRAIN_US[unit]
    expected = f"{type_name(data_type)}, a datetime {'with' if aware else 'without'} a zone"
    plain_zone = dt.UTC if aware else None
    plain_unit = unit == "us"

    def check(value: object) -> object:
        if plain_unit and type(value) is dt.datetime and value.tzinfo is plain_zone:
            return value
        if not isinstance(value, dt.datetime) or (value.utcoffset() is not None) is not aware:
            _refuse(path, expected, value)
        if value.microsecond % grain_us:
            _refuse(path, expected, value, why=f"column counts in {unit}, the value is finer")
        if aware:
            # msgpack and Arrow take any zone, but only as long as the year is within 1..9999.
            try:
                value = value.astimezone(dt.UTC)
            except OverflowError:
                _refuse(path, expected, value, why="column value is out of range")
        if unit == "ns":
            instant = value if aware else value.replace(tzinfo=dt.UTC)
            if abs((instant - _EPOCH) // _US) > _NS_MAX_US:
                _refuse(path, "1677-09-22..2262-04-11", value, why="column value is out of range")
        return value

    return check


def _decimal_check(data_type: pa.DataType, path: str) -> Check:
    scale: int = data_type.scale
    whole_max: int = data_type.precision - scale
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, Decimal):
            if not isinstance(value, int) or isinstance(value, bool):
                value = _whole_number(value, path=path, expected=expected)
            if value.bit_length() > SHOWN_BITS_MAX:
                _refuse(path, expected, value, why="decimal has more digits than the column")
            value = Decimal(value)
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            _refuse(path, expected, value, why="decimal must be finite")
        whole_digits = len(digits) + exponent
        if whole_digits <= whole_max and -scale <= exponent <= 0 and type(value) is Decimal:
            return value
        if not any(digits):
            return Decimal(0)
        # Zeros behind the scale lose nothing: 1.500 fits a scale of 2.
        spare = max(0, -exponent - scale)
        if whole_digits > whole_max or any(digits[len(digits) - spare :] if spare else ()):
            _refuse(path, expected, value, why="decimal has more digits than the column")
        if spare:
            return Decimal((sign, digits[: len(digits) - spare], exponent + spare))
        return Decimal(value)

    return check


def _struct_check(data_type: pa.DataType, *, path: str) -> Check:
    checks = {
        field.name: (cell_check(field, path=f"{path}.{field.name}"), bool(field.nullable))
        for field in data_type
    }
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, Mapping):
            _refuse(path, expected, value)
        for name in value:
            if name not in checks:
                raise InvalidRequest("struct has no such field", column=path, field=name)
        return {
            name: check_cell(inner, value.get(name), nullable=nullable, path=f"{path}.{name}")
            for name, (inner, nullable) in checks.items()
        }

    return check


def _list_check(data_type: pa.DataType, *, path: str) -> Check:
    inner_path = f"{path}.item"
    inner = cell_check(data_type.value_field, path=inner_path)
    nullable = bool(data_type.value_field.nullable)
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)):
            _refuse(path, expected, value)
        return [check_cell(inner, item, nullable=nullable, path=inner_path) for item in value]

    return check


def _map_check(data_type: pa.DataType, *, path: str) -> Check:
    key_check = cell_check(data_type.key_field, path=f"{path}.key")
    value_path = f"{path}.value"
    value_check = cell_check(data_type.item_field, path=value_path)
    nullable = bool(data_type.item_field.nullable)
    expected = type_name(data_type)

    def check(value: object) -> object:
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, (list, tuple)):
            _refuse(path, expected, value)
        checked: list[tuple[object, object]] = []
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                _refuse(path, "pairs of key and value", pair)
            key = check_cell(key_check, pair[0], nullable=False, path=f"{path}.key")
            item = check_cell(value_check, pair[1], nullable=nullable, path=value_path)
            checked.append((key, item))
        if len({key for key, _ in checked}) != len(checked):
            raise InvalidRequest("map has a key twice", column=path)
        return checked

    return check


_SCALARS: Final[
    tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, str], Check]], ...]
] = (
    (pt.is_boolean, _boolean_check),
    (pt.is_floating, _float_check),
    (pt.is_string, _string_check),
    (pt.is_large_string, _string_check),
    (pt.is_binary, _binary_check),
    (pt.is_large_binary, _binary_check),
    (pt.is_fixed_size_binary, _binary_check),
    (pt.is_date32, _date_check),
    (pt.is_time64, _time_check),
    (pt.is_timestamp, _timestamp_check),
    (pt.is_decimal, _decimal_check),
)
