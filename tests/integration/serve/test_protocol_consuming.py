"""Consumers of a `frazil serve` process, row by row of the protocol's page. Texts are the page's."""

from __future__ import annotations

import time

import grpc
import pytest

from frazil.serve.danube.proto import danube_pb2 as wire
from tests.integration.serve.protocol_world import (
    ABSENT,
    ASKED,
    EXCLUSIVE,
    FAILOVER,
    INVALID_NAME,
    KEY_SHARED,
    SHARED,
    TAKEN,
    Fails,
    Gives,
    Row,
    Scene,
    is_id,
    wait_until,
)

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
LOOK_UP, PARTITIONS = "Discovery.TopicLookup", "Discovery.TopicPartitions"
CREATE, SEND = "ProducerService.CreateProducer", "ProducerService.SendMessage"
SUBSCRIBE, RECEIVE = "ConsumerService.Subscribe", "ConsumerService.ReceiveMessages"
ACK, NACK = "ConsumerService.Ack", "ConsumerService.Nack"
HEALTH, SEGMENTS = "HealthCheck.HealthCheck", "StorageService.ListSegmentDescriptors"
PRODUCER, CONSUMER = 0, 1
WELL, CLOSE = 0, 1
UNKNOWN_ID = 4711
ECHO = Gives(request_id=ASKED)
"""A reply that only carries the request's id."""
NAME_SIZE = "The {} must have 1 to 512 bytes"
FILTER_SIZE = "There may be 64 key_filters of 256 bytes each"


def after(*steps):
    """Return the last of what was done one after the other."""
    return steps[-1]


def joined(name="c"):
    return Gives(request_id=ASKED, consumer_id=is_id, consumer_name=name)


def same(name="c"):
    return Gives(
        request_id=ASKED,
        consumer_id=lambda s, value: value == s.consumer_id,
        consumer_name=name,
    )


SUBSCRIBING = [
    *(
        Row(
            "Messages",
            SUBSCRIBE,
            f"type {kind}",
            lambda s, kind=kind: after(s.made(), s.consumer(kind=kind, filters=("a*",))),
            joined(),
        )
        for kind in (EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED)
    ),
    Row(
        "1.2",
        SUBSCRIBE,
        "topic not stored",
        lambda s: after(s.made(is_reliable=False), s.consumer()),
        joined(),
    ),
    Row(
        "1.2",
        SUBSCRIBE,
        "topic absent",
        lambda s: s.consumer(),
        Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}"),
    ),
    Row(
        "1.4",
        SUBSCRIBE,
        "bad name",
        lambda s: s.consumer(topic="orders"),
        Fails(CODES.INVALID_ARGUMENT, INVALID_NAME.format(name="orders")),
    ),
    Row(
        "1.4",
        SUBSCRIBE,
        "whole of a topic in parts",
        lambda s: s.consumer(topic=s.made(partitions=2)),
        Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}"),
    ),
    *(
        Row(
            "Limits",
            SUBSCRIBE,
            situation,
            lambda s, name=name, more=more: after(s.made(), s.consumer(name, **more)),
            Fails(CODES.INVALID_ARGUMENT, text),
        )
        for situation, name, more, text in (
            ("unknown type", "c", {"kind": 4}, "The subscription type 4 is unknown"),
            ("no name", "", {}, NAME_SIZE.format("consumer_name")),
            ("name of 513 bytes", "x" * 513, {}, NAME_SIZE.format("consumer_name")),
            ("no subscription", "c", {"subscription": ""}, NAME_SIZE.format("subscription")),
            (
                "subscription of 514 bytes",
                "c",
                {"subscription": "ü" * 257},
                NAME_SIZE.format("subscription"),
            ),
            ("65 filters", "c", {"filters": ["x"] * 65}, FILTER_SIZE),
            ("filter of 257 bytes", "c", {"filters": ["x" * 257]}, FILTER_SIZE),
        )
    ),
    Row(
        "1.2",
        SUBSCRIBE,
        "more than max_consumers",
        lambda s: after(
            *(s.has_consumer(name, kind=SHARED) for name in "abd"),
            s.consumer(kind=SHARED),
        ),
        Fails(CODES.RESOURCE_EXHAUSTED, "The topic {s.topic} has the maximum of 3 consumers"),
    ),
    Row(
        "Limits",
        SUBSCRIBE,
        "more than max_subscriptions",
        lambda s: after(*(s.has_consumer(subscription=f"s{n}") for n in range(3)), s.consumer()),
        Fails(CODES.RESOURCE_EXHAUSTED, "The topic {s.topic} has the maximum of 3 subscriptions"),
    ),
    Row(
        "1.2",
        SUBSCRIBE,
        "second on Exclusive, first has no stream yet",
        lambda s: after(s.has_consumer("a"), s.consumer("b")),
        Fails(CODES.PERMISSION_DENIED, TAKEN.replace("{name}", "b")),
    ),
    Row(
        "1.2",
        SUBSCRIBE,
        "second on Exclusive, first has a stream",
        lambda s: after(s.has_consumer("a"), s.stream(), s.consumer("b")),
        Fails(CODES.PERMISSION_DENIED, TAKEN.replace("{name}", "b")),
    ),
    Row("1.2", SUBSCRIBE, "same name", lambda s: after(s.has_consumer(), s.consumer()), same()),
    Row(
        "1.2",
        SUBSCRIBE,
        "type of an existing subscription wins",
        lambda s: after(s.has_consumer("a", kind=SHARED), s.consumer("b", kind=EXCLUSIVE)),
        joined("b"),
    ),
    Row(
        "1.2",
        SUBSCRIBE,
        "any name of a subscription",
        lambda s: after(s.made(), s.consumer(subscription="a/b c.*?ü\n")),
        joined(),
    ),
]


def published(scene, when_ms):
    return scene.before_s * 1000 <= when_ms <= time.time() * 1000


def from_topic(*, offset):
    """Return a check of msg_id."""

    def check(scene, found):
        return (
            found.topic_name == scene.topic
            and found.topic_offset == offset
            and found.producer_id == scene.producer_id
            and found.broker_addr == scene.url
        )

    return check


def bare(**more):
    """Return the message of a record with nothing but a payload."""
    return Gives(
        {
            "request_id": lambda s, value: value >= 0,
            "msg_id": from_topic(offset=0),
            "payload": b"x",
            "publish_time": published,
            "producer_name": "p",
            "subscription_name": "s",
            "attributes": {},
            "schema_id": ABSENT,
            "schema_version": ABSENT,
            "routing_key": ABSENT,
            **more,
        }
    )


def receive(scene):
    return wire.ReceiveRequest(request_id=ASKED, consumer_id=scene.consumer_id)


def unstored_sent(scene, count):
    """Have records passed on by a topic that stores nothing."""
    scene.made(is_reliable=False)
    scene.has_consumer()
    scene.has_producer(is_reliable=False)
    scene.sent(*[b"x"] * count)


RECEIVING = [
    Row(
        "Messages",
        RECEIVE,
        "all fields of a record",
        lambda s: after(
            s.has_consumer(),
            s.registered(),
            s.sent(
                b"x",
                attributes={"a": "1", "b": ""},
                schema_id=s.schema_id,
                schema_version=3,
                routing_key="key",
            ),
            receive(s),
        ),
        bare(
            attributes={"a": "1", "b": ""},
            schema_id=lambda s, value: value == s.schema_id,
            schema_version=3,
            routing_key="key",
        ),
    ),
    Row(
        "1.5",
        RECEIVE,
        "new subscription begins at Latest",
        lambda s: after(s.sent(b"old", b"old"), s.has_consumer(), s.sent(b"x"), receive(s)),
        bare(msg_id=from_topic(offset=2)),
    ),
    Row(
        "1.5",
        RECEIVE,
        "existing subscription goes on behind its cursor",
        lambda s: after(
            s.delivered(b"a"),
            s.ask(ACK, s.ack(0)),
            s.streams[-1].cancel(),
            s.sent(b"x"),
            wait_until(lambda: s.is_closed(CONSUMER, s.consumer_id)),
            s.has_consumer(),
            receive(s),
        ),
        bare(msg_id=from_topic(offset=1)),
    ),
    Row(
        "1.5",
        RECEIVE,
        "topic_offset is 0 where nothing is stored",
        lambda s: after(
            unstored_sent(s, 1),
            next(s.stream()),
            s.streams[-1].cancel(),
            wait_until(lambda: s.is_closed(CONSUMER, s.consumer_id)),
            s.has_consumer(),
            s.sent(b"x"),
            receive(s),
        ),
        bare(),
    ),
    Row(
        "1.2",
        RECEIVE,
        "unknown consumer",
        lambda s: wire.ReceiveRequest(consumer_id=UNKNOWN_ID),
        Fails(CODES.NOT_FOUND, f"The consumer with the id {UNKNOWN_ID} does not exist"),
    ),
    Row(
        "1.2",
        RECEIVE,
        "topic deleted meanwhile",
        lambda s: after(s.has_consumer(), s.deleted(), receive(s)),
        Fails(CODES.NOT_FOUND, "The consumer with the id {s.consumer_id} does not exist"),
    ),
]

SETTLING = [
    row
    for rpc, make, text in (
        (ACK, Scene.ack, "Error acknowledging message: …"),
        (NACK, Scene.nack, "Error negatively acknowledging message: …"),
    )
    for row in (
        Row(
            "1.2",
            rpc,
            "delivered",
            lambda s, make=make: after(s.delivered(b"a"), make(s)),
            ECHO,
        ),
        Row(
            "1.2",
            rpc,
            "a second time",
            lambda s, make=make, rpc=rpc: after(s.delivered(b"a"), s.ask(rpc, make(s)), make(s)),
            ECHO,
        ),
        Row(
            "1.2",
            rpc,
            "acked before",
            lambda s, make=make: after(s.delivered(b"a"), s.ask(ACK, s.ack()), make(s)),
            ECHO,
        ),
        Row(
            "Behaviour",
            rpc,
            "not yet delivered",
            lambda s, make=make: after(s.has_consumer(), s.sent(b"a"), make(s)),
            ECHO,
        ),
        Row(
            "Behaviour",
            rpc,
            "beyond the end",
            lambda s, make=make: after(s.has_consumer(), make(s, 1 << 40)),
            ECHO,
        ),
        Row(
            "1.2",
            rpc,
            "topic not stored",
            lambda s, make=make: after(unstored_sent(s, 1), next(s.stream()), make(s)),
            ECHO,
        ),
        Row("1.2", rpc, "unknown topic", make, Fails(CODES.INTERNAL, text)),
        Row(
            "1.2",
            rpc,
            "unknown subscription",
            lambda s, make=make: after(s.has_consumer(), make(s, subscription="other")),
            Fails(CODES.INTERNAL, text),
        ),
        Row(
            "1.4",
            rpc,
            "bad name",
            lambda s, make=make: make(s, topic="orders"),
            Fails(CODES.INVALID_ARGUMENT, INVALID_NAME.format(name="orders")),
        ),
        Row(
            "Behaviour",
            rpc,
            "no msg_id",
            lambda s, make=make: type(make(s))(request_id=ASKED, subscription_name="s"),
            Fails(CODES.INVALID_ARGUMENT, "the request has no msg_id"),
        ),
    )
]

SETTLING.append(
    Row(
        "Behaviour",
        NACK,
        "delay and reason without end",
        lambda s: after(s.delivered(b"a"), s.nack(delay_ms=2**64 - 1, reason="r" * 100_000)),
        ECHO,
    )
)

ROWS = [*SUBSCRIBING, *RECEIVING, *SETTLING]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_answer_is_the_pages(protocol_broker, row):
    """Code and text, or every field of the reply, are what the page says."""
    Scene(protocol_broker).check(row)
    assert protocol_broker.process.process.poll() is None
