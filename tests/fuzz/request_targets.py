"""What is fuzzed of the broker: requests and tokens of clients.

As in `targets`: any bytes go in, an error of ours is a fine answer. What is sent on must be what
came in, as the C core of protobuf reads it.
"""

from __future__ import annotations

from contextlib import suppress

from frazil.errors import InvalidRequest
from frazil.serve.auth.credentials import BadCredential, TokenRules, verify_token
from frazil.serve.danube import messages
from frazil.serve.danube.names import check_namespace, checked_topic, part_of
from frazil.serve.danube.proto.danube_pb2 import StreamMessage
from frazil.serve.grpc.codec import CallFailed
from tests.support.rpcs import RPCS

TOKENS = TokenRules(secrets=(b"s" * 32,), issuer="here")


def danube(data):
    """Requests of every call, names of topics, and records that go out as they came in."""
    for rpc in RPCS.values():
        with suppress(CallFailed):
            messages.parse_request(rpc.request, data)
    for parse in (messages.parse_ack, messages.parse_nack):
        with suppress(CallFailed):
            parse(data)
    text = data.decode("utf-8", "replace")
    with suppress(InvalidRequest):
        check_namespace(text)
    part_of(text)
    with suppress(CallFailed):
        # Letters may be written in more than one way; the engine has one of them.
        name = checked_topic(text)
        assert checked_topic(name) == name
    try:
        request_id, producer_id, record = messages.parse_send(data)
    except CallFailed:
        return
    encoder = messages.DeliveryEncoder(topic_name="/n/t", broker_addr="http://h:1")
    sent = StreamMessage.FromString(data)
    back = StreamMessage.FromString(encoder.body(request_id, record))
    assert back.payload == sent.payload
    assert back.attributes == sent.attributes
    assert back.msg_id.producer_id == producer_id
    assert back.msg_id.topic_offset == request_id
    assert back.publish_time == sent.publish_time
    assert back.HasField("routing_key") == sent.HasField("routing_key")


def clients(data):
    """What else clients send: tokens."""
    with suppress(BadCredential):
        verify_token(data.decode("latin-1"), TOKENS, now_s=1e9)


REQUEST_TARGETS = {target.__name__: target for target in (danube, clients)}
