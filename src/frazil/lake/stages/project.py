"""The fourth stage: the table's columns, by name and in its order; nothing is converted by luck."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.errors import InvalidRequest
from frazil.lake.stages.columns import (
    OFFSET,
    PART,
    TIME,
    by_name,
    is_doubtful,
    leaves,
    spark_type,
)
from frazil.lake.stages.shapes import difference, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from frazil.lake.stages.context import Context

__all__ = ["check_columns", "project"]


def project(frame: DataFrame, context: Context) -> DataFrame:
    """Return rows as the table has them; columns that others added to it are null.

    Raises:
        InvalidRequest: if the table has not got the topic's columns; see `check_columns`.
    """
    check_columns(context)
    if _is_table(frame, context):
        # Each column of a select costs Spark's driver more than a millisecond.
        return frame
    return frame.select(*(_column(field, context) for field in context.table))


def _is_table(frame: DataFrame, context: Context) -> bool:
    """Return whether rows already have the table's columns, in their order and types."""
    if context.raw:
        return False
    found = [(field.name, field.dataType.simpleString()) for field in frame.schema]
    return found == [(field.name, field.dataType.simpleString()) for field in context.table]


def check_columns(context: Context) -> None:
    """Compare the table's columns with the topic's.

    Raises:
        InvalidRequest: if one was dropped, renamed or retyped, or one was added that needs a value.
    """
    wanted = _wanted(context)
    found = {field.name: field for field in context.table}
    for name, data_type in wanted.items():
        field = found.get(name)
        if field is None:
            raise InvalidRequest(
                "table lacks a column of the topic: another program dropped or renamed it, undo that",
                table=context.plan.table,
                column=name,
                columns=",".join(found),
            )
        other = difference(field.dataType, data_type, name)
        if other is not None:
            raise InvalidRequest(
                "column of the table has another type than the topic's: undo that",
                table=context.plan.table,
                column=other.path,
                type=other.found or "none",
                wanted=other.wanted or "none",
            )
    for name, field in found.items():
        if name not in wanted and not field.nullable:
            raise InvalidRequest(
                "table has a required column that the topic has not got: make it optional",
                table=context.plan.table,
                column=name,
            )


def _wanted(context: Context) -> dict[str, T.DataType]:
    wanted: dict[str, T.DataType] = {OFFSET: T.LongType(), TIME: T.TimestampType()}
    if context.partitioned:
        wanted[PART] = T.IntegerType()
    return wanted | {field.name: spark_type(field.type) for field in context.schema}


def _column(field: T.StructField, context: Context) -> Column:
    index = context.schema.get_field_index(field.name)
    if index < 0 and field.name not in {OFFSET, TIME, PART}:
        return F.lit(None).cast(field.dataType).alias(field.name)
    column = by_name(field.name)
    if context.raw and index >= 0:
        source = context.schema.field(index)
        if any(is_doubtful(leaf.type) for leaf in leaves(source)):
            column = _exact(source.type, column)
    if index >= 0:
        # Others may have added fields inside of it.
        column = shaped(column, spark_type(context.schema.field(index).type), field.dataType)
    return column.alias(field.name)


@functools.singledispatch
def _exact(data_type: pa.DataType, column: Column) -> Column:
    """Return a value that was read raw and found to fit, in the type of the table."""
    del data_type
    return column


@_exact.register(pa.StructType)
def _(data_type: Any, column: Column) -> Column:
    fields = [
        _exact(child.type, column.getField(child.name)).alias(child.name) for child in data_type
    ]
    return F.when(column.isNotNull(), F.struct(*fields))


@_exact.register(pa.MapType)
def _(data_type: Any, column: Column) -> Column:
    if not is_doubtful(data_type.key_type):
        return F.transform_values(column, lambda _key, each: _exact(data_type.item_type, each))
    keys = F.transform(F.map_keys(column), lambda each: _exact(data_type.key_type, each))
    values = F.transform(F.map_values(column), lambda each: _exact(data_type.item_type, each))
    return F.map_from_arrays(keys, values)


@_exact.register(pa.ListType)
def _(data_type: Any, column: Column) -> Column:
    return F.transform(column, lambda each: _exact(data_type.value_type, each))


@_exact.register(pa.TimestampType)
def _(data_type: Any, column: Column) -> Column:
    if not is_doubtful(data_type):
        return column
    instant = F.timestamp_millis(column)
    return instant if data_type.tz is not None else instant.cast(T.TimestampNTZType())


@_exact.register(pa.Decimal128Type)
def _(data_type: Any, column: Column) -> Column:
    return column.cast(T.DecimalType(data_type.precision, data_type.scale))
