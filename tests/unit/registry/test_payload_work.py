"""The check of one payload is bounded by the work it is, whatever schema and payload are."""

from __future__ import annotations

import json

import pytest

from frazil.errors import InvalidRequest, Unavailable
from frazil.registry import Registry, Work, limits
from frazil.registry.definitions import parse_definition
from frazil.registry.json_identity import Identities, Listed
from frazil.registry.json_patterns import pattern_size

GIVEN_UP = "schema needs too much work for this payload"
ITEMS = 20_000
"""Few enough for a definition of a few choices, many enough to be seen in the work."""


def schema_of(value):
    return parse_definition("json_schema", json.dumps(value).encode())


def judged(schema, payload):
    """Return the verdict on a payload and the units of work it took."""
    work = Work()
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    found = schema_of(schema).refusal(data, work)
    return found, work.units


ARRAYS = {
    "enum": lambda n: {"anyOf": [{"enum": [[each]]} for each in range(n)]},
    "const": lambda n: {"anyOf": [{"const": [each]} for each in range(n)]},
    "uniqueItems": lambda n: {"allOf": [{"uniqueItems": True}] * n},
    "minItems": lambda n: {"allOf": [{"minItems": 1}] * n},
    "type": lambda n: {"anyOf": [{"type": "null"}] * n},
}


@pytest.mark.parametrize("keyword", ARRAYS)
def test_a_value_is_walked_once_however_many_choices_look_at_it(keyword):
    """A thousand more choices cost a thousand schemas more, not a thousand walks over a list."""
    values = list(range(ITEMS))
    _, few = judged(ARRAYS[keyword](10), values)
    _, many = judged(ARRAYS[keyword](1_010), values)
    assert many - few == 1_000 * 4


@pytest.mark.parametrize("values", [list(range(ITEMS)), ["a"] * ITEMS, [[]] * ITEMS])
@pytest.mark.parametrize("keyword", ["enum", "const"])
def test_a_walk_over_a_value_is_charged(keyword, values):
    """A keyword that looks at all of a value pays for each part of it, also for equal ones."""
    _, units = judged(ARRAYS[keyword](1), values)
    _, others = judged(ARRAYS["type"](1), values)
    assert units - others > ITEMS


def test_what_was_looked_at_is_paid_for_wherever_it_is_handed_on():
    """A list of the items that were looked at costs its length at each schema it goes through."""
    schema = {"items": True}
    for _ in range(28):
        schema = {"allOf": [schema]}
    _, units = judged(schema, [1] * 1_000)
    found, tracked = judged({**schema, "unevaluatedItems": False}, [1] * 1_000)
    assert found is None
    assert tracked - units > 28 * 1_000


def test_one_large_message_against_thousands_of_lists_is_given_up():
    """A message of 800 kB and 30,000 lists of values are refused for the work, in words."""
    schema = ARRAYS["enum"](30_000)
    found, units = judged(schema, b"[" + b",".join([b"1"] * 400_000) + b"]")
    assert found == GIVEN_UP
    assert units < 2 * limits.WORK_UNITS_MAX
    found, units = judged(schema, [29_999])
    assert found is None
    assert units < 4 * 30_001 + 10


WALKS = {
    "unevaluatedItems": (
        {"allOf": [{"items": True}] * 100, "unevaluatedItems": False},
        [1] * 2_000,
    ),
    "properties": (
        {"allOf": [{"properties": {"x": True}}] * 500},
        {f"k{n}": 1 for n in range(1_000)},
    ),
    "required": (
        {
            "$defs": {"a": {"required": [f"k{n}" for n in range(1_000)]}},
            "allOf": [{"$ref": "#/$defs/a"}] * 1_000,
        },
        {f"k{n}": 1 for n in range(1_000)},
    ),
    "dependentRequired": (
        {
            "$defs": {"a": {"dependentRequired": {f"k{n}": ["k1"] for n in range(1_000)}}},
            "allOf": [{"$ref": "#/$defs/a"}] * 500,
        },
        {f"k{n}": 1 for n in range(1_000)},
    ),
    "a long name": (
        {"$defs": {"a": {"required": ["x" * 300_000]}}, "allOf": [{"$ref": "#/$defs/a"}] * 10_000},
        {"x" * 300_000: 1},
    ),
    "pattern": ({"items": {"pattern": "[a-z]{1000}"}}, ["ab" * 500] * 100),
    "multipleOf": ({"items": {"multipleOf": 7}}, [14.0] * 10_000),
    "items": ({"items": {"type": "integer"}}, [1] * 100_000),
}


@pytest.mark.parametrize("name", WALKS)
def test_every_keyword_pays_for_what_it_walks_over(name):
    """What takes long is given up, although few schemas are visited."""
    schema, payload = WALKS[name]
    found, units = judged(schema, payload)
    assert found == GIVEN_UP
    assert units < 2 * limits.WORK_UNITS_MAX


def test_what_is_usual_is_far_from_the_limit():
    """A thousand orders of ten fields in one message need a fraction of the work allowed."""
    fields = {f"field{n}": {"type": "string", "maxLength": 20} for n in range(10)}
    order = {"type": "object", "properties": fields, "required": list(fields)}
    orders = [dict.fromkeys(fields, f"text {number}") for number in range(1_000)]
    found, units = judged({"items": order, "uniqueItems": True}, orders)
    assert found is None
    assert units < limits.WORK_UNITS_MAX // 4


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([1, {"a": 2}], [1.0, {"a": 2.0}], True),
        ({"a": 1, "b": [None]}, {"b": [None], "a": 1}, True),
        ([True], [1], False),
        ([None], ["None"], False),
        (["array", [1]], [["array", 1]], False),
        ({}, [], False),
        (False, 0, False),
    ],
)
def test_equal_values_have_one_number(one, other, equal):
    """True is not 1, 1 is 1.0, the order of names does not count; listed or not."""
    plain = Identities(Listed(None), Work())
    assert (plain.number(one) == plain.number(other)) is equal
    listing = Listed({"enum": [one]})
    listed = Identities(listing, Work())
    assert (listed.number(other) in next(iter(listing.sets.values()))) is equal


def test_a_list_that_only_a_reference_makes_a_schema_counts():
    """A reference into data is followed, and what the data lists is compared as elsewhere."""
    schema = {"examples": [{"enum": [[1], "a"]}, {"const": [2]}]}
    one = schema_of({**schema, "$ref": "#/examples/0"})
    assert one.refusal(b"[1.0]") is None
    assert "none of the listed" in one.refusal(b"[true]")
    two = schema_of({**schema, "$ref": "#/examples/1"})
    assert two.refusal(b"[2]") is None
    assert "it is not [2]" in two.refusal(b"[3]")


@pytest.mark.parametrize(
    ("pattern", "least"),
    [
        ("^abc$", 5),
        ("a{1000}", 1_000),
        ("(ab{10}){20}", 220),
        (r"[[:alpha:]\pL]{100}", 160_000),
        (r"[]\pL]{100}", 160_000),
        (r"(\pL\Q)\E){100}", 160_000),
        (r"(?i)\pL{100}", 320_000),
        ("a{2,}", 3),
        ("a{2,5}", 5),
    ],
)
def test_repetitions_count_as_often_as_they_are(pattern, least):
    """The size of a pattern is that of its program, in which a repetition is written out."""
    assert least <= pattern_size(pattern) <= 2 * least + 100


def test_patterns_that_take_long_to_read_are_refused():
    """Neither one pattern nor thousands of them keep whoever registers others waiting."""
    with pytest.raises(InvalidRequest, match="needs too much work, repeat less"):
        schema_of({"pattern": r"(?i)\pL{999}"})
    many = [{"pattern": f"x{{1000}}{number}"} for number in range(5_000)]
    with pytest.raises(InvalidRequest, match="the patterns need too much work"):
        schema_of({"allOf": many})


def test_avro_fields_without_a_byte_are_work_too():
    """A list of records with thousands of empty fields, one byte each, is given up."""
    fields = [{"name": "i", "type": "int"}]
    fields += [{"name": f"f{number}", "type": "null"} for number in range(5_000)]
    record = {"type": "record", "name": "r", "fields": fields}
    schema = json.dumps({"type": "array", "items": record}).encode()
    work = Work()
    definition = parse_definition("avro", schema)
    assert definition.refusal(b"\x90\x4e" + b"\x02" * 5_000 + b"\x00", work) == GIVEN_UP
    assert work.units < 2 * limits.WORK_UNITS_MAX
    assert definition.refusal(b"\x04\x02\x02\x00") is None


def test_protobuf_messages_that_are_nothing_take_room_all_the_same():
    """Half a million empty messages of a type with thousands of fields are not made."""
    fields = " ".join(f"optional int64 f{number} = {number + 1};" for number in range(4_000))
    text = f'syntax = "proto2"; message M {{ repeated N n = 1; }} message N {{ {fields} }}'
    definition = parse_definition("protobuf", text.encode())
    work = Work()
    assert definition.refusal(b"\x0a\x00" * 500_000, work) == GIVEN_UP
    assert work.units < 2 * limits.WORK_UNITS_MAX
    assert definition.refusal(b"\x0a\x00" * 100) is None


def test_protobuf_names_few_of_the_fields_that_are_missing():
    """Of many required fields that are missing, in many messages, the first are told."""
    text = """syntax = "proto2";
    message M { repeated N n = 1; map<string, N> m = 2; optional N o = 3; }
    message N { required int32 a = 1; required int32 b = 2; }"""
    definition = parse_definition("protobuf", text.encode())
    told = "not a message M: required fields are missing: "
    assert definition.refusal(b"\x0a\x00") == told + "n[0].a, n[0].b"
    assert definition.refusal(b"\x1a\x02\x08\x01") == told + "o.b"
    assert definition.refusal(b"\x12\x05\x0a\x01k\x12\x00") == told + "m{*}.a, m{*}.b"
    assert definition.refusal(b"\x0a\x00" * 1_000).count("n[") == 8


@pytest.mark.parametrize(
    ("kind", "definition", "payload"),
    [
        ("json_schema", b'{"items": {"type": "integer"}}', b"[" + b"1," * 50_000 + b"1]"),
        ("avro", b'{"type": "array", "items": "int"}', b"\xa0\x8d\x06" + b"\x02" * 50_000 + b"\0"),
        ("protobuf", b'syntax = "proto3"; message M { repeated M m = 1; }', b"\x0a\0" * 500_000),
    ],
)
def test_a_check_ends_when_all_are_to_stop(kind, definition, payload):
    """Somewhere in the middle the check asks, and then it is no verdict on the record."""
    asked = []

    def is_stopped():
        asked.append(True)
        return len(asked) > 3

    parsed = parse_definition(kind, definition)
    work = Work(is_stopped)
    with pytest.raises(Unavailable):
        parsed.refusal(payload, work)
    assert len(asked) == 4
    assert work.units < 50_000


def test_the_registry_counts_the_work_of_a_check():
    """Who has many records checked learns what each took, and a stop is passed on."""
    registry = Registry()
    registry.commit(registry.register("s", "json_schema", b'{"items": {}}', now=1))
    registry.commit(registry.configure_topic("/n/t", "s", "enforce", check_payload=True))
    work = Work()
    assert registry.check_message("/n/t", b"[1,2,3]", schema_id=1, work=work).is_accepted
    assert work.units == 16
    with pytest.raises(Unavailable):
        registry.check_message("/n/t", b"[]", schema_id=1, work=Work(lambda: True))
