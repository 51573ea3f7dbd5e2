"""What is put together by hand on the wire equals what protobuf writes and reads."""

from __future__ import annotations

import struct

import pytest
from danube.proto import DanubeApi_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from frazil.schema import Message
from frazil.serve.danube import messages
from frazil.serve.danube.proto import danube_pb2
from frazil.serve.danube.statuses import Refused
from frazil.subscribe import Record

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
LONG_TEXT = st.builds(lambda part, times: part * times, TEXT, st.integers(1, 12))
U64 = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 127, 128, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**63, 2**64 - 1]),
)
U32 = st.integers(0, 2**32 - 1)
PAYLOAD = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([127, 128, 2**14 - 1, 2**14, 70_000]).map(lambda size: b"\xff" * size),
)
MESSAGES = st.builds(
    Message,
    payload=PAYLOAD,
    key=st.none() | LONG_TEXT,
    attributes=st.none() | st.dictionaries(LONG_TEXT, LONG_TEXT, max_size=4),
    publish_time=st.none() | U64.map(lambda time_ms: time_ms * 1000) | st.integers(0, 10**8),
    producer_name=st.none() | LONG_TEXT,
    producer_id=st.none() | U64,
    schema_id=st.none() | U64,
    schema_version=st.none() | U32,
)


def as_protobuf(message, *, offset, topic, address, subscription):
    """Build the same message with the published client's classes."""
    return DanubeApi_pb2.StreamMessage(
        msg_id=DanubeApi_pb2.MsgID(
            producer_id=message.producer_id,
            topic_name=topic,
            broker_addr=address,
            topic_offset=offset,
        ),
        payload=message.payload,
        publish_time=None if message.publish_time is None else message.publish_time // 1000,
        producer_name=message.producer_name,
        subscription_name=subscription,
        attributes=message.attributes,
        schema_id=message.schema_id,
        schema_version=message.schema_version,
        routing_key=message.key,
    )


def unframed(data):
    """Cut a stream into its messages."""
    found = []
    while data:
        flag, size = struct.unpack(">BI", data[:5])
        assert flag == 0
        assert len(data) >= 5 + size
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found


@given(
    records=st.lists(st.tuples(U64, MESSAGES), min_size=1, max_size=4),
    topic=LONG_TEXT,
    address=TEXT,
    subscription=LONG_TEXT,
)
@example(records=[(0, Message(b""))], topic="", address="", subscription="")
@example(
    records=[(2**64 - 1, Message(b"x", "", {"": ""}, 0, "", 0, 0, 0))],
    topic="/n/t",
    address="http://h:1",
    subscription="s",
)
def test_deliveries_are_what_protobuf_reads_and_writes(records, topic, address, subscription):
    """Each delivery is read with every field as it was, and has not one byte more than needed."""
    encoder = messages.DeliveryEncoder(topic_name=topic, broker_addr=address)
    field = messages.subscription_field(subscription)
    stream = encoder.run([Record(offset, message, 0) for offset, message in records], field)
    for (offset, message), data in zip(records, unframed(stream), strict=True):
        wanted = as_protobuf(
            message, offset=offset, topic=topic, address=address, subscription=subscription
        )
        assert DanubeApi_pb2.StreamMessage.FromString(data) == wanted
        assert len(data) == wanted.ByteSize()


@given(
    records=st.lists(st.tuples(U64, MESSAGES), max_size=4),
    subscriptions=st.lists(TEXT, min_size=1, max_size=4),
)
@example(
    records=[(1, Message(b"x")), (1 << 20, Message(b""))], subscriptions=["a", "b", "cc", "", "a"]
)
def test_a_run_of_records_is_every_subscriptions_own(records, subscriptions):
    """Whichever subscription had the records before, each gets whole messages with its name."""
    encoder = messages.DeliveryEncoder(topic_name="/n/t", broker_addr="http://h:1")
    shared = [Record(offset, message, 0) for offset, message in records]
    for name in subscriptions:
        stream = encoder.run(shared, messages.subscription_field(name))
        for (offset, message), data in zip(records, unframed(stream), strict=True):
            wanted = as_protobuf(
                message, offset=offset, topic="/n/t", address="http://h:1", subscription=name
            )
            assert DanubeApi_pb2.StreamMessage.FromString(data) == wanted
            assert len(data) == wanted.ByteSize()


@given(offset=U64, message=MESSAGES, topic=TEXT, address=TEXT)
def test_a_body_is_protobufs_bytes(offset, message, topic, address):
    """Without attributes, whose order is free, the part before framing is protobuf's to the byte."""
    plain = Message(
        message.payload,
        message.key,
        None,
        message.publish_time,
        message.producer_name,
        message.producer_id,
        message.schema_id,
        message.schema_version,
    )
    encoder = messages.DeliveryEncoder(topic_name=topic, broker_addr=address)
    wanted = as_protobuf(plain, offset=offset, topic=topic, address=address, subscription=None)
    assert encoder.body(offset, plain) == wanted.SerializeToString()


@given(names=st.lists(st.tuples(U64, TEXT), min_size=1, max_size=30), known_max=st.integers(1, 4))
def test_an_encoder_that_forgets_writes_the_same(names, known_max):
    """With room for few producers and numbers the bytes stay the same, and the room is kept."""
    kept = messages.KNOWN_MAX
    messages.KNOWN_MAX = known_max
    try:
        encoder = messages.DeliveryEncoder(topic_name="/n/t", broker_addr="http://h:1")
        for number, name in names:
            message = Message(b"x", None, None, number * 1000, name, number)
            fresh = messages.DeliveryEncoder(topic_name="/n/t", broker_addr="http://h:1")
            assert encoder.body(number, message) == fresh.body(number, message)
            assert len(encoder._producers) <= known_max
            assert len(encoder._highs) <= known_max
    finally:
        messages.KNOWN_MAX = kept


@given(request_id=U64, message=MESSAGES, topic=TEXT)
def test_sent_messages_are_read_as_they_were_meant(request_id, message, topic):
    """What a published client sends is published with the same values; absent stays absent."""
    sent = as_protobuf(message, offset=0, topic=topic, address="a", subscription=None)
    sent.request_id = request_id
    got_id, producer_id, got = messages.parse_send(sent.SerializeToString())
    assert got_id == request_id
    assert producer_id == (message.producer_id or 0)
    assert got == Message(
        message.payload,
        message.key,
        message.attributes or None,
        (message.publish_time or 0) // 1000 * 1000 or None,
        message.producer_name or None,
        message.producer_id or 0,
        message.schema_id,
        message.schema_version,
    )


@given(request_id=U64)
def test_replies_are_protobufs_bytes(request_id):
    """The reply with a request id is the same as protobuf's for all three calls."""
    reply = messages.request_id_reply(request_id)
    for kind in ("MessageResponse", "AckResponse", "NackResponse"):
        assert getattr(DanubeApi_pb2, kind)(request_id=request_id).SerializeToString() == reply


@given(
    request_id=U64,
    topic=TEXT,
    subscription=TEXT,
    offset=U64,
    delay_ms=st.none() | U64,
    reason=st.none() | TEXT,
)
def test_acks_and_nacks_are_read_as_they_were_meant(
    request_id, topic, subscription, offset, delay_ms, reason
):
    """Every field of an ack and a nack arrives; a delay of 0 and no delay are different things."""
    common = {
        "request_id": request_id,
        "msg_id": DanubeApi_pb2.MsgID(topic_name=topic, topic_offset=offset, producer_id=3),
        "subscription_name": subscription,
    }
    ack = DanubeApi_pb2.AckRequest(**common).SerializeToString()
    assert messages.parse_ack(ack) == (request_id, topic, subscription, offset)
    nack = DanubeApi_pb2.NackRequest(**common, delay_ms=delay_ms, reason=reason)
    wanted = (request_id, topic, subscription, offset, delay_ms or 0, reason or "")
    assert messages.parse_nack(nack.SerializeToString()) == wanted


PARSERS = (
    (messages.parse_send, danube_pb2.StreamMessage),
    (messages.parse_ack, danube_pb2.AckRequest),
    (messages.parse_nack, danube_pb2.NackRequest),
)


@given(data=st.binary(max_size=200))
@example(data=b"\xff")
def test_junk_is_refused_or_read(data):
    """Any bytes are either a request or INVALID_ARGUMENT; nothing else is raised."""
    for parse, kind in PARSERS:
        try:
            parse(data)
        except Refused as refused:
            assert refused.status.code.name == "INVALID_ARGUMENT"
        else:
            assert kind.FromString(data).HasField("msg_id")


STRINGS = (b"\x2a", b"\x32", b"\x52")
"""The tags of a StreamMessage's fields of text."""


@given(
    tag=st.sampled_from(STRINGS),
    bad=st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]),
    before=TEXT,
)
def test_text_that_is_not_utf8_is_refused(tag, bad, before):
    """Invalid UTF-8 in a name or key is INVALID_ARGUMENT, surrogates and overlong forms too."""
    value = before.encode()[:100] if before.isascii() else b""
    value += bad
    data = b"\x12\x02\x08\x01" + tag + bytes([len(value)]) + value
    with pytest.raises(Refused) as caught:
        messages.parse_send(data)
    assert caught.value.status.code.name == "INVALID_ARGUMENT"
    # The same bytes as a payload are welcome.
    _, _, message = messages.parse_send(b"\x12\x02\x08\x01\x1a" + data[5:])
    assert message.payload == value


@given(bad=st.sampled_from([b"\xff", b"\xed\xa0\x80"]), in_value=st.booleans())
def test_attributes_that_are_not_utf8_are_refused(bad, in_value):
    """Invalid UTF-8 in the name or the value of an attribute is INVALID_ARGUMENT."""
    tag = b"\x12" if in_value else b"\x0a"
    entry = tag + bytes([len(bad)]) + bad
    data = b"\x12\x02\x08\x01\x3a" + bytes([len(entry)]) + entry
    with pytest.raises(Refused) as caught:
        messages.parse_send(data)
    assert caught.value.status.code.name == "INVALID_ARGUMENT"


@pytest.mark.parametrize("parser", PARSERS, ids=lambda pair: pair[1].__name__)
def test_a_request_without_msg_id_is_refused(parser):
    """A missing msg_id is INVALID_ARGUMENT, an empty one is not missing."""
    parse, _ = parser
    for data in (b"", b"\x08\x05"):
        with pytest.raises(Refused, match="msg_id"):
            parse(data)
    assert parse(b"\x08\x05\x12\x00")[0] == 5


@given(data=st.binary(max_size=100))
def test_any_request_is_parsed_or_refused(data):
    """A request of the calls that are not hot is parsed by its type or refused."""
    try:
        request = messages.parse_request(danube_pb2.ConsumerRequest, data)
    except Refused as refused:
        assert refused.status.text == "the request is not a valid ConsumerRequest"
    else:
        assert request == danube_pb2.ConsumerRequest.FromString(data)
