"""JSON Schema: definitions are checked, payloads are checked by them, nothing is fetched."""

from __future__ import annotations

import json

import jsonschema
import pytest

from frazil.errors import InvalidRequest
from frazil.registry import Work, limits
from frazil.registry.definitions import parse_definition

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
}
TREE = {
    "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["x"]}},
    "$ref": "#/$defs/node",
}


def parse(value):
    return parse_definition("json_schema", json.dumps(value).encode())


FINE = [
    True,
    {},
    PERSON,
    TREE,
    {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [True]},
    {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMaximum": True, "maximum": 1},
    {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}, "enum": [], "uniqueItems": True},
    {"$defs": {"a": {"$anchor": "here"}}, "$ref": "#here"},
    {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
    {"const": {"$ref": "somewhere"}},
    {"definitions": {"a b/c": {}}, "items": {"$ref": "#/definitions/a%20b~1c"}},
]


@pytest.mark.parametrize("value", FINE, ids=str)
def test_a_valid_definition_is_read(value):
    """What the meta-schema of the dialect takes is taken here."""
    jsonschema.validators.validator_for(value, jsonschema.Draft202012Validator).check_schema(value)
    assert parse(value).type == "json_schema"


WRONG = {
    "at $.type: it is one or some of array": {"type": "strin"},
    "at $.items.type: it is one": {"items": {"type": ["string", "string"]}},
    "one or some of array, boolean": {"type": []},
    "it is an object, true or false": [1],
    "at $.anyOf[1]: a schema is an object": {"anyOf": [{}, 1]},
    "at $.allOf: it is a list of schemas": {"allOf": []},
    "at $.properties: it is an object of schemas": {"properties": []},
    "at $.required: it is a list of different names": {"required": "name"},
    "at $.required: it is a list of diff": {"required": ["a", "a"]},
    "at $.minimum: it is a number": {"minimum": "1"},
    "at $.exclusiveMinimum: it is a number": {"exclusiveMinimum": True},
    "at $.minLength: it is a whole number from 0": {"minLength": -1},
    "at $.multipleOf: it is a number above 0": {"multipleOf": 0},
    "at $.dependencies.a: it is a list": {"dependencies": {"a": [1]}},
    "at $.dependentRequired: it is an object": {"dependentRequired": {"a": "b"}},
    "at $.uniqueItems: it is true or false": {"uniqueItems": 1},
    "'$schema' is 'http://example.org'": {"$schema": "http://example.org"},
    "'$schema' is '7'": {"$schema": 7},
    "only references inside the definition": {"items": {"$ref": "http://example.org/x.json"}},
    "at $.$ref: to 'file:///etc/passwd'": {"$ref": "file:///etc/passwd"},
    "'$id' inside a definition is not supported": {"items": {"$id": "http://example.org/x"}},
    "there is nothing of that name": {"$ref": "#/$defs/none"},
    "'$ref' to '#here': there is nothing": {"$ref": "#here"},
    "at $.pattern: '(' is no regular expression": {"pattern": "("},
    "at $.patternProperties: '[' is no regular expression": {"patternProperties": {"[": {}}},
    "not supported): invalid repetition size": {"pattern": "x{5000}"},
    "not supported): invalid perl operator: (?=": {"pattern": "(?=a)b"},
    "not supported): invalid escape sequence: \\1": {"pattern": r"(a)\1"},
    "has 10000 characters, at most 4096 are allowed": {"pattern": "(" * 5000 + ")" * 5000},
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_wrong_definition_is_told(reason):
    """What the dialect forbids, and what would leave the definition, is refused with its place."""
    with pytest.raises(InvalidRequest) as caught:
        parse(WRONG[reason])
    assert reason in str(caught.value)


def test_a_payload_is_checked_with_its_place():
    """The first thing that does not fit is told with its path."""
    person = parse(PERSON)
    assert person.refusal(b'{"name":"x","age":3}') is None
    assert person.refusal(b'{"name":"x","age":-1}') == "at $.age: it is less than the minimum of 0"
    assert person.refusal(b"{}") == "at $: 'name' is a required property"
    assert "not JSON" in person.refusal(b"{")
    assert "invalid UTF-8" in person.refusal(b"\xff")
    assert "not of type object" in person.refusal(b"[" * 64 + b"]" * 64)
    assert "nested too deep" in person.refusal(b"[" * 65 + b"]" * 65)
    assert "nested too deep" in person.refusal(b"[" * 100_000)
    assert "NaN" in person.refusal(b"NaN")


def test_recursive_schemas_check_recursive_payloads():
    """A schema that refers to itself is followed as deep as the payload goes, 64 at most."""
    tree = parse(TREE)
    assert tree.refusal(b'{"x":1,"next":{"x":2}}') is None
    assert tree.refusal(b'{"x":1,"next":{}}') == "at $.next: 'x' is a required property"
    assert tree.refusal(b'{"x":1,"next":' * 63 + b'{"x":1}' + b"}" * 63) is None
    assert "too deep" in tree.refusal(b'{"x":1,"next":' * 64 + b'{"x":1}' + b"}" * 64)


def test_a_schema_that_never_ends_refuses_the_payload():
    """A reference to itself is a refusal of the payload, no error of ours."""
    assert "without end" in parse({"$ref": "#"}).refusal(b"{}")


def test_choices_that_never_end_are_given_up_after_little_work():
    """Two ways back to the start are not tried two to the power of the depth times."""
    endless = parse({"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]})
    wide = {"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}
    for _ in range(12):
        wide = {"anyOf": [{"allOf": [wide, wide]}, wide] if len(str(wide)) < 9_000 else [wide]}
    work = Work()
    assert "without end" in endless.refusal(b"{}", work)
    assert work.units < 10_000
    assert parse(wide).refusal(b"{}", work)
    assert work.units < 2 * limits.WORK_UNITS_MAX


RULES = [
    ({"uniqueItems": True}, b"[1,true,1.0]", "its items are not different"),
    ({"contains": {"type": "null"}}, b"[1]", "0 items fit 'contains', at least 1 must"),
    ({"contains": True, "maxContains": 1}, b"[1,2]", "2 items fit 'contains', at most 1 may"),
    ({"prefixItems": [True], "items": False}, b"[1,2]", "at $[1]: nothing is allowed here"),
    ({"additionalProperties": False}, b'{"a":1}', "at $.{0}: no additional property is"),
    ({"propertyNames": {"maxLength": 1}}, b'{"ab":1}', "it has 2 characters, at most 1"),
    ({"minProperties": 1}, b"{}", "it has 0 properties, at least 1 are needed"),
    (
        {"patternProperties": {"^a": {"type": "null"}}},
        b'{"ab":1}',
        "at $.{0}: an integer is not of",
    ),
    ({"dependentRequired": {"a": ["b"]}}, b'{"a":1}', "'b' is required beside 'a'"),
    ({"dependentSchemas": {"a": False}}, b'{"a":1}', "nothing is allowed here"),
    ({"if": {"minimum": 5}, "then": {"multipleOf": 2}}, b"7", "it is not a multiple of 2"),
    ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, b"3", "2 choices of 'oneOf' fit"),
    ({"anyOf": [{"minimum": 5}]}, b"3", "no choice of 'anyOf' fits"),
    ({"not": {"minimum": 1}}, b"3", "it fits what 'not' excludes"),
    ({"const": 1}, b"true", "at $: it is not 1"),
    ({"enum": [1, "a"]}, b"2", "it is none of the listed values"),
    ({"exclusiveMinimum": 1}, b"1", "it is not greater than 1"),
    ({"maximum": 1}, b"1.5", "it is greater than the maximum of 1"),
    ({"pattern": "^a"}, b'"b"', "it does not match the pattern '^a'"),
    (
        {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": False},
        b'{"a":1,"b":2}',
        "at $.{1}: nothing is allowed here",
    ),
    ({"prefixItems": [True], "unevaluatedItems": False}, b"[1,2]", "at $[1]: nothing"),
]


@pytest.mark.parametrize(("schema", "payload", "reason"), RULES, ids=[row[2] for row in RULES])
def test_each_rule_tells_what_it_wants(schema, payload, reason):
    """A payload that breaks one rule has one reason."""
    assert reason in parse(schema).refusal(payload)


@pytest.mark.parametrize("payload", [b'{"card":"x","card":1}', b'{"o":[{"n":0,"n":0}]}'])
def test_a_name_that_stands_twice_is_refused(payload):
    """What one reader takes for a text and another for a number fits no schema."""
    card = parse({"properties": {"card": {"type": "integer"}}})
    assert "stands twice in one JSON object" in card.refusal(payload)


WHOLE = {"type": "integer"}


@pytest.mark.parametrize("schema", [True, WHOLE, {"items": WHOLE}, {"additionalProperties": WHOLE}])
@pytest.mark.parametrize("form", ["%s", "[%s]", "[1,%s]", '{"a":%s}', '{"a":[{"b":%s}]}'])
def test_whole_numbers_have_64_bits(schema, form):
    """The smallest with a sign and the largest without one fit, one beyond them nowhere does."""
    told = "a whole number has more than 64 bits"
    parsed = parse(schema)
    for fine in ("-9223372036854775808", "18446744073709551615"):
        assert told != parsed.refusal((form % fine).encode())
    for wrong in ("-9223372036854775809", "18446744073709551616", "1" * 400, "-" + "9" * 400):
        assert parsed.refusal((form % wrong).encode()) == told


@pytest.mark.parametrize("form", ["%s", "[%s]", '{"a":%s}'])
def test_a_number_that_no_reader_can_hold_is_refused(form):
    """An exponent beyond the floating-point range is told, also where it would be divided."""
    for schema in (True, {"multipleOf": 2}, {"items": {"multipleOf": 2}}):
        for number in ("1e400", "-1e400"):
            told = parse(schema).refusal((form % number).encode())
            assert told == "a number is beyond the floating-point range"
        assert parse(schema).refusal((form % "1e300").encode()) is None


def test_fractions_are_judged_as_they_are_written():
    """Three tenths are a multiple of a tenth, whatever they are in binary."""
    tenth = parse({"multipleOf": 0.1})
    assert tenth.refusal(b"0.3") is None
    assert tenth.refusal(b"0.35") == "at $: it is not a multiple of 0.1"


def test_definitions_are_nested_64_deep_at_most():
    """64 levels are read, one more is refused."""
    fine = wrong = {"type": "integer"}
    for _ in range(63):
        fine = {"items": fine}
    for _ in range(64):
        wrong = {"items": wrong}
    assert parse(fine).type == "json_schema"
    with pytest.raises(InvalidRequest, match="nested too deep"):
        parse(wrong)
