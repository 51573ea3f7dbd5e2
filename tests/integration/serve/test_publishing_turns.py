"""What a client sends in one go is written in one go."""

from __future__ import annotations

import asyncio

import pytest

import frazil
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.proto.danube_pb2 import (
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
)
from frazil.serve.danube.topics import Topics

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


def test_records_of_one_turn_are_one_group(tmp_path):
    """What a client sends at once is written and synced at once, and each record is answered."""

    async def scene(db):
        topics = Topics(db)
        producers = Producers(topics, producers_max=10)
        request = ProducerRequest(
            topic_name="/default/turn", producer_name="p", dispatch_strategy=1
        )
        made = ProducerResponse.FromString(
            await producers.create(None, request.SerializeToString())
        )
        journal = db.main.journal
        before = journal.group_count
        calls = [Answered() for _ in range(64)]
        for number, call in enumerate(calls):
            message = StreamMessage(
                request_id=number + 1,
                msg_id=MsgID(producer_id=made.producer_id, topic_name="/default/turn"),
                payload=b"%d" % number,
                producer_name="p",
            )
            producers.send(call, message.SerializeToString())
        async with asyncio.timeout(60):
            while not all(call.answer for call in calls):  # noqa: ASYNC110 - nobody tells when
                await asyncio.sleep(0.01)
        assert all(call.answer[0] == "ok" for call in calls)
        assert journal.group_count - before == 1
        return [row["payload"] for batch in db.topic("turn").read() for row in batch.records()]

    with frazil.open(tmp_path, **SETTINGS) as db:
        assert asyncio.run(scene(db)) == [b"%d" % number for number in range(64)]
