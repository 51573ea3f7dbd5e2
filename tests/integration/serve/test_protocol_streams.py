"""How consumers' streams begin, change hands and end, over a `frazil serve` process.

What the protocol's page says in 1.2 and 1.3, by plain gRPC: published clients hide it.
"""

from __future__ import annotations

import time

import grpc
import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from tests.integration.serve.protocol_world import (
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Refusal,
    Scene,
    Wire,
    wait_until,
)

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
PRODUCER, CONSUMER = 0, 1
ACK, NACK = "ConsumerService.Ack", "ConsumerService.Nack"
UNKNOWN_ID = 4711


@pytest.fixture
def scene(protocol_broker):
    found = Scene(protocol_broker)
    yield found
    for stream in found.streams:
        stream.cancel()


def rest_of(stream):
    """Return the payloads of a stream up to its end, and how that was."""
    payloads = []
    try:
        payloads += [message.payload for message in stream]
    except grpc.RpcError as error:
        assert error is stream
    return payloads, stream.code()


def test_an_idle_stream_has_its_headers_at_once(scene):
    """1.3: they come before any record, or clients could neither ack nor close."""
    scene.has_consumer()
    stream = scene.stream()
    assert stream.is_active()
    scene.sent(b"x")
    assert next(stream).payload == b"x"


def test_the_same_name_takes_over(scene):
    """1.2: the old stream ends with OK, the id is the same, unacked records come at once."""
    scene.delivered(b"a", b"b")
    identity, old = scene.consumer_id, scene.streams[-1]
    assert scene.has_consumer() == identity
    assert rest_of(old) == ([], CODES.OK)
    new = scene.stream()
    assert [next(new).msg_id.topic_offset for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("is_reliable", [True, False])
def test_a_second_stream_takes_over_the_first(scene, is_reliable):
    """1.2: the same id asks again; the first stream ends with OK, stored records come again."""
    scene.has_producer(is_reliable=is_reliable)
    scene.delivered(b"a")
    old = scene.streams[-1]
    new = scene.stream()
    assert rest_of(old) == ([], CODES.OK)
    scene.sent(b"b")
    assert next(new).payload == (b"a" if is_reliable else b"b")


@pytest.mark.parametrize("kind", [SHARED, FAILOVER])
def test_who_drops_leaves_its_records_to_the_others(scene, kind):
    """1.2, 1.3: the drop is noticed at once, and what was unacked goes to another in order."""
    scene.delivered(b"a", b"b", b"c", kind=kind)
    first, identity = scene.streams[-1], scene.consumer_id
    scene.has_consumer("other", kind=kind)
    other = scene.stream()
    first.cancel()
    assert [next(other).payload for _ in range(3)] == [b"a", b"b", b"c"]
    assert scene.is_closed(CONSUMER, identity)
    assert not scene.is_closed(CONSUMER, scene.consumer_id)


def test_keys_of_who_drops_move_to_the_others(scene):
    """1.8.3: a key's unacked record goes to another consumer, and the next one behind it."""
    scene.has_consumer("first", kind=KEY_SHARED)
    first = scene.stream()
    for key in "abc":
        scene.sent(b"0", b"1", routing_key=key)
    assert sorted(next(first).routing_key for _ in range(3)) == ["a", "b", "c"]
    scene.has_consumer("other", kind=KEY_SHARED)
    other = scene.stream()
    first.cancel()
    found = []
    for _ in range(6):
        message = next(other)
        found.append((message.routing_key, message.payload))
        scene.ask(ACK, scene.ack(message.msg_id.topic_offset))
    assert sorted(found) == [(key, payload) for key in "abc" for payload in (b"0", b"1")]
    for key in "abc":
        assert found.index((key, b"0")) < found.index((key, b"1"))


def test_a_topic_that_is_deleted_ends_its_streams(scene):
    """1.3: with OK, behind CLOSE of the health check."""
    scene.delivered(b"a")
    scene.deleted()
    assert rest_of(scene.streams[-1]) == ([], CODES.OK)
    assert scene.is_closed(CONSUMER, scene.consumer_id)


def test_a_topic_that_is_unloaded_has_its_clients_come_again(scene):
    """1.3: streams end with UNAVAILABLE, ids and records stay."""
    scene.delivered(b"a")
    scene.ask("TopicAdmin.UnloadTopic", admin.TopicRequest(name=scene.topic))
    assert rest_of(scene.streams[-1]) == ([], CODES.UNAVAILABLE)
    assert scene.is_closed(CONSUMER, scene.consumer_id)
    assert scene.is_closed(PRODUCER, scene.producer_id)
    assert next(scene.stream()).payload == b"a"
    scene.sent(b"b")
    assert not scene.is_closed(PRODUCER, scene.producer_id)
    scene.ask("TopicAdmin.UnloadTopic", admin.TopicRequest(name=scene.topic))
    assert scene.is_closed(PRODUCER, scene.producer_id)
    scene.has_producer()
    assert not scene.is_closed(PRODUCER, scene.producer_id)


def test_a_subscription_that_is_removed_ends_its_streams(scene):
    """TopicAdmin: the stream ends with OK, and the id is unknown then."""
    scene.delivered(b"a")
    request = admin.SubscriptionRequest(topic=scene.topic, subscription="s")
    scene.ask("TopicAdmin.Unsubscribe", request)
    assert rest_of(scene.streams[-1]) == ([], CODES.OK)
    assert rest_of(scene.stream()) == ([], CODES.NOT_FOUND)


def test_a_refused_stream_takes_its_time(scene):
    """1.3: clients that ask again at once, for ever, are slowed down."""
    begun = time.monotonic()
    for _ in range(3):
        assert rest_of(scene.stream(UNKNOWN_ID)) == ([], CODES.NOT_FOUND)
    assert time.monotonic() - begun >= 1


def test_producers_stay_when_their_connection_goes(scene):
    """1.2: an id is good on any connection, also when the one that made it is closed."""
    connection = Wire(scene.wire.process)
    maker = Scene(connection)
    maker.has_producer()
    connection.close()
    scene.topic, scene.producer_id = maker.topic, maker.producer_id
    assert not scene.is_closed(PRODUCER, scene.producer_id)
    scene.sent(b"x")
    assert scene.has_producer() == maker.producer_id


def test_acks_are_for_single_records(scene):
    """1.2: not cumulative, and any client may send them; what was acked does not come again."""
    scene.delivered(*(b"%d" % number for number in range(5)))
    for offset in (3, 1):
        scene.ask(ACK, scene.ack(offset))
    scene.streams[-1].cancel()
    wait_until(lambda: scene.is_closed(CONSUMER, scene.consumer_id))
    scene.has_consumer("somebody-else")
    stream = scene.stream()
    assert [next(stream).msg_id.topic_offset for _ in range(3)] == [0, 2, 4]


def test_a_nack_ahead_of_the_delivery_changes_nothing(scene):
    """Behaviour: a nack of what was not delivered is OK, and the record is delivered."""
    scene.has_consumer()
    scene.sent(b"a")
    scene.ask(NACK, scene.nack(0))
    assert next(scene.stream()).msg_id.topic_offset == 0


def test_an_ack_ahead_of_the_delivery_counts(scene):
    """Behaviour: an ack below the topic's durable head is taken; the next record is delivered."""
    scene.has_consumer()
    scene.sent(b"a", b"b")
    scene.ask(ACK, scene.ack(0))
    assert next(scene.stream()).msg_id.topic_offset == 1


def test_a_nacks_delay_is_within_the_policys(scene):
    """1.2: at least what the policy says, what the nack asks for, at most max_redelivery_delay."""
    scene.made()
    policy = admin.SubscriptionFailurePolicy(
        max_redelivery_count=9,
        ack_timeout_ms=30_000,
        base_redelivery_delay_ms=100,
        max_redelivery_delay_ms=300,
        poison_policy=1,
    )
    scene.ask(
        "TopicAdmin.SetSubscriptionFailurePolicy",
        admin.SetSubscriptionFailurePolicyRequest(
            topic=scene.topic, subscription="s", failure_policy=policy
        ),
    )
    scene.delivered(b"a")
    for asked_ms, least_s in ((0, 0.1), (200, 0.2), (10_000_000, 0.3)):
        begun = time.monotonic()
        scene.ask(NACK, scene.nack(0, delay_ms=asked_ms, reason="later"))
        assert next(scene.streams[-1]).msg_id.topic_offset == 0
        assert time.monotonic() - begun >= least_s * 0.9


def test_what_is_published_while_nobody_listens_waits(scene):
    """1.8.7: more than a window behind, nothing is lost, and a consumer without a stream blocks nobody."""
    scene.has_consumer()
    scene.sent(*(b"%d" % number for number in range(300)))
    stream = scene.stream()
    for offset in range(300):
        message = next(stream)
        assert (message.msg_id.topic_offset, message.payload) == (offset, b"%d" % offset)
        scene.ask(ACK, scene.ack(offset))


def test_a_refusal_leaves_nothing_behind(scene):
    """1.2: a producer or consumer that is refused has made no topic."""
    for rpc, request in (
        ("ProducerService.CreateProducer", scene.producer(schema_ref={"subject": scene.subject})),
        ("ConsumerService.Subscribe", scene.consumer()),
    ):
        with pytest.raises(Refusal):
            scene.ask(rpc, request)
    with pytest.raises(Refusal, match="Unable to find the topic: "):
        scene.deleted()
