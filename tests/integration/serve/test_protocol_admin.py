"""The administration port of a `frazil serve` process, row by row of the protocol's page."""

from __future__ import annotations

import json

import grpc
import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from tests.integration.serve.protocol_world import (
    ABSENT,
    INVALID_NAME,
    Fails,
    Gives,
    Row,
    Scene,
)

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
DONE = Gives(success=True)
BAD_NAME = Fails(CODES.INVALID_ARGUMENT, INVALID_NAME.format(name="orders"))
UNKNOWN_TOPIC = Fails(CODES.NOT_FOUND, "Unable to find the topic: {s.topic}")
UNKNOWN_SUBSCRIPTION = Fails(CODES.NOT_FOUND, "unable to find the subscription…")
UNKNOWN_NAMESPACE = Fails(CODES.NOT_FOUND, "unable to find the namespace…")
BAD_NAMESPACE = Fails(CODES.INVALID_ARGUMENT, "a namespace has letters, digits, '_' and '-' only…")
RELIABLE, NON_RELIABLE = "Reliable", "NonReliable"


def topic_call(name):
    return f"TopicAdmin.{name}"


def after(*steps):
    return steps[-1]


def named(scene, name=None):
    return admin.TopicRequest(name=name or scene.topic)


def new_topic(scene, *, is_reliable=True, **more):
    more = {"name": scene.topic, **more}
    return admin.NewTopicRequest(dispatch_strategy=int(is_reliable), **more)


def in_parts(scene, partitions=3, **more):
    more = {"base_name": scene.topic, **more}
    return admin.PartitionedTopicRequest(partitions=partitions, dispatch_strategy=1, **more)


def broker_id(scene):
    return scene.ask("BrokerAdmin.GetLeaderBroker", admin.Empty()).leader


MAKING = [
    Row("TopicAdmin", topic_call("CreateTopic"), "stored", new_topic, DONE),
    Row(
        "TopicAdmin",
        topic_call("CreateTopic"),
        "not stored",
        lambda s: new_topic(s, is_reliable=False),
        DONE,
    ),
    Row(
        "TopicAdmin",
        topic_call("CreateTopic"),
        "with a subject",
        lambda s: after(s.registered(), new_topic(s, schema_subject=s.subject)),
        DONE,
    ),
    Row(
        "TopicAdmin",
        topic_call("CreateTopic"),
        "subject not registered",
        lambda s: new_topic(s, schema_subject=s.subject),
        Fails(CODES.FAILED_PRECONDITION, "Schema subject '{s.subject}' not found in registry…"),
    ),
    Row(
        "TopicAdmin",
        topic_call("CreateTopic"),
        "there already",
        lambda s: after(s.made(), new_topic(s)),
        Fails(CODES.ALREADY_EXISTS, "topic exists…"),
    ),
    Row(
        "1.2",
        topic_call("CreateTopic"),
        "plain name of a topic whose parts producers made",
        lambda s: after(s.has_producer(topic=s.topic + "-part-0"), new_topic(s)),
        Fails(
            CODES.ALREADY_EXISTS,
            "The topic {s.topic} can't be created, {s.topic}-part-0 already exists",
        ),
    ),
    Row(
        "1.2",
        topic_call("CreateTopic"),
        "namespace missing",
        lambda s: new_topic(s, name="/nowhere/t"),
        Fails(
            CODES.UNAVAILABLE,
            "Unable to find the namespace nowhere, "
            "the topic can be created only for an exisiting namespace",
        ),
    ),
    Row(
        "1.4",
        topic_call("CreateTopic"),
        "bad name",
        lambda s: new_topic(s, name="orders"),
        BAD_NAME,
    ),
    Row("1.4", topic_call("CreatePartitionedTopic"), "three parts", in_parts, DONE),
    Row(
        "1.4",
        topic_call("CreatePartitionedTopic"),
        "plain topic of this name",
        lambda s: after(s.made(), in_parts(s)),
        Fails(
            CODES.ALREADY_EXISTS,
            "The topic {s.topic}-part-0 can't be created, {s.topic} already exists",
        ),
    ),
    Row(
        "1.4",
        topic_call("CreatePartitionedTopic"),
        "no parts",
        lambda s: in_parts(s, 0),
        Fails(CODES.INVALID_ARGUMENT, "number of partitions is out of range…"),
    ),
    Row(
        "1.4",
        topic_call("CreatePartitionedTopic"),
        "bad name",
        lambda s: in_parts(s, base_name="orders"),
        BAD_NAME,
    ),
    Row(
        "TopicAdmin",
        topic_call("CreatePartitionedTopic"),
        "subject not registered",
        lambda s: in_parts(s, schema_subject=s.subject),
        Fails(CODES.FAILED_PRECONDITION, "Schema subject '{s.subject}' not found in registry…"),
    ),
]

ENDING = [
    Row("TopicAdmin", topic_call("DeleteTopic"), "plain", lambda s: named(s, s.made()), DONE),
    Row(
        "1.4",
        topic_call("DeleteTopic"),
        "base of parts",
        lambda s: named(s, s.made(partitions=2)),
        DONE,
    ),
    Row(
        "1.4",
        topic_call("DeleteTopic"),
        "one part",
        lambda s: named(s, s.made(partitions=2) + "-part-1"),
        Fails(CODES.FAILED_PRECONDITION, "Cannot delete individual partition…"),
    ),
    Row("TopicAdmin", topic_call("DeleteTopic"), "unknown", named, UNKNOWN_TOPIC),
    Row("TopicAdmin", topic_call("UnloadTopic"), "plain", lambda s: named(s, s.made()), DONE),
    Row("TopicAdmin", topic_call("UnloadTopic"), "unknown", named, UNKNOWN_TOPIC),
    *(
        Row("1.4", topic_call(name), "bad name", lambda s: named(s, "orders"), BAD_NAME)
        for name in ("DeleteTopic", "UnloadTopic", "ListSubscriptions")
    ),
]


def described(scene):
    return admin.DescribeTopicRequest(name=scene.topic)


def facts(**more):
    return Gives(
        {
            "name": lambda s, name: name == s.topic,
            "subscriptions": [],
            "broker_id": lambda s, value: value == broker_id(s),
            "delivery": RELIABLE,
            "schema_subject": ABSENT,
            "schema_id": ABSENT,
            "schema_version": ABSENT,
            "schema_type": ABSENT,
            "compatibility_mode": ABSENT,
            **more,
        }
    )


def lines(*names, delivery=RELIABLE):
    """Return a check that topics are in a list; the others are those of other rows."""

    def check(scene, found):
        own = [each for each in found if each.name.startswith(scene.topic)]
        return [(each.name, each.broker_id, each.delivery) for each in own] == [
            (scene.topic + name, broker_id(scene), delivery) for name in names
        ]

    return check


TELLING = [
    Row(
        "TopicAdmin",
        topic_call("DescribeTopic"),
        "plain",
        lambda s: after(s.made(), described(s)),
        facts(),
    ),
    Row(
        "1.2",
        topic_call("DescribeTopic"),
        "made by a producer, not stored",
        lambda s: after(s.has_producer(is_reliable=False), described(s)),
        facts(delivery=NON_RELIABLE),
    ),
    Row(
        "TopicAdmin",
        topic_call("DescribeTopic"),
        "with a subject and subscriptions",
        lambda s: after(
            s.registered(),
            s.made(subject=s.subject),
            s.has_consumer(subscription="b"),
            s.has_consumer(subscription="a"),
            described(s),
        ),
        facts(
            subscriptions=["a", "b"],
            schema_subject=lambda s, subject: subject == s.subject,
            schema_id=lambda s, value: value == s.schema_id,
            schema_version=1,
            schema_type="json_schema",
            compatibility_mode="BACKWARD",
        ),
    ),
    Row("TopicAdmin", topic_call("DescribeTopic"), "unknown", described, UNKNOWN_TOPIC),
    Row(
        "TopicAdmin",
        topic_call("ListNamespaceTopics"),
        "topics and parts",
        lambda s: after(s.made(partitions=2), admin.NamespaceRequest(name="default")),
        Gives(topics=lines("-part-0", "-part-1")),
    ),
    Row(
        "TopicAdmin",
        topic_call("ListNamespaceTopics"),
        "unknown namespace",
        lambda s: admin.NamespaceRequest(name="nowhere"),
        UNKNOWN_NAMESPACE,
    ),
    Row(
        "TopicAdmin",
        topic_call("ListBrokerTopics"),
        "topic without storage",
        lambda s: after(s.made(is_reliable=False), admin.BrokerRequest(broker_id=broker_id(s))),
        Gives(topics=lines("", delivery=NON_RELIABLE)),
    ),
    Row(
        "TopicAdmin",
        topic_call("ListBrokerTopics"),
        "unknown broker",
        lambda s: admin.BrokerRequest(broker_id="nobody"),
        Fails(CODES.NOT_FOUND, "unable to find the broker…"),
    ),
]


def space(name):
    return admin.NamespaceRequest(name=name)


def has_space(scene):
    scene.ask("NamespaceAdmin.CreateNamespace", space(scene.name))
    return space(scene.name)


NAMESPACES = [
    Row("NamespaceAdmin", "NamespaceAdmin.CreateNamespace", "new", lambda s: space(s.name), DONE),
    Row(
        "NamespaceAdmin",
        "NamespaceAdmin.CreateNamespace",
        "there already",
        has_space,
        Fails(CODES.ALREADY_EXISTS, "The namespace {s.name} already exists"),
    ),
    Row(
        "1.4",
        "NamespaceAdmin.CreateNamespace",
        "one at boot",
        lambda s: space("system"),
        Fails(CODES.ALREADY_EXISTS, "The namespace system already exists"),
    ),
    *(
        Row("1.4", f"NamespaceAdmin.{name}", "bad name", lambda s: space("a.b"), BAD_NAMESPACE)
        for name in (
            "CreateNamespace",
            "DeleteNamespace",
            "GetNamespaceTopics",
            "GetNamespacePolicies",
        )
    ),
    Row("NamespaceAdmin", "NamespaceAdmin.DeleteNamespace", "empty", has_space, DONE),
    Row(
        "NamespaceAdmin",
        "NamespaceAdmin.DeleteNamespace",
        "with a topic",
        lambda s: after(has_space(s), s.made(topic=f"/{s.name}/t"), space(s.name)),
        Fails(CODES.FAILED_PRECONDITION, "the namespace has topics, delete them first…"),
    ),
    Row(
        "1.4",
        "NamespaceAdmin.DeleteNamespace",
        "one at boot",
        lambda s: space("default"),
        Fails(CODES.FAILED_PRECONDITION, "this namespace is always there…"),
    ),
    *(
        Row(
            "NamespaceAdmin",
            f"NamespaceAdmin.{name}",
            "unknown",
            lambda s: space("nowhere"),
            UNKNOWN_NAMESPACE,
        )
        for name in ("DeleteNamespace", "GetNamespaceTopics", "GetNamespacePolicies")
    ),
    Row(
        "NamespaceAdmin",
        "NamespaceAdmin.GetNamespaceTopics",
        "with a topic",
        lambda s: after(has_space(s), s.made(topic=f"/{s.name}/t"), space(s.name)),
        Gives(topics=lambda s, topics: topics == [f"/{s.name}/t"]),
    ),
    Row(
        "NamespaceAdmin",
        "NamespaceAdmin.GetNamespacePolicies",
        "the broker's limits",
        has_space,
        Gives(
            policies=lambda s, text: (
                json.loads(text)
                == {
                    "max_producers_per_topic": 2,
                    "max_subscriptions_per_topic": 3,
                    "max_consumers_per_subscription": 3,
                    "max_message_size": 2000,
                }
            )
        ),
    ),
]


def is_this_broker(scene, found):
    """One broker, which leads itself, with the addresses that it printed."""
    printed = scene.wire.process.facts
    return [
        (
            each.broker_id,
            each.broker_addr,
            each.broker_role,
            each.admin_addr,
            each.metrics_addr,
            each.broker_status,
        )
        for each in found
    ] == [
        (
            broker_id(scene),
            printed["advertised_url"],
            "Cluster_Leader",
            printed["admin_url"],
            printed["http_url"],
            "active",
        )
    ]


BROKERS = [
    Row(
        "BrokerAdmin",
        "BrokerAdmin.ListBrokers",
        "this one",
        lambda s: admin.Empty(),
        Gives(brokers=is_this_broker),
    ),
    Row(
        "BrokerAdmin",
        "BrokerAdmin.GetLeaderBroker",
        "itself",
        lambda s: admin.Empty(),
        Gives(
            leader=lambda s, leader: (
                [leader]
                == [b.broker_id for b in s.ask("BrokerAdmin.ListBrokers", admin.Empty()).brokers]
            )
        ),
    ),
    Row(
        "1.4",
        "BrokerAdmin.ListNamespaces",
        "those at boot and one that was made",
        lambda s: after(has_space(s), admin.Empty()),
        Gives(namespaces=lambda s, names: {"default", "system", s.name} <= set(names)),
    ),
]

ROWS = [*MAKING, *ENDING, *TELLING, *NAMESPACES, *BROKERS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_answer_is_the_pages(protocol_broker, row):
    """Code and text, or every field of the reply, are what the page says."""
    Scene(protocol_broker).check(row)
    assert protocol_broker.process.process.poll() is None
