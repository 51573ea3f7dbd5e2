"""A broker in this process for tests of consumers, and the published client to talk to it."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from danube import DanubeClientBuilder, DispatchStrategy, SubType

import frazil
from frazil.serve.danube.proto.danube_pb2 import (
    AckRequest,
    AckResponse,
    ConsumerRequest,
    ConsumerResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    MessageResponse,
    MsgID,
    NackRequest,
    NackResponse,
    ProducerRequest,
    ProducerResponse,
    ReceiveRequest,
    StreamMessage,
)
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import Server
from tests.servers.running import free_port

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
SECONDS_MAX = 60
TOPIC = "/default/t"
BROKER_ID = "17"
CREATE = "/danube.ProducerService/CreateProducer"
SEND = "/danube.ProducerService/SendMessage"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
ACK = "/danube.ConsumerService/Ack"
NACK = "/danube.ConsumerService/Nack"
HEALTH = "/danube.HealthCheck/HealthCheck"


class Broker(Services):
    """What serves, for tests that look inside."""

    db: frazil.Engine
    port: int
    url: str
    server: Server


@contextlib.asynccontextmanager
async def broker(path, port=0, **settings):
    """Serve a data directory in this process: the calls of both ports on one."""
    with frazil.open(path, **{**SETTINGS, **settings}) as db:
        port = port or free_port()
        url = f"http://127.0.0.1:{port}"
        addresses = {"advertised_url": url, "admin_url": "http://a:1", "http_url": "http://h:1"}
        world = Broker(db, addresses=addresses)
        world.db, world.port, world.url, world.broker_id = db, port, url, BROKER_ID
        world.server = Server(Router({**world.data_routes(), **world.admin_routes()}))
        await world.server.start("127.0.0.1", port)
        try:
            yield world
        finally:
            world.begin_close()
            await world.server.drain(0.1)
            await world.close()


async def connect(place):
    """Return the published client of a URL, or of a port of this machine."""
    url = f"http://127.0.0.1:{place}" if isinstance(place, int) else place
    return await DanubeClientBuilder().service_url(url).build()


async def producer_of(client, *, topic=TOPIC, name="p", partitions=0, reliable=True, subject=None):
    """Return a producer of the published client."""
    strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    builder = client.new_producer().with_topic(topic).with_name(name)
    builder = builder.with_dispatch_strategy(strategy)
    if partitions:
        builder = builder.with_partitions(partitions)
    if subject is not None:
        builder = builder.with_schema_subject(subject)
    producer = builder.build()
    await producer.create()
    return producer


async def make_producer(place, **more):
    return await producer_of(await connect(place), **more)


class Reader:
    """A consumer of the published client with the queue that it fills."""

    def __init__(self, consumer, queue):
        self.consumer = consumer
        self.queue = queue

    async def next(self):
        return await asyncio.wait_for(self.queue.get(), SECONDS_MAX)

    async def take(self, count=1, *, ack=True):
        """Return so many messages, each acked as it comes."""
        found = []
        for _ in range(count):
            message = await self.next()
            if ack:
                await self.consumer.ack(message)
            found.append(message)
        return found

    async def close(self):
        await self.consumer.close()


async def consumer_of(
    client, *, topic=TOPIC, name="c", subscription="s", kind=SubType.EXCLUSIVE, filters=()
):
    """Return a consumer of the published client that is subscribed."""
    builder = client.new_consumer().with_topic(topic).with_consumer_name(name)
    builder = builder.with_subscription(subscription).with_subscription_type(kind)
    consumer = builder.with_key_filters(list(filters)).build()
    await consumer.subscribe()
    return consumer


async def reader_of(client, **more):
    """Return a consumer that receives."""
    consumer = await consumer_of(client, **more)
    return Reader(consumer, await consumer.receive())


async def make_reader(place, **more):
    return await reader_of(await connect(place), **more)


def payloads(messages):
    return [message.payload for message in messages]


def offsets(messages):
    return [message.msg_id.topic_offset for message in messages]


async def until(check):
    """Wait until something is so."""
    for _ in range(SECONDS_MAX * 100):
        if check():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come about in time")


class Caller:
    """A plain gRPC client: requests as they are, statuses as they come."""

    def __init__(self, port):
        # Without probing, windows stay as small as they begin: what is not read is not sent.
        options = [("grpc.http2.bdp_probe", 0)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.channel.close()

    async def ask(self, path, request, reply):
        call = self.channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await asyncio.wait_for(call(request), SECONDS_MAX)

    async def refused(self, path, request, reply):
        """Return code and text of a call that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(path, request, reply)
        return caught.value.code().name, caught.value.details()

    async def create(self, name="p", topic=TOPIC):
        """Return the id of a producer that is made."""
        request = ProducerRequest(topic_name=topic, producer_name=name, dispatch_strategy=1)
        return (await self.ask(CREATE, request, ProducerResponse)).producer_id

    async def send(self, identity, payload=b"x", *, topic=TOPIC, name="p"):
        """Return the request's id, which is 9, when the record is taken."""
        message = StreamMessage(
            request_id=9,
            msg_id=MsgID(producer_id=identity, topic_name=topic),
            payload=payload,
            producer_name=name,
        )
        return (await self.ask(SEND, message, MessageResponse)).request_id

    async def subscribe(self, name="c", *, topic=TOPIC, subscription="s", kind=0, filters=()):
        return await self.ask(
            SUBSCRIBE, subscribing(name, topic, subscription, kind, filters), ConsumerResponse
        )

    async def not_subscribed(self, name="c", *, topic=TOPIC, subscription="s", kind=0, filters=()):
        request = subscribing(name, topic, subscription, kind, filters)
        return await self.refused(SUBSCRIBE, request, ConsumerResponse)

    def receive(self, consumer_id):
        """Open a stream."""
        call = self.channel.unary_stream(
            RECEIVE,
            request_serializer=ReceiveRequest.SerializeToString,
            response_deserializer=StreamMessage.FromString,
        )
        return call(ReceiveRequest(consumer_id=consumer_id))

    async def ack(self, offset, *, topic=TOPIC, subscription="s", request_id=3):
        request = AckRequest(
            request_id=request_id,
            msg_id=MsgID(topic_name=topic, topic_offset=offset),
            subscription_name=subscription,
        )
        return await self.ask(ACK, request, AckResponse)

    async def nack(self, offset, *, topic=TOPIC, subscription="s", request_id=3, **more):
        request = NackRequest(
            request_id=request_id,
            msg_id=MsgID(topic_name=topic, topic_offset=offset),
            subscription_name=subscription,
            **more,
        )
        return await self.ask(NACK, request, NackResponse)

    async def ping(self, identity, client=HealthCheckRequest.Consumer):
        """Return whether a client's health check says that all is well."""
        request = HealthCheckRequest(client=client, id=identity)
        reply = await self.ask(HEALTH, request, HealthCheckResponse)
        return reply.status == HealthCheckResponse.OK


def subscribing(name, topic, subscription, kind, filters):
    return ConsumerRequest(
        request_id=9,
        topic_name=topic,
        consumer_name=name,
        subscription=subscription,
        subscription_type=kind,
        key_filters=filters,
    )


async def next_of(stream):
    """Return the next message of a plain stream."""
    return await asyncio.wait_for(stream.read(), SECONDS_MAX)


async def end_of(stream):
    """Return how a plain stream ended, when it has."""
    try:
        while True:
            found = await next_of(stream)
            if found is grpc.aio.EOF:
                break
    except grpc.aio.AioRpcError:
        pass
    code = await asyncio.wait_for(stream.code(), SECONDS_MAX)
    return code.name, await stream.details()
