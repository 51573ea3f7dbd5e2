"""Definitions of topics survive calls that fail half way and files that are lost."""

from __future__ import annotations

import pytest

from frazil.engine.core import Engine
from frazil.errors import CorruptionError, Overloaded
from frazil.testing import SimulatedClock, SimulatedFileSystem
from tests.crash.engine_world import SETTINGS

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
    from frazil.engine.completion import schema_control

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
