"""Values of key columns as the index wants them, from what a statement compares them with."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

from frazil.query.constants import Moment, is_missing

if TYPE_CHECKING:
    from frazil.query.pruning import Condition
    from frazil.query.sources import TopicInfo

__all__ = ["MISS", "UNFIT", "Miss", "Unfit", "column_value", "key_conditions", "keys_of"]

KEYS_MAX: Final = 10_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Unfit:
    """The index cannot answer: compare as DuckDB does."""


class Miss:
    """No value of the column equals it."""


UNFIT: Final = Unfit()
MISS: Final = Miss()


def key_conditions(
    info: TopicInfo, conditions: Sequence[Condition]
) -> tuple[Condition, ...] | None:
    """Return one condition `=` or `in` for each key column, None if a column has none."""
    if not info.key_names:
        return None
    found: dict[str, Condition] = {}
    for condition in conditions:
        if condition.operator in {"=", "in"}:
            found.setdefault(condition.column.name, condition)
    if any(name not in found for name in info.key_names):
        return None
    return tuple(found[name] for name in info.key_names)


def keys_of(
    conditions: Sequence[Condition], params: Mapping[str, Any], folded: Sequence[Any]
) -> list[tuple[Any, ...]] | Unfit:
    """Return the keys that fulfil the conditions, each once."""
    columns: list[list[Any]] = []
    count = 1
    for condition in conditions:
        values: list[Any] = []
        for value in condition.values(params, folded):
            found = column_value(value, condition.column.type)
            if isinstance(found, Unfit):
                return UNFIT
            if found is not MISS:
                values.append(found)
        columns.append(list(dict.fromkeys(values)))
        count *= len(values)
        if count > KEYS_MAX:
            return UNFIT
    return list(product(*columns))


def column_value(value: Any, data_type: pa.DataType) -> Any:
    """Return the value of a column's type that equals a constant.

    `MISS` if there is none, `UNFIT` if only DuckDB can tell.
    """
    if value is None:
        return MISS
    if is_missing(value) or (isinstance(value, Decimal) and not value.is_finite()):
        return UNFIT
    if pt.is_integer(data_type):
        return _integer(value, data_type)
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return value if type(value) is str else UNFIT
    if pt.is_boolean(data_type) or pt.is_binary(data_type) or pt.is_large_binary(data_type):
        wanted = bool if pt.is_boolean(data_type) else bytes
        return value if type(value) is wanted else UNFIT
    if pt.is_fixed_size_binary(data_type):
        if type(value) is not bytes:
            return UNFIT
        return value if len(value) == data_type.byte_width else MISS
    if pt.is_decimal(data_type):
        return _decimal(value, data_type)
    if pt.is_temporal(data_type):
        return _temporal(value, data_type)
    return UNFIT


def _integer(value: Any, data_type: pa.DataType) -> Any:
    if type(value) is Decimal:
        if value != value.to_integral_value():
            return MISS
        value = int(value)
    elif type(value) is not int:
        return UNFIT
    bits = data_type.bit_width
    signed = pt.is_signed_integer(data_type)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    return value if low <= value < high else MISS


def _decimal(value: Any, data_type: pa.DataType) -> Any:
    if type(value) not in {int, Decimal}:
        return UNFIT
    try:
        scalar = pa.scalar(Decimal(value), data_type)
    except pa.ArrowInvalid:
        # Too many digits, before or behind the point.
        return MISS
    return scalar.as_py()


def _temporal(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, Moment):
        value = _from_moment(value, data_type)
    if pt.is_date32(data_type):
        return value if type(value) is dt.date else UNFIT
    if pt.is_time(data_type):
        is_local = type(value) is dt.time and value.tzinfo is None
        return value if is_local and data_type.unit == "us" else UNFIT
    if not isinstance(value, dt.datetime) or data_type.unit == "ns":
        return UNFIT
    if data_type.unit != "us" and value.microsecond % (1_000 if data_type.unit == "ms" else 10**6):
        return MISS
    if value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC) if data_type.tz is not None else value
    in_utc = value.astimezone(dt.UTC)
    return in_utc if data_type.tz is not None else in_utc.replace(tzinfo=None)


def _from_moment(moment: Moment, data_type: pa.DataType) -> Any:
    """Return the value of Python that a moment is, as far as the column's type has it."""
    if moment.ns % 1_000 or moment.of_day != pt.is_time(data_type):
        return None
    try:
        instant = _EPOCH + dt.timedelta(microseconds=moment.ns // 1_000)
    except OverflowError:
        return None
    if moment.of_day:
        return instant.time()
    if pt.is_date32(data_type):
        return instant.date() if instant.time() == dt.time() else None
    return instant
