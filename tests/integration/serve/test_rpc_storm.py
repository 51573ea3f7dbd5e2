"""Good calls of all kinds at once, which make and take away under each other what they need."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from frazil.serve.danube.proto.danube_pb2 import MsgID
from tests.integration.serve.rpc_inputs import good
from tests.integration.serve.rpc_world import INTERNAL_TEXTS, NEVER, serving
from tests.support.rpcs import RPCS

pytestmark = pytest.mark.integration

CALLS = int(os.environ.get("FRAZIL_STORM_CALLS", "1500"))
WORKERS = 24
TOPICS = ("/default/a", "/default/b", "/default/c")
PARTS = "/default/p"
SUBSCRIPTIONS = ("one", "two")
OFTEN = {
    "/danube.ProducerService/SendMessage": 12,
    "/danube.ProducerService/CreateProducer": 6,
    "/danube.ConsumerService/Subscribe": 6,
    "/danube.ConsumerService/ReceiveMessages": 6,
    "/danube.ConsumerService/Ack": 8,
    "/danube.ConsumerService/Nack": 3,
    "/danube_admin.TopicAdmin/CreateTopic": 3,
}
"""How much more often than once some calls are made."""


class Storm:
    """Draws requests, and learns from replies which ids there are."""

    def __init__(self, world, draw):
        self.world = world
        self.draw = draw
        self.ids = {"producer_id": [1], "consumer_id": [1]}
        self.wrong = []
        self.codes = {}
        paths = sorted(RPCS)
        self._paths = [path for path in paths for _ in range(OFTEN.get(path, 1))]

    def request(self, rpc):
        """Return a good request about one of a few things."""
        draw = self.draw
        topic = draw.choice((*TOPICS, f"{PARTS}-part-{draw.randrange(3)}"))
        known = {name: draw.choice(values) for name, values in self.ids.items()}
        request = good(
            rpc.request,
            topic_name=topic,
            topic=topic,
            base_name=draw.choice((PARTS, *TOPICS)),
            subscription=draw.choice(SUBSCRIPTIONS),
            subscription_name=draw.choice(SUBSCRIPTIONS),
            producer_name=draw.choice("pq"),
            consumer_name=draw.choice("xyz"),
            subscription_type=draw.randrange(4),
            dispatch_strategy=draw.choice((1, 1, 1, 0)),
            topic_offset=draw.randrange(40),
            id=draw.choice((*self.ids["producer_id"], *self.ids["consumer_id"])),
            **known,
        )
        fields = request.DESCRIPTOR.fields_by_name
        if "name" in fields and request.DESCRIPTOR.name != "NamespaceRequest":
            request.name = draw.choice((topic, PARTS))
        if "schema_ref" in fields and draw.random() < 0.8:
            request.ClearField("schema_ref")
        if "msg_id" in fields:
            request.msg_id.CopyFrom(
                MsgID(
                    producer_id=known["producer_id"],
                    topic_name=topic,
                    topic_offset=draw.randrange(40),
                )
            )
        return request.SerializeToString()

    async def work(self, count):
        """Make calls, one after the other."""
        for _ in range(count):
            rpc = RPCS[self.draw.choice(self._paths)]
            data = self.request(rpc)
            port = self.draw.choice(sorted(rpc.ports))
            try:
                code, text = await self.world.ask(rpc, port, data, learn=self.learn)
            except TimeoutError:
                self.wrong.append((rpc.path, "no answer", "", data.hex()))
                continue
            self.codes.setdefault(rpc.path, set()).add(code.name)
            named = INTERNAL_TEXTS.get(rpc.name)
            is_named = named is not None and (text or "").startswith(named)
            if code in NEVER or (code.name == "INTERNAL" and not is_named):
                self.wrong.append((rpc.path, code.name, text, data.hex()))

    def learn(self, reply):
        for name, values in self.ids.items():
            if name in reply.DESCRIPTOR.fields_by_name:
                values.append(getattr(reply, name))
                del values[:-8]


def test_calls_that_cross_each_other_are_answered(tmp_path):
    """Each has a status of the protocol; nothing fails inside; the broker stops and starts again."""
    seed = random.randrange(1 << 31)
    print(f"seed {seed}")

    async def scene():
        async with serving(tmp_path) as world:
            storm = Storm(world, random.Random(seed))
            await asyncio.gather(*(storm.work(CALLS // WORKERS) for _ in range(WORKERS)))
            assert storm.wrong == []
            world.check_unharmed()
            assert sum("OK" in codes for codes in storm.codes.values()) > len(RPCS) // 2
            await world.check_published_client("/default/real")
        async with serving(tmp_path) as world:
            await world.check_published_client("/default/real")
            world.check_unharmed()

    asyncio.run(scene())
