"""Records that failed too often go to another topic, with what is known of their failure."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import attrs

from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.log import Sender
from frazil.schema import Message
from frazil.subscribe.administration import check_dead_letter_namespace, is_stored
from frazil.topic import wait_admitted_async

if TYPE_CHECKING:
    from frazil.log.codec import Entry
    from frazil.subscribe.actions import DeadLetter
    from frazil.subscribe.record import Record
    from frazil.subscribe.subscription import Subscription
    from frazil.topic import Instance, TopicRuntime

__all__ = ["DeadLetters"]

STORY_ATTRIBUTES: Final = 8
STORY_BYTES_MAX: Final = 16 << 10
"""What is told of a failure: names of a topic and a subscription, an address, a reason."""


class DeadLetters:
    """Publishes dead letters; their topic is made when the first one comes."""

    def __init__(self, engine: Instance, *, broker: str, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._broker = broker
        self._loop = loop

    async def publish(self, subscription: Subscription, record: Record, letter: DeadLetter) -> None:
        """Return when the dead letter of a record is durable.

        Raises:
            FrazilError: what kept it from being written; of a topic whose namespace is gone, too.
        """
        target = subscription.policy.dead_letter_topic
        if target is None:
            raise InvalidRequest("the policy names no dead-letter topic any more")
        runtime = await self._target(target)
        if not is_stored(self._engine, runtime):
            raise InvalidRequest("the dead-letter topic stores nothing", topic=target)
        value: Message = record.value
        facts = {
            "x-original-topic": subscription.topic,
            "x-original-subscription": subscription.name,
            "x-original-topic-offset": str(record.offset),
            "x-original-producer-id": str(value.producer_id or 0),
            "x-original-broker-addr": self._broker,
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": str(letter.attempt),
            "x-failure-reason": letter.reason,
        }
        try:
            await self._write(runtime, value.payload, {**(value.attributes or {}), **facts})
        except InvalidRequest:
            # With these facts the attributes became too many: the facts are what is needed here.
            await self._write(runtime, value.payload, facts)

    async def _target(self, name: str) -> TopicRuntime:
        try:
            return self._engine.topic_runtime(name)
        except NotFound:
            # It was there when the policy was set.
            check_dead_letter_namespace(self._engine, name)
            await asyncio.to_thread(self._make, name)
        return self._engine.topic_runtime(name)

    def _make(self, name: str) -> None:
        # Made by somebody else just now is as good.
        with contextlib.suppress(Conflict):
            try:
                self._engine.create_topic(name)
            except InvalidRequest:
                if not self._engine.settings.lake.default:
                    raise
                # A name that no table can have is no reason to keep the letter back.
                self._engine.create_topic(name, lake=False)

    async def _write(
        self, runtime: TopicRuntime, payload: bytes, attributes: dict[str, str]
    ) -> None:
        await wait_admitted_async(runtime)
        message = Message(payload, None, attributes, None, f"broker-replicator-{self._broker}-0")
        limits = runtime.limits
        # The story of a failure comes on top of what its record may have.
        roomy = attrs.evolve(
            limits,
            message_bytes_max=limits.message_bytes_max + STORY_BYTES_MAX,
            attributes_max=limits.attributes_max + STORY_ATTRIBUTES,
            attributes_bytes_max=limits.attributes_bytes_max + STORY_BYTES_MAX,
        )
        codec, data, count, size = runtime.prepare_own(message, roomy)
        written: asyncio.Future[Any] = self._loop.create_future()
        # Synced, whatever the topic's own acks mean: its record is settled durably next.
        entry: Entry = (runtime.state, codec, data, count, size, written, Sender(sync=True))
        if not runtime.log.queue.submit(entry):
            raise runtime.log.queue.overloaded()
        await written
