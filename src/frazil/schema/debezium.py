"""Converts Debezium's change events to operations of a keyed topic.

    reader = DebeziumReader(schema, key_names)            # of one schema version
    for raw in reader.read(event_value, key=event_key):   # JSON text, bytes or a parsed dict
        change = keyed.changes.prepare(raw.op, raw.key, raw.row)

`c` is an insert, `r` (a snapshot's row) an upsert, `u` an update of the columns in `after`, `d` a
delete. An update whose `before` has another key names the new key among its columns: the row
moves, and `ChangeCodec.prepare_update` handles it. A tombstone (no value) gives no operation,
because the delete came before it; neither does `m`, a message without a table. An event may come
with its schema (`{"schema", "payload"}`) or without. With it, dates, times and decimals are read by
their logical types; without it, a number counts in the column's unit and a text holds digits.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE, OP_UPSERT
from frazil.schema.columns import type_name
from frazil.schema.json_rows import Convert, json_converter, parse_json_row

__all__ = ["UNAVAILABLE", "DebeziumReader", "RawChange"]

UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNAVAILABLE: Final = frozenset({UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode()})
"""The placeholder of a large value that an update did not change; as bytes it comes in base64."""
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

Logical = tuple[str, int]
"""A field's logical type, and the scale of a decimal, -1 if it has none."""
Json = bytes | bytearray | memoryview | str
_WHOLE: Final = {"c": OP_INSERT, "r": OP_UPSERT}
_SHAPES_MAX: Final = 256


def _logical(field: Mapping[str, Any]) -> Logical:
    """Return the logical type of a field of an event's schema."""
    parameters = field.get("parameters")
    scale = parameters.get("scale") if isinstance(parameters, Mapping) else None
    try:
        return str(field["name"]), -1 if scale is None else int(scale)
    except (TypeError, ValueError):
        raise InvalidRequest("schema of the event has no valid scale", scale=scale) from None


def _converters(schema: pa.Schema, logical: Mapping[str, Logical]) -> dict[str, Convert]:
    """Return the converters of row values to the types that `RowEncoder` takes, by column."""
    found = {field.name: _converter(field, logical.get(field.name)) for field in schema}
    return {name: convert for name, convert in found.items() if convert is not None}


def _read_row(convert: Mapping[str, Convert], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with values of the columns' types; unknown columns are kept."""
    return {
        name: convert[name](value) if value is not None and name in convert else value
        for name, value in row.items()
    }


def _is_unavailable(value: object) -> bool:
    """Tell whether a value is the placeholder of an unchanged value that was not sent."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    return isinstance(value, str) and value in _UNAVAILABLE


def _converter(field: pa.Field, logical: Logical | None) -> Convert | None:
    data_type = field.type
    from_text = json_converter(data_type, path=field.name)
    if from_text is None:
        return None
    if pt.is_date(data_type) or pt.is_timestamp(data_type) or pt.is_time(data_type):
        unit = _DAY if pt.is_date(data_type) else str(data_type.unit)
        return partial(_time, field, unit if logical is None else _UNITS.get(logical[0]), from_text)
    if pt.is_decimal(data_type):
        return partial(_decimal, field, logical, from_text)
    return from_text


def _time(field: pa.Field, unit: str | None, from_text: Convert, value: object) -> object:
    """Convert a number of units, or a text, to the column's type."""
    if type(value) is int:
        return _temporal(value, unit, field)
    return from_text(_short_fraction(value) if isinstance(value, str) else value)


def _short_fraction(text: str) -> str:
    """Cut zeros after the sixth digit of a fraction: Java writes nanoseconds in groups of three."""
    whole, point, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    if len(digits) <= 6 or digits[6:].strip("0"):
        return text
    return whole + point + digits[:6] + rest[len(digits) :]


def _temporal(count: int, unit: str | None, field: pa.Field) -> object:
    """Convert a number of units since 1970, or since midnight, to the column's type."""
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


def _decimal(field: pa.Field, logical: Logical | None, from_text: Convert, value: object) -> object:
    """Return a decimal from digits, from base64, or from a value with its own scale."""
    if isinstance(value, Mapping):
        own = value.get("scale")
        if set(value) == {"scale", "value"} and type(own) is int:
            return _from_base64(value["value"], own, field)
    elif logical is not None and logical[0] == _DECIMAL and isinstance(value, str):
        scale = field.type.scale if logical[1] < 0 else logical[1]
        return _from_base64(value, scale, field)
    return from_text(value)


def _from_base64(value: object, scale: int, field: pa.Field) -> Decimal:
    """Decode Java's BigDecimal: the big-endian bytes of its digits, and its scale."""
    data = b""
    if isinstance(value, str) and abs(scale) <= 100:
        with contextlib.suppress(ValueError):
            data = base64.b64decode(value, validate=True)
    if not data or len(data) > DECIMAL_BYTES_MAX:
        raise InvalidRequest("text is not the base64 of a decimal", column=field.name)
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, context=_EXACT)


class RawChange(NamedTuple):
    """One operation with values of the columns' types, not yet checked.

    `key` is the key of an update or delete; `row` is the whole row, or the columns of an update,
    with the new key if it changes.
    """

    op: int
    key: dict[str, object]
    row: dict[str, object]


class DebeziumReader:
    """Reads the events of one table under one schema version. Safe to share between threads."""

    def __init__(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        self._schema = schema
        self._key_names = key_names
        self._plain = _converters(schema, {})
        self._shapes: dict[tuple[tuple[str, Logical], ...], dict[str, Convert]] = {}

    def read(
        self, value: Json | Mapping[str, Any] | None, key: Json | Mapping[str, Any] | None = None
    ) -> list[RawChange]:
        """Return the operations of one event, none for a tombstone.

        `key` is the event's own key; a delete without a `before` needs it.

        Raises:
            InvalidRequest: if it is no such event or not strict JSON, or a value does not parse.
        """
        payload, schema = _unwrapped(value, "value")
        if payload is None:
            return []
        op = payload.get("op")
        if not isinstance(op, str):
            raise InvalidRequest("event has no operation", got=type(op).__name__)
        if op == "m":
            return []
        before, after = _row(payload, "before"), _row(payload, "after")
        values = self._values(schema)
        if op in _WHOLE:
            row = self._needed(after, "after", op)
            missing = next((name for name in row if _is_unavailable(row[name])), None)
            if missing is not None:
                raise InvalidRequest("event lacks a value of a new row", column=missing, op=op)
            return [RawChange(_WHOLE[op], {}, _read_row(values, row))]
        if op == "u":
            return self._update(before, self._needed(after, "after", op), values)
        if op == "d":
            return [RawChange(OP_DELETE, self._deleted(before, key, values), {})]
        if op == "t":
            raise InvalidRequest("a truncated table cannot be followed, delete its rows instead")
        raise InvalidRequest("event has no known operation", op=op, allowed="c|r|u|d|m")

    def _update(
        self, before: Mapping[str, Any] | None, after: Mapping[str, Any], values: dict[str, Convert]
    ) -> list[RawChange]:
        """Return an update of the received columns, under the row's previous key."""
        names = self._key_names
        old = before if before is not None and all(name in before for name in names) else after
        key = _read_row(values, self._key_part(old, "after" if old is after else "before"))
        named: dict[str, Any] = {}
        for name, value in after.items():
            if not _is_unavailable(value):
                named[name] = value
            elif old is not after and old.get(name) is not None and not _is_unavailable(old[name]):
                # A null there may be a column that the source does not log.
                named[name] = old[name]
            elif name in names:
                raise InvalidRequest("event lacks a key column", column=name, place="after")
            # Otherwise it is unchanged, and omitted because it is large: the stored value stays.
        self._key_part(named, "after")
        return [RawChange(OP_UPDATE, key, _read_row(values, named))]

    def _deleted(
        self, before: Mapping[str, Any] | None, key: object, values: dict[str, Convert]
    ) -> dict[str, object]:
        if before is not None and all(name in before for name in self._key_names):
            return _read_row(values, self._key_part(before, "before"))
        own, schema = _unwrapped(key, "key")
        if own is None:
            raise InvalidRequest(
                "delete has no before with the key columns, pass the event's key",
                columns=", ".join(self._key_names),
            )
        if schema is not None:
            values = self._values_of(_fields(schema))
        return _read_row(values, self._key_part(own, "key"))

    def _key_part(self, row: Mapping[str, Any], place: str) -> dict[str, Any]:
        try:
            return {name: row[name] for name in self._key_names}
        except KeyError as error:
            raise InvalidRequest("event lacks a key column", column=error, place=place) from None

    def _needed(self, row: Mapping[str, Any] | None, place: str, op: str) -> Mapping[str, Any]:
        if row is None:
            raise InvalidRequest(f"event has no {place}", op=op)
        return row

    def _values(self, schema: object) -> dict[str, Convert]:
        if schema is None:
            return self._plain
        for field in _fields(schema):
            if field.get("field") in {"after", "before"}:
                return self._values_of(_fields(field))
        return self._plain

    def _values_of(self, fields: list[Mapping[str, Any]]) -> dict[str, Convert]:
        """Return the converters for the logical types of a schema, created once for each."""
        logical = {str(f["field"]): _logical(f) for f in fields if "field" in f and f.get("name")}
        shape = tuple(sorted(logical.items()))
        found = self._shapes.get(shape)
        if found is None:
            found = _converters(self._schema, logical)
            if len(self._shapes) < _SHAPES_MAX:
                self._shapes[shape] = found
        return found


def _unwrapped(value: object, place: str) -> tuple[Mapping[str, Any] | None, object]:
    """Return payload and schema of an event's value or key; without a payload it is a tombstone."""
    if isinstance(value, (bytes, bytearray, memoryview, str)):
        text = value.encode(errors="surrogatepass") if isinstance(value, str) else bytes(value)
        parsed: object = None if text.strip() in {b"", b"null"} else parse_json_row(text)
    else:
        parsed = value
    if parsed is None:
        return None, None
    if not isinstance(parsed, Mapping):
        _refuse(place, parsed)
    if set(parsed) != {"schema", "payload"}:
        return parsed, None
    payload = parsed["payload"]
    if payload is not None and not isinstance(payload, Mapping):
        _refuse(place, payload)
    return payload, parsed["schema"]


def _refuse(place: str, got: object) -> NoReturn:
    raise InvalidRequest("event must be a JSON object", place=place, got=type(got).__name__)


def _row(payload: Mapping[str, Any], place: str) -> Mapping[str, Any] | None:
    row = payload.get(place)
    if row is not None and not isinstance(row, Mapping):
        _refuse(place, row)
    return row


def _fields(schema: object) -> list[Mapping[str, Any]]:
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, list) or not all(isinstance(field, Mapping) for field in fields):
        raise InvalidRequest("schema of the event has no fields")
    return fields
