"""What the model of the tiers found, told once more as short stories."""

from __future__ import annotations

import contextlib

import pytest

from frazil.engine import Engine
from tests.crash.engine_world import many_lives
from tests.integration.engine.opening import declare_gap
from tests.property.tiers_world import DEFAULTS, LOG
from tests.support import SimulatedClock, SimulatedCrash, SimulatedFileSystem

SETTINGS = DEFAULTS.model_copy(
    update={"log": DEFAULTS.log.model_copy(update={**LOG, "segment_bytes_max": 64 << 10})}
)


class Place:
    """A disk, and the engine that is open on it."""

    def __init__(self):
        self.disk = SimulatedFileSystem(1)
        self.clock = SimulatedClock(1)
        self.engine = None

    def open(self):
        self.engine = Engine(SETTINGS, file_system=self.disk, clock=self.clock, threads=False)
        return self.engine

    def reopen(self):
        self.engine.close()
        return self.open()


@pytest.fixture
def place():
    """A disk with an engine, closed in the end."""
    place = Place()
    with many_lives():
        place.open()
        yield place
        place.engine.close()


def test_what_is_written_before_memory_is_loaded_is_there_once(place):
    """Records appended right after a restart are neither read nor flushed twice."""
    topic = place.engine.create_topic("plain", {"n": "long"})
    topic.append(n=1)
    engine = place.reopen()
    engine.topic("plain").append(n=2)
    assert engine.query("SELECT n FROM plain ORDER BY _offset").rows() == [(1,), (2,)]
    assert engine.tiers.flush() == {"/default/plain": 2}
    assert engine.query("SELECT count(*) FROM plain").rows() == [(2,)]


def test_a_read_goes_over_files_of_several_schema_versions(place):
    """Partitioned files from before and after a change of columns are read in one go."""
    columns = {"n": "long", "v": "int"}
    topic = place.engine.create_topic("parts", columns, partition_by=["bucket[3](n)"])
    for n in range(20):
        topic.append(n=n, v=n)
    place.engine.tiers.flush()
    topic = place.engine.alter_topic("parts", add={"w": "string"}, widen={"v": "long"})
    for n in range(20, 40):
        topic.append(n=n, v=n, w="x")
    place.engine.tiers.flush()
    found, offset = [], 0
    while offset < 40:
        piece = place.engine.tiers.disk.history.read(
            topic.runtime.state.id, offset=offset, bytes_max=1 << 20
        )
        found += [record for batch in piece.batches for record in batch.records()]
        offset = piece.offset_next
    assert [record["n"] for record in found] == list(range(40))
    assert [record["w"] for record in found] == [None] * 20 + ["x"] * 20


@pytest.mark.parametrize("policy", ["ignore", "error", "insert"])
def test_a_repeat_of_a_change_gets_the_first_answer(place, policy):
    """Whatever became of the key meanwhile, an idempotent producer may send a change again."""
    columns = {"id": "long", "a": "int", "b": "int"}
    topic = place.engine.create_topic("keyed", columns, primary_key=["id"], unknown_key=policy)
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


def test_a_repeat_is_no_base_for_others(place):
    """A repeated update changes nothing, and the next change does not build on it."""
    columns = {"id": "long", "a": "int", "b": "int"}
    topic = place.engine.create_topic("keyed", columns, primary_key=["id"])
    topic.upsert(id=1, a=0, b=0)
    topic.update(1, {"a": 5}, producer="p", sequence=0)
    topic.update(1, {"a": 9})
    topic.update(1, {"a": 5}, producer="p", sequence=0)
    topic.update(1, {"b": 7})
    assert topic.get(1) == {"id": 1, "a": 9, "b": 7}


def lose_power(place):
    """Lose everything that was not synced, and open again."""
    place.disk.crash()
    with contextlib.suppress(SimulatedCrash):
        place.engine.close()
    place.disk = place.disk.crash_clone(1, data="nothing", names="nothing")
    return place.open()


def free_the_log(place):
    """Let the log go of all that files have, as far as it can."""
    engine = place.engine
    for _ in range(2):
        engine.log.queue.call(engine.log.journal.rotate)
        place.clock.advance(70)
        engine.tiers.run_once()
        engine.upkeep.run_once()
    assert engine.tiers.errors == {}


def test_a_gap_behind_flushed_records_is_not_forgotten(place):
    """Offsets without records are passed over by readers and flushes, log or no log."""
    topic = place.engine.create_topic("plain", {"n": "long"})
    topic.append(n=1)
    place.engine.tiers.flush()
    declare_gap(place.engine, "plain", 20)
    engine = lose_power(place)
    topic = engine.topic("plain")
    head = topic.describe()["watermarks"]["head"]
    assert head > 1
    free_the_log(place)
    topic.append(n=3, ack="fsynced")
    assert engine.tiers.flush() == {"/default/plain": head + 1}
    free_the_log(place)
    found = [record for batch in topic.read() for record in batch.records()]
    assert [(record["_offset"], record["n"]) for record in found] == [(0, 1), (head, 3)]


def test_a_gap_behind_an_empty_log_is_passed_over(place):
    """A gap that the log lets go before files tell of it keeps nobody from what comes later."""
    columns = {"id": "long", "v": "int"}
    topic = place.engine.create_topic("keyed", columns, primary_key="id")
    topic.upsert(id=1, v=1)
    place.engine.tiers.flush()
    free_the_log(place)
    assert topic.runtime.state.start == 1
    declare_gap(place.engine, "keyed", 20)
    engine = lose_power(place)
    engine.upkeep.run_once()
    topic = engine.topic("keyed")
    head = topic.runtime.state.start
    assert head > 1
    topic.upsert(id=3, v=3, ack="fsynced")
    assert topic.get_many([1, 2, 3]) == [{"id": 1, "v": 1}, None, {"id": 3, "v": 3}]
    assert [change["offset"] for change in topic.changes()] == [0, head]
    assert engine.tiers.flush() == {"/default/keyed": head + 1}
    assert engine.query("SELECT count(*) FROM keyed").rows() == [(2,)]
