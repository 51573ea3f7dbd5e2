"""A process of clients: the published one, unchanged, with a ledger of what it did and saw.

Arguments: the ledgers' directory, this process's name, and a JSON object of `url`, `topic`,
`producers` (names), `consumers` (subscription, type, name, habit) and `seed`. On stdin `drain` lets
the producers finish their record and the consumers nack nothing more; the end of stdin ends it all.
A consumer whose habit is `late` acks nothing before that; one that `refuses` nacks some records
each time, to the end.

The client's methods that try, open and receive are wrapped where they are called, to write down
what they do; what they do is the same, with one exception: while nobody listens, the client asks
for its stream again at once, a thousand times a second, and here it waits a moment each time, so
that the cores are left for the broker that starts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import threading
from pathlib import Path

import grpc
from danube import DanubeClientBuilder, DispatchStrategy, SubType

from tests.crash.broker_ledger import Ledger, is_refused, name_of, record_of

PAUSE_S = 0.01
RETRY_S = 0.1
OPEN_S = 0.05
LOOK_S = 0.5
NACK_SHARE = 0.004
LATER_SHARE = 0.3
SIZE_MAX = 2000
KEYS = 12
TYPES = {
    "exclusive": SubType.EXCLUSIVE,
    "shared": SubType.SHARED,
    "failover": SubType.FAILOVER,
    "key_shared": SubType.KEY_SHARED,
}
ERRORS = (grpc.aio.AioRpcError, grpc.aio.UsageError)


def said(error):
    """Return what a failed call said, in a line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"[:300]
    return repr(error)[:300]


class Worker:
    """All clients of this process."""

    def __init__(self, ledger, plan):
        self.ledger = ledger
        self.url, self.topic = plan["url"], plan["topic"]
        self.random = random.Random(plan["seed"])
        self.draining = asyncio.Event()
        self.ending = asyncio.Event()
        self.streams = 0
        self.name = plan["name"]

    async def client(self):
        """Return a client of the broker."""
        return await DanubeClientBuilder().service_url(self.url).build()

    async def until_made(self, make, who):
        """Call `make` until it returns, as a user would whose broker may be away."""
        while not self.ending.is_set():
            try:
                return await make()
            except ERRORS as error:
                self.ledger.note("recreated", who, said(error))
                await asyncio.sleep(RETRY_S)
        raise asyncio.CancelledError

    # -- producers -------------------------------------------------------------------------------

    async def make_producer(self, name):
        """Return a producer that writes each try down."""
        client = await self.client()
        builder = client.new_producer().with_topic(self.topic).with_name(name)
        producer = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
        await producer.create()
        for each in producer._producers:
            each.send = self.watched_send(each.send, name)
        return producer

    def watched_send(self, send, name):
        """Return `send` with a line in the ledger before each try."""

        async def watched(payload, *rest):
            self.ledger.note("sending", name, name_of(payload)[1])
            return await send(payload, *rest)

        return watched

    async def produce(self, name):
        """Publish one record after the other; a record whose fate is open is published again."""
        producer = await self.until_made(lambda: self.make_producer(name), name)
        number = 0
        while not self.draining.is_set():
            payload = record_of(name, number, self.random.randrange(SIZE_MAX))
            attributes = {"producer": name, "number": str(number)}
            key = f"key {self.random.randrange(KEYS)}"
            while True:
                try:
                    await producer.send_with_key(payload, attributes, key)
                    break
                except ERRORS as error:
                    self.ledger.note("unsure", name, number, said(error))
                    if self.ending.is_set():
                        return
                    await producer.close()
                    producer = await self.until_made(lambda: self.make_producer(name), name)
            self.ledger.note("published", name, number)
            number += 1
            await asyncio.sleep(self.random.uniform(0, 2 * PAUSE_S))
        self.ledger.note("finished", name, number)
        await producer.close()

    # -- consumers -------------------------------------------------------------------------------

    async def make_consumer(self, subscription, kind, name):
        """Return a consumer that writes down what comes, and its queue."""
        client = await self.client()
        builder = client.new_consumer().with_topic(self.topic).with_consumer_name(name)
        builder = builder.with_subscription(subscription).with_subscription_type(TYPES[kind])
        consumer = builder.build()
        await consumer.subscribe()
        self.ledger.note("subscribed", subscription, kind, name)
        for each in consumer._consumers.values():
            each.receive = self.watched_receive(each.receive, subscription)
        return consumer, await consumer.receive()

    def watched_receive(self, receive, subscription):
        """Return `receive` with lines in the ledger: before it, and for what comes out."""
        loop = asyncio.get_running_loop()
        opened_s = 0.0

        async def arrivals(stream, number):
            async for message in stream:
                key = message.routing_key if message.HasField("routing_key") else None
                record = list(name_of(message.payload))
                offset = message.msg_id.topic_offset
                self.ledger.note("got", subscription, number, offset, record, key)
                yield message

        async def watched():
            nonlocal opened_s
            await asyncio.sleep(max(0.0, opened_s + OPEN_S - loop.time()))
            opened_s = loop.time()
            self.streams += 1
            number = f"{self.name}-{self.streams}"
            self.ledger.note("opening", subscription, number)
            return arrivals(await receive(), number)

        return watched

    async def consume(self, subscription, kind, name, habit, subscribed):
        """Ack what comes, for as long as the process lives."""
        make = lambda: self.make_consumer(subscription, kind, name)  # noqa: E731
        consumer, queue = await self.until_made(make, name)
        subscribed.set()
        coming = asyncio.ensure_future(queue.get())
        unsure = {}
        while not self.ending.is_set():
            await asyncio.wait({coming}, timeout=LOOK_S)
            if coming.done():
                if habit == "late":
                    await self.draining.wait()
                await self.settle(consumer, coming.result(), subscription, unsure, habit)
            elif all(task.done() for task in consumer._tasks):
                self.ledger.note("recreated", name, "its tasks have ended")
                await consumer.close()
                consumer, queue = await self.until_made(make, name)
                coming.cancel()
            else:
                if self.draining.is_set() and unsure:
                    _, message = unsure.popitem()
                    await self.ack(consumer, message, subscription, unsure)
                continue
            coming = asyncio.ensure_future(queue.get())
        coming.cancel()
        await consumer.close()

    async def settle(self, consumer, message, subscription, unsure, habit):
        """Ack a record, or sometimes nack it; a failed ack is sometimes tried again."""
        offset = message.msg_id.topic_offset
        if habit == "refuses":
            is_nacked = is_refused(name_of(message.payload)[1])
        else:
            is_nacked = self.random.random() < NACK_SHARE and not self.draining.is_set()
        if is_nacked:
            self.ledger.note("nacking", subscription, offset)
            try:
                await consumer.nack(message, delay_ms=10, reason="a whim")
            except ERRORS as error:
                self.ledger.note("unacked", subscription, offset, said(error))
            return
        while not await self.ack(consumer, message, subscription, unsure):
            if self.ending.is_set() or self.random.random() < LATER_SHARE:
                return
            await asyncio.sleep(RETRY_S)

    async def ack(self, consumer, message, subscription, unsure):
        """Ack a record; whether it was answered. What was not is kept in `unsure`."""
        offset = message.msg_id.topic_offset
        self.ledger.note("acking", subscription, offset)
        try:
            await consumer.ack(message)
        except ERRORS as error:
            self.ledger.note("unacked", subscription, offset, said(error))
            unsure[offset] = message
            return False
        self.ledger.note("acked", subscription, offset)
        unsure.pop(offset, None)
        return True


async def run(plan):
    """Work until stdin ends."""
    ledger = Ledger(plan["directory"], plan["name"])
    worker = Worker(ledger, plan)
    loop = asyncio.get_running_loop()

    def listen():
        for line in sys.stdin:
            assert line == "drain\n", line
            loop.call_soon_threadsafe(worker.draining.set)
        loop.call_soon_threadsafe(worker.ending.set)
        loop.call_soon_threadsafe(worker.draining.set)

    threading.Thread(target=listen, daemon=True).start()
    maker = await worker.until_made(lambda: worker.make_producer("maker"), "maker")
    await maker.close()
    tasks, events = [], []
    for facts in plan["consumers"]:
        events.append(asyncio.Event())
        tasks.append(asyncio.create_task(worker.consume(*facts, events[-1])))
    await asyncio.gather(*(event.wait() for event in events))
    tasks += [asyncio.create_task(worker.produce(name)) for name in plan["producers"]]

    def look(task):
        if not task.cancelled() and task.exception() is not None:
            worker.ending.set()

    for task in tasks:
        task.add_done_callback(look)
    print("ready", flush=True)
    await worker.ending.wait()
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    ledger.close()


def main():
    """Run the plan of the arguments."""
    directory, name, plan = sys.argv[1:]
    # It tells of every stream that it could not open: hundreds while a broker is away.
    logging.getLogger("danube").setLevel(logging.CRITICAL)
    Path(directory).mkdir(parents=True, exist_ok=True)
    asyncio.run(run({**json.loads(plan), "directory": directory, "name": name}))


if __name__ == "__main__":
    main()
