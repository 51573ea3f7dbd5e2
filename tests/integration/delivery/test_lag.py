"""How far subscriptions are behind, over gaps and wherever their records lie."""

from __future__ import annotations

import asyncio

import pytest

import frazil
from frazil.clock import SystemClock
from frazil.engine import Engine
from tests.integration.delivery.delivering import TOPIC, Collector, delivering, opened, until
from tests.integration.engine.opening import LOG_ALONE, declare_gap, small_settings
from tests.integration.engine.test_objects_reading import RECORDS, SMALL, fill
from tests.support import SimulatedFileSystem

PAYLOAD = 1_000


def crashed(seed=0, **settings):
    """Open an engine on what a crash left of a topic whose records are all acked.

    Behind them is a declared gap.
    """
    disk = SimulatedFileSystem(1)
    db = Engine(small_settings("/data", **settings), file_system=disk, clock=SystemClock())
    topic = db.create_topic("t")
    topic.append_many([b"x" * PAYLOAD] * 3)
    with topic.subscribe("s", start="earliest") as stream:
        stream.ack([stream.receive(60) for _ in range(3)])
    declare_gap(db, "t", 200_000)
    left = disk.crash_clone(seed)
    db.close()
    again = Engine(small_settings("/data", **settings), file_system=left, clock=SystemClock())
    (gap,) = again.topic("t").runtime.state.ranges
    assert gap.kind == "gap"
    assert gap.end - gap.first > 100_000
    return again


def lag(db):
    """Return what a list says of the lag."""
    (facts,) = db.topic("t").subscriptions()
    return facts["lag_records"], facts["lag_bytes"], facts["lag_seconds"]


@pytest.mark.parametrize("memory", [None, LOG_ALONE])
def test_offsets_without_records_are_no_lag(memory):
    """After a crash a subscription that acked everything is behind by nothing, then by what comes."""
    with crashed(memory=memory) as db:
        assert lag(db) == (0, 0, 0.0)
        topic = db.topic("t")
        topic.append_many([b"y" * PAYLOAD] * 2)
        records, size_bytes, age_s = lag(db)
        assert records == 2
        assert 1.8 * PAYLOAD < size_bytes < 2.5 * PAYLOAD
        assert age_s is not None
        with topic.subscribe("s") as stream:
            first, second = stream.receive(60), stream.receive(60)
            second.ack()
            records, size_bytes, _age = lag(db)
            assert records == 1
            assert 0.8 * PAYLOAD < size_bytes < 1.5 * PAYLOAD
            first.ack()
            assert lag(db) == (0, 0, 0.0)


def test_bytes_of_files_are_shared_among_records_not_offsets():
    """Records behind a gap in the same files are counted as what they are."""
    with crashed() as db:
        topic = db.topic("t")
        topic.append_many([bytes([n]) * PAYLOAD for n in range(4)])
        db.tiers.flush("t")
        _records, all_bytes, _age = lag(db)
        db.subscriptions.reset("t", "s", topic.runtime.state.durable - 1)
        records, size_bytes, _age = lag(db)
        assert records == 1
        assert 0.5 * all_bytes / 4 < size_bytes < 2 * all_bytes / 4


def test_lists_and_metrics_have_the_same_lag():
    """Before a subscription is read, while it is, and with acks out of order, over a gap."""

    async def main():
        db = crashed()
        topic = db.topic("t")
        topic.append_many([b"y" * PAYLOAD] * 10)
        async with delivering(db) as (deliveries, settings):
            db.subscribing.share(deliveries, settings, asyncio.get_running_loop())
            found = await opened(deliveries)

            async def both():
                return deliveries.facts()["lag_records"], (await asyncio.to_thread(lag, db))[0]

            assert await both() == (10, 10)
            consumer = Collector(found, acks=False)
            await until(lambda: len(consumer.got) == 10)
            assert await both() == (10, 10)
            for offset in consumer.got[1::2]:
                consumer.ack(offset)
            await until(lambda: len(consumer.acked) == 5)
            assert await both() == (5, 5)
            await deliveries.reset(TOPIC, "s", "earliest")
            assert await both() == (13, 13)
        await asyncio.to_thread(db.close)

    asyncio.run(main())


def test_bytes_that_only_objects_have_are_counted(tmp_path):
    """A subscription from the beginning is behind by all bytes, wherever they are by now."""
    place = {**SMALL, "objects.root": str(tmp_path / "objects")}
    with frazil.open(tmp_path / "data", **place) as db:
        topic = fill(db)
        start = topic.runtime.state.start
        assert start > RECORDS // 10
        db.subscriptions.create(topic.name, "all", start="earliest")
        db.subscriptions.create(topic.name, "near", start=start)
        found = {each["name"]: each for each in topic.subscriptions()}
        assert found["all"]["lag_records"] == RECORDS
        assert 0.9 * RECORDS * PAYLOAD < found["all"]["lag_bytes"] < 1.5 * RECORDS * PAYLOAD
        far = found["all"]["lag_bytes"] - found["near"]["lag_bytes"]
        assert 0.9 * start * PAYLOAD < far < 1.5 * start * PAYLOAD
