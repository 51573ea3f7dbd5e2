"""Topics by name: create, describe, list, alter, delete, and what is refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import frazil
from frazil.errors import Closed, Conflict, InvalidRequest, NotFound, Overloaded
from tests.integration.engine.opening import column_of, open_small, payloads_of, rows_of

DESCRIPTION = {
    *("name", "id", "kind", "created", "version", "sync", "columns", "schema_version"),
    *("primary_key", "partition_by", "sort_by", "part_of", "part_index", "retention_age_s"),
    *("retention_bytes", "on_full", "holds", "watermarks", "gaps", "lost", "producers", "refused"),
    *("oldest_kept_by", "unknown_key", "signals", "lake", "objects", "topic_id"),
}


def test_a_message_topic_has_the_envelope_as_columns(engine):
    """A topic without columns is a message topic whose envelope is nullable but payload and time."""
    topic = engine.create_topic("events")
    nullable = {field.name: field.nullable for field in topic.schema}
    assert nullable == {
        "payload": False,
        "key": True,
        "attributes": True,
        "publish_time": False,
        "producer_name": True,
        "producer_id": True,
        "schema_id": True,
        "schema_version": True,
    }


def test_describe_tells_everything(engine):
    """The description names columns, key, partition spec, options and watermarks."""
    engine.create_topic(
        "/shop/orders",
        {"id": "long", "at": "timestamptz", "city": "string"},
        primary_key="id",
        partition_by=["day(at)", "bucket[4](id)"],
        sync="periodic",
        retention_bytes="1MB",
        unknown_key="error",
        signals={"flush_age_s": 30},
    )
    facts = engine.describe("/shop/orders")
    engine.create_topic("log", retention_age="2h", on_full="expire")
    expiring = engine.describe("log")
    assert set(facts) == DESCRIPTION
    assert facts["primary_key"] == ["id"]
    assert len(facts["partition_by"]) == 2
    assert (facts["sync"], facts["on_full"]) == ("periodic", "block")
    assert (expiring["retention_age_s"], expiring["on_full"]) == (7200.0, "expire")
    assert (facts["unknown_key"], facts["signals"]) == ("error", {"flush_age_s": 30.0})
    assert (facts["retention_age_s"], facts["retention_bytes"]) == (None, 1_000_000)
    assert facts["watermarks"] == {
        "start": 0,
        "floor": 0,
        "durable": 0,
        "head": 0,
        "flushed": 0,
    }


def test_topics_survive_a_restart(tmp_path):
    """Topics, options and columns are the same after closing and opening."""
    with open_small(tmp_path) as db:
        db.create_topic("a")
        db.create_topic("/ns/b", {"x": "int"}, sync="periodic")
        db.create_topic("c", partitions=3)
        before = {name: db.describe(name) for name in db.topics()}
    with open_small(tmp_path) as db:
        assert {name: db.describe(name) for name in db.topics()} == before
        assert db.topics("ns") == ["/ns/b"]
        assert db.warnings == []


def test_an_existing_topic_is_a_conflict_unless_allowed(engine):
    """Creating twice is a conflict; `exist_ok` returns the topic that is there."""
    topic = engine.create_topic("a")
    topic.append(b"1")
    with pytest.raises(Conflict, match="exists"):
        engine.create_topic("/default/a")
    assert payloads_of(engine.create_topic("a", exist_ok=True)) == [b"1"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "/x",
        "/x/",
        "//y",
        "/a/b/c",
        "x" * 201,
        "a.b",
        "t-part-1",
        5,
        None,
        "/information_schema/t",
        "/Information_Schema/tables",
    ],
)
def test_wrong_names_are_refused(engine, name):
    """A name is two parts of letters, digits, _ and -; nothing is written for another."""
    with pytest.raises(InvalidRequest):
        engine.create_topic(name)
    assert engine.topics() == []


def test_too_many_topics_are_refused(tmp_path):
    """The limit on topics counts parts, too, and says how to go on."""
    with open_small(tmp_path, topics={"topics_max": 3}) as db:
        db.create_topic("a")
        with pytest.raises(Overloaded, match="topics_max"):
            db.create_topic("b", partitions=4)
        db.create_topic("c")
        assert db.topics() == ["/default/a", "/default/c"]


def test_a_deleted_topic_is_gone_and_may_come_again(tmp_path):
    """After a delete every call says so; a new topic of the name starts at offset 0."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("a")
        topic.append(b"old")
        db.delete_topic("a")
        with pytest.raises(NotFound):
            topic.append(b"x")
        with pytest.raises(NotFound):
            db.topic("a")
        with pytest.raises(NotFound):
            db.delete_topic("a")
        assert db.create_topic("a").append(b"new").offset == 0
    with open_small(tmp_path) as db:
        assert payloads_of(db.topic("a")) == [b"new"]


def test_a_part_cannot_be_deleted_alone(engine):
    """Only the whole partitioned topic can be deleted; then its parts are gone as well."""
    engine.create_topic("p", partitions=2)
    with pytest.raises(InvalidRequest, match="individual partition"):
        engine.delete_topic("p-part-0")
    engine.delete_topic("p")
    with pytest.raises(NotFound):
        engine.topic("p-part-0")
    assert engine.topics() == []


def test_records_of_one_key_stay_in_one_part(tmp_path):
    """The same key always goes to the same part, in order, after a restart and as Arrow, too."""
    import pyarrow as pa

    parts = {}
    with open_small(tmp_path) as db:
        topic = db.create_topic("p", partitions=4)
        for number in range(40):
            ack = topic.append(b"%d" % number, key=f"k{number % 10}")
            assert parts.setdefault(f"k{number % 10}", ack.part) == ack.part
        assert len(set(parts.values())) > 1
    with open_small(tmp_path) as db:
        topic = db.topic("p")
        for key, part in parts.items():
            assert topic.append(b"again", key=key).part == part
            [ack] = topic.append_arrow(pa.table({"payload": [b"arrow"], "key": [key]}))
            assert ack.part == part
        seen = [rows_of(part) for part in topic.parts]
        for part, records in enumerate(seen):
            assert {parts[record["key"]] for record in records} <= {part}
        assert topic.stats()["message_count"] == 60


def test_rows_of_one_primary_key_stay_in_one_part(engine):
    """A keyed table topic splits by key, for dicts, keywords and Arrow alike."""
    import pyarrow as pa

    topic = engine.create_topic("p", {"id": "long", "v": "int"}, primary_key="id", partitions=3)
    first = {number: topic.append(id=number, v=1).part for number in range(12)}
    assert {n: topic.append({"id": n, "v": 2}).part for n in range(12)} == first
    topic.append_arrow(pa.table({"id": list(range(12)), "v": pa.array([3] * 12, pa.int32())}))
    for index, part in enumerate(topic.parts):
        ids = column_of(part, "id")
        assert {first[each] for each in ids} <= {index}
        assert all(ids.count(each) == 3 for each in ids)
    with pytest.raises(InvalidRequest):
        topic.append(v=1)


def test_records_without_key_go_round(engine):
    """Without a key the parts take turns, also when the topic is named at each call."""
    topic = engine.create_topic("p", partitions=3)
    assert sorted(topic.append(b"x").part for _ in range(3)) == [0, 1, 2]
    assert sorted(engine.append("p", b"x").part for _ in range(3)) == [0, 1, 2]


def test_a_dict_makes_a_table_and_bytes_a_message_topic(engine):
    """A first record to an absent topic creates it, with inferred columns for a row."""
    engine.append("rows", {"n": 1, "s": "x"})
    engine.append("words", n=2, s="y")
    engine.append("bytes", b"z")
    assert rows_of(engine.topic("rows"))[0]["s"] == "x"
    assert rows_of(engine.topic("words"))[0]["n"] == 2
    assert engine.describe("words")["kind"] == "table"
    assert payloads_of(engine.topic("bytes")) == [b"z"]


def test_nothing_is_created_for_a_record_that_cannot_be_stored(tmp_path):
    """A bad first record leaves no topic behind, and neither does a publish without leave."""
    with open_small(tmp_path, topics={"message_bytes_max": 10}) as db:
        for bad in (b"x" * 11, 5, {}, [1], None):
            with pytest.raises(InvalidRequest):
                db.append("t", bad)
        assert db.topics() == []
    with open_small(tmp_path, topics={"auto_create": False}) as db:
        with pytest.raises(NotFound):
            db.append("t", b"x")
        assert db.topics() == []


def test_many_threads_create_one_topic(engine):
    """Eight first records at once make one topic and are all stored."""
    barrier = threading.Barrier(8)

    def publish(number):
        barrier.wait()
        engine.append("t", {"n": number})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(publish, range(8)))
    assert sorted(column_of(engine.topic("t"), "n")) == list(range(8))


def test_after_close_every_call_is_refused(tmp_path):
    """A closed engine answers `Closed`, and closing twice is fine."""
    db = open_small(tmp_path)
    topic = db.create_topic("a")
    table = db.create_topic("b", {"x": "int"})
    topic.append(b"1")
    reader = topic.tail("earliest")
    db.close()
    db.close()
    calls = [
        lambda: topic.append(b"2"),
        lambda: topic.append_many([b"2"]),
        lambda: table.append(x=1),
        lambda: list(topic.read()),
        lambda: next(reader),
        lambda: topic.hold("h", 0),
        topic.describe,
        lambda: db.create_topic("c"),
        lambda: db.alter_topic("b", add={"y": "int"}),
        lambda: db.delete_topic("a"),
        lambda: db.append("a", b"x"),
        lambda: db.topic("a"),
        db.topics,
    ]
    for number, call in enumerate(calls):
        with pytest.raises(Closed):
            call()
            pytest.fail(f"call {number} was served")


def test_stats_count_what_is_there(tmp_path):
    """The engine's and a topic's stats have counts, sizes, watermarks and health."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("a")
        topic.append_many([b"x"] * 5)
        stats = db.stats()
        own = topic.stats()
    assert stats["health"] == "ok"
    assert (stats["message_count"], stats["topics"]) == (5, 1)
    assert stats["bytes_stored"] == own["bytes_stored"] > 0
    assert {"free_bytes", "total_bytes", "publishing_stopped"} == set(stats["disk"])
    assert stats["journal"]["syncs"] > 0
    assert own["message_count"] == own["head"] == own["durable"] == 5
    assert set(own) >= {"message_count", "bytes_stored", "start", "floor", "durable", "head"}


def test_wrong_arguments_of_open_are_refused(tmp_path):
    """A path that is a file, an unknown setting, and settings with overrides are refused."""
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InvalidRequest, match="file"):
        frazil.open(file)
    with pytest.raises(InvalidRequest):
        frazil.open(tmp_path / "d", **{"log.sink": "commit"})
    with pytest.raises(InvalidRequest, match="not both"):
        frazil.open(frazil.Settings(), **{"log.sync": "periodic"})


def test_a_topic_keeps_the_columns_that_its_table_is_sorted_by(tmp_path):
    """They are shown, outlive a restart and a rename, and cannot be dropped."""
    columns = {"id": "long", "name": "string", "tags": "list<string>"}
    with frazil.open(tmp_path) as db:
        db.create_topic("t", columns, sort_by=["name", "id"])
        assert db.describe("t")["sort_by"] == ["name", "id"]
        db.alter_topic("t", rename={"name": "title"})
        with pytest.raises(InvalidRequest, match="title"):
            db.alter_topic("t", drop=["title"])
    with frazil.open(tmp_path) as db:
        assert db.describe("t")["sort_by"] == ["title", "id"]


@pytest.mark.parametrize("sort_by", [["absent"], ["tags"], ["id", "id"]], ids=str)
def test_a_table_is_not_sorted_by_what_is_no_plain_column(tmp_path, sort_by):
    """The message names the column and those there are."""
    with frazil.open(tmp_path) as db:
        with pytest.raises(InvalidRequest, match="sort_by"):
            db.create_topic("t", {"id": "long", "tags": "list<string>"}, sort_by=sort_by)
        with pytest.raises(InvalidRequest, match="message topic"):
            db.create_topic("t", sort_by="id")
