"""Rejects of a topic: listed, shown, published again and dropped; a real catalog, no Spark."""

from __future__ import annotations

import contextlib
import datetime as dt
import json

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.cli.session import Session
from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.lake import TOPIC_ID
from frazil.lake import rejects as rejects_module
from frazil.lake.rejects import RejectKey, TopicRejects
from tests.integration.engine.lake_engine import COLUMNS, opened, table_of

pytestmark = pytest.mark.integration

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)


def side_table(db, name):
    """Load a topic's side table."""
    return table_of(db, f"{name}__rejects")


def reject(db, name, *rows, version=1, encoding="json"):
    """Write rejects, as (offset, original) or (part, offset, original), into the side table."""
    table = side_table(db, name)
    listed = []
    for *key, original in rows:
        data = original if isinstance(original, bytes) else json.dumps(original).encode()
        listed.append(
            {
                "_offset": key[-1],
                "_time": NOW,
                "_part": key[0],
                "stage": "validate",
                "reason": "does not fit",
                "field": "text",
                "schema_version": version,
                "encoding": encoding,
                "original": data,
            }
        )
    schema = table.schema().as_arrow()
    table.append(pa.Table.from_pylist(listed, schema=schema))


def made(db, name, records=4, **options):
    """Make a topic whose table has come to a number of records."""
    topic = db.create_topic(name, COLUMNS, lake=True, **options)
    topic.append_many([{"id": n, "text": "x"} for n in range(records)], ack="committed")
    return topic


def states(db, name):
    """Return the state of each reject by its offset."""
    rows = db.lake.rejects(name).rows(settled=True)
    return {each.key.offset: each.state for each in rows}


def ids(topic, start=0):
    """Return the column `id` of a topic's records from an offset on."""
    return [row["id"] for batch in topic.read(start) for row in batch.data.to_pylist()]


def test_rejects_below_the_watermark_are_listed_and_shown(db):
    """A commit under way may have written rejects: those do not count before main has them."""
    made(db, "listed")
    assert list(db.lake.rejects("listed")) == []
    reject(db, "listed", (3, {"id": 33}), (1, {"id": 11, "text": "a"}), (4, {"id": 44}))
    found = list(db.lake.rejects("listed"))
    assert [each.key for each in found] == [RejectKey(-1, 1), RejectKey(-1, 3)]
    assert found[0].time_us == NOW.timestamp() * 1e6
    assert (found[0].reason, found[0].field, found[0].state) == ("does not fit", "text", "open")
    shown = db.lake.rejects("listed").show(1)
    assert shown["record"] == {"id": 11, "text": "a"}
    assert (shown["offset"], shown["schema_version"]) == (1, 1)
    for offset in (0, 4):
        with pytest.raises(NotFound, match=f"no such reject.*offset={offset}"):
            db.lake.rejects("listed").show(offset)


def test_replayed_twice_is_published_once(db):
    """The first publishes the originals in order and settles them; the second finds nothing."""
    topic = made(db, "again")
    reject(db, "again", (1, {"id": 101, "text": "a"}), (2, {"id": 102}), (3, {"id": 103}))
    rejects = db.lake.rejects("again")
    done = rejects.replay([3, 1])
    assert done.done == [RejectKey(-1, 1), RejectKey(-1, 3)]
    assert [ack.offset for ack in done.acks] == [4, 5]
    assert ids(topic, 4) == [101, 103]
    assert [each.key.offset for each in rejects] == [2]
    repeated = rejects.replay([1, 2])
    assert (repeated.done, repeated.settled_before) == ([RejectKey(-1, 2)], [RejectKey(-1, 1)])
    assert rejects.replay("all").done == []
    assert ids(topic, 4) == [101, 103, 102]
    assert states(db, "again") == dict.fromkeys((1, 2, 3), "replayed")


def test_a_crash_between_publishing_and_marking_publishes_once(db, monkeypatch):
    """What was published and not marked is recognised by the topic when it comes again."""
    topic = made(db, "crashed")
    reject(db, "crashed", *((n, {"id": 100 + n}) for n in range(4)))
    monkeypatch.setattr(rejects_module, "CHUNK_RECORDS", 2)
    mark, calls = TopicRejects._mark, []

    def dying(self, *words):
        calls.append(words)
        if len(calls) == 2:
            raise Unavailable("killed")
        mark(self, *words)

    with monkeypatch.context() as patch:
        patch.setattr(TopicRejects, "_mark", dying)
        with pytest.raises(Unavailable):
            db.lake.rejects("crashed").replay("all")
    assert ids(topic, 4) == [100, 101, 102, 103]
    assert list(states(db, "crashed").values()) == ["replayed", "replayed", "open", "open"]
    done = db.lake.rejects("crashed").replay("all")
    assert [ack.offset for ack in done.acks] == [6, 7]
    assert ids(topic, 4) == [100, 101, 102, 103]
    assert set(states(db, "crashed").values()) == {"replayed"}


def test_dropped_rejects_are_hidden_and_their_rows_stay(db):
    """They are not published, not even by a later replay of everything."""
    topic = made(db, "dropped")
    reject(db, "dropped", (0, {"id": 1}), (2, {"id": 2}), (3, {"id": 3}))
    rejects = db.lake.rejects("dropped")
    with pytest.raises(NotFound, match="offset=1"):
        rejects.drop([0, 1])
    assert len(list(rejects)) == 3
    assert rejects.drop([0, 2]).done == [RejectKey(-1, 0), RejectKey(-1, 2)]
    assert rejects.drop(0).settled_before == [RejectKey(-1, 0)]
    assert [each.key.offset for each in rejects] == [3]
    rejects.replay("all")
    assert ids(topic, 4) == [3]
    assert states(db, "dropped") == {0: "dropped", 2: "dropped", 3: "replayed"}
    assert side_table(db, "dropped").scan().to_arrow().num_rows == 3
    assert rejects.show(0)["record"] == {"id": 1, "text": None}


def test_a_record_that_the_topic_refuses_settles_nothing(db):
    """Its offset is named; the records before it are not published either."""
    topic = db.create_topic("strict", {"id": "long", "cents": "decimal(4, 2)"}, lake=True)
    topic.append_many([{"id": n, "cents": 1} for n in range(3)], ack="committed")
    reject(db, "strict", (0, {"id": 1}), (1, {"id": 2, "cents": "12345.00"}))
    with pytest.raises(InvalidRequest, match=r"does not fit the topic.*offset=1"):
        db.lake.rejects("strict").replay("all")
    assert ids(topic, 3) == []
    assert set(states(db, "strict").values()) == {"open"}
    reject(db, "strict", (2, b"not json"))
    with pytest.raises(CorruptionError):
        db.lake.rejects("strict").replay(2)
    db.lake.rejects("strict").drop([1, 2])
    db.lake.rejects("strict").replay("all")
    assert ids(topic, 3) == [1]


def test_columns_changed_since_then_are_followed(db):
    """A renamed column has its new name, a wider one its new type, a dropped one is left out."""
    columns = {"id": "int", "text": "string", "gone": "string"}
    topic = db.create_topic("changed", columns, lake=True)
    topic.append(id=0, text="x", gone="y", ack="committed")
    reject(db, "changed", (0, {"id": 5, "text": "kept", "gone": "lost"}))
    db.alter_topic("changed", rename={"text": "words"}, widen={"id": "long"}, drop=["gone"])
    db.lake.rejects("changed").replay(0)
    [row] = [row for batch in topic.read(1) for row in batch.data.to_pylist()]
    assert (row["id"], row["words"]) == (5, "kept")
    assert "gone" not in row


def test_messages_keep_their_envelope(db):
    """Payload, key and attributes are those of the original."""
    topic = db.create_topic("envelopes", lake=True)
    topic.append(b"x", ack="committed")
    original = {
        "payload": "AP8=",
        "key": "k",
        "publish_time": 1_000_000,
        "attributes": [{"key": "a", "value": "1"}],
    }
    reject(db, "envelopes", (0, original))
    db.lake.rejects("envelopes").replay(0)
    assert db.lake.rejects("envelopes").show(0)["state"] == "replayed"
    [row] = [row for batch in topic.read(1) for row in batch.data.to_pylist()]
    assert (row["payload"], row["key"], dict(row["attributes"])) == (b"\x00\xff", "k", {"a": "1"})
    assert row["publish_time"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


def test_a_reject_is_named_by_part_and_offset(db):
    """An offset that several parts have needs the part; the record goes into the part it was in."""
    topic = db.create_topic("parted", COLUMNS, partitions=2, lake=True)
    topic.append_many([{"id": n, "text": "x"} for n in range(4)], ack="committed")
    reject(db, "parted", (0, 1, {"id": 10}), (1, 1, {"id": 11}), (1, 0, {"id": 12}))
    rejects = db.lake.rejects("parted")
    with pytest.raises(InvalidRequest, match="name the part"):
        rejects.replay(1)
    with pytest.raises(NotFound, match="part=2"):
        rejects.drop("all", part=2)
    assert rejects.drop(1, part=0).done == [RejectKey(0, 1)]
    assert rejects.show(1, part=1)["record"]["id"] == 11
    done = rejects.replay("all")
    assert len(done.acks) == 2
    found = [
        row["id"] for batch in db.topic("parted-part-1").read(2) for row in batch.data.to_pylist()
    ]
    assert found == [12, 11]
    assert list(rejects) == []


def test_marks_that_would_be_too_large_are_refused(db, monkeypatch):
    """Nothing is published or marked; settling all of them is always possible."""
    topic = made(db, "many", records=200)
    reject(db, "many", *((n, {"id": 1000 + n}) for n in range(200)))
    monkeypatch.setattr(rejects_module, "MARKS_BYTES_MAX", 500)
    rejects = db.lake.rejects("many")
    for call in (rejects.replay, rejects.drop):
        with pytest.raises(InvalidRequest, match="bytes_max=500"):
            call(range(0, 200, 2))
    assert ids(topic, 200) == []
    assert len(list(rejects)) == 200
    assert len(rejects.drop("all").done) == 200
    marks = json.loads(side_table(db, "many").properties["frazil.rejects-dropped"])
    assert marks == {"-1": [[0, 200]]}


def test_tables_of_others_and_topics_without_a_lake_are_refused(db):
    """Each error says what is wrong."""
    db.create_topic("dry", COLUMNS, lake=False)
    with pytest.raises(InvalidRequest, match="has no lake"):
        db.lake.rejects("dry")
    with pytest.raises(NotFound):
        db.lake.rejects("nothing")
    made(db, "taken")
    with side_table(db, "taken").transaction() as change:
        change.set_properties({TOPIC_ID: "another"})
    with pytest.raises(Conflict, match="another topic"):
        db.lake.rejects("taken").drop("all")
    made(db, "garbled")
    with side_table(db, "garbled").transaction() as change:
        change.set_properties({"frazil.rejects-dropped": "[]"})
    with pytest.raises(CorruptionError, match="cannot be read"):
        db.lake.rejects("garbled").rows()
    reject(db, "garbled", (0, {"id": 1}), encoding="later")
    with side_table(db, "garbled").transaction() as change:
        change.remove_properties("frazil.rejects-dropped")
    with pytest.raises(CorruptionError, match="unknown encoding"):
        db.lake.rejects("garbled").show(0)


def run(*words, code=0):
    """Run `frazil` in this process; return what it printed."""
    result = CliRunner().invoke(app, [str(each) for each in words])
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code else result.stdout


def test_the_commands_do_it(db, monkeypatch):
    """`frazil rejects` lists, shows, replays and drops, for people and as JSON."""
    topic = made(db, "orders")
    reject(db, "orders", *((n, {"id": 100 + n}) for n in range(3)))
    # Each command would start a catalog of its own.
    monkeypatch.setattr(Session, "engine", lambda _self: contextlib.nullcontext(db))
    assert "does not fit" in run("rejects", "list", "orders")
    assert json.loads(run("rejects", "show", "orders", 1))["record"] == {"id": 101, "text": None}
    assert "1 replayed" in run("rejects", "replay", "orders", 1)
    again = run("rejects", "replay", "orders", 1)
    assert "0 replayed, 1 were settled before" in again
    done = json.loads(run("rejects", "drop", "orders", 0, "-o", "json"))
    assert done == {"done": [{"offset": 0, "part": -1}], "settled_before": []}
    listed = json.loads(run("rejects", "list", "orders", "-o", "json"))
    assert [(each["offset"], each["state"]) for each in listed] == [(2, "open")]
    listed = json.loads(run("rejects", "list", "orders", "--all", "-o", "json"))
    assert [each["state"] for each in listed] == ["dropped", "replayed", "open"]
    limited = json.loads(run("rejects", "list", "orders", "--all", "--limit", 1, "-o", "json"))
    assert [each["offset"] for each in limited] == [0]
    assert "name offsets" in run("rejects", "drop", "orders", code=2)
    assert "name offsets" in run("rejects", "replay", "orders", 2, "--all", code=2)
    assert "no such reject" in run("rejects", "show", "orders", 3, code=3)
    assert "1 dropped" in run("rejects", "drop", "orders", "--all")
    assert "no rejects that are not settled" in run("rejects", "list", "orders")
    assert ids(topic, 4) == [101]


def test_what_is_settled_stays_so_over_a_restart(tmp_path, monkeypatch):
    """Marks and producers are on disk; the command finds them without an engine that runs."""
    with opened(tmp_path / "data") as (db, _stand_in):
        made(db, "kept")
        reject(db, "kept", *((n, {"id": 100 + n}) for n in range(3)))
        db.lake.rejects("kept").replay(1)
        with monkeypatch.context() as patch:
            patch.setattr(TopicRejects, "_mark", lambda *_: None)
            db.lake.rejects("kept").replay(2)
    words = ["--data", tmp_path / "data", "--set", "lake.catalog.port=0", "-o", "json"]
    found = json.loads(run(*words, "rejects", "replay", "kept", 1, 2))
    assert (found["offsets"], found["settled_before"]) == ([5], [{"offset": 1, "part": -1}])
    with opened(tmp_path / "data") as (db, _stand_in):
        assert ids(db.topic("kept"), 4) == [101, 102]
