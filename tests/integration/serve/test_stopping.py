"""A broker that stops goes on answering clients until they know: streams, acks, health, sends."""

from __future__ import annotations

import asyncio

import attrs
import grpc
import pytest

from frazil.config import load_settings
from frazil.serve.broker import Broker
from frazil.serve.danube.proto import danube_pb2 as wire
from tests.integration.serve.rpc_world import SECONDS_MAX, SETTINGS
from tests.support.few import few

pytestmark = pytest.mark.integration
TOPIC = "/default/orders"


class Client:
    """Calls of the data port, by hand: nothing is repeated and no stream is opened again."""

    def __init__(self, channel):
        self._channel = channel

    async def ask(self, path, request, reply):
        data = request.SerializeToString()
        answer = await self._channel.unary_unary(path)(data, timeout=SECONDS_MAX)
        return reply.FromString(answer)

    async def create(self):
        request = wire.ProducerRequest(topic_name=TOPIC, producer_name="p", dispatch_strategy=1)
        return await self.ask(
            "/danube.ProducerService/CreateProducer", request, wire.ProducerResponse
        )

    async def subscribe(self):
        request = wire.ConsumerRequest(topic_name=TOPIC, consumer_name="c", subscription="s")
        return await self.ask("/danube.ConsumerService/Subscribe", request, wire.ConsumerResponse)

    async def send(self, producer_id):
        place = wire.MsgID(producer_id=producer_id, topic_name=TOPIC)
        request = wire.StreamMessage(msg_id=place, payload=b"x", producer_name="p")
        return await self.ask("/danube.ProducerService/SendMessage", request, wire.MessageResponse)

    async def ack(self, message):
        request = wire.AckRequest(msg_id=message.msg_id, subscription_name="s")
        return await self.ask("/danube.ConsumerService/Ack", request, wire.AckResponse)

    async def health(self, consumer_id):
        request = wire.HealthCheckRequest(client=1, id=consumer_id)
        return await self.ask("/danube.HealthCheck/HealthCheck", request, wire.HealthCheckResponse)

    def receive(self, consumer_id):
        request = wire.ReceiveRequest(consumer_id=consumer_id).SerializeToString()
        call = self._channel.unary_stream("/danube.ConsumerService/ReceiveMessages")
        return call(request, timeout=SECONDS_MAX)


async def refusal(waiting):
    """Return the status that a call is refused with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await waiting
    return caught.value.code(), caught.value.details()


GOES = (grpc.StatusCode.UNAVAILABLE, "server is shutting down")


def test_clients_are_answered_until_they_have_asked_again(tmp_path, monkeypatch):
    """After a stream's end acks and health are answered; new work is refused."""
    few(monkeypatch.setattr, DRAIN_S=SECONDS_MAX)

    async def scene():
        overrides = {**SETTINGS, "data_dir": str(tmp_path)}
        broker = Broker(load_settings(environment={}, overrides=overrides))
        addresses = await broker.start()
        for server in broker._servers.values():
            # Whatever time this machine takes: no client is sent away before it has asked again.
            server.limits = attrs.evolve(server.limits, linger_s=SECONDS_MAX, quiet_s=1.0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{addresses.data.port}") as channel:
            client = Client(channel)
            made = await client.create()
            consumer = await client.subscribe()
            stream = client.receive(consumer.consumer_id)
            await client.send(made.producer_id)
            message = wire.StreamMessage.FromString(await stream.read())
            stopping = asyncio.create_task(broker.stop())
            assert await refusal(stream.read()) == GOES
            assert await refusal(client.send(made.producer_id)) == GOES
            assert await refusal(client.create()) == GOES
            assert await refusal(client.subscribe()) == GOES
            again = client.receive(consumer.consumer_id)
            assert await refusal(again.read()) == GOES
            await client.ack(message)
            health = await client.health(consumer.consumer_id)
            assert health.status == wire.HealthCheckResponse.CLOSE
            assert not stopping.done()
            # Nothing more is asked: the connection closes.
            await asyncio.wait_for(stopping, SECONDS_MAX)

    asyncio.run(scene())
