"""SendMessages and Acks that come together are answered as those that come one by one."""

from __future__ import annotations

import asyncio
import time

import pytest

import frazil
from frazil.errors import InvalidRequest
from frazil.registry import NewSchema
from frazil.serve.danube.messages import request_id_reply
from frazil.serve.danube.proto.danube_pb2 import (
    AckRequest,
    ConsumerRequest,
    ConsumerResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    ReceiveRequest,
    StreamMessage,
)
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.calls import Calls, Counters
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Router
from frazil.serve.h2 import frames as f
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.limits import ServerLimits
from frazil.topic import MessageCodec
from tests.unit.serve.h2.peer import REQUEST, Peer

pytestmark = pytest.mark.integration

SETTINGS = {
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
    "lake.default": False,
    "topics.message_bytes_max": 10_000,
}
SEND = "/danube.ProducerService/SendMessage"
ACK = "/danube.ConsumerService/Ack"
CREATE = "/danube.ProducerService/CreateProducer"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
SUBSCRIBE = "/danube.ConsumerService/Subscribe"


class Picky(MessageCodec):
    """A codec that cannot encode one payload, which the checks before it let pass."""

    def encode(self, records):
        """Refuse all of them if one is the bad one."""
        if any(record.payload == b"bad" for record in records):
            raise InvalidRequest("this one cannot be written")
        return super().encode(records)


class Wire(Peer):
    """A client whose calls reach the broker's services together or one by one."""

    def __init__(self, db, services, *, together):
        super().__init__(greet=False)
        self.db = db
        self.together = together
        self.services = services
        self.sid = -1
        self.known = {}
        calls = Calls(Router(services.data_routes()), Counters(), peer="here:1")
        self.calls = calls
        self.connection = Connection(ServerLimits(), calls, lambda: None)
        calls.sender = self.sender = self.connection.sender
        self.send(f.PREFACE, f.settings({}))

    async def ask(self, path, requests):
        """Make calls; return the code, the text and the reply of each."""
        fields = [*REQUEST]
        fields[2] = (":path", path)
        sids, portions = [], []
        for request in requests:
            self.sid += 2
            sids.append(self.sid)
            portions.append(self.call(self.sid, request, fields))
        said = []
        for portion in [b"".join(portions)] if self.together else portions:
            self.connection.receive(portion)
            self.calls.end_run()
            said += self.take()
        found = {}
        async with asyncio.timeout(60):
            while True:
                for sid, (lists, data, _) in self.answers(said).items():
                    before = found.get(sid, ([], b""))
                    found[sid] = (before[0] + lists, before[1] + data)
                if all("grpc-status" in found.get(sid, ([{}],))[0][-1] for sid in sids):
                    break
                await asyncio.sleep(0.005)
                said = self.take()
        ends = [(found[sid][0][-1], found[sid][1]) for sid in sids]
        return [
            (Code(int(end["grpc-status"])), end.get("grpc-message", ""), data[5:])
            for end, data in ends
        ]

    async def producer(self, topic, *, reliable=True):
        """Make a producer of a topic; return its id."""
        request = ProducerRequest(
            topic_name=topic, producer_name="p", dispatch_strategy=int(reliable)
        )
        ((_, _, reply),) = await self.ask(CREATE, [request.SerializeToString()])
        self.known[topic] = ProducerResponse.FromString(reply).producer_id

    async def consumer(self, topic, name):
        """Make a consumer of a topic; return its id."""
        request = ConsumerRequest(topic_name=topic, consumer_name=name, subscription=name)
        ((_, _, reply),) = await self.ask(SUBSCRIBE, [request.SerializeToString()])
        return ConsumerResponse.FromString(reply).consumer_id

    async def receive(self, consumer_id):
        """Open a consumer's stream, which stays open."""
        self.sid += 2
        fields = [*REQUEST]
        fields[2] = (":path", RECEIVE)
        request = ReceiveRequest(request_id=1, consumer_id=consumer_id)
        self.answers(self.send(self.call(self.sid, request.SerializeToString(), fields)))
        await asyncio.sleep(0)

    async def delivered(self, topic, names, count):
        """Wait until so many records are with the consumers of each subscription."""
        find = self.services.deliveries.find
        async with asyncio.timeout(60):
            while any(find(topic, name).status().unacked < count for name in names):
                self.answers(self.take())
                await asyncio.sleep(0.005)

    def message(self, number, topic, payload=b"x", **fields):
        """Return a SendMessage of a topic's producer."""
        identity = MsgID(producer_id=self.known.get(topic, 12345), topic_name=topic)
        sent = StreamMessage(
            request_id=number, msg_id=identity, payload=payload, producer_name="p", **fields
        )
        return sent.SerializeToString()

    def payloads(self, topic):
        """Return what the topic holds."""
        rows = [row for batch in self.db.topic(topic).read() for row in batch.records()]
        return [row["payload"] for row in rows]


def serve(tmp_path, scene, **settings):
    """Return what a scene gives with calls one by one, and with calls together."""
    found = []
    for together in (False, True):

        async def begin(db, together=together):
            addresses = {"advertised_url": "http://127.0.0.1:6650"}
            services = Services(db, addresses=addresses)
            return await scene(Wire(db, services, together=together))

        with frazil.open(tmp_path / str(together), **{**SETTINGS, **settings}) as db:
            found.append(asyncio.run(begin(db)))
    return found


def test_records_are_published_and_refused_as_one_by_one(tmp_path):
    """Codes, texts, replies and what the topics hold are the same, whatever is among them."""
    # The refusal tells it, so that it must be the same for both.
    far_ms = int(time.time() * 1000) + 10 * 365 * 86_400_000

    async def scene(wire):
        for topic, is_reliable in (
            ("/default/a", True),
            ("/default/b", True),
            ("/default/u", False),
        ):
            await wire.producer(topic, reliable=is_reliable)
        requests = [
            *[wire.message(number, "/default/a", b"%d" % number) for number in range(5)],
            wire.message(5, "/default/b", b"b1", routing_key="k", attributes={"n": "v"}),
            wire.message(6, "/default/a", bytes(12_000)),
            wire.message(7, "/default/a", b"5", publish_time=1_700_000_000_000),
            b"\xff\xff\xff",
            wire.message(9, "/default/nobody"),
            wire.message(10, "/default/a", b"6", publish_time=far_ms),
            wire.message(11, "/default/u", b"fleeting"),
            StreamMessage(request_id=12, payload=b"without an id").SerializeToString(),
            wire.message(1 << 40, "/default/b", b"b2", schema_id=3, schema_version=1),
            wire.message(14, "/default/a", b"7"),
        ]
        answers = await wire.ask(SEND, requests)
        held = (wire.payloads("a"), wire.payloads("b"), wire.payloads("u"))
        return answers, held

    (answers, held), together = serve(tmp_path, scene)
    assert together == (answers, held)
    codes = [code for code, _, _ in answers]
    assert [at for at, code in enumerate(codes) if code is not Code.OK] == [6, 8, 9, 10, 12]
    assert answers[0] == (Code.OK, "", b"")
    assert answers[13] == (Code.OK, "", request_id_reply(1 << 40))
    assert held == ([b"0", b"1", b"2", b"3", b"4", b"5", b"7"], [b"b1", b"b2"], [])


def test_a_run_to_a_topic_that_is_gone_is_refused(tmp_path):
    """Its producers are unknown from then on, to all calls alike, and the other topic is served."""

    async def scene(wire):
        for topic in ("/default/a", "/default/b"):
            await wire.producer(topic)
        wire.db.delete_topic("a")
        topics = ("/default/a", "/default/b", "/default/a", "/default/a", "/default/b")
        requests = [wire.message(at, topic, b"%d" % at) for at, topic in enumerate(topics)]
        answers = await wire.ask(SEND, requests)
        known = str(wire.known["/default/a"])
        return [(code, text.replace(known, "")) for code, text, _ in answers], wire.payloads("b")

    alone, together = serve(tmp_path, scene)
    codes = [code for code, _ in alone[0]]
    assert together == alone
    assert [code is Code.OK for code in codes] == [False, True, False, False, True]
    assert alone[1] == [b"1", b"4"]


def test_records_of_one_producer_keep_their_order(tmp_path):
    """Large ones among small ones, more than one write takes: as they were sent."""

    async def scene(wire):
        await wire.producer("/default/a")
        payloads = [b"%d-" % at + bytes(9_000 if at % 3 else 0) for at in range(300)]
        requests = [wire.message(at, "/default/a", each) for at, each in enumerate(payloads)]
        answers = await wire.ask(SEND, requests)
        assert {code for code, _, _ in answers} == {Code.OK}
        assert wire.payloads("a") == payloads
        return len(answers)

    assert serve(tmp_path, scene) == [300, 300]


def test_records_of_one_turn_are_one_group(tmp_path):
    """What a client sends at once, to several topics, is written and synced together."""

    async def scene(wire):
        await wire.producer("/default/a")
        await wire.producer("/default/b")
        before = wire.db.log.journal.group_count
        requests = [wire.message(at, "/default/a", b"%d" % at) for at in range(64)]
        await wire.ask(SEND, [*requests, wire.message(64, "/default/b", b"alone")])
        return wire.db.log.journal.group_count - before

    assert serve(tmp_path, scene) == [1, 1]


def test_a_run_that_is_larger_than_one_write_becomes_several(tmp_path):
    """No frame is larger than frames may be, and none of the records is left out."""
    write_bytes_max = 4096

    async def scene(wire):
        await wire.producer("/default/a")
        payloads = [bytes(1_000 if at % 3 else 10) for at in range(60)]
        requests = [wire.message(at, "/default/a", each) for at, each in enumerate(payloads)]
        answers = await wire.ask(SEND, requests)
        assert {code for code, _, _ in answers} == {Code.OK}
        assert wire.payloads("a") == payloads
        return max(wire.db.topic("a").runtime.state.index.lengths)

    settings = {
        "log.write_bytes_max": write_bytes_max,
        "log.segment_bytes_max": 2 << 20,
        "topics.message_bytes_max": 2_000,
    }
    for longest in serve(tmp_path, scene, **settings):
        # With the frame's own head.
        assert longest < write_bytes_max + 512


def test_records_of_a_run_are_checked_against_the_schema(tmp_path):
    """What the topic's schema refuses is not written, in whatever company it comes."""

    async def scene(wire):
        for topic in ("/default/a", "/default/b"):
            await wire.producer(topic)
        store = wire.services.schemas.store
        await store.register(NewSchema(subject="s", type="number", definition=b"", now=1))
        await store.change(
            lambda registry: registry.configure_topic(
                "/default/a", "s", "enforce", check_payload=True
            )
        )
        payloads = (b"7", b"no number", b"8")
        requests = [wire.message(0, "/default/b", b"b"), wire.message(1, "/default/a", b"9")]
        requests += [wire.message(2, "/default/a", each, schema_id=1) for each in payloads]
        answers = await wire.ask(SEND, requests)
        return answers, wire.payloads("a"), wire.payloads("b")

    alone, together = serve(tmp_path, scene)
    assert together == alone
    assert [code is Code.OK for code, _, _ in alone[0]] == [True, False, True, False, True]
    assert alone[1:] == ([b"7", b"8"], [b"b"])


def test_a_run_with_a_record_that_cannot_be_written(tmp_path):
    """That one is refused, the others are written."""

    async def scene(wire):
        await wire.producer("/default/a")
        codec = wire.db.topic("a").runtime.codec
        codec.messages = Picky(32, codec.options)
        requests = [wire.message(1, "/default/a", each) for each in (b"a", b"bad", b"b")]
        answers = await wire.ask(SEND, requests)
        return [code for code, _, _ in answers], sorted(wire.payloads("a"))

    codes = [Code.OK, Code.PERMISSION_DENIED, Code.OK]
    assert serve(tmp_path, scene) == [(codes, [b"a", b"b"])] * 2


def test_acks_settle_and_are_refused_as_one_by_one(tmp_path):
    """Answers and cursors are the same, whatever is among them; nothing acked comes again."""

    async def scene(wire):
        topic = "/default/a"
        await wire.producer(topic)
        requests = []
        for name in ("one", "two"):
            identity = await wire.consumer(topic, name)
            await wire.receive(identity)
        sent = await wire.ask(SEND, [wire.message(at, topic, b"%d" % at) for at in range(10)])
        assert {code for code, _, _ in sent} == {Code.OK}
        await wire.delivered(topic, ("one", "two"), 10)
        for at in range(5):
            requests.append(ack(at, topic, "one", at))
            requests.append(ack(at, topic, "two", 9 - at))
        requests += [
            b"\xff\xff",
            AckRequest(request_id=9, subscription_name="one").SerializeToString(),
            ack(31, topic, "nobody", 3),
            ack(32, "/default/none", "one", 3),
            ack(33, topic, "one", 3),
            ack(1 << 40, topic, "one", 7),
            ack(35, topic, "one", 999),
        ]
        answers = await wire.ask(ACK, requests)
        cursors = [wire.services.deliveries.find(topic, name) for name in ("one", "two")]
        facts = [each.status() for each in cursors]
        progress = [(s.cursor.acked_below, s.cursor.acked_above, s.unacked) for s in facts]
        return answers, progress

    (answers, cursors), together = serve(tmp_path, scene)
    assert together == (answers, cursors)
    assert cursors == [(5, 1, 4), (0, 5, 5)]
    assert [code for code, _, _ in answers[:10]] == [Code.OK] * 10
    refused = [at for at, (code, _, _) in enumerate(answers) if code is not Code.OK]
    assert refused[:3] == [10, 11, 12]
    assert answers[15][2] == request_id_reply(1 << 40)


def ack(number, topic, subscription, offset):
    """Return an Ack."""
    identity = MsgID(topic_name=topic, topic_offset=offset)
    return AckRequest(
        request_id=number, msg_id=identity, subscription_name=subscription
    ).SerializeToString()
