"""Consumers whose clients go with records in hand: closed, cancelled, cut off, or sent away."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest

from frazil.model import topic_uid
from frazil.subscribe import FailurePolicy, Poison
from tests.integration.serve.consuming_world import (
    TOPIC,
    Caller,
    broker,
    make_producer,
    make_reader,
    payloads,
    until,
)
from tests.integration.serve.wire_world import Wire
from tests.servers.running import free_port

DEAD = "/default/dead"


def run(scene):
    """Run a scene with a port of its own."""
    return asyncio.run(scene(free_port()))


@contextlib.asynccontextmanager
async def strict(path, port, poison):
    """A broker with a topic whose subscription allows one delivery, and some records in it."""
    async with broker(path, port) as world:
        producer = await make_producer(port)
        policy = FailurePolicy(
            max_redelivery_count=0, ack_timeout_ms=0, poison=poison, dead_letter_topic=DEAD
        )
        uid = topic_uid(world.topics.find(TOPIC).runtime.state.spec)
        world.subscription_settings.change(uid, "s", policy=policy)
        yield world, producer


async def send(producer, count):
    for number in range(count):
        await producer.send(b"%d" % number)


def no_streams(world):
    return world.consumers.facts()["streams"] == 0


@pytest.mark.parametrize("poison", [Poison.DROP, Poison.BLOCK, Poison.DEAD_LETTER])
def test_closing_a_consumer_costs_no_record(tmp_path, poison):
    """What waits in the client's queue when it is closed comes again, however often it is."""

    async def scene(port):
        async with strict(tmp_path, port, poison) as (world, producer):
            reader = await make_reader(port)
            await send(producer, 6)
            assert payloads(await reader.take(1)) == [b"0"]
            for _ in range(3):
                await until(lambda: world.deliveries.find(TOPIC, "s").status().unacked == 5)
                await reader.close()
                await until(lambda: no_streams(world))
                reader = await make_reader(port)
            return payloads(await reader.take(5)), world.db.topics()

    found, topics = run(scene)
    assert found == [b"1", b"2", b"3", b"4", b"5"]
    assert topics == [TOPIC]


@pytest.mark.parametrize("poison", [Poison.DROP, Poison.DEAD_LETTER])
def test_a_broken_connection_costs_no_record(tmp_path, poison):
    """A client that is cut off, again and again, has its records when it is back."""

    async def scene(port):
        async with strict(tmp_path, port, poison) as (world, producer):
            async with Caller(port) as plain:
                identity = (await plain.subscribe()).consumer_id
            await send(producer, 3)
            for _ in range(3):
                with Wire(port) as wire:
                    async with Caller(wire.port) as caller:
                        stream = caller.receive(identity)
                        assert (await stream.read()).payload == b"0"
                        wire.cut()
                        with pytest.raises(grpc.aio.AioRpcError):
                            while True:
                                await stream.read()
                await until(lambda: no_streams(world))
            reader = await make_reader(port)
            return payloads(await reader.take(3)), world.db.topics()

    found, topics = run(scene)
    assert found == [b"0", b"1", b"2"]
    assert topics == [TOPIC]
