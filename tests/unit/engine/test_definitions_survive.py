"""Definitions of topics survive calls that fail half way and files that are lost."""

from __future__ import annotations

import errno

import pytest

from frazil.engine.engine import Engine
from frazil.errors import CorruptionError, FrazilError, NotFound, Overloaded
from tests.crash.engine_world import SETTINGS
from tests.support import SimulatedClock, SimulatedFileSystem

COLUMNS = {"k": "string", "v": "string"}


class Place:
    """A disk and a clock, and the engines that are opened on them one after the other."""

    def __init__(self):
        self.disk = SimulatedFileSystem()
        self.clock = SimulatedClock()

    def open(self, settings=SETTINGS, *, disk=None):
        return Engine(settings, file_system=disk or self.disk, clock=self.clock, threads=False)


class Refusing:
    """Stands before a journal's queue and has no room for some frames; the others pass."""

    def __init__(self, lane, *numbers):
        self._lane = lane
        self._queue = lane.queue
        self._numbers = numbers
        self.count = 0

    def __enter__(self):
        self._lane.queue = self
        return self

    def __exit__(self, *_error):
        self._lane.queue = self._queue

    def submit_waiting(self, *entries):
        self.count += 1
        if not self._numbers or self.count in self._numbers:
            raise Overloaded("the journal's queue is full, slow down")
        self._queue.submit_waiting(*entries)

    def __getattr__(self, name):
        return getattr(self._queue, name)


@pytest.fixture
def place():
    """Return a new disk."""
    return Place()


def rows_of(topic):
    return [row for part in topic.parts for batch in part.read() for row in batch.records()]


# -- alter ---------------------------------------------------------------------------------------


def lanes_of(engine, lane):
    return engine.main if lane == "shared" else engine.lanes[2]


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
@pytest.mark.parametrize("refused", [1, 2])
def test_another_alter_after_a_failed_one_keeps_columns_apart(place, lane, refused):
    """A value published under one column is read under it, whatever failed in between."""
    engine = place.open()
    engine.create_topic("p", COLUMNS, partitions=2, lane=lane)
    queue = lanes_of(engine, lane)
    with Refusing(queue, refused if lane == "shared" else 1), pytest.raises(Overloaded):
        engine.alter_topic("p", add={"a": "string"})
    engine.alter_topic("p", add={"b": "string"})
    topic = engine.topic("p")
    for part in topic.parts:
        part.append(k="1", v="v", b="value of b")
    for _ in range(2):
        topic = engine.topic("p")
        assert len({tuple(part.schema.names) for part in topic.parts}) == 1
        assert [row["b"] for row in rows_of(topic)] == ["value of b"] * 2
        assert {row.get("a") for row in rows_of(topic)} == {None}
        for part in topic.parts:
            state = part.runtime.state
            assert state.schema_version == max(state.schemas)
            assert state.schemas == topic.parts[0].runtime.state.schemas
            assert state.schemas == engine.main.journal.state.topics[state.id].schemas
        engine.close()
        engine = place.open()
        assert engine.warnings == []
    engine.close()


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
def test_an_alter_that_failed_half_way_can_be_repeated(place, lane):
    """The same call again completes the change on every part, once."""
    engine = place.open()
    engine.create_topic("p", COLUMNS, partitions=2, lane=lane)
    change = {"add": {"a": "string"}, "rename": {"v": "w"}}
    numbers = (2,) if lane == "shared" else ()
    with Refusing(lanes_of(engine, lane), *numbers), pytest.raises(Overloaded):
        engine.alter_topic("p", **change)
    topic = engine.alter_topic("p", **change)
    assert [part.schema.names for part in topic.parts] == [["k", "w", "a"]] * 2
    assert {part.runtime.state.schema_version for part in topic.parts} == {2}
    engine.close()


def test_a_refused_change_of_columns_leaves_the_options_alone(place):
    """An alter whose columns are not allowed changes nothing, not even the parent's options."""
    engine = place.open()
    engine.create_topic("p", COLUMNS, partitions=2)
    with pytest.raises(Exception, match="declared twice"):
        engine.alter_topic("p", add={"k": "string"}, retention_age="1h")
    assert engine._parents["/default/p"].retention_us is None
    engine.close()


def test_parts_get_the_options_of_an_alter_that_failed(place):
    """After a failed and a good alter all parts have the options of both, as the parent has."""
    engine = place.open()
    engine.create_topic("p", partitions=2)
    with Refusing(engine.main, 3), pytest.raises(Overloaded):
        engine.alter_topic("p", retention_bytes=1000)
    engine.alter_topic("p", retention_age="1h")
    for _ in range(2):
        for spec in [part.runtime.state.spec for part in engine.topic("p").parts]:
            parent = engine._parents["/default/p"]
            assert (spec.retention_bytes, spec.retention_us) == (1000, 3_600_000_000)
            assert (parent.retention_bytes, parent.version) == (1000, spec.version)
        engine.close()
        engine = place.open()
    engine.close()


def test_parts_whose_history_differs_are_not_mixed(place):
    """One version with two meanings is left as it is, with a warning, and cannot be altered."""
    engine = place.open()
    topic = engine.create_topic("p", COLUMNS, partitions=2)
    other = engine.create_topic("q", {"k": "string", "v": "string", "b": "string"})
    from frazil.topic import schema_control

    foreign = other.runtime.state.schemas[1]
    engine.alter_topic("p", add={"a": "string"})
    engine.alter_topic("p", add={"c": "string"})
    engine.main.control(schema_control(topic.parts[1].runtime.state.id, 2, foreign))
    engine.close()
    engine = place.open()
    assert any("/default/p are left as they are" in warning for warning in engine.warnings)
    before = [part.runtime.state.schemas for part in engine.topic("p").parts]
    with pytest.raises(CorruptionError, match="differs"):
        engine.alter_topic("p", add={"d": "string"})
    assert before == [part.runtime.state.schemas for part in engine.topic("p").parts]
    engine.close()


# -- create and delete ---------------------------------------------------------------------------


class FullLanes:
    """A disk on which dedicated lanes have no room to write, from some write on."""

    def __init__(self, disk):
        self._disk = disk
        self.room = 10**9

    def open(self, path, mode):
        file = self._disk.open(path, mode)
        return FullFile(file, self) if "/lanes/" in path else file

    def __getattr__(self, name):
        return getattr(self._disk, name)


class FullFile:
    """A file that takes no more writes than its disk has room for."""

    def __init__(self, file, disk):
        self._file = file
        self._disk = disk

    def write_at(self, position, buffers):
        self._disk.room -= 1
        if self._disk.room < 0:
            raise OSError(errno.ENOSPC, "no space left")
        return self._file.write_at(position, buffers)

    def __getattr__(self, name):
        return getattr(self._file, name)


def live_names(engine):
    topics = engine.main.journal.state.topics.values()
    return sorted(topic.spec.name for topic in topics if not topic.spec.deleted_us)


@pytest.mark.parametrize("columns", [None, COLUMNS])
@pytest.mark.parametrize("partitions", [0, 2])
def test_a_topic_whose_lane_has_no_room_is_not_there(place, columns, partitions):
    """A full disk at any write of a new lane is reported and leaves no topic behind."""
    failures = 0
    for room in range(30):
        disk = FullLanes(SimulatedFileSystem())
        engine = place.open(disk=disk)
        disk.room = room
        try:
            engine.create_topic("t", columns, lane="dedicated", partitions=partitions)
        except FrazilError:
            failures += 1
        else:
            break
        assert engine.topics() == live_names(engine) == []
        disk.room = 10**9
        engine.create_topic("t", columns, lane="dedicated", partitions=partitions)
        engine.close()
        engine = place.open(disk=disk)
        assert engine.topics() == ["/default/t"]
        topic = engine.topic("t")
        topic.append(b"x") if columns is None else topic.append(k="1", v="2")
        engine.delete_topic("t")
        engine.close()
        engine = place.open(disk=disk)
        assert engine.topics() == live_names(engine) == []
        engine.close()
    assert failures >= 2
    assert engine.topics() == ["/default/t"]


@pytest.mark.timeout(20)
def test_a_failed_creation_waits_for_no_thread_that_never_ran():
    """With threads at work a full disk is reported too, and the lane leaves no file."""
    for room in range(4):
        disk = FullLanes(SimulatedFileSystem())
        engine = Engine(SETTINGS, file_system=disk, clock=SimulatedClock())
        disk.room = room
        with pytest.raises(FrazilError):
            engine.create_topic("t", COLUMNS, lane="dedicated", partitions=2)
        assert engine.topics() == live_names(engine) == []
        for topic_id in range(10):
            assert not engine._has_files(topic_id)
        disk.room = 10**9
        engine.create_topic("t", lane="dedicated")
        engine.delete_topic("t")
        engine.close()


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("last", [0, 1, 99])
def test_a_creation_that_finds_the_queue_full_is_taken_back(place, lane, partitions, last):
    """Whichever frames are refused, the name is free, is used once, and can be deleted."""
    for first in range(1, 1 + 2 * max(partitions, 1)):
        engine = Place().open()
        numbers = range(first, first + last + 1)
        with Refusing(engine.main, *numbers), pytest.raises(Overloaded):
            engine.create_topic("t", COLUMNS, lane=lane, partitions=partitions)
        assert engine.topics() == []
        engine.create_topic("t", COLUMNS, lane=lane, partitions=partitions).append(k="1", v="2")
        assert len(live_names(engine)) == (partitions + 1 if partitions else 1)
        assert engine.topic("t").stats()["message_count"] == 1
        engine.delete_topic("t")
        assert live_names(engine) == []
        engine.close()


def test_what_a_failed_creation_left_is_gone_after_opening(place):
    """A topic that could not even be taken back does not come up at the next opening."""
    engine = place.open()
    with Refusing(engine.main, *range(2, 99)), pytest.raises(Overloaded):
        engine.create_topic("t", COLUMNS)
    disk = FullLanes(place.disk)
    engine.file_system = disk
    disk.room = 0
    with Refusing(engine.main, *range(2, 99)), pytest.raises(FrazilError):
        engine.create_topic("u", lane="dedicated")
    engine.close()
    engine = place.open()
    assert engine.topics() == live_names(engine) == []
    engine.close()


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
def test_a_delete_that_fails_changes_nothing_and_can_be_repeated(place, lane):
    """A delete without room for its first frame leaves the whole topic; the next one removes it."""
    engine = place.open()
    engine.create_topic("p", partitions=2, lane=lane)
    with Refusing(engine.main), pytest.raises(Overloaded):
        engine.delete_topic("p")
    assert engine.topics() == ["/default/p"]
    engine.topic("p").append(b"x")
    engine.delete_topic("p")
    assert engine.topics() == live_names(engine) == []
    assert engine.create_topic("p", partitions=2, lane=lane).stats()["message_count"] == 0
    engine.close()


@pytest.mark.parametrize("lane", ["shared", "dedicated"])
@pytest.mark.parametrize("reopen", [True, False])
def test_a_delete_is_decided_by_its_first_frame(place, lane, reopen):
    """When the parent is durably deleted its parts are gone too, now and after an opening."""
    engine = place.open()
    topic = engine.create_topic("p", partitions=2, lane=lane)
    with Refusing(engine.main, *range(2, 99)):
        engine.delete_topic("p")
    assert engine.topics() == []
    for part in topic.parts:
        with pytest.raises(NotFound):
            engine.topic(part.name)
        with pytest.raises(NotFound):
            part.append(b"x")
    if reopen:
        engine.close()
        engine = place.open()
        assert engine.topics() == live_names(engine) == []
    engine.create_topic("p", partitions=1, lane=lane)
    assert live_names(engine) == ["/default/p", "/default/p-part-0"]
    engine.close()


def test_a_delete_goes_on_when_a_lane_has_failed(place):
    """A failed lane keeps neither its topic from being deleted nor others from being made."""
    engine = place.open()
    topic = engine.create_topic("p", partitions=2, lane="dedicated")
    for part in topic.parts:
        part.runtime.lane.journal.fail(OSError(errno.EIO, "broken"))
    engine.delete_topic("p")
    engine.create_topic("p")
    assert live_names(engine) == ["/default/p"]
    engine.close()


def test_a_topic_may_be_forgotten_while_it_is_deleted(place):
    """Without a grace a rotation drops a deleted topic at once; deleting it goes on all the same."""
    no_grace = SETTINGS.topics.model_copy(update={"delete_grace_s": 0.0})
    engine = place.open(SETTINGS.model_copy(update={"topics": no_grace}))
    engine.create_topic("p", partitions=3)
    control = engine.main.control

    def rotating(frame):
        lsn = control(frame)
        place.clock.advance(1)
        engine.main.journal.rotate()
        return lsn

    engine.main.control = rotating
    engine.delete_topic("p")
    assert engine.topics() == live_names(engine) == []
    engine.main.control = control
    engine.create_topic("p")
    engine.close()
    assert place.open().topics() == ["/default/p"]


# -- files that are lost -------------------------------------------------------------------------


def remove_files(disk, directory):
    for name in disk.list_directory(directory):
        if name.endswith(".seg"):
            disk.unlink(f"{directory}/{name}")


def filled(place, *, settings=SETTINGS):
    """Make topics of every sort with ten records each and close; return the paths."""
    engine = place.open(settings)
    engine.create_topic("gone")
    engine.create_topic("shared", COLUMNS)
    engine.create_topic("lane", COLUMNS, lane="dedicated")
    engine.alter_topic("shared", add={"a": "string"}, retention_age="1h")
    engine.alter_topic("lane", add={"a": "string"})
    engine.create_topic("parts", partitions=2, lane="dedicated")
    engine.delete_topic("gone")
    for number in range(10):
        engine.topic("shared").append(k="1", v="2", a=str(number))
        engine.topic("lane").append(k="1", v="2", a=str(number))
        engine.topic("parts").append(b"x")
    engine.close()
    return engine.paths


def lost_of(engine, name):
    return [(each["first"], each["end"]) for each in engine.describe(name)["lost"]]


ALL = ["/default/lane", "/default/parts", "/default/shared"]


def test_a_lane_without_files_goes_on_behind_what_is_lost(place):
    """A topic whose lane lost its files keeps its columns, reports the loss, reuses no offset."""
    paths = filled(place)
    engine = place.open()
    lane = engine.topic("lane").runtime.state.id
    engine.close()
    remove_files(place.disk, paths.lane(lane))
    engine = place.open()
    assert any("no segment left" in warning for warning in engine.warnings)
    assert engine.stats()["health"] == "degraded"
    for count in range(2):
        assert engine.topics() == ALL
        assert lost_of(engine, "lane") == [(0, 10)]
        assert lost_of(engine, "shared") == []
        assert engine.topic("lane").schema.names == ["k", "v", "a"]
        assert engine.topic("lane").append(k="1", v="2", a="new").offset == 10 + count
        assert engine.topic("shared").append(k="1", v="2", a="new").offset == 10 + count
        assert engine.topic("parts").stats()["message_count"] == 10
        engine.close()
        engine = place.open()
        assert engine.warnings == []
    rows = [row["a"] for batch in engine.topic("lane").read(10) for row in batch.records()]
    assert rows == ["new", "new"]
    engine.close()


def test_a_main_journal_without_files_is_restored_from_the_metadata(place):
    """Without the shared journal all topics exist again; those with lanes have their records."""
    paths = filled(place)
    remove_files(place.disk, paths.journal)
    engine = place.open()
    assert any("no segment left" in warning for warning in engine.warnings)
    for count in range(2):
        assert engine.topics() == live_names_without_parts(engine) == ALL
        assert lost_of(engine, "shared") == [(0, 10)]
        assert engine.describe("shared")["retention_age_s"] == 3600
        assert engine.topic("shared").schema.names == ["k", "v", "a"]
        assert engine.topic("shared").append(k="1", v="2", a="new").offset == 10 + count
        assert lost_of(engine, "lane") == []
        assert engine.main.journal.state.topics[engine.describe("lane")["id"]].ranges == []
        rows = [row["a"] for batch in engine.topic("lane").read() for row in batch.records()]
        assert rows == [str(number) for number in range(10)]
        assert engine.topic("parts").stats()["message_count"] == 10
        engine.close()
        engine = place.open()
        assert engine.warnings == []
    engine.close()


def live_names_without_parts(engine):
    return [name for name in live_names(engine) if "-part-" not in name]


def test_everything_but_the_metadata_is_lost(place):
    """With no journal and no lane left no name, column or offset is given anew."""
    paths = filled(place)
    engine = place.open()
    lanes = [lane.journal.directory for lane in engine.lanes]
    engine.close()
    for directory in lanes:
        remove_files(place.disk, directory)
    assert paths.journal in lanes
    engine = place.open()
    assert engine.topics() == ALL
    for name in ("shared", "lane"):
        assert lost_of(engine, name) == [(0, 10)]
        assert engine.topic(name).append(k="1", v="2", a="new").offset == 10
    assert sorted(part.append(b"x").offset for part in engine.topic("parts").parts) == [5, 5]
    engine.close()


def test_a_lane_that_knows_more_than_the_metadata_is_believed(place):
    """When the journal is lost, a lane's newer definition wins over the metadata's older one."""
    filled(place)
    engine = place.open()
    indexed = engine._indexer.topic_changed
    engine._indexer.topic_changed = lambda *_: None
    engine.alter_topic("lane", add={"b": "string"}, retention_bytes=12345)
    engine._indexer.topic_changed = indexed
    engine._rebuild_index = list
    engine.close()
    remove_files(place.disk, engine.paths.journal)
    for _ in range(2):
        engine = place.open()
        assert engine.describe("lane")["retention_bytes"] == 12345
        assert engine.topic("lane").schema.names == ["k", "v", "a", "b"]
        engine.close()
    engine = place.open()
    engine.alter_topic("lane", add={"c": "string"})
    assert engine.topic("lane").schema.names == ["k", "v", "a", "b", "c"]
    assert engine.describe("lane")["retention_bytes"] == 12345
    engine.close()


def test_a_lost_journal_never_gives_a_lane_to_another_topic(place):
    """The files of a deleted topic's lane do not become the records of a new one."""
    engine = place.open()
    engine.create_topic("kept")
    engine.create_topic("old", lane="dedicated").append(b"old")
    engine.delete_topic("old")
    engine.close()
    remove_files(place.disk, engine.paths.journal)
    engine = place.open()
    topic = engine.create_topic("new", lane="dedicated")
    assert topic.append(b"new").offset == 0
    assert [row["payload"] for batch in topic.read() for row in batch.records()] == [b"new"]
    engine.close()


def test_a_new_directory_is_empty_and_without_warnings(place):
    """Nothing is known of a new directory, and nothing is said of it."""
    engine = place.open()
    assert engine.warnings == []
    assert engine.topics() == []
    assert engine.create_topic("t", lane="dedicated").append(b"x").offset == 0
    assert engine.create_topic("u").append(b"x").offset == 0
    engine.close()
