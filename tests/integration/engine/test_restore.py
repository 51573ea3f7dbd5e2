"""A broker's machine is lost: what was uploaded is served again from a new one."""

from __future__ import annotations

import contextlib

import pytest

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound
from frazil.objects import backup_keys, listed, parse_key
from tests.integration.engine.opening import column_of, payloads_of, rows_of
from tests.integration.engine.restore_scene import Scene, restored


@pytest.fixture
def scene(tmp_path):
    """Return a broker with a store in a directory."""
    with contextlib.closing(Scene(tmp_path)) as found:
        yield found


@pytest.fixture
def topic(scene):
    """Return a topic of the broker's first life."""
    return scene.engine.create_topic("events")


def publish(topic, numbers, **options):
    """Publish records whose acks say that the store has them."""
    for number in numbers:
        topic.append(payload=b"%d" % number, ack="uploaded", **options)


def payloads(numbers):
    """Return what `publish` wrote."""
    return [b"%d" % number for number in numbers]


@pytest.mark.parametrize("local_all", [False, True])
def test_every_uploaded_record_is_served_after_the_disk_is_lost(scene, topic, local_all):
    """Records acked as uploaded are there, with their offsets, and publishing goes on."""
    publish(topic, range(40))
    scene.engine.objects.backup()
    publish(topic, range(40, 60))
    before = [(row["_offset"], row["payload"]) for row in rows_of(topic)]
    report = scene.lose_and_restore(local_all=local_all)
    found = restored(report, "events")
    assert [found[name] for name in ("first", "end", "local", "lost")] == [0, 60, local_all, ()]
    topic = scene.engine.topic("events")
    assert [(row["_offset"], row["payload"]) for row in rows_of(topic)] == before
    ack = topic.append(payload=b"new", ack="uploaded")
    assert ack.offset > 60
    assert payloads_of(topic) == [*payloads(range(60)), b"new"]


def test_a_second_loss_is_survived_as_well(scene):
    """A restored broker is one like any other: lost again, it comes back with all it had."""
    publish(scene.engine.create_topic("events"), range(10))
    for life in range(1, 4):
        scene.lose_and_restore()
        topic = scene.engine.topic("events")
        publish(topic, range(life * 10, life * 10 + 10))
        assert payloads_of(topic) == payloads(range(life * 10 + 10))
    epochs = [
        parse_key(meta.key).epoch for meta in listed(scene.store(), "") if "frzb" not in meta.key
    ]
    assert max(epochs) >= 4


def test_offsets_that_nobody_knows_of_are_not_given_again(scene, topic):
    """What was published after the last backup and never uploaded keeps its offsets."""
    publish(topic, range(5))
    last = [topic.append(payload=b"gone", ack="fsynced") for _ in range(50)][-1]
    scene.lose_and_restore()
    topic = scene.engine.topic("events")
    assert payloads_of(topic) == payloads(range(5))
    assert topic.append(payload=b"new").offset > last.offset


def test_offsets_of_a_machine_that_was_lost_at_once_are_not_given_again(scene):
    """The restore itself is noted in the store: the next one leaves room for what it gave out."""
    publish(scene.engine.create_topic("events"), range(5))
    scene.lose_machine()
    scene.restore()
    noted = {"key": backup_keys(scene.store(), scene.broker())[-1].key}
    scene.open()
    gone = scene.engine.topic("events").append(payload=b"gone", ack="fsynced")
    scene.forget_backups_since(noted)
    scene.lose_and_restore()
    topic = scene.engine.topic("events")
    assert topic.append(payload=b"new", ack="uploaded").offset > gone.offset
    assert payloads_of(topic) == [*payloads(range(5)), b"new"]


def test_restore_reports_what_the_backup_knew_and_no_object_has(scene, topic):
    """Records that were fsynced only are gone with the disk, and the report counts them."""
    publish(topic, range(5))
    for _ in range(7):
        topic.append(payload=b"gone", ack="fsynced")
    scene.engine.objects.backup()
    assert restored(scene.lose_and_restore(), "events")["unsaved"] == 7


def test_topics_newer_than_the_backup_come_from_the_objects(scene):
    """A topic with columns that the backup does not know lives again, with its columns."""
    scene.engine.create_topic("first")
    made = scene.engine.objects.backup()
    topic = scene.engine.create_topic("late", {"name": "string", "size": "int64"})
    for number in range(5):
        topic.append({"name": f"n{number}", "size": number}, ack="uploaded")
    scene.forget_backups_since(made)
    report = scene.lose_and_restore()
    assert restored(report, "late")["end"] == 5
    assert column_of(scene.engine.topic("late"), "size") == list(range(5))
    assert scene.engine.topic("late").append({"name": "x", "size": 9}, ack="uploaded").offset > 4
    assert "/default/first" in scene.engine.topics()


def test_columns_that_changed_since_the_backup_are_known(scene):
    """Rows written under newer columns are read under them, older rows as well."""
    topic = scene.engine.create_topic("rows", {"a": "int64"})
    topic.append({"a": 1}, ack="uploaded")
    made = scene.engine.objects.backup()
    scene.engine.alter_topic("rows", add={"b": "string"})
    scene.engine.topic("rows").append({"a": 2, "b": "two"}, ack="uploaded")
    scene.forget_backups_since(made)
    scene.lose_and_restore()
    rows = rows_of(scene.engine.topic("rows"))
    assert [(row["a"], row["b"]) for row in rows] == [(1, None), (2, "two")]


def test_subscriptions_are_as_the_last_backup_had_them(scene, topic):
    """Progress up to the backup is kept; what was acked since is delivered again."""
    publish(topic, range(20))
    scene.engine.subscriptions.create("events", "billing", start="earliest")
    scene.engine.subscriptions.reset("events", "billing", 12)
    made = scene.engine.objects.backup()
    scene.engine.subscriptions.reset("events", "billing", 18)
    scene.forget_backups_since(made)
    assert restored(scene.lose_and_restore(), "events")["subscriptions"] == 1
    (found,) = scene.engine.subscriptions.describe("events")
    assert (found["name"], found["acked_below"]) == ("billing", 12)
    with scene.engine.topic("events").subscribe("billing") as consumer:
        batch = next(iter(consumer))
        assert batch is not None


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("local_all", [False, True])
def test_repeats_of_producers_are_recognised(scene, topic, local_all, is_known):
    """A batch that is in an object is not written twice; one that is not is written."""
    for number in range(3):
        topic.append(payload=b"%d" % number, producer="p", sequence=number, ack="uploaded")
    scene.engine.objects.backup()
    for number in range(3, 6):
        topic.append(payload=b"%d" % number, producer="p", sequence=number, ack="uploaded")
    topic.append(payload=b"6", producer="p", sequence=6, ack="fsynced")
    if is_known:
        scene.engine.objects.backup()
    scene.lose_and_restore(local_all=local_all)
    topic = scene.engine.topic("events")
    repeat = topic.append(payload=b"5", producer="p", sequence=5, ack="uploaded")
    assert repeat.offset == 5
    fresh = topic.append(payload=b"6", producer="p", sequence=6, ack="uploaded")
    assert fresh.offset > 6
    assert payloads_of(topic) == payloads(range(7))


def test_a_producer_that_the_backup_does_not_know_is_recognised(scene, topic):
    """Its name comes from the footers, its batches from the frames."""
    made = scene.engine.objects.backup()
    for number in range(4):
        topic.append(payload=b"%d" % number, producer="late", sequence=number, ack="uploaded")
    scene.forget_backups_since(made)
    scene.lose_and_restore()
    topic = scene.engine.topic("events")
    assert topic.append(payload=b"3", producer="late", sequence=3).offset == 3
    assert payloads_of(topic) == payloads(range(4))


def test_keyed_topics_have_their_rows_by_key(scene):
    """Newest rows, deletes and lookups are as before; the records lie on the new machine."""
    topic = scene.engine.create_topic("rows", {"id": "int64", "v": "string"}, primary_key="id")
    for number in range(30):
        topic.upsert({"id": number % 10, "v": f"v{number}"}, ack="uploaded")
    topic.delete({"id": 3}, ack="uploaded")
    found = restored(scene.lose_and_restore(), "rows")
    assert found["local"]
    topic = scene.engine.topic("rows")
    assert topic.get(4)["v"] == "v24"
    assert topic.get(3) is None
    topic.upsert({"id": 3, "v": "again"}, ack="uploaded")
    rows = scene.engine.query("select id, v from rows order by id").rows()
    assert [number for number, _value in rows] == list(range(10))
    assert rows[3] == (3, "again")


def ids_of_parts(scene, count):
    """Return the ids in all parts of the topic `parts`, which has so many."""
    assert scene.engine.topic("parts").describe()["partitions"] == count
    names = [f"parts-part-{index}" for index in range(count)]
    return sorted(value for name in names for value in column_of(scene.engine.topic(name), "id"))


def test_partitioned_topics_come_back(scene):
    """Parts with their parent are all there."""
    parts = scene.engine.create_topic("parts", {"id": "int64"}, partitions=3, partition_by=["id"])
    for number in range(9):
        parts.append({"id": number}, ack="uploaded")
    scene.engine.objects.backup()
    scene.lose_and_restore()
    assert ids_of_parts(scene, 3) == list(range(9))


@pytest.mark.parametrize("left", [None, b"junk"], ids=["gone", "junk"])
def test_without_any_backup_the_objects_are_enough(scene, topic, left):
    """Topics, columns and records come from footers and frames alone; subscriptions are gone."""
    publish(topic, range(12))
    parts = scene.engine.create_topic("parts", {"id": "int64"}, partitions=2, partition_by=["id"])
    for number in range(8):
        parts.append({"id": number}, ack="uploaded")
    scene.engine.objects.backup()
    if left is None:
        scene.forget_backups_since(None)
    scene.close()
    for found in backup_keys(scene.store(), scene.broker()):
        (scene.path / "store" / found.key).write_bytes(left)
    report = scene.lose_and_restore()
    assert report["backup"] == ""
    unread = any("no backup can be read" in warning for warning in report["warnings"])
    assert unread is (left is not None)
    assert payloads_of(scene.engine.topic("events")) == payloads(range(12))
    assert ids_of_parts(scene, 2) == list(range(8))
    assert scene.engine.subscriptions.describe("events") == []


def test_the_backup_before_a_damaged_one_is_used(scene, topic):
    """The newest backup is damaged: the one before it counts, and the report names the damage."""
    publish(topic, range(5))
    scene.engine.objects.backup()
    publish(topic, range(5, 9))
    damaged = scene.engine.objects.backup()["key"]
    path = scene.path / "store" / damaged
    data = bytearray(path.read_bytes())
    data[-3] ^= 0x10
    path.write_bytes(bytes(data))
    report = scene.lose_and_restore()
    assert list(report["unreadable_backups"]) == [damaged]
    assert report["backup"] not in {"", damaged}
    assert payloads_of(scene.engine.topic("events")) == payloads(range(9))


def test_objects_of_an_owner_of_the_past_are_not_taken(scene, topic):
    """A late write of an earlier epoch, not in the backup, does not become part of the topic."""
    publish(topic, range(6))
    stale = next(
        scene.path / "store" / meta.key
        for meta in listed(scene.store(), "")
        if "/topics/" in meta.key
    )
    kept = {stale.name: stale.read_bytes()}
    scene.close()
    scene.open()
    topic = scene.engine.topic("events")
    publish(topic, range(6, 9))
    scene.engine.objects.backup()
    scene.lose_machine()
    # What the first owner wrote comes back under a name that says so: nobody registered it.
    parts = parse_key(str(stale.relative_to(scene.path / "store")))
    assert parts is not None
    forged = stale.with_name(stale.name.replace(parts.upload, "0" * 8))
    forged.write_bytes(kept[stale.name])
    report = scene.restore()
    assert report["stale_objects"] == 1
    scene.open()
    assert payloads_of(scene.engine.topic("events")) == payloads(range(9))


def test_a_missing_object_is_a_lost_range_and_never_silence(scene, topic):
    """Reading what the object had is an error that names the range; the rest is served."""
    for start in range(0, 9, 3):
        for number in range(start, start + 3):
            topic.append(payload=b"%d" % number)
        scene.engine.objects.flush("events")
    scene.engine.objects.backup()
    descriptors = scene.engine.objects.catalog.topic(topic.runtime.state.id).descriptors
    middle = next(each for each in descriptors if each.first <= 4 < each.end)
    scene.lose_machine()
    (scene.path / "store" / middle.key).unlink()
    report = scene.restore()
    assert report["missing_objects"] == [middle.key]
    assert restored(report, "events")["lost"] == ((middle.first, middle.end),)
    scene.open()
    topic = scene.engine.topic("events")
    with pytest.raises(CorruptionError) as caught:
        payloads_of(topic)
    assert caught.value.details["offset_next"] == middle.end
    assert payloads_of(topic, middle.end) == payloads(range(middle.end, 9))


def test_a_target_that_is_not_empty_is_refused(scene, tmp_path):
    """Nothing is written over: neither data nor what an earlier restore left."""
    publish(scene.engine.create_topic("events"), range(3))
    with pytest.raises(Conflict, match="not empty"):
        scene.restore()
    scene.lose_machine()
    (tmp_path / "machine-1.restoring").mkdir()
    with pytest.raises(Conflict, match="interrupted"):
        scene.restore()
    (tmp_path / "machine-1.restoring").rmdir()
    (tmp_path / "machine-1").mkdir()
    scene.restore()
    assert not (tmp_path / "machine-1.restoring").exists()


def test_restore_names_the_brokers_of_a_store_without_one_or_with_several(scene, tmp_path):
    """An empty store has nothing to restore; of several brokers one must be named."""
    scene.lose_machine()
    with pytest.raises(NotFound, match="no objects of any broker"):
        scene.restore()
    scene.open()
    first = scene.engine.log.journal.journal_id
    publish(scene.engine.create_topic("events"), range(3))
    root = {"objects.root": str(tmp_path / "store")}
    with contextlib.closing(Scene(tmp_path / "other", **root)) as other:
        publish(other.engine.create_topic("others"), range(2))
    scene.lose_machine()
    with pytest.raises(InvalidRequest, match="several brokers") as caught:
        scene.restore()
    assert first.hex() in str(caught.value)
    with pytest.raises(NotFound):
        scene.restore(broker=bytes(16))
    assert [topic["name"] for topic in scene.restore(broker=first)["topics"]] == ["/default/events"]


def test_a_topic_that_was_never_uploaded_is_there_without_records(scene):
    """Its definition is in the backup, its records were on the lost disk alone."""
    topic = scene.engine.create_topic("local", objects=False)
    for _ in range(4):
        topic.append(payload=b"x")
    publish(scene.engine.create_topic("events"), range(2))
    scene.engine.objects.backup()
    report = scene.lose_and_restore()
    assert restored(report, "local")["unsaved"] == 4
    topic = scene.engine.topic("local")
    assert payloads_of(topic) == []
    assert topic.append(payload=b"new").offset >= 4
    assert payloads_of(topic) == [b"new"]


def test_a_broker_notices_another_that_was_restored_from_its_store(scene, tmp_path):
    """It says so and is degraded, for what it uploads would not count; its next life counts."""
    publish(scene.engine.create_topic("events"), range(3))
    scene.engine.objects.backup()
    root = {"objects.root": str(tmp_path / "store")}
    with contextlib.closing(Scene(tmp_path / "trial", opened=False, **root)) as trial:
        trial.restore()
        # A restore alone is no reason to stop.
        scene.engine.objects.backup()
        publish(trial.open().topic("events"), [100])
        trial.engine.objects.backup()
        publish(scene.engine.topic("events"), range(3, 6))
        with pytest.raises(Conflict, match="another broker with these objects"):
            scene.engine.objects.backup()
        scene.engine.objects._task.run("backup", scene.engine.objects.backups.now)
        assert scene.engine.stats()["health"] == "degraded"
    scene.close()
    publish(scene.open().topic("events"), range(6, 9))
    scene.engine.objects.backup()
    assert scene.engine.stats()["health"] == "ok"
    scene.lose_and_restore()
    found = payloads_of(scene.engine.topic("events"))
    assert [each for each in found if each != b"100"] == payloads(range(9))
