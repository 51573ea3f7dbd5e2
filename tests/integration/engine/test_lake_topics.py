"""Topics on their way into tables: a real catalog and real tables; the worker runs without Spark."""

from __future__ import annotations

import asyncio
import logging
import time

import pyarrow as pa
import pytest

from frazil.engine import AsyncEngine
from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake import SKIPPED, STEPS, decode_ranges
from frazil.lake.connection import connect
from frazil.tiers import merge_once
from tests.integration.engine.lake_engine import (
    COLUMNS,
    an_older_copy,
    ids_of,
    opened,
    rows_of,
    status_of,
    table_of,
    wait_until,
)


def test_committed_records_are_in_the_table_and_in_the_watermark(db, stand_in):
    """An ack of `committed` comes when the row is in the table; the hold and describe say so."""
    topic = db.create_topic("acked", COLUMNS, lake=True)
    topic.append(id=1, text="a")
    ack = topic.append(id=2, text="b", ack="committed")
    assert (ack.offset, ids_of(db, "acked")) == (1, [1, 2])
    facts = topic.describe()
    assert facts["watermarks"]["committed"] == 2 <= facts["watermarks"]["flushed"]
    assert facts["holds"] == {"lake": 2}
    many = topic.append_many([{"id": 3, "text": "c"}, {"id": 4, "text": "d"}], ack="committed")
    assert many.offset_last == 3
    topic.append_arrow(pa.table({"id": [5], "text": ["e"]}), ack="committed")
    pending = topic.send(id=6, text="f", ack="committed")
    assert pending.result().offset == 5
    assert ids_of(db, "acked") == [1, 2, 3, 4, 5, 6]
    state = status_of(db, "acked")
    assert (state["state"], state["committed"], state["lag_records"]) == ("running", 6, 0)
    assert not stand_in.die_at


def test_many_who_wait_share_one_commit_a_second(db, stand_in):
    """Publishes that all want to be committed make at most one commit a second a table."""
    topic = db.create_topic("hurried", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    before = len(stand_in.commits)
    begun = time.monotonic()
    pending = []
    for number in range(1, 25):
        pending.append(topic.send(id=number, text="", ack="committed"))
        time.sleep(0.05)
    assert [each.result().offset for each in pending] == list(range(1, 25))
    # A rate, by the time that it took: a slow machine may commit more often, never less.
    assert len(stand_in.commits) - before <= time.monotonic() - begun + 1
    assert ids_of(db, "hurried") == list(range(25))


def test_parts_share_a_table_and_asyncio_waits_for_it(db):
    """Rows of all parts are in one table with `_part`; async calls wait without a thread each."""
    topic = db.create_topic("shared", COLUMNS, partitions=3, lake=True)
    assert topic.append(id=0, text="", ack="committed").part == 0
    acks = topic.append_many([{"id": n, "text": "x"} for n in range(1, 7)], ack="committed")
    assert len(acks) == 3

    async def publish():
        found = AsyncEngine(db).topic("shared")
        await asyncio.gather(*(found.append(id=n, text="", ack="committed") for n in (7, 8, 9)))
        await found.append_many([{"id": n, "text": ""} for n in (10, 11)], ack="committed")
        await found.append_arrow(pa.table({"id": [12], "text": ["x"]}), ack="committed")

    asyncio.run(publish())
    rows = rows_of(db, "shared")
    assert sorted(row["id"] for row in rows) == list(range(13))
    places = [(row["_part"], row["_offset"]) for row in rows]
    ends = db.lake.committed("shared")
    assert places == [(part, n) for part in range(3) for n in range(ends[part])]


@pytest.mark.parametrize("step", [each for each in STEPS if "reject" not in each])
def test_a_worker_that_dies_at_a_step_doubles_and_loses_nothing(db, stand_in, step):
    """Whatever step it reached, the next worker finishes the plan: each row is there once."""
    name = f"dying_{step}"
    topic = db.create_topic(name, COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    epochs = len(stand_in.epochs)
    stand_in.die_at = step
    for number in range(1, 5):
        topic.append(id=number, text="x")
    db.lake.flush(name)
    assert ids_of(db, name) == [0, 1, 2, 3, 4]
    died = not stand_in.die_at
    assert died == (step in stand_in.steps)
    assert (len(stand_in.epochs), stand_in.epochs) == (epochs + died, sorted(set(stand_in.epochs)))


def test_records_wait_when_the_lake_is_late(db, stand_in):
    """The error of a publish that waits too long says that its record is fsynced, and where it is."""
    topic = db.create_topic("late", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    db.lake.pause("late")
    with pytest.raises(Unavailable) as caught:
        topic.append(id=1, text="", ack="committed")
    assert (caught.value.details["outcome"], caught.value.details["offset"]) == ("fsynced", 1)
    assert "paused" in str(caught.value)
    assert status_of(db, "late")["state"] == "paused"
    with pytest.raises(Unavailable, match="paused"):
        db.lake.flush("late")
    db.lake.resume("late")
    db.lake.flush("late")
    assert ids_of(db, "late") == [0, 1]
    assert stand_in.refuse is None


def test_a_worker_that_fails_is_asked_again(db, stand_in):
    """What may pass is tried again with the same plan; what will not pass stops the topic."""
    topic = db.create_topic("failing", COLUMNS, lake=True)
    topic.append(id=0, text="", ack="committed")
    stand_in.refuse = Unavailable("storage is away")
    topic.append(id=1, text="")
    with pytest.raises(Unavailable):
        db.lake.flush("failing", timeout_s=0.1)
    wait_until(lambda: "storage is away" in status_of(db, "failing")["why"])
    plan = status_of(db, "failing")["plan"]
    assert plan is not None
    stand_in.refuse = InvalidRequest("a column cannot be written")
    wait_until(lambda: status_of(db, "failing")["state"] == "stopped: invalid")
    assert db.stats()["health"] == "degraded"
    assert "cannot be written" in status_of(db, "failing")["why"]
    stand_in.refuse = None
    db.lake.resume("failing")
    db.lake.flush("failing")
    assert stand_in.commits[-1].plan.id == plan
    assert ids_of(db, "failing") == [0, 1]


def test_commits_and_refusals_are_counted_and_logged_as_events(db, stand_in, caplog):
    """An event names topic, range, rows, files, seconds and snapshot; `stats` has the sums."""
    caplog.set_level(logging.INFO, logger="frazil")
    topic = db.create_topic("counted", COLUMNS, lake=True)
    topic.append_many([{"id": n, "text": ""} for n in range(3)], ack="committed")

    def event(name):
        """Return the facts of this topic's event: other topics of the engine have theirs."""

        def found():
            return [
                each.facts
                for each in caplog.records
                if each.message == name and each.facts.get("topic") == topic.name
            ]

        wait_until(found)
        return found()[0]

    done = event("lake_committed")
    assert (done["topic"], done["range"], done["rows"]) == ("/default/counted", "0..3", 3)
    assert (done["files"], str(done["table"])) == (1, "default.counted")
    assert done["seconds"] > 0
    assert done["snapshot"] == table_of(db, "counted").metadata.current_snapshot_id
    stand_in.refuse = InvalidRequest("a column cannot be written")
    with pytest.raises(Unavailable):
        topic.append(id=3, text="", ack="committed")
    refused = event("lake_stopped")
    assert (refused["topic"], refused["range"]) == ("/default/counted", "3..4")
    assert "cannot be written" in refused["message"]
    counts = status_of(db, "counted")
    assert {name: counts[name] for name in ("commits", "rows", "stops")} == {
        "commits": 1,
        "rows": 3,
        "stops": 1,
    }
    assert counts["bytes"] > 0
    totals = db.stats()["lake"]["totals"]
    assert all(totals[name] >= counts[name] for name in ("commits", "rows", "stops", "bytes"))
    assert totals["lag_records"] >= 1
    assert totals["lag_seconds"] > 0
    assert totals["commit_seconds"]["max"] >= totals["commit_seconds"]["p50"] > 0
    assert totals["states"]["stopped"] >= 1
    worker = db.stats()["lake"]["worker"]
    assert worker["restarts"] == worker["starts"] - 1


def test_the_interval_moves_records_by_itself(db):
    """Without anybody asking, a record is committed when the topic's own interval is over."""
    topic = db.create_topic("timed", COLUMNS, lake=True, signals={"flush_interval": "200ms"})
    topic.append(id=1, text="")
    wait_until(lambda: db.lake.committed("timed") == {-1: 1})
    assert ids_of(db, "timed") == [1]


def test_columns_that_change_change_the_table(db):
    """A plan never spans two versions; the table gets each before its first row."""
    topic = db.create_topic("growing", COLUMNS, lake=True)
    topic.append(id=1, text="a")
    db.tiers.flush("growing")
    db.alter_topic("growing", add={"more": "double"}, rename={"text": "words"})
    topic.append(id=2, words="b", more=0.5)
    db.lake.flush("growing")
    found = [(row["id"], row["words"], row["more"]) for row in rows_of(db, "growing")]
    assert found == [(1, "a", None), (2, "b", 0.5)]
    assert status_of(db, "growing")["schema_version"] == 2
    with pytest.raises(InvalidRequest, match="_pos"):
        db.alter_topic("growing", add={"_pos": "long"})


def test_names_and_columns_that_no_table_can_have_are_refused(db):
    """Nothing is made: the same names are free afterwards."""
    db.create_topic("Folded", COLUMNS, lake=True)
    for name, columns in [
        ("folded", COLUMNS),
        ("x__rejects", COLUMNS),
        ("x", {"_change_type": "long"}),
        ("x", {"a": "long", "A": "long"}),
        ("x", {"at": pa.timestamp("ns")}),
    ]:
        with pytest.raises(InvalidRequest):
            db.create_topic(name, columns, lake=True)
        with pytest.raises(NotFound):
            db.topic(name)
    with pytest.raises(InvalidRequest, match="nowhere"):
        db.create_topic("x", COLUMNS, partition_by=["nowhere"], lake=True)
    db.create_topic("x", {"at": pa.timestamp("ns")}, lake=False)
    with pytest.raises(InvalidRequest):
        db.alter_topic("x", lake=True)
    with pytest.raises(InvalidRequest, match="True"):
        db.create_topic("y", COLUMNS, lake="yes")


def test_a_keyed_topic_waits(db):
    """Its records wait without a table, visible in `status`; `committed` is refused."""
    topic = db.create_topic("keyed", COLUMNS, primary_key="id", lake=True)
    topic.upsert(id=1, text="a")
    state = status_of(db, "keyed")
    assert (state["state"], state["lag_records"]) == ("waiting", 1)
    assert "keyed tables come later" in state["why"]
    for publish in (topic.append, topic.upsert):
        with pytest.raises(InvalidRequest, match="ack level"):
            publish(id=2, text="b", ack="committed")
    with pytest.raises(Unavailable, match="keyed"):
        db.lake.flush("keyed")


def test_a_lake_is_switched_on_and_off(db):
    """On: what is held goes into the table. Off: a confirmation is needed, the hold goes."""
    topic = db.create_topic("switched", COLUMNS)
    topic.append(id=1, text="")
    with pytest.raises(InvalidRequest, match="tier that this topic does not have"):
        topic.append(id=2, text="", ack="committed")
    db.alter_topic("switched", lake=True)
    topic.append(id=2, text="", ack="committed")
    assert ids_of(db, "switched") == [1, 2]
    with pytest.raises(InvalidRequest, match="the lake's"):
        topic.drop("lake")
    with pytest.raises(InvalidRequest, match="confirm"):
        db.alter_topic("switched", lake=False)
    db.alter_topic("switched", lake=False, confirm=True)
    assert topic.describe()["holds"] == {}
    assert "committed" not in topic.describe()["watermarks"]
    with pytest.raises(InvalidRequest, match="has no lake"):
        db.lake.flush("switched")
    assert ids_of(db, "switched") == [1, 2]


def test_a_deleted_topic_leaves_its_table_unless_it_is_to_be_dropped(db):
    """The table stays and a new topic of that name does not write into it."""
    for name in ("kept", "dropped"):
        db.create_topic(name, COLUMNS, lake=True).append(id=1, text="", ack="committed")
        db.delete_topic(name, drop_table=name == "dropped")
    assert ids_of(db, "kept") == [1]
    with pytest.raises(Exception, match="does not exist"):
        table_of(db, "dropped")
    again = db.create_topic("kept", COLUMNS, lake=True)
    with pytest.raises(Unavailable) as caught:
        again.append(id=2, text="", ack="committed")
    assert "another topic" in str(caught.value)
    assert status_of(db, "kept")["state"] == "stopped: foreign_table"
    assert ids_of(db, "kept") == [1]


def test_a_table_that_was_rolled_back_waits_for_a_choice(db):
    """Replay moves the rows again, accept goes on without them."""
    for name, choice in (("replayed", "replay"), ("accepted", "accept")):
        topic = db.create_topic(name, COLUMNS, lake=True)
        topic.append(id=1, text="", ack="committed")
        before = table_of(db, name).metadata.current_snapshot_id
        topic.append(id=2, text="", ack="committed")
        with table_of(db, name).manage_snapshots() as snapshots:
            snapshots.rollback_to_snapshot(before)
        topic.append(id=3, text="")
        with pytest.raises(Unavailable, match="rolled back"):
            db.lake.flush(name)
        assert status_of(db, name)["state"] == "stopped: rolled_back"
        db.lake.resume(name, **{choice: True})
        db.lake.flush(name)
        assert ids_of(db, name) == ([1, 2, 3] if choice == "replay" else [1, 3])
        skipped = decode_ranges(table_of(db, name).properties, SKIPPED)
        assert skipped == ({} if choice == "replay" else {-1: ((1, 2),)})
    with pytest.raises(InvalidRequest, match="not both"):
        db.lake.resume("replayed", replay=True, accept=True)


def test_a_table_that_is_gone_is_not_made_again_unasked(db):
    """A dropped table stops the topic; replay fills a new one from what is held."""
    topic = db.create_topic("gone", COLUMNS, lake=True)
    topic.append(id=1, text="", ack="committed")
    for name in ("gone", "gone__rejects"):
        connect(db.lake.catalog.address()).purge_table(("default", name))
    topic.append(id=2, text="")
    with pytest.raises(Unavailable, match="gone"):
        db.lake.flush("gone")
    assert status_of(db, "gone")["state"] == "stopped: table_missing"
    db.lake.resume("gone", replay=True)
    db.lake.flush("gone")
    assert ids_of(db, "gone") == [1, 2]


def test_a_plan_outlives_the_engine(tmp_path):
    """After a restart the same plan runs again, its files are still there, no row is doubled."""
    with opened(tmp_path) as (db, stand_in):
        topic = db.create_topic("plan", COLUMNS, lake=True)
        topic.append(id=0, text="", ack="committed")
        stand_in.refuse = Unavailable("not now")
        for number in range(1, 4):
            topic.append(id=number, text="x")
            db.tiers.flush("plan")
        with pytest.raises(Unavailable):
            db.lake.flush("plan", timeout_s=0.1)
        wait_until(lambda: status_of(db, "plan")["plan"])
        plan = status_of(db, "plan")["plan"]
        db.lake.pause()
    with opened(tmp_path) as (db, stand_in):
        assert status_of(db, "plan")["state"] == "paused"
        names = {file["file"] for file in db.tiers.describe_files("plan")}
        for number in range(4, 9):
            db.topic("plan").append(id=number, text="x")
            db.tiers.flush("plan")
        while merge_once(db.tiers.disk, db.topic("plan").runtime.state.id):
            pass
        assert {
            file.path.rpartition("/")[2]
            for file in db.lake.topics["/default/plan"].plan.parts[0].files
        } <= names
        db.lake.resume()
        db.lake.flush("plan")
        assert stand_in.commits[0].plan.id == plan
        assert ids_of(db, "plan") == list(range(9))
        assert stand_in.epochs[0] > 1


def test_a_table_ahead_of_the_log_is_adopted(tmp_path):
    """An older copy of the data stops the topic; adopt raises its head, no offset is used twice."""
    data = an_older_copy(tmp_path, "ahead")
    with opened(data) as (db, _stand_in):
        topic = db.topic("ahead")
        db.lake.start()
        wait_until(lambda: status_of(db, "ahead")["state"] == "stopped: ahead_of_log")
        assert topic.describe()["watermarks"]["committed"] == 1
        assert db.lake.adopt("ahead")["raised"] == {"-1": 4}
        assert topic.append(id=9, text="", ack="committed").offset == 5
        assert ids_of(db, "ahead") == [0, 1, 2, 3, 4, 9]
    with opened(data) as (db, _stand_in):
        assert db.topic("ahead").describe()["watermarks"]["head"] == 6


@pytest.mark.parametrize("warehouse", ["file", "s3://b/x"])
def test_a_warehouse_that_takes_no_files_is_named_and_the_records_wait(tmp_path, warehouse):
    """Publishing goes on, `status` names the setting, and with a good one nothing is lost."""
    (tmp_path / "file").write_bytes(b"")
    wrong = {"lake.warehouse": warehouse if "://" in warehouse else str(tmp_path / warehouse)}
    with opened(tmp_path / "data", **wrong) as (db, _stand_in):
        db.create_topic("waiting", COLUMNS, lake=True).append(id=1, text="")
        db.lake.start()
        wait_until(lambda: "lake.warehouse" in status_of(db, "waiting")["why"])
        db.topic("waiting").append(id=2, text="")
        assert status_of(db, "waiting")["lag_records"] == 2
    with opened(tmp_path / "data") as (db, _stand_in):
        db.lake.flush("waiting")
        assert ids_of(db, "waiting") == [1, 2]


def test_writers_with_little_memory_get_less_to_write_at_once(tmp_path, monkeypatch):
    """Sets that fit into one commit otherwise become several; every row comes once."""
    sizes = []
    for name, memory in (("wide", 256 << 20), ("narrow", 1 << 20)):
        monkeypatch.setattr("frazil.lake.plan.PLAN_BYTES_MAX", memory)
        with opened(tmp_path / name) as (db, stand_in):
            topic = db.create_topic("thrifty", COLUMNS, lake=True)
            db.lake.pause()
            for number in range(3):
                text = db.clock.random_bytes(500_000).hex()
                topic.append(id=number, text=text)
                db.tiers.flush("thrifty")
            db.lake.resume()
            db.lake.flush("thrifty")
            assert ids_of(db, "thrifty") == [0, 1, 2]
            sizes.append(len(stand_in.commits))
    assert sizes[0] == 1
    assert sizes[1] > 1


def test_without_the_extra_a_lake_is_refused_with_what_to_install(tmp_path, monkeypatch):
    """The topic is not made; everything but the lake works."""
    from frazil.lake import options

    monkeypatch.setattr(options, "PACKAGES", ("json", "no_such_package_here"))
    with opened(tmp_path) as (db, _stand_in):
        with pytest.raises(InvalidRequest, match=r"pip install \"frazil\[lake\]\"") as caught:
            db.create_topic("t", COLUMNS, lake=True)
        assert caught.value.details["missing"] == "no_such_package_here"
        db.create_topic("t", COLUMNS).append(id=1, text="")
        with pytest.raises(InvalidRequest, match="frazil"):
            db.alter_topic("t", lake=True)
        assert db.lake.status() == {"state": "off", "topics": {}}
    with (
        pytest.raises((InvalidRequest, Conflict)),
        opened(tmp_path / "log", **{"memory.enabled": False}) as (db, _stand_in),
    ):
        db.create_topic("t", COLUMNS, lake=True)
