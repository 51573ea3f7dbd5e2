"""Consumers: subscribed by name, known by an id, fed through a stream; their acks and nacks.

A consumer is attached to its subscription while its stream is open. From Subscribe until then its
seat is reserved for a while: no other consumer gets an Exclusive subscription, and a topic without
storage keeps records for it. Each ping of the id extends the reservation.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from frazil.errors import Conflict, FrazilError, NotFound
from frazil.model import topic_uid
from frazil.serve.danube.consumer_ids import ConsumerFacts, ConsumerIds
from frazil.serve.danube.consumer_stream import ConsumerStream
from frazil.serve.danube.messages import (
    DeliveryEncoder,
    parse_ack,
    parse_nack,
    parse_request,
    request_id_reply,
)
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto.danube_pb2 import ConsumerRequest, ConsumerResponse, ReceiveRequest
from frazil.serve.danube.statuses import (
    ACKING,
    NACKING,
    Refused,
    Status,
    Wording,
    status,
    status_of,
)
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import start, to_its_end
from frazil.subscribe import SUBSCRIPTIONS_MAX, SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.engine import Topic
    from frazil.serve.danube.consumer_stream import Attachable
    from frazil.serve.danube.topics import Topics
    from frazil.serve.danube.unreliable import Unreliable
    from frazil.serve.grpc.calls import Call, CallRun
    from frazil.serve.h2.stream import Stream
    from frazil.subscribe import Deliveries, Subscription

    Settle = Callable[[Subscription], None]

__all__ = ["CONSUMERS_MAX", "Consumers"]

REFUSAL_DELAY_S: Final = 0.5
"""Some clients open a refused stream again at once, for ever; so the refusal takes its time."""
TAKEOVER_AGE_S: Final = 0.5
"""Two clients of one name take the stream from each other; not more often than this."""
RESERVED_S: Final = 15.0
"""The time that a reservation lasts without a call of its consumer; clients ping every 5 s."""
CONSUMERS_MAX: Final = 1_000
"""Of one subscription."""
NAME_BYTES_MAX: Final = 512
FILTERS_MAX: Final = 64
FILTER_BYTES_MAX: Final = 256
IDS_BYTES_MAX: Final = 16 << 20
"""Of all ids; above it consumers without a stream lose theirs, the oldest first."""
REASON_CHARACTERS_MAX: Final = 1024

_CLOSING: Final = Status(Code.UNAVAILABLE, "server is shutting down")
_KINDS: Final = frozenset(map(int, SubscriptionType))


class Consumers:
    """The consumers of a broker. All methods belong to the event loop's thread.

    Routes: `subscribe` is a coroutine (`Unary(awaited(...))`), `receive` a `Stream`, `ack` and
    `nack` are plain `Unary` handlers.

    Args:
        deliveries: the subscriptions of reliable topics.
        topics: the broker's topics.
        unreliable: the subscriptions of the other topics.
        ids: the consumer of each id.
        url: the broker's address for clients, part of every message.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        topics: Topics,
        unreliable: Unreliable,
        ids: ConsumerIds,
        *,
        url: str,
    ) -> None:
        self._deliveries = deliveries
        self._topics = topics
        self._unreliable = unreliable
        self._ids = ids
        self._url = url
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, ConsumerStream] = {}
        self._reserved: dict[int, float] = {}
        """The time of the last call of each consumer without a stream, since its Subscribe."""
        self._dropped: set[int] = set()
        """The ids of the consumers whose stream ended and that have not reconnected."""
        self._encoders: dict[str, DeliveryEncoder] = {}
        self._is_closing = False
        unreliable.on_idle = self.forget_subscription

    # -- calls -----------------------------------------------------------------------------------

    async def subscribe(self, _call: Call, message: bytes) -> bytes:
        """Answer Subscribe: the subscription is there, and the consumer has its id, durably."""
        request = parse_request(ConsumerRequest, message)
        topic = self._topics.find(checked_topic(request.topic_name))
        if topic is None:
            raise Refused(status("topic_missing", topic=request.topic_name))
        self._check_request(topic, request)
        facts = ConsumerFacts(
            topic_uid(topic.runtime.state.spec),
            topic.name,
            request.subscription,
            request.consumer_name,
            request.subscription_type,
            tuple(request.key_filters),
        )
        identity = await to_its_end(self._admit(topic, facts))
        return ConsumerResponse(
            request_id=request.request_id,
            consumer_id=identity,
            consumer_name=request.consumer_name,
        ).SerializeToString()

    def receive(self, call: Call, message: bytes) -> None:
        """Answer ReceiveMessages: HEADERS at once, then records for as long as the client reads."""
        identity = parse_request(ReceiveRequest, message).consumer_id
        if self._is_closing:
            raise Refused(_CLOSING)
        facts = self._ids.get(identity)
        topic = None if facts is None else self._topic_of(facts)
        if facts is None or topic is None:
            self._ids.forget(identity)
            self._refuse_later(call, status("consumer_unknown", consumer_id=identity))
            return
        call.begin()
        start(call, self._open_stream(call, identity, facts, topic))

    def ack(self, call: Call, message: bytes) -> None:
        """Answer Ack when it is durable."""
        request_id, topic, name, offset = parse_ack(message)
        subscription = self._deliveries.find(topic, name)
        if subscription is not None:
            subscription.ack_with((offset,), (call, request_id), _answer_acks)
            return
        done = partial(_settle, call, request_id, ACKING)
        self._settle_later(call, topic, name, lambda found: found.ack(offset, done), done)

    def ack_all(self, run: CallRun) -> None:
        """Answer the Acks of one run, as `ack` does each."""
        find, places = self._deliveries.find, run.streams
        subscription, topic_before, name_before = None, None, None
        part: AckedPart = (run, [], [], [])
        for at, message in enumerate(run.messages):
            try:
                request_id, topic, name, offset = parse_ack(message)
            except Refused:
                run.apart(at)
                continue
            if topic != topic_before or name != name_before:
                _end_acks(subscription, part)
                part = (run, [], [], [])
                subscription, topic_before, name_before = find(topic, name), topic, name
            if subscription is None:
                run.apart(at)
                continue
            part[1].append(places[at])
            part[2].append(request_id_reply(request_id))
            part[3].append(offset)
        _end_acks(subscription, part)

    def nack(self, call: Call, message: bytes) -> None:
        """Answer Nack when the failed attempt is durable."""
        request_id, topic, name, offset, delay_ms, reason = parse_nack(message)
        done = partial(_settle, call, request_id, NACKING)
        reason = reason[:REASON_CHARACTERS_MAX]

        def settle(found: Subscription) -> None:
            found.nack(offset, done, delay_ms=delay_ms, reason=reason)

        subscription = self._deliveries.find(topic, name)
        if subscription is not None:
            settle(subscription)
        else:
            self._settle_later(call, topic, name, settle, done)

    # -- what others ask -------------------------------------------------------------------------

    def consumer_topic(self, consumer_id: int) -> str | None:
        """Return the full name of the consumer's topic, None if there is no such consumer."""
        facts = self._ids.get(consumer_id)
        return None if facts is None else facts.topic

    def is_known(self, consumer_id: int) -> bool:
        """Answer a ping: whether the consumer is still known. A ping extends its reservation."""
        facts = self._ids.get(consumer_id)
        if facts is None or consumer_id in self._dropped or self._topic_of(facts) is None:
            return False
        if consumer_id in self._reserved and self._has_place(consumer_id):
            self._reserved[consumer_id] = self._loop.time()
        return True

    def facts(self) -> dict[str, int]:
        """Return the counters."""
        unreliable = self._unreliable
        return {
            "consumers": len(self._ids),
            "streams": len(self._streams),
            "unreliable_delivered": unreliable.delivered,
            "unreliable_dropped": unreliable.dropped,
            "unreliable_unheard": unreliable.unheard,
            "unreliable_queued_bytes": unreliable.bytes_queued,
        }

    def forget_subscription(self, topic: str, name: str) -> None:
        """Forget the consumers of a subscription that was removed; their streams have ended."""
        for identity in self._ids.members(topic, name):
            self._forget(identity)

    def forget_topic(self, topic: str) -> None:
        """Forget all consumers of a topic that was deleted, and end its unreliable streams."""
        self._unreliable.forget_topic(topic)
        self._encoders.pop(topic, None)
        for name in [own for own_topic, own in self._ids.subscriptions() if own_topic == topic]:
            self.forget_subscription(topic, name)

    def unload(self, topic: str) -> None:
        """End a topic's streams so that their clients reconnect; all state stays."""
        for stream in list(self._streams.values()):
            facts = self._ids.get(stream.consumer_id)
            if facts is not None and facts.topic == topic:
                stream.stop(Code.UNAVAILABLE, f"The topic {topic} was unloaded, try again")

    def close(self) -> None:
        """End every stream with UNAVAILABLE and open no other one; acks are still taken."""
        self._is_closing = True
        for stream in list(self._streams.values()):
            stream.stop(*_CLOSING)

    # -- Subscribe -------------------------------------------------------------------------------

    def _check_request(self, topic: Topic, request: ConsumerRequest) -> None:
        if self._is_closing:
            raise Refused(_CLOSING)
        if not topic.runtime.is_message:
            raise Refused(
                Status(Code.FAILED_PRECONDITION, f"The topic: {topic.name} has rows, not messages")
            )
        if request.subscription_type not in _KINDS:
            raise Refused(_wrong(f"The subscription type {request.subscription_type} is unknown"))
        for what in ("subscription", "consumer_name"):
            if not 0 < len(getattr(request, what).encode()) <= NAME_BYTES_MAX:
                raise Refused(_wrong(f"The {what} must have 1 to {NAME_BYTES_MAX} bytes"))
        if len(request.key_filters) > FILTERS_MAX or any(
            len(pattern.encode()) > FILTER_BYTES_MAX for pattern in request.key_filters
        ):
            raise Refused(
                _wrong(f"There may be {FILTERS_MAX} key_filters of {FILTER_BYTES_MAX} bytes each")
            )

    async def _admit(self, topic: Topic, facts: ConsumerFacts) -> int:
        """Reserve a consumer's seat in its subscription; return its id, which is durable."""
        kind = SubscriptionType(facts.kind)
        subscription: Attachable
        is_reliable = self._topics.is_reliable(topic)
        names = topic.runtime.state.cursors if is_reliable else self._unreliable.names(topic.name)
        if facts.subscription not in names and len(names) >= SUBSCRIPTIONS_MAX:
            text = f"The topic {topic.name} has the maximum of {len(names)} subscriptions"
            raise Refused(Status(Code.RESOURCE_EXHAUSTED, text))
        if is_reliable:
            subscription = await self._deliveries.open(topic.name, facts.subscription, kind=kind)
        else:
            subscription = self._unreliable.open(topic.name, facts.subscription, kind=kind)
        identity = self._ids.find(facts)
        self._make_place(identity, facts, subscription.kind)
        # Reserved before the first await: no other consumer gets an Exclusive subscription.
        self._reserved[identity] = self._loop.time()
        self._dropped.discard(identity)
        stream = self._streams.get(identity)
        if stream is not None:
            stream.stop(Code.OK)
            self._dropped.discard(identity)
        try:
            await self._ids.put(facts)
        except FrazilError:
            self._reserved.pop(identity, None)
            raise
        self._expect(identity, facts, kind)
        return identity

    def _make_place(self, identity: int, facts: ConsumerFacts, kind: SubscriptionType) -> None:
        """See to it that a subscription can have this consumer.

        Raises:
            Refused: if it is Exclusive and another one has it, or it has as many as it may.
        """
        others = [
            each for each in self._ids.members(facts.topic, facts.subscription) if each != identity
        ]
        idle = [each for each in others if not self._has_place(each)]
        if kind is SubscriptionType.EXCLUSIVE and len(idle) < len(others):
            raise Refused(status("subscription_taken", topic=facts.topic, consumer=facts.name))
        if len(others) - len(idle) >= CONSUMERS_MAX:
            raise Refused(status("consumers_full", topic=facts.topic, consumers_max=CONSUMERS_MAX))
        for each in idle[: max(0, len(others) + 1 - CONSUMERS_MAX)]:
            self._forget(each)
        if self._ids.size_bytes > IDS_BYTES_MAX:
            self._forget_oldest(identity)
        found = self._unreliable.find(facts.topic, facts.subscription)
        if kind is SubscriptionType.EXCLUSIVE and found is not None:
            for each in idle:
                found.dismiss(each)

    def _forget_oldest(self, spared: int) -> None:
        for identity in self._ids.oldest():
            if self._ids.size_bytes <= IDS_BYTES_MAX:
                return
            if identity != spared and not self._has_place(identity):
                self._forget(identity)

    def _has_place(self, identity: int) -> bool:
        if identity in self._streams:
            return True
        sign_s = self._reserved.get(identity)
        return sign_s is not None and self._loop.time() - sign_s < RESERVED_S

    def _expect(self, identity: int, facts: ConsumerFacts, kind: SubscriptionType) -> None:
        """Let a topic without storage queue records until the stream opens."""
        topic = self._topic_of(facts)
        if topic is not None and not self._topics.is_reliable(topic):
            subscription = self._unreliable.open(facts.topic, facts.subscription, kind=kind)
            subscription.expect(identity, facts.name, facts.filters)

    # -- ReceiveMessages -------------------------------------------------------------------------

    async def _open_stream(
        self, call: Call, identity: int, facts: ConsumerFacts, topic: Topic
    ) -> None:
        current = self._streams.get(identity)
        if current is not None:
            wait_s = current.opened_s + TAKEOVER_AGE_S - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
        subscription = await self._subscription(topic, facts)
        if not call.is_open:
            return
        if self._is_closing:
            raise Refused(_CLOSING)
        if subscription is None:
            self._forget(identity)
            self._refuse_later(call, status("consumer_unknown", consumer_id=identity))
            return
        stream = ConsumerStream(
            call,
            subscription,
            self._encoder(topic.name),
            consumer_id=identity,
            name=facts.name,
            opened_s=self._loop.time(),
            on_end=self._stream_ended,
        )
        try:
            self._make_place(identity, facts, subscription.kind)
            stream.start(facts.filters)
        except Conflict:
            self._refuse_later(
                call, status("subscription_taken", topic=facts.topic, consumer=facts.name)
            )
            return
        except Refused as error:
            self._refuse_later(call, error.status)
            return
        self._streams[identity] = stream
        self._reserved.pop(identity, None)
        self._dropped.discard(identity)

    async def _subscription(self, topic: Topic, facts: ConsumerFacts) -> Attachable | None:
        if self._topics.is_reliable(topic):
            return await self._deliveries.existing(topic.name, facts.subscription)
        kind = SubscriptionType(facts.kind)
        return self._unreliable.open(topic.name, facts.subscription, kind=kind)

    def _encoder(self, topic: str) -> DeliveryEncoder:
        found = self._encoders.get(topic)
        if found is None:
            found = DeliveryEncoder(topic_name=topic, broker_addr=self._url)
            self._encoders[topic] = found
        return found

    def _stream_ended(self, stream: ConsumerStream, is_gone: bool) -> None:  # noqa: FBT001
        identity = stream.consumer_id
        if self._streams.get(identity) is stream:
            del self._streams[identity]
            self._dropped.add(identity)
        if is_gone:
            self._forget(identity)

    def _refuse_later(self, call: Call, status: Status) -> None:
        timer = self._loop.call_later(REFUSAL_DELAY_S, call.fail, *status)
        call.on_cancel = timer.cancel

    # -- acks that find no open subscription -----------------------------------------------------

    def _settle_later(
        self, call: Call, topic: str, name: str, settle: Settle, done: Callable[..., None]
    ) -> None:
        """Settle a record of a subscription that was not used since the start."""
        found = self._topics.find(checked_topic(topic))
        if found is None:
            done(NotFound("no such topic", topic=topic))
        elif not self._topics.is_reliable(found):
            done(None)
        else:
            start(call, self._settle_existing(found.name, name, settle, done))

    async def _settle_existing(
        self, topic: str, name: str, settle: Settle, done: Callable[..., None]
    ) -> None:
        try:
            subscription = await self._deliveries.existing(topic, name)
        except FrazilError as error:
            done(error)
            return
        if subscription is None:
            done(NotFound("no such subscription", topic=topic, subscription=name))
        else:
            settle(subscription)

    # -- inside ----------------------------------------------------------------------------------

    def _topic_of(self, facts: ConsumerFacts) -> Topic | None:
        """Return a consumer's topic, None if it was deleted or another topic has its name."""
        topic = self._topics.find(facts.topic)
        if topic is None or topic_uid(topic.runtime.state.spec) != facts.uid:
            return None
        return topic

    def _forget(self, identity: int) -> None:
        self._ids.forget(identity)
        self._reserved.pop(identity, None)
        self._dropped.discard(identity)


def _wrong(text: str) -> Status:
    return Status(Code.INVALID_ARGUMENT, text)


AckedPart = tuple["CallRun", list["Stream"], list[bytes], list[int]]
"""Acks of a run for one subscription: the run, its streams, their replies, acked offsets."""


def _end_acks(subscription: Subscription | None, part: AckedPart) -> None:
    """Settle the acks of a run for one subscription."""
    if subscription is not None and part[3]:
        subscription.ack_with(part[3], part, _answer_parts)


def _answer_parts(parts: list[AckedPart], error: FrazilError | None) -> None:
    """Answer the runs of acks of one turn."""
    for run, places, replies, _offsets in parts:
        if error is None:
            run.ok_all(places, replies)
        else:
            run.fail_all(places, *status_of(error, ACKING))


def _answer_acks(calls: list[tuple[Call, int]], error: FrazilError | None) -> None:
    """Answer the acks of one turn."""
    if error is None:
        for call, request_id in calls:
            call.ok(request_id_reply(request_id))
    else:
        for call, request_id in calls:
            _settle(call, request_id, ACKING, error)


def _settle(call: Call, request_id: int, wording: Wording, error: FrazilError | None) -> None:
    if error is None:
        call.ok(request_id_reply(request_id))
    else:
        call.fail(*status_of(error, wording))
