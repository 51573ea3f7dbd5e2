"""Handles that outlive their engine or their topic answer nothing."""

from __future__ import annotations

import pytest

from frazil.errors import Closed, NotFound

LOOKS = {
    "get": lambda topic: topic.get(1),
    "get_many": lambda topic: topic.get_many([1]),
    "changes": lambda topic: list(topic.changes()),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_handle_of_a_deleted_topic_finds_nothing(engine, look, partitions):
    """Look-ups and the feed of an old handle say that the topic is gone, also of a new namesake."""
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
def test_a_handle_of_a_closed_engine_finds_nothing(engine, look, partitions):
    """Look-ups and the feed say that the engine is closed: its files may be another's by now."""
    topic = engine.create_topic("t", {"id": "long"}, primary_key="id", partitions=partitions)
    topic.append(id=1)
    engine.close()
    with pytest.raises(Closed):
        LOOKS[look](topic)


@pytest.mark.parametrize("name", [None, "t"])
@pytest.mark.parametrize("call", ["flush", "evict"])
def test_a_closed_engine_moves_nothing(engine, call, name):
    """Flush and evict are refused after close, of all topics and of one."""
    engine.create_topic("t", {"id": "long"}).append(id=1)
    engine.close()
    with pytest.raises(Closed):
        getattr(engine.tiers, call)(name)
