"""Dead letters: records that failed too often are published to another topic, with the reason.

Each is durable in its topic before its record is settled.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import attrs

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound, Unavailable
from frazil.log import Sender
from frazil.schema import Message
from frazil.subscribe.settings import check_dead_letter_namespace, is_stored
from frazil.topic import wait_admitted_async

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log.codec import Entry
    from frazil.subscribe.delivery_state import DeadLetter
    from frazil.subscribe.dispatch import Dispatch
    from frazil.subscribe.feed import Record
    from frazil.subscribe.subscription import Subscription
    from frazil.topic import Instance, TopicRuntime

__all__ = ["DeadLetterPublisher", "PendingDeadLetters", "not_held"]

REASON_ATTRIBUTES: Final = 8
REASON_BYTES_MAX: Final = 16 << 10
"""The attributes that are added to a dead letter: names, an address, a reason."""


class DeadLetterPublisher:
    """Publish dead letters; their topic is created with the first one."""

    def __init__(self, engine: Instance, *, broker: str, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._broker = broker
        self._loop = loop

    async def publish(self, subscription: Subscription, record: Record, letter: DeadLetter) -> None:
        """Return when the dead letter of a record is durable.

        Raises:
            FrazilError: the error of the write, also for a topic in a deleted namespace.
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
            # The attributes became too many: the added ones are needed here.
            await self._write(runtime, value.payload, facts)

    async def _target(self, name: str) -> TopicRuntime:
        try:
            return self._engine.topic_runtime(name)
        except NotFound:
            # It existed when the policy was set.
            check_dead_letter_namespace(self._engine, name)
            await asyncio.to_thread(self._make, name)
        return self._engine.topic_runtime(name)

    def _make(self, name: str) -> None:
        # Another call may have created it since.
        with contextlib.suppress(Conflict):
            try:
                self._engine.create_topic(name)
            except InvalidRequest:
                if not self._engine.settings.lake.default:
                    raise
                # A name that no table can have must not stop the dead letter.
                self._engine.create_topic(name, lake=False)

    async def _write(
        self, runtime: TopicRuntime, payload: bytes, attributes: dict[str, str]
    ) -> None:
        await wait_admitted_async(runtime)
        message = Message(payload, None, attributes, None, f"broker-replicator-{self._broker}-0")
        limits = runtime.limits
        # These attributes are added to the record's.
        roomy = attrs.evolve(
            limits,
            message_bytes_max=limits.message_bytes_max + REASON_BYTES_MAX,
            attributes_max=limits.attributes_max + REASON_ATTRIBUTES,
            attributes_bytes_max=limits.attributes_bytes_max + REASON_BYTES_MAX,
        )
        codec, data, count, size = runtime.prepare_own(message, roomy)
        written: asyncio.Future[Any] = self._loop.create_future()
        # Synced, whatever the topic's acks are: the next step settles the record durably.
        entry: Entry = (runtime.state, codec, data, count, size, written, Sender(sync=True))
        if not runtime.log.queue.submit(entry):
            raise runtime.log.queue.overloaded()
        await written


class PendingDeadLetters:
    """The dead letters of one subscription that are being published. Belongs to the loop's thread."""

    def __init__(
        self,
        subscription: Subscription,
        publisher: DeadLetterPublisher,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._subscription = subscription
        self._publisher = publisher
        self._loop = loop
        self.tasks: set[asyncio.Task[None]] = set()
        self.error: FrazilError | None = None
        """The error of the last publish that failed and was not repeated with success since."""
        self._offset = -1
        """The record of that publish."""

    def begin(self, letter: DeadLetter, dispatch: Dispatch) -> None:
        """Publish a dead letter, then settle its record."""
        task = self._loop.create_task(self._publish(letter, dispatch))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def cancel(self) -> None:
        """Stop publishing: dispatch requests the dead letters again after a restart."""
        for task in self.tasks:
            task.cancel()

    def forget(self, offsets: Sequence[int]) -> None:
        """Note that records are settled."""
        if self._offset in offsets:
            self.error = None

    async def _publish(self, letter: DeadLetter, dispatch: Dispatch) -> None:
        subscription = self._subscription
        try:
            record = await self._record(letter.offset)
            if record is not None:
                await self._publisher.publish(subscription, record, letter)
        except FrazilError as error:
            self._failed(letter, dispatch, error)
        except Exception as error:  # noqa: BLE001 - the task's top: the record must not be forgotten
            bug = Unavailable("a bug kept a dead letter from being written", cause=repr(error))
            self._failed(letter, dispatch, bug)
        else:
            self.error = None
            subscription.counts.dead_letters += record is not None
            subscription.dead_letter_ended(dispatch.dead_lettered(letter.offset))

    def _failed(self, letter: DeadLetter, dispatch: Dispatch, error: FrazilError) -> None:
        subscription = self._subscription
        if letter.offset in dispatch.cursor:
            # It was acked since then.
            return
        subscription.warn_once("dead_letter_failed", offset=letter.offset, error=error)
        self.error, self._offset = error, letter.offset
        dispatch.dead_letter_failed(letter.offset, now_ms=int(self._loop.time() * 1000))
        subscription.dead_letter_ended(None)

    async def _record(self, offset: int) -> Record | None:
        """Read the record of a dead letter, None if it expired by a full quota.

        Raises:
            FrazilError: the error that keeps it from being read; then it is retried.
        """
        subscription = self._subscription
        try:
            record = await subscription.feed.fetch(offset)
        except NotFound as error:
            if subscription.feed.end_error() is not None:
                raise
            if not subscription.is_given_up(offset):
                raise not_held(subscription.topic, offset=offset) from error
            record = None
        if record is None:
            subscription.note_missed(1)
        return record


def not_held(topic: str, *, offset: int, **facts: int) -> Unavailable:
    """Return the error for records that are held for a subscription and that no tier has."""
    return Unavailable(
        "records that are kept for the subscription are not found: check the settings of files and "
        "objects, and that the store is in reach; a reset of the subscription passes them over",
        topic=topic,
        offset=offset,
        **facts,
    )
