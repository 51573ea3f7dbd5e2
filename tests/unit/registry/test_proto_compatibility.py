"""Protobuf compatibility is that of the wire: numbers and wire types, not names."""

from __future__ import annotations

import pytest

from frazil.registry.definitions import incompatibilities, parse_definition
from frazil.registry.proto_model import NumberRanges

SCALARS = [
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("bytes", "uint32", "sfixed32", "sfixed64", "sint32", "sint64"),
]
FAMILIES = [
    {"int32", "int64", "uint32", "uint64", "bool"},
    {"sint32", "sint64"},
    {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"},
]


def reasons(old, new, mode="backward", syntax="proto3"):
    head = f'syntax = "{syntax}"; '
    return incompatibilities(
        old=parse_definition("protobuf", (head + old).encode()),
        new=parse_definition("protobuf", (head + new).encode()),
        mode=mode,
    )


@pytest.mark.parametrize("writer", SCALARS)
def test_a_number_is_read_by_its_family_alone(writer):
    """Of all scalar types a field is read as those of the same encoding, a string also as bytes."""
    for reader in SCALARS:
        fits = reader == writer or any({reader, writer} <= family for family in FAMILIES)
        fits = fits or (writer, reader) == ("string", "bytes")
        told = reasons(f"message M {{ {writer} a = 1; }}", f"message M {{ {reader} a = 1; }}")
        wanted = f"backward: at M.a: number 1 is {reader}, the writer's 'a' of {writer}"
        assert told == (() if fits else (wanted,))


COMPATIBLE = {
    "a field is renamed": ("message M { int32 a = 1; }", "message M { int32 b = 1; }"),
    "a message is renamed": (
        "message M { N n = 1; } message N { int32 a = 1; }",
        "message X { Y n = 1; } message Y { int32 a = 1; }",
    ),
    "a package is added": ("message M { int32 a = 1; }", "package p; message M { int32 a = 1; }"),
    "a field is added": ("message M { int32 a = 1; }", "message M { int32 a = 1; M m = 2; }"),
    "a field is removed": ("message M { int32 a = 1; int32 b = 2; }", "message M { int32 a = 1; }"),
    "a removed number is reserved": ("message M { int32 a = 1; }", "message M { reserved 1; }"),
    "an enum grows": (
        "message M { E e = 1; } enum E { A = 0; }",
        "message M { E e = 1; } enum E { A = 0; B = 1; }",
    ),
    "an enum becomes a number": (
        "message M { E e = 1; } enum E { A = 0; }",
        "message M { int32 e = 1; }",
    ),
    "one text becomes many": (
        "message M { string a = 1; }",
        "message M { repeated string a = 1; }",
    ),
    "many texts become one": (
        "message M { repeated string a = 1; }",
        "message M { string a = 1; }",
    ),
    "one number becomes many": (
        "message M { int32 a = 1; }",
        "message M { repeated int32 a = 1; }",
    ),
    "a message becomes bytes": ("message M { M m = 1; }", "message M { bytes m = 1; }"),
    "one field moves into a oneof": (
        "message M { int32 a = 1; }",
        "message M { oneof o { int32 a = 1; string b = 2; } }",
    ),
    "a oneof grows": (
        "message M { oneof o { int32 a = 1; } }",
        "message M { oneof o { int32 a = 1; string b = 2; } }",
    ),
    "a oneof is dissolved": (
        "message M { oneof o { int32 a = 1; string b = 2; } }",
        "message M { int32 a = 1; string b = 2; }",
    ),
    "presence is added": ("message M { int32 a = 1; }", "message M { optional int32 a = 1; }"),
    "reserved ranges are cut another way": (
        "message M { reserved 1 to 10; }",
        "message M { reserved 5 to 20, 1 to 4; }",
    ),
    "a map becomes its entries": (
        "message M { map<string, int32> m = 1; }",
        "message M { repeated E m = 1; } message E { string key = 1; int32 value = 2; }",
    ),
}


@pytest.mark.parametrize("case", COMPATIBLE)
def test_what_the_wire_allows_is_compatible(case):
    """No reason is found for a change that old bytes survive."""
    old, new = COMPATIBLE[case]
    assert reasons(old, new) == ()


INCOMPATIBLE = {
    "at M.b: number 1 is string, the writer's 'a' of int32": (
        "message M { int32 a = 1; }",
        "message M { string b = 1; }",
    ),
    "at N.x: number 1 is string, the writer's 'x' of bytes": (
        "message M { N n = 1; } message N { bytes x = 1; }",
        "message M { N n = 1; } message N { string x = 1; }",
    ),
    "at M.m: number 1 is message M, the writer's 'm' of bytes": (
        "message M { bytes m = 1; }",
        "message M { M m = 1; }",
    ),
    "at M.a: number 1 is one value, the writer packs many": (
        "message M { repeated int32 a = 1; }",
        "message M { int32 a = 1; }",
    ),
    "at M: fields share a oneof that the writer may set together: a, b": (
        "message M { int32 a = 1; int32 b = 2; }",
        "message M { oneof o { int32 a = 1; int32 b = 2; } }",
    ),
    "at M: fields share a oneof that the writer may set together: a, c": (
        "message M { oneof o { int32 a = 1; } oneof p { int32 c = 2; } }",
        "message M { oneof o { int32 a = 1; int32 c = 2; } }",
    ),
    "at M.a: number 3 was reserved and is used again": (
        "message M { reserved 3; }",
        "message M { int32 a = 3; }",
    ),
    "at M: number 5 was reserved and is not any more": (
        "message M { reserved 1 to 9; }",
        "message M { reserved 1 to 4; }",
    ),
    "at M.e: enum E has no value 1 (B)": (
        "message M { E e = 1; } enum E { A = 0; B = 1; }",
        "message M { E e = 1; } enum E { A = 0; }",
    ),
    "at M.MEntry.value: number 2 is string, the writer's 'value' of int32": (
        "message M { map<string, int32> m = 1; }",
        "message M { map<string, string> m = 1; }",
    ),
    "at Other.a: number 1 is string": (
        "message M { } message Other { int32 a = 1; }",
        "message M { } message Other { string a = 1; }",
    ),
}


@pytest.mark.parametrize("reason", INCOMPATIBLE)
def test_what_the_wire_breaks_is_told_with_the_place(reason):
    """One reason is found and it names message, field and number."""
    old, new = INCOMPATIBLE[reason]
    told = reasons(old, new)
    assert len(told) == 1
    assert told[0].startswith(f"backward: {reason}")


def test_required_fields_need_a_writer_that_sends_them():
    """A field that becomes required breaks backward, one that stops being it breaks forward."""
    loose, strict = "message M { optional int32 a = 1; }", "message M { required int32 a = 1; }"
    wanted = "at M.a: number 1 is required, the writer may omit it"
    assert reasons(loose, strict, syntax="proto2") == (f"backward: {wanted}",)
    assert reasons(strict, loose, syntax="proto2") == ()
    assert reasons(strict, loose, "forward", syntax="proto2") == (f"forward: {wanted}",)
    assert reasons("message M { }", strict, syntax="proto2") == (f"backward: {wanted}",)


def test_a_closed_enum_does_not_take_new_values():
    """A value that old readers of proto2 do not know breaks forward, in proto3 it does not."""
    old = "message M { optional E e = 1; } enum E { A = 0; }"
    new = "message M { optional E e = 1; } enum E { A = 0; B = 1; }"
    assert reasons(old, new, "forward", "proto2") == ("forward: at M.e: enum E has no value 1 (B)",)
    assert reasons(old, new, "forward", "proto3") == ()


def test_reserved_numbers_bind_in_both_directions():
    """A reserved number that is used again is told by forward too."""
    told = reasons("message M { reserved 3; }", "message M { int32 a = 3; }", "full")
    assert [line.partition(":")[0] for line in told] == ["backward", "forward"]


def test_messages_in_a_circle_are_compared_once():
    """Messages that contain each other do not keep the comparison busy."""
    old = "message A { B b = 1; } message B { A a = 1; int32 x = 2; }"
    assert reasons(old, old.replace("int32", "int64")) == ()
    assert len(reasons(old, old.replace("int32", "string"))) == 1


def test_ranges_are_one_set_of_numbers():
    """Ranges in any order, overlapping or touching, contain what they did."""
    ranges = NumberRanges.of([(5, 8), (1, 3), (3, 4), (6, 10)])
    assert ranges.ranges == ((1, 4), (5, 10))
    assert [number for number in range(12) if number in ranges] == [1, 2, 3, *range(5, 10)]
    assert ranges.first_outside(1, 4) is None
    assert ranges.first_outside(1, 5) == 4
    assert NumberRanges.of([]).first_outside(7, 8) == 7
