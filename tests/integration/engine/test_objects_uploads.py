"""Topics go to the object store by themselves, each once, whatever dies in between."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.errors import Conflict, InvalidRequest, Unavailable
from tests.integration.engine.objects_world import (
    WAIT_S,
    open_with_objects,
    registered,
    stored,
    uploaded_rows,
    wait_until,
)
from tests.integration.engine.opening import payloads_of, rows_of

ROOT = Path(__file__).parents[3]


def test_what_is_published_is_uploaded_once(tmp_path):
    """Objects hold exactly the records of their topics; a new life uploads nothing again."""
    with open_with_objects(tmp_path) as db:
        topics = [db.create_topic(f"t{number}") for number in range(3)]
        for number in range(30):
            topics[number % 3].append(b"%d" % number)
        ends = db.objects.flush()
        assert ends == {f"/default/t{number}": 10 for number in range(3)}
        for number, topic in enumerate(topics):
            rows = uploaded_rows(db, topic)
            assert [row["payload"] for row in rows] == [b"%d" % n for n in range(number, 30, 3)]
            assert rows == rows_of(topic)
        before = stored(tmp_path)
    with open_with_objects(tmp_path) as db:
        for number in range(3):
            topic = db.topic(f"t{number}")
            assert registered(db, topic.runtime.state.id)
            assert topic.stats()["uploaded"] == 10
        assert db.objects.status()["totals"]["bytes_uploaded"] == 0
        assert stored(tmp_path) == before
        db.topic("t0").append(b"more")
        db.objects.flush("t0")
        assert payloads_of(db.topic("t0"))[-1:] == [b"more"]
        assert set(before) < set(stored(tmp_path))


def test_names_of_topics_are_not_in_keys(tmp_path):
    """The keys of a store show no topic's name."""
    with open_with_objects(tmp_path) as db:
        db.create_topic("/secret/customers").append(b"x", ack="uploaded")
        db.objects.flush()
        keys = " ".join(stored(tmp_path))
    assert keys
    assert "secret" not in keys
    assert "customers" not in keys


def test_topics_say_whether_they_are_uploaded(tmp_path):
    """The option beats the setting, can be changed, and parts have that of their whole."""
    with open_with_objects(tmp_path, objects={"default": False}) as db:
        off = db.create_topic("off")
        on = db.create_topic("on", objects=True)
        parts = db.create_topic("parts", partitions=2, objects=True)
        off.append(b"x")
        on.append(b"x")
        parts.append(b"x")
        db.objects.flush()
        assert [off.describe()["objects"], on.describe()["objects"]] == [False, True]
        assert set(db.objects.status()["topics"]) == {
            "/default/on",
            "/default/parts-part-0",
            "/default/parts-part-1",
        }
        assert "objects" not in off.describe()["holds"]
        with pytest.raises(InvalidRequest, match="ack level"):
            off.append(b"x", ack="uploaded")
        db.alter_topic("off", objects=True)
        off.append(b"y", ack="uploaded")
        assert [row["payload"] for row in uploaded_rows(db, off)] == [b"x", b"y"]
        db.alter_topic("on", objects=False)
        assert "objects" not in on.describe()["holds"]
        with pytest.raises(InvalidRequest, match="has no objects"):
            db.objects.flush("on")
    with open_with_objects(tmp_path, objects={"store": "none"}) as db:
        with pytest.raises(InvalidRequest, match=r"objects\.store"):
            db.create_topic("wants", objects=True)
        assert db.objects.status()["state"] == "off"
        assert payloads_of(db.topic("off")) == [b"x", b"y"]


STEPS = {"begun": 1, "verified": 0, "registered": 0}
"""Where a process dies, and how many objects its next life writes for the same records."""


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_neither_loses_nor_doubles(tmp_path, step):
    """The next life registers what was written, and writes only what was not."""
    child = [sys.executable, "-m", "tests.integration.engine.objects_killed", str(tmp_path), step]
    subprocess.run(child, cwd=ROOT, check=False, timeout=WAIT_S)
    before = stored(tmp_path)
    assert len(before) == (0 if STEPS[step] else 1)
    with open_with_objects(tmp_path) as db:
        topic = db.topic("killed")
        wait_until(lambda: topic.stats()["uploaded"] == 10)
        totals = db.objects.status()["totals"]
        assert totals["objects_uploaded"] == STEPS[step]
        assert len(stored(tmp_path)) == 1
        assert [row["payload"] for row in uploaded_rows(db, topic)] == [
            b"%d" % n for n in range(10)
        ]
        assert len(registered(db, topic.runtime.state.id)) == 1


def test_a_topic_that_fails_does_not_stop_the_others(tmp_path):
    """Its error is reported and it is tried again; when the trouble is over it catches up."""
    with open_with_objects(tmp_path) as db:
        bad, good = db.create_topic("bad"), db.create_topic("good")
        spec = bad.runtime.state.spec
        broker = db.log.journal.journal_id.hex()
        folder = tmp_path / "store" / broker / "topics" / f"{spec.id:08x}-{spec.uid}"
        folder.parent.mkdir(parents=True)
        folder.write_bytes(b"a file where a directory should be")
        for number in range(20):
            bad.append(b"%d" % number)
            good.append(b"%d" % number)
        wait_until(lambda: good.stats()["uploaded"] == 20)
        wait_until(lambda: db.objects.status()["topics"]["/default/bad"]["failures"] > 0)
        found = db.objects.status()["topics"]["/default/bad"]
        assert (found["state"], bool(found["why"])) == ("failing", True)
        assert found["lag_records"] == 20
        assert found["lag_bytes"] > 0
        folder.unlink()
        wait_until(lambda: bad.stats()["uploaded"] == 20)
        assert len(uploaded_rows(db, bad)) == 20
        assert db.objects.status()["topics"]["/default/bad"]["state"] == "running"


def test_a_failed_upload_is_counted_once(tmp_path):
    """`failures` is how often an upload was given up, by topic and in all."""
    with open_with_objects(tmp_path, retry_s=0.0) as db:
        (tmp_path / "store").mkdir(exist_ok=True)
        (tmp_path / "store" / db.log.journal.journal_id.hex()).write_bytes(b"no directory")
        topic = db.create_topic("bad")
        topic.append(b"x")
        known = db.objects.topics[topic.runtime.state.id]
        counts = []

        def is_counted():
            """Look between two tries: all of the tries so far are counted then."""
            trouble = db.objects.uploader.troubles.get(known.id)
            if trouble is None or trouble.failures < 2 or known.uploading.locked():
                return False
            counts[:] = trouble.failures, known.failures, db.objects.failures
            return db.objects.uploader.troubles.get(known.id) is trouble

        wait_until(is_counted)
        assert counts == [counts[0]] * 3


def without_metadata(tmp_path):
    """Lose the file that knows of objects."""
    found = list((tmp_path / "data").glob("meta.db*"))
    assert found
    for path in found:
        path.unlink()


def test_objects_that_the_metadata_lost_are_found_again(tmp_path):
    """The store knows them: a topic goes on where it was, and uploads nothing a second time."""
    with open_with_objects(tmp_path) as db:
        topic = db.create_topic("lost")
        for number in range(30):
            topic.append(b"%d" % number, ack="uploaded" if number % 7 == 0 else None)
        db.objects.flush()
        wait_until(lambda: topic.describe()["holds"] == {"objects": 30})
    without_metadata(tmp_path)
    before = stored(tmp_path)
    with open_with_objects(tmp_path) as db:
        topic = db.topic("lost")
        topic.append(b"30", ack="uploaded")
        assert [row["payload"] for row in uploaded_rows(db, topic)] == [
            b"%d" % n for n in range(31)
        ]
        assert db.objects.status()["topics"]["/default/lost"]["state"] == "running"
        assert registered(db, topic.runtime.state.id)
    assert set(before) - set(stored(tmp_path)) == set()


def test_objects_that_are_nowhere_stop_a_topic(tmp_path):
    """A topic whose objects are lost uploads nothing and gives nothing up: somebody must look."""
    with open_with_objects(tmp_path) as db:
        topic = db.create_topic("lost")
        topic.append(b"x", ack="uploaded")
        db.objects.move_holds()
    without_metadata(tmp_path)
    shutil.rmtree(tmp_path / "store")
    with open_with_objects(tmp_path) as db:
        topic = db.topic("lost")
        topic.append(b"y")
        assert db.objects.status()["topics"]["/default/lost"]["state"] == "stopped"
        assert db.stats()["health"] == "degraded"
        with pytest.raises(Unavailable, match="fsynced"):
            topic.append(b"z", ack="uploaded")
        assert not any("/topics/" in key for key in stored(tmp_path))
        assert topic.describe()["holds"] == {"objects": 1}
        with pytest.raises(Conflict, match="are found"):
            db.objects.retry("lost")


def test_offsets_that_were_uploaded_are_never_given_again(tmp_path):
    """A log that is older than what the store has goes on behind it, and readers miss nothing."""
    with open_with_objects(tmp_path) as db:
        db.create_topic("older").append(b"0", ack="uploaded")
    shutil.copytree(tmp_path / "data" / "journal", tmp_path / "copy")
    with open_with_objects(tmp_path) as db:
        topic = db.topic("older")
        for number in range(1, 10):
            topic.append(b"%d" % number, ack="uploaded")
    shutil.rmtree(tmp_path / "data" / "journal")
    shutil.move(tmp_path / "copy", tmp_path / "data" / "journal")
    with open_with_objects(tmp_path) as db:
        topic = db.topic("older")
        assert topic.append(b"new", ack="uploaded").offset == 10
        rows = uploaded_rows(db, topic)
        assert [row["payload"] for row in rows] == [*(b"%d" % n for n in range(10)), b"new"]
        assert rows_of(topic) == rows
        assert rows_of(topic, 4) == rows[4:]


def test_objects_of_topics_that_the_log_forgot_fall_to_no_other(tmp_path):
    """A log that is older than its topics gets them back, and their ids are not given again."""
    with open_with_objects(tmp_path) as db:
        db.create_topic("older").append(b"0", ack="uploaded")
    shutil.copytree(tmp_path / "data" / "journal", tmp_path / "copy")
    with open_with_objects(tmp_path) as db:
        for name in ("kept", "deleted"):
            topic = db.create_topic(name)
            for number in range(5):
                topic.append(b"%s %d" % (name.encode(), number), ack="uploaded")
        empty_id = db.create_topic("empty").runtime.state.id
        db.delete_topic("deleted")
    shutil.rmtree(tmp_path / "data" / "journal")
    shutil.move(tmp_path / "copy", tmp_path / "data" / "journal")
    for life in range(2):
        with open_with_objects(tmp_path) as db:
            assert any("older than the metadata" in each for each in db.warnings) is (life == 0)
            new = db.create_topic(f"new{life}")
            assert new.append(b"new", ack="uploaded").offset == 0
            assert [row["payload"] for row in uploaded_rows(db, new)] == [b"new"]
            assert [row["payload"] for row in rows_of(new)] == [b"new"]
            kept = [row["payload"] for row in rows_of(db.topic("kept"))]
            assert kept[:5] == [b"kept %d" % number for number in range(5)]
            assert db.topic("kept").append(b"more", ack="uploaded").offset == 5 + life
            assert db.topic("empty").runtime.state.id == empty_id


def test_kills_under_load_neither_lose_nor_double(tmp_path):
    """After each kill the store has what was acked as uploaded, and then everything, once."""
    child = [sys.executable, "-m", "tests.integration.engine.objects_killed", str(tmp_path), "load"]
    acked = [{}, {}]
    chance = random.Random(7)
    for _ in range(3):
        with subprocess.Popen(child, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            wanted = chance.randrange(20, 200)
            promised = [-1, -1]
            for line in process.stdout:
                which, offset, number, waits = map(int, line.split())
                acked[which][offset] = b"%d" % number
                if waits:
                    promised[which] = offset
                wanted -= 1
                if wanted == 0:
                    process.kill()
        with open_with_objects(tmp_path) as db:
            for which, found in enumerate(acked):
                topic = db.topic(f"load{which}")
                assert db.objects.catalog.topic(topic.runtime.state.id).uploaded > promised[which]
                db.objects.flush(topic.name)
                rows = uploaded_rows(db, topic)
                assert rows == rows_of(topic)
                assert [row["_offset"] for row in rows] == list(range(len(rows)))
                for offset, payload in found.items():
                    assert rows[offset]["payload"] == payload
                registered(db, topic.runtime.state.id)
