"""Columns for Spark: the types to read staged files with, and safe names.

Files are read in the types of the table, so that no conversion is needed: Spark widens small
integers and reads unsigned ones as a larger type. Two kinds of values make the read of a whole file
fail: timestamps in milliseconds out of the range of microseconds, and decimals with more digits
than declared. If the footers do not rule them out, `raw` types are read instead, checked, and
converted.
"""

from __future__ import annotations

import base64
import functools
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.errors import InvalidRequest
from frazil.lake.types import OFFSET, PART, TIME, inner_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import Column

__all__ = [
    "OFFSET",
    "PART",
    "REJECT",
    "TIME",
    "by_name",
    "decode_schema",
    "is_doubtful",
    "leaves",
    "quoted",
    "rebuilt",
    "spark_type",
    "staged_schema",
]

REJECT: Final = "_change_reject"
"""The column with a record's verdict; the prefix is reserved, no topic has such a column."""
DECIMAL_DIGITS_MAX: Final = 38

_SCALARS: Final[dict[pa.DataType, T.DataType]] = {
    pa.bool_(): T.BooleanType(),
    pa.int8(): T.IntegerType(),
    pa.int16(): T.IntegerType(),
    pa.int32(): T.IntegerType(),
    pa.int64(): T.LongType(),
    pa.uint8(): T.IntegerType(),
    pa.uint16(): T.IntegerType(),
    pa.uint32(): T.LongType(),
    pa.uint64(): T.DecimalType(20, 0),
    pa.float32(): T.FloatType(),
    pa.float64(): T.DoubleType(),
    pa.string(): T.StringType(),
    pa.large_string(): T.StringType(),
    pa.binary(): T.BinaryType(),
    pa.large_binary(): T.BinaryType(),
    pa.date32(): T.DateType(),
}


def decode_schema(text: str) -> pa.Schema:
    """Return the columns of a plan, decoded from base64.

    Raises:
        InvalidRequest: if it is not a schema.
    """
    try:
        return pa.ipc.read_schema(pa.BufferReader(base64.b64decode(text, validate=True)))
    except (ValueError, OSError, pa.ArrowException) as error:
        raise InvalidRequest("plan has no columns that can be read", reason=error) from error


def quoted(name: str) -> str:
    """Return a name, with any characters, as one quoted part of a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def by_name(name: str) -> Column:
    """Return the column of that very name."""
    return F.col(quoted(name))


def rebuilt(
    column: Column, data_type: T.DataType, scalar: Callable[[Column, T.DataType], Column]
) -> Column:
    """Return a value with a function applied to each scalar; maps become lists of entries."""
    if isinstance(data_type, T.StructType):
        fields = [
            rebuilt(column.getField(field.name), field.dataType, scalar).alias(field.name)
            for field in data_type
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(data_type, T.MapType):
        entry = T.StructType().add("key", data_type.keyType).add("value", data_type.valueType)
        return rebuilt(F.map_entries(column), T.ArrayType(entry), scalar)
    if isinstance(data_type, T.ArrayType):
        return F.transform(column, lambda each: rebuilt(each, data_type.elementType, scalar))
    return scalar(column, data_type)


def is_doubtful(data_type: pa.DataType) -> bool:
    """Return whether a scalar may have values that the table's type, or Spark's reader, lacks."""
    if pt.is_timestamp(data_type):
        return data_type.unit in {"s", "ms"}
    return bool(pt.is_decimal(data_type))


@functools.singledispatch
def spark_type(data_type: pa.DataType, *, raw: bool = False) -> T.DataType:
    """Return the Spark type for an Arrow type: the table's, or the raw one for any value.

    Raises:
        InvalidRequest: for a type that no table has.
    """
    del raw
    found = _SCALARS.get(data_type)
    if found is None:
        raise InvalidRequest("column type is not supported in a table", type=data_type)
    return found


@spark_type.register(pa.StructType)
def _(data_type: Any, *, raw: bool = False) -> T.DataType:
    return T.StructType(
        [T.StructField(each.name, spark_type(each.type, raw=raw)) for each in data_type]
    )


@spark_type.register(pa.MapType)
def _(data_type: Any, *, raw: bool = False) -> T.DataType:
    key, value = data_type.key_type, data_type.item_type
    return T.MapType(spark_type(key, raw=raw), spark_type(value, raw=raw))


@spark_type.register(pa.ListType)
def _(data_type: Any, *, raw: bool = False) -> T.DataType:
    return T.ArrayType(spark_type(data_type.value_type, raw=raw))


@spark_type.register(pa.TimestampType)
def _(data_type: Any, *, raw: bool = False) -> T.DataType:
    if raw and is_doubtful(data_type):
        # Parquet has no seconds: they are staged as milliseconds too.
        return T.LongType()
    return T.TimestampNTZType() if data_type.tz is None else T.TimestampType()


@spark_type.register(pa.Decimal128Type)
def _(data_type: Any, *, raw: bool = False) -> T.DataType:
    return T.DecimalType(DECIMAL_DIGITS_MAX if raw else data_type.precision, data_type.scale)


@spark_type.register(pa.FixedSizeBinaryType)
def _(data_type: Any, *, raw: bool = False) -> T.DataType:
    del data_type, raw
    return T.BinaryType()


def staged_schema(schema: pa.Schema, *, raw: bool = False) -> T.StructType:
    """Return the columns of a staged file: the system's, then the topic's."""
    fields = [T.StructField(OFFSET, T.LongType()), T.StructField(TIME, T.TimestampType())]
    fields += [T.StructField(field.name, spark_type(field.type, raw=raw)) for field in schema]
    return T.StructType(fields)


def leaves(field: pa.Field) -> Iterator[pa.Field]:
    """Yield the scalars of a column in Parquet's order."""
    inner = inner_fields(field.type)
    if not inner:
        yield field
    for _name, child in inner:
        yield from leaves(child)
