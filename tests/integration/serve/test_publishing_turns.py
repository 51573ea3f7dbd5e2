"""What a client sends in one go is written in one go."""

from __future__ import annotations

import asyncio

import pytest

import frazil
from frazil.errors import InvalidRequest
from frazil.serve.danube.messages import request_id_reply
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.proto.danube_pb2 import (
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
)
from frazil.serve.danube.topics import Topics
from frazil.serve.grpc.codec import Code
from frazil.topic import MessageCodec

pytestmark = pytest.mark.integration

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}


class Answered:
    """A call that keeps its answer."""

    is_open = True

    def __init__(self):
        self.answer = None

    def ok(self, reply):
        """Take the reply."""
        self.answer = ("ok", reply)

    def fail(self, code, text):
        """Take the refusal."""
        self.answer = (code, text)


class Picky(MessageCodec):
    """A codec that cannot encode one payload, which the checks before it let pass."""

    def encode(self, records):
        """Refuse all of them if one is the bad one."""
        if any(record.payload == b"bad" for record in records):
            raise InvalidRequest("this one cannot be written")
        return super().encode(records)


class Sender:
    """A producer of each of some topics, and what became of its calls."""

    def __init__(self, db):
        self.db = db
        self.calls = []
        self.producers = Producers(Topics(db))
        self.ids = {}

    async def create(self, *topics):
        """Make a producer of each topic."""
        for topic in topics:
            request = ProducerRequest(topic_name=topic, producer_name="p", dispatch_strategy=1)
            answer = await self.producers.create(None, request.SerializeToString())
            self.ids[topic] = ProducerResponse.FromString(answer).producer_id

    def send(self, topic, payload):
        """Send one record in this turn of the loop."""
        call = Answered()
        self.calls.append(call)
        message = StreamMessage(
            request_id=len(self.calls),
            msg_id=MsgID(producer_id=self.ids[topic], topic_name=topic),
            payload=payload,
            producer_name="p",
        )
        self.producers.send(call, message.SerializeToString())

    async def answers(self):
        """Wait for all answers; return them."""
        async with asyncio.timeout(60):
            while not all(call.answer for call in self.calls):  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.01)
        return [call.answer for call in self.calls]

    def payloads(self, topic):
        """Return what the topic holds."""
        rows = [row for batch in self.db.topic(topic).read() for row in batch.records()]
        return [row["payload"] for row in rows]


def run(tmp_path, scene, **settings):
    async def begin(db):
        await scene(Sender(db))

    with frazil.open(tmp_path, **SETTINGS, **settings) as db:
        asyncio.run(begin(db))


def test_records_of_one_turn_are_one_group(tmp_path):
    """What a client sends at once, to several topics, is one group, and each is answered."""

    async def scene(sender):
        await sender.create("/default/turn", "/default/other")
        journal = sender.db.log.journal
        before = journal.group_count
        for number in range(64):
            sender.send("/default/turn", b"%d" % number)
        sender.send("/default/other", b"alone")
        answers = await sender.answers()
        assert answers == [("ok", request_id_reply(number + 1)) for number in range(65)]
        assert journal.group_count - before == 1
        assert sender.payloads("turn") == [b"%d" % number for number in range(64)]
        assert sender.payloads("other") == [b"alone"]

    run(tmp_path, scene)


def test_a_record_that_cannot_be_written_is_refused_alone(tmp_path):
    """The others of its turn are written, once each, and answered."""

    async def scene(sender):
        await sender.create("/default/turn")
        codec = sender.db.topic("turn").runtime.codec
        codec.messages = Picky(32, codec.options)
        for payload in (b"a", b"bad", b"b"):
            sender.send("/default/turn", payload)
        kinds = [kind for kind, _ in await sender.answers()]
        assert kinds == ["ok", Code.PERMISSION_DENIED, "ok"]
        assert sorted(sender.payloads("turn")) == [b"a", b"b"]

    run(tmp_path, scene)


def test_a_turn_larger_than_a_write_is_several_frames(tmp_path):
    """A frame has no more records than a write may have bytes, and the order stays."""

    async def scene(sender):
        await sender.create("/default/turn")
        payloads = [bytes([number]) * 600_000 for number in range(8)]
        before = sender.db.log.journal.state.lsn
        for payload in payloads:
            sender.send("/default/turn", payload)
        assert {kind for kind, _ in await sender.answers()} == {"ok"}
        assert sender.payloads("turn") == payloads
        assert sender.db.log.journal.state.lsn - before == len(payloads) // 2

    limits = {"log.write_bytes_max": 1_400_000, "topics.message_bytes_max": 1_000_000}
    run(tmp_path, scene, **limits)
