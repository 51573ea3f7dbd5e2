"""Late commits, copies and switches after which a table is not what the log takes it for."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from frazil.errors import Unavailable
from frazil.lake import ADOPTED, TableName, decode_ranges, expiry
from frazil.lake import topics as lake_topics
from frazil.lake.connection import connect
from frazil.lake.table_state import look
from tests.integration.engine.lake_engine import (
    COLUMNS,
    an_older_copy,
    ids_of,
    looked_at,
    opened,
    rows_of,
    side_is_ahead,
    status_of,
    table_of,
    taken,
    wait_until,
)


def land_late(table, *, offset, owner, end):
    """Append a row as a worker of another topic does that was stalled before its commit."""
    schema = table.schema().as_arrow()
    values = {"_offset": offset, "_time": 0, "id": -1, "text": "late"}
    columns = [pa.array([values[field.name]], field.type) for field in schema]
    facts = {"frazil.topic-id": owner, "frazil.offset-end": str(end)}
    table.append(pa.table(columns, schema=schema), snapshot_properties=facts)


def test_a_commit_of_the_former_owner_that_lands_after_the_adoption_stops_the_lake(db):
    """Its offsets are not taken for ours: adopting again continues after it."""
    topic = taken(db, "late", old=5, new=2)
    owner = table_of(db, "late").properties["frazil.topic-id"]
    db.lake.adopt("late", confirm=True)
    topic.append_many([{"id": n, "text": "new"} for n in range(20, 22)], ack="committed")
    topic.append_many([{"id": n, "text": "new"} for n in range(22, 26)])
    land_late(table_of(db, "late"), offset=7, owner=owner, end=9)
    with pytest.raises(Unavailable, match="never had"):
        db.lake.flush("late", 30)
    assert status_of(db, "late")["state"] == "stopped: ahead_of_log"
    assert db.lake.adopt("late", confirm=True)["left_out"] == {"-1": [[7, 9]]}
    topic.append(id=30, text="new", ack="committed")
    rows = [(row["_offset"], row["id"]) for row in rows_of(db, "late")]
    own = [(5, 20), (6, 21), (7, -1), (9, 24), (10, 25), (11, 30)]
    assert rows == [*((n, n) for n in range(5)), *own]
    assert decode_ranges(table_of(db, "late").properties, ADOPTED) == {-1: ((0, 5), (7, 9))}
    assert looked_at(db, "late") == "running"


def test_a_late_commit_of_another_topic_is_not_maintained_away(db, monkeypatch):
    """Its watermark does not become the table's property, and nothing that tells it apart goes."""
    topic = db.create_topic("kept", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    catalog, table = connect(db.lake.catalog.address()), TableName("default", "kept")
    every = [each.snapshot_id for each in table_of(db, "kept").metadata.snapshots]
    monkeypatch.setattr(expiry, "expirable", lambda *_, **__: list(every))
    asked = Recorded()
    assert expiry.expire_snapshots(asked, catalog, table)["expired"] == 1
    assert asked.calls == ["set_property", "expire"]
    land_late(table_of(db, "kept"), offset=1, owner="0123456789abcdef", end=2)
    assert expiry.expire_snapshots(asked, catalog, table)["expired"] == 0
    assert asked.calls == ["set_property", "expire"]


class Recorded:
    """Takes down what maintenance asks of Spark."""

    def __init__(self):
        self.calls = []

    def set_property(self, table, properties):
        assert (table.name, properties["frazil.offset-end"]) == ("kept", "1")
        self.calls.append("set_property")

    def expire(self, table, snapshots):
        assert (table.name, len(snapshots)) == ("kept", 1)
        self.calls.append("expire")


def test_a_first_commit_of_a_deleted_topic_is_not_taken_for_the_new_ones(db):
    """A worker that saw an empty table has no snapshot to be fenced by."""
    topic = db.create_topic("again", COLUMNS, lake=True)
    db.lake.start()
    wait_until(lambda: status_of(db, "again")["state"] == "running")
    topic.append_many([{"id": n, "text": "new"} for n in range(3)])
    land_late(table_of(db, "again"), offset=0, owner="0123456789abcdef", end=2)
    with pytest.raises(Unavailable, match="never had"):
        db.lake.flush("again", 30)
    db.lake.adopt("again", confirm=True)
    db.lake.flush("again")
    rows = [(row["_offset"], row["id"]) for row in rows_of(db, "again")]
    assert rows == [(0, -1), (2, 2)]


def test_late_rejects_of_another_topic_are_found_too(db):
    """Rejects of this topic below their end would never be written, without a word."""
    topic = db.create_topic("beside", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    side_is_ahead(db, "beside", 1, "0123456789abcdef")
    assert looked_at(db, "beside") == "running"
    topic.append_many([{"id": n, "text": ""} for n in range(1, 4)])
    side_is_ahead(db, "beside", 3, "0123456789abcdef")
    assert looked_at(db, "beside") == "stopped: ahead_of_log"
    db.lake.adopt("beside", confirm=True)
    db.lake.flush("beside")
    rows = [(row["_offset"], row["id"]) for row in rows_of(db, "beside")]
    assert rows == [(0, 0), (3, 3)]


def test_a_lake_that_is_switched_off_and_on_still_knows_that_its_log_is_an_older_copy(tmp_path):
    """What was published since is not taken for the table's rows."""
    name = "branched"
    with opened(an_older_copy(tmp_path, name)) as (db, _stand_in):
        topic = db.topic(name)
        topic.append_many([{"id": n, "text": "new"} for n in range(10, 18)])
        db.lake.start()
        wait_until(lambda: status_of(db, name)["state"] == "stopped: ahead_of_log")
        db.alter_topic(name, lake=False, confirm=True)
        db.alter_topic(name, lake=True)
        wait_until(lambda: status_of(db, name)["state"] == "stopped: ahead_of_log")
        db.lake.adopt(name, confirm=True)
        db.lake.flush(name)
        assert ids_of(db, name) == [0, 1, 2, 3, 4, *range(14, 18)]


def test_an_older_copy_that_ended_before_the_lake_took_a_step_is_known(tmp_path, monkeypatch):
    """Where its log ended when it was opened is noted before anything can be published."""
    name = "branched"
    data = an_older_copy(tmp_path, name)
    with monkeypatch.context() as patch:
        patch.setattr(lake_topics.LakeTopic, "step", lambda *_, **__: None)
        with opened(data) as (db, _stand_in):
            db.topic(name).append_many([{"id": n, "text": "new"} for n in range(10, 18)])
    with opened(data) as (db, _stand_in):
        db.lake.start()
        wait_until(lambda: status_of(db, name)["state"] != "starting")
        assert status_of(db, name)["state"] == "stopped: ahead_of_log"


def test_a_replay_that_takes_several_plans_is_chosen_once(db, monkeypatch):
    """Until the table is where it was before the rollback, it is no other rollback."""
    topic = db.create_topic("rolled", COLUMNS, lake=True)
    for number in range(5):
        topic.append(id=number, text="", ack="committed")
    table = table_of(db, "rolled")
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert looked_at(db, "rolled") == "stopped: rolled_back"
    monkeypatch.setattr(lake_topics, "PLAN_FILES_MAX", 1)
    db.lake.resume("rolled", replay=True)
    topic.append(id=5, text="", ack="committed")
    assert ids_of(db, "rolled") == list(range(6))
    assert db.lake.topics[topic.name].overrides.choice == ""


def test_a_table_that_somebody_replaced_gets_all_its_rows_again(db):
    """`CREATE OR REPLACE` keeps the properties: their watermark is not that of an empty table."""
    topic = db.create_topic("replaced", COLUMNS, lake=True)
    topic.append_many([{"id": n, "text": ""} for n in range(4)], ack="committed")
    table = table_of(db, "replaced")
    with table.transaction() as change:
        change.set_properties({"frazil.offset-end": "4"})
        change._apply((RemoveSnapshotRefUpdate(ref_name="main"),))
    assert table_of(db, "replaced").metadata.current_snapshot_id is None
    assert looked_at(db, "replaced") == "stopped: rolled_back"
    db.lake.resume("replaced", replay=True)
    topic.append(id=4, text="", ack="committed")
    assert ids_of(db, "replaced") == list(range(5))


def test_rejects_of_earlier_lives_count_as_the_table_has_them(world):
    """Else a program that is opened for each batch would never have too many."""
    db, _stand_in = world
    topic = db.create_topic("earlier", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    table = table_of(db, "earlier")
    own = table.properties["frazil.topic-id"]
    facts = {"frazil.topic-id": own, "frazil.offset-end": "1", "frazil.rows-in": "90"}
    empty = table.schema().as_arrow().empty_table()
    table.append(empty, snapshot_properties={**facts, "frazil.rows-rejected": "80"})
    assert looked_at(db, "earlier") == "running"
    topic.append(id=1, text="", ack="committed")
    state = look(connect(db.lake.catalog.address()), TableName("default", "earlier"))
    assert state.recent == (92, 80)
