"""Topics without storage: a record goes to the subscriptions that exist now, or nowhere.

Nothing is stored, acked or delivered twice. Each consumer has a queue, bounded in records and bytes;
what finds it full goes to the next consumer (Shared) or is dropped, and is counted. On the wire
every record has the offset 0. A subscription that has had no consumer for a minute is gone.

A consumer has its queue from its Subscribe on, before its stream is there, so that what is
published between the two is not lost. What was queued and never written goes to the other consumers
of the subscription when its own is gone.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from frazil.clock import SystemClock
from frazil.errors import Conflict, FrazilError, NotFound
from frazil.subscribe import (
    RECORD_OVERHEAD_BYTES,
    KeyOwners,
    Limits,
    Record,
    SubscriptionType,
    size_of,
    type_name_of,
)
from frazil.subscribe.key_filter import key_filter
from frazil.subscribe.places import Consumer as Place

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from frazil.clock import Clock
    from frazil.engine import Topic
    from frazil.schema import Message
    from frazil.subscribe.subscription import Consumer

__all__ = ["Unreliable", "UnreliableCounters", "UnreliableLimits", "UnreliableSubscription"]


@attrs.frozen(kw_only=True)
class UnreliableLimits:
    """How much waits for consumers at most, and for how long a subscription waits for one."""

    queue_records_max: int = 10_000
    queue_bytes_max: int = 16 << 20
    bytes_max: int = 256 << 20
    """Of all queues together."""
    idle_s: float = 60.0
    keys_max: int = Limits().keys_max


@attrs.define
class UnreliableCounters:
    """What became of the records; each is counted once a subscription, or once if there is none."""

    delivered: int = 0
    dropped: int = 0
    """Its consumers had no room, or it had none."""
    unheard: int = 0
    """The topic had no subscription, or nobody takes records of that key."""


class _Member(Place):
    """A consumer of a subscription: its stream, if that is there, and what waits for it."""

    __slots__ = ("bytes_queued", "queue", "sink")

    def __init__(self, consumer_id: int, name: str, filters: Iterable[str]) -> None:
        super().__init__(consumer_id, name, key_filter(filters))
        self.sink: Consumer | None = None
        self.queue: deque[tuple[Record, int]] = deque()
        self.bytes_queued = 0


class Unreliable:
    """The subscriptions of topics without storage. All methods belong to the loop's thread.

    `on_idle` is called with topic and subscription when one is removed since nobody uses it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        limits: UnreliableLimits | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.limits = limits or UnreliableLimits()
        self.counters = UnreliableCounters()
        self.on_idle: Callable[[str, str], None] | None = None
        self.loop = loop
        self.bytes_queued = 0
        self._clock: Clock = clock or SystemClock()
        self._topics: dict[str, dict[str, UnreliableSubscription]] = {}
        self._due: dict[_Member, UnreliableSubscription] = {}
        self._is_scheduled = False

    def publish(self, topic: Topic, record: Message) -> None:
        """Give a message to the topic's subscriptions; streams get it in the loop's next turn.

        Answer the producer before or after: its answer goes out before the delivery either way.
        """
        subscriptions = self._topics.get(topic.name)
        if not subscriptions:
            self.counters.unheard += 1
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
        """Return what is told of all subscriptions, ready for JSON."""
        return [each.facts() for some in self._topics.values() for each in some.values()]

    def drop(self, topic: str, name: str) -> None:
        """End a subscription and the streams of its consumers; none is no error."""
        found = self.find(topic, name)
        if found is not None:
            self.remove(found)
            error = NotFound("subscription was removed", topic=topic, subscription=name)
            found.end(error)

    def forget_topic(self, topic: str) -> None:
        """End all that a deleted topic had."""
        for name in self.names(topic):
            self.drop(topic, name)

    def close(self) -> None:
        """Let all go without a word: whoever closes ends the streams."""
        for topic in list(self._topics):
            for subscription in list(self._topics[topic].values()):
                self.remove(subscription)
                subscription.end(None)

    # -- what subscriptions ask for --------------------------------------------------------------

    def schedule(self, member: _Member, subscription: UnreliableSubscription) -> None:
        """Write a consumer's queue to its stream in the next turn of the loop, once for all."""
        self._due[member] = subscription
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._flush)

    def expired(self, subscription: UnreliableSubscription) -> None:
        """Remove a subscription that nobody uses."""
        self.remove(subscription)
        if self.on_idle is not None:
            self.on_idle(subscription.topic, subscription.name)

    def remove(self, subscription: UnreliableSubscription) -> None:
        """Let no record come to a subscription any more."""
        subscriptions = self._topics.get(subscription.topic, {})
        if subscriptions.get(subscription.name) is subscription:
            del subscriptions[subscription.name]
            if not subscriptions:
                del self._topics[subscription.topic]

    def _flush(self) -> None:
        self._is_scheduled = False
        due, self._due = self._due, {}
        for member, subscription in due.items():
            subscription.flush(member)


class UnreliableSubscription:
    """One subscription; to a transport it looks like a reliable one."""

    def __init__(self, world: Unreliable, topic: str, name: str, kind: SubscriptionType) -> None:
        self.topic = topic
        self.name = name
        self.kind = kind
        self._world = world
        self._members: dict[int, _Member] = {}
        self._by_name: dict[str, Place] = {}
        self._line: list[_Member] = []
        """The members in their order: the first one is a Failover's active, Shared goes round."""
        self._turn = 0
        self._owners = KeyOwners(world.limits.keys_max)
        self._timer: asyncio.TimerHandle | None = None
        self._rest()

    def facts(self) -> dict[str, Any]:
        """Return what is told of it, ready for JSON; nothing is kept for it, so it has no lag."""
        return {
            "name": self.name,
            "topic": self.topic,
            "type": type_name_of(self.kind),
            "stored": False,
            "consumers": sorted(self._by_name),
            "lag_records": None,
            "lag_bytes": None,
            "lag_seconds": None,
            "unacked": 0,
            "blocked": 0,
            "paused": None,
        }

    # -- consumers -------------------------------------------------------------------------------

    @property
    def consumer_ids(self) -> list[int]:
        """Return the ids of the consumers that get records, streaming or about to."""
        return list(self._members)

    def expect(self, consumer_id: int, name: str, filters: Iterable[str] = ()) -> None:
        """Keep what comes for a consumer whose stream will be there soon.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
        """
        known = self._members.get(consumer_id)
        if known is not None:
            known.accepts = key_filter(filters)
            return
        member = self._add(consumer_id, name, filters)
        self._world.loop.call_later(self._world.limits.idle_s, self._give_up, member)

    def attach(self, consumer: Consumer, filters: Iterable[str] = ()) -> None:
        """Let a consumer's stream take part; it gets nothing before `ready`.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
        """
        member = self._members.get(consumer.consumer_id)
        if member is None:
            member = self._add(consumer.consumer_id, consumer.name, filters)
        else:
            member.accepts = key_filter(filters)
        before, member.sink = member.sink, consumer
        member.messages = member.size_bytes = 0
        if before is not None:
            before.displaced()

    def detach(self, consumer: Consumer, *, is_lost: bool = True) -> None:  # noqa: ARG002
        """End a consumer's part, if it still has one; what it was not given goes to the others."""
        member = self._members.get(consumer.consumer_id)
        if member is not None and member.sink is consumer:
            self._remove(member)

    def dismiss(self, consumer_id: int) -> None:
        """Do without a consumer that is expected, if it is; one with a stream stays."""
        member = self._members.get(consumer_id)
        if member is not None and member.sink is None:
            self._remove(member)

    def ready(self, consumer: Consumer, *, messages: int, size_bytes: int) -> None:
        """Say how much the consumer's stream takes from now on; deliveries use it up."""
        member = self._members.get(consumer.consumer_id)
        if member is not None and member.sink is consumer:
            member.messages = messages
            member.size_bytes = size_bytes
            if member.queue and member.has_room:
                self._world.schedule(member, self)

    def ack(self, offset: int, done: Callable[[FrazilError | None], None]) -> None:  # noqa: ARG002
        """Answer an ack, which has no meaning here."""
        done(None)

    def nack(
        self,
        offset: int,  # noqa: ARG002 - as reliable subscriptions have it
        done: Callable[[FrazilError | None], None],
        *,
        delay_ms: int = 0,  # noqa: ARG002
        reason: str = "",  # noqa: ARG002
    ) -> None:
        """Answer a nack, which has no meaning here."""
        done(None)

    def end(self, error: FrazilError | None) -> None:
        """Let all consumers go; their streams end with `error`, if there is one."""
        self._wake_up()
        members = list(self._members.values())
        self._members = {}
        self._by_name = {}
        self._line = []
        for member in members:
            self._clear(member)
            member.is_attached = False
            sink, member.sink = member.sink, None
            if sink is not None and error is not None:
                sink.ended(error)

    # -- records ---------------------------------------------------------------------------------

    def publish(self, record: Record, size: int) -> None:
        """Queue a record for the consumer whose it is."""
        member = self._choose(record, size)
        if member is None:
            return
        member.queue.append((record, size))
        member.bytes_queued += size
        self._world.bytes_queued += size
        if len(member.queue) == 1 and member.has_room:
            self._world.schedule(member, self)

    def flush(self, member: _Member) -> None:
        """Write what the stream takes."""
        sink = member.sink
        queue = member.queue
        if sink is None or not queue:
            return
        messages, size_bytes = member.messages, member.size_bytes
        records: list[Record] = []
        size_total = 0
        while queue and messages > 0 and size_bytes > 0:
            record, size = queue.popleft()
            records.append(record)
            messages -= 1
            size_bytes -= size
            size_total += size
        if not records:
            return
        member.messages, member.size_bytes = messages, size_bytes
        member.bytes_queued -= size_total
        self._world.bytes_queued -= size_total
        self._world.counters.delivered += len(records)
        sink.deliver(records, None)

    def _choose(self, record: Record, size: int) -> _Member | None:
        """Return whose a record is; None if it is dropped, which is counted."""
        line = self._line
        if self.kind is SubscriptionType.SHARED:
            count = len(line)
            for _ in range(count):
                member = line[self._turn]
                self._turn = (self._turn + 1) % count
                if self._has_room(member, size):
                    return member
        elif self.kind is SubscriptionType.KEY_SHARED:
            key = record.value.key or record.value.producer_name or ""
            owner = self._owners.find(key, self._by_name)
            if owner is None:
                self._world.counters.unheard += 1
                return None
            if self._has_room(self._members[owner.consumer_id], size):
                return self._members[owner.consumer_id]
        elif line and self._has_room(line[0], size):
            return line[0]
        self._world.counters.dropped += 1
        return None

    def _has_room(self, member: _Member, size: int) -> bool:
        limits = self._world.limits
        if self._world.bytes_queued + size > limits.bytes_max:
            return False
        # A record that is larger than a queue may be goes alone.
        return not member.queue or (
            len(member.queue) < limits.queue_records_max
            and member.bytes_queued + size <= limits.queue_bytes_max
        )

    # -- inside ----------------------------------------------------------------------------------

    def _add(self, consumer_id: int, name: str, filters: Iterable[str]) -> _Member:
        if self.kind is SubscriptionType.EXCLUSIVE and self._members:
            raise Conflict("the exclusive subscription has another consumer", consumer=name)
        member = _Member(consumer_id, name, filters)
        self._members[consumer_id] = member
        self._by_name[name] = member
        self._line.append(member)
        self._wake_up()
        return member

    def _clear(self, member: _Member) -> None:
        self._world.bytes_queued -= member.bytes_queued
        member.bytes_queued = 0
        member.queue.clear()

    def _remove(self, member: _Member) -> None:
        del self._members[member.consumer_id]
        del self._by_name[member.name]
        at = self._line.index(member)
        del self._line[at]
        if at < self._turn:
            self._turn -= 1
        if self._turn >= len(self._line):
            self._turn = 0
        member.sink = None
        member.is_attached = False
        left = list(member.queue)
        self._clear(member)
        for record, size in left:
            self.publish(record, size)
        if not self._members:
            self._rest()

    def _give_up(self, member: _Member) -> None:
        """Do without a consumer whose stream never came."""
        if self._members.get(member.consumer_id) is member:
            self.dismiss(member.consumer_id)

    def _rest(self) -> None:
        self._wake_up()
        self._timer = self._world.loop.call_later(
            self._world.limits.idle_s, self._world.expired, self
        )

    def _wake_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
