"""Bugs that the model of the tiers found, each as a short test."""

from __future__ import annotations

import contextlib

import pytest

from tests.integration.engine.opening import declare_gap, rotate
from tests.integration.engine.tier_world import KEEP_S
from tests.support import SimulatedCrash


def test_what_is_written_before_memory_is_loaded_is_there_once(opened):
    """Records appended right after a restart are neither read nor flushed twice."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    topic.append(n=1)
    world.db.close()
    engine = world.open()
    engine.topic("plain").append(n=2)
    assert engine.query("SELECT n FROM plain ORDER BY _offset").rows() == [(1,), (2,)]
    assert engine.tiers.flush() == {"/default/plain": 2}
    assert engine.query("SELECT count(*) FROM plain").rows() == [(2,)]


def test_a_read_goes_over_files_of_several_schema_versions(opened):
    """Partitioned files from before and after a change of columns are read in one go."""
    world = opened()
    columns = {"n": "long", "v": "int"}
    topic = world.db.create_topic("parts", columns, partition_by=["bucket[3](n)"])
    for n in range(20):
        topic.append(n=n, v=n)
    world.db.tiers.flush()
    topic = world.db.alter_topic("parts", add={"w": "string"}, widen={"v": "long"})
    for n in range(20, 40):
        topic.append(n=n, v=n, w="x")
    world.db.tiers.flush()
    found, offset = [], 0
    while offset < 40:
        piece = world.db.tiers.disk.history.read(
            topic.runtime.state.id, offset=offset, bytes_max=1 << 20
        )
        found += [record for batch in piece.batches for record in batch.records()]
        offset = piece.offset_next
    assert [record["n"] for record in found] == list(range(40))
    assert [record["w"] for record in found] == [None] * 20 + ["x"] * 20


@pytest.mark.parametrize("policy", ["ignore", "error", "insert"])
def test_a_repeat_of_a_change_gets_the_first_answer(opened, policy):
    """Whatever became of the key meanwhile, an idempotent producer may send a change again."""
    world = opened()
    columns = {"id": "long", "a": "int", "b": "int"}
    topic = world.db.create_topic("keyed", columns, primary_key=["id"], unknown_key=policy)
    sequence = 0
    for change in (
        lambda **sender: topic.insert({"id": 1, "a": 1}, **sender),
        lambda **sender: topic.update(1, {"a": 2}, **sender),
        lambda **sender: topic.update(1, {"id": 2}, **sender),
        lambda **sender: topic.delete(2, **sender),
    ):
        first = change(producer="p", sequence=sequence)
        assert change(producer="p", sequence=sequence) == first
        sequence += first.offset_last - first.offset + 1
    assert topic.get(1) is None
    assert topic.get(2) is None
    assert len(list(topic.changes())) == sequence


def test_a_repeat_is_no_base_for_others(opened):
    """A repeated update changes nothing, and the next change does not build on it."""
    world = opened()
    columns = {"id": "long", "a": "int", "b": "int"}
    topic = world.db.create_topic("keyed", columns, primary_key=["id"])
    topic.upsert(id=1, a=0, b=0)
    topic.update(1, {"a": 5}, producer="p", sequence=0)
    topic.update(1, {"a": 9})
    topic.update(1, {"a": 5}, producer="p", sequence=0)
    topic.update(1, {"b": 7})
    assert topic.get(1) == {"id": 1, "a": 9, "b": 7}


def lose_power(world):
    """Lose everything that was not synced, and open again."""
    world.disk.crash()
    with contextlib.suppress(SimulatedCrash):
        world.db.close()
    world.disk = world.disk.crash_clone(1, data="nothing", names="nothing")
    return world.open()


def free_the_log(world):
    """Let the log go of all that files have, as far as it can."""
    for _ in range(2):
        rotate(world.db)
        world.round(KEEP_S + 1)
    assert world.db.tiers.errors == {}


def test_a_gap_behind_flushed_records_is_not_forgotten(opened):
    """Offsets without records are passed over by readers and flushes, log or no log."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    topic.append(n=1)
    world.db.tiers.flush()
    declare_gap(world.db, "plain", 20)
    engine = lose_power(world)
    topic = engine.topic("plain")
    head = topic.describe()["watermarks"]["head"]
    assert head > 1
    free_the_log(world)
    topic.append(n=3, ack="fsynced")
    assert engine.tiers.flush() == {"/default/plain": head + 1}
    free_the_log(world)
    found = [record for batch in topic.read() for record in batch.records()]
    assert [(record["_offset"], record["n"]) for record in found] == [(0, 1), (head, 3)]


def test_a_gap_behind_an_empty_log_is_passed_over(opened):
    """A gap that the log lets go before files tell of it keeps nobody from what comes later."""
    world = opened()
    columns = {"id": "long", "v": "int"}
    topic = world.db.create_topic("keyed", columns, primary_key="id")
    topic.upsert(id=1, v=1)
    world.db.tiers.flush()
    free_the_log(world)
    assert topic.runtime.state.start == 1
    declare_gap(world.db, "keyed", 20)
    engine = lose_power(world)
    engine.upkeep.run_once()
    topic = engine.topic("keyed")
    head = topic.runtime.state.start
    assert head > 1
    topic.upsert(id=3, v=3, ack="fsynced")
    assert topic.get_many([1, 2, 3]) == [{"id": 1, "v": 1}, None, {"id": 3, "v": 3}]
    assert [change["offset"] for change in topic.changes()] == [0, head]
    assert engine.tiers.flush() == {"/default/keyed": head + 1}
    assert engine.query("SELECT count(*) FROM keyed").rows() == [(2,)]
