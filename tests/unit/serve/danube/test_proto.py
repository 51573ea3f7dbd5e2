"""The messages on the wire are the protocol's, and the generated code is that of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from danube.proto import DanubeApi_pb2, SchemaRegistry_pb2
from google.protobuf import descriptor_pb2

from frazil.serve.danube.proto import danube_admin_pb2, danube_pb2, danube_schema_pb2

ROOT = Path(__file__).resolve().parents[4]
FOLDER = "frazil/serve/danube/proto"
PAIRS = ((danube_pb2, DanubeApi_pb2), (danube_schema_pb2, SchemaRegistry_pb2))

OURS_ALONE = {
    "danube": {
        *("ListSegmentDescriptorsRequest", "ListSegmentDescriptorsResponse"),
        *("SegmentDescriptorProto", "StorageService"),
    },
    "danube_schema": {"ListSubjectsRequest", "ListSubjectsResponse", "SubjectSummary"},
}
"""What the protocol has and the published Python client does not carry."""


def declared(module):
    """Return what a generated module declares, as a message."""
    file = descriptor_pb2.FileDescriptorProto()
    module.DESCRIPTOR.CopyToProto(file)
    return file


def by_name(items):
    return {item.name: item for item in items}


def enum_facts(enum):
    return [(value.name, value.number) for value in enum.value]


def message_facts(message):
    """Return everything of a message that is seen on the wire or by a reader of its fields."""
    oneofs = [oneof.name for oneof in message.oneof_decl]
    fields = {}
    for field in message.field:
        oneof = oneofs[field.oneof_index] if field.HasField("oneof_index") else ""
        shape = (field.name, field.type, field.label, field.type_name, field.proto3_optional, oneof)
        assert field.number not in fields
        fields[field.number] = shape
    enums = {enum.name: enum_facts(enum) for enum in message.enum_type}
    nested = {inner.name: message_facts(inner) for inner in message.nested_type}
    return fields, enums, nested, message.options.map_entry


def call_facts(service):
    return {
        call.name: (
            call.input_type,
            call.output_type,
            call.client_streaming,
            call.server_streaming,
        )
        for call in service.method
    }


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=("danube", "danube_schema"))
def test_messages_are_those_of_the_published_client(ours, theirs):
    """Every message, field, number, type, presence and enum of the published client is the same."""
    mine, published = declared(ours), declared(theirs)
    assert (mine.package, mine.syntax) == (published.package, published.syntax)
    messages = by_name(mine.message_type)
    compared = 0
    for name, message in by_name(published.message_type).items():
        assert message_facts(messages[name]) == message_facts(message), name
        compared += len(message.field)
    assert compared > 50
    assert {enum.name: enum_facts(enum) for enum in mine.enum_type} == {
        enum.name: enum_facts(enum) for enum in published.enum_type
    }
    extra = messages.keys() - by_name(published.message_type).keys()
    assert extra == {name for name in OURS_ALONE[mine.package] if not name.endswith("Service")}


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=("danube", "danube_schema"))
def test_calls_are_those_of_the_published_client(ours, theirs):
    """Every service and call of the published client has the same types and direction."""
    mine, published = by_name(declared(ours).service), by_name(declared(theirs).service)
    for name, service in published.items():
        calls, wanted = call_facts(mine[name]), call_facts(service)
        assert {call: calls[call] for call in wanted} == wanted, name
        assert calls.keys() - wanted.keys() <= {"ListSubjects"}
    assert mine.keys() - published.keys() <= {"StorageService"}


ADMIN = {
    "NewTopicRequest": "1 name str · 2 schema_subject opt str · 3 dispatch_strategy enum",
    "PartitionedTopicRequest": (
        "1 base_name str · 2 partitions u32 · 3 schema_subject opt str · 4 dispatch_strategy enum"
    ),
    "TopicRequest": "1 name str",
    "TopicResponse": "1 success bool",
    "SubscriptionListResponse": "1 subscriptions repeated str",
    "SubscriptionRequest": "1 topic str · 2 subscription str",
    "SubscriptionResponse": "1 success bool",
    "SetSubscriptionFailurePolicyRequest": (
        "1 topic str · 2 subscription str · 3 failure_policy SubscriptionFailurePolicy"
    ),
    "GetSubscriptionFailurePolicyRequest": "1 topic str · 2 subscription str",
    "GetSubscriptionFailurePolicyResponse": (
        "1 failure_policy opt SubscriptionFailurePolicy · 2 subscription_type i32"
    ),
    "SubscriptionFailurePolicy": (
        "1 max_redelivery_count u32 · 2 ack_timeout_ms u64 · 3 base_redelivery_delay_ms u64 · "
        "4 max_redelivery_delay_ms u64 · 5 backoff_strategy enum · 6 dead_letter_topic opt str · "
        "7 poison_policy enum"
    ),
    "DescribeTopicRequest": "1 name str",
    "DescribeTopicResponse": (
        "1 name str · 2 subscriptions repeated str · 3 broker_id str · 4 delivery str · "
        "5 schema_subject opt str · 6 schema_id opt u64 · 7 schema_version opt u32 · "
        "8 schema_type opt str · 9 compatibility_mode opt str"
    ),
    "NamespaceRequest": "1 name str",
    "BrokerRequest": "1 broker_id str",
    "TopicInfoListResponse": "1 topics repeated TopicInfo",
    "TopicInfo": "1 name str · 2 broker_id str · 3 delivery str",
    "SetSubscriptionDispatchConfigRequest": (
        "1 topic str · 2 subscription str · 3 dispatch_config SubscriptionDispatchConfig"
    ),
    "SubscriptionDispatchConfig": "1 max_unacked_messages u32",
    "GetSubscriptionDispatchConfigRequest": "1 topic str · 2 subscription str",
    "GetSubscriptionDispatchConfigResponse": "1 dispatch_config opt SubscriptionDispatchConfig",
    "GetNamespaceTopicsResponse": "1 topics repeated str",
    "GetNamespacePoliciesResponse": "1 policies str",
    "NamespaceResponse": "1 success bool",
    "Empty": "",
    "ListBrokersResponse": "1 brokers repeated BrokerInfo",
    "BrokerInfo": (
        "1 broker_id str · 2 broker_addr str · 3 broker_role str · 4 admin_addr str · "
        "5 metrics_addr str · 6 broker_status str"
    ),
    "GetLeaderBrokerResponse": "1 leader str",
    "ListNamespacesResponse": "1 namespaces repeated str",
}
EXTRA = {
    "ListSegmentDescriptorsRequest": "1 topic str · 2 after_offset u64",
    "ListSegmentDescriptorsResponse": "1 segments repeated SegmentDescriptorProto",
    "SegmentDescriptorProto": (
        "1 segment_id str · 2 start_offset u64 · 3 end_offset u64 · 4 size u64 · 5 etag str · "
        "6 created_at u64"
    ),
    "ListSubjectsRequest": "",
    "ListSubjectsResponse": "1 subjects repeated SubjectSummary",
    "SubjectSummary": (
        "1 subject str · 2 schema_type str · 3 latest_version u32 · 4 compatibility_mode str · "
        "5 schema_id u64 · 6 tags repeated str"
    ),
}
"""The protocol's own table of what no published Python package carries."""
WORDS = {4: "u64", 5: "i32", 8: "bool", 9: "str", 12: "bytes", 13: "u32", 14: "enum"}


def in_words(message):
    """Return a message's fields in the words of the table."""
    fields = []
    for field in message.field:
        word = WORDS.get(field.type) or field.type_name.rpartition(".")[2]
        repeated = "repeated " if field.label == field.LABEL_REPEATED else ""
        optional = "opt " if field.proto3_optional else ""
        fields.append(f"{field.number} {field.name} {optional}{repeated}{word}")
    return " · ".join(fields)


def test_messages_of_the_admin_port_are_the_protocols():
    """Each message of the admin port has exactly the fields of the protocol's table."""
    messages = declared(danube_admin_pb2).message_type
    assert {message.name: in_words(message) for message in messages} == ADMIN
    enums = {enum.name: enum_facts(enum) for enum in declared(danube_admin_pb2).enum_type}
    assert enums == {
        "DispatchStrategy": [("NonReliable", 0), ("Reliable", 1)],
        "BackoffStrategy": [("Fixed", 0), ("Exponential", 1)],
        "PoisonPolicy": [("DeadLetter", 0), ("Block", 1), ("Drop", 2)],
    }


def test_messages_that_no_python_client_carries_are_the_protocols():
    """Segment descriptors and the list of subjects have exactly the fields of the table."""
    messages = by_name(
        [*declared(danube_pb2).message_type, *declared(danube_schema_pb2).message_type]
    )
    assert {name: in_words(messages[name]) for name in EXTRA} == EXTRA


def test_bytes_of_the_published_client_mean_the_same():
    """A message that the published client writes is read by ours with every field, and back."""
    theirs = DanubeApi_pb2.StreamMessage(
        request_id=2**64 - 1,
        msg_id=DanubeApi_pb2.MsgID(producer_id=1, topic_name="/default/ä", topic_offset=7),
        payload=b"\0\xff",
        publish_time=5,
        attributes={"a": "b", "": ""},
        schema_version=0,
        routing_key="",
    )
    ours = danube_pb2.StreamMessage.FromString(theirs.SerializeToString())
    assert (ours.request_id, ours.payload, ours.publish_time) == (2**64 - 1, b"\0\xff", 5)
    assert (ours.msg_id.topic_name, ours.msg_id.topic_offset) == ("/default/ä", 7)
    assert dict(ours.attributes) == {"a": "b", "": ""}
    assert ours.HasField("schema_version")
    assert ours.HasField("routing_key")
    assert not ours.HasField("schema_id")
    assert DanubeApi_pb2.StreamMessage.FromString(ours.SerializeToString()) == theirs


def test_generated_code_is_that_of_the_proto_files(tmp_path):
    """`make proto` writes exactly the files that are checked in, and no others."""
    command = [sys.executable, str(ROOT / "scripts/proto.py"), "--out", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    written = {path.name: path.read_bytes() for path in (tmp_path / FOLDER).iterdir()}
    kept = {path.name: path.read_bytes() for path in (ROOT / "src" / FOLDER).glob("*_pb2.py*")}
    assert written.keys() == kept.keys()
    assert len(kept) == 6
    for name, text in kept.items():
        assert written[name] == text, name


def test_a_stub_says_what_its_messages_have():
    """Each message of the generated code has the fields and values that its stub declares."""
    for module in (danube_pb2, danube_schema_pb2, danube_admin_pb2):
        stub = Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
        for message in declared(module).message_type:
            body = stub.split(f"\nclass {message.name}(_Message):\n")[1].split("\nclass ")[0]
            made = getattr(module, message.name)()
            for field in message.field:
                assert f"{field.name}: " in body
                assert hasattr(made, field.name)
            for enum in message.enum_type:
                assert all(f"    {value.name}: ClassVar[int]" in body for value in enum.value)
        for enum in declared(module).enum_type:
            assert f"{enum.name}: Final[_{enum.name}]" in stub
