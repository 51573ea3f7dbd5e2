"""Converts dict rows to validated tuples, to Arrow batches, and to a compact form of small frames.

One `RowEncoder` serves one schema version. On the fast path msgspec checks names, types, ranges and
nulls in C while it converts the dict into a struct; encoding the row proves that every string is
valid UTF-8 (0.5 µs for five columns in all). A frame of rows stores the encoded row, so that no
work is done twice. The slow path checks rows refused by the fast path again, value by value: it
accepts the rare legal cases (NaN, huge floats) and words the error.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from struct import pack as pack_struct
from types import GenericAlias
from typing import Annotated, Any, Final, NoReturn

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from msgspec.structs import astuple

from frazil.errors import CorruptionError, InvalidRequest
from frazil.schema.columns import LIMITS_DEFAULT, IngestLimits, is_bytes, is_text, type_name

__all__ = [
    "Check",
    "Row",
    "RowEncoder",
    "cell_check",
    "check_cell",
    "float_exact_max",
    "integer_range",
    "join_packed",
]

Check = Callable[[object], object]

SHOWN_CHARACTERS_MAX: Final = 80
SHOWN_BITS_MAX: Final = 256
FLOAT32_MAX: Final = 3.4028234663852886e38
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US: Final = dt.timedelta(microseconds=1)
_NS_MAX_US: Final = (2**63 - 1) // 1000
_GRAIN_US: Final = {"s": 1_000_000, "ms": 1_000, "us": 1, "ns": 1}


def cell_check(field: pa.Field, *, path: str) -> Check:
    """Return the check for values (not None) of `field`; `path` names it in errors."""
    data_type = field.type
    for is_type, make in _MADE:
        if is_type(data_type):
            return make(data_type, path)
    for is_type, check in _CHECKS:
        if is_type(data_type):
            return partial(check, data_type, path)
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


def _whole_number(value: object, data_type: pa.DataType, path: str) -> int:
    """Return an integer of Python or NumPy as a Python int."""
    if (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, np.integer):
        return int(value)
    _refuse(path, type_name(data_type), value)


def _integer_check(data_type: pa.DataType, path: str) -> Check:
    least, greatest = integer_range(data_type)

    def check(value: object) -> object:
        number = value if type(value) is int else _whole_number(value, data_type, path)
        if not least <= number <= greatest:
            _refuse(path, f"{least}..{greatest}", value, why="column value is out of range")
        return number

    return check


def _check_boolean(data_type: pa.DataType, path: str, value: object) -> object:
    # NumPy's bool is no subclass of Python's.
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    _refuse(path, type_name(data_type), value)


def _check_float(data_type: pa.DataType, path: str, value: object) -> object:
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if pt.is_float32(data_type) and math.isfinite(number) and abs(number) > FLOAT32_MAX:
            _refuse(path, type_name(data_type), value, why="column value is out of range")
        return number
    whole = _whole_number(value, data_type, path)
    exact_max = float_exact_max(data_type)
    if abs(whole) > exact_max:
        why = "integer is too large for an exact float, pass a float"
        _refuse(path, f"at most {exact_max}", value, why=why)
    return float(whole)


def _check_string(data_type: pa.DataType, path: str, value: object) -> object:
    if not isinstance(value, str):
        _refuse(path, type_name(data_type), value)
    try:
        value.encode()
    except UnicodeEncodeError:
        _refuse(path, "valid UTF-8", value, why="column value has a lone surrogate")
    # A subclass may override anything; only its plain text was checked.
    return str.__str__(value)


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


def _check_date(data_type: pa.DataType, path: str, value: object) -> object:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        _refuse(path, type_name(data_type), value)
    return value


def _check_time(data_type: pa.DataType, path: str, value: object) -> object:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        _refuse(path, f"{type_name(data_type)} without a zone", value)
    return value


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
            whole = _whole_number(value, data_type, path)
            if whole.bit_length() > SHOWN_BITS_MAX:
                _refuse(path, expected, value, why="decimal has more digits than the column")
            value = Decimal(whole)
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            _refuse(path, expected, value, why="decimal must be finite")
        whole_digits = len(digits) + exponent
        if whole_digits <= whole_max and -scale <= exponent <= 0 and type(value) is Decimal:
            return value
        if not any(digits):
            return Decimal(0)
        # Zeros after the scale lose nothing: 1.500 fits a scale of 2.
        spare = max(0, -exponent - scale)
        if whole_digits > whole_max or any(digits[len(digits) - spare :] if spare else ()):
            _refuse(path, expected, value, why="decimal has more digits than the column")
        if spare:
            return Decimal((sign, digits[: len(digits) - spare], exponent + spare))
        return Decimal(value)

    return check


def _struct_check(data_type: pa.DataType, path: str) -> Check:
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


def _list_check(data_type: pa.DataType, path: str) -> Check:
    inner_path = f"{path}.item"
    inner = cell_check(data_type.value_field, path=inner_path)
    nullable = bool(data_type.value_field.nullable)
    expected = type_name(data_type)

    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)):
            _refuse(path, expected, value)
        return [check_cell(inner, item, nullable=nullable, path=inner_path) for item in value]

    return check


def _map_check(data_type: pa.DataType, path: str) -> Check:
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


_TypeTest = Callable[[pa.DataType], bool]
_MADE: Final[tuple[tuple[_TypeTest, Callable[[pa.DataType, str], Check]], ...]] = (
    (pt.is_struct, _struct_check),
    (pt.is_map, _map_check),
    (pt.is_list, _list_check),
    (pt.is_integer, _integer_check),
    (is_bytes, _binary_check),
    (pt.is_timestamp, _timestamp_check),
    (pt.is_decimal, _decimal_check),
)
"""The factory of each type's check, for many values."""
_CHECKS: Final[tuple[tuple[_TypeTest, Callable[[pa.DataType, str, object], object]], ...]] = (
    (pt.is_boolean, _check_boolean),
    (pt.is_floating, _check_float),
    (is_text, _check_string),
    (pt.is_date32, _check_date),
    (pt.is_time64, _check_time),
)


Row = tuple[object, ...]

# Above this many columns a dict with another order than the schema's would make msgspec's
# search for each name quadratic; such rows are put in order first.
WIDE_COLUMNS: Final = 32
_FAST_ERRORS: Final = (msgspec.ValidationError, UnicodeEncodeError, OverflowError, TypeError)
# Characters that msgspec refuses in a field's name, because its JSON would need escapes.
_FIELD_REFUSED: Final = re.compile(r'["\\\x00-\x1f]')
_pack_value = msgspec.msgpack.Encoder().encode
_convert = msgspec.convert


class RowEncoder:
    """Validate and encode the rows of one schema version. Safe to share between threads."""

    __slots__ = (
        "_bytes_max",
        "_checks",
        "_columns",
        "_decoder",
        "_floats",
        "_names",
        "_struct",
        "_texts",
        "_types",
        "_wide",
        "packable",
        "schema",
    )

    def __init__(self, schema: pa.Schema, limits: IngestLimits = LIMITS_DEFAULT) -> None:
        self.schema = schema
        self._bytes_max = limits.message_bytes_max
        self._names: tuple[str, ...] = tuple(schema.names)
        self._types: list[pa.DataType] = list(schema.types)
        self._wide = len(self._names) > WIDE_COLUMNS
        self._columns = {
            field.name: (cell_check(field, path=field.name), bool(field.nullable))
            for field in schema
        }
        self._struct = _row_struct(schema)
        # The columns that the struct does not check.
        self._checks: tuple[tuple[int, str, Check, bool], ...] = tuple(
            (index, field.name, *self._columns[field.name])
            for index, field in enumerate(schema)
            if _fast_annotation(field.type) is Any
        )
        self._floats: tuple[str, ...] = tuple(
            field.name for field in schema if pt.is_floating(field.type)
        )
        self._texts: tuple[int, ...] = tuple(
            index
            for index, data_type in enumerate(schema.types)
            if _fast_annotation(data_type) is str
        )
        self.packable = not any(pt.is_nested(data_type) for data_type in schema.types)
        self._decoder: msgspec.msgpack.Decoder[list[Row]] | None = (
            msgspec.msgpack.Decoder(_packed_type(schema)) if self.packable else None
        )

    def values(self, row: Mapping[str, object]) -> Row:
        """Return the row's values in column order, each proven to fit its column.

        Raises:
            InvalidRequest: with the column, the expected and the given value; or if the row is
                larger than the limit.
        """
        return self.encode(row)[0]

    def encode(self, row: Mapping[str, object]) -> tuple[Row, bytes]:
        """Return the results of `values` and `pack` for the cost of one of them."""
        try:
            struct = self._struct
            if struct is None:
                raise TypeError(self._names)
            if self._wide:
                row = self._ordered(row)
            values = astuple(_convert(row, struct))
            for name in self._floats:
                # A decimal is the one value that msgspec converts and the slow path refuses.
                if type(row.get(name)) is Decimal:
                    raise TypeError(name)
            for index in self._texts:
                text = values[index]
                if type(text) is not str and text is not None:
                    # For an enum member msgspec keeps the member, the slow path its text.
                    raise TypeError(index)
            if self._checks:
                values = self._checked(values)
            packed = _pack_value(values)
        except _FAST_ERRORS:
            values = self._slow(row)
            packed = self._pack_slow(values)
        if len(packed) > self._bytes_max:
            raise InvalidRequest("row is too large", bytes=len(packed), bytes_max=self._bytes_max)
        return values, packed

    def pack(self, values: Row) -> bytes:
        """Encode validated values in the compact form, one msgpack array."""
        return _pack_value(values)

    def unpack_rows(self, data: bytes | bytearray | memoryview) -> list[Row]:
        """Decode the output of `join_packed` for rows of this schema.

        Raises:
            CorruptionError: if the bytes are not such rows.
        """
        if self._decoder is None:
            raise InvalidRequest("nested columns have no compact form, use Arrow")
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise CorruptionError(
                "packed rows do not fit their schema", bytes=len(data), cause=error
            ) from error

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return validated rows as one Arrow batch of the schema."""
        if not rows:
            empty = [pa.array([], data_type) for data_type in self._types]
            return pa.RecordBatch.from_arrays(empty, schema=self.schema)
        array = pa.array
        columns = zip(*rows, strict=True)
        arrays = [
            array(column, data_type) for column, data_type in zip(columns, self._types, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _ordered(self, row: Mapping[str, object]) -> Mapping[str, object]:
        if type(row) is not dict or tuple(row) == self._names:
            return row
        ordered = {name: row[name] for name in self._names if name in row}
        return ordered if len(ordered) == len(row) else row

    def _checked(self, values: Row) -> Row:
        changed: list[object] | None = None
        for index, name, check, nullable in self._checks:
            value = values[index]
            if value is None:
                if not nullable:
                    # The slow path distinguishes a missing column from a null.
                    raise TypeError(name)
                continue
            checked = check(value)
            if checked is not value:
                if changed is None:
                    changed = list(values)
                changed[index] = checked
        return values if changed is None else tuple(changed)

    def _slow(self, row: Mapping[str, object]) -> Row:
        if not isinstance(row, Mapping):
            raise InvalidRequest("row must be a dict", got=type(row).__name__)
        for name in row:
            if name not in self._columns:
                raise self.unknown(name)
        values: list[object] = []
        for name, (check, nullable) in self._columns.items():
            if name not in row and not nullable:
                raise InvalidRequest("column is missing and must not be null", column=name)
            values.append(check_cell(check, row.get(name), nullable=nullable, path=name))
        return tuple(values)

    def _pack_slow(self, values: Row) -> bytes:
        try:
            return _pack_value(values)
        except (OverflowError, UnicodeEncodeError, TypeError) as error:
            # A subclass of a date, say, may be finer than its column.
            raise InvalidRequest("row does not fit the topic's columns", error=error) from error

    def unknown(self, name: object) -> InvalidRequest:
        """Return the error for an unknown column name; it has the nearest known name."""
        if not isinstance(name, str):
            return InvalidRequest("column name must be a string", got=type(name).__name__)
        near = difflib.get_close_matches(name, self._names, n=1)
        facts = {"nearest": near[0]} if near else {"columns": ",".join(self._names)}
        return InvalidRequest("column does not exist", column=name, **facts)


def join_packed(packed: Sequence[bytes]) -> bytes:
    """Join rows packed one by one into the compact form of all of them."""
    count = len(packed)
    if count < 16:
        head = pack_struct(">B", 0x90 | count)
    elif count < 1 << 16:
        head = pack_struct(">BH", 0xDC, count)
    else:
        head = pack_struct(">BI", 0xDD, count)
    return head + b"".join(packed)


def _row_struct(schema: pa.Schema) -> type[msgspec.Struct] | None:
    """Return a struct type whose conversion from a dict is the fast check of a row.

    None if msgspec refuses a column's name as a field: the slow path checks such rows.
    """
    if any(_FIELD_REFUSED.search(name) for name in schema.names):
        return None
    fields: list[Any] = []
    for index, field in enumerate(schema):
        annotation = _fast_annotation(field.type)
        if field.nullable:
            fields.append((f"c{index}", annotation | None if annotation is not Any else Any, None))
        else:
            fields.append((f"c{index}", annotation))
    return msgspec.defstruct(
        "Row",
        fields,
        rename={f"c{index}": name for index, name in enumerate(schema.names)},
        kw_only=True,
        frozen=True,
        gc=False,
        forbid_unknown_fields=True,
    )


def _fast_annotation(data_type: pa.DataType) -> Any:
    """Return a type that msgspec checks as strictly as the slow path, or Any."""
    if pt.is_boolean(data_type):
        return bool
    if pt.is_integer(data_type):
        least, greatest = integer_range(data_type)
        return Annotated[int, msgspec.Meta(ge=least, le=greatest)]
    if pt.is_floating(data_type):
        # Within the open interval an int converts exactly; the slow path handles all others.
        bound = float(float_exact_max(data_type))
        return Annotated[float, msgspec.Meta(gt=-bound, lt=bound)]
    if is_text(data_type):
        return str
    return Any


def _packed_type(schema: pa.Schema) -> Any:
    found = [next(own for is_type, own in _PACKED if is_type(kind)) for kind in schema.types]
    return GenericAlias(list, (GenericAlias(tuple, tuple(each | None for each in found)),))


_PACKED: Final = (
    (pt.is_boolean, bool),
    (pt.is_integer, int),
    (pt.is_floating, float),
    (is_text, str),
    (is_bytes, bytes),
    (pt.is_timestamp, dt.datetime),
    (pt.is_date, dt.date),
    (pt.is_time, dt.time),
    (pt.is_decimal, Decimal),
)
