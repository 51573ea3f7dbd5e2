"""Dict rows to validated tuples, to Arrow batches, and to a compact form for small frames.

One `RowEncoder` serves one schema version. The fast path lets msgspec check names, types, ranges
and nulls in C while it turns the dict into a struct, and proves by encoding the row that every
string is valid UTF-8 (0.5 µs for five columns in all); the encoded row is the one that a frame of
rows stores, so that nothing is done twice. What the fast path refuses, the slow path judges again
value by value: it accepts the rare legal cases (NaN, huge floats) and words the error.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from struct import pack as pack_struct
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from msgspec.structs import astuple

from frazil.errors import CorruptionError, InvalidRequest
from frazil.schema.cells import Check, cell_check, check_cell, float_exact_max, integer_range
from frazil.schema.columns import LIMITS_DEFAULT, IngestLimits

__all__ = ["Row", "RowEncoder", "join_packed"]

Row = tuple[object, ...]

# Above this many columns a dict in another order than the schema's would make msgspec's search
# for each name quadratic; such rows are put in order first.
WIDE_COLUMNS: Final = 32
_FAST_ERRORS: Final = (msgspec.ValidationError, UnicodeEncodeError, OverflowError, TypeError)
# What msgspec refuses in the name of a field, for then its JSON would need escapes.
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
        # The columns that the struct leaves to Python.
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
            InvalidRequest: with the column, what it expects and what came; or if the row is larger
                than the limit.
        """
        return self.encode(row)[0]

    def encode(self, row: Mapping[str, object]) -> tuple[Row, bytes]:
        """Return what `values` and `pack` return, for the price of one of them."""
        try:
            struct = self._struct
            if struct is None:
                raise TypeError(self._names)
            if self._wide:
                row = self._ordered(row)
            values = astuple(_convert(row, struct))
            for name in self._floats:
                # A decimal is the one thing that msgspec converts and the slow path refuses.
                if type(row.get(name)) is Decimal:
                    raise TypeError(name)
            for index in self._texts:
                text = values[index]
                if type(text) is not str and text is not None:
                    # Of an enum's members msgspec keeps the member, the slow path its text.
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

    def size(self, values: Row) -> int:
        """Return the bytes that validated values take in the compact form."""
        return len(_pack_value(values))

    def pack(self, values: Row) -> bytes:
        """Return validated values in the compact form, one msgpack array."""
        return _pack_value(values)

    def pack_rows(self, rows: Sequence[Row]) -> bytes:
        """Return validated rows in the compact form; equals `join_packed` of each one's `pack`."""
        return _pack_value(rows)

    def unpack_rows(self, data: bytes | bytearray | memoryview) -> list[Row]:
        """Return the rows that `pack_rows` or `join_packed` wrote under this schema.

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
                    # The slow path tells a missing column from a null.
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
        """Return the error for a name that no column has; it tells the nearest one."""
        if not isinstance(name, str):
            return InvalidRequest("column name must be a string", got=type(name).__name__)
        near = difflib.get_close_matches(name, self._names, n=1)
        facts = {"nearest": near[0]} if near else {"columns": ",".join(self._names)}
        return InvalidRequest("column does not exist", column=name, **facts)


def join_packed(packed: Sequence[bytes]) -> bytes:
    """Return rows packed one by one as the compact form of all of them."""
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

    None if a column has a name that msgspec gives no field: the slow path checks such rows.
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
    """Return what msgspec can check as strictly as the slow path does, or Any."""
    if pt.is_boolean(data_type):
        return bool
    if pt.is_integer(data_type):
        least, greatest = integer_range(data_type)
        return Annotated[int, msgspec.Meta(ge=least, le=greatest)]
    if pt.is_floating(data_type):
        # Within the open interval an int converts exactly; anything else is left to the slow path.
        bound = float(float_exact_max(data_type))
        return Annotated[float, msgspec.Meta(gt=-bound, lt=bound)]
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return str
    return Any


def _packed_type(schema: pa.Schema) -> Any:
    annotations = tuple(_packed_annotation(data_type) | None for data_type in schema.types)
    return GenericAlias(list, (GenericAlias(tuple, annotations),))


def _packed_annotation(data_type: pa.DataType) -> Any:
    for is_type, annotation in _PACKED:
        if is_type(data_type):
            return annotation
    raise InvalidRequest("column type has no compact form", type=data_type)


_PACKED: Final = (
    (pt.is_boolean, bool),
    (pt.is_integer, int),
    (pt.is_floating, float),
    (pt.is_string, str),
    (pt.is_large_string, str),
    (pt.is_binary, bytes),
    (pt.is_large_binary, bytes),
    (pt.is_fixed_size_binary, bytes),
    (pt.is_timestamp, dt.datetime),
    (pt.is_date, dt.date),
    (pt.is_time, dt.time),
    (pt.is_decimal, Decimal),
)
