"""Topics over the admin port: made, deleted with all that belongs to them, unloaded, described."""

from __future__ import annotations

import pytest

from frazil.errors import Conflict
from frazil.registry import NewSchema
from frazil.schema import Message
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.serve.danube.proto.danube_pb2 import SchemaReference
from frazil.topic import StateTag
from tests.integration.serve.consuming_world import end_of, next_of
from tests.integration.serve.test_admin_world import run

pytestmark = pytest.mark.integration

PARTS = [f"/default/wide-part-{index}" for index in range(3)]


def new(name, *, reliable=True, **fields):
    return wire.NewTopicRequest(name=name, dispatch_strategy=int(reliable), **fields)


def wide(name="/default/wide", partitions=3, *, reliable=True, **fields):
    return wire.PartitionedTopicRequest(
        base_name=name, partitions=partitions, dispatch_strategy=int(reliable), **fields
    )


async def register(admin, subject="orders", definition=b'"long"'):
    """Register a schema as the registry's service does."""
    new = NewSchema(subject=subject, type="avro", definition=definition, now=1)
    await admin.services.schemas.store.register(new)


async def names_of(admin, namespace="default"):
    request = wire.NamespaceRequest(name=namespace)
    reply = await admin.ask("ListNamespaceTopics", request)
    return [(info.name, info.broker_id, info.delivery) for info in reply.topics]


def test_a_topic_is_there_when_the_call_returns_and_after_a_restart(tmp_path):
    """Topics and parts, stored or not, are listed with how they deliver, and can be published to."""

    async def make(admin):
        assert (await admin.ask("CreateTopic", new("/default/stored"))).success
        await admin.ask("CreateTopic", new("/default/passing", reliable=False))
        assert (await admin.ask("CreatePartitionedTopic", wide())).success
        await admin.ask("CreatePartitionedTopic", wide("/system/w", 1, reliable=False))
        for name in ("/default/stored", PARTS[2]):
            topic = await admin.services.topics.for_producer(name, is_reliable=True)
            await admin.publish(b"record", topic=topic.name)

    async def look(admin):
        every = await admin.ask("ListBrokerTopics", wire.BrokerRequest(broker_id="17"))
        return (
            await names_of(admin),
            [(info.name, info.delivery) for info in every.topics],
            admin.services.topics.parts("/default/wide"),
            admin.engine.topics(),
        )

    default, every, parts, own = run(tmp_path, make, look)
    wanted = [
        ("/default/passing", "NonReliable"),
        ("/default/stored", "Reliable"),
        *((part, "Reliable") for part in PARTS),
    ]
    assert default == [(name, "17", delivery) for name, delivery in wanted]
    assert every == [*wanted, ("/system/w-part-0", "NonReliable")]
    assert parts == PARTS
    # For the engine, and the lake, the parts are one topic.
    assert own == ["/default/passing", "/default/stored", "/default/wide", "/system/w"]


def test_a_topic_has_its_schema_from_the_start(tmp_path):
    """A subject given at the creation holds for every part, is described, and goes with the topic."""

    async def make(admin):
        await register(admin)
        await admin.ask("CreateTopic", new("/default/t", schema_subject="orders"))
        await admin.ask("CreatePartitionedTopic", wide(schema_subject="orders"))
        await admin.ask("CreateTopic", new("/default/bare"))

    async def look(admin):
        names = ("/default/t", "/default/wide", PARTS[1], "/default/bare")
        requests = [wire.DescribeTopicRequest(name=name) for name in names]
        replies = [await admin.ask("DescribeTopic", request) for request in requests]
        with pytest.raises(Conflict, match="cannot use 'other'"):
            admin.services.schemas.check_reference(PARTS[2], SchemaReference(subject="other"))
        await admin.ask("DeleteTopic", wire.TopicRequest(name="/default/wide"))
        await admin.ask("CreatePartitionedTopic", wide())
        return replies, await admin.ask("DescribeTopic", requests[1])

    replies, again = run(tmp_path, make, look)
    for reply, name in zip(replies, ("t", "wide", "wide-part-1"), strict=False):
        assert reply == wire.DescribeTopicResponse(
            name=f"/default/{name}",
            broker_id="17",
            delivery="Reliable",
            schema_subject="orders",
            schema_id=1,
            schema_version=1,
            schema_type="avro",
            compatibility_mode="BACKWARD",
        )
    plain = {"broker_id": "17", "delivery": "Reliable"}
    assert replies[3] == wire.DescribeTopicResponse(name="/default/bare", **plain)
    assert again == wire.DescribeTopicResponse(name="/default/wide", **plain)


@pytest.mark.parametrize("name", ["/default/t", "/default/wide"])
def test_a_deleted_topic_takes_everything_along(tmp_path, name):
    """Consumers' streams end, ids and settings are gone, and its name is free for another topic."""

    async def scene(admin):
        is_wide = name.endswith("wide")
        make = wide() if is_wide else new(name)
        await admin.ask("CreatePartitionedTopic" if is_wide else "CreateTopic", make)
        parts = admin.services.topics.parts(name)
        consumers = [await admin.reading(part) for part in parts]
        for part, (_, stream) in zip(parts, consumers, strict=True):
            await admin.publish(b"record", topic=part)
            assert (await next_of(stream)).payload == b"record"
        assert (await admin.ask("DeleteTopic", wire.TopicRequest(name=name))).success
        ends = [await end_of(stream) for _, stream in consumers]
        again = [await end_of(admin.clients.receive(each)) for each, _ in consumers]
        missing = [
            await admin.refused("DeleteTopic", wire.TopicRequest(name=each))
            for each in (name, *parts)
        ]
        left = [admin.engine.states.items(tag) for tag in (StateTag.SUBSCRIPTION, StateTag.CLIENT)]
        await admin.ask("CreateTopic", new(name, reliable=False))
        reply = await admin.ask("ListSubscriptions", wire.TopicRequest(name=name))
        return ends, again, missing, left, list(reply.subscriptions), await names_of(admin)

    ends, again, missing, left, subscriptions, names = run(tmp_path, scene)
    assert set(ends) == {("OK", "")}
    assert {code for code, _ in again} == {"NOT_FOUND"}
    assert missing[0] == ("NOT_FOUND", f"Unable to find the topic: {name}")
    assert {code for code, _ in missing} == {"NOT_FOUND"}
    assert left == [{}, {}]
    assert subscriptions == []
    assert names == [(name, "17", "NonReliable")]


def test_topics_without_storage_are_unloaded_and_deleted_too(tmp_path):
    """Their subscriptions are listed while they are there, and their streams end."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t", reliable=False))
        request = wire.TopicRequest(name="/default/t")
        passing, topic = admin.services.unreliable, admin.services.topics.find("/default/t")
        ends = []
        identity, stream = await admin.reading()
        for call in ("UnloadTopic", "DeleteTopic"):
            passing.publish(topic, Message(b"record"))
            assert (await next_of(stream)).payload == b"record"
            listed = await admin.ask("ListSubscriptions", request)
            assert list(listed.subscriptions) == ["s"]
            await admin.ask(call, request)
            ends.append((await end_of(stream))[0])
            stream = admin.clients.receive(identity)
            await stream.initial_metadata()
        left = admin.engine.states.items(StateTag.POLICY)
        return [*ends, (await end_of(stream))[0]], left

    assert run(tmp_path, scene) == (["UNAVAILABLE", "OK", "NOT_FOUND"], {})
