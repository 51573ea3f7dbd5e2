"""What a look-up reads of a group of rows that the log holds as one Arrow frame."""

from __future__ import annotations

import pytest

from frazil.log import format as fmt
from tests.integration.engine.tier_world import World

ROWS = 100
"""More than become a frame of packed rows."""


@pytest.fixture
def world():
    """An engine whose tiers do nothing by themselves."""
    world = World()
    yield world
    world.db.close()


def test_rows_of_an_arrow_frame_are_looked_up_without_decoding_it(world):
    """The frame's rows are found by key as they were given, and nothing becomes a chunk."""
    topic = world.db.create_topic("t", {"id": "long", "v": "float"}, primary_key="id")
    topic.append({"id": -1, "v": 0.0})
    assert topic.get(-1) == {"id": -1, "v": 0.0}
    topic.append_many([{"id": number, "v": number / 4} for number in range(ROWS)])
    memory = topic.runtime.tiers.memory
    entry = memory.tail[-1]
    assert (entry.kind, entry.count) == (fmt.KIND_ARROW, ROWS)
    settled = memory.settled
    assert topic.get_many(range(ROWS)) == [
        {"id": number, "v": number / 4} for number in range(ROWS)
    ]
    assert memory.settled == settled


def test_rows_look_the_same_before_and_after_they_are_decoded(world):
    """A value that its column rounds is seen rounded at once, in columns with parts as well."""
    plain = world.db.create_topic("plain", {"id": "long", "v": "float"}, primary_key="id")
    nested = world.db.create_topic(
        "nested", {"id": "long", "v": "struct<a: float>"}, primary_key="id"
    )
    plain.append_many([{"id": number, "v": 0.1} for number in range(ROWS)])
    nested.append_many([{"id": number, "v": {"a": 0.1}} for number in range(ROWS)])
    early = [topic.get(7) for topic in (plain, nested)]
    for topic in (plain, nested):
        topic.runtime.tiers.settle(10 * ROWS)
        assert not topic.runtime.tiers.memory.tail
    assert [topic.get(7) for topic in (plain, nested)] == early
