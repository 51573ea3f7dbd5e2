"""Definitions of topics survive calls that fail half way and files that are lost."""

from __future__ import annotations

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
        self.engine = None

    def open(self, settings=SETTINGS):
        """Open the directory; the engine that is open is closed first."""
        self.close()
        self.engine = Engine(settings, file_system=self.disk, clock=self.clock, threads=False)
        return self.engine

    def close(self):
        if self.engine is not None:
            self.engine.close()


class Refusing:
    """Stands before a journal's queue and has no room for some frames; the others pass."""

    def __init__(self, log, *numbers):
        self._log = log
        self._queue = log.queue
        self._numbers = numbers
        self.count = 0

    def __enter__(self):
        self._log.queue = self
        return self

    def __exit__(self, *_error):
        self._log.queue = self._queue

    def submit_waiting(self, *entries):
        self.count += 1
        if not self._numbers or self.count in self._numbers:
            raise Overloaded("the journal's queue is full, slow down")
        self._queue.submit_waiting(*entries)

    def __getattr__(self, name):
        return getattr(self._queue, name)


@pytest.fixture
def place():
    """Give a new disk; its engine is closed at the end."""
    found = Place()
    yield found
    found.close()


def rows_of(topic):
    return [row for part in topic.parts for batch in part.read() for row in batch.records()]


# -- alter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("refused", [1, 2])
def test_another_alter_after_a_failed_one_keeps_columns_apart(place, refused):
    """A value published under one column is read under it, whatever failed in between."""
    engine = place.open()
    engine.create_topic("p", COLUMNS, partitions=2)
    with Refusing(engine.log, refused), pytest.raises(Overloaded):
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
            assert state.schemas == engine.log.journal.state.topics[state.id].schemas
        engine = place.open()
        assert engine.warnings == []


def test_an_alter_that_failed_half_way_can_be_repeated(place):
    """The same call again completes the change on every part, once."""
    engine = place.open()
    engine.create_topic("p", COLUMNS, partitions=2)
    change = {"add": {"a": "string"}, "rename": {"v": "w"}}
    with Refusing(engine.log, 2), pytest.raises(Overloaded):
        engine.alter_topic("p", **change)
    topic = engine.alter_topic("p", **change)
    assert [part.schema.names for part in topic.parts] == [["k", "w", "a"]] * 2
    assert {part.runtime.state.schema_version for part in topic.parts} == {2}


def test_a_refused_change_of_columns_leaves_the_options_alone(place):
    """An alter whose columns are not allowed changes nothing, not even the parent's options."""
    engine = place.open()
    engine.create_topic("p", COLUMNS, partitions=2)
    with pytest.raises(Exception, match="declared twice"):
        engine.alter_topic("p", add={"k": "string"}, retention_age="1h")
    assert engine._parents["/default/p"].retention_us is None


def test_parts_get_the_options_of_an_alter_that_failed(place):
    """After a failed and a good alter all parts have the options of both, as the parent has."""
    engine = place.open()
    engine.create_topic("p", partitions=2)
    with Refusing(engine.log, 3), pytest.raises(Overloaded):
        engine.alter_topic("p", retention_bytes=1000)
    engine.alter_topic("p", retention_age="1h")
    for _ in range(2):
        for spec in [part.runtime.state.spec for part in engine.topic("p").parts]:
            parent = engine._parents["/default/p"]
            assert (spec.retention_bytes, spec.retention_us) == (1000, 3_600_000_000)
            assert (parent.retention_bytes, parent.version) == (1000, spec.version)
        engine = place.open()


def test_parts_whose_history_differs_are_not_mixed(place):
    """One version with two meanings is left as it is, with a warning, and cannot be altered."""
    engine = place.open()
    topic = engine.create_topic("p", COLUMNS, partitions=2)
    other = engine.create_topic("q", {"k": "string", "v": "string", "b": "string"})
    from frazil.topic import schema_control

    foreign = other.runtime.state.schemas[1]
    engine.alter_topic("p", add={"a": "string"})
    engine.alter_topic("p", add={"c": "string"})
    engine.log.control(schema_control(topic.parts[1].runtime.state.id, 2, foreign))
    engine = place.open()
    assert any("/default/p are left as they are" in warning for warning in engine.warnings)
    before = [part.runtime.state.schemas for part in engine.topic("p").parts]
    with pytest.raises(CorruptionError, match="differs"):
        engine.alter_topic("p", add={"d": "string"})
    assert before == [part.runtime.state.schemas for part in engine.topic("p").parts]


# -- create and delete ---------------------------------------------------------------------------


def live_names(engine):
    topics = engine.log.journal.state.topics.values()
    return sorted(topic.spec.name for topic in topics if not topic.spec.deleted_us)


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("last", [0, 1, 99])
def test_a_creation_that_finds_the_queue_full_is_taken_back(place, partitions, last):
    """Whichever frames are refused, the name is free, is used once, and can be deleted."""
    for first in range(1, 1 + 2 * max(partitions, 1)):
        engine = Place().open()
        numbers = range(first, first + last + 1)
        with Refusing(engine.log, *numbers), pytest.raises(Overloaded):
            engine.create_topic("t", COLUMNS, partitions=partitions)
        assert engine.topics() == []
        engine.create_topic("t", COLUMNS, partitions=partitions).append(k="1", v="2")
        assert len(live_names(engine)) == (partitions + 1 if partitions else 1)
        assert engine.topic("t").stats()["message_count"] == 1
        engine.delete_topic("t")
        assert live_names(engine) == []
        engine.close()


def test_what_a_failed_creation_left_is_gone_after_opening(place):
    """A topic that could not even be taken back does not come up at the next opening."""
    engine = place.open()
    with Refusing(engine.log, *range(2, 99)), pytest.raises(Overloaded):
        engine.create_topic("t", COLUMNS)
    with Refusing(engine.log, *range(2, 99)), pytest.raises(FrazilError):
        engine.create_topic("u")
    engine = place.open()
    assert engine.topics() == live_names(engine) == []


def test_a_delete_that_fails_changes_nothing_and_can_be_repeated(place):
    """A delete without room for its first frame leaves the whole topic; the next one removes it."""
    engine = place.open()
    engine.create_topic("p", partitions=2)
    with Refusing(engine.log), pytest.raises(Overloaded):
        engine.delete_topic("p")
    assert engine.topics() == ["/default/p"]
    engine.topic("p").append(b"x")
    engine.delete_topic("p")
    assert engine.topics() == live_names(engine) == []
    assert engine.create_topic("p", partitions=2).stats()["message_count"] == 0


@pytest.mark.parametrize("reopen", [True, False])
def test_a_delete_is_decided_by_its_first_frame(place, reopen):
    """When the parent is durably deleted its parts are gone too, now and after an opening."""
    engine = place.open()
    topic = engine.create_topic("p", partitions=2)
    with Refusing(engine.log, *range(2, 99)):
        engine.delete_topic("p")
    assert engine.topics() == []
    for part in topic.parts:
        with pytest.raises(NotFound):
            engine.topic(part.name)
        with pytest.raises(NotFound):
            part.append(b"x")
    if reopen:
        engine = place.open()
        assert engine.topics() == live_names(engine) == []
    engine.create_topic("p", partitions=1)
    assert live_names(engine) == ["/default/p", "/default/p-part-0"]


def test_a_topic_may_be_forgotten_while_it_is_deleted(place):
    """Without a grace a rotation drops a deleted topic at once; deleting it goes on all the same."""
    no_grace = SETTINGS.topics.model_copy(update={"delete_grace_s": 0.0})
    engine = place.open(SETTINGS.model_copy(update={"topics": no_grace}))
    engine.create_topic("p", partitions=3)
    control = engine.log.control

    def rotating(frame):
        lsn = control(frame)
        place.clock.advance(1)
        engine.log.journal.rotate()
        return lsn

    engine.log.control = rotating
    engine.delete_topic("p")
    assert engine.topics() == live_names(engine) == []
    engine.log.control = control
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
    engine.alter_topic("shared", add={"a": "string"}, retention_age="1h")
    engine.create_topic("parts", partitions=2)
    engine.delete_topic("gone")
    for number in range(10):
        engine.topic("shared").append(k="1", v="2", a=str(number))
        engine.topic("parts").append(b"x")
    engine.close()
    return engine.paths


def lost_of(engine, name):
    return [(each["first"], each["end"]) for each in engine.describe(name)["lost"]]


ALL = ["/default/parts", "/default/shared"]


def test_a_journal_without_files_is_restored_from_the_metadata(place):
    """With the journal lost no name, column or offset is given again; the loss is reported."""
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
        assert [part.append(b"x").offset for part in engine.topic("parts").parts] == [5 + count] * 2
        engine = place.open()
        assert engine.warnings == []


def live_names_without_parts(engine):
    return [name for name in live_names(engine) if "-part-" not in name]
