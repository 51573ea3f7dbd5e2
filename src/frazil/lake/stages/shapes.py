"""Nested types side by side: what a table's struct may have more than the topic's, and filling it.

Others may add optional fields to a table, also inside of a struct, a list or a map's value: rows of
the topic have null there. A field that is missing or of another type is none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["Difference", "difference", "shaped", "without_others"]


class Difference(NamedTuple):
    """The first field whose type in the table is not the topic's; a type is empty if it is missing."""

    path: str
    found: str
    wanted: str


def difference(found: T.DataType, wanted: T.DataType, path: str) -> Difference | None:
    """Return where a table's type cannot take values of the topic's; None if it can."""
    if isinstance(found, T.StructType) and isinstance(wanted, T.StructType):
        return _fields(found, wanted, path)
    if isinstance(found, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return difference(found.elementType, wanted.elementType, f"{path}.element")
    if isinstance(found, T.MapType) and isinstance(wanted, T.MapType):
        # Keys are compared whole: one with another field would be another key.
        if found.keyType.simpleString() != wanted.keyType.simpleString():
            return _other(f"{path}.key", found.keyType, wanted.keyType)
        return difference(found.valueType, wanted.valueType, f"{path}.value")
    if found.simpleString() != wanted.simpleString():
        return _other(path, found, wanted)
    return None


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


def _other(path: str, found: T.DataType, wanted: T.DataType) -> Difference:
    return Difference(path, found.simpleString(), wanted.simpleString())


def shaped(column: Column, have: T.DataType, want: T.DataType) -> Column:
    """Return a value with the fields that `want` has, in its order; what `have` lacks is null."""
    if have.simpleString() == want.simpleString():
        return column
    if isinstance(have, T.StructType) and isinstance(want, T.StructType):
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
    if isinstance(have, T.ArrayType) and isinstance(want, T.ArrayType):
        inner = (have.elementType, want.elementType)
        return F.transform(column, lambda each: shaped(each, *inner))
    if isinstance(have, T.MapType) and isinstance(want, T.MapType):
        values = (have.valueType, want.valueType)
        return F.transform_values(column, lambda _key, each: shaped(each, *values))
    return column


def without_others(found: T.DataType, wanted: T.DataType) -> T.DataType:
    """Return a table's type without the fields that the topic's has not got."""
    if isinstance(found, T.StructType) and isinstance(wanted, T.StructType):
        own = {field.name: field.dataType for field in found}
        return T.StructType(
            [
                T.StructField(
                    field.name,
                    without_others(own[field.name], field.dataType)
                    if field.name in own
                    else field.dataType,
                )
                for field in wanted
            ]
        )
    if isinstance(found, T.ArrayType) and isinstance(wanted, T.ArrayType):
        return T.ArrayType(without_others(found.elementType, wanted.elementType))
    if isinstance(found, T.MapType) and isinstance(wanted, T.MapType):
        return T.MapType(found.keyType, without_others(found.valueType, wanted.valueType))
    return found
