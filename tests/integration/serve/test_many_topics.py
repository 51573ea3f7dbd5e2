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
    HealthCheckResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
    TopicLookupRequest,
)
from tests.integration.serve.rpc_world import serving
from tests.support.rpcs import Port

pytestmark = pytest.mark.integration

AT_ONCE = 64
BYTES_A_TOPIC_MAX = 64 << 10
SAMPLE = 100
CREATE = "/danube.ProducerService/CreateProducer"
SEND = "/danube.ProducerService/SendMessage"


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def rows_of(world, number):
    topic = world.broker.engine.topic(f"t{number}")
    return sum(len(batch) for batch in topic.read("earliest"))


class Client:
    """Calls of a world in plain words."""

    def __init__(self, world):
        self._data = world.channels[Port.DATA]
        self._admin = world.channels[Port.ADMIN]

    async def create(self, number):
        request = ProducerRequest(
            topic_name=f"/default/t{number}", producer_name="p", dispatch_strategy=1
        )
        reply = await self._data.unary_unary(CREATE)(request.SerializeToString())
        return ProducerResponse.FromString(reply).producer_id

    async def create_all(self, numbers):
        """Return the producers' ids, made some at a time."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(number):
            async with turn:
                return await self.create(number)

        return await asyncio.gather(*(one(number) for number in numbers))

    async def send(self, number, producer_id):
        message = StreamMessage(
            msg_id=MsgID(producer_id=producer_id, topic_name=f"/default/t{number}"),
            producer_name="p",
            payload=b"x",
        )
        await self._data.unary_unary(SEND)(message.SerializeToString())

    async def is_well(self, producer_id):
        request = HealthCheckRequest(id=producer_id).SerializeToString()
        reply = await self._data.unary_unary("/danube.HealthCheck/HealthCheck")(request)
        return HealthCheckResponse.FromString(reply).status == HealthCheckResponse.OK

    async def look_up(self, topic):
        request = TopicLookupRequest(topic=topic).SerializeToString()
        return await self._data.unary_unary("/danube.Discovery/TopicLookup")(request)

    async def topics(self):
        path = "/danube_admin.TopicAdmin/ListNamespaceTopics"
        request = NamespaceRequest(name="default").SerializeToString()
        reply = TopicInfoListResponse.FromString(await self._admin.unary_unary(path)(request))
        return {info.name for info in reply.topics}


async def scene_of_many(path, count):
    """Make topics, use some, start the broker again, and use the same ones with the same ids."""
    draw = random.Random(count)
    async with serving(path, **{"topics.topics_max": 20_000}) as world:
        client = Client(world)
        await client.create_all(range(100))
        before = resident_bytes()
        ids = await client.create_all(range(count))
        assert resident_bytes() - before < count * BYTES_A_TOPIC_MAX
        assert len(set(ids)) == count
        assert len(await client.topics()) == count
        chosen = draw.sample(range(count), SAMPLE)
        for number in chosen:
            await client.look_up(f"/default/t{number}")
            await client.send(number, ids[number])
        for number in range(SAMPLE):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.look_up(f"/default/no{number}")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        await world.check_published_client("/default/real")
        world.check_unharmed()
    async with serving(path, **{"topics.topics_max": 20_000}) as world:
        client = Client(world)
        assert len(await client.topics()) == count + 1
        for number in chosen:
            await client.send(number, ids[number])
            assert await client.is_well(ids[number])
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


def test_one_topic_too_many_is_refused(tmp_path):
    """The limit has a status that clients retry; topics that are there go on."""

    async def scene():
        async with serving(tmp_path, **{"topics.topics_max": 20}) as world:
            client = Client(world)
            [first, *_] = await client.create_all(range(20))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.create(20)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await client.send(0, first)
            assert len(await client.topics()) == 20
            world.check_unharmed()

    asyncio.run(scene())
