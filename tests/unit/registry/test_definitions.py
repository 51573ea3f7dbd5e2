"""Definitions and payloads of Avro, JSON Schema and Protobuf, as their libraries read them."""

from __future__ import annotations

import io
import json

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from frazil.registry.definitions import Invalid, read_definition


def text(value):
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def refusal(kind, definition, payload):
    return read_definition(kind, text(definition)).refusal(text(payload))


def record(*fields, name="P", **more):
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name, kind="int", **more):
    return {"name": name, "type": kind, **more}


PROTO = b'syntax = "proto3"; message M { int32 n = 1; }'
TIMED = b"""syntax = "proto3"; import "google/protobuf/timestamp.proto";
message M { google.protobuf.Timestamp t = 1; }"""
FILE = descriptor_pb2.FileDescriptorProto(
    name="f.proto", syntax="proto3", message_type=[{"name": "M"}]
)
DESCRIPTORS = descriptor_pb2.FileDescriptorSet(file=[FILE]).SerializeToString()
FINE = [
    ("json_schema", True),
    ("json_schema", {"$defs": {"a": {"$anchor": "here"}}, "$ref": "#here"}),
    ("json_schema", {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1}),
    ("json_schema", {"$schema": "http://json-schema.org/draft-07/schema#"}),
    ("avro", "int"),
    ("avro", record(field("next", ["null", "P"], default=None))),
    ("avro", [record(name="A"), record(field("a", "A"), name="B")]),
    ("avro", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("protobuf", PROTO),
    ("protobuf", b"message M { required int32 n = 1 [default = 3]; extensions 5; }"),
    ("protobuf", TIMED),
    ("protobuf", DESCRIPTORS),
]


@pytest.mark.parametrize(("kind", "definition"), FINE, ids=lambda value: str(value)[:40])
def test_a_valid_definition_is_read(kind, definition):
    """It has the same fingerprint each time."""
    found = read_definition(kind, text(definition))
    assert found.fingerprint == read_definition(kind, text(definition)).fingerprint
    assert found.fingerprint.startswith("sha256:")


WRONG = [
    ("json_schema", b"{", "not JSON"),
    ("json_schema", b"\xff", "invalid UTF-8 at byte 0"),
    ("json_schema", b"\xef\xbb\xbf{}", "byte order mark"),
    ("json_schema", b'{"type":"object","type":"array"}', "a name occurs twice in one JSON object"),
    ("json_schema", b'{"minimum":NaN}', "NaN is not a JSON number"),
    ("json_schema", b'{"const":"\\ud800"}', "half of a character"),
    ("json_schema", [1], "at $: the value is not of types"),
    ("json_schema", {"items": {"type": "strin"}}, "at $.items.type: "),
    ("json_schema", {"pattern": "("}, "at $.pattern: "),
    ("json_schema", {"$ref": "#/$defs/none"}, "Pointer '/$defs/none' does not exist"),
    ("json_schema", {"$schema": "http://example.org"}, "Unknown meta-schema"),
    ("json_schema", {"items": {"$ref": "http://example.org/x.json"}}, "Retrieval is disabled"),
    ("json_schema", {"$ref": "file:///etc/passwd"}, "Retrieval is disabled"),
    ("json_schema", {"$ref": "other.json"}, "retrieving it failed"),
    ("avro", record(field("a", "strin")), "UnknownType: strin"),
    ("avro", record(field("a"), field("a")), "P has a field twice"),
    ("avro", record(field("a", "int", default="x")), "Default value"),
    ("avro", {"type": "enum", "name": "E", "symbols": ["A", "A"]}, "must be unique"),
    ("avro", record(field("x", record(name="Q")), field("y", record(name="Q"))), "redefined"),
    ("avro", {"__fastavro_parsed": True, "type": "odd"}, "belongs to the library"),
    ("avro", 7, "TypeError: "),
    ("protobuf", b"hello", "line 1:1: Expected top-level statement"),
    ("protobuf", b'syntax = "proto3";', "has no message"),
    ("protobuf", b'import "other.proto"; message M {}', 'Import "other.proto" was not found'),
    ("protobuf", b'import "/etc/passwd"; message M {}', 'Import "/etc/passwd" was not found'),
    ("protobuf", PROTO.replace(b"int32", b"Nope"), '"Nope" is not defined'),
    ("protobuf", PROTO.replace(b"}", b"int32 m = 1; }"), "has already been used"),
    ("protobuf", b"\x00\x01\x02", "neither .proto text nor a serialized"),
    (
        "protobuf",
        descriptor_pb2.FileDescriptorSet(
            file=[descriptor_pb2.FileDescriptorProto(name="f\x01", dependency=["g.proto"])]
        ).SerializeToString(),
        "g.proto",
    ),
]


@pytest.mark.parametrize(("kind", "definition", "reason"), WRONG, ids=[row[2] for row in WRONG])
def test_a_wrong_definition_is_refused_with_its_reason(kind, definition, reason):
    """What the language forbids, and each reference out of the definition, has a reason."""
    with pytest.raises(Invalid) as caught:
        read_definition(kind, text(definition))
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("kind", "one", "two", "other"),
    [
        ("avro", b'{"type":"fixed","name":"F","size":2}',
         b' { "size" : 2, "name":"F",\n"type":"fixed"}', b'{"type":"fixed","name":"F","size":3}'),
        ("json_schema", b'{"type":"object","x":1}', b'{ "x":1, "type":"object"}', b"{}"),
        ("protobuf", PROTO, PROTO.replace(b"{", b"{ // n\n"), PROTO.replace(b" n =", b" m =")),
    ],
)  # fmt: skip
def test_spaces_and_the_order_of_names_make_no_other_fingerprint(kind, one, two, other):
    """The fingerprint is that of the meaning of the text."""
    found = [read_definition(kind, each).fingerprint for each in (one, two, other)]
    assert found[0] == found[1] != found[2]


ROW = record(
    field("id", "long"),
    field("kind", {"type": "enum", "name": "K", "symbols": ["A", "B"]}),
    field("more", {"type": "map", "values": ["null", "double"]}),
    name="Row",
)
VALUE = {"id": -(1 << 63), "kind": "B", "more": {"a": None, "b": 1.5}}


def written(schema, value):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, value)
    return sink.getvalue()


def test_an_avro_value_is_one_value_and_nothing_more():
    """No proper prefix of a value is a value, nor is a value with a byte after it."""
    payload, definition = written(ROW, VALUE), read_definition("avro", text(ROW))
    assert definition.refusal(payload) is None
    assert all(definition.refusal(payload[:size]) for size in range(len(payload)))
    assert "1 bytes are left after it" in definition.refusal(payload + b"\0")


MESSAGE = b"""syntax = "proto3";
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
  map<string, int32> counts = 10;
}"""
CLOSED = b"""syntax = "proto2"; enum Color { RED = 0; }
message M { optional Color color = 1; repeated Color colors = 2 [packed = true]; }"""
OTHER_BYTES = [
    (b"\x0a\x01x", "card"),
    (b"\x09" + bytes(8), "card"),
    (b"\x0d" + bytes(4), "card"),
    (b"\x0b\x0c", "card"),
    (b"\x08\x01\x0a\x01x", "card"),
    (b"\x11" + bytes(8), "numbers"),
    (b"\x18\x01", "inner"),
    (b"\x20\x01", "texts"),
    (b"\x28\x01", "text"),
    (b"\x38\x01", "floats"),
    (b"\x42\x01\x00", "color"),
    (b"\x1a\x05\x1a\x03\x0a\x01x", "inner.inner.card"),
    (b"\x4a\x00\x4a\x03\x0a\x01x", "more.card"),
    (b"\xa3\x06\xa4\x06\x0a\x01x", "card"),
    (b"\x52\x06\x0a\x01k\x12\x01x", "counts.value"),
    (b"\x52\x02\x08\x01", "counts.key"),
    (b"\x50\x01", "counts"),
]


@pytest.mark.parametrize(("payload", "place"), OTHER_BYTES)
def test_protobuf_bytes_of_another_type_are_refused_with_their_field(payload, place):
    """The library skips a known field of another wire type; here it does not fit."""
    found = refusal("protobuf", MESSAGE, payload)
    assert found == f"not a message M: at {place}: its bytes are not of the field's type"


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        (MESSAGE, b""),
        (MESSAGE, b"\x12\x02\x01\x02"),
        (MESSAGE, b"\x10\x01\x12\x01\x02\xa0\x06\x01"),
        (MESSAGE, b"\xa3\x06\x0a\x01x\xa4\x06\x08\x01"),
        (MESSAGE, b"\x52\x05\x0a\x01k\x10\x07\x52\x00"),
        (CLOSED, b"\x08\x07\x10\x07\x12\x02\x07\x00"),
    ],
)
def test_protobuf_lists_either_way_and_unknown_fields_fit(definition, payload):
    """Packed and unpacked lists are equal; a number that the message lacks may be anything."""
    assert refusal("protobuf", definition, payload) is None


def test_a_protobuf_payload_is_the_first_message_of_the_last_file():
    """With all that it requires; imports come before the file that needs them."""
    required = b'syntax = "proto2"; message M { required int32 a = 1; } message N { }'
    assert refusal("protobuf", required, b"\x08\x01") is None
    assert refusal("protobuf", required, b"") == "not a message M: required fields are missing: a"
    assert refusal("protobuf", required, b"\xff").endswith("its bytes are no such message")
    link = {"name": "m", "number": 1, "label": 1, "type_name": "M"}
    last = descriptor_pb2.FileDescriptorProto(
        name="g.proto", syntax="proto3", dependency=["f.proto"],
        message_type=[{"name": "N", "field": [link]}, {"name": "O"}],
    )  # fmt: skip
    both = descriptor_pb2.FileDescriptorSet(file=[FILE, last]).SerializeToString()
    assert refusal("protobuf", both, b"\x08\x01").startswith("not a message N: at m: ")


TREE = {"properties": {"next": {"$ref": "#"}}, "required": ["x"]}


@pytest.mark.parametrize(
    ("definition", "payload", "reason"),
    [
        (TREE, b'{"x":1,"next":{"x":2}}', None),
        (TREE, b'{"x":1,"next":{}}', 'at $.next: "x" is a required property'),
        (True, b"{", "not JSON: Expecting property name"),
        (True, b"\xff", "not JSON: invalid UTF-8 at byte 0"),
        (True, b'{"a":1,"b":[{"n":0,"n":0}]}', "a name occurs twice in one JSON object"),
        (True, b"[18446744073709551615, -9223372036854775808]", None),
        (True, b"[18446744073709551616]", "a whole number has more than 64 bits"),
        (True, b'{"a":-9223372036854775809}', "a whole number has more than 64 bits"),
        (True, b"1" * 400, "a whole number has more than 64 bits"),
        (True, b"1e300", None),
        (True, b"[-1e400]", "a number is beyond the floating-point range"),
        (True, b"NaN", "NaN is not a JSON number"),
        (True, b"[" * 100_000, "nested too deep"),
        ({"multipleOf": 0.1}, b"0.3", None),
        ({"pattern": "^(a|a)*(?=b)$"}, b'"' + b"a" * 60 + b'c"', "backtracking"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_json_payload_reads_alike_everywhere_and_is_valid(definition, payload, reason):
    """The first thing that does not fit is named with its place."""
    found = refusal("json_schema", definition, payload)
    assert found is None if reason is None else reason in found


SECRET, NUMBER, INTEGER = "4111-SECRET-1111", 4111_1111, {"type": "integer"}
PRIVATE = [
    ("json_schema", {"properties": {"card": INTEGER}}, {"card": SECRET}),
    ("json_schema", {"properties": {"card": {"type": "string"}}}, {"card": NUMBER}),
    ("json_schema", INTEGER, {SECRET: NUMBER}),
    ("json_schema", {"enum": ["a"]}, SECRET),
    ("json_schema", {"const": 5}, NUMBER),
    ("json_schema", {"maximum": 5}, NUMBER),
    ("json_schema", {"multipleOf": 7}, NUMBER),
    ("json_schema", {"pattern": "^a"}, SECRET),
    ("json_schema", {"maxLength": 3}, SECRET),
    ("json_schema", {"uniqueItems": True}, [SECRET, SECRET]),
    ("json_schema", {"contains": INTEGER}, [SECRET]),
    ("json_schema", {"additionalProperties": False}, {SECRET: 1}),
    ("json_schema", {"additionalProperties": INTEGER}, {SECRET: "x"}),
    ("json_schema", {"additionalProperties": {"required": ["x"]}}, {SECRET: {}}),
    ("json_schema", {"patternProperties": {"^4": INTEGER}}, {SECRET: SECRET}),
    ("json_schema", {"propertyNames": {"maxLength": 3}}, {SECRET: 1}),
    ("json_schema", {"propertyNames": {"enum": ["a"]}}, {SECRET: 1}),
    ("json_schema", {"unevaluatedProperties": False}, {SECRET: 1}),
    ("json_schema", {"unevaluatedItems": False}, [SECRET]),
    ("json_schema", {"prefixItems": [True], "items": False}, [1, SECRET]),
    ("json_schema", {"not": {"type": "string"}}, SECRET),
    ("json_schema", {"anyOf": [INTEGER]}, SECRET),
    ("json_schema", {"oneOf": [{}, {}]}, SECRET),
    ("json_schema", {"required": ["x"]}, {SECRET: SECRET}),
    ("json_schema", {"dependentRequired": {"x": ["y"]}}, {"x": SECRET}),
    ("json_schema", True, f'{{"{SECRET}":1,"{SECRET}":2}}'.encode()),
    ("json_schema", True, SECRET.encode()),
    ("json_schema", True, f'1 "{SECRET}"'.encode()),
    ("json_schema", True, b"4111" * 2_000),
    ("json_schema", True, b"4111e4111"),
    ("avro", "bytes", b"\xde\x40"),
    ("avro", ["null", "int"], b"\xde\x40"),
    ("avro", {"type": "enum", "name": "E", "symbols": ["A"]}, b"\xde\x40"),
    ("avro", "string", b"\x22" + SECRET.encode() + b"\xff"),
    ("avro", "null", SECRET.encode()),
    ("protobuf", PROTO, SECRET.encode()),
    ("protobuf", PROTO, b"\x0a\x10" + SECRET.encode()),
    (
        "protobuf",
        b'syntax="proto2"; message M { map<string, N> m = 1; } message N { required int32 a = 1; }',
        b"\x0a\x14\x0a\x10" + SECRET.encode() + b"\x12\x00",
    ),
]


@pytest.mark.parametrize(
    ("kind", "definition", "payload"), PRIVATE, ids=lambda value: str(value)[:50]
)
def test_a_reason_has_no_value_and_no_name_of_the_payload(kind, definition, payload):
    """It has names and bounds of the schema, the kind of a value, sizes and positions."""
    found = refusal(kind, definition, payload)
    assert found
    assert "4111" not in found
    assert "SECRET" not in found


def test_a_name_that_the_schema_has_is_in_the_place():
    """Other names are left out."""
    schema = {"properties": {"card": INTEGER}, "additionalProperties": {"items": INTEGER}}
    assert refusal("json_schema", schema, {"card": "x"}).startswith("at $.card: ")
    assert refusal("json_schema", schema, {"other": [1, "x"]}).startswith("at $.{*}[1]: ")
