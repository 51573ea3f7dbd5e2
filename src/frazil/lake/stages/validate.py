"""The second stage: decide for each record whether it fits the table.

Only a record whose values do not fit is rejected. The verdict depends only on the record and its
schema version, so it is always the same. If the footers of the files leave no doubt, the stage adds
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.lake.stages.columns import DECIMAL_DIGITS_MAX, REJECT, by_name, is_doubtful, leaves

if TYPE_CHECKING:
    from decimal import Decimal

    from pyspark.sql import Column, DataFrame

    from frazil.lake.stages.context import Context

__all__ = ["MILLIS_MAX", "MILLIS_MIN", "STAGE", "decimal_max", "validate"]

STAGE: Final = "validate"
MILLIS_MAX: Final = (1 << 63) // 1000 - 1
MILLIS_MIN: Final = -MILLIS_MAX
"""The range of milliseconds that fits microseconds in 64 bits, with a small margin."""


def decimal_max(data_type: pa.DataType) -> Decimal:
    """Return the greatest value of a decimal type."""
    from decimal import Decimal

    return Decimal((0, (9,) * data_type.precision, -data_type.scale))


def validate(frame: DataFrame, context: Context) -> DataFrame:
    """Add the column of verdicts: null, or the reason and the column of the first misfit."""
    if not context.raw:
        return frame
    verdicts = [
        F.when(condition, F.struct(F.lit(reason).alias("reason"), F.lit(field.name).alias("field")))
        for field in context.schema
        for condition, reason in _checks(field)
    ]
    kind = T.StructType(
        [T.StructField("reason", T.StringType()), T.StructField("field", T.StringType())]
    )
    verdict = F.coalesce(*verdicts) if verdicts else F.lit(None).cast(kind)
    return frame.withColumn(REJECT, verdict)


def _checks(field: pa.Field) -> list[tuple[Column, str]]:
    column = by_name(field.name)
    checks: list[tuple[Column, str]] = []
    if not field.nullable:
        checks.append((column.isNull(), "null in a column that must not be null"))
    if any(is_doubtful(leaf.type) for leaf in leaves(field)):
        checks.append((_misfit(column, field.type), _reason(field)))
    return checks


def _reason(field: pa.Field) -> str:
    """Name the misfits that a column can have; a nested one may have both."""
    found = [leaf.type for leaf in leaves(field) if is_doubtful(leaf.type)]
    reasons: list[str] = []
    if any(pt.is_timestamp(each) for each in found):
        reasons.append("timestamp is beyond the range of microseconds")
    if any(pt.is_decimal(each) for each in found):
        reasons.append("decimal has more digits than its type")
    if pt.is_map(field.type) and is_doubtful(field.type.key_type):
        reasons.append("map has a key twice")
    return " or ".join(reasons)


def _misfit(column: Column, data_type: pa.DataType) -> Column:
    """Return whether a value, or any value inside of it, does not fit; never null."""
    if pt.is_struct(data_type):
        inside = [
            _misfit(column.getField(child.name), child.type)
            for child in data_type
            if any(is_doubtful(leaf.type) for leaf in leaves(child))
        ]
        found = inside[0]
        for each in inside[1:]:
            found |= each
        return found
    if pt.is_map(data_type):
        keys = F.map_keys(column)
        found = _any(keys, data_type.key_field) | _any(F.map_values(column), data_type.item_field)
        if is_doubtful(data_type.key_type):
            # Such a map is rebuilt, and Spark requires unique keys for that.
            found |= F.coalesce(F.size(F.array_distinct(keys)) < F.size(keys), F.lit(False))
        return found
    if pt.is_list(data_type):
        return _any(column, data_type.value_field)
    if pt.is_timestamp(data_type):
        outside = ~column.between(F.lit(MILLIS_MIN), F.lit(MILLIS_MAX))
    else:
        limit = F.lit(decimal_max(data_type)).cast(
            T.DecimalType(DECIMAL_DIGITS_MAX, data_type.scale)
        )
        outside = F.abs(column) > limit
    return F.coalesce(outside, F.lit(False))


def _any(values: Column, field: pa.Field) -> Column:
    if not any(is_doubtful(leaf.type) for leaf in leaves(field)):
        return F.lit(False)
    return F.coalesce(F.exists(values, lambda each: _misfit(each, field.type)), F.lit(False))
