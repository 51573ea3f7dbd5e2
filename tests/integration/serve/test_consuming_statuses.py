"""Consumers on the wire: ids, statuses, pings, how streams begin and end."""

from __future__ import annotations

import asyncio

import pytest
from danube import SubType

from frazil.schema import Message
from tests.integration.serve.consuming_world import (
    TOPIC,
    Caller,
    broker,
    end_of,
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
        return ids, again, refused, gone, len(world.consumer_ids)

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
        found = [world.consumer_ids.get(identity) is not None for identity in (first, away)]
        stream.cancel()
        return found, len(world.consumer_ids)

    assert run(tmp_path, scene) == ([True, False], 6)


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
