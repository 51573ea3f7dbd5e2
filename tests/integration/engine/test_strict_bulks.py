"""Changes in bulk to topics that refuse keys which exist, or do not: all or nothing."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import Conflict, NotFound
from frazil.topic import STEPS_MAX

COUNT = 2 * STEPS_MAX + 10


def strict(engine, partitions=0):
    return engine.create_topic(
        "t",
        {"id": "long", "v": "long"},
        primary_key="id",
        partitions=partitions,
        unknown_key="error",
    )


def bulk(ids, op):
    return pa.table({"id": list(ids), "v": list(ids), "_op": [op] * len(list(ids))})


@pytest.mark.parametrize("partitions", [0, 2])
def test_an_insert_of_a_key_that_exists_leaves_nothing_of_a_large_bulk(engine, partitions):
    """A conflict in the last of many changes is raised before the first is written."""
    topic = strict(engine, partitions)
    topic.insert(id=COUNT - 1, v=0)
    with pytest.raises(Conflict, match="already") as caught:
        topic.append_changes(bulk(range(COUNT), "insert"))
    assert caught.value.details["key"] == COUNT - 1
    assert engine.stats()["message_count"] == 1


@pytest.mark.parametrize("op", ["update", "delete"])
def test_a_change_of_a_key_that_is_not_there_leaves_nothing_of_a_large_bulk(engine, op):
    """The same holds for an update or a delete of nothing."""
    topic = strict(engine)
    topic.append_changes(bulk(range(COUNT - 1), "insert"))
    before = engine.stats()["message_count"]
    with pytest.raises(NotFound, match="no row"):
        topic.append_changes(bulk(range(COUNT), op))
    assert engine.stats()["message_count"] == before


def test_changes_of_one_bulk_see_each_other(engine):
    """A key that a bulk inserts may be changed, deleted and inserted again behind it."""
    topic = strict(engine)
    ids = list(range(COUNT))
    ops = ["insert"] * COUNT + ["delete"] * COUNT + ["insert"] * COUNT
    topic.append_changes(pa.table({"id": ids * 3, "v": ids * 3, "_op": ops}))
    assert topic.get(COUNT - 1) == {"id": COUNT - 1, "v": COUNT - 1}
