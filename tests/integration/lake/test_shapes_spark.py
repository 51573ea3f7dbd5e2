"""Fields that others add inside of a table's columns."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest
from frazil.lake import PartFacts, StagedRows, VerifyRequest
from frazil.lake.verify_job import examine
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

COLUMNS = {
    "at": "struct<ms: timestamp[ms], inner: struct<a: int>>",
    "items": "list<struct<x: decimal(5,2)>>",
    "byname": "map<string, struct<v: int>>",
}
ROW = {"at": {"ms": None, "inner": {"a": 1}}, "items": [{"x": None}, None], "byname": [("k", None)]}
EMPTY = {"at": None, "items": None, "byname": []}


def test_a_field_that_others_add_inside_of_a_column_is_null(world):
    """The pipeline goes on, own values are what they were, and the table verifies as good."""
    topic = world.topic(COLUMNS)
    plans = [topic.plan(topic.stage([ROW]))]
    assert topic.commit(plans[-1]).state == "committed"
    for path in ("at.more", "at.inner.more", "items.element.more", "byname.value.more"):
        topic.foreign("ALTER TABLE {table} ADD COLUMN " + path + " int")
    topic.foreign("ALTER TABLE {table} ADD COLUMN at.front string FIRST")
    plans.append(topic.plan(topic.stage([ROW, EMPTY])))
    assert topic.commit(plans[-1]).state == "committed"
    rows = topic.by_spark().to_pylist()
    assert rows[0]["at"] == rows[1]["at"]
    assert rows[1]["at"] == {
        "front": None,
        "ms": None,
        "inner": {"a": 1, "more": None},
        "more": None,
    }
    assert rows[1]["items"] == [{"x": None, "more": None}, None]
    assert (rows[2]["at"], rows[2]["items"], rows[2]["byname"]) == (None, None, [])
    topic.foreign("UPDATE {table} SET at.more = 5 WHERE _offset = 0")
    request = VerifyRequest(
        topic=topic.name,
        topic_id=topic.uid,
        table=topic.table,
        parts=(PartFacts(-1),),
        staged=tuple(StagedRows(plan, {name: name for name in COLUMNS}) for plan in plans),
    )
    found = examine(world.session, world.catalog, request)
    assert (found.verdict, found.compared) == ("good", 3)
    topic.foreign("ALTER TABLE {table} RENAME COLUMN at.inner.a TO b")
    with pytest.raises(InvalidRequest, match=r"at\.inner\.a"):
        topic.commit(topic.plan(topic.stage([ROW])))
