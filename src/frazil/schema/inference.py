"""Columns inferred from rows, for a topic that the first dict creates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final
from uuid import UUID

import pyarrow as pa

from frazil.errors import InvalidRequest
from frazil.schema.columns import LIMITS_DEFAULT, IngestLimits, declare_schema, type_name

__all__ = ["infer_schema"]

DECIMAL_PRECISION: Final = 38
_SCALARS: Final[tuple[tuple[type, pa.DataType], ...]] = (
    # The order matters: bool is an int, and datetime is a date.
    (bool, pa.bool_()),
    (int, pa.int64()),
    (float, pa.float64()),
    (str, pa.string()),
    (bytes, pa.binary()),
    (bytearray, pa.binary()),
    (memoryview, pa.binary()),
    (dt.date, pa.date32()),
    (dt.time, pa.time64("us")),
)


def infer_schema(
    *rows: Mapping[str, object],
    limits: IngestLimits = LIMITS_DEFAULT,
    primary_key: Sequence[str] = (),
) -> pa.Schema:
    """Return a declared schema that all `rows` fit; a column may be null in some, not in all.

    Raises:
        InvalidRequest: if a column is null everywhere, or two rows disagree about its type.
    """
    if not rows:
        raise InvalidRequest("no row to infer columns from")
    found: dict[str, pa.DataType] = {}
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidRequest("row must be a dict", got=type(row).__name__)
        if not row:
            raise InvalidRequest("row has no columns, nothing can be inferred")
        for name, value in row.items():
            if not isinstance(name, str):
                raise InvalidRequest("column name must be a string", got=type(name).__name__)
            inferred = _type_of(value, path=name, limits=limits, depth=1)
            found[name] = _merged(found.get(name, pa.null()), inferred, path=name)
    for name, data_type in found.items():
        _refuse_null(data_type, path=name)
    return declare_schema(found, limits=limits, primary_key=primary_key)


def _type_of(value: object, *, path: str, limits: IngestLimits, depth: int) -> pa.DataType:
    if depth > limits.nesting_max:
        raise InvalidRequest(
            "value is nested too deeply", column=path, nesting_max=limits.nesting_max
        )
    if value is None:
        return pa.null()
    if isinstance(value, dt.datetime):
        return pa.timestamp("us", None if value.utcoffset() is None else "UTC")
    if isinstance(value, Decimal):
        return _decimal_type(value, path=path)
    if isinstance(value, UUID):
        raise InvalidRequest("column type cannot be inferred, use str(uuid)", column=path)
    for kind, data_type in _SCALARS:
        if isinstance(value, kind):
            return data_type
    if isinstance(value, Mapping):
        return _struct_type(value, path=path, limits=limits, depth=depth)
    if isinstance(value, (list, tuple)):
        item: pa.DataType = pa.null()
        for element in value:
            inferred = _type_of(element, path=f"{path}.item", limits=limits, depth=depth + 1)
            item = _merged(item, inferred, path=f"{path}.item")
        return pa.list_(item)
    raise InvalidRequest(
        "column type cannot be inferred, declare the column", column=path, got=type(value).__name__
    )


def _decimal_type(value: Decimal, *, path: str) -> pa.DataType:
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise InvalidRequest("decimal must be finite", column=path, got=value)
    scale = max(0, -exponent)
    if max(scale, value.adjusted() + 1 + scale) > DECIMAL_PRECISION:
        raise InvalidRequest("decimal has more than 38 digits", column=path, got=value)
    return pa.decimal128(DECIMAL_PRECISION, scale)


def _struct_type(
    value: Mapping[str, object], *, path: str, limits: IngestLimits, depth: int
) -> pa.DataType:
    fields: list[pa.Field] = []
    for name, child in value.items():
        if not isinstance(name, str):
            raise InvalidRequest(
                "struct field name must be a string", column=path, got=type(name).__name__
            )
        inner = _type_of(child, path=f"{path}.{name}", limits=limits, depth=depth + 1)
        fields.append(pa.field(name, inner))
    return pa.struct(fields)


def _merged(left: pa.DataType, right: pa.DataType, *, path: str) -> pa.DataType:
    """Return the type that holds values of both; only nulls and number widths give way."""
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if {left, right} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_decimal(left) and pa.types.is_decimal(right):
        return pa.decimal128(DECIMAL_PRECISION, max(left.scale, right.scale))
    if pa.types.is_list(left) and pa.types.is_list(right):
        return pa.list_(_merged(left.value_type, right.value_type, path=f"{path}.item"))
    if pa.types.is_struct(left) and pa.types.is_struct(right):
        merged = {field.name: field.type for field in left}
        for field in right:
            known = merged.get(field.name, pa.null())
            merged[field.name] = _merged(known, field.type, path=f"{path}.{field.name}")
        return pa.struct(list(merged.items()))
    raise InvalidRequest(
        "rows disagree about a column's type, declare the column",
        column=path,
        one=type_name(left),
        other=type_name(right),
    )


def _refuse_null(data_type: pa.DataType, *, path: str) -> None:
    if pa.types.is_null(data_type):
        raise InvalidRequest(
            "column type cannot be inferred from null, declare the column", column=path
        )
    for index in range(data_type.num_fields):
        child = data_type.field(index)
        _refuse_null(child.type, path=f"{path}.{child.name}")
