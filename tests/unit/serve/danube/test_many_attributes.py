"""Messages with far more attributes than allowed are refused before they are parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.auth.permissions import RPCS, needs
from frazil.serve.danube import messages
from frazil.serve.danube.messages import ATTRIBUTES_MAX, FIELDS_BESIDE, check_attributes, parse_send
from frazil.serve.danube.proto.danube_pb2 import MsgID, StreamMessage
from frazil.serve.danube.statuses import Refused
from frazil.serve.grpc.codec import Code
from tests.unit.serve.auth.world import PRODUCER_ID, KnownIds

SEND = "/danube.ProducerService/SendMessage"


def sent(count, **fields):
    """Return a request with so many attributes."""
    attributes = {f"name {number}": "value" for number in range(count)}
    msg_id = MsgID(producer_id=PRODUCER_ID, topic_name="/default/orders")
    return StreamMessage(
        **{"request_id": 7, "payload": b"x", **fields}, msg_id=msg_id, attributes=attributes
    ).SerializeToString()


class Unparsed:
    """Stands for a message that must not be parsed."""

    @classmethod
    def FromString(cls, data):  # noqa: N802
        pytest.fail(f"{len(data)} bytes were parsed")


def test_a_request_full_of_attributes_is_never_parsed(monkeypatch):
    """Alone, in a run, and by the guard: it is refused as a record with too many attributes is."""
    request = sent(100_000)
    monkeypatch.setattr(messages, "StreamMessage", Unparsed)
    asks = (
        lambda: parse_send(request),
        lambda: needs(RPCS[SEND], request, KnownIds()),
    )
    for ask in asks:
        with pytest.raises(Refused) as refused:
            ask()
        code, text = refused.value.status
        assert code is Code.PERMISSION_DENIED
        assert text == (
            "Unable to publish the message: message has too many attributes (attributes_max=64)"
        )


def test_a_few_too_many_are_left_to_the_topics_limits():
    """What a topic allows is for those who know it; all fields of a message fit beside it."""
    most = sent(
        ATTRIBUTES_MAX,
        publish_time=1,
        producer_name="p",
        schema_id=1,
        schema_version=1,
        routing_key="k",
    )
    assert len(parse_send(most)[2].attributes) == ATTRIBUTES_MAX
    assert len(parse_send(sent(ATTRIBUTES_MAX + 1))[2].attributes) == ATTRIBUTES_MAX + 1
    assert len(parse_send(sent(1000), 1000)[2].attributes) == 1000
    with pytest.raises(Refused):
        parse_send(sent(ATTRIBUTES_MAX + FIELDS_BESIDE))


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=300).map(lambda data: StreamMessage(payload=data)),
            st.integers(0, 2**64 - 1).map(lambda number: StreamMessage(request_id=number)),
            st.text(max_size=40).map(lambda text: StreamMessage(attributes={text: text})),
            st.integers(0, 2**64 - 1).map(
                lambda number: StreamMessage(msg_id=MsgID(producer_id=number, topic_offset=number))
            ),
        ).map(lambda message: message.SerializeToString()),
        max_size=40,
    ),
    st.integers(0, 20),
)
def test_fields_are_counted_as_they_were_written(fields, most):
    """However large they are: one more than allowed is found, and none that is allowed."""
    written = [field for field in fields if field]
    request = b"".join(written)
    assert messages._has_more_fields(request, max(most, 1)) is (len(written) > max(most, 1))


@given(st.binary(max_size=2000))
def test_any_bytes_are_counted_or_left_to_the_parser(data):
    """Whatever comes is refused as too much, or passes; nothing else happens."""
    try:
        check_attributes(data, 0)
    except Refused as error:
        assert error.status.code is Code.PERMISSION_DENIED
    else:
        assert len(data) <= 6 * FIELDS_BESIDE or not messages._has_more_fields(data, FIELDS_BESIDE)
