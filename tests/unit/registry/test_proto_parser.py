"""Protobuf definitions: .proto text and descriptor sets become the same schema."""

from __future__ import annotations

import importlib.resources

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from frazil.errors import InvalidRequest
from frazil.registry.definitions import parse_definition
from frazil.registry.proto_model import parse_protobuf

ORDER = """
// An order, with all that the language has.
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
option java_package = "com.example.shop";
option (custom) = { a: 1 b: "};" };

message Order {
  option deprecated = false;
  reserved 2, 15, 9 to 11, 100 to max;
  reserved "foo", 'bar';
  enum State { option allow_alias = true; NEW = 0; OPEN = 0x1; ALSO_OPEN = 1 [deprecated = true]; }
  message Line { string sku = 1; sint64 count = 2; repeated fixed32 marks = 3 [packed=false]; }
  string id = 1;
  State state = 3;
  repeated Line lines = 4 [(rule) = {list: ["a]", "b"]}, json_name = "items"];
  map<string, Line> by_sku = 5;
  oneof payment { option (x) = 1; string card = 6; bytes cash = 7; }
  optional int32 priority = 8;
  .google.protobuf.Timestamp at = 12;
  Order.State other = 13;
  repeated double weights = 14; /* a comment ; } */
  ;
}
enum Colour { RED = 0; reserved 5 to max, -3; }
service Shop { rpc Buy(Order) returns (stream Order) { option idempotent = true; } }
"""
OLD = """
package old;
message A {
  required int32 a = 1 [default = 3];
  optional B b = 2;
  repeated int64 c = 3 [packed = true];
  extensions 100 to 199;
  enum E { X = -1; Y = 2; }
  optional E e = 4 [default = Y];
}
message B { repeated A again = 1; }
"""


def compiled(text, tmp_path):
    """Return the descriptor set that the real compiler makes of a text."""
    (tmp_path / "schema.proto").write_text(text)
    included = importlib.resources.files("grpc_tools") / "_proto"
    out = tmp_path / "out.bin"
    code = protoc.main(
        ["", f"-I{tmp_path}", f"-I{included}", f"-o{out}", "--include_imports", "schema.proto"]
    )
    assert code == 0
    return out.read_bytes()


@pytest.mark.parametrize("text", [ORDER, OLD], ids=["proto3", "proto2"])
def test_a_text_is_read_as_the_compiler_reads_it(text, tmp_path):
    """Messages, fields, oneofs, packing, enums and reserved numbers are those of protoc."""
    plain = text.replace('option (custom) = { a: 1 b: "};" };', "")
    plain = plain.replace("option (x) = 1; ", "").replace("option idempotent = true;", "")
    plain = plain.replace('(rule) = {list: ["a]", "b"]}, ', "")
    ours, theirs = parse_protobuf(text.encode()), parse_protobuf(compiled(plain, tmp_path))
    assert ours.root == theirs.root
    assert ours.messages == theirs.messages
    assert ours.enums == theirs.enums
    assert len(ours.messages) >= 2


def test_spaces_and_comments_make_no_other_schema():
    """The fingerprint is that of the words."""
    one = parse_definition("protobuf", b'syntax="proto3";message M{string a=1;}')
    two = parse_definition("protobuf", b'syntax = "proto3"; // x\nmessage M {\n string a = 1; }\n')
    three = parse_definition("protobuf", b'syntax = "proto3"; message M { string b = 1; }')
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != three.fingerprint
    assert one.fingerprint.startswith("sha256:")


def deep(count):
    return 'syntax = "proto3"; ' + "message M { " * count + "}" * count


WRONG = {
    "line 1: ';' expected, found 'hello'": "hello",
    "has no message": 'syntax = "proto3";',
    "syntax 'proto4' is not supported": 'syntax = "proto4";',
    "editions are not supported": 'edition = "2023"; message M {}',
    "import of 'other.proto': a definition stands alone": 'import "other.proto"; message M {}',
    "groups are not supported": "message M { optional group G = 1 { } }",
    "extensions of other messages": "message M { extensions 5; } extend M { optional int32 a=5; }",
    "line 3: ';' expected, found '}'": "message M {\n optional int32 a = 1\n}",
    "'}' expected": "service M {",
    "the name of a field expected": "message M { optional int32 = 1; }",
    "optional, required or repeated": "message M { int32 a = 1; }",
    "proto3 has no required fields": 'syntax = "proto3"; message M { required int32 a = 1; }',
    "has no label 'repeated'": 'syntax = "proto3"; message M { oneof o { repeated int32 a = 1; } }',
    "a map cannot be in a oneof": 'syntax="proto3"; message M { oneof o { map<int32,int32> a=1; } }',
    "'double' cannot be the key": 'syntax = "proto3"; message M { map<double, int32> a = 1; }',
    "is from 1 to 536870911, not 0": "message M { optional int32 a = 0; }",
    "belong to the library": "message M { optional int32 a = 19001; }",
    "has the number 1 twice": "message M { optional int32 a = 1; optional int32 b = 1; }",
    "has the field 'a' twice": "message M { optional int32 a = 1; optional int32 a = 2; }",
    "the number of 'a' is reserved: 3": "message M { reserved 2 to 4; optional int32 a = 3; }",
    "the name of 'a' is reserved": 'message M { reserved "a"; optional int32 a = 3; }',
    "couldn't resolve name 'Nope'": "message M { optional Nope a = 3; }",
    "more than one package": "package a; package b; message M {}",
    "is no word": "message M { optional int32 a = 1; } #",
    "nested deeper than 64": deep(65),
    "nested deeper than 64 ": deep(20_000),
    "first value": 'syntax = "proto3"; message M { enum E { A = 1; } E e = 1; }',
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_wrong_text_is_told(reason):
    """What the language forbids, or this reader does not take, is refused with its own words."""
    with pytest.raises(InvalidRequest) as caught:
        parse_protobuf(WRONG[reason].encode())
    assert reason.strip() in str(caught.value)


def test_messages_are_nested_64_deep_at_most():
    """64 levels are read."""
    assert len(parse_protobuf(deep(64).encode()).messages) == 64


def file(name, **more):
    return descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3", **more)


def packed(*files):
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


def test_a_set_of_files_has_the_last_ones_first_message_as_root():
    """Imports come before the file that needs them."""
    one = file("one.proto", package="a", message_type=[{"name": "A"}])
    two = file(
        "two.proto",
        dependency=["one.proto"],
        message_type=[
            {"name": "B", "field": [{"name": "x", "number": 1, "label": 1, "type_name": "a.A"}]}
        ],
    )
    schema = parse_protobuf(packed(one, two))
    assert schema.root == "B"
    assert set(schema.messages) == {"a.A", "B"}
    assert schema.messages["B"].fields[1].type_name == "a.A"
    with pytest.raises(InvalidRequest, match=r"lacks the file 'one\.proto'"):
        parse_protobuf(packed(two))


def test_odd_sets_are_refused():
    """Bytes, too many files, editions and extensions are told."""
    message = [{"name": "M"}]
    with pytest.raises(InvalidRequest, match="text nor a serialized"):
        parse_protobuf(b"\x00\x01\x02")
    many = [file(f"f{n}", message_type=message) for n in range(257)]
    with pytest.raises(InvalidRequest, match="too many files"):
        parse_protobuf(packed(*many))
    editions = descriptor_pb2.FileDescriptorProto(name="e\x01", syntax="editions")
    with pytest.raises(InvalidRequest, match="has syntax 'editions'"):
        parse_protobuf(packed(editions))
    extended = file("x\x01", message_type=message, extension=[{"name": "e", "number": 5}])
    with pytest.raises(InvalidRequest, match="extensions of other messages"):
        parse_protobuf(packed(extended))


def test_payloads_are_the_root_message():
    """Bytes that are no such message are refused, fields that it does not know are not."""
    order = parse_protobuf(ORDER.encode())
    assert order.refusal(b"") is None
    assert order.refusal(b"\x0a\x02ab") is None
    assert order.refusal(b"\xa0\x06\x01") is None
    told = "not a message shop.v1.Order: its bytes are no such message"
    assert order.refusal(b"\x0a\x05ab") == told
    assert order.refusal(b"\x0a\x01\xff") == told
    assert order.refusal(b"\xff") == told


def test_required_fields_are_required():
    """A message of proto2 without a required field is refused with its name."""
    old = parse_protobuf(OLD.encode())
    assert old.refusal(b"\x08\x01") is None
    assert old.refusal(b"") == "not a message old.A: required fields are missing: a"
    assert "b.again[0].a" in old.refusal(b"\x08\x01\x12\x02\x0a\x00")


def test_endless_nesting_in_a_payload_is_refused():
    """A message in a message, a hundred thousand times, is refused and harms nobody."""
    text = b'syntax = "proto3"; message M { M m = 1; }'
    payload = b""
    for _ in range(3_000):
        size = len(payload)
        length = b""
        while size > 127:
            length += bytes([size & 127 | 128])
            size >>= 7
        payload = b"\x0a" + length + bytes([size]) + payload
    assert parse_protobuf(text).refusal(payload)
