"""The data port of a `frazil serve` process, row by row of the protocol's page.

Producers, discovery, health checks and storage; consumers have a table of their own. Texts are the
page's.
"""

from __future__ import annotations

import grpc
import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as wire
from tests.integration.serve.protocol_world import (
    ASKED,
    INVALID_NAME,
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
LONG = "n" * 1025
ECHO = Gives(request_id=ASKED)
"""A reply that only carries the request's id."""


def look_up(topic):
    return wire.TopicLookupRequest(request_id=ASKED, topic=topic)


def after(*steps):
    """Return the last of what was done one after the other."""
    return steps[-1]


def invalid(name):
    return Fails(CODES.INVALID_ARGUMENT, INVALID_NAME.format(name=name))


BAD_NAMES = {
    "no slash": "orders",
    "no first slash": "default/orders",
    "four parts": "/default/a/b",
    "dot": "/default/a.b",
    "space": "/default/a b",
    "no topic": "/default/",
    "no namespace": "//orders",
    "nothing": "",
}

DISCOVERY = [
    *(
        Row("1.4", LOOK_UP, f"bad name, {what}", lambda s, n=n: look_up(n), invalid(n))
        for what, n in BAD_NAMES.items()
    ),
    Row(
        "1.2",
        LOOK_UP,
        "unknown topic",
        lambda s: look_up(s.topic),
        Fails(CODES.NOT_FOUND, "Unable to find the requested topic: {s.topic}"),
    ),
    *(
        Row(
            "1.2",
            LOOK_UP,
            situation,
            request,
            Gives(
                request_id=ASKED,
                response_type=wire.TopicLookupResponse.Connect,
                connect_url=lambda s, url: url == s.url and url.startswith("http://"),
                broker_url=lambda s, url: url == s.url,
                proxy=False,
            ),
        )
        for situation, request in (
            ("local topic", lambda s: look_up(s.made())),
            ("local topic in parts", lambda s: look_up(s.made(partitions=2))),
            ("local part", lambda s: look_up(s.made(partitions=2) + "-part-1")),
            ("letters of any language", lambda s: look_up(s.made(topic=s.topic + "_größe-é"))),
        )
    ),
    Row(
        "1.2",
        PARTITIONS,
        "unknown topic",
        lambda s: look_up(s.topic),
        Gives(request_id=ASKED, partitions=[]),
    ),
    Row(
        "1.2",
        PARTITIONS,
        "not in parts",
        lambda s: look_up(s.made()),
        Gives(request_id=ASKED, partitions=lambda s, names: names == [s.topic]),
    ),
    Row(
        "1.4",
        PARTITIONS,
        "in parts by administration, from 0",
        lambda s: look_up(s.made(partitions=3)),
        Gives(
            request_id=ASKED,
            partitions=lambda s, names: names == [f"{s.topic}-part-{n}" for n in range(3)],
        ),
    ),
    Row(
        "1.4",
        PARTITIONS,
        "in parts by their producers",
        lambda s: after(
            *(s.has_producer(f"p-{n}", topic=f"{s.topic}-part-{n}") for n in range(2)),
            look_up(s.topic),
        ),
        Gives(
            request_id=ASKED,
            partitions=lambda s, names: names == [f"{s.topic}-part-{n}" for n in range(2)],
        ),
    ),
    Row(
        "1.2",
        PARTITIONS,
        "others whose names begin alike",
        lambda s: after(
            s.made(topic=s.topic + "bar"),
            s.made(topic=s.topic + "_np"),
            s.made(topic=s.topic + "-part-x"),
            s.made(topic=s.topic + "bar2", partitions=2),
            look_up(s.made()),
        ),
        Gives(request_id=ASKED, partitions=lambda s, names: names == [s.topic]),
    ),
]

MADE = Gives(request_id=ASKED, producer_id=is_id, producer_name="p")
CLASH = CODES.ALREADY_EXISTS


def reference(scene, **version):
    return {"schema_ref": wire.SchemaReference(subject=scene.subject, **version)}


PRODUCING = [
    *(
        Row("1.4", CREATE, f"bad name, {what}", lambda s, n=n: s.producer_of(n), invalid(n))
        for what, n in BAD_NAMES.items()
    ),
    Row("1.2", CREATE, "absent topic, reliable", lambda s: s.producer(), MADE),
    Row("1.2", CREATE, "absent topic, not stored", lambda s: s.producer(is_reliable=False), MADE),
    Row("1.8.1", CREATE, "topic made before", lambda s: after(s.made(), s.producer()), MADE),
    Row(
        "1.4",
        CREATE,
        "namespace at boot",
        lambda s: s.producer(topic=f"/system/{s.name}"),
        MADE,
    ),
    Row(
        "1.2",
        CREATE,
        "namespace missing",
        lambda s: s.producer(topic="/nowhere/t"),
        Fails(
            CODES.UNAVAILABLE,
            "Unable to find the namespace nowhere, "
            "the topic can be created only for an exisiting namespace",
        ),
    ),
    Row(
        "1.2",
        CREATE,
        "part of a plain topic",
        lambda s: after(s.made(), s.producer(topic=s.topic + "-part-0")),
        Fails(CLASH, "The topic {s.topic}-part-0 can't be created, {s.topic} already exists"),
    ),
    Row(
        "1.2",
        CREATE,
        "one part more of a topic made with its parts",
        lambda s: after(s.made(partitions=3), s.producer(topic=s.topic + "-part-3")),
        Fails(
            CLASH,
            "The topic {s.topic}-part-3 can't be created, {s.topic} was made with 3 partitions",
        ),
    ),
    Row(
        "1.2",
        CREATE,
        "plain name of a topic in parts",
        lambda s: after(s.has_producer(topic=s.topic + "-part-0"), s.producer()),
        Fails(CLASH, "The topic {s.topic} can't be created, {s.topic}-part-0 already exists"),
    ),
    *(
        Row(
            "1.2",
            CREATE,
            f"other dispatch strategy, topic {'' if stored else 'not '}stored",
            lambda s, stored=stored: after(
                s.made(is_reliable=stored), s.producer(is_reliable=not stored)
            ),
            Fails(
                CODES.FAILED_PRECONDITION,
                "Producer requested dispatch strategy does not match topic strategy",
            ),
        )
        for stored in (True, False)
    ),
    *(
        Row(
            "Messages",
            CREATE,
            f"dispatch strategy {number}",
            lambda s, number=number: s.producer(is_reliable=number),
            Fails(CODES.INVALID_ARGUMENT, f"The dispatch strategy {number} does not exist"),
        )
        for number in (7, -1)
    ),
    Row(
        "1.2",
        CREATE,
        "reference without a subject",
        lambda s: s.producer(schema_ref=wire.SchemaReference(use_latest=True)),
        Fails(CODES.FAILED_PRECONDITION, "Schema subject '' not found in registry"),
    ),
    Row(
        "1.2",
        CREATE,
        "first with a subject",
        lambda s: after(s.registered(), s.producer(**reference(s, use_latest=True))),
        MADE,
    ),
    *(
        Row(
            "Messages",
            CREATE,
            f"subject with {field} 1",
            lambda s, field=field: after(s.registered(), s.producer(**reference(s, **{field: 1}))),
            MADE,
        )
        for field in ("pinned_version", "min_version")
    ),
    Row(
        "1.2",
        CREATE,
        "other subject",
        lambda s: after(
            s.registered(),
            s.has_producer("first", **reference(s)),
            s.registered(subject=s.subject + "b"),
            s.producer(schema_ref=wire.SchemaReference(subject=s.subject + "b")),
        ),
        Fails(
            CODES.FAILED_PRECONDITION,
            "Topic '{s.topic}' uses schema subject '{s.subject}', cannot use '{s.subject}b'. "
            "Only admin can change topic schema.",
        ),
    ),
    Row(
        "1.2",
        CREATE,
        "subject not registered",
        lambda s: s.producer(**reference(s, use_latest=True)),
        Fails(CODES.FAILED_PRECONDITION, "Schema subject '{s.subject}' not found in registry…"),
    ),
    Row(
        "1.2",
        CREATE,
        "version not registered",
        lambda s: after(s.registered(), s.producer(**reference(s, pinned_version=9))),
        Fails(
            CODES.FAILED_PRECONDITION,
            "Version 9 of schema subject '{s.subject}' not found in registry…",
        ),
    ),
    Row(
        "1.2",
        CREATE,
        "more than max_producers",
        lambda s: after(s.has_producer("a"), s.has_producer("b"), s.producer("c")),
        Fails(CODES.RESOURCE_EXHAUSTED, "The topic {s.topic} has the maximum of 2 producers"),
    ),
    Row(
        "1.2",
        CREATE,
        "same name when there are max_producers",
        lambda s: after(s.has_producer("a"), s.has_producer("p"), s.producer("p")),
        Gives(
            request_id=ASKED,
            producer_id=lambda s, value: value == s.producer_id,
            producer_name="p",
        ),
    ),
    Row(
        "1.2",
        CREATE,
        "anything else that is wrong",
        lambda s: s.producer(LONG),
        Fails(CODES.PERMISSION_DENIED, "Not able to create the Producer: …"),
    ),
    Row(
        "1.2",
        CREATE,
        "access mode Exclusive is ignored",
        lambda s: after(
            s.has_producer("a", producer_access_mode=wire.Exclusive),
            s.producer(producer_access_mode=wire.Exclusive),
        ),
        MADE,
    ),
    Row("1.2", SEND, "stored", lambda s: after(s.has_producer(), s.record()), ECHO),
    Row(
        "1.2",
        SEND,
        "not stored, nobody listens",
        lambda s: after(s.has_producer(is_reliable=False), s.record()),
        ECHO,
    ),
    Row("Messages", SEND, "empty payload", lambda s: after(s.has_producer(), s.record(b"")), ECHO),
    Row(
        "1.2",
        SEND,
        "unknown producer",
        lambda s: after(s.made(), setattr(s, "producer_id", UNKNOWN_ID), s.record()),
        Fails(CODES.NOT_FOUND, f"The producer with id {UNKNOWN_ID} does not exist"),
    ),
    Row(
        "1.2",
        SEND,
        "topic deleted meanwhile",
        lambda s: after(s.has_producer(), s.deleted(), s.record()),
        Fails(CODES.NOT_FOUND, "The producer with id {s.producer_id} does not exist"),
    ),
    Row(
        "1.2",
        SEND,
        "as large as the size policy",
        lambda s: after(s.has_producer(), s.record(bytes(1999))),
        ECHO,
    ),
    Row(
        "1.2",
        SEND,
        "above the size policy with its attributes",
        lambda s: after(s.has_producer(), s.record(bytes(1500), attributes={"a": "b" * 600})),
        Fails(CODES.INVALID_ARGUMENT, "The message of …"),
    ),
    Row(
        "1.2",
        SEND,
        "routing key that no record can have",
        lambda s: after(s.has_producer(), s.record(routing_key="k" * 1500)),
        Fails(CODES.PERMISSION_DENIED, "Unable to publish the message: …"),
    ),
    Row(
        "1.2",
        SEND,
        "above the size policy",
        lambda s: after(s.has_producer(), s.record(bytes(2001))),
        Fails(
            CODES.INVALID_ARGUMENT,
            "The message of 2002 bytes is larger than the maximum of 2000 bytes",
        ),
    ),
    Row(
        "1.2",
        SEND,
        "above the size policy, not stored",
        lambda s: after(s.has_producer(is_reliable=False), s.record(bytes(2001))),
        Fails(
            CODES.INVALID_ARGUMENT,
            "The message of 2002 bytes is larger than the maximum of 2000 bytes",
        ),
    ),
    Row(
        "Behaviour",
        SEND,
        "no msg_id",
        lambda s: wire.StreamMessage(request_id=ASKED, payload=b"x"),
        Fails(CODES.INVALID_ARGUMENT, "the request has no msg_id"),
    ),
    Row(
        "1.2",
        SEND,
        "record that cannot be taken",
        lambda s: after(s.has_producer(), s.record(attributes={str(n): "" for n in range(65)})),
        Fails(CODES.PERMISSION_DENIED, "Unable to publish the message: …"),
    ),
    *(
        Row(
            "1.2",
            SEND,
            f"schema enforced, {situation}",
            request,
            Fails(CODES.PERMISSION_DENIED, "Unable to publish the message: …"),
        )
        for situation, request in (
            ("no schema_id", lambda s: after(s.configured(), s.record(b'{"n":1}'))),
            ("wrong schema_id", lambda s: after(s.configured(), s.record(schema_id=UNKNOWN_ID))),
            (
                "wrong payload",
                lambda s: after(
                    s.configured(is_checked=True), s.record(b'{"n":"x"}', schema_id=s.schema_id)
                ),
            ),
        )
    ),
    Row(
        "1.6",
        SEND,
        "schema enforced, fits",
        lambda s: after(
            s.configured(is_checked=True),
            s.record(b'{"n":1}', schema_id=s.schema_id, schema_version=1),
        ),
        ECHO,
    ),
    Row("1.6", SEND, "default policy warns", lambda s: after(s.configured(""), s.record()), ECHO),
]


def reports(status):
    return Gives(status=status)


HEALTHS = [
    Row(
        "1.2",
        HEALTH,
        "producer",
        lambda s: s.health(PRODUCER, s.has_producer()),
        reports(WELL),
    ),
    Row(
        "1.2",
        HEALTH,
        "consumer before its stream",
        lambda s: s.health(CONSUMER, s.has_consumer()),
        reports(WELL),
    ),
    Row(
        "1.2",
        HEALTH,
        "consumer with a stream",
        lambda s: after(s.has_consumer(), s.stream(), s.health(CONSUMER, s.consumer_id)),
        reports(WELL),
    ),
    *(
        Row("1.2", HEALTH, f"unknown {who}", lambda s, c=c: s.health(c, UNKNOWN_ID), reports(CLOSE))
        for who, c in (("producer", PRODUCER), ("consumer", CONSUMER))
    ),
    Row(
        "1.2",
        HEALTH,
        "producer of a topic that is gone",
        lambda s: after(s.has_producer(), s.deleted(), s.health(PRODUCER, s.producer_id)),
        reports(CLOSE),
    ),
    Row(
        "1.2",
        HEALTH,
        "producer of a topic that was closed",
        lambda s: after(
            s.has_producer(),
            s.ask("TopicAdmin.UnloadTopic", admin.TopicRequest(name=s.topic)),
            s.health(PRODUCER, s.producer_id),
        ),
        reports(CLOSE),
    ),
    Row(
        "1.2",
        HEALTH,
        "consumer whose stream was dropped",
        lambda s: after(
            s.has_consumer(),
            s.stream().cancel(),
            wait_until(lambda: s.is_closed(CONSUMER, s.consumer_id)),
            s.health(CONSUMER, s.consumer_id),
        ),
        reports(CLOSE),
    ),
    Row(
        "1.2",
        HEALTH,
        "unknown client type",
        lambda s: s.health(2, 1),
        Fails(CODES.INVALID_ARGUMENT, "The client type 2 does not exist"),
    ),
]

STORAGE = [
    Row(
        "Messages",
        SEGMENTS,
        "nothing is uploaded",
        lambda s: after(s.sent(b"a"), wire.ListSegmentDescriptorsRequest(topic=s.topic)),
        Gives(segments=[]),
    ),
    Row(
        "1.4",
        SEGMENTS,
        "bad name",
        lambda s: wire.ListSegmentDescriptorsRequest(topic="orders"),
        invalid("orders"),
    ),
]

ROWS = [*DISCOVERY, *PRODUCING, *HEALTHS, *STORAGE]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_answer_is_the_pages(protocol_broker, row):
    """Code and text, or every field of the reply, are what the page says."""
    Scene(protocol_broker).check(row)
    assert protocol_broker.process.process.poll() is None
