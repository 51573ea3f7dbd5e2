"""Change feeds of parts and under asyncio, and Debezium's events with keys and without values."""

from __future__ import annotations

import asyncio
import json

import pytest

from frazil.engine import AsyncEngine
from frazil.errors import Closed, InvalidRequest


def keyed(engine, partitions=0):
    return engine.create_topic(
        "t", {"id": "long", "v": "long"}, primary_key="id", partitions=partitions
    )


def test_a_partitioned_topic_tells_the_changes_of_all_its_parts(engine):
    """Each change comes with its part; the limit counts over all parts."""
    topic = keyed(engine, partitions=3)
    for value in range(2):
        for number in range(12):
            topic.upsert(id=number, v=value)
    changes = list(topic.changes())
    assert sorted(each["key"]["id"] for each in changes) == sorted([*range(12), *range(12)])
    for each in changes:
        assert each["part"] == topic.part_of_key(each["key"]["id"])
        assert (each["before"] is None) == (each["after"]["v"] == 0)
    assert [each["part"] for each in changes] == sorted(each["part"] for each in changes)
    assert len(list(topic.changes(limit=7))) == 7
    assert list(topic.changes(limit=0)) == []


@pytest.mark.parametrize("partitions", [0, 2])
def test_feeds_are_there_under_asyncio(engine, partitions):
    """An async topic tells the same changes as the topic itself."""
    topic = keyed(engine, partitions)
    topic.append_many([{"id": number, "v": number} for number in range(600)])

    async def feed(**options):
        handle = AsyncEngine(engine).topic("t")
        return [change async for change in handle.changes(**options)]

    assert asyncio.run(feed()) == list(topic.changes())
    assert asyncio.run(feed(from_offset=100, limit=30)) == list(topic.changes(100, limit=30))


CREATE = {"op": "c", "after": {"id": 1, "v": 1}}
DELETE = {"op": "d", "before": None, "after": None}


@pytest.mark.parametrize(
    "tombstone",
    [
        None,
        b"",
        ({"id": 1}, None),
        {"key": {"id": 1}, "value": None},
        {"payload": None, "schema": {}},
    ],
)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_tombstone_is_passed_over(engine, tombstone, partitions):
    """Events without a value write nothing, beside others."""
    topic = keyed(engine, partitions)
    topic.append_changes([CREATE, tombstone])
    assert topic.get(1) == {"id": 1, "v": 1}
    assert engine.stats()["message_count"] == 1


@pytest.mark.parametrize("events", [None, b"", [None], [({"id": 1}, None), {"op": "m"}]])
def test_a_call_of_tombstones_alone_writes_nothing(engine, events):
    """Its ack is of no record, and can be waited for; a topic with parts has no ack to give."""
    topic = keyed(engine)
    for before in range(2):
        for ack in (
            topic.append_changes(events),
            topic.append_changes(events, producer="p", sequence=before, ack="fsynced"),
            asyncio.run(_changed(engine, "t", events)),
        ):
            assert (ack.offset, ack.offset_last) == (before, before - 1)
            assert engine.query("SELECT count(*) FROM t", min_offset=ack).rows() == [(before,)]
        topic.append_changes([CREATE], producer="p", sequence=before)
    parted = engine.create_topic("q", {"id": "long"}, primary_key="id", partitions=2)
    assert parted.append_changes(events) == []
    assert asyncio.run(_changed(engine, "q", events)) == []
    for handle in (topic, parted):
        with pytest.raises(InvalidRequest):
            handle.append_changes(events, ack="soon")
    engine.close()
    for handle in (topic, parted):
        with pytest.raises(Closed):
            handle.append_changes(events)


async def _changed(engine, name, events):
    return await AsyncEngine(engine).topic(name).append_changes(events)


@pytest.mark.parametrize(
    "event",
    [
        ({"id": 1}, DELETE),
        (json.dumps({"id": 1}).encode(), json.dumps(DELETE).encode()),
        {"key": {"id": 1}, "value": DELETE},
        {"key": json.dumps({"id": 1}), "value": json.dumps(DELETE)},
    ],
)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_delete_without_the_row_uses_the_key_of_its_event(engine, event, partitions):
    """The row of the event's key goes, also where `before` is null."""
    topic = keyed(engine, partitions)
    topic.append_changes([CREATE, {"op": "c", "after": {"id": 2, "v": 2}}])
    topic.append_changes([event])
    assert topic.get(1) is None
    assert topic.get(2) == {"id": 2, "v": 2}
