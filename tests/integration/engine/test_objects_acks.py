"""`ack="uploaded"`: a publish returns when its records are in the store, and says so when not."""

from __future__ import annotations

import asyncio
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

import frazil
from frazil.errors import InvalidRequest, Unavailable
from tests.integration.engine.objects_world import (
    give_back,
    open_with_objects,
    registered,
    stored,
    take_away,
    uploaded_rows,
    wait_until,
)

COLUMNS = {"id": "long not null", "text": "string"}


def is_uploaded(topic, ack):
    """Tell whether an ack's records are registered."""
    return topic.runtime.objects.reached[topic.runtime.part] > ack.offset_last


def test_every_way_to_publish_can_wait(tmp_path):
    """One record, many, Arrow, without waiting at once, with a producer: all are there on return."""
    with open_with_objects(tmp_path, objects={"interval_s": 3600}) as db:
        topic = db.create_topic("plain", COLUMNS)
        batch = pa.RecordBatch.from_pydict({"id": [4, 5], "text": ["d", "e"]})
        calls = [
            lambda: topic.append(id=1, text="a", ack="uploaded"),
            lambda: topic.append_many([{"id": 2}, {"id": 3}], ack="uploaded"),
            lambda: topic.append_arrow(batch, ack="uploaded"),
            lambda: topic.send(id=6, ack="uploaded").result(),
            lambda: topic.append(id=7, ack="uploaded", producer="p", sequence=0),
            lambda: topic.append(id=7, ack="uploaded", producer="p", sequence=0),
        ]
        for call in calls:
            assert is_uploaded(topic, call())
        assert [row["id"] for row in uploaded_rows(db, topic)] == [1, 2, 3, 4, 5, 6, 7]


def test_changes_of_keyed_topics_can_wait(tmp_path):
    """Rows that are inserted, changed and deleted, alone and in bulk."""
    with open_with_objects(tmp_path, objects={"interval_s": 3600}) as db:
        topic = db.create_topic("keyed", COLUMNS, primary_key="id")
        bulk = pa.RecordBatch.from_pydict({"id": [7, 8], "text": ["x", "y"], "_op": ["c", "c"]})
        calls = [
            lambda: topic.insert({"id": 1, "text": "a"}, ack="uploaded"),
            lambda: topic.upsert({"id": 2, "text": "b"}, ack="uploaded"),
            lambda: topic.update(1, text="c", ack="uploaded"),
            lambda: topic.delete(2, ack="uploaded"),
            lambda: topic.append_changes(bulk, ack="uploaded"),
        ]
        for call in calls:
            assert is_uploaded(topic, call())
        assert [row["_op"] for row in uploaded_rows(db, topic)] == [1, 3, 2, 4, 1, 1]


def test_parts_can_wait(tmp_path):
    """A call to a partitioned topic returns when all parts that it wrote to are uploaded."""
    with open_with_objects(tmp_path, objects={"interval_s": 3600}) as db:
        topic = db.create_topic("parts", COLUMNS, primary_key="id", partitions=3)
        acks = topic.append_many([{"id": n, "text": str(n)} for n in range(30)], ack="uploaded")
        assert len(acks) == 3
        for ack in acks:
            assert is_uploaded(topic.parts[ack.part], ack)


def test_a_loop_can_wait(tmp_path):
    """Under asyncio many publishes wait at once, and share their topic's objects."""

    async def publish():
        with open_with_objects(tmp_path, objects={"interval_s": 3600}) as engine:
            engine.objects.waiting_interval_s = 0.3
            db = frazil.AsyncEngine(engine)
            await db.create_topic("a")
            await db.create_topic("b", COLUMNS, primary_key="id")
            calls = [db.topic("a").append(b"%d" % n, ack="uploaded") for n in range(20)]
            calls += [db.topic("b").upsert({"id": n}, ack="uploaded") for n in range(20)]
            calls.append(db.topic("a").append_many([b"x", b"y"], ack="uploaded"))
            acks = await asyncio.gather(*calls)
            for name, own in (("a", [*acks[:20], acks[40]]), ("b", acks[20:40])):
                topic = engine.topic(name)
                assert all(is_uploaded(topic, ack) for ack in own)
                assert len(registered(engine, topic.runtime.state.id)) < 10
            return len(stored(tmp_path))

    assert asyncio.run(publish()) < 20


def test_waiting_publishers_cause_at_most_one_upload_a_second(tmp_path):
    """Publishes of one topic that wait at the same time share its next object."""
    with open_with_objects(tmp_path, objects={"interval_s": 3600}) as db:
        db.objects.waiting_interval_s = 1.0
        topic = db.create_topic("busy")
        topic.append(b"first", ack="uploaded")
        began = time.monotonic()
        pending = [topic.send(b"%d" % number, ack="uploaded") for number in range(20)]
        for each in pending:
            each.result()
        assert time.monotonic() - began > 0.5
        assert len(registered(db, topic.runtime.state.id)) == 2
        assert [row["payload"] for row in uploaded_rows(db, topic)] == [
            b"first",
            *(b"%d" % number for number in range(20)),
        ]


def test_stats_report_a_store_that_is_away(tmp_path):
    """The record is fsynced and visible, the error says so, and it is uploaded when it can be."""
    with open_with_objects(tmp_path, retry_s=0.1, ack_s=1.0) as db:
        topic = db.create_topic("away")
        topic.append(b"there", ack="uploaded")
        take_away(tmp_path)
        with pytest.raises(Unavailable, match="do not send them again") as caught:
            topic.append(b"late", ack="uploaded")
        assert caught.value.details["outcome"] == "fsynced"
        assert caught.value.details["offset"] == 1
        assert [record["payload"] for record in next(iter(topic.read(1))).records()] == [b"late"]
        topic.append(b"as ever")
        give_back(tmp_path)
        wait_until(lambda: topic.stats()["uploaded"] == 3)
        assert [row["payload"] for row in uploaded_rows(db, topic)] == [
            b"there",
            b"late",
            b"as ever",
        ]


@pytest.mark.parametrize("begun", [False, True])
def test_the_log_has_a_trouble_once_however_often_it_is_met(tmp_path, caplog, begun):
    """A store that is away is asked again and again for the waiting callers; the log has it once.

    Also if an upload of the topic's own was begun before, which has to be settled first.
    """
    with open_with_objects(tmp_path, retry_s=0.0) as db:
        topic = db.create_topic("away")
        topic.append(b"there", ack="uploaded")
        (place,) = (tmp_path / "store").iterdir()
        shutil.move(place, tmp_path / "elsewhere")
        place.write_bytes(b"no directory")
        if begun:
            topic.append(b"behind")
            wait_until(lambda: db.objects.catalog.topic(topic.runtime.state.id).state.intent)
        topic.send(b"late", ack="uploaded")
        wait_until(lambda: db.objects.status()["topics"]["/default/away"]["failures"] >= 3)
    answers = [each for each in caplog.records if each.getMessage() == "upload_failed"]
    assert len(answers) == 1


def test_levels_that_a_topic_lacks_are_refused(tmp_path):
    """The error names the levels that it has."""
    with open_with_objects(tmp_path) as db:
        topic = db.create_topic("plain")
        with pytest.raises(InvalidRequest) as caught:
            topic.append(b"x", ack="committed")
        assert caught.value.details["allowed"] == "received|fsynced|uploaded"


def test_a_closing_engine_leaves_nobody_waiting(tmp_path):
    """A publish that waits for a store that does not answer fails when the engine closes."""
    db = open_with_objects(tmp_path, retry_s=0.1, ack_s=600)
    topic = db.create_topic("closing")
    (tmp_path / "store").mkdir(exist_ok=True)
    take_away(tmp_path)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(topic.send(b"x", ack="uploaded").result)
        db.close()
        with pytest.raises(Unavailable) as caught:
            waiting.result(60)
    assert caught.value.details["outcome"] == "fsynced"


def test_a_waiting_publish_learns_that_its_record_is_written_though_uploads_end(tmp_path):
    """A topic that is uploaded no more: the record is fsynced, and the error says so."""
    with open_with_objects(tmp_path, retry_s=0.1) as db:
        topic = db.create_topic("ended")
        topic.append(b"there", ack="uploaded")
        take_away(tmp_path)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(topic.append, b"late", ack="uploaded")
            wait_until(topic.runtime.objects.is_asked)
            db.alter_topic("ended", objects=False)
            with pytest.raises(Unavailable) as caught:
                waiting.result(60)
        assert caught.value.details["outcome"] == "fsynced"
        assert caught.value.details["offset"] == 1
        assert [record["payload"] for record in next(iter(topic.read(1))).records()] == [b"late"]
