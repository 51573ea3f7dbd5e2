"""The published client, unchanged, publishes to an engine behind Frazil's own server."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import pytest
from danube import DanubeClientBuilder, DispatchStrategy

import frazil
from frazil.serve.danube import producers as producers_module
from frazil.serve.danube.producers import Producers
from frazil.serve.danube.proto.danube_admin_pb2 import TopicRequest, TopicResponse
from frazil.serve.danube.proto.danube_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    MessageResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
    TopicLookupRequest,
    TopicLookupResponse,
    TopicPartitionsResponse,
)
from frazil.serve.danube.routes import Services
from frazil.serve.danube.topics import Topics
from frazil.serve.danube.unreliable import Unreliable
from frazil.serve.grpc.router import Router, Unary, awaited
from frazil.serve.grpc.server import Server
from tests.servers.running import free_port
from tests.support.few import few

pytestmark = pytest.mark.integration

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}


@contextlib.asynccontextmanager
async def broker(path, port):
    """Serve a data directory in this process; yields the engine."""
    with frazil.open(path, **SETTINGS) as db:
        services = Services(db, addresses={"advertised_url": f"http://127.0.0.1:{port}"})
        server = Server(Router(services.data_routes()))
        await server.start("127.0.0.1", port)
        try:
            yield db
        finally:
            await server.drain(0.5)


async def make_producer(port, *, topic="/default/t", name="p", partitions=0, reliable=True):
    """Return a producer of the published client."""
    client = await DanubeClientBuilder().service_url(f"http://127.0.0.1:{port}").build()
    strategy = DispatchStrategy.RELIABLE if reliable else DispatchStrategy.NON_RELIABLE
    builder = client.new_producer().with_topic(topic).with_name(name)
    builder = builder.with_dispatch_strategy(strategy)
    if partitions:
        builder = builder.with_partitions(partitions)
    producer = builder.build()
    await producer.create()
    return producer


def messages_of(db, topic="/default/t"):
    """Return payload, attributes and key of each record."""
    batches = [batch.to_arrow() for batch in db.topic(topic).read("earliest")]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["payload"], dict(row["attributes"] or []), row["key"]) for row in rows]


class Caller:
    """A plain gRPC client: requests as they are, statuses as they come."""

    def __init__(self, port):
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self._channel.close()

    async def ask(self, path, request, reply):
        call = self._channel.unary_unary(
            path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )
        return await call(request)

    async def refused(self, path, request, reply):
        """Return code and text of a call that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(path, request, reply)
        return caught.value.code(), caught.value.details()

    async def refused_bytes(self, path, data):
        """Return code and text of a call whose request is these bytes."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self._channel.unary_unary(path)(data)
        return caught.value.code(), caught.value.details()


CREATE = "/danube.ProducerService/CreateProducer"
SEND = "/danube.ProducerService/SendMessage"
LOOK_UP = "/danube.Discovery/TopicLookup"
PARTITIONS = "/danube.Discovery/TopicPartitions"
HEALTH = "/danube.HealthCheck/HealthCheck"
TOPIC = "/default/t"


def test_what_the_client_was_answered_is_in_the_log(tmp_path):
    """Every sent message is there once, in order of a producer, with attributes and key."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db:
            producer = await make_producer(port)
            for number in range(20):
                await producer.send(b"m%d" % number, {"n": str(number)})
            await producer.send_with_key(b"last", {}, "the key")
            await asyncio.gather(*(producer.send(b"many") for _ in range(50)))
            await producer.close()
            return messages_of(db)

    found = asyncio.run(scene())
    assert found[:20] == [(b"m%d" % number, {"n": str(number)}, None) for number in range(20)]
    assert found[20] == (b"last", {}, "the key")
    assert [payload for payload, _, _ in found[21:]] == [b"many"] * 50


def test_a_partitioned_producer_makes_the_parts(tmp_path):
    """Messages of the client's own partitions are all there, spread over parts it made."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db:
            producer = await make_producer(port, topic="/default/wide", partitions=3)
            for number in range(30):
                await producer.send(b"%d" % number)
            await producer.close()
            parts = [messages_of(db, f"/default/wide-part-{index}") for index in range(3)]
            return [[int(payload) for payload, _, _ in part] for part in parts]

    parts = asyncio.run(scene())
    assert sorted(number for part in parts for number in part) == list(range(30))
    assert [len(part) for part in parts] == [10, 10, 10]
    assert all(part == sorted(part) for part in parts)


def test_a_producer_goes_on_after_a_restart_of_the_broker(tmp_path):
    """The id that a client has from before is known to the next broker, and to no other topic."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port):
            producer = await make_producer(port)
            await producer.send(b"before")
        async with broker(tmp_path, port) as db:
            await producer.send(b"after")
            await producer.close()
            async with Caller(port) as caller:
                name = {"topic_name": "/default/t", "producer_name": "p"}
                made = await caller.ask(CREATE, request_of(**name), ProducerResponse)
                other = StreamMessage(
                    msg_id=MsgID(producer_id=made.producer_id, topic_name="/default/no"),
                    producer_name="p",
                )
                known = await caller.ask(
                    HEALTH, HealthCheckRequest(id=made.producer_id), HealthCheckResponse
                )
                assert known.status == HealthCheckResponse.OK
                other.msg_id.producer_id += 1
                refusal = await caller.refused(SEND, other, StreamMessage)
            return messages_of(db), refusal, made.producer_id

    found, refusal, identity = asyncio.run(scene())
    assert [payload for payload, _, _ in found] == [b"before", b"after"]
    text = f"The producer with id {identity + 1} does not exist"
    assert refusal == (grpc.StatusCode.NOT_FOUND, text)


def request_of(**fields):
    return ProducerRequest(dispatch_strategy=1, request_id=7, **fields)


def test_what_is_wrong_has_the_status_that_clients_know(tmp_path, monkeypatch):
    """Names, namespaces, strategies, limits and unknown topics are refused with code and text."""
    few(monkeypatch.setattr, PRODUCERS_MAX=2)

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db, Caller(port) as caller:
            db.create_topic("rows", {"id": "long"})

            async def create(name, topic="/default/t", strategy=1):
                request = ProducerRequest(
                    topic_name=topic, producer_name=name, dispatch_strategy=strategy
                )
                return await caller.ask(CREATE, request, ProducerResponse)

            async def refused(name, topic="/default/t", strategy=1):
                request = ProducerRequest(
                    topic_name=topic, producer_name=name, dispatch_strategy=strategy
                )
                return await caller.refused(CREATE, request, ProducerResponse)

            first = await create("a")
            assert (await create("a")).producer_id == first.producer_id
            assert (await create("b")).producer_id != first.producer_id
            return [
                await refused("c"),
                await refused("a", strategy=0),
                await refused("a", strategy=7),
                await refused("new", topic="/default/unheard", strategy=-1),
                await refused("a", topic="no slash"),
                await refused("a", topic="/nowhere/t"),
                await refused("a", topic="/default/rows"),
                await caller.refused(SEND, StreamMessage(), StreamMessage),
                await caller.refused(
                    LOOK_UP, TopicLookupRequest(topic="/default/no"), TopicLookupResponse
                ),
            ]

    found = asyncio.run(scene())
    codes = [code.name for code, _ in found]
    assert codes == [
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "INVALID_ARGUMENT",
        "UNAVAILABLE",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
    ]
    texts = [text for _, text in found]
    assert texts[1] == "Producer requested dispatch strategy does not match topic strategy"
    assert texts[2] == "The dispatch strategy 7 does not exist"
    assert texts[4].endswith("has an invalid format, should be: /namespace_name/topic_name")
    assert texts[5].startswith("Unable to find the namespace nowhere, the topic can be created")
    assert texts[8] == "Unable to find the requested topic: /default/no"


def test_a_part_and_a_topic_of_its_base_exclude_each_other(tmp_path):
    """Whichever is first, the other is ALREADY_EXISTS; it is listed."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db, Caller(port) as caller:
            for name in ("/default/zz-part-0", "/default/yy"):
                asked = request_of(topic_name=name, producer_name="p")
                await caller.ask(CREATE, asked, ProducerResponse)
            found = [
                await caller.refused(
                    CREATE, request_of(topic_name=name, producer_name="p"), ProducerResponse
                )
                for name in ("/default/zz", "/default/yy-part-1")
            ]
            listed = await caller.ask(
                PARTITIONS, TopicLookupRequest(topic="/default/zz"), TopicPartitionsResponse
            )
            return found, list(listed.partitions), db.topics()

    found, listed, topics = asyncio.run(scene())
    assert [code.name for code, _ in found] == ["ALREADY_EXISTS"] * 2
    assert listed == ["/default/zz-part-0"]
    assert topics == ["/default/yy", "/default/zz-part-0"]


def test_topics_are_found_where_they_are(tmp_path):
    """A look-up names this broker with its scheme; parts are those of the exact name."""

    async def scene():
        port = free_port()
        async with broker(tmp_path, port) as db, Caller(port) as caller:
            db.create_topic("foo")
            db.create_topic("foobar")
            db.create_topic("wide", partitions=3)

            async def parts(name):
                request = TopicLookupRequest(request_id=5, topic=name)
                return await caller.ask(PARTITIONS, request, TopicPartitionsResponse)

            request = TopicLookupRequest(request_id=4, topic="/default/foo")
            found = await caller.ask(LOOK_UP, request, TopicLookupResponse)
            assert (found.request_id, found.response_type) == (4, TopicLookupResponse.Connect)
            assert found.connect_url == found.broker_url == f"http://127.0.0.1:{port}"
            return [list((await parts(f"/default/{name}")).partitions) for name in NAMES]

    assert asyncio.run(scene()) == [
        ["/default/foo"],
        ["/default/wide-part-0", "/default/wide-part-1", "/default/wide-part-2"],
        [],
    ]


NAMES = ("foo", "wide", "none")


class World:
    """Producers behind a server, and a plain client that calls them."""

    def __init__(self, engine, *, in_runs=False):
        self.engine = engine
        self.in_runs = in_runs
        self.topics = Topics(engine)
        self.unreliable = Unreliable(asyncio.get_running_loop())
        self.producers = Producers(self.topics, unreliable=self.unreliable)
        self.caller = None

    def routes(self):
        send = Unary(self.producers.send, self.producers.send_all if self.in_runs else None)
        return {CREATE: Unary(awaited(self.producers.create)), SEND: send}

    async def create(self, name="p", topic=TOPIC, *, reliable=True):
        """Return the id of a new producer, or code and text of the refusal."""
        request = ProducerRequest(
            topic_name=topic, producer_name=name, dispatch_strategy=int(reliable)
        )
        found = await self._ask(CREATE, request, ProducerResponse)
        return found if isinstance(found, tuple) else found.producer_id

    async def send(self, identity, payload=b"x", *, topic=TOPIC, name="p", **fields):
        """Return the request's id when the record is taken, else code and text."""
        message = StreamMessage(
            request_id=9,
            msg_id=MsgID(producer_id=identity, topic_name=topic),
            payload=payload,
            producer_name=name,
            **fields,
        )
        found = await self._ask(SEND, message, MessageResponse)
        return found if isinstance(found, tuple) else found.request_id

    async def _ask(self, path, request, reply):
        try:
            return await self.caller.ask(path, request, reply)
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details()

    def payloads(self, topic=TOPIC):
        return [payload for payload, _, _ in messages_of(self.engine, topic)]


def run(path, scene, *, in_runs=False):
    """Run a scene, a coroutine function of a world, with a broker of its own."""

    async def play(engine):
        w = World(engine, in_runs=in_runs)
        server = Server(Router(w.routes()))
        _, port = await server.start("127.0.0.1", 0)
        try:
            async with Caller(port) as w.caller:
                return await scene(w)
        finally:
            await server.drain(0.5)

    with frazil.open(path, **SETTINGS) as engine:
        return asyncio.run(play(engine))


def test_producers_of_one_name_on_parts_of_a_topic_are_two(tmp_path):
    """Parts share one identity, their producers do not: each record is where it was sent."""

    async def scene(w):
        w.engine.create_topic("/default/wide", partitions=2)
        names = ("/default/wide-part-0", "/default/wide-part-1")
        ids = [await w.create("same", name) for name in names]
        assert ids[0] != ids[1]
        for identity, name, payload in zip(ids, names, (b"0", b"1"), strict=True):
            assert await w.send(identity, payload, topic=name, name="same") == 9
        assert [w.producers.producer_topic(identity) for identity in ids] == list(names)
        return [w.payloads(name) for name in names]

    assert run(tmp_path, scene) == [[b"0"], [b"1"]]


def test_a_message_that_is_too_large_is_an_invalid_argument(tmp_path):
    """It is refused with both sizes before anything is written; the largest one is taken."""

    async def scene(w):
        identity = await w.create()
        size = w.topics.find(TOPIC).runtime.limits.message_bytes_max
        assert await w.send(identity, bytes(size - 1)) == 9
        found = await w.send(identity, bytes(size))
        assert found == (
            "INVALID_ARGUMENT",
            f"The message of {size + 1} bytes is larger than the maximum of {size} bytes",
        )
        attributes = {"a": "b" * 1000}
        found = await w.send(identity, bytes(size - 500), attributes=attributes)
        assert found[0] == "INVALID_ARGUMENT"
        found = await w.send(identity, routing_key="k" * 5000)
        assert found[0] == "PERMISSION_DENIED"
        assert found[1].startswith("Unable to publish the message: ")
        return len(w.payloads())

    assert run(tmp_path, scene) == 1


def test_a_name_that_no_record_could_carry_is_refused(tmp_path):
    """A producer whose every record would be refused is not created."""

    async def scene(w):
        code, text = await w.create("n" * 5000)
        assert code == "PERMISSION_DENIED"
        assert text.startswith("Not able to create the Producer: ")

    run(tmp_path, scene)


def test_producers_of_a_deleted_topic_are_unknown(tmp_path):
    """Whoever deletes the topic, its producers are gone, also for a new topic of its name."""

    async def scene(w):
        identity = await w.create()
        assert await w.send(identity) == 9
        assert w.producers.is_known(identity)
        await asyncio.to_thread(w.engine.delete_topic, TOPIC)
        unknown = ("NOT_FOUND", f"The producer with id {identity} does not exist")
        assert await w.send(identity) == unknown
        assert w.producers.stats() == {"producers": 0, "topics": 0}
        assert not w.producers.is_known(identity)
        other = await w.create()
        assert other != identity
        assert await w.send(identity) == unknown
        assert await w.send(other) == 9
        return w.payloads()

    assert run(tmp_path, scene) == [b"x"]


def test_a_health_check_notices_that_a_topic_is_gone(tmp_path):
    """A producer that only asks for its health hears that it has to go."""

    async def scene(w):
        identity = await w.create()
        await asyncio.to_thread(w.engine.delete_topic, TOPIC)
        assert not w.producers.is_known(identity)
        assert w.producers.producer_topic(identity) is None

    run(tmp_path, scene)


def test_topics_that_come_and_go_leave_nothing_behind(tmp_path, monkeypatch):
    """Producers that never come again are forgotten with their topics, others are not."""
    monkeypatch.setattr(producers_module, "TARGETS_SWEPT_MIN", 4)

    async def scene(w):
        stays = await w.create(topic="/default/stays")
        for number in range(40):
            await w.create(topic=f"/default/t{number}")
            await asyncio.to_thread(w.engine.delete_topic, f"/default/t{number}")
            assert w.producers.stats()["producers"] <= 5
            assert w.producers.stats()["topics"] <= 5
        assert w.producers.is_known(stays)

    run(tmp_path, scene)


def test_forgotten_producers_of_a_topic_that_is_there_come_again(tmp_path):
    """A topic that was closed, not deleted, takes their next record under the same id."""

    async def scene(w):
        identity = await w.create()
        w.producers.forget_topic(TOPIC)
        w.producers.forget_topic("/default/other")
        assert not w.producers.is_known(identity)
        assert await w.send(identity, b"again") == 9
        assert w.producers.is_known(identity)
        return w.payloads()

    assert run(tmp_path, scene) == [b"again"]


def test_producers_of_an_unloaded_topic_are_told_to_come_again(tmp_path):
    """Their health checks say CLOSE until they send or are created; a deleted topic's always do."""

    async def play(engine):
        addresses = dict.fromkeys(("advertised_url", "admin_url", "http_url"), "http://b:1")
        services = Services(engine, addresses=addresses)
        server = Server(Router({**services.data_routes(), **services.admin_routes()}))
        _, port = await server.start("127.0.0.1", 0)
        found = []
        try:
            async with Caller(port) as caller:
                asking = ProducerRequest(topic_name=TOPIC, producer_name="p", dispatch_strategy=1)
                made = await caller.ask(CREATE, asking, ProducerResponse)
                identity = made.producer_id

                async def look():
                    request = HealthCheckRequest(id=identity)
                    reply = await caller.ask(HEALTH, request, HealthCheckResponse)
                    found.append(HealthCheckResponse.ClientStatus.Name(reply.status))

                async def administer(method):
                    path = f"/danube_admin.TopicAdmin/{method}"
                    await caller.ask(path, TopicRequest(name=TOPIC), TopicResponse)
                    await look()

                await look()
                await administer("UnloadTopic")
                assert await caller.ask(CREATE, asking, ProducerResponse) == made
                await look()
                await administer("UnloadTopic")
                message = StreamMessage(
                    msg_id=MsgID(producer_id=identity, topic_name=TOPIC), producer_name="p"
                )
                await caller.ask(SEND, message, MessageResponse)
                await look()
                await administer("DeleteTopic")
                return found, services.producers.stats()
        finally:
            services.begin_close()
            await server.drain(0.5)
            await services.close()

    with frazil.open(tmp_path, **SETTINGS) as engine:
        found, stats = asyncio.run(play(engine))
    assert found == ["OK", "CLOSE", "OK", "CLOSE", "OK", "CLOSE"]
    assert stats == {"producers": 0, "topics": 0}


def test_an_id_is_recognised_by_what_it_is_made_of(tmp_path):
    """An unknown id is a producer's only with that producer's topic and name beside it."""

    async def scene(w):
        identity = await w.create()
        w.producers.forget_topic(TOPIC)
        recognise = w.producers.recognise
        assert recognise(identity, topic=TOPIC, producer="p") == TOPIC
        assert recognise(identity, topic=TOPIC, producer="q") is None
        assert recognise(identity, topic="/default/no", producer="p") is None
        assert recognise(identity, topic="not a name", producer="p") is None
        assert recognise(identity + 1, topic=TOPIC, producer="p") is None
        for topic, name in ((TOPIC, "q"), ("/default/no", "p"), ("not a name", "p")):
            found = await w.send(identity, topic=topic, name=name)
            assert found == ("NOT_FOUND", f"The producer with id {identity} does not exist")

    run(tmp_path, scene)


def test_producers_that_have_gone_make_room(tmp_path, monkeypatch):
    """Above the limit a producer is refused while all others are heard of, and taken after."""

    async def scene(w):
        first, second = await w.create("a"), await w.create("b")
        assert await w.create("a") == first
        assert (await w.create("c"))[0] == "RESOURCE_EXHAUSTED"
        monkeypatch.setattr(producers_module, "IDLE_S", -1.0)
        third = await w.create("c")
        assert not w.producers.is_known(first)
        assert not w.producers.is_known(second)
        assert w.producers.is_known(third)
        assert await w.send(first, name="a") == 9

    few(monkeypatch.setattr, PRODUCERS_MAX=2)
    run(tmp_path, scene)


def test_topics_without_storage_pass_records_on(tmp_path):
    """A record is answered and nothing is written; one that is too large is refused there, too."""

    async def scene(w):
        identity = await w.create(reliable=False)
        assert await w.send(identity) == 9
        assert w.unreliable.unheard == 1
        size = w.topics.find(TOPIC).runtime.limits.message_bytes_max
        assert (await w.send(identity, bytes(size)))[0] == "INVALID_ARGUMENT"
        assert w.unreliable.unheard == 1
        assert w.payloads() == []
        await asyncio.to_thread(w.engine.delete_topic, TOPIC)
        assert (await w.send(identity))[0] == "NOT_FOUND"

    run(tmp_path, scene)
