"""How Debezium writes values in JSON, by logical type: dates, times and decimals as numbers or bytes.

An event's schema names a logical type for each field (`io.debezium.time.MicroTimestamp`, …); the
topic's column says what it becomes. Whatever is finer than the column is refused, not rounded.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.schema.columns import type_name
from frazil.schema.json_rows import JsonRowReader

__all__ = ["Decimals", "Logical", "Times", "ValueReader", "is_unavailable"]

Times = Literal["column", "s", "ms", "us", "ns"]
Decimals = Literal["string", "base64"]

UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNAVAILABLE: Final = frozenset({UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode()})
"""Stands for a large value that an update did not touch; as bytes it comes in base64."""
DECIMAL_BYTES_MAX: Final = 64
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAY: Final = "day"
_NANOSECONDS: Final = {
    _DAY: 86_400_000_000_000,
    "s": 1_000_000_000,
    "ms": 1_000_000,
    "us": 1_000,
    "ns": 1,
}
_EXACT: Final = Context(prec=200)
_UNITS: Final = {
    "io.debezium.time.Date": _DAY,
    "org.apache.kafka.connect.data.Date": _DAY,
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
}
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"

_Convert = Callable[[object], object]


class Logical(NamedTuple):
    """A field's logical type, and the scale of a decimal if it has one."""

    name: str
    scale: int = -1

    @classmethod
    def of(cls, field: Mapping[str, Any]) -> Logical:
        """Return the logical type that a field of an event's schema names."""
        parameters = field.get("parameters")
        scale = parameters.get("scale") if isinstance(parameters, Mapping) else None
        try:
            return cls(str(field["name"]), -1 if scale is None else int(scale))
        except (TypeError, ValueError):
            raise InvalidRequest("schema of the event has no valid scale", scale=scale) from None


class ValueReader:
    """Turns the values of rows into those that `RowEncoder` takes."""

    __slots__ = ("_convert",)

    def __init__(
        self,
        schema: pa.Schema,
        told: Mapping[str, Logical],
        *,
        times: Times,
        decimals: Decimals,
    ) -> None:
        if times not in {"column", "s", "ms", "us", "ns"} or decimals not in {"string", "base64"}:
            raise InvalidRequest("unknown option for events", times=times, decimals=decimals)
        self._convert: dict[str, _Convert] = {}
        for field in schema:
            logical = told.get(field.name)
            convert = _converter(field, logical, times=times, decimals=decimals)
            if convert is not None:
                self._convert[field.name] = convert

    def read(self, row: Mapping[str, Any]) -> dict[str, object]:
        """Return the row with values of the columns' types; unknown columns are left for others.

        Raises:
            InvalidRequest: with the column whose value does not parse.
        """
        convert = self._convert
        return {
            name: convert[name](value) if value is not None and name in convert else value
            for name, value in row.items()
        }


def is_unavailable(value: object) -> bool:
    """Tell whether a value stands for one that did not change and was not sent."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return isinstance(value, str) and value in _UNAVAILABLE


def _converter(
    field: pa.Field, logical: Logical | None, *, times: Times, decimals: Decimals
) -> _Convert | None:
    data_type = field.type
    texts = _from_text(field)
    if pt.is_date(data_type) or pt.is_timestamp(data_type) or pt.is_time(data_type):
        unit = _unit(data_type, logical, times)
        return _numbers_or(lambda count: _temporal(count, unit, field), texts)
    if pt.is_decimal(data_type):
        return _decimal_converter(field, logical, decimals, texts)
    return texts


def _from_text(field: pa.Field) -> _Convert:
    """Return the conversion of JSON rows, for one column."""
    reader = JsonRowReader(pa.schema([field]))
    name = field.name

    def convert(value: object) -> object:
        if isinstance(value, str) and pt.is_temporal(field.type):
            value = _short_fraction(value)
        return reader.convert({name: value})[name]

    return convert


def _short_fraction(text: str) -> str:
    """Cut zeros behind the sixth digit of a fraction: Java writes nanoseconds in groups of three."""
    whole, point, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    if len(digits) <= 6 or digits[6:].strip("0"):
        return text
    return whole + point + digits[:6] + rest[len(digits) :]


def _numbers_or(from_number: Callable[[int], object], from_text: _Convert) -> _Convert:
    def convert(value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return from_number(value)
        return from_text(value)

    return convert


def _unit(data_type: pa.DataType, logical: Logical | None, times: Times) -> str | None:
    """Return what numbers count; None for a logical type whose numbers are no point in time."""
    if logical is not None:
        return _UNITS.get(logical.name)
    if pt.is_date(data_type):
        return _DAY
    return str(data_type.unit) if times == "column" else times


def _temporal(count: int, unit: str | None, field: pa.Field) -> object:
    """Return a number of units since 1970, or since midnight, as the column's type."""
    if unit is None:
        raise InvalidRequest(
            "number's logical type does not fit the column",
            column=field.name,
            expected=type_name(field.type),
        )
    microseconds, rest = divmod(count * _NANOSECONDS[unit], 1000)
    if rest:
        raise InvalidRequest(
            "value is finer than a microsecond", column=field.name, value=count, unit=unit
        )
    try:
        span = dt.timedelta(microseconds=microseconds)
        moment = _EPOCH + span
    except OverflowError:
        raise _beyond(count, field) from None
    if pt.is_timestamp(field.type):
        return moment if field.type.tz is not None else moment.replace(tzinfo=None)
    if pt.is_date(field.type):
        if span != dt.timedelta(days=span.days):
            raise InvalidRequest("value is finer than a day", column=field.name, value=count)
        return moment.date()
    if span.days:
        raise _beyond(count, field)
    return moment.time()


def _beyond(value: int, field: pa.Field) -> InvalidRequest:
    return InvalidRequest(
        "column value is out of range",
        column=field.name,
        expected=type_name(field.type),
        value=value,
    )


def _decimal_converter(
    field: pa.Field, logical: Logical | None, decimals: Decimals, from_text: _Convert
) -> _Convert:
    scale = field.type.scale
    coded = decimals == "base64" if logical is None else logical.name == _DECIMAL
    if logical is not None and logical.scale >= 0:
        scale = logical.scale

    def convert(value: object) -> object:
        if isinstance(value, Mapping):
            # VariableScaleDecimal: the value brings its scale along.
            own = value.get("scale")
            if set(value) == {"scale", "value"} and type(own) is int:
                return _from_base64(value["value"], own, field)
        elif coded and isinstance(value, str):
            return _from_base64(value, scale, field)
        return from_text(value)

    return convert


def _from_base64(value: object, scale: int, field: pa.Field) -> Decimal:
    """Return Java's BigDecimal: the big-endian bytes of its digits, and its scale."""
    data = None
    if isinstance(value, str) and abs(scale) <= 100:
        try:
            data = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            data = None
    if not data or len(data) > DECIMAL_BYTES_MAX:
        raise InvalidRequest(
            "text is not the base64 of a decimal, see the option decimals", column=field.name
        )
    number = Decimal(int.from_bytes(data, "big", signed=True))
    return number.scaleb(-scale, context=_EXACT)
