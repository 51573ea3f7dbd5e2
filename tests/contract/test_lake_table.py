"""Real tables and the fake that the crash tests use answer the same calls with the same outcomes.

Each scene is a list of steps that both sides take: ours with the snapshot of some earlier look,
and what others do to a table in between. Outcomes, the kind of each new snapshot, the rows and what
a look says afterwards must be equal.
"""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from frazil.errors import FrazilError
from frazil.lake import TOPIC_ID
from tests.crash.lake_table import IcebergTable
from tests.integration.lake.spark_world import MARKS, shared_world

pytestmark = MARKS

NOW = "now"
"""Fence with the snapshot that the table has at this moment."""


class FakeSide:
    """The fake's table, with the steps of a scene as methods."""

    def __init__(self):
        self.table = IcebergTable("uid", itertools.count(1))

    def look(self):
        return self.table.view()

    def append(self, first, end, sid):
        rows = [(-1, offset, True) for offset in range(first, end)]
        files = [self.table.write_file(rows)] if rows else []
        summary = {TOPIC_ID: "uid", "frazil.offset-end": str(end)}
        return self.table.land(files, sid=sid, summary=summary)

    def others_append(self):
        self.table.append_foreign(-1)

    def compact(self):
        self.table.compact()

    def expire(self):
        self.table.expire_all()

    def delete_beside(self, offset):
        """Delete a row by a delete of its own."""
        head = self.table.snapshots[self.table.head]
        gone = {each for each in self.table.rows() if each[1][1] == offset}
        self.table._snapshot("delete", (), head.live, head.deleted | gone)

    def delete_anew(self, offset):
        """Delete a row by writing its file anew."""
        touched = {file for file, row in self.table.rows() if row[1] == offset}
        kept = [row for file, row in self.table.rows() if file in touched and row[1] != offset]
        new = self.table.write_file(kept)
        live = tuple(f for f in self.table._live() if f not in touched)
        self.table._snapshot("overwrite", (new,), (*live, new), frozenset())

    def roll_back(self, sid):
        self.table.roll_back(sid)

    def set_property(self, end):
        self.table.properties["frazil.offset-end"] = str(end)

    def offsets(self):
        return sorted(offset for _part, offset in self.table.ours())

    def operation(self):
        head = self.table.head
        return None if head is None else self.table.snapshots[head].operation


class RealSide:
    """A table of Iceberg, written by Spark."""

    def __init__(self, world):
        self.world = world
        self.topic = world.topic({"id": "long"})
        self.name = f"{self.topic.table.namespace}.{self.topic.table.name}"

    def look(self):
        return self.world.tables.load(self.topic.table)

    def append(self, first, end, sid):
        number = F.col("id")
        frame = self.world.session.range(first, max(first, end)).select(
            number.alias("_offset"), F.timestamp_micros(number).alias("_time"), number
        )
        summary = {TOPIC_ID: self.topic.uid, "frazil.offset-end": str(end)}
        return self.world.tables.cas_append(self.topic.table, frame, sid=sid, summary=summary)

    def others_append(self):
        self.topic.foreign("INSERT INTO {table} VALUES (-1, TIMESTAMP '2026-01-01', -1)")

    def compact(self):
        self.topic.foreign(
            f"CALL frazil.system.rewrite_data_files(table => '{self.name}', "
            "options => map('rewrite-all', 'true'))"
        )

    def expire(self):
        self.topic.foreign(
            f"CALL frazil.system.expire_snapshots(table => '{self.name}', "
            "older_than => TIMESTAMP '2999-01-01', retain_last => 1)"
        )

    def delete_beside(self, offset):
        self._delete("merge-on-read", offset)

    def delete_anew(self, offset):
        self._delete("copy-on-write", offset)

    def _delete(self, mode, offset):
        self.topic.foreign(
            f"ALTER TABLE {{table}} SET TBLPROPERTIES ('write.delete.mode'='{mode}')"
        )
        self.topic.foreign(f"DELETE FROM {{table}} WHERE _offset = {offset}")

    def roll_back(self, sid):
        self.topic.foreign(
            f"CALL frazil.system.rollback_to_snapshot(table => '{self.name}', snapshot_id => {sid})"
        )

    def set_property(self, end):
        self.world.tables.set_property(self.topic.table, {"frazil.offset-end": str(end)})

    def offsets(self):
        return [each for each in self.topic.offsets("by_pyiceberg") if each >= 0]

    def operation(self):
        found = self.world.catalog.load_table(tuple(self.topic.table)).current_snapshot()
        return None if found is None else found.summary.operation.value


SCENES = {
    "appends in a row": [("append", 0, 5, NOW), ("append", 5, 9, NOW)],
    "the empty table, twice": [("look", "empty"), ("append", 0, 5, NOW), ("append", 0, 5, "empty")],
    "an old snapshot": [
        ("append", 0, 5, NOW),
        ("look", "old"),
        ("append", 5, 9, NOW),
        ("append", 5, 9, "old"),
    ],
    "no rows": [
        ("append", 0, 5, NOW),
        ("look", "old"),
        ("append", 5, 5, NOW),
        ("append", 5, 9, "old"),
        ("append", 9, 9, "old"),
    ],
    "compaction between look and write": [
        ("append", 0, 5, NOW),
        ("append", 5, 9, NOW),
        ("look", "old"),
        ("compact",),
        ("append", 9, 12, "old"),
        ("append", 9, 12, "old"),
    ],
    "every mark expired": [
        ("append", 0, 5, NOW),
        ("look", "old"),
        ("append", 5, 9, NOW),
        ("compact",),
        ("expire",),
        ("append", 5, 9, "old"),
        ("append", 9, 12, NOW),
    ],
    "the empty table, expired since": [
        ("look", "empty"),
        ("append", 0, 5, NOW),
        ("compact",),
        ("expire",),
        ("append", 0, 5, "empty"),
    ],
    "rows of others": [
        ("append", 0, 5, NOW),
        ("look", "old"),
        ("others_append",),
        ("append", 5, 9, "old"),
        ("append", 5, 9, NOW),
    ],
    "a row deleted beside": [
        ("append", 0, 5, NOW),
        ("look", "old"),
        ("delete_beside", 2),
        ("append", 5, 9, "old"),
    ],
    "a row deleted by writing anew": [
        ("append", 0, 5, NOW),
        ("look", "old"),
        ("delete_anew", 2),
        ("append", 5, 9, "old"),
    ],
    "rolled back": [
        ("append", 0, 5, NOW),
        ("look", "first"),
        ("append", 5, 9, NOW),
        ("look", "old"),
        ("roll_back", "first"),
        ("append", 9, 12, "old"),
        ("append", 5, 8, NOW),
    ],
    "the property": [("append", 0, 5, NOW), ("set_property", 5), ("append", 5, 9, NOW)],
}


def played(side, steps):
    """Take the steps of a scene; return everything that can be seen of it."""
    seen, views = [], {}
    for name, *arguments in steps:
        if name == "look":
            views[arguments[0]] = side.look().sid
            continue
        given = [
            side.look().sid if each == NOW else views[each] if isinstance(each, str) else each
            for each in arguments
        ]
        try:
            getattr(side, name)(*given)
            outcome = "done"
        except FrazilError as error:
            outcome = type(error).__name__
        view = side.look()
        seen.append(
            {
                "step": (name, *arguments),
                "outcome": outcome,
                "operation": side.operation(),
                "offsets": side.offsets(),
                "summary_ends": view.summary_ends,
                "property_ends": {part: end for part, end in view.property_ends.items() if end},
                "bound_ends": view.bound_ends,
                "snapshots": view.snapshots,
            }
        )
    return seen


@pytest.fixture(scope="session")
def world():
    return shared_world()


@pytest.mark.parametrize("scene", SCENES)
def test_real_tables_and_the_fake_agree(world, scene):
    """Step by step, both refuse, accept and tell the same."""
    steps = SCENES[scene]
    real, fake = played(RealSide(world), steps), played(FakeSide(), steps)
    for ours, theirs in zip(real, fake, strict=True):
        assert ours == theirs
    assert {each["outcome"] for each in real} <= {"done", "Conflict"}


def test_scenes_have_conflicts_and_successes():
    """The scenes show both outcomes; otherwise they would compare nothing."""
    outcomes = [each["outcome"] for steps in SCENES.values() for each in played(FakeSide(), steps)]
    assert outcomes.count("Conflict") >= 7
    assert outcomes.count("done") > outcomes.count("Conflict")
