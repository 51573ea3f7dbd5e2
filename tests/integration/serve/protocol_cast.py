"""Clients of the published library for scenes over a `frazil serve` process."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from functools import partial

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.http_calls import PATH
from tests.integration.serve import consuming_world
from tests.integration.serve.consuming_world import connect, consumer_of, producer_of
from tests.integration.serve.protocol_world import SECONDS_MAX, Scene, wait_until

QUIET_S = 0.3
"""For so long nothing more comes where nothing may."""
POLICY = {
    "max_redelivery_count": 5,
    "ack_timeout_ms": 30_000,
    "base_redelivery_delay_ms": 50,
    "max_redelivery_delay_ms": 400,
    "poison_policy": 1,
}


class Reader(consuming_world.Reader):
    """A consumer of the published client, and the queue that it fills."""

    async def payloads(self, count, **more):
        return [bytes(message.payload) for message in await self.take(count, **more)]

    async def is_quiet(self):
        """Tell whether nothing comes for a while."""
        await asyncio.sleep(QUIET_S)
        return self.queue.empty()


class Cast:
    """Clients of one scene, each with a connection of its own; all are closed at its end."""

    def __init__(self, connection):
        self.wire = connection
        self.scene = Scene(connection)
        self.topic = self.scene.topic
        self.open = []

    async def client(self):
        return await connect(self.wire.process.url)

    async def producer(self, name="p", *, is_reliable=True, topic=None, **more):
        producer = await producer_of(
            await self.client(),
            topic=topic or self.topic,
            name=name,
            reliable=is_reliable,
            **more,
        )
        self.open.append(producer)
        return producer

    async def reader(self, name="c", *, topic=None, **more):
        consumer = await consumer_of(
            await self.client(), topic=topic or self.topic, name=name, **more
        )
        reader = Reader(consumer, await consumer.receive())
        self.open.append(reader)
        # The client opens streams in tasks of its own; only then a consumer takes part.
        for part in consumer._consumers:
            await asyncio.to_thread(wait_until, partial(self.takes_part, part, name))
        return reader

    def takes_part(self, topic, name):
        """Tell whether a topic's subscription has a consumer of a name."""
        call = json.dumps({"call": "list", "topic": topic}).encode()
        request = urllib.request.Request(self.wire.process.facts["http_url"] + PATH, call)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
            return any(name in each["consumers"] for each in json.load(answer)["result"])

    async def policy(self, **changes):
        """Give the subscription a failure policy, by administration."""
        request = admin.SetSubscriptionFailurePolicyRequest(
            topic=self.topic,
            subscription="s",
            failure_policy=admin.SubscriptionFailurePolicy(**{**POLICY, **changes}),
        )
        await asyncio.to_thread(self.wire.ask, "TopicAdmin.SetSubscriptionFailurePolicy", request)


def play(broker, scene):
    """Run a scene; close its clients."""

    async def run():
        cast = Cast(broker)
        try:
            await scene(cast)
        finally:
            for each in cast.open:
                await each.close()

    asyncio.run(run())
    assert broker.process.process.poll() is None


def offsets(messages):
    return [message.msg_id.topic_offset for message in messages]


def numbered(first, last):
    return [b"%d" % number for number in range(first, last)]


async def are_quiet(*readers):
    """Tell whether nothing comes to any of them for a while."""
    return all(await asyncio.gather(*(reader.is_quiet() for reader in readers)))
