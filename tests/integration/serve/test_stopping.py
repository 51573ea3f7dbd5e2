"""A broker that stops goes on answering clients until they know: streams, acks, health, sends."""

from __future__ import annotations

import asyncio

import attrs
import grpc
import pytest

from frazil.config import load_settings
from frazil.serve.broker import Broker
from tests.integration.serve.consuming_world import SECONDS_MAX, Caller
from tests.integration.serve.rpc_world import SETTINGS
from tests.support.few import few

pytestmark = pytest.mark.integration


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
        async with Caller(addresses.data.port) as client:
            producer = await client.create()
            consumer = (await client.subscribe()).consumer_id
            stream = client.receive(consumer)
            await client.send(producer)
            message = await stream.read()
            stopping = asyncio.create_task(broker.stop())
            assert await refusal(stream.read()) == GOES
            assert await refusal(client.send(producer)) == GOES
            assert await refusal(client.create()) == GOES
            assert await refusal(client.subscribe()) == GOES
            assert await refusal(client.receive(consumer).read()) == GOES
            await client.ack(message.msg_id.topic_offset)
            assert not await client.ping(consumer)
            assert not stopping.done()
            # Nothing more is asked: the connection closes.
            await asyncio.wait_for(stopping, SECONDS_MAX)

    asyncio.run(scene())
