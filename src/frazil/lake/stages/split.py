"""The third stage: split accepted records from rejects, which keep their whole record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.lake.originals import ENCODING
from frazil.lake.stages.columns import (
    OFFSET,
    PART,
    REJECT,
    TIME,
    by_name,
    rebuilt,
    spark_type,
)
from frazil.lake.stages.validate import STAGE

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from frazil.lake.stages.context import Context

__all__ = ["keep_accepted", "keep_rejected"]


def keep_accepted(frame: DataFrame, context: Context) -> DataFrame:
    """Return the records that fit the table."""
    if not context.raw:
        return frame
    return frame.where(by_name(REJECT).isNull()).drop(REJECT)


def keep_rejected(frame: DataFrame, context: Context) -> DataFrame:
    """Return the others as rows of the side table: where, why, and the whole record."""
    reject = by_name(REJECT)
    system = [OFFSET, TIME, *([PART] if context.partitioned else [])]
    return frame.where(reject.isNotNull()).select(
        *map(by_name, system),
        F.lit(STAGE).alias("stage"),
        reject.getField("reason").alias("reason"),
        reject.getField("field").alias("field"),
        F.lit(context.plan.schema_version).cast(T.IntegerType()).alias("schema_version"),
        F.lit(ENCODING).alias("encoding"),
        _original(context.schema).alias("original"),
    )


def _original(schema: pa.Schema) -> Column:
    """Return the bytes of a record that was read raw, as `frazil.lake.originals` describes."""
    columns = [
        rebuilt(by_name(field.name), spark_type(field.type, raw=True), _json_form).alias(field.name)
        for field in schema
    ]
    return F.to_json(F.struct(*columns)).cast(T.BinaryType())


def _json_form(column: Column, data_type: T.DataType) -> Column:
    """Return a scalar as a number or text that is exact in JSON."""
    if isinstance(data_type, T.TimestampType | T.TimestampNTZType):
        return F.unix_micros(column.cast(T.TimestampType()))
    if isinstance(data_type, T.DateType):
        return F.unix_date(column)
    return column.cast(T.StringType()) if isinstance(data_type, T.DecimalType) else column
