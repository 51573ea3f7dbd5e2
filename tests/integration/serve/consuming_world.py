"""A broker in this process for tests of consumers, and the published client to talk to it."""

from __future__ import annotations

import asyncio
import contextlib

import attrs
import grpc
import pytest
from danube import DanubeClientBuilder, DispatchStrategy, SubType

import frazil
from frazil.serve.danube.consumer_ids import ConsumerIds
from frazil.serve.danube.consumers import Consumers
from frazil.serve.danube.discovery import Discovery
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.proto.danube_pb2 import (
    AckRequest,
    AckResponse,
    ConsumerRequest,
    ConsumerResponse,
    HealthCheckRequest,
    HealthCheckResponse,
    MsgID,
    NackRequest,
    NackResponse,
    ReceiveRequest,
    StreamMessage,
)
from frazil.serve.danube.topics import Topics
from frazil.serve.danube.unreliable import Unreliable
from frazil.serve.grpc.router import Router, Stream, Unary, awaited
from frazil.serve.grpc.server import Server
from frazil.subscribe import Deliveries, SubscriptionSettings

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
SECONDS_MAX = 60
TOPIC = "/default/t"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
ACK = "/danube.ConsumerService/Ack"
NACK = "/danube.ConsumerService/Nack"
HEALTH = "/danube.HealthCheck/HealthCheck"


@attrs.define
class Broker:
    """What serves, for tests that look inside."""

    db: object
    port: int
    topics: Topics
    deliveries: Deliveries
    settings: SubscriptionSettings
    unreliable: Unreliable
    ids: ConsumerIds
    consumers: Consumers
    discovery: Discovery
    server: Server | None = None

    def routes(self, producers):
        consumers, discovery = self.consumers, self.discovery
        return {
            "/danube.ProducerService/CreateProducer": Unary(awaited(producers.create)),
            "/danube.ProducerService/SendMessage": Unary(producers.send),
            "/danube.Discovery/TopicLookup": Unary(discovery.look_up),
            "/danube.Discovery/TopicPartitions": Unary(discovery.partitions),
            HEALTH: Unary(discovery.health),
            SUBSCRIBE: Unary(awaited(consumers.subscribe)),
            RECEIVE: Stream(consumers.receive),
            ACK: Unary(consumers.ack),
            NACK: Unary(consumers.nack),
        }


@contextlib.asynccontextmanager
async def broker(path, port, *, window=10):
    """Serve a data directory in this process; the window is that of subscription `s` of TOPIC."""
    loop = asyncio.get_running_loop()
    with frazil.open(path, **SETTINGS) as db:
        topics = Topics(db)
        settings = SubscriptionSettings(db)
        settings.load()
        url = f"http://127.0.0.1:{port}"
        deliveries = Deliveries(db, settings, loop=loop, broker=url)
        unreliable = Unreliable(loop)
        ids = ConsumerIds(db)
        producers = Producers(topics, unreliable=unreliable)
        consumers = Consumers(
            deliveries,
            topics,
            unreliable,
            ids,
            url=url,
        )
        discovery = Discovery(topics, producers, url=url, consumers=consumers)
        world = Broker(
            db, port, topics, deliveries, settings, unreliable, ids, consumers, discovery
        )
        world.server = Server(Router(world.routes(producers)))
        await world.server.start("127.0.0.1", port)
        try:
            yield world
        finally:
            discovery.is_closing = True
            consumers.close()
            await world.server.drain(0.1)
            await deliveries.close()
            unreliable.close()


async def connect(port):
    return await DanubeClientBuilder().service_url(f"http://127.0.0.1:{port}").build()


async def make_producer(port, *, topic=TOPIC, name="p", partitions=0, reliable=True):
    """Return a producer of the published client."""
    strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    builder = (await connect(port)).new_producer().with_topic(topic).with_name(name)
    builder = builder.with_dispatch_strategy(strategy)
    if partitions:
        builder = builder.with_partitions(partitions)
    producer = builder.build()
    await producer.create()
    return producer


class Reader:
    """A consumer of the published client with the queue that it fills."""

    def __init__(self, consumer, queue):
        self.consumer = consumer
        self.queue = queue

    async def next(self):
        return await asyncio.wait_for(self.queue.get(), SECONDS_MAX)

    async def take(self, count, *, ack=True):
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


async def make_reader(
    port, *, topic=TOPIC, name="c", subscription="s", kind=SubType.EXCLUSIVE, filters=()
):
    """Return a consumer of the published client that is subscribed and receives."""
    builder = (await connect(port)).new_consumer().with_topic(topic).with_consumer_name(name)
    builder = builder.with_subscription(subscription).with_subscription_type(kind)
    if filters:
        builder = builder.with_key_filters(list(filters))
    consumer = builder.build()
    await consumer.subscribe()
    return Reader(consumer, await consumer.receive())


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
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)

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
        return await asyncio.wait_for(call(request), SECONDS_MAX)

    async def refused(self, path, request, reply):
        """Return code and text of a call that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(path, request, reply)
        return caught.value.code().name, caught.value.details()

    async def subscribe(self, name="c", *, topic=TOPIC, subscription="s", kind=0, filters=()):
        return await self.ask(
            SUBSCRIBE, subscribing(name, topic, subscription, kind, filters), ConsumerResponse
        )

    async def not_subscribed(self, name="c", *, topic=TOPIC, subscription="s", kind=0, filters=()):
        request = subscribing(name, topic, subscription, kind, filters)
        return await self.refused(SUBSCRIBE, request, ConsumerResponse)

    def receive(self, consumer_id):
        """Open a stream."""
        call = self._channel.unary_stream(
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

    async def ping(self, consumer_id):
        """Return whether a consumer's health check says that all is well."""
        request = HealthCheckRequest(client=HealthCheckRequest.Consumer, id=consumer_id)
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
