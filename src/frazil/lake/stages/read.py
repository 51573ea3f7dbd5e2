"""The first stage: staged files become one frame, each row once, those of the plan only."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.lake.stages.columns import OFFSET, PART, TIME, by_name, staged_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from frazil.lake.stages.context import Context, Source

__all__ = ["read_staged"]

READ_OPTIONS: Final = {
    # A session's settings must not be able to leave rows out, or to move dates.
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "mergeSchema": "false",
    "datetimeRebaseMode": "CORRECTED",
    # Staged pages have checksums: data that was damaged on disk does not get into a table.
    "parquet.page.verify-checksum.enabled": "true",
    # A path is a path, also with brackets or stars in it.
    "__globPaths__": "false",
}


def read_staged(spark: SparkSession, context: Context) -> DataFrame:
    """Return the rows of the plan with the system's columns first."""
    frames = [_read(spark, context, source) for source in context.sources]
    if not frames:
        return spark.createDataFrame([], _schema(context))
    return functools.reduce(lambda one, other: one.unionByName(other), frames)


def _read(spark: SparkSession, context: Context, source: Source) -> DataFrame:
    paths = [f"file:{file.path}" for file in source.files]
    schema = staged_schema(context.schema, raw=context.raw)
    frame = spark.read.schema(schema).options(**READ_OPTIONS).parquet(*paths)
    if source.cut:
        offset = by_name(OFFSET)
        frame = frame.where((offset >= F.lit(source.start)) & (offset < F.lit(source.end)))
    if context.partitioned:
        columns = [by_name(field.name) for field in context.schema]
        part = F.lit(source.part).cast(T.IntegerType()).alias(PART)
        frame = frame.select(by_name(OFFSET), by_name(TIME), part, *columns)
    return frame


def _schema(context: Context) -> T.StructType:
    fields = list(staged_schema(context.schema, raw=context.raw))
    if context.partitioned:
        fields.insert(2, T.StructField(PART, T.IntegerType()))
    return T.StructType(fields)
