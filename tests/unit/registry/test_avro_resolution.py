"""Avro compatibility is the specification's schema resolution, with the place of each reason."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from fastavro.utils import generate_many

from frazil.registry.definitions import incompatibilities, parse_definition
from tests.unit.registry.counted_lines import lines_at_most


def record(*fields, name="P", **more):
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def fixed(size, **more):
    return {"type": "fixed", "name": "F", "size": size, **more}


def reasons(old, new, mode="backward"):
    return incompatibilities(
        old=parse_definition("avro", json.dumps(old).encode()),
        new=parse_definition("avro", json.dumps(new).encode()),
        mode=mode,
    )


PROMOTED = [
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
]
KINDS = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]


@pytest.mark.parametrize("writer", KINDS)
@pytest.mark.parametrize("reader", KINDS)
def test_primitives_are_read_as_themselves_and_by_promotion(writer, reader):
    """Of all pairs of primitive types exactly the promotions of the specification are readable."""
    readable = writer == reader or (writer, reader) in PROMOTED
    told = reasons(writer, reader)
    assert (not told) == readable
    assert readable or told == (f"backward: at $: the reader's {reader} does not read {writer}",)


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
COMPATIBLE = {
    "a field with a default is added": (
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int", default=1)),
    ),
    "a field is removed": (record(field("a", "int"), field("b", "int")), record(field("a", "int"))),
    "a field is renamed with an alias": (
        record(field("a", "int")),
        record(field("b", "long", aliases=["a"])),
    ),
    "a record is renamed with an alias": (record(name="P"), record(name="Q", aliases=["P"])),
    "a record moves to a namespace": (record(), record(namespace="x.y")),
    "a type becomes a union": ("int", ["null", "int"]),
    "a union grows": (["null", "int"], ["null", "int", "string"]),
    "a union's type is promoted": (["null", "int"], ["null", "long"]),
    "a union of one type becomes the type": (["int"], "long"),
    "symbols are added": (enum("A"), enum("A", "B")),
    "symbols are removed with a default": (enum("A", "B"), enum("A", default="A")),
    "items are promoted": ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
    "values are promoted": ({"type": "map", "values": "int"}, {"type": "map", "values": "long"}),
    "a list of records stays": (
        record(field("next", ["null", "P"])),
        record(field("next", ["null", "P"]), field("x", "int", default=0)),
    ),
    "a decimal stays": (DECIMAL, DECIMAL),
    "a logical type is added": ("int", {"type": "int", "logicalType": "date"}),
    "an unqualified name in a union": (
        ["null", record(name="a.R")],
        ["null", record(name="b.R")],
    ),
}


@pytest.mark.parametrize("case", COMPATIBLE)
def test_what_the_specification_resolves_is_compatible(case):
    """No reason is found for a change that a reader takes."""
    old, new = COMPATIBLE[case]
    assert reasons(old, new) == ()


INCOMPATIBLE = {
    "at $.b: the writer has no such field and it has no default": (
        record(field("a", "int")),
        record(field("a", "int"), field("b", "int")),
    ),
    "at $.a: the reader's int does not read string": (
        record(field("a", "string")),
        record(field("a", "int")),
    ),
    "at $.a[*]{*}.zip: the reader's int does not read long": (
        record(
            field(
                "a",
                {
                    "type": "array",
                    "items": {"type": "map", "values": record(field("zip", "long"), name="Z")},
                },
            )
        ),
        record(
            field(
                "a",
                {
                    "type": "array",
                    "items": {"type": "map", "values": record(field("zip", "int"), name="Z")},
                },
            )
        ),
    ),
    "neither its name nor an alias": (record(name="P"), record(name="Q")),
    "at $: no branch of the reader's union of null, int reads string": (
        ["null", "string"],
        ["null", "int"],
    ),
    "at $: the reader's int does not read null": (["null", "int"], "int"),
    "lacks symbols and a default: B": (enum("A", "B"), enum("A")),
    "the reader's size 3 is not the writer's 2": (fixed(2), fixed(3)),
    "the reader's array does not read map": (
        {"type": "map", "values": "int"},
        {"type": "array", "items": "int"},
    ),
    "decimal(4,3) is not the writer's decimal(4,2)": (DECIMAL, {**DECIMAL, "scale": 3}),
    "at $.next.x: the writer has no such field": (
        record(field("next", ["null", record(name="Q")])),
        record(field("next", ["null", record(field("x", "int"), name="Q")])),
    ),
}


@pytest.mark.parametrize("reason", INCOMPATIBLE)
def test_what_cannot_be_read_is_told_with_its_place(reason):
    """One reason is found, it names the place and both types."""
    old, new = INCOMPATIBLE[reason]
    told = reasons(old, new)
    assert len(told) == 1
    assert told[0].startswith("backward: at $")
    assert reason in told[0]


def test_modes_look_in_their_direction():
    """A new field without default breaks backward, its removal forward, both break full."""
    small, large = record(field("a", "int")), record(field("a", "int"), field("b", "int"))
    assert reasons(small, large, "backward")
    assert reasons(small, large, "forward") == ()
    assert reasons(large, small, "backward") == ()
    assert reasons(large, small, "forward") == (
        "forward: at $.b: the writer has no such field and it has no default",
    )
    assert reasons(small, large, "full")
    assert reasons(large, small, "full")
    assert reasons(small, large, "none") == ()


def test_all_reasons_are_found_up_to_a_hundred():
    """Each field has its reason; beyond a hundred only their number is told."""
    old = record()
    few = reasons(old, record(*(field(f"f{n}", "int") for n in range(3))))
    many = reasons(old, record(*(field(f"f{n}", "int") for n in range(103))))
    assert len(few) == 3
    assert len(many) == 101
    assert many[-1] == "backward: and 3 more"


def test_a_chain_of_records_longer_than_the_stack_is_compared():
    """5,000 records that refer to the one before are followed to the first."""

    def chain(kind):
        links = [record(field("x", kind), name="R0")]
        links += [record(field("x", f"R{n}"), name=f"R{n + 1}") for n in range(5_000)]
        return links

    told = reasons(chain("string"), chain("int"))
    assert told == ("backward: at $.x: the reader's int does not read string",)


def test_large_unions_are_compared_with_little_work():
    """Unions of 5,000 named types do not take the square of that."""
    union = [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(5_000)]
    with lines_at_most(500 * len(union)):
        assert reasons(union, [*union, "null"]) == ()


@pytest.mark.parametrize("case", COMPATIBLE)
def test_a_compatible_reader_reads_what_was_written(case):
    """Another implementation of Avro reads old values with the new schema."""
    old, new = (fastavro.parse_schema(schema) for schema in COMPATIBLE[case])
    for value in generate_many(old, 5):
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, old, value)
        sink.seek(0)
        fastavro.schemaless_reader(sink, old, new)
        assert not sink.read()
