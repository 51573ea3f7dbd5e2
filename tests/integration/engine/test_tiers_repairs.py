"""Damaged files, changed columns and failing disks: what the tiers do about them by themselves."""

from __future__ import annotations

import contextlib

import pytest

from frazil.testing import SimulatedCrash
from tests.crash.engine_world import crashes_passed_over
from tests.integration.engine.opening import column_of, rotate
from tests.integration.engine.tier_world import KEEP_S, World


@pytest.fixture
def opened():
    """Return a function that makes a world; all of them are closed in the end."""
    worlds = []

    def make(**settings):
        worlds.append(World(**settings))
        return worlds[-1]

    with crashes_passed_over():
        yield make
        for world in worlds:
            with contextlib.suppress(SimulatedCrash):
                world.db.close()


def lose_power(world):
    """End the engine without any farewell, so that nothing is kept but what was synced."""
    world.disk.crash()
    with contextlib.suppress(SimulatedCrash):
        world.db.close()
    world.disk = world.disk.crash_clone(1, data="all", names="all")


def file_paths(world, topic):
    """Return where the files of a topic lie."""
    disk = world.db.tiers.disk
    return [disk.path(file) for file in disk.files(topic.runtime.state.id)]


def spoil(world, path):
    """Overwrite most of a file, so that only its length is right."""
    file = world.disk.open(path, "write")
    size = world.disk.stat(path).size
    file.write_at(4, [bytes(size - 8)])
    file.close()


def keyed_topic(world, rows=50):
    """Return a topic with so many keys, all of them in files."""
    topic = world.db.create_topic("keyed", {"k": "long", "v": "long"}, primary_key="k")
    for k in range(rows):
        topic.upsert(k=k, v=0)
    world.db.flush()
    return topic


# -- damaged at a start ------------------------------------------------------------------------


def test_a_file_lost_at_a_start_is_written_again_before_the_log_lets_go(opened):
    """However long the log kept a range before, it is not freed while its file is missing."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    for n in range(100):
        topic.append(n=n)
    world.db.flush()
    [path] = file_paths(world, topic)
    lose_power(world)
    world.disk.unlink(path)
    world.open()
    rotate(world.db)
    # The log alone at first, as if the tiers had no time for anything yet.
    world.db.upkeep.poke()
    world.db.upkeep.run_once()
    topic = world.db.topic("plain")
    assert topic.runtime.lane.source.range(topic.runtime.state.id).first == 0
    world.round(KEEP_S + 1)
    world.round(KEEP_S + 1)
    assert world.db.tiers.disk.damage.damaged() == {}
    assert topic.runtime.lane.source.range(topic.runtime.state.id).first == 100
    assert column_of(topic, "n") == list(range(100))


def test_the_log_keeps_what_a_damaged_set_could_be_rebuilt_from(opened):
    """While a set cannot be written again, the log frees what lies below it and nothing else."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    paths = []
    for part in range(3):
        for n in range(20):
            topic.append(n=20 * part + n)
        world.db.flush()
        rotate(world.db)
        paths = file_paths(world, topic)
    lose_power(world)
    world.disk.unlink(paths[1])
    world.open()
    topic = world.db.topic("plain")
    tiers = topic.runtime.tiers
    rebuild, tiers.rebuild = tiers.rebuild, lambda _file: False
    for _ in range(3):
        world.round(KEEP_S + 1)
    assert topic.runtime.lane.source.range(topic.runtime.state.id).first == 20
    tiers.rebuild = rebuild
    for _ in range(3):
        world.round(KEEP_S + 1)
    assert topic.runtime.lane.source.range(topic.runtime.state.id).first == 60
    assert column_of(topic, "n") == list(range(60))


@pytest.mark.parametrize("use", ["get", "query", "update", "flush"])
def test_a_keyed_topic_whose_file_is_lost_is_used_as_if_it_were_there(opened, use):
    """Whatever comes first after a start, a missing file is written again from the log for it."""
    world = opened()
    topic = keyed_topic(world)
    [path] = file_paths(world, topic)
    lose_power(world)
    world.disk.unlink(path)
    db = world.open()
    topic = db.topic("keyed")
    if use == "query":
        assert db.query("SELECT count(*), sum(v) FROM keyed").rows() == [(50, 0)]
    elif use == "update":
        topic.update(3, {"v": 7})
    elif use == "flush":
        topic.upsert(k=3, v=7)
        assert db.flush() == {"/default/keyed": 51}
    assert topic.get(3) == {"k": 3, "v": 7 if use in ("update", "flush") else 0}
    assert db.tiers.disk.damage.damaged() == {}


def test_scrubbing_asks_again_for_what_is_damaged_already(opened):
    """A file known as damaged is rebuilt by a later scrub, or taken for good if it is again."""
    world = opened(disk={"scrub_interval_s": 3600.0})
    topic = world.db.create_topic("plain", {"n": "long"})
    topic.append(n=1)
    world.db.flush()
    disk = world.db.tiers.disk
    [file] = disk.files(topic.runtime.state.id)
    disk.damage.note_damage(file.topic, file.name, "said by a test")
    world.clock.advance(3601)
    assert disk.scrub_once() == 0
    assert disk.damage.damaged() == {}
    spoil(world, disk.path(file))
    disk.damage.note_damage(file.topic, file.name, "said by a test")
    world.clock.advance(3601)
    assert disk.scrub_once() == 1
    assert disk.damage.damaged() == {}
    assert disk.files(file.topic) != (file,)


# -- damage met under locks --------------------------------------------------------------------


def test_a_flush_that_meets_a_damaged_file_does_not_wait_for_itself(opened):
    """The fold of a flush finds a base row's file damaged; it is rebuilt and the flush goes on."""
    world = opened()
    topic = keyed_topic(world)
    world.db.close()
    db = world.open()
    topic = db.topic("keyed")
    topic.runtime.tiers.ensure_loaded()
    assert not topic.runtime.tiers.keyed.complete
    [path] = file_paths(world, topic)
    spoil(world, path)
    for k in range(50):
        topic.upsert(k=k, v=1)
    assert db.flush() == {"/default/keyed": 100}
    assert topic.get(3) == {"k": 3, "v": 1}
    assert db.query("SELECT count(*), sum(v) FROM keyed").rows() == [(50, 50)]
    assert db.tiers.disk.damage.damaged() == {}
