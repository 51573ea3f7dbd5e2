"""Records go from the log to files; reads by offset or time return the same as before."""

from __future__ import annotations

import datetime as dt
import random

import pytest

from frazil.errors import Conflict
from frazil.tiers import merge_once
from tests.integration.engine.opening import (
    declare_gap,
    open_small,
    payloads_of,
    rotate,
    rows_of,
    wait_until,
)
from tests.integration.engine.tier_world import noise


@pytest.mark.parametrize("seed", range(20))
def test_readers_go_on_whatever_moves_under_them(opened, seed):
    """Appends, flushes, merges, evictions and freed segments in any order give one stream."""
    chance = random.Random(seed)
    world = opened(disk={"log_keep_s": 1}, tiers={"small_file_bytes": 50_000, "file_bytes": 60_000})
    topic = world.db.create_topic("t")
    identity = topic.runtime.state.id
    records = []
    readers = {}

    def append():
        for _ in range(chance.randrange(1, 6)):
            records.append(noise(len(records), chance.randrange(1, 3000)))
            topic.append(records[-1])

    def begin():
        start = chance.randrange(len(records) + 1)
        bytes_max = chance.choice([1, 5000, 1 << 20])
        readers[topic.tail(start, bytes_max=bytes_max, timeout_s=0)] = [start, start]

    def step():
        for reader, place in readers.items():
            for batch in [reader.poll() for _ in range(chance.randrange(3))]:
                if batch is not None:
                    assert batch.offset == place[1]
                    rows = [row["payload"] for row in batch.records()]
                    assert rows == records[batch.offset : batch.offset_next]
                    place[1] = batch.offset_next

    moves = [
        append,
        append,
        begin,
        step,
        step,
        lambda: world.db.tiers.flush("t"),
        lambda: world.db.tiers.evict("t"),
        lambda: merge_once(world.db.tiers.disk, identity),
        lambda: rotate(world.db),
        lambda: world.round(2),
    ]
    for _ in range(150):
        chance.choice(moves)()
    for reader, place in readers.items():
        seen = [row["payload"] for batch in reader for row in batch.records()]
        assert seen == records[place[1] :]
        assert reader.gaps == []
        reader.close()
    assert topic.runtime.state.start > 0
    assert payloads_of(topic) == records


def test_everything_moves_by_itself(tmp_path):
    """The engine flushes by its signals and frees segments without being asked; nothing is lost."""
    # By age, too: records behind the last signal may share a chunk with those before it.
    memory = {"flush_offsets": 20, "retention_s": 1.0, "flush_age_s": 1.0}
    options = {"memory": memory, "disk": {"log_keep_s": 0.0}, "retention_check_s": 0.05}
    with open_small(tmp_path, **options) as db:
        topic, stuck = db.create_topic("t"), db.create_topic("stuck", signals={"flush_offsets": 1})
        stuck.append_many([b"mine"] * 2)
        stuck.hold("slow", 0)
        records = [noise(number, 30_000) for number in range(60)]
        for record in records:
            topic.append(record)
        wait_until(lambda: db.upkeep.segments_freed > 3)
        wait_until(lambda: topic.stats()["tiers"]["memory_start"] > 0)
        assert stuck.runtime.state.start == 2
        assert topic.stats()["tiers"]["signals_fired"]["offsets"] > 0
        assert payloads_of(topic) == records
        assert payloads_of(stuck) == [b"mine"] * 2
        assert db.stats()["health"] == "ok"
    with open_small(tmp_path, **options) as db:
        assert payloads_of(db.topic("t")) == records


def test_a_time_leads_to_the_same_offset_wherever_its_record_is(opened):
    """A start given as a time finds the first record since then in files as in the log."""
    world = opened()
    topic = world.db.create_topic("t")
    times = []
    for number in range(12):
        world.clock.advance(10)
        times.append(dt.datetime.fromtimestamp(world.clock.now_us() / 1e6, dt.UTC))
        topic.append(b"%d" % number)
        if number % 4 == 3 and number < 11:
            world.move()
    assert topic.runtime.state.start == 8
    for number, time in enumerate(times):
        assert payloads_of(topic, time, limit=1) == [b"%d" % number]
    assert payloads_of(topic, times[-1] + dt.timedelta(days=1)) == []
    assert [row["_time"] for row in rows_of(topic)] == sorted(
        row["_time"] for row in rows_of(topic)
    )


def test_changes_read_the_same_from_files(opened):
    """Rows, operations and times of a keyed topic come from files as they came from the log."""
    world = opened()
    columns = {"id": "long", "n": "long", "s": "string"}
    topic = world.db.create_topic("t", columns, primary_key="id", unknown_key="ignore")
    topic.insert(id=1, n=1, s="a")
    topic.upsert(id=2, n=2)
    topic.update(1, {"n": 3})
    topic.update(9, {"n": 3})
    topic.delete(2)
    logged = rows_of(topic)
    feed = list(topic.changes())
    world.move()
    assert topic.runtime.state.start == 5
    assert rows_of(topic) == logged
    assert [row["_op"] for row in logged] == [1, 3, 2, 2, 4]
    assert [row["_present"] is None for row in logged] == [True, True, True, False, True]
    assert list(topic.changes()) == feed


def test_files_are_read_under_the_present_columns(opened):
    """Columns added, renamed, widened and dropped since a flush show in what files give."""
    world = opened()
    topic = world.db.create_topic("t", {"a": "int", "b": "string", "c": "int"})
    topic.append(a=1, b="x", c=1)
    world.move()
    world.db.alter_topic("t", add={"d": "long"}, rename={"b": "e"}, widen={"a": "long"}, drop=["c"])
    topic.append(a=1 << 40, e="y", d=2)
    world.db.tiers.flush()
    topic.append(a=3, e="z", d=3)
    rows = [{k: v for k, v in row.items() if not k.startswith("_")} for row in rows_of(topic)]
    assert rows == [
        {"a": 1, "e": "x", "d": None},
        {"a": 1 << 40, "e": "y", "d": 2},
        {"a": 3, "e": "z", "d": 3},
    ]
    for _ in range(3):
        world.db.tiers.flush()
        topic.append(a=4)
    world.move()
    assert [row["a"] for row in rows_of(topic)] == [1, 1 << 40, 3, 4, 4, 4]


def test_a_declared_gap_is_kept_by_files(opened):
    """Offsets without a record are a gap for readers of files, too, and count nowhere."""
    world = opened()
    topic = world.db.create_topic("t")
    topic.append(b"0")
    declare_gap(world.db, "t", 100)
    [gap] = topic.describe()["gaps"]
    topic.append(b"after")
    before = payloads_of(topic)
    count = topic.stats()["message_count"]
    assert count == len(before)
    world.move()
    assert topic.runtime.state.start == gap["end"] + 1
    with topic.read() as reader:
        assert [row["payload"] for batch in reader for row in batch.records()] == before
        assert [(each.first, each.end) for each in reader.gaps] == [(gap["first"], gap["end"])]
    assert topic.stats()["message_count"] == count
    assert topic.describe()["gaps"] == [gap]
    assert world.db.query("SELECT count(*) FROM t").rows() == [(count,)]


def test_a_producers_repeat_is_known_after_its_records_went_to_files(opened):
    """The window outlives the segment that held the first record, and a restart after that."""
    world = opened()
    topic = world.db.create_topic("t")
    first = topic.append(b"x", producer="p", sequence=0)
    world.move()
    assert topic.runtime.state.start == 1
    assert topic.append(b"x", producer="p", sequence=0) == first
    world.db.close()
    topic = world.open().topic("t")
    assert topic.append(b"x", producer="p", sequence=0) == first
    assert payloads_of(topic) == [b"x"]
    with pytest.raises(Conflict):
        topic.append(b"x", producer="p", sequence=5)


def test_a_hold_may_be_set_on_what_only_files_have(opened):
    """A hold reaches as far back as any tier does, and keeps files from then on."""
    world = opened(retention_age_s=0.0, tiers={"small_file_bytes": 1})
    topic = world.db.create_topic("t")
    topic.hold("first", 0)
    for number in range(3):
        topic.append(noise(number))
        world.move()
    assert topic.runtime.state.start == 3
    topic.hold("second", 1)
    topic.drop("first")
    world.round(1)
    assert topic.describe()["watermarks"]["start"] == 1
    topic.drop("second")
    world.round(1)
    assert topic.describe()["watermarks"]["start"] == 3


def test_stats_count_moved_records(opened):
    """Statistics show what was flushed and freed; counts and bytes do not change with the move."""
    world = opened()
    topic = world.db.create_topic("t")
    for number in range(10):
        topic.append(noise(number))
    assert topic.stats()["message_count"] == 10
    world.move()
    stats = world.db.stats()
    assert stats["upkeep"]["segments_freed"] == 1
    assert stats["health"] == "ok"
    assert stats["tiers"]["errors"] == {}
    assert stats["tiers"]["disk"]["files"] == 1
    assert stats["tiers"]["disk"]["bytes"] == sum(stats["tiers"]["disk"]["purposes"].values()) > 0
    own = topic.stats()
    assert (own["message_count"], own["tiers"]["flushed"], own["tiers"]["flushes"]) == (10, 10, 1)
    assert own["bytes_stored"] == stats["tiers"]["disk"]["bytes"]
    marks = topic.describe()["watermarks"]
    assert marks == {"start": 0, "floor": 10, "durable": 10, "head": 10, "flushed": 10}
