"""Handles that outlive their engine or their topic answer nothing."""

from __future__ import annotations

import asyncio

import pytest

from frazil.engine import AsyncEngine
from frazil.errors import Closed, NotFound
from tests.integration.engine.opening import open_small

LOOKS = {
    "get": lambda topic: topic.get(1),
    "get_many": lambda topic: topic.get_many([1]),
    "changes": lambda topic: list(topic.changes()),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_handle_of_a_deleted_topic_finds_nothing(tmp_path, look, partitions):
    """Look-ups and the feed of an old handle say that the topic is gone, also of a new namesake."""
    with open_small(tmp_path) as engine:
        options = {"primary_key": "id", "partitions": partitions}
        topic = engine.create_topic("t", {"id": "long"}, **options)
        topic.append(id=1)
        assert LOOKS[look](topic)
        engine.delete_topic("t")
        with pytest.raises(NotFound):
            LOOKS[look](topic)
        engine.create_topic("t", {"id": "long"}, **options).append(id=1)
        with pytest.raises(NotFound):
            LOOKS[look](topic)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_handle_of_a_closed_engine_finds_nothing(tmp_path, look, partitions):
    """Look-ups and the feed say that the engine is closed: its files may be another's by now."""
    with open_small(tmp_path) as engine:
        topic = engine.create_topic("t", {"id": "long"}, primary_key="id", partitions=partitions)
        topic.append(id=1)
    with pytest.raises(Closed):
        LOOKS[look](topic)


@pytest.mark.parametrize("name", [None, "t"])
@pytest.mark.parametrize("call", ["flush", "evict"])
def test_a_closed_engine_moves_nothing(tmp_path, call, name):
    """Flush and evict are refused after close, of all topics and of one."""
    with open_small(tmp_path) as engine:
        engine.create_topic("t", {"id": "long"}).append(id=1)
    with pytest.raises(Closed):
        getattr(engine.tiers, call)(name)


def test_an_async_handle_of_a_closed_engine_finds_nothing(tmp_path):
    """What holds for a topic holds for its async handle."""
    with open_small(tmp_path) as engine:
        engine.create_topic("t", {"id": "long"}, primary_key="id").append(id=1)

        async def handle():
            return AsyncEngine(engine).topic("t")

        topic = asyncio.run(handle())
    with pytest.raises(Closed):
        asyncio.run(topic.get(1))
