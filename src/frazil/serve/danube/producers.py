"""Producers: created by name, known by an id, each record answered when it is as safe as asked.

A producer's id is made of its topic and its name, so a client that goes on after a restart of the
broker, with the id it has, is recognised: its message names both. Nothing about it is stored.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from frazil.engine.stops import pass_stop_async
from frazil.errors import FrazilError
from frazil.model import topic_uid
from frazil.serve.danube.messages import parse_request, parse_send, request_id_reply
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto.danube_pb2 import ProducerRequest, ProducerResponse, StreamMessage
from frazil.serve.danube.statuses import (
    PUBLISHING,
    Refused,
    producer_unknown,
    producers_full,
    status_of,
)

if TYPE_CHECKING:
    from frazil.engine.runtime import TopicRuntime
    from frazil.engine.topic import Topic
    from frazil.ingest.messages import Message
    from frazil.log.codec import Entry
    from frazil.model import Ack
    from frazil.serve.danube.topics import Topics
    from frazil.serve.grpc.calls import Call

__all__ = ["Producers", "producer_id"]

_ID_BITS: Final = 53
"""Ids are positive in every client's language, and exact in those that have only doubles."""


def producer_id(uid: str, name: str) -> int:
    """Return the id of a topic's producer: the same one at all times, never 0."""
    digest = hashlib.sha256(f"{uid}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % ((1 << _ID_BITS) - 1) + 1


class _Publishing:
    """Waits for a record's commit in a call's place, as a future would, at less cost."""

    __slots__ = ("_call", "_loop", "_reply")

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop, reply: bytes) -> None:
        self._call = call
        self._loop = loop
        self._reply = reply

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return not self._call.is_open

    def set_result(self, _ack: Ack) -> None:
        self._call.ok(self._reply)

    def set_exception(self, error: BaseException) -> None:
        self._call.fail(*status_of(error, PUBLISHING))


class Producers:
    """The producers of a broker. All methods belong to the event loop's thread."""

    def __init__(self, topics: Topics, *, producers_max: int) -> None:
        self._topics = topics
        self._producers_max = producers_max
        self._loop = asyncio.get_running_loop()
        self._known: dict[int, Topic] = {}
        self._counts: dict[str, int] = {}
        self._slow: set[asyncio.Task[None]] = set()

    async def create(self, _call: Call, message: bytes) -> bytes:
        """Answer CreateProducer: the topic is made if need be, the id is the name's own."""
        request = parse_request(ProducerRequest, message)
        name = checked_topic(request.topic_name)
        topic = await self._topics.for_producer(name, is_reliable=bool(request.dispatch_strategy))
        identity = self._admit(topic, request.producer_name)
        return ProducerResponse(
            request_id=request.request_id,
            producer_id=identity,
            producer_name=request.producer_name,
        ).SerializeToString()

    def send(self, call: Call, message: bytes) -> None:
        """Answer SendMessage when the record is written and synced."""
        request_id, identity, record = parse_send(message)
        topic = self._known.get(identity)
        if topic is None:
            topic = self._recognise(identity, message)
        runtime = topic.runtime
        publishing = _Publishing(call, self._loop, request_id_reply(request_id))
        try:
            if runtime.refusal is not None or runtime.pressure.level:
                self._send_slowly(runtime, record, publishing)
                return
            entry = _entry(runtime, record, publishing)
            if not runtime.lane.queue.submit(entry):
                self._send_slowly(runtime, record, publishing)
        except FrazilError as error:
            publishing.set_exception(error)

    def is_known(self, identity: int) -> bool:
        """Tell whether a producer has this id, and its topic is there."""
        topic = self._known.get(identity)
        return topic is not None and self._topics.is_current(topic)

    def _admit(self, topic: Topic, name: str) -> int:
        uid = topic_uid(topic.runtime.state.spec)
        identity = producer_id(uid, name)
        if identity not in self._known:
            count = self._counts.get(uid, 0)
            if count >= self._producers_max:
                raise Refused(producers_full(topic.name, producers_max=self._producers_max))
            self._counts[uid] = count + 1
            self._known[identity] = topic
        return identity

    def _recognise(self, identity: int, message: bytes) -> Topic:
        """Return the topic of a producer that an earlier run of the broker created."""
        sent = StreamMessage.FromString(message)
        topic = self._topics.find(sent.msg_id.topic_name)
        if topic is not None:
            uid = topic_uid(topic.runtime.state.spec)
            if producer_id(uid, sent.producer_name) == identity:
                self._admit(topic, sent.producer_name)
                return topic
        raise Refused(producer_unknown(identity))

    def _send_slowly(self, runtime: TopicRuntime, record: Message, publishing: _Publishing) -> None:
        """Wait, without holding up anybody else, for what keeps the topic from taking a record."""
        task = self._loop.create_task(_wait_and_send(runtime, record, publishing))
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)


async def _wait_and_send(runtime: TopicRuntime, record: Message, publishing: _Publishing) -> None:
    queue = runtime.lane.queue
    loop = asyncio.get_running_loop()
    try:
        if runtime.refusal is not None:
            await pass_stop_async(runtime)
        if runtime.pressure.level:
            await runtime.pressure.admit_async()
        entry = _entry(runtime, record, publishing)
        deadline = loop.time() + queue.wait_s
        while not queue.submit(entry):
            room = asyncio.Event()
            queue.on_space(partial(loop.call_soon_threadsafe, room.set))
            if queue.submit(entry):
                return
            try:
                await asyncio.wait_for(room.wait(), max(deadline - loop.time(), 0))
            except TimeoutError:
                raise queue.overloaded() from None
    except FrazilError as error:
        publishing.set_exception(error)


def _entry(runtime: TopicRuntime, record: Message, publishing: Any) -> Entry:
    codec, data, count, size = runtime.prepare(record, {})
    return (runtime.state, codec, data, count, size, publishing, None)
