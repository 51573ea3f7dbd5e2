"""Topics without storage: only the current subscriptions get a record.

Dispatch is that of stored topics, without a journal: a record is settled when it is written to a
consumer, and nothing is delivered twice. Each subscription has one queue, bounded in records and
bytes; further records are dropped and counted. On the wire every record has offset 0. A
subscription that has had no consumer for a minute is removed.

A consumer is attached from its Subscribe on, before its stream opens, so that records published in
between are not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from frazil.clock import SystemClock
from frazil.errors import FrazilError, NotFound
from frazil.subscribe import (
    RECORD_OVERHEAD_BYTES,
    Action,
    Change,
    Deliver,
    Dispatch,
    FailurePolicy,
    Limits,
    Notice,
    Record,
    SubscriptionType,
    size_of,
    type_name_of,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from frazil.engine import Topic
    from frazil.schema import Message
    from frazil.subscribe import Consumer

__all__ = ["Unreliable", "UnreliableSubscription"]


class Unreliable:
    """The subscriptions of topics without storage. All methods belong to the loop's thread.

    `on_idle` is called with topic and subscription when one is removed for want of consumers.
    """

    queue_records_max = 10_000
    queue_bytes_max = 16 << 20
    bytes_max = 256 << 20
    """Of all queues together."""
    idle_s = 60.0
    """The time that a subscription without a consumer stays."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.on_idle: Callable[[str, str], None] | None = None
        self.loop = loop
        self.bytes_queued = 0
        self.delivered = 0
        """Counted once per subscription, as `dropped` is."""
        self.dropped = 0
        """Records that found a full queue or no consumer."""
        self.unheard = 0
        """Records without a subscription, or without a consumer whose filter matches."""
        self._clock = SystemClock()
        self._topics: dict[str, dict[str, UnreliableSubscription]] = {}
        self._due: dict[UnreliableSubscription, None] = {}

    def publish(self, topic: Topic, record: Message) -> None:
        """Pass a message to the topic's subscriptions; streams get it in the loop's next turn.

        The producer's answer is sent before the delivery, whether it is answered before or after
        this.
        """
        subscriptions = self._topics.get(topic.name)
        if not subscriptions:
            self.unheard += 1
            return
        if record.publish_time is None:
            record = msgspec.structs.replace(record, publish_time=self._clock.now_us())
        size = size_of(record) + RECORD_OVERHEAD_BYTES
        shared = Record(0, record, record.publish_time or 0, size)
        for subscription in subscriptions.values():
            subscription.publish(shared, size)

    def open(self, topic: str, name: str, *, kind: SubscriptionType) -> UnreliableSubscription:
        """Return a subscription; it is made if it is not there. An existing one's kind wins."""
        subscriptions = self._topics.setdefault(topic, {})
        found = subscriptions.get(name)
        if found is None:
            found = subscriptions[name] = UnreliableSubscription(self, topic, name, kind)
        return found

    def find(self, topic: str, name: str) -> UnreliableSubscription | None:
        """Return a subscription, None if there is none."""
        return self._topics.get(topic, {}).get(name)

    def names(self, topic: str) -> list[str]:
        """Return the names of a topic's subscriptions, sorted."""
        return sorted(self._topics.get(topic, ()))

    def facts(self) -> list[dict[str, Any]]:
        """Return the state of all subscriptions, ready for JSON."""
        return [each.facts() for some in self._topics.values() for each in some.values()]

    def drop(self, topic: str, name: str) -> None:
        """End a subscription and the streams of its consumers; none is no error."""
        found = self.find(topic, name)
        if found is not None:
            self.remove(found)
            found.end(NotFound("subscription was removed", topic=topic, subscription=name))

    def forget_topic(self, topic: str) -> None:
        """End all that a deleted topic had."""
        for name in self.names(topic):
            self.drop(topic, name)

    def close(self) -> None:
        """Remove all subscriptions; the caller ends their streams."""
        for topic in list(self._topics):
            for subscription in list(self._topics[topic].values()):
                self.remove(subscription)
                subscription.end(None)

    # -- what subscriptions ask for --------------------------------------------------------------

    def schedule(self, subscription: UnreliableSubscription) -> None:
        """Deliver in the next turn of the loop, once for all records of this turn."""
        if not self._due:
            self.loop.call_soon(self._flush)
        self._due[subscription] = None

    def expired(self, subscription: UnreliableSubscription) -> None:
        """Remove a subscription without consumers."""
        self.remove(subscription)
        if self.on_idle is not None:
            self.on_idle(subscription.topic, subscription.name)

    def remove(self, subscription: UnreliableSubscription) -> None:
        """Publish nothing more to a subscription."""
        subscriptions = self._topics.get(subscription.topic, {})
        if subscriptions.get(subscription.name) is subscription:
            del subscriptions[subscription.name]
            if not subscriptions:
                del self._topics[subscription.topic]

    def _flush(self) -> None:
        due, self._due = self._due, {}
        for subscription in due:
            subscription.run()


class UnreliableSubscription:
    """One subscription of a topic without storage, with the interface of a reliable one."""

    def __init__(self, world: Unreliable, topic: str, name: str, kind: SubscriptionType) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self._world = world
        self._names: dict[int, str] = {}
        """The consumers that take part, by id."""
        self._streams: dict[int, Consumer] = {}
        """The streams of the attached consumers, by id."""
        self._fresh: list[Record] = []
        """Records of this turn."""
        self._bytes_queued = 0
        self._clear()
        self._set_idle_timer()

    def facts(self) -> dict[str, Any]:
        """Return its state, ready for JSON; it stores no records, so it has no lag."""
        return {
            "name": self.name,
            "topic": self.topic,
            "type": type_name_of(self.kind),
            "stored": False,
            "consumers": sorted(self._names.values()),
            "lag_records": None,
            "lag_bytes": None,
            "lag_seconds": None,
            "unacked": 0,
            "blocked": 0,
            "paused": None,
        }

    # -- consumers -------------------------------------------------------------------------------

    def expect(self, consumer_id: int, name: str, filters: Iterable[str] = ()) -> None:
        """Attach a consumer whose stream is about to open.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
        """
        is_new = consumer_id not in self._names
        if consumer_id not in self._streams:
            self._join(consumer_id, name, filters)
        if is_new:
            self._world.loop.call_later(self._world.idle_s, self.dismiss, consumer_id)

    def attach(self, consumer: Consumer, filters: Iterable[str] = ()) -> None:
        """Let a consumer's stream take part; it gets nothing before `ready`.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
        """
        self._join(consumer.consumer_id, consumer.name, filters)
        before = self._streams.get(consumer.consumer_id)
        self._streams[consumer.consumer_id] = consumer
        if before is not None:
            before.displaced()

    def _join(self, consumer_id: int, name: str, filters: Iterable[str]) -> None:
        self._dispatch.attach(consumer_id, name=name, filters=filters, now_ms=0)
        self._names[consumer_id] = name
        self._timer.cancel()

    def detach(self, consumer: Consumer) -> None:
        """Remove a consumer, if it still takes part."""
        if self._streams.get(consumer.consumer_id) is consumer:
            del self._streams[consumer.consumer_id]
            self.dismiss(consumer.consumer_id)

    def dismiss(self, consumer_id: int) -> None:
        """Remove a consumer that is expected; one with a stream stays."""
        if consumer_id in self._streams or self._names.pop(consumer_id, None) is None:
            return
        self._dispatch.detach(consumer_id, now_ms=0)
        if self._names:
            self._world.schedule(self)
        else:
            self._clear()
            self._set_idle_timer()

    def ready(self, consumer: Consumer, *, messages: int, size_bytes: int) -> None:
        """Set how much the consumer's stream takes from now on; deliveries use it up."""
        own_id = consumer.consumer_id
        if self._streams.get(own_id) is consumer:
            self._dispatch.want(own_id, messages=messages, size_bytes=size_bytes)
            if self._dispatch.held:
                self._world.schedule(self)

    def end(self, error: FrazilError | None) -> None:
        """Remove all consumers; their streams end with `error`, if there is one."""
        self._timer.cancel()
        streams, self._streams, self._names = self._streams, {}, {}
        self._clear()
        for stream in streams.values():
            if error is not None:
                stream.ended(error)

    # -- records ---------------------------------------------------------------------------------

    def publish(self, record: Record, size: int) -> None:
        """Queue a record."""
        world = self._world
        count = len(self._fresh) + self._dispatch.held
        is_full = count >= world.queue_records_max or (
            # A record larger than the queue is queued alone.
            count > 0 and self._bytes_queued + size > world.queue_bytes_max
        )
        if is_full or not self._names or world.bytes_queued + size > world.bytes_max:
            world.dropped += 1
            return
        self._fresh.append(record)
        self._bytes_queued += size
        world.bytes_queued += size
        world.schedule(self)

    def run(self) -> None:
        """Deliver as many records as the streams accept."""
        dispatch, world = self._dispatch, self._world
        if self._fresh:
            fresh, self._fresh = self._fresh, []
            first = dispatch.offset_next
            end = first + len(fresh)
            dispatch.feed(
                range(first, end),
                [record.size for record in fresh],
                offset_end=end,
                keys=[record.value.key or record.value.producer_name or "" for record in fresh],
                values=fresh,
            )
        while actions := dispatch.poll(0):
            for action in actions:
                self._act(action)
        world.bytes_queued += dispatch.held_bytes - self._bytes_queued
        self._bytes_queued = dispatch.held_bytes

    # -- inside ----------------------------------------------------------------------------------

    def _act(self, action: Action) -> None:
        dispatch, world = self._dispatch, self._world
        if isinstance(action, Deliver):
            world.delivered += len(action.offsets)
            # Before the write: the stream may request more in that call.
            change = dispatch.ack(action.offsets, head=dispatch.offset_next)
            assert change is not None
            dispatch.confirmed(change, now_ms=0)
            self._streams[action.consumer_id].deliver(action.values, None)
        elif isinstance(action, Change):
            dispatch.confirmed(action, now_ms=0)
        elif isinstance(action, Notice):
            # Only skipped records are reported without a journal, and counted.
            world.unheard += action.records or 0

    def _clear(self) -> None:
        """Drop the queue."""
        self._world.bytes_queued -= self._bytes_queued
        self._bytes_queued = 0
        self._fresh = []
        records_max = self._world.queue_records_max
        self._dispatch = Dispatch(
            self.kind,
            policy=FailurePolicy(ack_timeout_ms=0),
            limits=Limits(max_unacked_messages=records_max, held_max=records_max, skip_grace_ms=0),
        )

    def _set_idle_timer(self) -> None:
        world = self._world
        self._timer = world.loop.call_later(world.idle_s, world.expired, self)
