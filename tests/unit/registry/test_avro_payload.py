"""Payloads of Avro schemas: what a writer wrote is taken, everything else is told."""

from __future__ import annotations

import io
import json
import struct

import fastavro
import pytest

from frazil.registry.definitions import parse_definition
from tests.unit.registry.counted_lines import lines_at_most

LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "n", "type": ["null", "L"], "default": None}],
}
ROW = {
    "type": "record",
    "name": "Row",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "kind", "type": {"type": "enum", "name": "K", "symbols": ["A", "B"]}},
        {"name": "raw", "type": {"type": "fixed", "name": "F", "size": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "yes", "type": "boolean"},
        {"name": "small", "type": "int"},
        {"name": "part", "type": "float"},
        {"name": "blob", "type": "bytes"},
    ],
}
VALUE = {
    "id": -(1 << 63),
    "name": "é",
    "kind": "B",
    "raw": b"ab",
    "tags": ["x", ""],
    "more": {"a": None, "b": 1.5},
    "yes": True,
    "small": 5,
    "part": 0.5,
    "blob": b"\xff",
}


def refusal(schema, payload):
    return parse_definition("avro", json.dumps(schema).encode()).refusal(payload)


def written(schema, value):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, value)
    return sink.getvalue()


def long(number):
    return written("long", number)


def test_what_was_written_is_taken():
    """A value with every type, as another implementation writes it, has no reason."""
    assert refusal(ROW, written(ROW, VALUE)) is None


def test_each_shorter_and_longer_payload_is_refused():
    """No prefix of a value is a value, nor is a value with a byte behind it."""
    payload = written(ROW, VALUE)
    checked = parse_definition("avro", json.dumps(ROW).encode())
    assert all(checked.refusal(payload[:size]) for size in range(len(payload)))
    assert "1 bytes are left behind it" in checked.refusal(payload + b"\0")


WRONG = [
    ("int", long(1 << 31), "at $: a number is out of the range of int"),
    ("long", b"\xff" * 10 + b"\1", "longer than 10 bytes"),
    ("long", b"\xff" * 9 + b"\x7f", "out of the range of long"),
    ("boolean", b"\2", "a boolean that is neither 0 nor 1"),
    ("string", long(2) + b"\xff\xfe", "not valid UTF-8"),
    ("bytes", long(-1), "a bytes of negative size"),
    ("bytes", long(1 << 60), "a bytes is longer than the 0 bytes"),
    ("double", b"\0" * 7, "a double is longer than the 7 bytes"),
    (["null", "int"], long(2), "a branch that a union of 2 does not have"),
    (["null", "int"], long(-1), "a branch that a union of 2 does not"),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, long(1), "a symbol that enum E with 1"),
    ({"type": "array", "items": "string"}, long(1) + long(1), "at $[*]: a string is longer"),
    ({"type": "map", "values": "int"}, long(1) + long(0), "at ${*}: the payload ends"),
    ({"type": "array", "items": "int"}, long(-1) + long(2) + b"\2\0", "another size"),
    ({"type": "record", "name": "R", "fields": [{"name": "a", "type": LIST}]}, b"\4", "at $.a.n"),
]


@pytest.mark.parametrize(("schema", "payload", "reason"), WRONG, ids=[row[2] for row in WRONG])
def test_wrong_bytes_are_told_with_their_place(schema, payload, reason):
    """Each way in which bytes are no value has its own words."""
    assert reason in refusal(schema, payload)


def test_a_block_that_says_its_size_is_taken():
    """A block with a negative count and its size in bytes is read, as is one without."""
    items = {"type": "array", "items": "int"}
    assert refusal(items, long(-2) + long(2) + b"\2\4" + long(1) + b"\6" + long(0)) is None


def test_a_list_of_a_million_nested_records_is_refused():
    """A payload that would end a recursive reader's process is refused at the hundredth level."""
    assert "nested deeper than 100" in refusal(LIST, b"\2" * 1_000_000 + b"\0")
    assert refusal(LIST, b"\2" * 40 + b"\0") is None


def test_items_that_take_no_byte_cost_no_work():
    """An array of 2^60 nulls, or of empty records, is judged without a look at each."""
    empty = {"type": "record", "name": "E", "fields": [{"name": "n", "type": "null"}]}
    for items in ("null", empty):
        schema, payload = {"type": "array", "items": items}, long(1 << 60) + long(0)
        with lines_at_most(2_000):
            assert refusal(schema, payload) is None


def test_a_float_of_any_bits_is_taken():
    """NaN and infinities are values."""
    for value in (float("nan"), float("inf")):
        assert refusal("double", struct.pack("<d", value)) is None
