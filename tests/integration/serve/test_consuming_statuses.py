"""Consumers on the wire: ids, statuses, pings, how streams begin and end."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from danube import SubType

from frazil.schema import Message
from frazil.serve.danube.proto.danube_pb2 import AckRequest, AckResponse, NackRequest, NackResponse
from frazil.serve.grpc import server
from frazil.serve.grpc.codec import Code
from tests.integration.serve.consuming_world import (
    ACK,
    NACK,
    SECONDS_MAX,
    TOPIC,
    Caller,
    broker,
    end_of,
    make_producer,
    make_reader,
    next_of,
    until,
)
from tests.servers.running import free_port
from tests.support.few import few

pytestmark = pytest.mark.integration

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = map(int, SubType)


def run(path, scene, **limits):
    """Run a scene with a broker and a plain client."""

    async def play():
        port = free_port()
        async with broker(path, port, **limits) as world, Caller(port) as caller:
            await world.topics.make(TOPIC, is_reliable=True)
            return await scene(world, caller)

    return asyncio.run(play())


async def publish(world, *messages):
    """Publish in this process; return when the records can be read."""
    topic = world.db.topic(TOPIC)
    for message in messages:
        await asyncio.to_thread(topic.append, message)


async def streams(world, count):
    await until(lambda: world.consumers.facts()["streams"] == count)


def test_what_is_wrong_with_a_subscription_has_its_status(tmp_path):
    """Names, unknown topics, types and limits are refused with code and text."""

    async def scene(world, caller):
        world.db.create_topic("rows", {"id": "long"})
        world.db.create_topic("wide", partitions=2)
        return [
            await caller.not_subscribed(topic="no slash"),
            await caller.not_subscribed(topic="/default/none"),
            await caller.not_subscribed(topic="/default/wide"),
            await caller.not_subscribed(topic="/default/rows"),
            await caller.not_subscribed(kind=4),
            await caller.not_subscribed(""),
            await caller.not_subscribed("x" * 513),
            await caller.not_subscribed(subscription=""),
            await caller.not_subscribed(subscription="ü" * 257),
            await caller.not_subscribed(filters=["x"] * 65),
            await caller.not_subscribed(filters=["x" * 257]),
        ]

    found = run(tmp_path, scene)
    assert [code for code, _ in found] == [
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "NOT_FOUND",
        "FAILED_PRECONDITION",
        *["INVALID_ARGUMENT"] * 7,
    ]
    assert found[0][1].endswith("has an invalid format, should be: /namespace_name/topic_name")
    assert found[1][1] == "Unable to find the topic: /default/none"


def test_the_type_of_an_existing_subscription_wins(tmp_path):
    """Who asks for another type is taken as the subscription's own type has it."""

    async def scene(world, caller):
        await caller.subscribe("a", kind=SHARED)
        await caller.subscribe("b", kind=EXCLUSIVE)
        return world.deliveries.find(TOPIC, "s").kind

    assert run(tmp_path, scene) == SHARED


def test_a_subscription_and_a_topic_have_a_number_of_places(tmp_path, monkeypatch):
    """Beyond the limits is RESOURCE_EXHAUSTED; a consumer that left makes room, its id is gone."""
    few(monkeypatch.setattr, CONSUMERS_MAX=2, SUBSCRIPTIONS_MAX=2)

    async def scene(world, caller):
        ids = [(await caller.subscribe(name, kind=SHARED)).consumer_id for name in ("a", "b")]
        refused = [await caller.not_subscribed("c", kind=SHARED)]
        again = (await caller.subscribe("b", kind=SHARED)).consumer_id
        await caller.subscribe("a", subscription="s2")
        refused.append(await caller.not_subscribed("a", subscription="s3"))
        stream = caller.receive(ids[0])
        await streams(world, 1)
        stream.cancel()
        await streams(world, 0)
        await caller.subscribe("c", kind=SHARED)
        gone = await end_of(caller.receive(ids[0]))
        return ids, again, refused, gone, len(world.ids)

    ids, again, refused, gone, count = run(tmp_path, scene)
    assert again == ids[1]
    assert [code for code, _ in refused] == ["RESOURCE_EXHAUSTED"] * 2
    assert refused[0][1] == "The topic /default/t has the maximum of 2 consumers"
    assert gone == ("NOT_FOUND", f"The consumer with the id {ids[0]} does not exist")
    assert count == 3


def test_ids_of_consumers_that_are_away_are_bounded(tmp_path, monkeypatch):
    """Beyond their bytes the oldest goes, but nobody who has a stream or is about to."""
    monkeypatch.setattr("frazil.serve.danube.consumers.IDS_BYTES_MAX", 400)

    async def scene(world, caller):
        first = (await caller.subscribe("first", kind=SHARED)).consumer_id
        stream = caller.receive(first)
        await streams(world, 1)
        away = (await caller.subscribe("away", kind=SHARED)).consumer_id
        leaving = caller.receive(away)
        await streams(world, 2)
        leaving.cancel()
        await streams(world, 1)
        for number in range(5):
            await caller.subscribe(f"c{number}", kind=SHARED)
        found = [world.ids.get(identity) is not None for identity in (first, away)]
        stream.cancel()
        return found, len(world.ids)

    assert run(tmp_path, scene) == ([True, False], 6)


def test_a_stream_begins_at_once(tmp_path):
    """The answer's headers are there although there is no record, and pings say that all is well."""

    async def scene(world, caller):
        consumer = (await caller.subscribe()).consumer_id
        pings = [await caller.ping(consumer)]
        stream = caller.receive(consumer)
        await asyncio.wait_for(stream.initial_metadata(), SECONDS_MAX)
        await streams(world, 1)
        pings.append(await caller.ping(consumer))
        stream.cancel()
        await streams(world, 0)
        pings.append(await caller.ping(consumer))
        pings.append(await caller.ping(consumer + 1))
        await caller.subscribe()
        pings.append(await caller.ping(consumer))
        world.discovery.is_closing = True
        pings.append(await caller.ping(consumer))
        return pings

    assert run(tmp_path, scene) == [True, True, False, False, True, False]


@pytest.mark.parametrize("reliable", [True, False])
def test_another_stream_takes_the_place_of_the_first(tmp_path, reliable):
    """Two streams for one id: the first ends well, the second gets what comes."""

    async def scene(world, caller):
        topic = TOPIC if reliable else "/default/passing"
        if not reliable:
            await world.topics.make(topic, is_reliable=False)
        producer = await make_producer(world.port, topic=topic, reliable=reliable)
        consumer = (await caller.subscribe(topic=topic)).consumer_id
        old = caller.receive(consumer)
        await streams(world, 1)
        new = caller.receive(consumer)
        ended = await end_of(old)
        await producer.send(b"x")
        found = await next_of(new)
        return ended, found.payload, found.msg_id.topic_offset, world.consumers.facts()["streams"]

    assert run(tmp_path, scene) == (("OK", ""), b"x", 0, 1)


def test_acks_are_answered_as_the_protocol_says(tmp_path):
    """Known ones with OK, effect or not; unknown topics and subscriptions with INTERNAL."""

    async def scene(world, caller):
        await world.topics.make("/default/passing", is_reliable=False)
        consumer = (await caller.subscribe()).consumer_id
        stream = caller.receive(consumer)
        await publish(world, b"a", b"b")
        await streams(world, 1)
        await publish(world, b"c")
        while (await next_of(stream)).payload != b"c":
            pass
        status = world.deliveries.find(TOPIC, "s").status()
        before = status.cursor.acked_below + status.cursor.acked_above
        answers = [
            await caller.ack(2, request_id=1 << 40),
            await caller.ack(2),
            await caller.ack(77),
            await caller.nack(2**64 - 1, delay_ms=2**64 - 1, reason="r" * 100_000),
            await caller.ack(5, topic="/default/passing", subscription="any"),
            await caller.nack(5, topic="/default/passing", subscription="any"),
        ]
        refusals = []
        for path, kind, reply in (
            (ACK, AckRequest, AckResponse),
            (NACK, NackRequest, NackResponse),
        ):
            for topic, name in ((TOPIC, "none"), ("/default/none", "s"), ("no slash", "s")):
                request = kind(msg_id={"topic_name": topic}, subscription_name=name)
                refusals.append(await caller.refused(path, request, reply))
            refusals.append(await caller.refused(path, kind(subscription_name="s"), reply))
        status = world.deliveries.find(TOPIC, "s").status()
        settled = status.cursor.acked_below + status.cursor.acked_above
        return [answer.request_id for answer in answers], refusals, settled - before

    answers, refusals, settled = run(tmp_path, scene)
    assert settled == 1
    assert answers == [1 << 40, 3, 3, 3, 3, 3]
    codes = ["INTERNAL", "INTERNAL", "INVALID_ARGUMENT", "INVALID_ARGUMENT"]
    assert [code for code, _ in refusals] == codes * 2
    for number, text in ((0, "Error acknowledging message: "), (4, "Error negatively ack")):
        assert refusals[number][1].startswith(text)
        assert refusals[number + 1][1].startswith(text)


def test_an_ack_after_a_restart_finds_its_subscription(tmp_path):
    """A subscription that nobody opened since is opened by an ack; the ack changes nothing."""

    async def before(world, caller):
        await caller.subscribe()

    async def play():
        port = free_port()
        async with broker(tmp_path, port) as world, Caller(port) as caller:
            assert world.deliveries.find(TOPIC, "s") is None
            replies = [await caller.ack(0), await caller.nack(0)]
            return len(replies), world.deliveries.find(TOPIC, "s").status().cursor.acked_below

    run(tmp_path, before)
    assert asyncio.run(play()) == (2, 0)


def test_a_removed_subscription_ends_its_streams_and_ids(tmp_path):
    """The stream ends well, the id is unknown from then on; so it is with a deleted topic."""

    async def scene(world, caller):
        ended = []
        for remove in (remove_subscription, remove_topic):
            consumer = (await caller.subscribe()).consumer_id
            other = (await caller.subscribe("c2", subscription="s2")).consumer_id
            stream = caller.receive(consumer)
            await streams(world, 1)
            await remove(world)
            ended += [await end_of(stream), await end_of(caller.receive(consumer))]
            ended.append(world.consumers.consumer_topic(other))
        return ended, len(world.ids)

    async def remove_subscription(world):
        await world.deliveries.drop(TOPIC, "s")
        world.consumers.forget_subscription(TOPIC, "s")

    async def remove_topic(world):
        await asyncio.to_thread(world.db.delete_topic, TOPIC)
        world.deliveries.forget_topic(TOPIC)
        world.consumers.forget_topic(TOPIC)

    ended, left = run(tmp_path, scene)
    assert [each if each in {TOPIC, None} else each[0] for each in ended] == [
        *("OK", "NOT_FOUND", TOPIC),
        *("OK", "NOT_FOUND", None),
    ]
    assert left == 0


def test_streams_end_with_unavailable_when_the_broker_stops(tmp_path):
    """So they do when a topic is unloaded; then the client may come again with its id."""

    async def scene(world, caller):
        consumer = (await caller.subscribe()).consumer_id
        stream = caller.receive(consumer)
        await streams(world, 1)
        world.consumers.unload(TOPIC)
        ends = [await end_of(stream)]
        stream = caller.receive(consumer)
        await streams(world, 1)
        world.consumers.close()
        ends += [await end_of(stream), await end_of(caller.receive(consumer))]
        ends.append(await caller.not_subscribed())
        return ends

    found = run(tmp_path, scene)
    assert [code for code, _ in found] == ["UNAVAILABLE"] * 4
    assert found[0][1] == "The topic /default/t was unloaded, try again"


def test_a_stream_ends_when_it_may_not_go_on(tmp_path, monkeypatch):
    """Who may no longer consume is told so while the stream is open."""
    monkeypatch.setattr(server, "RECHECK_S", 0.02)

    async def scene(world, caller):
        consumer = (await caller.subscribe()).consumer_id
        stream = caller.receive(consumer)
        await streams(world, 1)
        asked = []

        def refuse(call):
            asked.append(call.path)
            return (Code.PERMISSION_DENIED, "no more") if len(asked) > 1 else None

        world.server.check = refuse
        return await end_of(stream), asked

    ended, asked = run(tmp_path, scene)
    assert ended == ("PERMISSION_DENIED", "no more")
    assert asked == ["/danube.ConsumerService/ReceiveMessages"] * 2


def test_a_client_that_stops_reading_is_given_no_more(tmp_path):
    """A slow stream holds back its own records only, and gets all of them when it reads on."""
    payload = b"x" * 20_000

    async def scene(world, caller):
        await world.topics.make("/default/passing", is_reliable=False)
        slow = (await caller.subscribe(topic="/default/passing")).consumer_id
        stream = caller.receive(slow)
        await streams(world, 1)
        reader = await make_reader(world.port, topic="/default/passing", subscription="fast")
        await streams(world, 2)
        topic = world.topics.find("/default/passing")
        for number in range(400):
            world.unreliable.publish(topic, Message(b"%d %b" % (number, payload)))
        found = await reader.take(400, ack=False)
        queued = world.unreliable.bytes_queued
        held = sum(shell_queued(world))
        late = [int((await next_of(stream)).payload.split()[0]) for _ in range(400)]
        await until(lambda: not world.unreliable.bytes_queued)
        return len(found), queued, held, late

    fast, queued, held, late = run(tmp_path, scene)
    assert fast == 400
    assert queued > 0
    assert held <= 2 << 20
    assert late == list(range(400))


def shell_queued(world):
    """Return the bytes that wait to be sent, of each connection."""
    return [shell.connection.sender.queued for shell in world.server._connections]


def test_a_stopped_client_leaves_grpc_no_error(tmp_path):
    """A stream that its client cancels is cancelled on its side, and nothing is told twice."""

    async def scene(world, caller):
        consumer = (await caller.subscribe()).consumer_id
        stream = caller.receive(consumer)
        await streams(world, 1)
        stream.cancel()
        await streams(world, 0)
        counters = world.server.counters
        return await stream.code(), counters.handler_errors_total, world.consumers.facts()

    code, errors, facts = run(tmp_path, scene)
    assert code is grpc.StatusCode.CANCELLED
    assert errors == 0
    assert facts["consumers"] == 1
