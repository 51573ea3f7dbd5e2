"""Compare nested types, and fill the optional fields that only the table has.

Other programs may add optional fields to a table, also in a struct, a list or a map's value: the
topic's rows get null there. A field that is missing or of another type is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

__all__ = ["Difference", "difference", "shaped", "without_others"]


class Difference(NamedTuple):
    """The first field with another type in the table than in the topic; missing types are empty."""

    path: str
    found: str
    wanted: str


def difference(found: T.DataType, wanted: T.DataType, path: str) -> Difference | None:
    """Return where a table's type cannot take values of the topic's; None if it can."""
    kind = type(found) if type(found) is type(wanted) else None
    return _DIFFERENCES.get(kind, _scalars)(found, wanted, path)


def _scalars(found: T.DataType, wanted: T.DataType, path: str) -> Difference | None:
    same = found.simpleString() == wanted.simpleString()
    return None if same else Difference(path, found.simpleString(), wanted.simpleString())


def _elements(found: T.ArrayType, wanted: T.ArrayType, path: str) -> Difference | None:
    return difference(found.elementType, wanted.elementType, f"{path}.element")


def _entries(found: T.MapType, wanted: T.MapType, path: str) -> Difference | None:
    # Keys are compared whole: one with another field would be another key.
    return _scalars(found.keyType, wanted.keyType, f"{path}.key") or difference(
        found.valueType, wanted.valueType, f"{path}.value"
    )


def _fields(found: T.StructType, wanted: T.StructType, path: str) -> Difference | None:
    fields = {field.name: field for field in found}
    for field in wanted:
        theirs = fields.pop(field.name, None)
        name = f"{path}.{field.name}"
        if theirs is None:
            return Difference(name, "", field.dataType.simpleString())
        inner = difference(theirs.dataType, field.dataType, name)
        if inner is not None:
            return inner
    for name, theirs in fields.items():
        if not theirs.nullable:
            return Difference(f"{path}.{name}", f"{theirs.dataType.simpleString()} not null", "")
    return None


_DIFFERENCES: Final[dict[type[T.DataType] | None, Callable[..., Difference | None]]] = {
    T.StructType: _fields,
    T.ArrayType: _elements,
    T.MapType: _entries,
}


def shaped(column: Column, have: T.DataType, want: T.DataType) -> Column:
    """Return a value with the fields of `want`, in its order; fields that `have` lacks are null."""
    if have.simpleString() == want.simpleString() or type(have) is not type(want):
        return column
    return _reshaped(have, want, column)


@functools.singledispatch
def _reshaped(have: T.DataType, want: Any, column: Column) -> Column:
    del have, want
    return column


@_reshaped.register
def _(have: T.StructType, want: Any, column: Column) -> Column:
    own = {field.name: field.dataType for field in have}
    fields = [
        (
            shaped(column.getField(field.name), own[field.name], field.dataType)
            if field.name in own
            else F.lit(None).cast(field.dataType)
        ).alias(field.name)
        for field in want
    ]
    return F.when(column.isNotNull(), F.struct(*fields))


@_reshaped.register
def _(have: T.ArrayType, want: Any, column: Column) -> Column:
    return F.transform(column, lambda each: shaped(each, have.elementType, want.elementType))


@_reshaped.register
def _(have: T.MapType, want: Any, column: Column) -> Column:
    return F.transform_values(
        column, lambda _key, each: shaped(each, have.valueType, want.valueType)
    )


def without_others(found: T.DataType, wanted: T.DataType) -> T.DataType:
    """Return a table's type without the fields that the topic's has not got."""
    return _stripped(found, wanted) if type(found) is type(wanted) else found


@functools.singledispatch
def _stripped(found: T.DataType, wanted: Any) -> T.DataType:
    del wanted
    return found


@_stripped.register
def _(found: T.StructType, wanted: Any) -> T.DataType:
    own = {field.name: field.dataType for field in found}
    inner = [
        (each, without_others(own.get(each.name, each.dataType), each.dataType)) for each in wanted
    ]
    return T.StructType([T.StructField(field.name, data_type) for field, data_type in inner])


@_stripped.register
def _(found: T.ArrayType, wanted: Any) -> T.DataType:
    return T.ArrayType(without_others(found.elementType, wanted.elementType))


@_stripped.register
def _(found: T.MapType, wanted: Any) -> T.DataType:
    return T.MapType(found.keyType, without_others(found.valueType, wanted.valueType))
