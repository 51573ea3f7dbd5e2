"""Ten thousand topics are a number like any other; one more than allowed is refused."""

from __future__ import annotations

import asyncio
import random
import resource

import grpc
import pytest

from frazil.serve.danube.proto.danube_admin_pb2 import NamespaceRequest, TopicInfoListResponse
from frazil.serve.danube.proto.danube_pb2 import (
    HealthCheckRequest,
    TopicLookupRequest,
    TopicLookupResponse,
)
from tests.integration.serve.consuming_world import Caller
from tests.integration.serve.rpc_world import serving
from tests.support.rpcs import Port

pytestmark = pytest.mark.integration

AT_ONCE = 64
BYTES_A_TOPIC_MAX = 64 << 10
SAMPLE = 100


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def rows_of(world, number):
    topic = world.broker.engine.topic(f"t{number}")
    return sum(len(batch) for batch in topic.read("earliest"))


def name_of(number):
    return f"/default/t{number}"


class Client(Caller):
    """Calls of a world in plain words."""

    def __init__(self, world):
        super().__init__(world.broker.addresses.data.port)
        self._admin = world.channels[Port.ADMIN]

    async def create_all(self, numbers):
        """Return the producers' ids, made some at a time."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(number):
            async with turn:
                return await self.create("p", name_of(number))

        return await asyncio.gather(*(one(number) for number in numbers))

    async def look_up(self, topic):
        request = TopicLookupRequest(topic=topic)
        return await self.ask("/danube.Discovery/TopicLookup", request, TopicLookupResponse)

    async def topics(self):
        path = "/danube_admin.TopicAdmin/ListNamespaceTopics"
        request = NamespaceRequest(name="default").SerializeToString()
        reply = TopicInfoListResponse.FromString(await self._admin.unary_unary(path)(request))
        return {info.name for info in reply.topics}


async def scene_of_many(path, count):
    """Make topics, use some, start the broker again, and use the same ones with the same ids."""
    draw, limit = random.Random(count), {"topics.topics_max": 20_000}
    async with serving(path, **limit) as world, Client(world) as client:
        await client.create_all(range(100))
        before = resident_bytes()
        ids = await client.create_all(range(count))
        assert resident_bytes() - before < count * BYTES_A_TOPIC_MAX
        assert len(set(ids)) == count
        assert len(await client.topics()) == count
        chosen = draw.sample(range(count), SAMPLE)
        for number in chosen:
            await client.look_up(name_of(number))
            await client.send(ids[number], topic=name_of(number))
        for number in range(SAMPLE):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.look_up(f"/default/no{number}")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await world.check_published_client("/default/real")
        world.check_unharmed()
    async with serving(path, **limit) as world, Client(world) as client:
        assert len(await client.topics()) == count + 1
        for number in chosen:
            await client.send(ids[number], topic=name_of(number))
            assert await client.ping(ids[number], HealthCheckRequest.Producer)
            assert await asyncio.to_thread(rows_of, world, number) == 2
        world.check_unharmed()


def test_some_hundred_topics_are_served(tmp_path):
    """All are listed and found, cost little memory, and are there after a restart."""
    asyncio.run(scene_of_many(tmp_path, 300))


@pytest.mark.crash_long
@pytest.mark.timeout(1_800)
def test_ten_thousand_topics_are_served(tmp_path):
    """As for some hundred."""
    asyncio.run(scene_of_many(tmp_path, 10_000))
