"""Requests read with what is remembered of earlier ones, against the parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.schema import IngestLimits, check_message
from frazil.serve.danube.envelopes import END_BYTES_MAX, REMEMBERED_MAX, Envelopes
from frazil.serve.danube.messages import parse_send
from frazil.serve.danube.proto.danube_pb2 import MessageResponse, MsgID, StreamMessage
from frazil.serve.danube.statuses import Refused

NOW_US = 1_800_000_000_000_000
LIMITS = IngestLimits()


def request(payload=b"payload", *, request_id=7, producer_id=1 << 50, **fields):
    """Return a message as clients write it."""
    identity = MsgID(producer_id=producer_id, topic_name="/default/t", broker_addr="http://h:1")
    given_fields = {"publish_time": 1_800_000_000_000, "producer_name": "p", **fields}
    return StreamMessage(
        request_id=request_id, msg_id=identity, payload=payload, **given_fields
    ).SerializeToString()


def taught(*messages):
    """Return what remembers these messages: each kind is learnt when it comes again."""
    found = Envelopes()
    for message in messages:
        found.read(message)
        found.read(message)
    return found


def as_parsed(reply, identity, message, _envelope):
    """Return what was read as `parse_send` gives it."""
    return MessageResponse.FromString(reply).request_id, identity, message


def assert_read_as_parsed(envelopes, data):
    """Read a request as the parser does, or refuse it as that does."""
    try:
        expected = parse_send(data)
    except Refused:
        with pytest.raises(Refused):
            envelopes.read(data)
    else:
        assert as_parsed(*envelopes.read(data)) == expected


def is_known(envelopes, data):
    """Tell whether a request is read without the parser."""
    return envelopes.read(data)[3] is not None


def test_messages_of_one_envelope_are_read_without_the_parser():
    """Payload and request id may differ; another producer, or another time, is learnt anew."""
    envelopes = taught(request())
    for payload in (b"x", b"y" * 127, b"y" * 128, b"y" * 16_383, b"z" * 16_384, b"z" * 300_000):
        for request_id in (1, 127, 128, 1 << 40, (1 << 63) - 1):
            data = request(payload, request_id=request_id)
            assert is_known(envelopes, data)
            assert as_parsed(*envelopes.read(data)) == parse_send(data)
    for other in (request(producer_id=5), request(publish_time=5), request(routing_key="k")):
        assert not is_known(envelopes, other)
        envelopes.read(other)
        assert is_known(envelopes, other)
        assert as_parsed(*envelopes.read(other)) == parse_send(other)


def test_what_comes_once_is_not_remembered():
    """Keys that all differ, say: nothing is kept of them, and what is known stays known."""
    envelopes = taught(request())
    for number in range(5 * REMEMBERED_MAX):
        assert not is_known(envelopes, request(routing_key=str(number)))
    assert is_known(envelopes, request())


def test_what_is_remembered_is_bounded():
    """Many producers and many times: it begins anew, and never forgets to be right."""
    envelopes = Envelopes()
    for number in range(1, 3 * REMEMBERED_MAX):
        data = request(producer_id=number, publish_time=number)
        for _ in range(3):
            assert as_parsed(*envelopes.read(data)) == parse_send(data)
        assert len(envelopes._ids) <= REMEMBERED_MAX
        assert len(envelopes._ends) <= REMEMBERED_MAX
    large = request(attributes={"a": "x" * END_BYTES_MAX})
    assert not is_known(taught(large), large)


def test_attributes_are_each_messages_own():
    """Whoever changes a message's attributes changes no other's."""
    data = request(attributes={"a": "1"})
    envelopes = taught(data)
    first = envelopes.read(data)
    assert first[3] is not None
    first[2].attributes["a"] = "2"
    assert envelopes.read(data)[2].attributes == {"a": "1"}


@pytest.mark.parametrize(
    "end",
    [
        StreamMessage(payload=b"again").SerializeToString(),
        b"\x1a\x00",
        b"\x08\x00",
        StreamMessage(request_id=1).SerializeToString(),
        StreamMessage(request_id=2).SerializeToString(),
        StreamMessage(msg_id=MsgID(producer_id=1)).SerializeToString(),
        b"\x12\x02\x08\x00",
        b"\x2a\x02\xff\xff",
        b"\x2a\x7f",
        b"\xff",
    ],
)
def test_an_end_that_changes_what_came_before_is_the_parsers(end):
    """A field that is there twice, text that is not UTF-8, and what is cut short."""
    data = request() + end
    envelopes = taught(request())
    for _ in range(4):
        assert_read_as_parsed(envelopes, data)


def test_limits_hold_for_what_is_remembered():
    """A payload too large, and other limits than those it was checked against."""
    data = request(b"x" * 1000, producer_name="p" * 100)
    envelopes = taught(data)
    _, _, message, envelope = envelopes.read(data)
    for limits in (LIMITS, IngestLimits(message_bytes_max=1100), LIMITS):
        for _ in range(2):
            assert envelope.check(message, limits, NOW_US) == check_message(message, limits, NOW_US)
    for limits in (IngestLimits(message_bytes_max=1099), IngestLimits(key_bytes_max=99)):
        for _ in range(2):
            with pytest.raises(InvalidRequest):
                envelope.check(message, limits, NOW_US)
    longer = envelopes.read(request(b"x" * 1001, producer_name="p" * 100))
    limits = IngestLimits(message_bytes_max=1100)
    assert envelope.check(message, limits, NOW_US) == 1100
    with pytest.raises(InvalidRequest, match="too large"):
        longer[3].check(longer[2], limits, NOW_US)
    with pytest.raises(InvalidRequest, match="future"):
        taught(data).read(data)[3].check(message, LIMITS, 0)


_messages = st.builds(
    request,
    st.binary(max_size=300),
    request_id=st.integers(0, 2**64 - 1),
    producer_id=st.sampled_from([0, 1, 2**64 - 1]),
    publish_time=st.sampled_from([0, 1, 2**40]),
    producer_name=st.sampled_from(["", "p"]),
    attributes=st.sampled_from([{}, {"a": "b"}]),
    routing_key=st.sampled_from([None, "", "k"]),
    schema_id=st.sampled_from([None, 0, 5]),
    schema_version=st.sampled_from([None, 0, 5]),
)
_parts = st.sampled_from(
    [b"\x08\x01", b"\x12\x00", b"\x1a\x00", b"\x1a\x01x", b"\x20\x05", b"\xff"]
)


@given(st.lists(st.lists(_messages | _parts, min_size=1, max_size=3).map(b"".join), max_size=12))
def test_it_reads_what_the_parser_reads(sequence):
    """Any messages, also joined and with fields more than once, in any order, each three times."""
    envelopes = Envelopes()
    for data in sequence:
        for _ in range(3):
            assert_read_as_parsed(envelopes, data)


@given(st.binary(max_size=60), st.integers(0, 60))
def test_junk_is_refused_as_the_parser_does(junk, cut):
    """Bytes that nobody sent, alone and behind the beginning of a message."""
    envelopes = taught(request())
    for data in (junk, request()[:cut] + junk):
        assert_read_as_parsed(envelopes, data)
