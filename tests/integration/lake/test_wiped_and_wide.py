"""Others work on a topic's table, and what the engine knew of it is lost."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.errors import Unavailable
from frazil.lake.connection import connect
from tests.integration.lake.spark_engine import check_rows, opened, session_at, verify_here
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

COLUMNS = {"id": "long", "text": "string"}
WIDE = {"id": "long", **{f"c{number}": "int" for number in range(149)}}


def publish(topic, wanted, count):
    """Publish rows of the next numbers and note what each offset has."""
    ids = [10_000 + len(wanted) + number for number in range(count)]
    columns = {"id": pa.array(ids, pa.int64())}
    names = topic.describe()["columns"]
    for name in (each["name"] for each in names):
        if name.startswith("c"):
            columns[name] = pa.array([number * 7 for number in range(count)], pa.int32())
    first = topic.append_arrow(pa.table(columns)).offset
    wanted.update(enumerate(ids, start=first))


def catalog_of(db):
    return connect(db.lake.catalog.address())


def compact(world, db, name):
    """Rewrite a table's files as somebody else would."""
    call(world, db, f"rewrite_data_files(table => 'default.{name}', {REWRITE_ALL})")


def expire(world, db, name):
    """Expire everything but the newest snapshot, as somebody else would."""
    call(world, db, f"expire_snapshots(table => 'default.{name}', {KEEP_ONE})")


REWRITE_ALL = "options => map('rewrite-all', 'true')"
KEEP_ONE = "older_than => TIMESTAMP '2999-01-01', retain_last => 1"


def call(world, db, text):
    session_at(world, db.lake.catalog.address()).sql(f"CALL frazil.system.{text}").collect()


def check(db, name, wanted, *, gaps=0, adopted=0):
    """Assert that the table has what was published, once, by three readers."""
    check_rows(catalog_of(db), name, wanted)
    found = db.lake.verify(name)
    assert (found.verdict, found.problems) == ("good", ())
    assert (found.rows, found.gaps, found.adopted) == (len(wanted), gaps, adopted)
    assert found.compared == len(wanted) - adopted


def wipe(path):
    """Remove everything but the catalog and the tables: a data directory that was lost."""
    for each in path.iterdir():
        if each.name.startswith(("catalog.db", "warehouse")):
            continue
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def test_others_compact_and_expire_between_all_commits(world, tmp_path):
    """With none of our summaries left after any commit, no record is lost or there twice."""
    wanted = {}
    with opened(world, tmp_path) as db:
        topic = db.create_topic("shared", COLUMNS, lake=True)
        for _round in range(3):
            publish(topic, wanted, 10)
            db.lake.flush("shared")
            compact(world, db, "shared")
            expire(world, db, "shared")
            [left] = catalog_of(db).load_table(("default", "shared")).metadata.snapshots
            assert not any(key.startswith("frazil.") for key in left.summary.additional_properties)
        check(db, "shared", wanted)
    with opened(world, tmp_path) as db:
        publish(db.topic("shared"), wanted, 5)
        db.lake.flush("shared")
        check(db, "shared", wanted)


def test_a_wiped_directory_does_not_touch_a_full_table(world, tmp_path):
    """A new topic of the same name waits with a reason until it adopts the table."""
    wanted, own = {}, {}
    with opened(world, tmp_path) as db:
        publish(db.create_topic("full", COLUMNS, lake=True), wanted, 30)
        db.lake.flush("full")
        sid = catalog_of(db).load_table(("default", "full")).metadata.current_snapshot_id
    wipe(tmp_path)
    with opened(world, tmp_path) as db:
        topic = db.create_topic("full", COLUMNS, lake=True)
        publish(topic, own, 4)
        with pytest.raises(Unavailable) as caught:
            db.lake.flush("full")
        assert "frazil lake adopt" in str(caught.value)
        assert "belongs to another topic" in str(caught.value)
        assert db.lake.status()["topics"]["/default/full"]["state"] == "stopped: foreign_table"
        table = catalog_of(db).load_table(("default", "full"))
        assert table.metadata.current_snapshot_id == sid
        check_rows(catalog_of(db), "full", wanted)
        assert [row["id"] for row in rows_waiting(topic)] == list(own.values())
        done = db.lake.adopt("full", confirm=True)
        assert (done["taken_over"], done["left_out"]) == (True, {"-1": [[0, 4]]})
        publish(topic, wanted, 3)
        db.lake.flush("full")
        check(db, "full", wanted, gaps=0, adopted=30)
    with opened(world, tmp_path) as db:
        check(db, "full", wanted, gaps=0, adopted=30)


def rows_waiting(topic):
    return [row for batch in topic.read() for row in batch.data.to_pylist()]


def test_150_columns_with_all_marks_and_all_memory_lost(world, tmp_path):
    """The files' bounds alone tell where a wide table stands, also to an engine that forgot it."""
    wanted = {}
    with opened(world, tmp_path) as db:
        topic = db.create_topic("wide", WIDE, lake=True)
        publish(topic, wanted, 25)
        db.lake.flush("wide")
        compact(world, db, "wide")
        expire(world, db, "wide")
        publish(topic, wanted, 5)
    for path in tmp_path.glob("meta.db*"):
        path.unlink()
    with opened(world, tmp_path) as db:
        topic = db.topic("wide")
        publish(topic, wanted, 5)
        db.lake.flush("wide")
        check(db, "wide", wanted)
        found = catalog_of(db).load_table(("default", "wide")).scan().to_arrow().to_pylist()
        assert {(row["c0"], row["c148"]) for row in found} == {(n * 7, n * 7) for n in range(25)}


def test_the_exit_code_of_verify_is_the_verdict(world, tmp_path):
    """0 for a good table, 2 for rows that others deleted, 8 for rows that are there twice."""
    wanted = {}
    with opened(world, tmp_path) as db:
        publish(db.create_topic("judged", COLUMNS, lake=True), wanted, 12)
        db.lake.flush("judged")
    code, report = verify_here(world, tmp_path, "judged")
    assert (code, report["verdict"], report["rows"], report["compared"]) == (0, "good", 12, 12)
    with opened(world, tmp_path) as db:
        catalog_of(db).load_table(("default", "judged")).delete("_offset = 3")
    code, report = verify_here(world, tmp_path, "judged")
    assert (code, report["deleted"], report["deleted_ranges"]) == (2, 1, ["3"])
    with opened(world, tmp_path) as db:
        table = catalog_of(db).load_table(("default", "judged"))
        table.append(table.scan(row_filter="_offset = 5").to_arrow())
    code, report = verify_here(world, tmp_path, "judged")
    assert (code, report["verdict"]) == (8, "damaged")
    assert (report["problems"][0]["kind"], report["problems"][0]["examples"]) == ("doubled", ["5"])


def test_a_table_is_sorted_as_its_topic_says(world, tmp_path):
    """The table has the topic's sort order, and Spark writes each file by it; nothing else moves."""
    with opened(world, tmp_path) as db:
        topic = db.create_topic("sorted", COLUMNS, sort_by=["text"], lake=True)
        topic.append_many([{"id": number, "text": f"t{number}"} for number in (5, 3, 9, 1)])
        db.lake.flush("sorted")
        table = catalog_of(db).load_table(("default", "sorted"))
        names = [table.schema().find_column_name(f.source_id) for f in table.sort_order().fields]
        assert names == ["text"]
        [file] = [task.file.file_path for task in table.scan().plan_files()]
        texts = pq.read_table(file.removeprefix("file://"))["text"].to_pylist()
        assert texts == ["t1", "t3", "t5", "t9"]
        assert db.lake.verify("sorted").verdict == "good"
