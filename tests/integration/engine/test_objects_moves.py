"""What objects, files and log have of a topic moves on: nothing is lost or doubled on the way."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pytest

from frazil.errors import InvalidRequest, NotFound, Overloaded
from frazil.log import logged_runs
from frazil.objects import TopicFrames
from tests.integration.engine.objects_world import (
    forget_log,
    frames_in,
    give_back,
    open_with_objects,
    registered,
    stored,
    take_away,
    uploaded_rows,
    wait_until,
)
from tests.integration.engine.opening import payloads_of, rows_of


def runs_of(objects, topic_id):
    """Return all runs of producers in a topic's objects: first offset and run."""
    found = []
    for data in objects.values():
        for head, runs in frames_in(data, topic_id):
            offset = head.offset
            for run in runs:
                if run.producer:
                    found.append((offset, run))
                offset += run.records
            assert not runs or offset == head.offset + head.records
    return sorted(found)


def published(db, kind, chance):
    """Publish some of everything to a topic, by several producers; return the topic."""
    columns = None if kind == "messages" else {"id": "long not null", "text": "string"}
    key = "id" if kind == "keyed" else ()
    topic = db.create_topic("moved", columns, primary_key=key)
    sequences = {"a": 0, "b": 0, None: 0}
    for number in range(120):
        count = chance.choice([1, 1, 3])
        producer = chance.choice(list(sequences))
        options = {} if producer is None else {"producer": producer}
        if producer is not None:
            options["sequence"] = sequences[producer]
            sequences[producer] += count
        text = "x" * chance.randrange(400)
        if kind == "messages":
            topic.append_many([text.encode()] * count, **options)
        else:
            topic.append_many([{"id": number + n, "text": text} for n in range(count)], **options)
        if kind == "keyed" and number % 10 == 5:
            topic.update(number, text="changed")
            topic.delete(number)
        if kind == "rows" and number == 60:
            db.alter_topic("moved", add={"more": "long"})
        if number % 10 == 9:
            topic.runtime.tiers.flush()
    return topic


@pytest.mark.parametrize("kind", ["messages", "rows", "keyed"])
def test_what_only_files_have_is_framed_again(tmp_path, kind):
    """Records, offsets, times, operations, columns and producer runs are those of the log."""
    disk = {"log_keep_s": 0}
    with open_with_objects(tmp_path, retry_s=0.0, disk=disk, segment_bytes_max=64 << 10) as db:
        take_away(tmp_path)
        topic = published(db, kind, random.Random(kind))
        topic_id, end = topic.runtime.state.id, topic.runtime.state.durable
        segments = topic.runtime.log.journal.segments
        runs = list(logged_runs(segments, topic_id, first=0, end=end))
        assert len(runs) > 20
        rows = rows_of(topic)
        forget_log(db, [topic])
        assert topic.runtime.state.start >= end
        wait_until(lambda: len(db.tiers.disk.files(topic_id)) < 10, "files were not joined")
        give_back(tmp_path)
        db.objects.flush()
        assert uploaded_rows(db, topic) == rows
        assert runs_of(stored(tmp_path), topic_id) == runs
        for data in stored(tmp_path).values():
            assert all(head.lsn == 0 for head, _runs in frames_in(data, topic_id))
        topic.append_many([b"on"] if kind == "messages" else [{"id": 999, "text": "on"}])
        db.objects.flush()
        assert len(uploaded_rows(db, topic)) == len(rows) + 1
        registered(db, topic_id)


def test_files_that_are_uploaded_make_room(tmp_path):
    """The cap lets go what the store has, and readers from the beginning notice nothing."""
    payloads = [random.Random(n).randbytes(10_000) for n in range(300)]
    disk = {"bytes_max": 1 << 20, "log_keep_s": 0}
    with open_with_objects(tmp_path, disk=disk, segment_bytes_max=64 << 10) as db:
        topic = db.create_topic("evicted")
        for number, payload in enumerate(payloads):
            topic.append(payload)
            if number % 60 == 59:
                forget_log(db, [topic])
        db.objects.flush()
        db.objects.move_holds()
        db.tiers.retention.check_cap()
        assert db.tiers.disk.start(topic.runtime.state.id) > 0
        assert db.tiers.disk.space.usage() <= 1 << 20
        assert payloads_of(topic) == payloads
        assert payloads_of(topic, 17) == payloads[17:]
        assert topic.append(b"more").offset == 300
    with open_with_objects(tmp_path, disk=disk) as db:
        assert payloads_of(db.topic("evicted")) == [*payloads, b"more"]


def test_rows_of_keys_stay_at_hand(tmp_path):
    """Files of a keyed topic are not given up though the store has them: look-ups need them."""
    disk = {"bytes_max": 1 << 20, "log_keep_s": 0}
    texts = [random.Random(n).randbytes(5_000).hex() for n in range(300)]
    with open_with_objects(tmp_path, disk=disk) as db:
        topic = db.create_topic(
            "keyed", {"id": "long not null", "text": "string"}, primary_key="id"
        )
        for number, text in enumerate(texts):
            topic.append(id=number, text=text)
        topic.runtime.tiers.flush()
        db.objects.flush()
        db.objects.move_holds()
        assert db.objects.uploaded(topic.runtime.state.id) == 300
        assert db.tiers.disk.space.usage() > 1 << 20
        db.tiers.retention.check_cap()
        assert db.tiers.disk.start(topic.runtime.state.id) == 0
        assert topic.get(7)["text"] == texts[7]


def test_nothing_goes_before_it_is_uploaded(tmp_path):
    """Retention that is long over keeps what the store lacks; then it goes, and objects have it."""
    disk = {"log_keep_s": 0}
    with open_with_objects(tmp_path, retry_s=0.0, disk=disk, segment_bytes_max=64 << 10) as db:
        topic = db.create_topic("kept", retention_age="0s")
        for number in range(50):
            topic.append(b"%d" % number)
            if number == 9:
                db.objects.flush()
                topic.runtime.tiers.flush()
                take_away(tmp_path)
        wait_until(lambda: topic.describe()["holds"] == {"objects": 10})
        forget_log(db, [topic])
        db.objects.move_holds()
        db.tiers.retention.retain()
        assert topic.describe()["holds"] == {"objects": 10}
        assert topic.describe()["watermarks"]["start"] == 10
        for change in (
            lambda name, hold: db.topic(name).drop(hold),
            lambda name, hold: db.topic(name).advance(hold, 50),
        ):
            with pytest.raises(InvalidRequest, match="uploads"):
                change("kept", "objects")
        give_back(tmp_path)
        db.objects.flush()
        wait_until(lambda: topic.describe()["holds"] == {"objects": 50})
        db.tiers.retention.retain()
        assert topic.describe()["watermarks"]["start"] == 50
        assert payloads_of(topic) == [b"%d" % number for number in range(50)]


def test_a_quota_fills_while_the_store_is_away(tmp_path):
    """The topic refuses to publish and says why; it goes on when the store has what it held."""
    with open_with_objects(tmp_path, retry_s=0.0, retention_check_s=0.05) as db:
        take_away(tmp_path)
        full = db.create_topic("full", retention_bytes=20_000)
        other = db.create_topic("other", retention_bytes=1_000_000)
        sent = 0

        def is_full():
            nonlocal sent
            try:
                full.append(b"x" * 1_000)
            except Overloaded as error:
                assert "quota" in str(error)
                return True
            sent += 1
            return False

        wait_until(is_full)
        assert sent >= 15
        other.append(b"goes on")
        give_back(tmp_path)
        wait_until(lambda: full.runtime.refusal is None)
        full.append(b"again", ack="uploaded")
        assert len(uploaded_rows(db, full)) == sent + 1


def test_expired_records_are_a_gap_in_objects(tmp_path):
    """A topic that gives up its oldest at the quota has the gap in its objects, and no hole."""
    with open_with_objects(tmp_path, retry_s=0.0, segment_bytes_max=64 << 10) as db:
        take_away(tmp_path)
        topic = db.create_topic("gap", retention_bytes=80_000, on_full="expire")
        for number in range(300):
            topic.append(random.Random(number).randbytes(1_000))
            if number % 50 == 49:
                topic.runtime.tiers.flush()
        db.upkeep.check_quotas()
        floor = topic.describe()["holds"]["objects"]
        assert floor > 0
        give_back(tmp_path)
        db.objects.flush()
        assert len(uploaded_rows(db, topic)) == 300 - floor
        assert topic.stats()["uploaded"] == 300


def test_objects_go_by_their_own_retention(tmp_path):
    """Old objects go, their keys are deleted later, and readers below get the first offset."""
    with open_with_objects(tmp_path, disk={"log_keep_s": 0}) as db:
        topic = db.create_topic("old", objects_retention_age="0s", retention_age="0s")
        kept = db.create_topic("kept")
        topic_id = topic.runtime.state.id
        for each in (topic, kept):
            each.append(b"x" * 100)
        db.objects.flush()
        forget_log(db, [topic, kept])
        wait_until(lambda: topic.describe()["holds"] == {"objects": 1})
        db.tiers.retention.retain()
        before = set(stored(tmp_path))
        db.objects.retention.run()
        assert db.objects.catalog.topic(topic_id).start == 1
        assert not registered(db, topic_id)
        db.objects.retention.run()
        db.objects.retention.run()
        assert len(before - set(stored(tmp_path))) >= 1
        with pytest.raises(NotFound) as caught:
            payloads_of(topic, 0)
        assert caught.value.details["offset_first"] == 1
        assert payloads_of(kept) == [b"x" * 100]
        topic.append(b"new", ack="uploaded")
        assert [row["payload"] for row in uploaded_rows(db, topic)] == [b"new"]


def test_objects_of_deleted_topics_go_with_their_grace(tmp_path):
    """The rows go, then the keys; another topic of the same name has nothing to do with them."""
    with open_with_objects(tmp_path, topics={"delete_grace_s": 0}) as db:
        topic = db.create_topic("gone")
        topic.append(b"x", ack="uploaded")
        db.objects.flush()
        topic_id = topic.runtime.state.id
        db.delete_topic("gone")
        again = db.create_topic("gone")
        assert payloads_of(again) == []
        again.append(b"other", ack="uploaded")
        for _ in range(3):
            db.objects.retention.run()
        assert topic_id not in db.objects.catalog.topics()
        assert payloads_of(again) == [b"other"]
        db.objects.flush()
        wait_until(lambda: all(f"/{topic_id:08x}-" not in key for key in stored(tmp_path)))


def test_a_time_in_the_past_is_found_in_objects(tmp_path):
    """Who starts at a time reads from the object that has it, though files are gone."""
    disk = {"bytes_max": 1 << 20, "log_keep_s": 0}
    with open_with_objects(tmp_path, disk=disk, segment_bytes_max=64 << 10) as db:
        topic = db.create_topic("timed")
        for number in range(100):
            topic.append(random.Random(number).randbytes(20_000))
            if number == 30:
                middle = dt.datetime.now(dt.UTC)
        forget_log(db, [topic])
        db.objects.flush()
        db.objects.move_holds()
        db.tiers.retention.check_cap()
        assert db.tiers.disk.start(topic.runtime.state.id) == 100
        assert [row["_offset"] for row in rows_of(topic, middle)] == list(range(31, 100))


def test_damage_in_the_log_is_passed_over_where_files_have_the_records(tmp_path):
    """Frames that rotted before they were uploaded are made again from files."""
    with open_with_objects(tmp_path, retry_s=0.0, segment_bytes_max=64 << 10) as db:
        take_away(tmp_path)
        topic = db.create_topic("rotten")
        for number in range(30):
            topic.append(b"payload %d" % number)
        topic.runtime.tiers.flush()
        rows = rows_of(topic)
        segment = topic.runtime.log.journal.segments[0]
        index = segment.index(topic.runtime.state.id)
        for number in (0, 11, 12, 29):
            at = (index.positions[number] << 3) + 90
            with open(segment.path, "r+b") as file:
                file.seek(at)
                byte = file.read(1)
                file.seek(at)
                file.write(bytes([byte[0] ^ 1]))
        give_back(tmp_path)
        db.objects.flush()
        assert uploaded_rows(db, topic) == rows


def test_a_topic_that_is_switched_on_late_is_uploaded_whole(tmp_path):
    """What only files have goes too, and nobody has to publish for that."""
    disk = {"log_keep_s": 0}
    with open_with_objects(tmp_path, disk=disk, segment_bytes_max=64 << 10) as db:
        topic = db.create_topic("late", objects=False)
        for number in range(40):
            topic.append(b"%d" % number)
        forget_log(db, [topic])
        assert topic.runtime.state.start == 40
        db.alter_topic("late", objects=True)
        assert topic.describe()["holds"] == {"objects": 0}
        wait_until(lambda: topic.stats()["uploaded"] == 40)
        assert uploaded_rows(db, topic) == rows_of(topic)
        db.alter_topic("late", objects=False)
        topic.append(b"not uploaded")
        db.alter_topic("late", objects=True)
        wait_until(lambda: topic.stats()["uploaded"] == 41)
        assert uploaded_rows(db, topic) == rows_of(topic)


def test_files_that_are_joined_meanwhile_are_looked_up_again(tmp_path, monkeypatch):
    """A file that is replaced between the look at its name and its opening stops no upload."""
    with open_with_objects(tmp_path, disk={"log_keep_s": 0}) as db:
        topic = db.create_topic("joined", objects=False)
        disk, topic_id = db.tiers.disk, topic.runtime.state.id
        topic.append(b"first")
        topic.runtime.tiers.flush()
        before = disk.picture(topic_id)
        (name,) = before.by_name
        while name in disk.picture(topic_id).by_name:
            topic.append_many([b"more"] * 3)
            topic.runtime.tiers.flush()
        forget_log(db, [topic])
        wait_until(lambda: not Path(disk.path(before.by_name[name])).exists())
        pictures, own = iter([before, before]), disk.picture
        monkeypatch.setattr(disk, "picture", lambda topic: next(pictures, None) or own(topic))
        end = topic.runtime.state.durable
        frames = TopicFrames(db.objects.runtimes).frames(topic_id, offset=0, end=end)
        assert next(pictures, None) is None
        assert frames[-1].head.offset + frames[-1].head.records == end
