"""Avro definitions: what the specification allows is read, what it forbids is told."""

from __future__ import annotations

import json

import fastavro
import pytest

from frazil.errors import InvalidRequest
from frazil.registry.definitions import parse_definition


def record(*fields, name="P", **more):
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def parse(value):
    return parse_definition("avro", json.dumps(value).encode())


FINE = [
    "int",
    ["null", "string"],
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "array", "items": {"type": "map", "values": "double"}},
    record(),
    record(field("a", "int", default=3), field("b", ["null", "string"], default=None)),
    record(field("next", ["null", "P"], default=None)),
    record(field("children", {"type": "array", "items": "P"}, default=[])),
    record(field("e", {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"})),
    record(field("f", {"type": "fixed", "name": "F", "size": 2}, default="\u00ff\u0000")),
    record(
        field("a", record(field("x", "int"), name="Inner")),
        field("b", "org.example.Inner"),
        field("c", "Inner"),
        namespace="org.example",
    ),
    record(field("m", {"type": "map", "values": "long"}, default={"a": 1})),
    record(field("r", record(field("x", "int", default=1), name="R"), default={})),
    [record(name="A"), record(field("a", "A"), name="B")],
]


@pytest.mark.parametrize("value", FINE, ids=str)
def test_a_valid_schema_is_read(value):
    """What another implementation of Avro takes is taken here."""
    fastavro.parse_schema(value)
    assert parse(value).type == "avro"


WRONG = {
    "unknown type 'strin'": record(field("a", "strin")),
    "needs a list of 'fields'": {"type": "record", "name": "P"},
    "is no name of a type": {"type": "record", "name": "1P", "fields": []},
    "is no name of a field": record(field("a-b", "int")),
    "the field needs a 'type'": record({"name": "a"}),
    "has the field 'a' twice": record(field("a", "int"), field("a", "int")),
    "is defined twice": record(field("a", record(name="Q")), field("b", record(name="Q"))),
    "the union is empty": [],
    "has int twice": ["int", "int"],
    "may not contain a union": [["int"], "null"],
    "needs 'items'": {"type": "array"},
    "needs 'values'": {"type": "map"},
    "a symbol twice": {"type": "enum", "name": "E", "symbols": ["A", "A"]},
    "is no symbol of an enum": {"type": "enum", "name": "E", "symbols": ["A-"]},
    "none of its symbols": {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"},
    "needs a 'size'": {"type": "fixed", "name": "F", "size": -1},
    "it is no int": record(field("a", "int", default="x")),
    "it is none of union of null, int": record(field("a", ["null", "int"], default="x")),
    "it is no array": record(field("a", {"type": "array", "items": "int"}, default=1)),
    "contains itself": record(field("a", "P")),
    "a name, an object or a list": 7,
    "needs a 'type'": {"name": "x"},
    "is the name of a primitive type": {"type": "enum", "name": "int", "symbols": []},
    "precision": {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
    "is no namespace": record(namespace="a..b"),
    "'aliases' is a list of names": record(aliases="Q"),
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_broken_rule_is_told(reason):
    """Each rule of the specification that a definition breaks has its own words."""
    with pytest.raises(InvalidRequest) as caught:
        parse(WRONG[reason])
    assert reason in str(caught.value)


def test_the_place_of_a_wrong_type_is_told():
    """A message leads to the field, through arrays and maps."""
    inner = record(field("zip", "nope"), name="Address")
    value = record(
        field("places", {"type": "array", "items": {"type": "map", "values": inner}}),
    )
    with pytest.raises(InvalidRequest, match=r"at \$\.places\[\*\]\{\*\}\.zip: unknown type"):
        parse(value)


def test_types_are_nested_64_deep_at_most():
    """The 64th level is read, the 66th is refused."""
    fine = wrong = "int"
    for _ in range(64):
        fine = {"type": "array", "items": fine}
    for _ in range(66):
        wrong = {"type": "array", "items": wrong}
    assert parse(fine).type == "avro"
    with pytest.raises(InvalidRequest, match="nested deeper than 64"):
        parse(wrong)


def test_a_default_in_a_circle_of_unions_is_checked_in_no_time():
    """Two records that contain each other do not make the check of a default exponential."""
    kinds = ["null", "A", "B"]
    value = "x"
    for _ in range(40):
        value = {"f": value}
    schema = [
        record(
            field("f", ["null", "A", record(field("f", kinds), name="B")]),
            field("g", kinds, default=value),
            name="A",
        )
    ]
    with pytest.raises(InvalidRequest, match="the default is wrong"):
        parse(schema)


def test_a_default_as_deep_as_the_text_may_be_is_read_or_told():
    """180 levels of a value in a recursive type are no error of ours."""
    value = []
    for _ in range(88):
        value = [{"f": value}]
    schema = record(
        field("f", {"type": "array", "items": ["null", "A"]}),
        field("g", {"type": "array", "items": ["null", "A"]}, default=value),
        name="A",
    )
    with pytest.raises(InvalidRequest, match="the default is wrong"):
        parse(schema)


def test_a_definition_with_other_spaces_and_order_has_the_same_fingerprint():
    """Only the JSON values count, and of a list their order."""
    one = parse_definition("avro", b'{"type":"fixed","name":"F","size":2}')
    two = parse_definition("avro", b' { "size" : 2, "name":"F",\n"type":"fixed"}')
    three = parse_definition("avro", b'{"type":"fixed","name":"F","size":3}')
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != three.fingerprint
    assert one.fingerprint.startswith("sha256:")
    assert len(one.fingerprint) == len("sha256:") + 64


BAD_TEXT = {
    b"": "not JSON",
    b"\xff": "invalid UTF-8",
    b"\xef\xbb\xbf{}": "byte order mark",
    b'{"type":"int","type":"int"}': "stands twice",
    b'{"type":"int","x":NaN}': "NaN is not a JSON number",
    b'{"type":"int","x":1e999}': "not JSON that every reader takes",
    b'"\\ud800"': "not JSON that every reader takes",
    b"[" * 5000: "nested too deep",
    b" " * ((1 << 20) + 1): "too large",
}


@pytest.mark.parametrize("data", BAD_TEXT, ids=lambda data: repr(data[:12]))
def test_text_that_is_no_json_is_refused(data):
    """Whatever is wrong with the text is an InvalidRequest that says it."""
    with pytest.raises(InvalidRequest, match=BAD_TEXT[data]):
        parse_definition("avro", data)
