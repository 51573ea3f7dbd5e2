"""Publishes to a full disk tier wait for room as those to full memory do."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from frazil.engine import AsyncEngine
from frazil.errors import Overloaded
from tests.integration.engine.opening import open_small


def full(engine, *, lasting=False, **options):
    """Return a topic whose engine's disk tier held more than its cap, and may still do."""
    topic = engine.create_topic("t", {"id": "long", "v": "string"}, **options)
    parts = getattr(topic, "parts", [topic])
    topic.append_many([{"id": number, "v": "x" * 100} for number in range(200)])
    engine.tiers.flush()
    disk = engine.settings.disk
    engine.settings = engine.settings.model_copy(
        update={"disk": disk.model_copy(update={"bytes_max": 1})}
    )
    engine.tiers.evict()
    assert all(part.runtime.refusal is not None for part in parts)
    if not lasting:
        engine.settings = engine.settings.model_copy(update={"disk": disk})
    return topic


def publish_async(engine, _topic):
    async def publish():
        await AsyncEngine(engine).topic("t").append(id=1000, v="new")

    asyncio.run(publish())


WAYS = {
    "append": lambda _engine, topic: topic.append(id=1000, v="new"),
    "append_many": lambda _engine, topic: topic.append_many([{"id": 1000, "v": "new"}]),
    "upsert": lambda _engine, topic: topic.upsert(id=1000, v="new"),
    "async": publish_async,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_publish_goes_on_when_room_is_made(tmp_path, way, partitions):
    """A publish that meets a full disk tier is written once there is room, without an error."""
    with open_small(tmp_path, memory={"wait_s": 20.0}) as engine:
        topic = full(engine, primary_key="id", partitions=partitions)
        before = engine.stats()["message_count"]
        timer = threading.Timer(0.1, engine.tiers.retention.check_cap)
        timer.start()
        WAYS[way](engine, topic)
        timer.join()
        assert engine.stats()["message_count"] == before + 1


def test_a_publish_gives_up_when_no_room_is_made(tmp_path):
    """After as long as memory would be waited for, the publish is refused."""
    with open_small(tmp_path, memory={"wait_s": 0.2}) as engine:
        topic = full(engine, lasting=True)
        begun = time.monotonic()
        with pytest.raises(Overloaded, match="disk tier is full"):
            topic.append(id=1, v="new")
        assert time.monotonic() - begun >= 0.2
