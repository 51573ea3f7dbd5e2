"""JSON Schema compatibility: a reader accepts what a writer describes, or the place is told."""

from __future__ import annotations

import json

import pytest

from frazil.registry.definitions import incompatibilities, parse_definition
from frazil.registry.json_compatibility import json_reasons
from tests.unit.registry.counted_lines import lines_at_most


def reasons(old, new, mode="backward"):
    return incompatibilities(
        old=parse_definition("json_schema", json.dumps(old).encode()),
        new=parse_definition("json_schema", json.dumps(new).encode()),
        mode=mode,
    )


def obj(required=(), /, **fields):
    return {"type": "object", "properties": fields, "required": list(required)}


DRAFT7 = "http://json-schema.org/draft-07/schema#"
TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
CLOSED = {**obj(a=TEXT), "additionalProperties": False}
TREE = {
    "$defs": {
        "node": obj(["v"], v=WHOLE, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})
    },
    "$ref": "#/$defs/node",
}
WIDER_TREE = json.loads(json.dumps(TREE).replace('"integer"', '"number"'))

COMPATIBLE = {
    "an optional field is added": (obj(["a"], a=TEXT), obj(["a"], a=TEXT, b=TEXT)),
    "an optional field is removed": (obj(a=TEXT, b=TEXT), obj(a=TEXT)),
    "a required field becomes optional": (obj(["a"], a=TEXT), obj(a=TEXT)),
    "a type is widened": (obj(a=WHOLE), obj(a=NUMBER)),
    "a type is added": (obj(a=TEXT), obj(a={"type": ["string", "null"]})),
    "a value is added": ({"enum": ["a", "b"]}, {"enum": ["a", "b", "c"]}),
    "a list of values is lifted": ({"enum": ["a", "b"]}, TEXT),
    "bounds are lifted": ({"type": "integer", "minimum": 1}, WHOLE),
    "bounds are widened": ({"minLength": 3, "maxItems": 1}, {"minLength": 2, "maxItems": 2}),
    "an inclusive bound replaces an exclusive one": ({"exclusiveMaximum": 3}, {"maximum": 3}),
    "items are widened": ({"items": WHOLE}, {"items": NUMBER}),
    "a closed object is opened": (CLOSED, obj(a=TEXT)),
    "a field is added to a closed object": (
        CLOSED,
        {**obj(a=TEXT, b=TEXT), "additionalProperties": False},
    ),
    "a choice is added": ({"anyOf": [TEXT, WHOLE]}, {"anyOf": [TEXT, NUMBER, {"type": "null"}]}),
    "an exclusive choice of another type is added": (
        {"oneOf": [TEXT]},
        {"oneOf": [TEXT, {"type": "null"}]},
    ),
    "a type becomes a choice": (TEXT, {"anyOf": [TEXT, {"type": "null"}]}),
    "a choice becomes a type": ({"anyOf": [WHOLE, NUMBER]}, NUMBER),
    "everything is accepted": (obj(["a"], a=TEXT), {}),
    "nothing was accepted": (False, obj(["a"], a=TEXT)),
    "a part moves to a definition": (
        obj(a=WHOLE),
        {**obj(a={"$ref": "#/$defs/n"}), "$defs": {"n": WHOLE}},
    ),
    "a tree is widened": (TREE, WIDER_TREE),
    "a title changes": ({**obj(a=TEXT), "title": "x"}, {**obj(a=TEXT), "title": "y"}),
    "what cannot be compared stays": (
        {"allOf": [obj(["a"], a=TEXT)], "title": "x"},
        {"allOf": [obj(["a"], a=TEXT)], "title": "y"},
    ),
    "a field that fits the open end is added": (
        {"additionalProperties": WHOLE},
        {"properties": {"a": NUMBER}, "additionalProperties": NUMBER},
    ),
}


PATTERN = {"patternProperties": {"^x": WHOLE}, "additionalProperties": False}
COMPATIBLE |= {
    "a field that a pattern describes is named": (
        PATTERN,
        {**PATTERN, "properties": {"x1": NUMBER}},
    ),
    "a field that no pattern describes is named": (
        PATTERN,
        {**PATTERN, "properties": {"y": TEXT}},
    ),
    "the pattern counts, not the rule for other names": (
        {**PATTERN, "additionalProperties": TEXT},
        {**PATTERN, "properties": {"x1": WHOLE, "y": TEXT}, "additionalProperties": TEXT},
    ),
    "one of two patterns is enough": (
        {"patternProperties": {"^x": NUMBER, "1$": WHOLE}},
        {"patternProperties": {"^x": NUMBER, "1$": WHOLE}, "properties": {"x1": WHOLE}},
    ),
    "a pattern narrows a field of both": (
        {"properties": {"x1": {}}, "patternProperties": {"^x": WHOLE}},
        {"properties": {"x1": NUMBER}, "patternProperties": {"^x": WHOLE}},
    ),
    "a field is left to a pattern": ({**PATTERN, "properties": {"x1": WHOLE}}, PATTERN),
    "a required field is left to a pattern": (
        {**PATTERN, "properties": {"x1": WHOLE}, "required": ["x1"]},
        {**PATTERN, "required": ["x1"]},
    ),
    "patterns go from an open object": (PATTERN, {"properties": {"x1": NUMBER}}),
    "a field is added beside a choice of others": (
        {"anyOf": [obj(["a"], a=TEXT)]},
        {"anyOf": [obj(["a"], a=TEXT)], "properties": {"b": TEXT}},
    ),
    "what stood beside a reference never counted": (
        {"$schema": DRAFT7, "definitions": {"n": WHOLE}, "$ref": "#/definitions/n", "minimum": 1},
        {"$schema": DRAFT7, "definitions": {"n": WHOLE}, "$ref": "#/definitions/n", "minimum": 2},
    ),
    "a field is added where the rest is not allowed": (
        {"properties": {"a": TEXT}, "unevaluatedProperties": False},
        {"properties": {"a": TEXT, "b": TEXT}, "unevaluatedProperties": False},
    ),
}


@pytest.mark.parametrize("case", COMPATIBLE)
def test_a_wider_reader_is_compatible(case):
    """No reason is found where every old value is still valid."""
    old, new = COMPATIBLE[case]
    assert reasons(old, new) == ()


INCOMPATIBLE = {
    "at $.a: required by the writer, unknown to the reader": (
        obj(["a"], a=TEXT, b=TEXT),
        obj(b=TEXT),
    ),
    "at $.b: required by the reader, optional in the writer": (
        obj(["a"], a=TEXT, b=TEXT),
        obj(["a", "b"], a=TEXT, b=TEXT),
    ),
    "at $.c: required by the reader, unknown to the writer": (obj(a=TEXT), obj(["c"], a=TEXT)),
    "at $.a: type changed: the writer's string is not the reader's integer": (
        obj(a=TEXT),
        obj(a=WHOLE),
    ),
    "at $.a.b[*].c: type changed: the writer's number is not the reader's integer": (
        obj(a=obj(b={"type": "array", "items": obj(c=NUMBER)})),
        obj(a=obj(b={"type": "array", "items": obj(c=WHOLE)})),
    ),
    'the reader does not list the value "b"': ({"enum": ["a", "b"]}, {"enum": ["a"]}),
    "the reader does not list the value 1": ({"enum": [1]}, {"enum": [True]}),
    "the reader takes listed values only": (TEXT, {"type": "string", "enum": ["a"]}),
    'does not list the value "y"': ({"const": "y"}, {"const": "x"}),
    "at $.b: the reader takes no additional property": (
        {**obj(a=TEXT, b=TEXT), "additionalProperties": False},
        CLOSED,
    ),
    "at $: the reader takes no additional property, the writer does": (obj(a=TEXT), CLOSED),
    "at ${*}: type changed": ({"additionalProperties": TEXT}, {"additionalProperties": WHOLE}),
    "at $.a: type changed": ({"additionalProperties": TEXT}, {"properties": {"a": WHOLE}}),
    "'minLength' is 3, the writer's 2": ({"minLength": 2}, {"minLength": 3}),
    "'maxItems' is 3, the writer's has none": ({}, {"maxItems": 3}),
    "the smallest number is larger": ({"minimum": 1}, {"exclusiveMinimum": 1}),
    "the largest number is smaller": ({"maximum": 3}, {"maximum": 2}),
    "'pattern' is": ({"pattern": "a"}, {"pattern": "b"}),
    "'uniqueItems' is new": ({}, {"uniqueItems": True}),
    "'multipleOf' is 4": ({"multipleOf": 2}, {"multipleOf": 4}),
    "accepts choice 1": ({"anyOf": [TEXT, WHOLE]}, {"anyOf": [TEXT]}),
    "may be more than one of the changed 'oneOf'": (
        {"oneOf": [{"minimum": 1}]},
        {"oneOf": [{"minimum": 1}, {"minimum": 0}]},
    ),
    "'allOf' changed": ({}, {"allOf": [TEXT]}),
    "at $: no choice of the reader's 'anyOf' accepts choice 1": (
        {"$defs": {"n": NUMBER}, "anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
        {"$defs": {"n": WHOLE}, "anyOf": [{"type": "null"}, {"$ref": "#/$defs/n"}]},
    ),
    "at $.allOf: type changed: the writer's number": (
        {"$defs": {"n": NUMBER}, "allOf": [{"$ref": "#/$defs/n"}]},
        {"$defs": {"n": WHOLE}, "allOf": [{"$ref": "#/$defs/n"}]},
    ),
    "'not' changed, which cannot be shown": (
        {"$defs": {"n": WHOLE}, "not": {"$ref": "#/$defs/n"}},
        {"$defs": {"n": NUMBER}, "not": {"$ref": "#/$defs/n"}},
    ),
    "no choice of the reader's 'anyOf' accepts": (WIDER_TREE, TREE),
}


CLOSED_TO_PARTS = {"$defs": {"p": obj(a=WHOLE)}, "$ref": "#/$defs/p"}
INCOMPATIBLE |= {
    "at $.x1: type changed: the writer's integer is not the reader's string": (
        PATTERN,
        {**PATTERN, "properties": {"x1": TEXT}},
    ),
    "at $.x1: type changed: the writer's array or boolean": (
        {"patternProperties": {"^x": {}}, "type": "object"},
        {"patternProperties": {"^x": {}}, "type": "object", "properties": {"x1": TEXT}},
    ),
    "at $.x2: type changed: the writer's integer is not the reader's string": (
        PATTERN,
        {"properties": {"x2": TEXT}},
    ),
    "at $.x1: type changed: the writer's number": (
        {"patternProperties": {"^x": NUMBER, "1$": NUMBER}},
        {"patternProperties": {"^x": NUMBER, "1$": NUMBER}, "properties": {"x1": WHOLE}},
    ),
    "'patternProperties' are gone and other": (PATTERN, {"additionalProperties": False}),
    "at $: 'patternProperties' changed": (obj(x1=TEXT), {"patternProperties": {"^x": WHOLE}}),
    "at $.b: new to the reader, a choice or part": (
        {"allOf": [{"patternProperties": {"b": WHOLE}}]},
        {"allOf": [{"patternProperties": {"b": WHOLE}}], "properties": {"b": TEXT}},
    ),
    "at $.a: new to the reader, a choice or part": (
        {"oneOf": [CLOSED_TO_PARTS["$defs"]["p"]]},
        {"oneOf": [CLOSED_TO_PARTS["$defs"]["p"]], "properties": {"a": TEXT}},
    ),
    "at $: a reference changed, or what stands beside it": (
        {**CLOSED_TO_PARTS, "additionalProperties": {}},
        {**CLOSED_TO_PARTS, "additionalProperties": False},
    ),
    "at $: no choice of the reader's new 'anyOf' accepts it": (
        {**obj(a=WHOLE), "additionalProperties": False},
        {"additionalProperties": False, "anyOf": [{"properties": {"a": WHOLE}}]},
    ),
    "at $: type changed: the writer's array or boolean": (
        {"$schema": DRAFT7, "definitions": {"n": {}}, "$ref": "#/definitions/n", **WHOLE},
        {"$schema": DRAFT7, **WHOLE},
    ),
    "at $: 'minContains' changed": (
        {"contains": WHOLE, "minContains": 0},
        {"contains": WHOLE},
    ),
    "at $: what 'unevaluatedProperties' leaves over changed": (
        {"properties": {"a": TEXT, "b": TEXT}, "unevaluatedProperties": False},
        {"properties": {"a": TEXT}, "unevaluatedProperties": False},
    ),
}


@pytest.mark.parametrize("reason", INCOMPATIBLE)
def test_a_narrower_reader_is_told_with_the_place(reason):
    """The reason is among those found, under the mode that asked."""
    old, new = INCOMPATIBLE[reason]
    told = reasons(old, new)
    assert all(each.startswith("backward: at $") for each in told)
    if reason == "no choice of the reader's 'anyOf' accepts":
        reason = "at $.v: type changed"
    assert any(reason in each for each in told), told


TABLE = [
    ("optional added", obj(a=TEXT), obj(a=TEXT, b=TEXT), True, True),
    ("optional removed", obj(a=TEXT, b=TEXT), obj(a=TEXT), True, True),
    ("required added", obj(a=TEXT), obj(["b"], a=TEXT, b=TEXT), False, False),
    ("required removed", obj(["b"], a=TEXT, b=TEXT), obj(a=TEXT), False, False),
    ("required becomes optional", obj(["a"], a=TEXT), obj(a=TEXT), True, False),
    ("optional becomes required", obj(a=TEXT), obj(["a"], a=TEXT), False, True),
    ("type widened", obj(a=WHOLE), obj(a=NUMBER), True, False),
    ("enum value added", {"enum": [1]}, {"enum": [1, 2]}, True, False),
    ("bound loosened", {"minLength": 2}, {"minLength": 1}, True, False),
    ("object closed", obj(a=TEXT), CLOSED, False, True),
]


@pytest.mark.parametrize(("old", "new", "backward", "forward"), [row[1:] for row in TABLE])
def test_the_table_of_the_page_is_true(old, new, backward, forward):
    """Each row of docs/schemas.md is what the code says, and full is both."""
    assert (not reasons(old, new, "backward")) == backward
    assert (not reasons(old, new, "forward")) == forward
    assert (not reasons(old, new, "full")) == (backward and forward)


def test_forward_looks_the_other_way():
    """A new required field and a type change break forward, a removed optional one does not."""
    old = obj(["a"], a=TEXT)
    assert reasons(old, obj(["a", "b"], a=TEXT, b=TEXT), "forward") == (
        "forward: at $.b: required by the writer, unknown to the reader",
    )
    assert reasons(obj(a=WHOLE), obj(a=NUMBER), "forward")
    assert reasons(obj(a=TEXT, b=TEXT), obj(a=TEXT), "forward") == ()
    assert reasons(obj(a=NUMBER), obj(a=WHOLE), "forward") == ()


def test_patterns_are_looked_at_from_both_sides():
    """A name that leaves the properties for a pattern breaks forward if the types differ."""
    named = {**PATTERN, "properties": {"x1": TEXT}}
    assert reasons(PATTERN, {**PATTERN, "properties": {"x1": WHOLE}}, "full") == ()
    told = reasons(named, PATTERN, "forward")
    assert len(told) == 1
    assert told[0].startswith("forward: at $.x1: type changed: the writer's integer")
    # A value of both, none, is fine: no text is a whole number.
    assert reasons(named, PATTERN) == ()


def test_many_names_and_patterns_are_compared_up_to_a_limit():
    """Names are matched with patterns in bulk, and given up in words when it is too much."""
    few = {"patternProperties": {f"^x{n}$": WHOLE for n in range(50)}}
    fields = {f"x{n}": NUMBER for n in range(2_000)}
    assert reasons(few, {**few, "properties": fields}) == ()
    many = {"patternProperties": {f"[a-z]{{100}}{n}$": WHOLE for n in range(20)}}
    found = reasons(many, {**many, "properties": {f"x{n}" * 40: NUMBER for n in range(2_000)}})
    assert "too many parts" in found[-1]


def test_full_is_both():
    """An optional field of an open object may come and go, a type may not be widened."""
    assert reasons(obj(a=TEXT), obj(a=TEXT, b=TEXT), "full") == ()
    told = reasons(obj(a=WHOLE), obj(a=NUMBER), "full")
    assert len(told) == 1
    assert told[0].startswith("forward: at $.a")


def test_choices_in_choices_end():
    """Nested choices, of which there are more pairs than time, are given up with a reason."""
    old, new = {"type": "string"}, {"type": "string", "minLength": 1}
    for _ in range(20):
        old = {"anyOf": [old, {"anyOf": [old]}]}
        new = {"anyOf": [new, {"anyOf": [new]}]}
        if len(json.dumps(new)) > 20_000:
            break
    with lines_at_most(15_000_000):
        assert reasons(old, new)


class Compared(int):
    """A number that counts how often one of its kind is compared, up to what is allowed."""

    left = 0

    def __eq__(self, other):
        Compared.left -= 1
        assert Compared.left >= 0, "values are compared more often than allowed"
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_long_lists_of_values_are_compared_by_their_hash():
    """Each of 20,000 values is compared with those that are equal, not with all."""
    ours, theirs = ([Compared(n) for n in range(20_000)] for _ in range(2))
    Compared.left = 3 * len(theirs)
    assert json_reasons(reader={"enum": [*ours, -1]}, writer={"enum": theirs}) == ()


def choices(values, *more):
    return {
        "anyOf": [{"enum": [[n, each] for each in range(values)]} for n in range(100)] + [*more]
    }


def test_large_lists_in_choices_are_compared_up_to_a_limit():
    """Each list with each other is fine while they are small, and told as too much when large."""
    assert reasons(choices(20), choices(20, TEXT)) == ()
    found = reasons(choices(500), choices(500, TEXT))
    told = (
        "backward: at $: there are too many parts, or choices in choices, to compare: split the"
        " schema into smaller ones, or set the subject's mode to 'none' if you know that it is"
        " compatible"
    )
    assert found == (told,)


def test_a_large_list_that_many_fields_refer_to_is_too_much_at_some_point():
    """A list of 100 kB is compared for some fields, not for thousands of them."""

    def shared(fields, value):
        named = {f"f{number}": {"$ref": "#/$defs/a"} for number in range(fields)}
        return {**obj(**named), "$defs": {"a": {"enum": [*(["x" * 100] * 1_000), value]}}}

    assert reasons(shared(20, 1), shared(20, 1.0)) == ()
    found = reasons(shared(2_000, 1), shared(2_000, 1.0))
    assert "too many parts" in found[-1]
