"""Who asks first after a start loads the log; Ctrl-C may leave that half-way."""

from __future__ import annotations

from itertools import count

import pytest
from tests.unit.tiers.test_interrupts import interrupted

from tests.integration.engine.tier_world import World

STRIDE = 4
PLACES = ("topic_tiers.py", "memory.py", "marks.py", "fold.py")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loading_goes_on_where_it_was_left():
    """Whoever asks next gets all rows, each once, wherever the first one was interrupted."""
    world = World()
    topic = world.db.create_topic("t", {"id": "long", "v": "long"}, primary_key="id")
    topic.append_many([{"id": number, "v": 0} for number in range(20)])
    world.db.tiers.flush()
    topic.append_many([{"id": number, "v": 1} for number in range(10, 30)])
    topic.update(5, {"v": 2})
    topic.append({"id": 6, "v": 3})
    rows = [(number, topic.get(number)["v"]) for number in range(30)]
    for at in count(1, STRIDE):
        world.db.close()
        topic = world.open().topic("t")
        there = interrupted(lambda topic=topic: topic.get(7), at, places=PLACES)
        found = world.db.query('SELECT id, v FROM "t" ORDER BY id').rows()
        assert found == rows, at
        assert [(number, topic.get(number)["v"]) for number in range(30)] == rows
        if not there:
            assert at > 20
            break
    world.db.close()
