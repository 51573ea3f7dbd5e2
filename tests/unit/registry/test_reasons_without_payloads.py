"""No reason for a refusal has anything of the payload in it: neither values nor names of its own."""

from __future__ import annotations

import json

import pytest

from frazil.registry import Registry
from frazil.registry.definitions import parse_definition

SECRET = "4111-SECRET-1111"
NUMBER = 4111_1111
OTHERS = {"type": "integer"}

JSON = {
    "type": ({"properties": {"card": OTHERS}}, {"card": SECRET}),
    "type of a number": ({"properties": {"card": {"type": "string"}}}, {"card": NUMBER}),
    "type of an item": ({"items": OTHERS}, [SECRET]),
    "type of a list": (OTHERS, [SECRET]),
    "type of an object": (OTHERS, {SECRET: NUMBER}),
    "enum": ({"enum": ["a"]}, SECRET),
    "const": ({"const": 5}, NUMBER),
    "minimum": ({"minimum": 10**9}, NUMBER),
    "maximum": ({"maximum": 5}, NUMBER),
    "exclusiveMinimum": ({"exclusiveMinimum": 10**9}, NUMBER),
    "exclusiveMaximum": ({"exclusiveMaximum": 5}, NUMBER),
    "multipleOf": ({"multipleOf": 7}, NUMBER),
    "pattern": ({"pattern": "^a"}, SECRET),
    "maxLength": ({"maxLength": 3}, SECRET),
    "uniqueItems": ({"uniqueItems": True}, [SECRET, SECRET]),
    "contains": ({"contains": OTHERS}, [SECRET]),
    "additionalProperties": ({"additionalProperties": False}, {SECRET: 1}),
    "a schema of them": ({"additionalProperties": OTHERS}, {SECRET: "x"}),
    "inside of one": ({"additionalProperties": {"required": ["x"]}}, {SECRET: {}}),
    "patternProperties": ({"patternProperties": {"^4": OTHERS}}, {SECRET: SECRET}),
    "propertyNames": ({"propertyNames": {"maxLength": 3}}, {SECRET: 1}),
    "values of propertyNames": ({"propertyNames": {"enum": ["a"]}}, {SECRET: 1}),
    "unevaluatedProperties": ({"unevaluatedProperties": False}, {SECRET: 1}),
    "unevaluatedItems": ({"unevaluatedItems": False}, [SECRET]),
    "not": ({"not": {"type": "string"}}, SECRET),
    "anyOf": ({"anyOf": [OTHERS]}, SECRET),
    "oneOf": ({"oneOf": [{}, {}]}, SECRET),
    "required": ({"required": ["x"]}, {SECRET: SECRET}),
    "dependentRequired": ({"dependentRequired": {"x": ["y"]}}, {"x": SECRET}),
}
TEXTS = {
    "a name twice": f'{{"{SECRET}":1,"{SECRET}":2}}',
    "no JSON": f'{{"a":"{SECRET}"',
    "a bare word": SECRET,
    "behind the value": f'1 "{SECRET}"',
    "an escape": f'"{SECRET}\\4111"',
    "a line break": f'"{SECRET}\n"',
    "too long a number": "4111" * 100,
    "endless digits": "4111" * 2_000,
    "too large a number": "4111e4111",
}


def assert_silent(told):
    assert told
    assert "4111" not in told
    assert "SECRET" not in told


@pytest.mark.parametrize("case", JSON)
def test_no_value_and_no_name_of_a_json_payload_is_told(case):
    """Each rule of JSON Schema names the place and what it wants, not what was there."""
    schema, payload = JSON[case]
    definition = parse_definition("json_schema", json.dumps(schema).encode())
    assert_silent(definition.refusal(json.dumps(payload).encode()))


@pytest.mark.parametrize("case", TEXTS)
def test_text_that_is_no_payload_is_not_told(case):
    """What cannot be read is told by its position."""
    assert_silent(parse_definition("json_schema", b"true").refusal(TEXTS[case].encode()))


def test_names_of_the_schema_are_told():
    """A name is told wherever the schema has it, in another part of it too; else its position."""
    definition = parse_definition(
        "json_schema",
        json.dumps(
            {
                "properties": {"card": OTHERS},
                "required": ["card"],
                "additionalProperties": {"additionalProperties": False},
            }
        ).encode(),
    )
    assert definition.refusal(b'{"card":"x"}') == "at $.card: a string is not of type integer"
    assert definition.refusal(b'{"card":1,"card":2}') == (
        "the name 'card' stands twice in one JSON object"
    )
    told = definition.refusal(b'{"card":1,"b":{},"c":{"d":0}}')
    assert told == "at $.{2}.{0}: no additional property is allowed"
    assert definition.refusal(b'{"card":1,"c":{"card":0}}').startswith("at $.{1}.card: no add")


def long(number):
    """Return a number as Avro writes it."""
    number = number << 1 if number >= 0 else (-number << 1) - 1
    data = b""
    while number > 127:
        data += bytes([number & 127 | 128])
        number >>= 7
    return data + bytes([number])


AVRO = [
    ("int", long(41111111111)),
    ("boolean", bytes([41])),
    ("bytes", long(4111)),
    ("bytes", long(-4111)),
    ({"type": "fixed", "name": "F", "size": 8}, SECRET.encode()[:4]),
    (["null", "int"], long(4111)),
    (["null", "int"], long(-4111)),
    ({"type": "enum", "name": "E", "symbols": ["A"]}, long(4111)),
    ({"type": "map", "values": "boolean"}, long(1) + long(16) + SECRET.encode() + b"\x29\x00"),
    ({"type": "array", "items": "int"}, long(-1) + long(4111)),
    ("string", long(17) + SECRET.encode() + b"\xff"),
    ("null", SECRET.encode()),
]


@pytest.mark.parametrize(("schema", "payload"), AVRO)
def test_no_value_of_an_avro_payload_is_told(schema, payload):
    """Neither numbers nor sizes that the payload claims, nor keys of maps."""
    told = parse_definition("avro", json.dumps(schema).encode()).refusal(payload)
    assert_silent(told)
    assert "41" not in told


def test_no_value_of_a_protobuf_payload_is_told():
    """Keys of maps and bytes of another type are left out."""
    text = b"""syntax = "proto2";
    message M { map<string, N> m = 1; optional int32 card = 2; }
    message N { required int32 a = 1; }"""
    definition = parse_definition("protobuf", text)
    entry = b"\x0a\x10" + SECRET.encode() + b"\x12\x00"
    told = definition.refusal(b"\x0a" + bytes([len(entry)]) + entry)
    assert_silent(told)
    assert "m{*}.a" in told
    assert_silent(definition.refusal(b"\x12\x10" + SECRET.encode()))
    assert_silent(definition.refusal(SECRET.encode()))


@pytest.mark.parametrize("kind", ["string", "number"])
def test_no_value_of_a_plain_payload_is_told(kind):
    """What is no text or no number is told by its place or its length."""
    assert_silent(parse_definition(kind, b"").refusal(SECRET.encode() + b"\xff"))


def test_the_refusal_that_a_sender_sees_is_silent_too():
    """Around the reason there are topic, subject and version, and nothing of the record."""
    registry = Registry()
    schema = b'{"properties": {"card": {"type": "integer"}}}'
    registry.commit(registry.register("s", "json_schema", schema, now=1))
    registry.commit(registry.configure_topic("/n/t", "s", "enforce", check_payload=True))
    verdict = registry.check_message("/n/t", b'{"card":"%s"}' % SECRET.encode(), schema_id=1)
    assert not verdict.is_accepted
    assert_silent(verdict.reason)
    assert verdict.reason.endswith("at $.card: a string is not of type integer")
