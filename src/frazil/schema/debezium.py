"""Debezium's change events to operations of a keyed topic.

    reader = DebeziumReader(keyed.changes)                # of one schema version
    for raw in reader.read(event_value, key=event_key):   # JSON text, bytes or a parsed dict
        change = keyed.changes.prepare(raw.op, raw.key, raw.row)

`c` is an insert, `r` (a snapshot's row) an upsert, `u` an update of the columns that `after` has,
`d` a delete. An update whose `before` has another key names the new one among its columns: the row
moves, `ChangeCodec.prepare_move` takes it. A tombstone (no value) gives nothing, for the delete came
before it; so does `m`, a message beside the tables. An event may come with its schema
(`{"schema", "payload"}`) or without. With it, `debezium_values` learns from it how dates, times and
decimals are written; without it, the options say so, and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE, OP_UPSERT
from frazil.schema.debezium_values import Logical, ValueReader, is_unavailable
from frazil.schema.json_rows import parse_json_row

if TYPE_CHECKING:
    from frazil.schema.debezium_values import Decimals, Times
    from frazil.topic import ChangeCodec

__all__ = ["DebeziumReader", "RawChange"]

Json = bytes | bytearray | memoryview | str
_WHOLE: Final = {"c": OP_INSERT, "r": OP_UPSERT}
_SHAPES_MAX: Final = 256


class RawChange(NamedTuple):
    """One operation with values of the columns' types, not yet checked.

    `key` is that of an update or delete; `row` the whole row, or the columns that an update names,
    with the new key if it changes.
    """

    op: int
    key: dict[str, object]
    row: dict[str, object]


class DebeziumReader:
    """Reads the events of one table under one schema version. Safe to share between threads."""

    __slots__ = ("_key_names", "_plain", "_schema", "_shapes", "_times")

    def __init__(
        self, codec: ChangeCodec, *, times: Times = "column", decimals: Decimals = "string"
    ) -> None:
        """Take how events without a schema write times and decimals.

        `times` is the unit of numbers in timestamp and time columns, `column` for that of the
        column; `decimals` is `string` for digits, `base64` for Debezium's precise mode.
        """
        self._schema = codec.schema
        self._key_names = codec.shape.names
        self._times: Times = times
        self._plain = ValueReader(codec.schema, {}, times=times, decimals=decimals)
        self._shapes: dict[tuple[tuple[str, Logical], ...], ValueReader] = {}

    def read(
        self, value: Json | Mapping[str, Any] | None, key: Json | Mapping[str, Any] | None = None
    ) -> list[RawChange]:
        """Return the operations of one event, none for a tombstone.

        `key` is the event's own key; it is needed where a delete has no `before`.

        Raises:
            InvalidRequest: if it is no such event, or strict JSON, or a value does not parse.
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
            missing = next((name for name in row if is_unavailable(row[name])), None)
            if missing is not None:
                raise InvalidRequest("event lacks a value of a new row", column=missing, op=op)
            return [RawChange(_WHOLE[op], {}, values.read(row))]
        if op == "u":
            return self._update(before, self._needed(after, "after", op), values)
        if op == "d":
            return [RawChange(OP_DELETE, self._deleted(before, key, values), {})]
        if op == "t":
            raise InvalidRequest("a truncated table cannot be followed, delete its rows instead")
        raise InvalidRequest("event has no known operation", op=op, allowed="c|r|u|d|m")

    def _update(
        self, before: Mapping[str, Any] | None, after: Mapping[str, Any], values: ValueReader
    ) -> list[RawChange]:
        """Return an update of the columns that came, under the key that the row had before."""
        names = self._key_names
        old = before if before is not None and all(name in before for name in names) else after
        key = values.read(self._key_part(old, "after" if old is after else "before"))
        named: dict[str, Any] = {}
        for name, value in after.items():
            if not is_unavailable(value):
                named[name] = value
            elif old is not after and old.get(name) is not None and not is_unavailable(old[name]):
                # A null there may stand for a column that the source does not log.
                named[name] = old[name]
            elif name in names:
                raise InvalidRequest("event lacks a key column", column=name, place="after")
            # Else it did not change, and is not sent because it is large: it stays as it is.
        self._key_part(named, "after")
        return [RawChange(OP_UPDATE, key, values.read(named))]

    def _deleted(
        self, before: Mapping[str, Any] | None, key: object, values: ValueReader
    ) -> dict[str, object]:
        if before is not None and all(name in before for name in self._key_names):
            return values.read(self._key_part(before, "before"))
        own, schema = _unwrapped(key, "key")
        if own is None:
            raise InvalidRequest(
                "delete has no before with the key columns, pass the event's key",
                columns=", ".join(self._key_names),
            )
        if schema is not None:
            values = self._values_of(_fields(schema))
        return values.read(self._key_part(own, "key"))

    def _key_part(self, row: Mapping[str, Any], place: str) -> dict[str, Any]:
        try:
            return {name: row[name] for name in self._key_names}
        except KeyError as error:
            raise InvalidRequest("event lacks a key column", column=error, place=place) from None

    def _needed(self, row: Mapping[str, Any] | None, place: str, op: str) -> Mapping[str, Any]:
        if row is None:
            raise InvalidRequest(f"event has no {place}", op=op)
        return row

    def _values(self, schema: object) -> ValueReader:
        if schema is None:
            return self._plain
        for field in _fields(schema):
            if field.get("field") in {"after", "before"}:
                return self._values_of(_fields(field))
        return self._plain

    def _values_of(self, fields: list[Mapping[str, Any]]) -> ValueReader:
        """Return the reader for the logical types that a schema tells, made once for each."""
        told = {str(f["field"]): Logical.of(f) for f in fields if "field" in f and f.get("name")}
        shape = tuple(sorted(told.items()))
        reader = self._shapes.get(shape)
        if reader is None:
            # A decimal in bytes has its logical type: without one, a text holds digits.
            reader = ValueReader(self._schema, told, times=self._times, decimals="string")
            if len(self._shapes) < _SHAPES_MAX:
                self._shapes[shape] = reader
        return reader


def _unwrapped(value: object, place: str) -> tuple[Mapping[str, Any] | None, object]:
    """Return payload and schema of an event's value or key; no payload is a tombstone."""
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
