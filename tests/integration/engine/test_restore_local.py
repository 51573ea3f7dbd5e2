"""Records that a restore writes into the journal of the new machine, and what is not restored."""

from __future__ import annotations

import contextlib
import hashlib

import pytest

from frazil.errors import CorruptionError, NotFound
from frazil.log import format as fmt
from frazil.topic import StateTag
from tests.integration.engine.opening import payloads_of
from tests.integration.engine.restore_scene import Scene, restored
from tests.support.objects_limits import set_objects_limits


@pytest.fixture
def scene(tmp_path):
    """Return a broker with a store in a directory."""
    with contextlib.closing(Scene(tmp_path)) as found:
        yield found


def noise(number, size):
    """Return bytes that cannot be compressed and differ from all others."""
    block = hashlib.sha512(b"%d" % number).digest()
    return (block * (size // len(block) + 1))[:size]


def test_a_journal_of_several_segments_is_written(tmp_path):
    """More than a segment holds is spread over several, and a frame above a piece is whole."""
    sizes = {
        "log.segment_bytes_max": "12MiB",
        "topics.message_bytes_max": "10MiB",
        "log.write_bytes_max": "11MiB",
    }
    with contextlib.closing(Scene(tmp_path, **sizes)) as scene:
        topic = scene.engine.create_topic("events")
        written = [noise(n, 9 << 20 if n % 5 == 0 else 300_000) for n in range(12)]
        for payload in written:
            topic.append(payload=payload)
        scene.engine.objects.flush()
        other = scene.engine.create_topic("other")
        other.append(payload=b"x", ack="uploaded")
        report = scene.lose_and_restore(local_all=True)
        assert report["bytes_local"] > sum(map(len, written))
        assert len(scene.engine.log.journal.segments) > 2
        assert payloads_of(scene.engine.topic("events")) == written
        scene.close()
        scene.open()
        assert payloads_of(scene.engine.topic("events")) == written
        assert payloads_of(scene.engine.topic("other")) == [b"x"]


def test_an_object_of_a_gap_alone_is_read_over(scene):
    """The gap behind a restore may be uploaded by itself: reading goes on behind it."""
    topic = scene.engine.create_topic("events")
    written = [b"%d" % number for number in range(4)]
    for payload in written:
        topic.append(payload=payload, ack="uploaded")
    scene.lose_and_restore()
    scene.engine.objects.flush("events")
    topic = scene.engine.topic("events")
    picture = scene.engine.objects.catalog.topic(topic.runtime.state.id)
    assert picture.descriptors[-1].length == 0
    # A reader that goes on looks ahead over it.
    assert payloads_of(topic) == written
    topic.append(payload=b"new", ack="uploaded")
    scene.lose_and_restore()
    assert payloads_of(scene.engine.topic("events")) == [*written, b"new"]


def test_restore_separates_topics_that_share_an_object_and_a_gap(scene):
    """One has the gap behind a restore alone, the other records behind it, in the same object."""
    for name in ("a", "b"):
        scene.engine.create_topic(name)
    scene.engine.objects.backup()
    scene.lose_and_restore()
    scene.engine.topic("b").append(payload=b"x")
    scene.engine.objects.flush()
    pictures = [
        scene.engine.objects.catalog.topic(scene.engine.topic(name).runtime.state.id)
        for name in ("a", "b")
    ]
    scene.lose_and_restore()
    assert payloads_of(scene.engine.topic("a")) == []
    assert payloads_of(scene.engine.topic("b")) == [b"x"]
    assert [len(picture.descriptors) for picture in pictures] == [1, 1]


def test_a_damaged_frame_is_reported_as_lost_and_the_rest_is_there(scene):
    """What cannot be read is a lost range in the journal, never a silent skip."""
    topic = scene.engine.create_topic("events")
    for number in range(3):
        topic.append(payload=b"%d" % number)
    scene.engine.objects.flush()
    topic.append(payload=b"3", ack="uploaded")
    scene.engine.objects.backup()
    first = scene.engine.objects.catalog.topic(topic.runtime.state.id).descriptors[0]
    scene.lose_machine()
    path = scene.path / "store" / first.key
    data = bytearray(path.read_bytes())
    second = 8 + fmt.FRAME_PREFIX_BYTES + fmt.read_head(data, 8).length
    data[second + fmt.FRAME_HEAD_BYTES + 8] ^= 1
    path.write_bytes(bytes(data))
    report = scene.restore(local_all=True)
    assert any("records are lost" in warning for warning in report["warnings"])
    scene.open()
    topic = scene.engine.topic("events")
    found = topic.read("earliest")
    assert [row["payload"] for row in next(iter(found)).records()] == [b"0"]
    with pytest.raises(CorruptionError) as caught:
        payloads_of(topic)
    assert caught.value.details["offset_next"] == first.end
    assert payloads_of(topic, first.end) == [b"3"]


def test_deleted_topics_stay_deleted_and_their_name_is_the_new_topics(scene):
    """A topic that was deleted and made anew has only the records of its second life."""
    scene.engine.create_topic("gone").append(payload=b"x", ack="uploaded")
    scene.engine.create_topic("again").append(payload=b"old", ack="uploaded")
    made = scene.engine.objects.backup()
    scene.engine.delete_topic("gone")
    scene.engine.delete_topic("again")
    deleted = scene.engine.objects.backup()
    scene.engine.create_topic("again").append(payload=b"new", ack="uploaded")
    scene.forget_backups_since(deleted)
    scene.lose_and_restore()
    assert payloads_of(scene.engine.topic("again")) == [b"new"]
    with pytest.raises(NotFound):
        scene.engine.topic("gone")
    scene.forget_backups_since(made)
    report = scene.lose_and_restore()
    assert any("deleted since the backup" in warning for warning in report["warnings"])
    assert payloads_of(scene.engine.topic("again")) == [b"new"]


def test_values_that_are_no_records_come_back(scene):
    """Namespaces, schemas of the registry, policies: all small values are in the backup."""
    scene.engine.create_topic("events").append(payload=b"x", ack="uploaded")
    scene.engine.states.put(StateTag.SCHEMA, "orders", b"definition")
    scene.engine.objects.backup()
    scene.lose_and_restore()
    assert scene.engine.states.items(StateTag.SCHEMA)["orders"] == b"definition"


def test_the_engine_makes_backups_by_itself(tmp_path):
    """One is there soon after a start; old ones go, the newest stay."""
    from tests.integration.engine.objects_world import wait_until

    set_objects_limits(backup_s=0.1)
    with contextlib.closing(Scene(tmp_path)) as scene:
        topic = scene.engine.create_topic("events")
        folder = scene.path / "store" / scene.engine.log.journal.journal_id.hex() / "backup"

        def made():
            return sorted(path.name for path in folder.glob("*.frzb"))

        def more():
            topic.append(payload=b"x")
            return made() and int(made()[-1][:16], 16) > 10

        wait_until(more)
        assert len(made()) <= 9
        scene.lose_and_restore()
        assert payloads_of(scene.engine.topic("events")) is not None
        assert restored(scene.lose_and_restore(), "events")["lost"] == ()
