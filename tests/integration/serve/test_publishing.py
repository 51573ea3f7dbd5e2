"""The published client, unchanged, publishes to an engine behind Frazil's own server."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from frazil.serve.danube import producers as producers_module
from tests.integration.serve.consuming_world import (
    TOPIC,
    Caller,
    broker,
    make_producer,
)
from tests.support.few import few

pytestmark = pytest.mark.integration


def messages_of(db, topic="/default/t"):
    """Return payload, attributes and key of each record."""
    batches = [batch.to_arrow() for batch in db.topic(topic).read("earliest")]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [(row["payload"], dict(row["attributes"] or []), row["key"]) for row in rows]


def test_what_the_client_was_answered_is_in_the_log(tmp_path):
    """Every sent message is there once, in order of a producer, with attributes and key."""

    async def scene():
        async with broker(tmp_path) as world:
            producer = await make_producer(world.port)
            for number in range(20):
                await producer.send(b"m%d" % number, {"n": str(number)})
            await producer.send_with_key(b"last", {}, "the key")
            await asyncio.gather(*(producer.send(b"many") for _ in range(50)))
            await producer.close()
            return messages_of(world.db)

    found = asyncio.run(scene())
    assert found[:20] == [(b"m%d" % number, {"n": str(number)}, None) for number in range(20)]
    assert found[20] == (b"last", {}, "the key")
    assert [payload for payload, _, _ in found[21:]] == [b"many"] * 50


class World:
    """A broker, and a plain client that makes producers."""

    def __init__(self, world, caller):
        self.caller = caller
        self.engine, self.topics, self.producers = world.db, world.topics, world.producers

    async def create(self, *arguments):
        """Return the id of a new producer, or code and text of the refusal."""
        return await answered(self.caller.create(*arguments))

    async def send(self, *arguments, **more):
        """Return the request's id when the record is taken, else code and text."""
        return await answered(self.caller.send(*arguments, **more))

    def payloads(self, topic=TOPIC):
        return [payload for payload, _, _ in messages_of(self.engine, topic)]


async def answered(call):
    """Return what a call gives, or code and text of its refusal."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details()


def run(path, scene):
    """Run a scene, a coroutine function of a world, with a broker of its own."""

    async def play():
        async with broker(path) as world, Caller(world.port) as caller:
            return await scene(World(world, caller))

    return asyncio.run(play())


def test_a_topic_of_rows_has_no_producers(tmp_path):
    """What a client of this protocol sends is a message, which such a topic does not take."""

    async def scene(w):
        w.engine.create_topic("rows", {"id": "long"})
        return await w.create("p", "/default/rows")

    assert run(tmp_path, scene)[0] == "FAILED_PRECONDITION"


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


def test_producers_of_a_deleted_topic_are_unknown(tmp_path):
    """With the topic its producers are gone, also for a new topic of its name."""

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


def test_topics_that_come_and_go_leave_nothing_behind(tmp_path, monkeypatch):
    """Producers that never come again are forgotten with their topics, others are not."""
    monkeypatch.setattr(producers_module, "TARGETS_SWEPT_MIN", 4)

    async def scene(w):
        stays = await w.create("p", "/default/stays")
        for number in range(40):
            await w.create("p", f"/default/t{number}")
            await asyncio.to_thread(w.engine.delete_topic, f"/default/t{number}")
            assert w.producers.stats()["producers"] <= 5
            assert w.producers.stats()["topics"] <= 5
        assert w.producers.is_known(stays)

    run(tmp_path, scene)


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
