"""The published client, unchanged, publishes to an engine behind Frazil's own server."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import grpc
import pytest
from danube import DanubeClientBuilder, DispatchStrategy

import frazil
from frazil.serve.danube.proto.danube_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
    TopicLookupRequest,
    TopicLookupResponse,
    TopicPartitionsResponse,
)
from frazil.serve.danube.routes import data_routes
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import Server

pytestmark = pytest.mark.integration

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@contextlib.asynccontextmanager
async def broker(path, port, *, producers_max=1000):
    """Serve a data directory in this process; yields the engine."""
    with frazil.open(path, **SETTINGS) as db:
        routes = data_routes(db, url=f"http://127.0.0.1:{port}", producers_max=producers_max)
        server = Server(Router(routes))
        await server.start("127.0.0.1", port)
        try:
            yield db
        finally:
            await server.drain(0.5)


async def make_producer(port, *, topic="/default/t", name="p", partitions=0, reliable=True):
    """Return a producer of the published client."""
    client = await DanubeClientBuilder().service_url(f"http://127.0.0.1:{port}").build()
    strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    builder = client.new_producer().with_topic(topic).with_name(name)
    builder = builder.with_dispatch_strategy(strategy)
    if partitions:
        builder = builder.with_partitions(partitions)
    producer = builder.build()
    await producer.create()
    return producer


def messages_of(db, topic="/default/t"):
    """Return payload, attributes and key of each record."""
    batches = [batch.to_arrow() for batch in db.topic(topic).read("earliest")]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["payload"], dict(row["attributes"] or []), row["key"]) for row in rows]


class Caller:
    """A plain gRPC client: requests as they are, statuses as they come."""

    def __init__(self, port):
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._channel.close()

    async def ask(self, path, request, reply):
        call = self._channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await call(request)

    async def refused(self, path, request, reply):
        """Return code and text of a call that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(path, request, reply)
        return caught.value.code(), caught.value.details()


CREATE = "/danube.ProducerService/CreateProducer"
SEND = "/danube.ProducerService/SendMessage"
LOOK_UP = "/danube.Discovery/TopicLookup"
PARTITIONS = "/danube.Discovery/TopicPartitions"
HEALTH = "/danube.HealthCheck/HealthCheck"


def test_what_the_client_was_answered_is_in_the_log(tmp_path):
    """Every sent message is there once, in order of a producer, with attributes and key."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db:
            producer = await make_producer(port)
            for number in range(20):
                await producer.send(b"m%d" % number, {"n": str(number)})
            await producer.send_with_key(b"last", {}, "the key")
            await asyncio.gather(*(producer.send(b"many") for _ in range(50)))
            await producer.close()
            return messages_of(db)

    found = asyncio.run(scene())
    assert found[:20] == [(b"m%d" % number, {"n": str(number)}, None) for number in range(20)]
    assert found[20] == (b"last", {}, "the key")
    assert [payload for payload, _, _ in found[21:]] == [b"many"] * 50


def test_a_producer_goes_on_after_a_restart_of_the_broker(tmp_path):
    """The id that a client has from before is known to the next broker, and to no other topic."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port):
            producer = await make_producer(port)
            await producer.send(b"before")
        async with broker(tmp_path, port) as db:
            await producer.send(b"after")
            await producer.close()
            async with Caller(port) as caller:
                name = {"topic_name": "/default/t", "producer_name": "p"}
                made = await caller.ask(CREATE, request_of(**name), ProducerResponse)
                other = StreamMessage(
                    msg_id=MsgID(producer_id=made.producer_id, topic_name="/default/no"),
                    producer_name="p",
                )
                known = await caller.ask(
                    HEALTH, HealthCheckRequest(id=made.producer_id), HealthCheckResponse
                )
                assert known.status == HealthCheckResponse.OK
                other.msg_id.producer_id += 1
                refusal = await caller.refused(SEND, other, StreamMessage)
            return messages_of(db), refusal, made.producer_id

    found, refusal, identity = asyncio.run(scene())
    assert [payload for payload, _, _ in found] == [b"before", b"after"]
    text = f"The producer with id {identity + 1} does not exist"
    assert refusal == (grpc.StatusCode.NOT_FOUND, text)


def request_of(**fields):
    return ProducerRequest(dispatch_strategy=1, request_id=7, **fields)


def test_what_is_wrong_has_the_status_that_clients_know(tmp_path):
    """Names, namespaces, strategies, limits and unknown topics are refused with code and text."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port, producers_max=2) as db, Caller(port) as caller:
            db.create_topic("rows", {"id": "long"})

            async def create(name, topic="/default/t", strategy=1):
                request = ProducerRequest(
                    topic_name=topic, producer_name=name, dispatch_strategy=strategy
                )
                return await caller.ask(CREATE, request, ProducerResponse)

            async def refused(name, topic="/default/t", strategy=1):
                request = ProducerRequest(
                    topic_name=topic, producer_name=name, dispatch_strategy=strategy
                )
                return await caller.refused(CREATE, request, ProducerResponse)

            first = await create("a")
            assert (await create("a")).producer_id == first.producer_id
            assert (await create("b")).producer_id != first.producer_id
            return [
                await refused("c"),
                await refused("a", strategy=0),
                await refused("a", topic="no slash"),
                await refused("a", topic="/nowhere/t"),
                await refused("a", topic="/default/rows"),
                await caller.refused(SEND, StreamMessage(), StreamMessage),
                await caller.refused(
                    LOOK_UP, TopicLookupRequest(topic="/default/no"), TopicLookupResponse
                ),
            ]

    found = asyncio.run(scene())
    codes = [code.name for code, _ in found]
    assert codes == [
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "UNAVAILABLE",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
    ]
    texts = [text for _, text in found]
    assert texts[1] == "Producer requested dispatch strategy does not match topic strategy"
    assert texts[2].endswith("has an invalid format, should be: /namespace_name/topic_name")
    assert texts[3].startswith("Unable to find the namespace nowhere, the topic can be created")
    assert texts[6] == "Unable to find the requested topic: /default/no"


def test_topics_are_found_where_they_are(tmp_path):
    """A look-up names this broker with its scheme; parts are those of the exact name."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db, Caller(port) as caller:
            db.create_topic("foo")
            db.create_topic("foobar")
            db.create_topic("wide", partitions=3)

            async def parts(name):
                request = TopicLookupRequest(request_id=5, topic=name)
                return await caller.ask(PARTITIONS, request, TopicPartitionsResponse)

            request = TopicLookupRequest(request_id=4, topic="/default/foo")
            found = await caller.ask(LOOK_UP, request, TopicLookupResponse)
            assert (found.request_id, found.response_type) == (4, TopicLookupResponse.Connect)
            assert found.connect_url == found.broker_url == f"http://127.0.0.1:{port}"
            return [list((await parts(f"/default/{name}")).partitions) for name in NAMES]

    assert asyncio.run(scene()) == [
        ["/default/foo"],
        ["/default/wide-part-0", "/default/wide-part-1", "/default/wide-part-2"],
        [],
    ]


NAMES = ("foo", "wide", "none")
