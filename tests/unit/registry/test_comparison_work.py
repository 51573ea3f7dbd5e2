"""The comparison of two definitions is bounded by the work it is, whatever they are."""

from __future__ import annotations

import json

import pytest

from frazil.errors import Unavailable
from frazil.registry import Work, limits
from frazil.registry.definitions import incompatibilities, parse_definition
from frazil.registry.json_compatibility import json_reasons

GIVEN_UP = "too many parts, or choices in choices, to compare: split the schema into smaller ones"
PRIME = (1 << 61) - 1
"""Whole numbers that are multiples of it have one hash."""


def compared(kind, old, new, mode="backward"):
    """Return the reasons and the units of work they took."""
    work = Work.of_comparison()
    texts = (each if isinstance(each, str) else json.dumps(each) for each in (old, new))
    was, now = (parse_definition(kind, text.encode()) for text in texts)
    return incompatibilities(old=was, new=now, mode=mode, work=work), work.units


def shared(part, fields=1_000, **more):
    """Return an object with many fields of one part, or a list of such parts."""
    named = {f"f{number}": {"$ref": "#/$defs/a", **more} for number in range(fields)}
    return {"properties": named, "$defs": {"a": part}}


def apart(choices, key, extra):
    """Return many choices, of which none is one of the other side."""
    return {"anyOf": [{key: number + extra} for number in range(choices)]}


def led(kind):
    """Return parts that refer to each other in a chain, and the last one is something else."""
    links = {f"l{n}": {"not": {"$ref": f"#/$defs/l{n + 1}"}} for n in range(1_000)}
    found = shared({"not": {"$ref": "#/$defs/l0"}})
    return {**found, "$defs": {**found["$defs"], **links, "l1000": {"type": kind}}}


WORDS = {f"word{number}": 1 for number in range(6_000)}
NAMES = [f"name{number}" for number in range(1_000)]
FIELDS = {name: {} for name in NAMES}
NUMBER = 10**4_000
FEWER_WORDS = dict(list(WORDS.items())[:2_000])
CIRCLE = {"$ref": "#/$defs/a", **FEWER_WORDS}
EVALUATED = {"type": "string", "properties": FIELDS, "unevaluatedProperties": False}
JSON = {
    "choices": (apart(220, "minLength", 0), apart(220, "minLength", 2_000)),
    "pairs of parts": (
        {"properties": {f"f{number}": {} for number in range(60_000)}},
        {"properties": {f"f{number}": {} for number in range(60_001)}},
    ),
    "keywords that mean nothing": (shared(WORDS), shared({**WORDS, "title": "x"})),
    "keywords beside a reference": (
        shared({"minLength": 1}, 300),
        shared(FEWER_WORDS, 300, minLength=1),
    ),
    "references in a circle": (shared(CIRCLE, 10), shared({**CIRCLE, "title": "x"}, 10)),
    "numbers": (
        shared({"minimum": NUMBER}, 4_000),
        shared({"minimum": NUMBER, "title": "x"}, 4_000),
    ),
    "long patterns": (
        shared({"pattern": "a" * 4_000}, 10_000),
        shared({"pattern": "a" * 4_000, "title": "x"}, 10_000),
    ),
    "parts one by one": (
        shared({"allOf": [{}] * 3_000}, 150),
        shared({"allOf": [True] * 3_000}, 150),
    ),
    "names that are evaluated": (
        shared(EVALUATED, 200),
        shared({**EVALUATED, "title": "x"}, 200),
    ),
    "the rest of a choice": (
        {"anyOf": [{"minLength": number} for number in range(200)], **WORDS},
        {"minLength": 0},
    ),
    "the rest of a new choice": (
        {"minLength": 0},
        {"anyOf": [{"minLength": number + 1} for number in range(200)], **WORDS},
    ),
    "choices that have no value": (
        shared({"minLength": 1}, 200),
        shared({"oneOf": [True] + [False] * 1_000}, 200),
    ),
    "first items": (
        shared({"prefixItems": [True] * 3_000}, 400),
        shared({"items": {"type": "string"}}, 400),
    ),
    "equal lists": (
        shared({"not": {"enum": NAMES}}, 400),
        shared({"not": {"enum": NAMES}, "title": "x"}, 400),
    ),
    "references that lead apart at last": (led("string"), led("null")),
    "lists of values": (shared({"enum": NAMES}, 9_000), shared({"enum": [*NAMES, 1]}, 9_000)),
    "a large value that is told": (shared({"enum": [NAMES]}), shared({"enum": [1]})),
    "lists of small values": ({"enum": [{}] * 200_000}, {"enum": [{}] * 200_000, "title": "x"}),
    "constants": (shared({"const": "a" * 9_000}), shared({"const": "a" * 9_000, "title": "x"})),
    "names that are required": (
        shared({"required": NAMES}),
        shared({"required": NAMES, "title": "x"}),
    ),
    "names of fields": (
        shared({"properties": FIELDS}, 400),
        shared({"properties": FIELDS, "title": "x"}, 400),
    ),
    "names in parts": (
        shared({"dependentSchemas": {"x": {"properties": FIELDS}}}),
        shared({"properties": {"new": {}}}),
    ),
    "parts in place": (
        shared({"dependentSchemas": dict.fromkeys(NAMES, True)}),
        shared({"properties": {"new": {}}}),
    ),
    "patterns": (
        {"patternProperties": {f"^[a-z]{{900}}{number}": {} for number in range(20)}},
        {"properties": {"x" * 90 + name: {} for name in NAMES[:30]}},
    ),
    "short patterns": (
        shared({"patternProperties": {name: {} for name in NAMES[:60]}}),
        shared({"properties": {"new": {}}}),
    ),
}


@pytest.mark.parametrize("name", JSON)
def test_every_part_of_a_json_comparison_is_paid_for(name):
    """What takes long is given up in words, however few pairs of parts there are."""
    told, units = compared("json_schema", *JSON[name])
    assert GIVEN_UP in told[-1]
    assert units < 2 * limits.COMPARISON_UNITS_MAX


def record(name, fields, **more):
    named = [{"name": key, **field} for key, field in fields.items()]
    return {"type": "record", "name": name, "fields": named, **more}


def spaced(space, size):
    """Return a union of types that differ in nothing but their namespace."""
    return [{"type": "fixed", "name": f"{space}{n}.F", "size": size} for n in range(2_000)]


def unions(*more):
    """Return 100 lists of one of a thousand types, each of which is compared for itself."""
    names = [f"F{number}" for number in range(1_000)]
    types = [{"type": "fixed", "name": name, "size": 1} for name in names]
    lists = {f"f{n}": {"type": {"type": "array", "items": [*more, *names]}} for n in range(100)}
    return record("R", {"all": {"type": types}, **lists})


def one(kind, count):
    """Return lists of one type that has the names of as many others."""
    known = {**kind, "name": "X", "aliases": [f"W{number}" for number in range(count)]}
    kinds = [known, *("X" for _ in range(1, count))]
    return record("R", {f"f{n}": {"type": ["null", each]} for n, each in enumerate(kinds)})


def many(kind, count):
    """Return lists of one type each."""
    kinds = [{**kind, "name": f"W{number}"} for number in range(count)]
    return record("R", {f"f{n}": {"type": ["null", each]} for n, each in enumerate(kinds)})


INT = {"type": "int", "default": 1}
EMPTY, ALSO = record("", {}), {**INT, "aliases": NAMES[:100]}
AVRO = {
    "types of one short name": (spaced("a", 1), spaced("b", 2)),
    "each branch of each union": (unions("null"), unions("int", "null")),
    "fields": (many(EMPTY, 600), one(record("", dict.fromkeys(NAMES, INT)), 600)),
    "aliases": (
        many(EMPTY, 400),
        one(record("", {f"f{n}": ALSO for n in range(20)}), 400),
    ),
    "symbols": (
        many({"type": "enum", "symbols": ["a0"]}, 1_100),
        one({"type": "enum", "symbols": [f"a{n}" for n in range(4_000)]}, 1_100),
    ),
}


@pytest.mark.parametrize("name", AVRO)
def test_every_part_of_an_avro_comparison_is_paid_for(name):
    """Types that are compared with each other again and again are given up in words."""
    told, units = compared("avro", *AVRO[name])
    assert GIVEN_UP in told[-1]
    assert units < 2 * limits.COMPARISON_UNITS_MAX


def test_a_union_of_thousands_of_branches_is_far_from_the_limit():
    """Types that are found by their names cost a few units each."""
    union = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(10_000)]
    told, units = compared("avro", union, [*union, "null"])
    assert told == ()
    assert units < 10 * len(union)


def message(name, *parts):
    return f"message {name} {{ {' '.join(parts)} }} "


def fields(kinds):
    return [f"{kind} f{number} = {number + 1};" for number, kind in enumerate(kinds)]


def enum(values):
    return f"enum E {{ {' '.join(f'V{number} = {number};' for number in range(values))} }}"


def proto(*parts):
    return 'syntax = "proto3"; ' + "".join(parts)


KINDS = [f"W{number}" for number in range(200)]
OTHERS = [message(kind) for kind in KINDS]
GAPS = f"reserved {', '.join(str(2 * number + 1) for number in range(1_000))};"
PROTO = {
    "fields": (
        proto(message("R", *fields(KINDS)), *OTHERS),
        proto(message("R", *fields(["X"] * 200)), message("X", *fields(["int32"] * 1_000))),
    ),
    "values": (
        proto(message("R", *fields(["E"] * 2_000)), enum(4_000)),
        proto(message("R", *fields(["E"] * 2_000)), enum(4_001)),
    ),
    "missing values": (
        proto(message("R", *fields(["E"] * 100)), enum(2_000)),
        proto(message("R", *fields(["E"] * 100)), enum(1)),
    ),
    "ranges": (
        proto(message("R", *fields(["X"] * 200)), message("X", GAPS)),
        proto(message("R", *fields(KINDS)), *OTHERS),
    ),
}


@pytest.mark.parametrize("name", PROTO)
def test_every_part_of_a_protobuf_comparison_is_paid_for(name):
    """Messages and enums that are compared again and again are given up in words."""
    told, units = compared("protobuf", *PROTO[name])
    assert GIVEN_UP in told[-1]
    assert units < 2 * limits.COMPARISON_UNITS_MAX


def test_both_directions_are_one_comparison():
    """What is fine in each of two modes may be too much for both, and is told as that."""
    old = {"properties": {f"f{number}": {} for number in range(22_000)}}
    new = {**old, "title": "x"}
    for mode in ("backward", "forward"):
        told, units = compared("json_schema", old, new, mode)
        assert told == ()
        assert units > limits.COMPARISON_UNITS_MAX / 2
    told, _ = compared("json_schema", old, new, "full")
    assert len(told) == 1
    assert told[0].startswith("forward: at $: there are too many parts")


def test_reasons_that_were_found_are_told_with_the_giving_up():
    """Nobody has to guess what was wrong before the work ran out."""
    old = {"properties": {"first": {"type": "string"}, **JSON["pairs of parts"][0]["properties"]}}
    told, _ = compared(
        "json_schema", old, {**old, "properties": {**old["properties"], "first": {"type": "null"}}}
    )
    assert "at $.first: type changed" in told[0]
    assert GIVEN_UP in told[-1]


@pytest.mark.parametrize(
    ("kind", "pair"),
    [
        ("json_schema", JSON["choices"]),
        ("avro", AVRO["each branch of each union"]),
        ("protobuf", PROTO["fields"]),
    ],
)
def test_a_comparison_ends_when_all_is_to_stop(kind, pair):
    """Somewhere in the middle the comparison asks, and then it is no verdict."""
    asked = []

    def is_stopped():
        asked.append(True)
        return len(asked) > 3

    texts = (each if isinstance(each, str) else json.dumps(each) for each in pair)
    was, now = (parse_definition(kind, text.encode()) for text in texts)
    work = Work.of_comparison(is_stopped)
    with pytest.raises(Unavailable):
        incompatibilities(old=was, new=now, mode="full", work=work)
    assert len(asked) == 4


class Hashed(int):
    """A number that counts how often one of its kind is compared, up to what is allowed."""

    left = 0

    def __eq__(self, other):
        Hashed.left -= 1
        assert Hashed.left >= 0, "values are compared more often than allowed"
        return int.__eq__(self, other)

    __hash__ = int.__hash__


def test_numbers_of_one_hash_are_not_compared_with_each_other():
    """Multiples of a certain prime, in lists of values, do not take the square of their number."""
    ours, theirs = ([Hashed(PRIME * n) for n in range(1, 3_000)] for _ in range(2))
    Hashed.left = 10 * len(ours)
    assert json_reasons(reader={"enum": [*ours, -1]}, writer={"enum": theirs}) == ()


def test_long_names_are_not_copied_for_each_place():
    """A name of 300 kB that is told a thousand times is cut before it is put into places."""
    long = "n" * 300_000
    old = proto(message("R", *fields(["E"] * 1_000)), f"enum E {{ A = 0; {long} = 1; }}")
    new = proto(message("R", *fields(["E"] * 1_000)), "enum E { A = 0; }")
    told, _ = compared("protobuf", old, new)
    assert told[0].startswith("backward: at R.f0: enum E has no value 1 (nnn")
    assert len(told[0]) < 300
