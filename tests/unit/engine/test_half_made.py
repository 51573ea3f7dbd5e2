"""What a crash leaves of a change that takes several steps is completed or removed."""

from __future__ import annotations

import contextlib

import pytest

from frazil.engine.engine import Engine
from frazil.errors import NotFound
from tests.crash.engine_world import SETTINGS, many_lives
from tests.support import SimulatedClock, SimulatedCrash, SimulatedFileSystem

CLONES = 5
COLUMNS = {"id": "long", "v": "int"}


@pytest.fixture(autouse=True)
def quiet_crashes():
    """Pass over what SQLite says of a disk that is gone."""
    with many_lives():
        yield


def open_on(disk, settings=SETTINGS):
    return Engine(settings, file_system=disk, clock=SimulatedClock(), threads=False)


def crashes_of(prepare, change):
    """Crash at each sync point of a change; yield engines opened on what may be left."""
    point = 0
    while True:
        point += 1
        disk = SimulatedFileSystem(point)
        engine = open_on(disk)
        prepare(engine)
        disk.crash_at = disk.sync_points + point
        with contextlib.suppress(SimulatedCrash):
            change(engine)
        if not disk.crashed:
            assert point > 2
            return
        for seed in range(CLONES):
            yield open_on(disk.crash_clone(point * CLONES + seed))


def nothing(engine):
    """Prepare nothing."""


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_a_partitioned_topic_is_made_whole_or_not_at_all(columns):
    """A crash while parts are created leaves all of them or none, and the name can be used."""
    key = {} if columns is None else {"primary_key": "id"}

    def create(engine):
        return engine.create_topic("p", columns, partitions=3, **key)

    outcomes = set()
    for engine in crashes_of(nothing, create):
        outcomes.add(bool(engine.topics()))
        topic = engine.topic("p") if engine.topics() else create(engine)
        assert len(topic.parts) == 3
        for number in range(6):
            topic.append(b"x") if columns is None else topic.append(id=number, v=1)
        assert topic.stats()["message_count"] == 6
        assert engine.topics() == ["/default/p"]
        engine.close()
    assert outcomes == {True, False}


def test_a_partitioned_topic_is_deleted_whole_or_not_at_all():
    """A crash while parts are deleted leaves no part without its parent."""

    def prepare(engine):
        engine.create_topic("p", partitions=3).append(b"x", key="k")

    outcomes = set()
    for engine in crashes_of(prepare, lambda engine: engine.delete_topic("p")):
        outcomes.add(bool(engine.topics()))
        if engine.topics():
            assert engine.topic("p").stats()["message_count"] == 1
        else:
            for part in range(3):
                with pytest.raises(NotFound):
                    engine.topic(f"p-part-{part}")
            assert engine.create_topic("p", partitions=2).stats()["message_count"] == 0
        engine.close()
    assert outcomes == {True, False}


def test_parts_change_their_columns_together():
    """A crash while parts are altered leaves all of them with the same columns."""

    def prepare(engine):
        topic = engine.create_topic("p", COLUMNS, primary_key="id", partitions=3)
        for number in range(6):
            topic.append(id=number, v=number)

    outcomes = set()
    change = {"add": {"x": "int"}}
    for engine in crashes_of(prepare, lambda engine: engine.alter_topic("p", **change)):
        topic = engine.topic("p")
        names = {tuple(part.schema.names) for part in topic.parts}
        assert len(names) == 1
        outcomes |= names
        rows = [row for part in topic.parts for b in part.read() for row in b.records()]
        assert sorted(row["id"] for row in rows) == list(range(6))
        engine.close()
    assert outcomes == {("id", "v"), ("id", "v", "x")}


def test_a_deep_data_directory_survives_a_power_loss():
    """The first ack in a new directory several levels deep is durable, names included."""
    settings = SETTINGS.model_copy(update={"data_dir": "/a/b/c/data"})
    for seed in range(20):
        disk = SimulatedFileSystem(seed)
        engine = open_on(disk, settings)
        engine.create_topic("t").append(b"first")
        engine.create_topic("u").append(b"second")
        again = open_on(disk.crash_clone(seed), settings)
        for name, payload in (("t", b"first"), ("u", b"second")):
            [batch] = again.topic(name).read()
            assert batch.data.column("payload").to_pylist() == [payload]


def test_a_deleted_topic_is_forgotten_after_its_grace():
    """A deleted topic leaves the checkpoint when its grace is over and its data is gone."""
    grace = SETTINGS.topics.model_copy(update={"delete_grace_s": 60.0})
    settings = SETTINGS.model_copy(update={"topics": grace})
    clock = SimulatedClock()
    engine = Engine(settings, file_system=SimulatedFileSystem(), clock=clock, threads=False)
    engine.create_topic("t").append(b"x")
    engine.delete_topic("t")
    engine.create_topic("u")
    journal = engine.log.journal
    journal.rotate()
    engine.upkeep.seal()
    engine.upkeep.free()
    clock.advance(30)
    journal.rotate()
    assert len(journal.state.topics) == 2
    clock.advance(31)
    engine.upkeep.free()
    journal.rotate()
    assert [topic.spec.name for topic in journal.state.topics.values()] == ["/default/u"]
    engine.close()
