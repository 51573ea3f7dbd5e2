"""Producers: created by name, identified by an id; a reply follows the requested durability.

A producer's id is derived from its topic and its name, and each message names both. So the broker
recognises an id after a restart, and stores nothing about producers.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Final

from frazil.errors import FrazilError, InvalidRequest
from frazil.model import topic_uid
from frazil.schema import check_message
from frazil.serve.danube.messages import (
    parse_request,
    parse_send,
    request_id_reply,
)
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto.danube_pb2 import (
    DispatchStrategy,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
)
from frazil.serve.danube.publishing import Publisher, Publishing, RunPart, check_record
from frazil.serve.danube.statuses import CREATING_PRODUCER, PUBLISHING, Refused, status, status_of
from frazil.topic import MESSAGE_OVERHEAD_BYTES, NotStored

if TYPE_CHECKING:
    from frazil.engine import Topic
    from frazil.schema import Message
    from frazil.serve.danube.registry_service import Schemas
    from frazil.serve.danube.topics import Topics
    from frazil.serve.danube.unreliable import Unreliable
    from frazil.serve.grpc.calls import Call, CallRun

__all__ = ["PRODUCERS_MAX", "Producers", "producer_id"]

PRODUCERS_MAX: Final = 1_000
"""Of one topic."""
IDLE_S: Final = 60.0
"""A producer without a message or health check for so long may be removed."""
TARGETS_SWEPT_MIN: Final = 1_000
"""From so many topics on, deleted ones are searched when the number has doubled."""
_ID_BITS: Final = 53
"""Ids are positive in every client's language, and exact in those that have only doubles."""


def producer_id(uid: str, topic: str, name: str) -> int:
    """Return the id of a topic's producer: the same one at all times, never 0.

    The parts of a topic share one `uid`, so the topic's name counts, too.
    """
    digest = hashlib.sha256(f"{uid}{topic}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % ((1 << _ID_BITS) - 1) + 1


class _Target:
    """A topic with producers, and when each of them was last heard of."""

    __slots__ = ("is_stored", "name", "runtime", "seen", "topic", "uid")

    def __init__(self, topic: Topic, *, is_stored: bool) -> None:
        self.topic = topic
        self.name = topic.name
        self.uid = topic_uid(topic.runtime.state.spec)
        self.runtime = topic.runtime
        self.is_stored = is_stored
        self.seen: dict[int, float] = {}


class Producers:
    """The producers of a broker. All methods belong to the event loop's thread."""

    def __init__(self, topics: Topics, *, schemas: Schemas, unreliable: Unreliable) -> None:
        self._topics = topics
        self._schemas = schemas
        self._store = schemas.store
        self._unreliable = unreliable
        self._loop = asyncio.get_running_loop()
        self._known: dict[int, _Target] = {}
        self._targets: dict[str, _Target] = {}
        self._targets_swept = 0
        self._publisher = Publisher(self._loop)
        topics.on_released = self.forget_topic

    # -- calls -----------------------------------------------------------------------------------

    async def create(self, _call: Call, message: bytes) -> bytes:
        """Answer CreateProducer: create the topic if needed; the id is derived from the name."""
        request = parse_request(ProducerRequest, message)
        name = checked_topic(request.topic_name)
        if request.dispatch_strategy not in DispatchStrategy.values():
            raise Refused(status("strategy_unknown", strategy=request.dispatch_strategy))
        has_schema = request.HasField("schema_ref")
        if has_schema:
            # Before the topic is made, or it would stay after a refusal.
            self._schemas.check_reference(name, request.schema_ref)
        is_reliable = request.dispatch_strategy == DispatchStrategy.Reliable
        topic = await self._topics.for_producer(name, is_reliable=is_reliable)
        if has_schema:
            await self._schemas.take_reference(topic.name, request.schema_ref)
        return ProducerResponse(
            request_id=request.request_id,
            producer_id=self._admit(topic, request.producer_name),
            producer_name=request.producer_name,
        ).SerializeToString()

    def send(self, call: Call, message: bytes) -> None:
        """Answer SendMessage when the record is written and synced."""
        request_id, identity, record = parse_send(message)
        reply = request_id_reply(request_id)
        target = self._plain_target(identity)
        try:
            if target is not None:
                # This is the way of nearly all records.
                self._publisher.submit(target.runtime, record, call, reply)
            else:
                target = self._known.get(identity) or self._recognised(identity, message)
                self._send_special(target, identity, record, Publishing(call, self._loop, reply))
        except FrazilError as error:
            call.fail(*status_of(error, PUBLISHING))

    def _send_special(
        self, target: _Target, identity: int, record: Message, publishing: Publishing
    ) -> None:
        """Publish a record to a topic with a schema, without storage, or that refuses for now."""
        target.seen[identity] = self._loop.time()
        if target.name in self._store.registry.topics:
            self._send_checked(target, record, publishing)
        else:
            self._publish(target, record, publishing)

    def send_all(self, run: CallRun) -> None:
        """Answer the SendMessages of one run, as `send` does each."""
        streams, part, identity_before = run.streams, None, None
        for at, message in enumerate(run.messages):
            try:
                request_id, identity, record = parse_send(message)
                if identity != identity_before:
                    # Mostly the producers of one connection send to one topic, or to few.
                    target = self._plain_target(identity)
                    if part is None or target is None or target.runtime is not part.runtime:
                        part = self._end_part(part, run, target)
                    identity_before = identity
                size = 0
                if part is not None:
                    size = check_message(record, part.limits, part.now_us)
            except (Refused, InvalidRequest):
                self._end_part(part, run, None)
                part = identity_before = None
                run.apart(at)
                continue
            if part is None:
                run.apart(at)
                continue
            size += MESSAGE_OVERHEAD_BYTES
            if part.records and part.size + size > part.bytes_max:
                self._publisher.submit_run(part)
                part = RunPart(run, part.runtime)
            part.size += size
            part.records.append(record)
            part.streams.append(streams[at])
            part.replies.append(request_id_reply(request_id))
        self._end_part(part, run, None)

    def _plain_target(self, identity: int) -> _Target | None:
        """Return where the records of a producer go, if nothing about it is special."""
        target = self._known.get(identity)
        if target is None or not target.is_stored or not target.runtime.is_message:
            return None
        runtime = target.runtime
        if runtime.refusal is not None or runtime.pressure.level:
            return None
        if target.name in self._store.registry.topics:
            return None
        target.seen[identity] = self._loop.time()
        return target

    def _end_part(
        self, part: RunPart | None, run: CallRun, target: _Target | None
    ) -> RunPart | None:
        """Write the records of a run so far; return the part for those that follow."""
        if part is not None and part.records:
            self._publisher.submit_run(part)
        return None if target is None else RunPart(run, target.runtime)

    # -- what others ask -------------------------------------------------------------------------

    def is_known(self, identity: int) -> bool:
        """Return whether the id is known and its topic exists; this keeps the producer alive."""
        target = self._known.get(identity)
        if target is None:
            return False
        if not self._topics.is_current(target.topic):
            self._drop(target)
            return False
        target.seen[identity] = self._loop.time()
        return True

    def producer_topic(self, identity: int) -> str | None:
        """Return the full name of a producer's topic, None if there is no such producer."""
        target = self._known.get(identity)
        return None if target is None else target.name

    def recognise(self, identity: int, *, topic: str, producer: str) -> str | None:
        """Return the full name of the topic if the id is that of a producer of it, known or not.

        The id is the proof: it is derived from the topic's and the producer's name.
        """
        found = self._find(topic)
        if found is None or _identity(found, producer) != identity:
            return None
        return found.name

    def forget_topic(self, name: str) -> None:
        """Forget the producers of a topic that was deleted or closed.

        Those of a topic that is still there are recognised when they send again.
        """
        target = self._targets.get(name)
        if target is not None:
            self._drop(target)

    def stats(self) -> dict[str, int]:
        """Return how many producers there are, and of how many topics."""
        return {"producers": len(self._known), "topics": len(self._targets)}

    # -- producers -------------------------------------------------------------------------------

    def _admit(self, topic: Topic, name: str) -> int:
        bytes_max = topic.runtime.limits.key_bytes_max
        if len(name.encode()) > bytes_max:
            error = InvalidRequest("the producer's name is too long", bytes_max=bytes_max)
            raise Refused(status_of(error, CREATING_PRODUCER))
        target = self._targets.get(topic.name)
        if target is None or target.runtime is not topic.runtime:
            if target is not None:
                self._drop(target)
            target = _Target(topic, is_stored=self._topics.is_reliable(topic))
            self._sweep()
            self._targets[target.name] = target
        identity = producer_id(target.uid, target.name, name)
        holder = self._known.get(identity)
        if holder is not None and holder is not target:
            error = InvalidRequest("a producer of another topic has its id, choose another name")
            raise Refused(status_of(error, CREATING_PRODUCER))
        if holder is None and len(target.seen) >= PRODUCERS_MAX:
            self._make_room(target)
        self._known[identity] = target
        target.seen[identity] = self._loop.time()
        return identity

    def _make_room(self, target: _Target) -> None:
        """Forget the inactive producers of a topic; clients do not announce that they leave."""
        last_s = self._loop.time() - IDLE_S
        for identity in [one for one, seen_s in target.seen.items() if seen_s < last_s]:
            del target.seen[identity], self._known[identity]
        if len(target.seen) >= PRODUCERS_MAX:
            raise Refused(status("producers_full", topic=target.name, producers_max=PRODUCERS_MAX))

    def _sweep(self) -> None:
        """Forget deleted topics whose producers never sent again."""
        if len(self._targets) >= max(TARGETS_SWEPT_MIN, 2 * self._targets_swept):
            for target in list(self._targets.values()):
                if target.runtime.refusal is not None and not self._topics.is_current(target.topic):
                    self._drop(target)
            self._targets_swept = len(self._targets)

    def _drop(self, target: _Target) -> None:
        for identity in target.seen:
            del self._known[identity]
        target.seen.clear()
        if self._targets.get(target.name) is target:
            del self._targets[target.name]

    def _recognised(self, identity: int, message: bytes) -> _Target:
        """Return the topic of a producer that an earlier run of the broker created."""
        sent = StreamMessage.FromString(message)
        topic = self._find(sent.msg_id.topic_name)
        if topic is None or _identity(topic, sent.producer_name) != identity:
            raise Refused(status("producer_unknown", producer_id=identity))
        return self._known[self._admit(topic, sent.producer_name)]

    def _find(self, name: str) -> Topic | None:
        """Return the topic of a name sent with an id, None if the name is invalid."""
        try:
            checked = checked_topic(name)
        except Refused:
            return None
        return self._topics.find(checked)

    # -- records ---------------------------------------------------------------------------------

    def _publish(self, target: _Target, record: Message, publishing: Publishing) -> None:
        runtime = target.runtime
        if not target.is_stored:
            if not isinstance(runtime.refusal, NotStored):
                self._check_current(target, record)
            check_record(runtime, record)
            publishing.set_result(None)
            self._unreliable.publish(target.topic, record)
            return
        if runtime.refusal is not None or runtime.pressure.level:
            self._check_current(target, record)
            self._publisher.send_slowly(runtime, record, publishing)
            return
        self._publisher.submit(runtime, record, publishing.call, publishing.reply)

    def _send_checked(self, target: _Target, record: Message, publishing: Publishing) -> None:
        """Publish a record if the topic's schema lets it."""
        # The size is checked before the schema: the error of a large record names its size.
        check_record(target.runtime, record)

        def go_on(refusal: Exception | None) -> None:
            if publishing.done():
                return
            try:
                if refusal is not None:
                    raise refusal
                self._publish(target, record, publishing)
            except (FrazilError, Refused) as error:
                publishing.set_exception(error)

        self._schemas.checks.check(target.name, record, go_on)

    def _check_current(self, target: _Target, record: Message) -> None:
        """Refuse a record of a deleted topic as one of an unknown producer."""
        if not self._topics.is_current(target.topic):
            self._drop(target)
            raise Refused(status("producer_unknown", producer_id=record.producer_id or 0))


def _identity(topic: Topic, name: str) -> int:
    return producer_id(topic_uid(topic.runtime.state.spec), topic.name, name)
