"""A broker with a schema registry in this process, and the clients that talk to it."""

from __future__ import annotations

import asyncio
import json

import grpc
import pytest
from danube import DispatchStrategy, SchemaType

from frazil.serve.danube.proto import danube_schema_pb2 as wire
from tests.integration.serve.consuming_world import Caller, broker, connect

REGISTRY = "/danube_schema.SchemaRegistry/"
TOPIC = "/default/t"


def text_of(value):
    return json.dumps(value).encode()


class World:
    """A broker with a registry, and the client that talks to it."""

    def __init__(self, serving, client, caller):
        self.url, self.db, self.schemas = serving.url, serving.db, serving.schemas
        self.client, self.caller = client, caller
        self.registry = client.schema()

    async def register(self, subject, definition, kind=SchemaType.JSON_SCHEMA):
        """Register a definition with the published client; return its id."""
        data = definition if isinstance(definition, bytes) else text_of(definition)
        builder = self.registry.register_schema(subject)
        return await builder.with_type(kind).with_schema_data(data).execute()

    async def producer(self, *, topic=TOPIC, name="p", partitions=0, **schema):
        """Return a producer of the published client; `subject=`, `version=` or `least=`."""
        builder = self.client.new_producer().with_topic(topic).with_name(name)
        builder = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)
        if partitions:
            builder = builder.with_partitions(partitions)
        if "version" in schema:
            builder = builder.with_schema_version(schema["subject"], schema["version"])
        elif "least" in schema:
            builder = builder.with_schema_min_version(schema["subject"], schema["least"])
        elif schema:
            builder = builder.with_schema_subject(schema["subject"])
        producer = builder.build()
        await producer.create()
        return producer

    async def ask(self, name, **fields):
        """Make a call of the registry with plain gRPC."""
        request = getattr(wire, f"{name}Request")(**fields)
        return await self.caller.ask(REGISTRY + name, request, _reply_of(name))

    async def refused(self, name, **fields):
        """Return code and text of a call of the registry that must fail."""
        request = getattr(wire, f"{name}Request")(**fields)
        return await self.caller.refused(REGISTRY + name, request, _reply_of(name))

    async def enforce(self, topic=TOPIC, *, payload=True):
        reply = await self.registry.update_topic_validation_policy(topic, "ENFORCE", payload)
        assert reply == (True, "Validation policy updated to enforce")

    def rows(self, topic=TOPIC):
        """Return payload, schema id and version of each record."""
        batches = [batch.to_arrow() for batch in self.db.topic(topic).read("earliest")]
        rows = [row for batch in batches for row in batch.to_pylist()]
        return [(row["payload"], row["schema_id"], row["schema_version"]) for row in rows]


def _reply_of(name):
    name = "GetSchema" if name == "GetLatestSchema" else name
    return getattr(wire, f"{name}Response")


def in_world(path, scene):
    """Run a scene, a coroutine function of a world, with a broker of its own."""

    async def play():
        async with broker(path) as serving, Caller(serving.port) as caller:
            client = await connect(serving.port)
            return await scene(World(serving, client, caller))

    return asyncio.run(play())


async def failure(work):
    """Return code and text of what a client of the registry was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return caught.value.code().name, caught.value.details()
