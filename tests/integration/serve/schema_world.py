"""A broker with a schema registry in this process, and the clients that talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import json

import grpc
import pytest
from danube import DanubeClientBuilder, DispatchStrategy, SchemaType

import frazil
from frazil.serve.danube.admin import Acts
from frazil.serve.danube.discovery import Discovery
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.proto import danube_schema_pb2 as wire
from frazil.serve.danube.registry_service import Schemas
from frazil.serve.danube.topics import Topics
from frazil.serve.grpc.router import Router, Unary, awaited
from frazil.serve.grpc.server import Server
from tests.integration.serve.test_publishing import (
    CREATE,
    HEALTH,
    LOOK_UP,
    PARTITIONS,
    SEND,
    SETTINGS,
    Caller,
)
from tests.servers.running import free_port

REGISTRY = "/danube_schema.SchemaRegistry/"
TOPIC = "/default/t"


def text_of(value):
    return json.dumps(value).encode()


class World:
    """A broker with a registry, and the client that talks to it."""

    def __init__(self, url, db, schemas, client, caller):
        self.url, self.db, self.schemas = url, db, schemas
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
        code, text = await self.caller.refused(REGISTRY + name, request, _reply_of(name))
        return code.name, text

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


@contextlib.asynccontextmanager
async def world(path):
    """Serve a data directory in this process with producers and the registry."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with frazil.open(path, **SETTINGS) as db:
        topics = Topics(db)
        schemas = Schemas(db, topics)
        producers = Producers(topics, schemas=schemas)
        discovery = Discovery(topics, producers, url=url)
        routes = {
            CREATE: Unary(awaited(producers.create)),
            SEND: Unary(producers.send),
            LOOK_UP: Unary(discovery.look_up),
            PARTITIONS: Unary(discovery.partitions),
            HEALTH: Unary(discovery.health),
            **schemas.routes(Acts()),
        }
        server = Server(Router(routes))
        await server.start("127.0.0.1", port)
        client = await DanubeClientBuilder().service_url(url).build()
        try:
            async with Caller(port) as caller:
                yield World(url, db, schemas, client, caller)
        finally:
            await server.drain(0.5)
            await schemas.close()


def in_world(path, scene):
    """Run a scene, a coroutine function of a world, with a broker of its own."""

    async def play():
        async with world(path) as w:
            return await scene(w)

    return asyncio.run(play())


async def failure(work):
    """Return code and text of what a client of the registry was refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return caught.value.code().name, caught.value.details()
