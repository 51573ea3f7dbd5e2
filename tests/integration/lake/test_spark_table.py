"""The calls on real tables: what they refuse, what they say, what they leave behind."""

from __future__ import annotations

import socket

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from frazil.clock import SystemClock
from frazil.errors import (
    CommitUnknown,
    Conflict,
    FrazilError,
    NotFound,
    Unavailable,
)
from frazil.fs import RealFileSystem
from frazil.lake import Failpoints, Request, TableName
from frazil.lake.expiry import expire_snapshots
from frazil.lake.spark_table import SparkTables
from frazil.lake.worker_jobs import Jobs
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

COLUMNS = {"id": "long", "name": "string"}


def frame(world, first, end):
    """Rows of the table with these offsets."""
    number = F.col("id")
    return world.session.range(first, end, 1, 1).select(
        number.alias("_offset"),
        F.timestamp_micros(number).alias("_time"),
        number,
        F.concat(F.lit("n"), number.cast("string")).alias("name"),
    )


def append(world, topic, first, end, sid):
    summary = {"frazil.offset-end": str(end), "frazil.topic-id": topic.uid}
    return world.tables.cas_append(topic.table, frame(world, first, end), sid=sid, summary=summary)


def test_an_append_returns_its_own_snapshot(world):
    """Also when somebody else commits right behind it."""
    topic = world.topic(COLUMNS)
    one = append(world, topic, 0, 5, None)
    two = append(world, topic, 5, 9, one)
    assert world.tables.load(topic.table).sid == two
    made = world.tables.made(two)
    assert (made.number("added-records"), made.number("added-data-files")) == (4, 1)
    assert world.tables.made(two) is None


def test_a_conflict_is_one_sentence(world):
    """It names the table and the cause, without a trace, and nothing is added."""
    topic = world.topic(COLUMNS)
    sid = append(world, topic, 0, 5, None)
    append(world, topic, 5, 9, sid)
    with pytest.raises(Conflict) as caught:
        append(world, topic, 5, 9, sid)
    text = str(caught.value)
    assert str(topic.table) in text
    assert "ValidationException" in text
    assert "\n" not in text
    assert "\tat " not in text
    assert topic.offsets() == list(range(9))


def test_a_table_that_is_gone_is_not_found(world):
    """For looks, columns and writes alike."""
    topic = world.topic(COLUMNS)
    gone = TableName("lake", "nobody")
    with pytest.raises(NotFound, match=r"lake\.nobody"):
        world.tables.load(gone)
    with pytest.raises(NotFound, match=r"lake\.nobody"):
        world.tables.columns(gone)
    with pytest.raises(NotFound, match=r"lake\.nobody"):
        world.tables.cas_append(gone, frame(world, 0, 1), sid=None, summary={})
    with pytest.raises(NotFound):
        world.tables.set_property(gone, {"a": "b"})
    assert topic.snapshots() == []


def test_rows_of_other_columns_are_refused(world):
    """Columns that changed since the stages looked are a conflict; nothing is written."""
    topic = world.topic(COLUMNS)
    with pytest.raises(Conflict, match="columns"):
        world.tables.cas_append(
            topic.table, world.session.range(3), sid=None, summary={"frazil.offset-end": "3"}
        )
    assert topic.snapshots() == []


@pytest.fixture
def dead_tables(world):
    """The same tables behind a catalog that takes calls and never answers them."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    prefix = "spark.sql.catalog.dead"
    world.session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    world.session.conf.set(f"{prefix}.type", "rest")
    world.session.conf.set(f"{prefix}.uri", f"http://127.0.0.1:{port}")
    listener.close()
    return SparkTables(world.session, world.catalog, name="dead")


def test_a_catalog_that_does_not_answer_leaves_a_write_unknown(world, dead_tables):
    """A read is unavailable; a write may have happened, and nobody may take it for a conflict."""
    topic = world.topic(COLUMNS)
    with pytest.raises(FrazilError) as read:
        dead_tables.columns(topic.table)
    assert isinstance(read.value, Unavailable)
    with pytest.raises(FrazilError) as written:
        dead_tables.cas_append(topic.table, frame(world, 0, 1), sid=None, summary={})
    assert isinstance(written.value, (CommitUnknown, Unavailable))
    assert not isinstance(written.value, Conflict)


def test_maintenance_expires_what_is_not_needed(world):
    """Old snapshots go, rows and the watermark stay, and the property is set first."""
    topic = world.topic(COLUMNS)
    sid = None
    for number in range(26):
        sid = append(world, topic, number, number + 1, sid)
    steps = []
    done = expire_snapshots(
        world.tables, world.catalog, topic.table, snapshots_max=24, progress=steps.append
    )
    assert done["expired"] == 6
    assert steps == ["property_setting", "property_set", "expired"]
    view = world.tables.load(topic.table)
    assert (view.sid, view.snapshots) == (sid, 20)
    assert (view.summary_ends, view.property_ends) == ({-1: 26}, {-1: 26})
    assert topic.offsets() == list(range(26))
    again = expire_snapshots(world.tables, world.catalog, topic.table, snapshots_max=24)
    assert again["expired"] == 0


def test_a_table_that_has_grown_is_maintained_behind_the_answer(world, monkeypatch):
    """The commit is answered first; then snapshots go, and the next commit finds fewer."""
    topic = world.topic(COLUMNS)
    sid = None
    for number in range(24):
        sid = append(world, topic, number, number + 1, sid)
    topic.ends = {-1: 24}
    monkeypatch.setattr("frazil.lake.spark_table.SNAPSHOTS_MAX", 24)
    monkeypatch.setitem(expire_snapshots.__kwdefaults__, "snapshots_max", 24)
    answers = []

    def answer(given):
        answers.append((given.state, world.tables.load(topic.table).snapshots))

    jobs = Jobs(answer, Failpoints({}, RealFileSystem()), SystemClock())
    jobs.open(world.spark)
    plan = topic.plan(topic.stage([{"id": 24, "name": "n"}]))
    jobs.take(Request(1, "commit", topic.request(plan).body()))
    assert jobs.drain(120.0)
    assert answers[-1] == ("done", 25)
    view = world.tables.load(topic.table)
    assert (view.snapshots, view.summary_ends) == (20, {-1: 25})
    assert topic.offsets() == list(range(25))
