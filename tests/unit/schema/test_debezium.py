"""Debezium's events: with and without schema, key changes, tombstones, logical types, junk."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal

import pytest

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE, OP_UPSERT
from frazil.schema.debezium import DebeziumReader, RawChange
from tests.unit.schema.keyed_topic import topic_codec

COLUMNS = {
    "id": "long",
    "name": "string",
    "day": "date",
    "at": "timestamptz",
    "local": "timestamp",
    "clock": "time",
    "price": "decimal(12,2)",
    "blob": "binary",
    "tags": "list<string>",
}
UNAVAILABLE = "__debezium_unavailable_value"
BEFORE, AFTER = {"id": 1, "name": "old"}, {"id": 1, "name": "new"}


def reader(columns=COLUMNS, key=("id",)):
    return DebeziumReader(topic_codec(columns, key)[1], key)


def event(op, *, before=None, after=None, fields=None):
    payload = {"before": before, "after": after, "source": {"ts_ms": 1}, "op": op, "ts_ms": 2}
    if fields is None:
        return payload
    table = {"type": "struct", "fields": fields}
    schema = {
        "type": "struct",
        "fields": [{**table, "field": "before"}, {**table, "field": "after"}],
    }
    return {"schema": schema, "payload": payload}


@pytest.mark.parametrize(
    "form",
    [
        lambda value: value,
        json.dumps,
        lambda value: json.dumps(value).encode(),
        lambda value: {"schema": None, "payload": value},
        lambda value: json.dumps({"schema": {"type": "struct", "fields": []}, "payload": value}),
    ],
)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (event("c", after=AFTER), [RawChange(OP_INSERT, {}, AFTER)]),
        (event("r", after=AFTER), [RawChange(OP_UPSERT, {}, AFTER)]),
        (event("u", before=BEFORE, after=AFTER), [RawChange(OP_UPDATE, {"id": 1}, AFTER)]),
        (event("u", after=AFTER), [RawChange(OP_UPDATE, {"id": 1}, AFTER)]),
        (event("d", before=BEFORE), [RawChange(OP_DELETE, {"id": 1}, {})]),
        (event("m"), []),
    ],
)
def test_each_operation_becomes_ours(value, expected, form):
    """Whether it comes as text, bytes or a dict, with or without its schema."""
    assert reader().read(form(value)) == expected


def test_a_changed_key_is_named_by_the_update_of_the_old_one():
    """The row is found under its old key; what the event does not carry is not made up."""
    found = reader().read(event("u", before=BEFORE, after={"id": 2, "name": "new"}))
    assert found == [RawChange(OP_UPDATE, {"id": 1}, {"id": 2, "name": "new"})]


def test_keys_are_compared_as_values_not_as_text():
    """A decimal key written with other digits is the same key."""
    own = reader({"k": "decimal(9,3)", "v": "int"}, ["k"])
    found = own.read(event("u", before={"k": "1.5", "v": 1}, after={"k": "1.500", "v": 2}))
    assert [raw.op for raw in found] == [OP_UPDATE]


@pytest.mark.parametrize(
    "value", [None, b"null", "null", b"", " null ", {"schema": None, "payload": None}]
)
def test_a_tombstone_is_nothing(value):
    """The delete came before it; with its key or without."""
    assert reader().read(value, key={"id": 1}) == []
    assert reader().read(value) == []


@pytest.mark.parametrize(
    "key", [{"id": 1}, b'{"id": 1}', '{"schema": {"fields": []}, "payload": {"id": 1}}']
)
@pytest.mark.parametrize("before", [None, {"name": "x"}])
def test_a_delete_without_before_goes_by_the_events_key(key, before):
    """Tables that log no old rows send the key apart."""
    assert reader().read(event("d", before=before), key=key) == [
        RawChange(OP_DELETE, {"id": 1}, {})
    ]


@pytest.mark.parametrize(
    "placeholder", [UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode(), [UNAVAILABLE]]
)
def test_a_value_that_was_not_sent_stays_as_it_is(placeholder):
    """An update does not name it unless `before` has it, and neither does a row that moves."""
    after = {"id": 1, "name": "n", "blob": placeholder}
    assert reader().read(event("u", after=after))[0].row == {"id": 1, "name": "n"}
    moved = event("u", before={"id": 2, "blob": "AQI="}, after=after)
    assert reader().read(moved)[0].row == {"id": 1, "name": "n", "blob": b"\1\2"}
    # A source that logs no old rows says null where it knows nothing.
    for before in ({"id": 2}, {"id": 2, "blob": placeholder}, {"id": 2, "blob": None}):
        [raw] = reader().read(event("u", before=before, after=after))
        assert raw == RawChange(OP_UPDATE, {"id": 2}, {"id": 1, "name": "n"})
    for op in "cr":
        with pytest.raises(InvalidRequest, match=r"lacks a value.*blob"):
            reader().read(event(op, after=after))


def test_a_key_that_was_not_sent_is_taken_from_before_or_refused():
    """The placeholder never becomes a key."""
    own = reader({"k": "string", "v": "int"}, ["k"])
    after = {"k": UNAVAILABLE, "v": 1}
    assert own.read(event("u", before={"k": "long"}, after=after)) == [
        RawChange(OP_UPDATE, {"k": "long"}, {"k": "long", "v": 1})
    ]
    with pytest.raises(InvalidRequest, match="lacks a key column"):
        own.read(event("u", after=after))


MOMENT = dt.datetime(2026, 3, 4, 5, 6, 7, 890_000, tzinfo=dt.UTC)
MOMENT_MS = 1_772_600_767_890
CLOCK = dt.time(5, 6, 7, 890_000)
CLOCK_MS = 18_367_890


@pytest.mark.parametrize(
    ("column", "logical", "value", "expected"),
    [
        ("day", "io.debezium.time.Date", 20_516, dt.date(2026, 3, 4)),
        ("day", "org.apache.kafka.connect.data.Date", -1, dt.date(1969, 12, 31)),
        ("day", "io.debezium.time.Timestamp", 20_516 * 86_400_000, dt.date(2026, 3, 4)),
        ("at", "io.debezium.time.Timestamp", MOMENT_MS, MOMENT),
        ("at", "io.debezium.time.MicroTimestamp", MOMENT_MS * 1000, MOMENT),
        ("at", "io.debezium.time.NanoTimestamp", MOMENT_MS * 1_000_000, MOMENT),
        ("at", "org.apache.kafka.connect.data.Timestamp", MOMENT_MS, MOMENT),
        ("at", "io.debezium.time.ZonedTimestamp", "2026-03-04T05:06:07.890Z", MOMENT),
        ("at", "io.debezium.time.ZonedTimestamp", "2026-03-04T05:06:07.890000000Z", MOMENT),
        ("at", "io.debezium.time.ZonedTimestamp", "2026-03-04T06:06:07.89+01:00", MOMENT),
        ("local", "io.debezium.time.Timestamp", MOMENT_MS, MOMENT.replace(tzinfo=None)),
        ("local", "io.debezium.time.Date", 1, dt.datetime.fromisoformat("1970-01-02")),
        ("clock", "io.debezium.time.Time", CLOCK_MS, CLOCK),
        ("clock", "io.debezium.time.MicroTime", CLOCK_MS * 1000, CLOCK),
        ("clock", "io.debezium.time.NanoTime", CLOCK_MS * 1_000_000, CLOCK),
        ("price", "org.apache.kafka.connect.data.Decimal", "AeJA", Decimal("1234.56")),
        ("price", "org.apache.kafka.connect.data.Decimal", "/w==", Decimal("-0.01")),
        (
            "price",
            "io.debezium.data.VariableScaleDecimal",
            {"scale": 1, "value": "Dw=="},
            Decimal("1.5"),
        ),
        ("blob", "", "AQI=", b"\1\2"),
    ],
)
def test_logical_types_of_the_schema_are_followed(column, logical, value, expected):
    """The event's schema says what numbers and texts mean."""
    field = {"field": column, "type": "any", "name": logical, "parameters": {"scale": "2"}}
    found = reader().read(event("r", after={"id": 1, column: value}, fields=[field]))
    assert found[0].row == {"id": 1, column: expected}
    key_event = {"schema": {"fields": [field]}, "payload": {column: value}}
    if column in {"day", "at", "clock", "price"}:
        keyed = reader({column: COLUMNS[column]}, [column])
        assert keyed.read(event("d"), key=key_event)[0].key == {column: expected}


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("day", 20_516, dt.date(2026, 3, 4)),
        ("day", "2026-03-04", dt.date(2026, 3, 4)),
        ("at", MOMENT_MS * 1000, MOMENT),
        ("clock", CLOCK_MS * 1000, CLOCK),
        ("price", "1234.5", Decimal("1234.5")),
        ("price", 12.5, Decimal("12.5")),
        ("price", 12, Decimal(12)),
        ("tags", ["a", None], ["a", None]),
        ("name", None, None),
    ],
)
@pytest.mark.parametrize("fields", [None, [{"field": "price", "type": "string"}]])
def test_without_a_logical_type_the_column_says_what_a_value_means(fields, column, value, expected):
    """A number counts in the column's unit and a text holds digits."""
    (raw,) = reader().read(event("c", after={"id": 1, column: value}, fields=fields))
    assert raw.row[column] == expected
    assert type(raw.row[column]) is type(expected)


@pytest.mark.parametrize(
    ("column", "logical", "value", "why"),
    [
        ("at", "io.debezium.time.NanoTimestamp", 1, "finer than a microsecond"),
        ("at", "io.debezium.time.MicroDuration", 1, "logical type does not fit"),
        ("at", "io.debezium.time.Timestamp", 2**62, "out of range"),
        ("at", "", 1.5, "does not parse"),
        ("at", "", True, "does not parse"),
        ("at", "io.debezium.time.ZonedTimestamp", "2026-03-04T05:06:07.123456789Z", "parse"),
        ("local", "", "2026-03-04T05:06:07Z", "does not parse"),
        ("day", "io.debezium.time.Timestamp", 1, "finer than a day"),
        ("day", "", 10**7, "out of range"),
        ("clock", "", 86_400_000_000, "out of range"),
        ("clock", "", -1, "out of range"),
        ("price", "org.apache.kafka.connect.data.Decimal", "12.5", "base64"),
        ("price", "org.apache.kafka.connect.data.Decimal", "", "base64"),
        ("price", "", {"scale": "1", "value": "Dw=="}, "does not parse"),
        ("price", "", {"scale": 10**9, "value": "Dw=="}, "base64"),
        ("price", "", "AeJA", "does not parse"),
        ("blob", "", "?", "does not parse"),
    ],
)
def test_values_that_do_not_fit_are_refused(column, logical, value, why):
    """Nothing is rounded or guessed, and the error names the column."""
    fields = [{"field": column, "name": logical, "parameters": {"scale": "2"}}]
    with pytest.raises(InvalidRequest, match=why) as caught:
        reader().read(event("c", after={"id": 1, column: value}, fields=fields))
    assert caught.value.details["column"] == column


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (event("x", after=AFTER), "no known operation"),
        (event("t"), "truncated"),
        ({"after": AFTER}, "no operation"),
        (event(["c"], after=AFTER), "no operation"),
        (event("c"), "no after"),
        (event("u", before=BEFORE), "no after"),
        (event("d"), "no before"),
        (event("u", after={"name": "x"}), "lacks a key column"),
        (event("c", after=[1]), "must be a JSON object"),
        ({"schema": {}, "payload": event("c", after=AFTER)}, "no fields"),
        ({"schema": None, "payload": 3}, "must be a JSON object"),
        (b"[]", "must be an object"),
        (b"{", "JSON is invalid"),
        (b'{"op":"c","op":"d"}', "twice"),
        (b'{"op":"c","after":{"id":9223372036854775808}}', "beyond 64 bit"),
        (3, "must be a JSON object"),
    ],
)
def test_what_is_no_event_is_refused(value, why):
    """Strict JSON as in rows, and every part that the operation needs."""
    with pytest.raises(InvalidRequest, match=why):
        reader().read(value)


def test_a_schema_with_a_wrong_scale_is_refused():
    """A scale that is no number cannot be followed."""
    field = {"field": "price", "name": "org.apache.kafka.connect.data.Decimal"}
    fields = [{**field, "parameters": {"scale": "two"}}]
    with pytest.raises(InvalidRequest, match="no valid scale"):
        reader().read(event("c", after={"id": 1, "price": "AQ=="}, fields=fields))


def test_the_event_is_left_as_it_came():
    """A parsed event is the caller's: nothing in it is replaced."""
    value = event("u", before={"id": 2, "day": 1}, after={"id": 1, "day": 2})
    copy = json.loads(json.dumps(value))
    reader().read(value)
    assert value == copy
