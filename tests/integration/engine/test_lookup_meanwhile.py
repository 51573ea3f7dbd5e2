"""Keys are looked up while the files that hold them are merged."""

from __future__ import annotations

import pytest

from frazil.tiers import merge_once
from tests.integration.engine.tier_world import World

KEYS = 8


@pytest.fixture
def world():
    """An engine with a keyed topic in four small files, whose index holds nothing."""
    world = World(tiers={"index_share": 0.0, "open_files_max": 1, "row_group_rows": 3})
    topic = world.db.create_topic("t", {"id": "long", "v": "long"}, primary_key="id")
    for number in range(4):
        topic.append_many([{"id": key, "v": number} for key in range(number, KEYS)])
        topic.delete(KEYS - 1)
        world.db.tiers.flush("t")
    world.db.tiers.evict("t")
    yield world, topic
    world.db.close()


def merging(disk, topic_id):
    """Let files be merged right after keys were found in them, once."""
    find_many, merged = disk.lookup.find_many, []

    def found(*args):
        places = find_many(*args)
        if places and not merged:
            merged.append(merge_once(disk, topic_id))
            # What is still open or decoded would hide that the file is gone.
            disk.readers.close()
        return places

    disk.lookup.find_many = found
    return merged


@pytest.mark.parametrize(
    "look",
    [
        pytest.param(lambda topic, db: [topic.get(key) for key in range(KEYS)], id="get"),
        pytest.param(lambda topic, db: topic.get_many(range(KEYS)), id="get_many"),
        pytest.param(
            lambda topic, db: [
                (db.query("select id, v from t where id = ?", [key]).rows() or [None])[0]
                for key in range(KEYS)
            ],
            id="sql",
        ),
    ],
)
def test_a_merge_between_finding_and_reading_is_not_seen(world, look):
    """Each key gives its newest row, and a deleted one none, though its file goes meanwhile."""
    engine, topic = world
    tiers = topic.runtime.tiers
    merged = merging(tiers.disk, tiers.id)
    found = look(topic, engine.db)
    assert merged == [True]
    rows = [None if row is None else tuple(dict(row).values()) for row in map(_named, found)]
    assert rows == [(key, min(key, 3)) for key in range(KEYS - 1)] + [None]


def _named(row):
    return row if row is None or isinstance(row, dict) else {"id": row[0], "v": row[1]}
