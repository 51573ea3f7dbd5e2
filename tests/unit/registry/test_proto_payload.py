"""Protobuf payloads: a field has the bytes of its type, wherever it is; unknown fields are fine."""

from __future__ import annotations

import pytest

from frazil.registry import Work, limits
from frazil.registry.proto_model import parse_protobuf

PLAIN = parse_protobuf(
    b"""syntax = "proto3";
    enum Color { RED = 0; }
    message M {
      int32 card = 1;
      repeated int32 numbers = 2;
      M inner = 3;
      repeated string texts = 4;
      oneof choice { string text = 5; fixed64 wide = 6; }
      repeated float floats = 7;
      Color color = 8;
      repeated M more = 9;
      repeated sint64 packed_not = 10 [packed = false];
    }"""
)
MAPS = parse_protobuf(
    b"""syntax = "proto3";
    message M {
      map<string, int32> counts = 1;
      map<int32, N> parts = 2;
    }
    message N { int32 a = 1; }"""
)
CLOSED = parse_protobuf(
    b"""syntax = "proto2";
    enum Color { RED = 0; }
    message M {
      optional Color color = 1;
      repeated Color colors = 2 [packed = true];
    }"""
)

WRONG = {
    "bytes for a number": (PLAIN, b"\x0a\x01x", "at card: the field is of type int32, its bytes"),
    "8 bytes for a number": (PLAIN, b"\x09" + bytes(8), "type int32, its bytes are 8 bytes"),
    "4 bytes for a number": (PLAIN, b"\x0d" + bytes(4), "type int32, its bytes are 4 bytes"),
    "a group for a number": (PLAIN, b"\x0b\x0c", "type int32, its bytes are a group"),
    "after a good one": (PLAIN, b"\x08\x01\x0a\x01x", "at card: "),
    "8 bytes in a list": (PLAIN, b"\x11" + bytes(8), "at numbers: the field is of type int32"),
    "a number for a message": (PLAIN, b"\x18\x01", "at inner: the field is of type message"),
    "a number in texts": (PLAIN, b"\x20\x01", "type string, its bytes are a varint"),
    "a choice": (PLAIN, b"\x28\x01", "at text: the field is of type string"),
    "the other choice": (PLAIN, b"\x32\x08" + bytes(8), "at wide: the field is of type fixed64"),
    "a number in floats": (PLAIN, b"\x38\x01", "at floats: the field is of type float"),
    "bytes for an enum": (PLAIN, b"\x42\x01\x00", "at color: the field is of type enum"),
    "inside a message": (PLAIN, b"\x1a\x05\x1a\x03\x0a\x01x", "at inner.inner.card: "),
    "inside a list": (PLAIN, b"\x4a\x00\x4a\x03\x0a\x01x", "at more.card: "),
    "behind an unknown group": (PLAIN, b"\xa3\x06\xa4\x06\x0a\x01x", "at card: "),
    "a map's value": (MAPS, b"\x0a\x06\x0a\x01k\x12\x01x", "at counts.value: the field is of"),
    "a map's key": (MAPS, b"\x0a\x02\x08\x01", "at counts.key: the field is of type string"),
    "a map": (MAPS, b"\x08\x01", "at counts: the field is of type message, its bytes are a varint"),
    "inside a map": (MAPS, b"\x12\x07\x08\x01\x12\x03\x0a\x01x", "at parts.value.a: "),
    "bytes for a closed enum": (CLOSED, b"\x0a\x01\x00", "at color: the field is of type enum"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bytes_of_another_type_are_refused_with_their_field(case):
    """A number that the message has, with another wire type than the field's, does not fit."""
    schema, payload, told = WRONG[case]
    found = schema.refusal(payload)
    assert found is not None
    assert found.startswith("not a message M: at ")
    assert told in found


FINE = {
    "nothing": (PLAIN, b""),
    "a packed list": (PLAIN, b"\x12\x02\x01\x02"),
    "a list that is not packed": (PLAIN, b"\x10\x01\x10\x02"),
    "both, and an unknown field": (PLAIN, b"\x10\x01\x12\x01\x02\xa0\x06\x01"),
    "packed against the option": (PLAIN, b"\x52\x02\x01\x02\xa0\x06\x01"),
    "packed floats": (PLAIN, b"\x3a\x08" + bytes(8)),
    "both choices": (PLAIN, b"\x2a\x01x\x31" + bytes(8)),
    "an unknown field": (PLAIN, b"\xa0\x06\x01\x08\x01"),
    "an unknown group with our numbers in it": (PLAIN, b"\xa3\x06\x0a\x01x\xa4\x06\x08\x01"),
    "groups in groups": (PLAIN, b"\xa3\x06\x0b\x0a\x01x\x0c\x18\x01\xa4\x06\x08\x01"),
    "an unknown field inside": (PLAIN, b"\x1a\x05\x08\x01\xa0\x06\x01"),
    "maps": (MAPS, b"\x0a\x05\x0a\x01k\x10\x07\x12\x06\x08\x01\x12\x02\x08\x01"),
    "an entry of nothing": (MAPS, b"\x0a\x00"),
    "an unknown field of an entry": (MAPS, b"\x0a\x03\xa0\x06\x01"),
    "a value that a closed enum lacks": (CLOSED, b"\x08\x07\x10\x07\x12\x02\x07\x00"),
}


@pytest.mark.parametrize("case", FINE)
def test_lists_either_way_and_unknown_fields_are_taken(case):
    """Packed and unpacked lists are equal; what the message has no number for may be anything."""
    schema, payload = FINE[case]
    assert schema.refusal(payload) is None


def test_a_required_field_of_another_type_is_not_told_as_missing():
    """It was sent, and what is wrong with it is said."""
    required = parse_protobuf(b'syntax = "proto2"; message M { required int32 a = 1; }')
    assert "at a: the field is of type int32" in required.refusal(b"\x0a\x01x")
    assert "required fields are missing: a" in required.refusal(b"")


def test_a_look_at_the_bytes_is_paid_for():
    """Each field costs a unit where all are looked at, and nothing where the library is enough."""
    payload = b"\x10\x01" * 1_000
    work, more = Work(), Work()
    assert PLAIN.refusal(payload, work) is None
    assert work.units == len(payload) >> 5
    assert PLAIN.refusal(payload + b"\xa0\x06\x01", more) is None
    assert more.units == work.units + 1_001
    many = b"\x10\x01" * limits.WORK_UNITS_MAX + b"\xa0\x06\x01"
    assert "too much work" in PLAIN.refusal(many)
