"""An engine with its deliveries on a loop, and consumers that write down what they get."""

from __future__ import annotations

import asyncio
import contextlib

from frazil.model import topic_uid
from frazil.subscribe import Deliveries, SubscriptionSettings, SubscriptionType
from tests.integration.engine.opening import open_small

TIMEOUT_S = 60
TOPIC = "/default/t"


class Collector:
    """A consumer that keeps its records and acks them at once, unless `acks` is False."""

    def __init__(self, subscription, number=1, name=None, *, acks=True, window=1000, filters=()):
        self.consumer_id = number
        self.name = name or f"consumer-{number}"
        self.subscription = subscription
        self.acks = acks
        self.window = window
        self.got = []
        self.attempts = []
        self.payloads = []
        self.acked = []
        self.refused = []
        self.is_displaced = False
        self.end = None
        subscription.attach(self, filters)
        self.want()

    def want(self):
        """Take as much as a stream with room would."""
        self.subscription.ready(self, messages=self.window, size_bytes=1 << 20)

    def deliver(self, records, attempts):
        """Keep the records."""
        self.got += [record.offset for record in records]
        self.attempts += attempts or [1] * len(records)
        self.payloads += [getattr(record.value, "payload", record.value) for record in records]
        if self.acks:
            for record in records:
                self.ack(record.offset)
        self.want()

    def ack(self, offset):
        """Ack one record and keep the answer."""
        self.subscription.ack(offset, lambda error: self._answered(offset, error))

    def _answered(self, offset, error):
        (self.acked if error is None else self.refused).append(offset)

    async def nack(self, offset, **options):
        """Give one record back and wait for the answer."""
        answer = asyncio.get_running_loop().create_future()
        self.subscription.nack(offset, answer.set_result, **options)
        assert await answer is None

    def displaced(self):
        """Note the end."""
        self.is_displaced = True

    def ended(self, error):
        """Note the end."""
        self.end = error


async def until(condition, what=""):
    """Wait until a condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for is not only on this loop
            await asyncio.sleep(0.005)
    assert condition(), what


async def quiet(turns=20):
    """Let everything happen that would happen at once."""
    for _ in range(turns):
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def delivering(db):
    """Run the deliveries of an engine on this loop."""
    settings = SubscriptionSettings(db)
    settings.load()
    deliveries = Deliveries(db, settings, loop=asyncio.get_running_loop(), broker="here")
    try:
        yield deliveries, settings
    finally:
        await deliveries.close()


def run(path, work, **settings):
    """Open a directory, run `work(db, deliveries, settings)` on a loop, and close it."""

    async def main():
        db = open_small(path, **settings)
        try:
            async with delivering(db) as (deliveries, kept):
                return await work(db, deliveries, kept)
        finally:
            await asyncio.to_thread(db.close)

    return asyncio.run(main())


def uid(db, topic=TOPIC):
    """Return the identity of a topic."""
    return topic_uid(db.topic_runtime(topic).state.spec)


async def opened(deliveries, name="s", kind=SubscriptionType.EXCLUSIVE, start="earliest"):
    """Open a subscription of the topic."""
    return await deliveries.open(TOPIC, name, kind=kind, start=start)
