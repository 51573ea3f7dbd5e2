"""Topics without storage: nothing of them is durable; live subscriptions are listed."""

from __future__ import annotations

import asyncio

import pytest
from danube import SubType

import frazil
from frazil.cli.subscription import _row
from frazil.errors import InvalidRequest, NotFound
from frazil.serve.danube.topics import Topics
from tests.integration.serve.consuming_world import SETTINGS, make_producer, make_reader
from tests.integration.serve.test_subscription_http import run

pytestmark = pytest.mark.integration

TOPIC, WIDE = "/default/passing", "/default/wide"


def make_topics(db):
    async def make():
        topics = Topics(db)
        await topics.make(TOPIC, is_reliable=False)
        await topics.make(WIDE, is_reliable=False, partitions=2)
        await topics.make("/default/kept", is_reliable=True)

    asyncio.run(make())


def acts(db):
    """What would leave something durable in a topic without storage."""
    topic, wide = db.topic(TOPIC), db.topic(WIDE)
    return [
        lambda: topic.append(b"x"),
        lambda: topic.append(b"x", key="k"),
        lambda: topic.send(b"x"),
        lambda: topic.append_many([b"x", b"y"]),
        lambda: wide.append(b"x"),
        lambda: wide.append_many([b"x", b"y"]),
        lambda: wide.parts[1].append(b"x"),
        lambda: topic.subscribe("s", start="earliest"),
        lambda: wide.subscribe("s"),
        lambda: db.subscriptions.create(TOPIC, "s"),
        lambda: db.subscriptions.create(f"{WIDE}-part-0", "s"),
        lambda: db.subscriptions.reset(TOPIC, "s", "earliest"),
        lambda: db.subscriptions.alter(TOPIC, "s", policy={"poison": "drop"}),
    ]


def check_nothing_is_kept(db):
    """Each of them is refused with the reason and the way out, and nothing is there behind it."""
    for act in acts(db):
        with pytest.raises(
            InvalidRequest, match=r"not reliable: it stores nothing.*use a reliable"
        ):
            act()
    for name in (TOPIC, WIDE):
        assert db.subscriptions.describe(name) == []
    assert db.topic_stats(TOPIC)["head"] == 0
    with pytest.raises(NotFound):
        db.subscriptions.drop(TOPIC, "s")


def test_a_program_leaves_nothing_durable_in_a_topic_without_storage(tmp_path):
    """Neither in the life that made it nor in another; a reliable topic is as it was."""
    with frazil.open(tmp_path, **SETTINGS) as db:
        make_topics(db)
        check_nothing_is_kept(db)
    with frazil.open(tmp_path, **SETTINGS) as db:
        check_nothing_is_kept(db)
        assert db.topic("kept").append(b"x").offset == 0


def test_a_full_disk_that_is_over_opens_no_topic_without_storage(tmp_path):
    """The stop of all topics ends, that of topics which store nothing does not."""
    with frazil.open(tmp_path, **SETTINGS) as db:
        make_topics(db)
        db.upkeep.disk_full()
        assert db.upkeep.publishing_stopped
        check_nothing_is_kept(db)
        db.upkeep.check_space()
        assert not db.upkeep.publishing_stopped
        check_nothing_is_kept(db)
        assert db.topic("kept").append(b"x").offset == 0


def test_asyncio_leaves_nothing_durable_either(tmp_path):
    """The asynchronous face refuses the same."""
    with frazil.open(tmp_path, **SETTINGS) as db:
        make_topics(db)

    async def work():
        async with await frazil.open_async(tmp_path, **SETTINGS) as db:
            topic = db.topic(TOPIC)
            for act in (topic.append(b"x"), topic.append_many([b"x"])):
                with pytest.raises(InvalidRequest, match="not reliable"):
                    await act
            return db.topic(TOPIC).stats()["head"]

    assert asyncio.run(work()) == 0


def test_live_subscriptions_are_listed_and_dropped_beside_the_broker(tmp_path):
    """They are listed as not stored; what needs storage is refused with the reason."""

    async def work(world):
        url = world.broker.addresses.facts()["url"]
        producer = await make_producer(url, topic=TOPIC, reliable=False)
        reader = await make_reader(url, topic=TOPIC, kind=SubType.SHARED)
        await producer.send(b"live")
        assert (await reader.next()).payload == b"live"
        await world.post({"call": "create", "topic": "orders", "name": "z"})
        for call, expected in (
            ({"call": "list"}, [("/default/orders", "z", True), (TOPIC, "s", False)]),
            ({"call": "list", "topic": TOPIC}, [(TOPIC, "s", False)]),
            ({"call": "list", "topic": "orders"}, [("/default/orders", "z", True)]),
        ):
            status, found = await world.post(call)
            listed = [(each["topic"], each["name"], each["stored"]) for each in found["result"]]
            assert (status, listed) == (200, expected)
        (facts,) = (await world.post({"call": "list", "topic": TOPIC}))[1]["result"]
        assert (facts["type"], facts["consumers"], facts["lag_records"]) == ("shared", ["c"], None)
        assert _row(facts) == (TOPIC, "s", "shared", 1, "", "", "", 0, "not stored")
        for call in (
            {"call": "create", "topic": TOPIC, "name": "x"},
            {"call": "reset", "topic": TOPIC, "name": "s", "to": "earliest"},
            {"call": "policy", "topic": TOPIC, "name": "s", "max_unacked": 3},
        ):
            status, found = await world.post(call)
            assert (status, found["error"]["code"]) == (400, "invalid")
            assert "not reliable: it stores nothing" in found["error"]["message"]
        drop = {"call": "drop", "topic": TOPIC, "name": "s"}
        assert await world.post(drop) == (200, {"result": {"dropped": "s"}})
        assert (await world.post({"call": "list", "topic": TOPIC}))[1]["result"] == []
        assert (await world.post(drop))[0] == 404
        await reader.close()

    run(tmp_path, work)
