"""`db.lake.verify`: what is asked of the worker, and how its answers and failures come back."""

from __future__ import annotations

import msgspec
import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake import TableName, VerifyRequest, VerifyResult
from frazil.lake.connection import connect
from tests.integration.engine.lake_engine import COLUMNS, opened

pytestmark = pytest.mark.integration


def good(name):
    """Return the answer of a worker that found nothing wrong."""
    table = TableName("default", name)
    found = VerifyResult(
        topic=f"/default/{name}", topic_id="u", table=table, sid=1, begins={-1: 0}, ends={-1: 1}
    )
    return "done", msgspec.to_builtins(found, str_keys=True)


def asked(stand_in):
    """Return the last request to verify."""
    [*_, body] = [body for op, body in stand_in.asked if op == "verify"]
    return msgspec.convert(body, VerifyRequest, str_keys=True)


def test_what_cannot_be_verified_says_so_by_its_class(db):
    """No such topic, no lake, a keyed one, one without a table: each is another error."""
    with pytest.raises(NotFound, match="nowhere"):
        db.lake.verify("nowhere")
    db.create_topic("plain", COLUMNS)
    with pytest.raises(InvalidRequest, match="has no lake"):
        db.lake.verify("plain")
    db.create_topic("by_key", COLUMNS, primary_key="id", lake=True)
    with pytest.raises(InvalidRequest, match="keyed"):
        db.lake.verify("by_key")


def test_the_failures_of_the_worker_keep_their_class_and_facts(db, stand_in):
    """A conflict stays one, with sentence and facts; a lost worker is one to try again."""
    db.create_topic("failing", COLUMNS, lake=True).append(id=1, text="", ack="committed")
    for code, error in [
        ("conflict", Conflict),
        ("not_found", NotFound),
        ("invalid", InvalidRequest),
        ("unavailable", Unavailable),
    ]:
        stand_in.answers["verify"] = ("failed", {"table": "default.failing"}, code, "a sentence")
        with pytest.raises(error) as caught:
            db.lake.verify("failing")
        assert type(caught.value) is error
        assert str(caught.value) == "a sentence (table=default.failing)"
    stand_in.answers["verify"] = "die"
    with pytest.raises(Unavailable, match="worker was lost"):
        db.lake.verify("failing")
    stand_in.answers["verify"] = good("failing")
    assert db.lake.verify("failing").verdict == "good"


def test_another_topics_table_is_not_verified(db):
    """The error comes before Spark is asked."""
    db.create_topic("taken", COLUMNS, lake=True).append(id=1, text="", ack="committed")
    db.delete_topic("taken")
    db.create_topic("taken", COLUMNS, lake=True)
    with pytest.raises(Conflict, match="another topic's"):
        db.lake.verify("taken")


def test_paused_topics_are_verified_and_stay_paused(tmp_path):
    """Spark is started for it although no topic goes on, and nothing is committed by that."""
    with opened(tmp_path) as (db, stand_in):
        db.create_topic("resting", COLUMNS, lake=True).append(id=1, text="", ack="committed")
        db.lake.pause()
    with opened(tmp_path) as (db, stand_in):
        stand_in.answers["verify"] = good("resting")
        db.topic("resting").append(id=2, text="")
        steps = []
        found = db.lake.verify("resting", progress=steps.append)
        assert (found.verdict, steps) == ("good", ["starting"])
        assert (len(stand_in.epochs), stand_in.commits) == (1, [])
        assert db.lake.status()["topics"]["/default/resting"]["state"] == "paused"
        assert [each.table.name for each in (asked(stand_in),)] == ["resting"]
        assert db.lake.rejects("resting").rows() == []
        assert db.lake.adopt("resting")["taken_over"] is False
        assert db.lake.status()["topics"]["/default/resting"]["state"] == "paused"


def test_what_was_committed_is_asked_for_when_others_took_the_table_back(db, stand_in):
    """A table that was rolled back, or made again without rows, does not say how far it was."""
    topic = db.create_topic("back", COLUMNS, lake=True)
    for number in range(2):
        topic.append_many([{"id": each, "text": ""} for each in range(10)], ack="committed")
        assert db.lake.committed("back") == {-1: 10 * (number + 1)}
    db.lake.pause("back")
    stand_in.answers["verify"] = good("back")
    catalog = connect(db.lake.catalog.address())
    table = catalog.load_table(("default", "back"))
    with table.manage_snapshots() as snapshots:
        snapshots.rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id)
    db.lake.verify("back")
    assert [each.committed for each in asked(stand_in).parts] == [20]
    catalog.drop_table(("default", "back"))
    catalog.create_table(("default", "back"), schema=table.schema(), properties=table.properties)
    db.lake.verify("back")
    assert [each.committed for each in asked(stand_in).parts] == [20]
    assert [each.lo for run in asked(stand_in).staged for each in run.plan.parts] == [0]


def test_a_topic_without_its_table_is_not_found(db):
    """There is nothing to verify once somebody dropped it."""
    db.create_topic("bare", COLUMNS, lake=True).append(id=1, text="", ack="committed")
    connect(db.lake.catalog.address()).purge_table(("default", "bare"))
    with pytest.raises(NotFound, match="bare"):
        db.lake.verify("bare")


def test_nobody_waits_for_a_spark_that_says_it_cannot_start(tmp_path):
    """Without Java, a flush, a proof and an ack end with the reason, long before their time."""
    with opened(tmp_path) as (db, _stand_in):
        db.create_topic("safe", COLUMNS, lake=True).append(id=1, text="", ack="committed")
    with opened(tmp_path, **{"lake.ack_timeout_s": 1.0}) as (db, stand_in):
        stand_in.answers["hello"] = ("failed", {}, "unavailable", "there is no Java")
        topic = db.topic("safe")
        topic.append(id=2, text="")
        # A flush and a proof have five minutes at least, more than this test has.
        with pytest.raises(Unavailable, match="there is no Java"):
            db.lake.flush("safe")
        with pytest.raises(Unavailable, match="there is no Java"):
            db.lake.verify("safe")
        with pytest.raises(Unavailable, match="there is no Java"):
            topic.append(id=3, text="", ack="committed")
        stand_in.answers = {}
        assert db.lake.flush("safe") == {"/default/safe": {-1: 3}}
