"""Which new version may follow the latest one, for each of the three languages."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from fastavro.utils import generate_many

from frazil.registry.definitions import compare, read_definition


def reasons(kind, old, new, mode="backward"):
    old, new = (
        each if isinstance(each, bytes) else json.dumps(each).encode() for each in (old, new)
    )
    return compare(read_definition(kind, old), read_definition(kind, new), mode)


# -- JSON Schema: Danube's rule --------------------------------------------------------------------

INT, TEXT = {"type": "integer"}, {"type": "string"}


def person(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required)}


BASE = person(["n"], n=INT)
JSON = [
    # what, the latest, the new one, backward, forward
    ("an optional field is added", BASE, person(["n"], n=INT, m=TEXT), True, True),
    ("an optional field is removed", person(["n"], n=INT, m=TEXT), BASE, True, True),
    ("a required field is added", BASE, person(["n", "m"], n=INT, m=TEXT), False, False),
    ("a required field is removed", person(["n", "m"], n=INT, m=TEXT), BASE, False, True),
    ("required becomes optional", BASE, person(n=INT), True, True),
    ("optional becomes required", person(n=INT), BASE, False, False),
    ("the type is another", BASE, person(["n"], n=TEXT), False, False),
    ("the type is wider", BASE, person(["n"], n={"type": "number"}), True, False),
    ("a type more", BASE, person(["n"], n={"type": ["null", "integer"]}), True, False),
    ("the type is not named any more", BASE, person(["n"], n={}), True, True),
    ("the type of the root", BASE, {"type": "array"}, False, False),
    ("inside a property", person(a=BASE), person(a=person(["n"], n=TEXT)), False, False),
    ("an enum is another", person(n={"enum": [1]}), person(n={"enum": [2]}), True, True),
    ("a const is another", person(n={"const": 1}), person(n={"const": 2}), True, True),
    ("a bound is another", person(n={"minimum": 1}), person(n={"minimum": 2}), True, True),
    ("the object is closed", BASE, {**BASE, "additionalProperties": False}, True, True),
    ("any value, then none", True, False, True, True),
]


@pytest.mark.parametrize(
    ("what", "old", "new", "backward", "forward"), JSON, ids=lambda v: str(v)[:40]
)
def test_json_schemas_are_compared_by_required_fields_and_types_alone(
    what, old, new, backward, forward
):
    """`full` is both, and no other keyword counts."""
    assert what
    assert (reasons("json_schema", old, new) == ()) == backward
    assert (reasons("json_schema", old, new, "forward") == ()) == forward
    assert (reasons("json_schema", old, new, "full") == ()) == (backward and forward)


def test_json_reasons_name_the_place():
    """Each has the direction, the field and what is wrong."""
    old = person(["x"], n=INT, x=INT, part=person(p=INT))
    new = person(["n", "y"], n=TEXT, part=person(["p"], p=INT))
    assert reasons("json_schema", old, new) == (
        "backward: at $.n: the field is required, it was optional",
        "backward: at $.y: the field is required, it was not there",
        "backward: at $.x: the required field was removed",
        "backward: at $.n: the type is string for the reader, integer for the writer",
        "backward: at $.part.p: the field is required, it was optional",
    )


# -- Avro: the specification's schema resolution ---------------------------------------------------


def record(*fields, name="P", **more):
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size):
    return {"type": "fixed", "name": "F", "size": size}


def array(items):
    return {"type": "array", "items": items}


PROMOTED = {
    *(("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double")),
    *(("float", "double"), ("string", "bytes"), ("bytes", "string")),
}
KINDS = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


@pytest.mark.parametrize("writer", KINDS)
def test_avro_primitives_are_read_as_themselves_and_by_promotion(writer):
    """Of all pairs of primitive types exactly the promotions of the specification are readable."""
    for reader in KINDS:
        wanted = f"backward: at $: the reader's {reader} does not read {writer}"
        is_readable = writer == reader or (writer, reader) in PROMOTED
        assert reasons("avro", f'"{writer}"'.encode(), f'"{reader}"'.encode()) == (
            () if is_readable else (wanted,)
        )


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
AVRO_FITS = {
    "a field with a default": (
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int", default=1)),
    ),
    "a field is removed": (record(field("a", "int"), field("b", "int")), record(field("a", "int"))),
    "a field has an alias": (
        record(field("a", "int")),
        record(field("b", "long", aliases=["a"])),
    ),
    "a record has an alias": (record(name="P"), record(name="Q", aliases=["P"])),
    "an alias in a namespace": (
        record(name="P", namespace="x"),
        record(name="Q", namespace="x", aliases=["P"]),
    ),
    "a record moves to a namespace": (record(), record(namespace="x.y")),
    "a type becomes a union": (b'"int"', ["null", "int"]),
    "a union grows": (["null", "int"], ["null", "int", "string"]),
    "a union's type is promoted": (["null", "int"], ["null", "long"]),
    "a union of one type": (["int"], b'"long"'),
    "symbols are added": (enum("A"), enum("A", "B")),
    "symbols are removed with a default": (enum("A", "B"), enum("A", default="A")),
    "items are promoted": (array("int"), array("long")),
    "a list of records": (
        record(field("next", ["null", "P"])),
        record(field("next", ["null", "P"]), field("x", "int", default=0)),
    ),
    "a logical type is added": (b'"int"', {"type": "int", "logicalType": "date"}),
    "a record of a union by its short name": (
        ["null", record(name="a.R")],
        ["null", record(name="b.R")],
    ),
}


@pytest.mark.parametrize("case", AVRO_FITS)
def test_avro_that_the_specification_resolves_is_compatible(case):
    """Fastavro reads old values with the new schema, too."""
    assert reasons("avro", *AVRO_FITS[case]) == ()
    old, new = (
        fastavro.parse_schema(json.loads(each) if isinstance(each, bytes) else each)
        for each in AVRO_FITS[case]
    )
    for value in generate_many(old, 5):
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, old, value)
        sink.seek(0)
        fastavro.schemaless_reader(sink, old, new)
        assert not sink.read()


AVRO_BREAKS = {
    "at $.b: the writer has no such field and it has no default": (
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int")),
    ),
    "at $.a[*]{*}.zip: the reader's int does not read long": tuple(
        record(field("a", array({"type": "map", "values": record(field("zip", kind), name="Z")})))
        for kind in ("long", "int")
    ),
    "neither its name nor an alias": (record(name="P"), record(name="Q")),
    "at $: no branch of the reader's union of null, int reads string": (
        ["null", "string"],
        ["null", "int"],
    ),
    "at $: the reader's int does not read null": (["null", "int"], b'"int"'),
    "lacks symbols and a default: B": (enum("A", "B"), enum("A")),
    "the reader's size 3 is not the writer's 2": (fixed(2), fixed(3)),
    "the reader's array does not read map": ({"type": "map", "values": "int"}, array("int")),
    "decimal(4,3) is not the writer's decimal(4,2)": (DECIMAL, {**DECIMAL, "scale": 3}),
    "at $.next.x: the writer has no such field": (
        record(field("next", ["null", record(name="Q")])),
        record(field("next", ["null", record(field("x", "int"), name="Q")])),
    ),
}


@pytest.mark.parametrize("reason", AVRO_BREAKS)
def test_avro_that_cannot_be_read_is_named_with_its_place(reason):
    """One reason is found."""
    (found,) = reasons("avro", *AVRO_BREAKS[reason])
    assert found.startswith("backward: at $")
    assert reason in found


def test_avro_modes_look_in_their_direction():
    """A new field without default breaks backward, its removal forward, both break full."""
    small, large = record(field("a", "int")), record(field("a", "int"), field("b", "int"))
    assert reasons("avro", small, large, "forward") == ()
    assert reasons("avro", large, small, "backward") == ()
    assert reasons("avro", large, small, "forward") == (
        "forward: at $.b: the writer has no such field and it has no default",
    )
    assert reasons("avro", small, large, "full")
    assert reasons("avro", large, small, "full")


def test_no_more_than_a_hundred_reasons_are_listed():
    """Of the others their number is given."""
    many = reasons("avro", record(), record(*(field(f"f{n}", "int") for n in range(103))))
    assert len(many) == 101
    assert many[-1] == "backward: and 3 more"


def test_a_chain_of_avro_records_longer_than_the_stack_is_compared():
    """1,000 records that refer to the one before are followed to the first."""

    def chain(kind):
        links = [record(field("x", kind), name="R0")]
        return links + [record(field("x", f"R{n}"), name=f"R{n + 1}") for n in range(1_000)]

    found = reasons("avro", chain("string"), chain("int"))
    assert found == ("backward: at $.x: the reader's int does not read string",)


# -- Protobuf: numbers, types and labels -----------------------------------------------------------

SCALARS = [
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
]
FAMILIES = [
    {"int32", "int64", "uint32", "uint64", "bool"},
    *({"sint32", "sint64"}, {"fixed32", "sfixed32"}, {"fixed64", "sfixed64"}),
]


def proto_reasons(old, new, mode="backward", syntax="proto3"):
    head = f'syntax = "{syntax}"; '
    return reasons("protobuf", (head + old).encode(), (head + new).encode(), mode)


@pytest.mark.parametrize("writer", SCALARS)
def test_a_protobuf_number_is_read_by_its_family_alone(writer):
    """A field is read as the types of the same encoding, a string also as bytes."""
    for reader in SCALARS:
        fits = reader == writer or any({reader, writer} <= family for family in FAMILIES)
        fits = fits or (writer, reader) == ("string", "bytes")
        found = proto_reasons(
            f"message M {{ {writer} a = 1; }}", f"message M {{ {reader} a = 1; }}"
        )
        wanted = f"backward: at M.a: number 1 is {reader}, the writer's 'a' of {writer}"
        assert found == (() if fits else (wanted,))


A = "message M { int32 a = 1; }"
PROTO_FITS = {
    "a field is renamed": (A, "message M { int32 b = 1; }"),
    "messages are renamed": (
        "message M { N n = 1; } message N { int32 a = 1; }",
        "message X { Y n = 1; } message Y { int32 a = 1; }",
    ),
    "a field is added": (A, "message M { int32 a = 1; M m = 2; }"),
    "a field is removed": ("message M { int32 a = 1; int32 b = 2; }", A),
    "a removed number is reserved": (A, "message M { reserved 1; }"),
    "an enum grows": (
        "message M { E e = 1; } enum E { A = 0; }",
        "message M { E e = 1; } enum E { A = 0; B = 1; }",
    ),
    "an enum shrinks": (
        "message M { E e = 1; } enum E { A = 0; B = 1; }",
        "message M { E e = 1; } enum E { A = 0; }",
    ),
    "a reserved number is used": ("message M { reserved 3; }", "message M { int32 a = 3; }"),
    "fields move into a oneof": (
        "message M { int32 a = 1; int32 b = 2; }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
    ),
    "an enum becomes a number": ("message M { E e = 1; } enum E { A = 0; }", "message M { int32 e = 1; }"),
    "many texts become one": ("message M { repeated string a = 1; }", "message M { string a = 1; }"),
    "one number becomes many": (A, "message M { repeated int32 a = 1; }"),
    "a message becomes bytes": ("message M { M m = 1; }", "message M { bytes m = 1; }"),
    "a oneof is dissolved": (
        "message M { oneof o { int32 a = 1; string b = 2; } }",
        "message M { int32 a = 1; string b = 2; }",
    ),
    "presence is added": (A, "message M { optional int32 a = 1; }"),
    "a map becomes its entries": (
        "message M { map<string, int32> m = 1; }",
        "message M { repeated E m = 1; } message E { string key = 1; int32 value = 2; }",
    ),
    "messages in a circle": (
        "message A { B b = 1; } message B { A a = 1; int32 x = 2; }",
        "message A { B b = 1; } message B { A a = 1; int64 x = 2; }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PROTO_FITS)
def test_protobuf_that_the_wire_allows_is_compatible(case):
    """Old bytes survive the change."""
    assert proto_reasons(*PROTO_FITS[case]) == ()


PROTO_BREAKS = {
    "at M.b: number 1 is string, the writer's 'a' of int32": (A, "message M { string b = 1; }"),
    "at N.x: number 1 is string, the writer's 'x' of bytes": (
        "message M { N n = 1; } message N { bytes x = 1; }",
        "message M { N n = 1; } message N { string x = 1; }",
    ),
    "at M.m: number 1 is message M, the writer's 'm' of bytes": (
        "message M { bytes m = 1; }",
        "message M { M m = 1; }",
    ),
    "at M.a: number 1 is one value, the writer packs many": ("message M { repeated int32 a = 1; }", A),
    "at M.MEntry.value: number 2 is string, the writer's 'value' of int32": (
        "message M { map<string, int32> m = 1; }",
        "message M { map<string, string> m = 1; }",
    ),
    "at Other.a: number 1 is string": (
        "message M { } message Other { int32 a = 1; }",
        "message M { } message Other { string a = 1; }",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", PROTO_BREAKS)
def test_protobuf_that_the_wire_breaks_is_named_with_its_place(reason):
    """One reason is found, with message, field and number."""
    (found,) = proto_reasons(*PROTO_BREAKS[reason])
    assert found.startswith(f"backward: {reason}")


def test_a_required_protobuf_field_needs_a_writer_that_sends_it():
    """Also where the writer does not have it."""
    loose, strict = "message M { optional int32 a = 1; }", "message M { required int32 a = 1; }"
    wanted = "at M.a: number 1 is required, the writer may omit it"
    assert proto_reasons(loose, strict, syntax="proto2") == (f"backward: {wanted}",)
    assert proto_reasons("message M { }", strict, syntax="proto2") == (f"backward: {wanted}",)
    assert proto_reasons(strict, loose, syntax="proto2") == ()
    assert proto_reasons(strict, loose, "forward", "proto2") == (f"forward: {wanted}",)
