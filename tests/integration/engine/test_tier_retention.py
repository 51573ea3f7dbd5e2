"""With files below it the log lets go what they have, and retention, quotas and the cap act there."""

from __future__ import annotations

import pytest

from frazil.errors import NotFound, Overloaded
from tests.integration.engine.opening import column_of, payloads_of, rotate
from tests.integration.engine.tier_world import KEEP_S, noise

CAP = 1 << 20


def fill(world, topic, count=3, size=1000):
    """Publish records, each of which gets a file of its own; return them."""
    records = [noise(number, size) for number in range(count)]
    for record in records:
        topic.append(record)
        world.db.tiers.flush(topic.name)
    return records


def start_of(topic):
    return topic.describe()["watermarks"]["start"]


# -- the journal that all share ------------------------------------------------------------------


def test_the_log_keeps_a_flushed_range_for_a_while(opened):
    """Flushed records leave the log after `disk.log_keep_s`, not before, and stay readable."""
    world = opened(disk={"log_keep_s": KEEP_S})
    topic = world.db.create_topic("t")
    records = fill(world, topic)
    rotate(world.db)
    world.round(KEEP_S - 2)
    assert topic.runtime.state.start == 0
    world.round(4)
    assert topic.runtime.state.start == 3
    assert start_of(topic) == 0
    assert payloads_of(topic) == records
    assert topic.stats()["message_count"] == 3


def test_the_log_keeps_what_no_file_has(opened):
    """However old, a record that was not flushed stays in the log."""
    world = opened(retention_age_s=0.0, retention_bytes=0, memory={"flush_age_s": 86_400})
    topic = world.db.create_topic("t")
    topic.append(b"x")
    rotate(world.db)
    world.round(3600)
    assert topic.runtime.state.start == 0
    assert payloads_of(topic) == [b"x"]


def test_a_stuck_hold_does_not_pin_the_shared_journal(opened):
    """All segments go though one topic's hold never moves; what it holds is read from files."""
    world = opened()
    stuck = world.db.create_topic("stuck")
    stuck.append(b"mine")
    stuck.hold("slow", 0)
    for number in range(5):
        world.db.create_topic(f"o{number}").append(noise(number))
        rotate(world.db)
    assert world.segments() == 6
    world.move()
    assert world.segments() == 1
    assert payloads_of(stuck) == [b"mine"]
    assert stuck.describe()["holds"] == {"slow": 0}
    assert stuck.describe()["watermarks"]["floor"] == 0


def test_a_stuck_reader_does_not_pin_the_shared_journal(opened):
    """All segments go under a reader that stopped, and it reads on without a gap or a duplicate."""
    world = opened()
    topic, other = world.db.create_topic("t"), world.db.create_topic("u")
    records = [noise(number) for number in range(20)]
    for record in records[:10]:
        topic.append(record)
    with topic.tail(0, bytes_max=1, timeout_s=0) as reader:
        seen = [next(reader) for _ in range(4)]
        for _ in range(3):
            other.append(noise(0))
            rotate(world.db)
        world.move()
        assert world.segments() == 1
        assert topic.runtime.state.start == 10
        topic.append_many(records[10:])
        seen += list(reader)
    assert [batch.offset for batch in seen] == [0, *(b.offset_next for b in seen[:-1])]
    assert [row["payload"] for batch in seen for row in batch.records()] == records


def test_a_stuck_part_does_not_pin_the_shared_journal(opened):
    """All segments go though the hold of one part of a partitioned topic never moves."""
    world = opened()
    topic = world.db.create_topic("p", {"id": "long"}, primary_key="id", partitions=3)
    topic.append_many([{"id": number} for number in range(30)])
    topic.parts[1].hold("slow", 0)
    held = column_of(topic.parts[1], "id")
    for _ in range(3):
        topic.append_many([{"id": number} for number in range(30)])
        rotate(world.db)
    assert world.segments() == 4
    world.move()
    assert world.segments() == 1
    assert column_of(topic.parts[1], "id") == held * 4


# -- retention -----------------------------------------------------------------------------------


def test_files_go_by_age(opened):
    """Files whose newest record is too old go, oldest first; the others and the log's stay."""
    world = opened()
    topic = world.db.create_topic("t", retention_age="1h")
    records = fill(world, topic, 2)
    world.move()
    world.round(1800 - KEEP_S)
    records += fill(world, topic, 2)
    world.move()
    world.round(1700 - KEEP_S)
    assert start_of(topic) == 0
    world.round(200)
    assert start_of(topic) == 2
    assert payloads_of(topic) == records[2:]
    with topic.read(1) as reader, pytest.raises(NotFound) as caught:
        next(reader)
    assert caught.value.details["offset_first"] == 2
    world.round(3600)
    assert start_of(topic) == 4
    assert world.files(topic) == 0
    assert topic.append(b"y").offset == 4
    assert topic.stats()["message_count"] == 1


def test_files_go_by_bytes(opened):
    """The oldest files go while those behind them are as many bytes as the topic keeps."""
    world = opened()
    topic = world.db.create_topic("t", retention_bytes=100_000)
    other = world.db.create_topic("u")
    records = fill(world, topic, 6, size=30_000)
    fill(world, other, 6, size=30_000)
    world.move()
    held = world.db.tiers.disk.space.held_bytes(topic.runtime.state.id, 0)
    assert 100_000 <= held < 150_000
    assert 0 < start_of(topic) < 6
    assert payloads_of(topic) == records[start_of(topic) :]
    assert start_of(other) == 0


def test_a_clock_that_jumps_takes_no_file(opened):
    """A jump of the wall clock pauses what is decided by time (F13)."""
    world = opened(retention_age_s=3600.0)
    topic = world.db.create_topic("t")
    fill(world, topic)
    world.move()
    world.clock.jump(365 * 86_400)
    world.round()
    assert start_of(topic) == 0
    world.round(3700)
    assert start_of(topic) == 3


def test_holds_and_readers_keep_files(opened):
    """Retention takes no file that a hold needs or that an open reader has not read yet."""
    world = opened(retention_age_s=0.0, retention_bytes=0)
    topic = world.db.create_topic("t")
    topic.hold("a", 0)
    records = fill(world, topic, 4)
    world.move()
    assert start_of(topic) == 0
    topic.advance("a", 3)
    with topic.read(1, bytes_max=1) as reader:
        assert next(reader).records()[0]["payload"] == records[1]
        world.round(1)
        assert start_of(topic) == 2
        assert [row["payload"] for b in reader for row in b.records()] == records[2:]
    world.round(1)
    assert start_of(topic) == 3
    topic.drop("a")
    world.round(1)
    assert start_of(topic) == 4


# -- quotas --------------------------------------------------------------------------------------


def test_files_that_holds_need_fill_a_quota(opened):
    """A hold whose files are more than the quota stops its topic alone, until it moves on."""
    world = opened()
    topic = world.db.create_topic("t", retention_bytes=100_000, on_full="block")
    other = world.db.create_topic("u")
    topic.hold("slow", 0)
    fill(world, topic, 3, size=30_000)
    world.move()
    with pytest.raises(Overloaded, match="quota") as caught:
        topic.append(b"x")
    assert caught.value.details["bytes"] > 100_000
    assert other.append(b"x").offset == 0
    assert len(payloads_of(topic)) == 3
    topic.advance("slow", 2)
    world.round(1)
    assert topic.append(b"y").offset == 3


def test_a_record_counts_once_in_a_quota(opened):
    """While log and file both have a record, it does not count twice."""
    world = opened()
    topic = world.db.create_topic("t", retention_bytes=100_000, on_full="block")
    topic.hold("slow", 0)
    topic.append(noise(1, 60_000))
    rotate(world.db)
    world.db.tiers.flush()
    world.round(1)
    assert topic.runtime.state.start == 0
    assert topic.append(b"x").offset == 1


def test_records_that_were_not_flushed_count_in_a_quota(opened):
    """What holds need of the log and of files is added up."""
    world = opened()
    topic = world.db.create_topic("t", retention_bytes=100_000, on_full="block")
    topic.hold("slow", 0)
    topic.append(noise(1, 60_000))
    world.move()
    topic.append(noise(2, 60_000))
    world.round(1)
    with pytest.raises(Overloaded, match="quota"):
        topic.append(b"x")


def test_a_full_quota_may_expire_files(opened):
    """With `expire` the oldest held files become a declared gap, of this topic alone."""
    world = opened()
    topic = world.db.create_topic("t", retention_bytes=100_000, on_full="expire")
    other = world.db.create_topic("u")
    for each in (topic, other):
        each.hold("slow", 0)
    records = fill(world, topic, 6, size=30_000)
    fill(world, other, 6, size=30_000)
    world.move()
    hold = topic.describe()["holds"]["slow"]
    assert 0 < hold < 6
    assert start_of(topic) == hold
    assert world.db.tiers.disk.space.held_bytes(topic.runtime.state.id, 0) <= 100_000
    assert payloads_of(topic) == records[hold:]
    assert topic.append(b"y").offset == 6
    assert topic.stats()["message_count"] == 7 - hold
    assert other.describe()["holds"] == {"slow": 0}
    assert len(payloads_of(other)) == 6


def test_a_reader_passes_what_a_quota_expired_under_it_and_nothing_more(opened):
    """Expired records are a gap; later ones are read from files though the log has none."""
    world = opened()
    topic = world.db.create_topic("t", retention_bytes=100_000, on_full="expire")
    topic.hold("slow", 0)
    records = [noise(number, 30_000) for number in range(6)]
    topic.append(records[0])
    with topic.tail(0, bytes_max=1, timeout_s=0) as reader:
        assert next(reader).records()[0]["payload"] == records[0]
        for record in records[1:]:
            topic.append(record)
            world.db.tiers.flush()
        world.move()
        hold = topic.describe()["holds"]["slow"]
        assert 1 < hold < 6
        assert topic.runtime.state.start == 6
        seen = [row["payload"] for batch in reader for row in batch.records()]
        assert seen == records[hold:]
        assert [(gap.first, gap.end) for gap in reader.gaps] == [(1, hold)]


# -- the cap -------------------------------------------------------------------------------------


def full_world(opened):
    """Return a world whose files are more than the cap, its topic and what it published."""
    world = opened(disk={"bytes_max": CAP}, tiers={"small_file_bytes": 1})
    topic = world.db.create_topic("t")
    records = []
    for number in range(5):
        records += fill_one(world, topic, number)
    world.move()
    return world, topic, records


def fill_one(world, topic, seed):
    records = [noise(10 * seed + number, 60_000) for number in range(4)]
    topic.append_many(records)
    world.db.tiers.flush()
    return records


def test_a_full_cap_holds_the_writers_when_nothing_may_go(opened):
    """Without anything committed elsewhere publishes are refused, reads and holds are not."""
    world, topic, records = full_world(opened)
    other = world.db.create_topic("u")
    world.round(1)
    for each in (topic, other):
        with pytest.raises(Overloaded, match="disk tier is full") as caught:
            each.append(b"x")
        assert caught.value.details["retry_after_ms"] > 0
    assert "disk tier is full" in topic.describe()["refused"]
    assert payloads_of(topic) == records
    topic.hold("h", 1)
    topic.advance("h", 2)
    world.db.tiers.flush()


def test_a_full_cap_evicts_what_is_committed_and_nothing_else(opened):
    """The oldest committed files go, only as many as must, and publishes go on."""
    world, topic, records = full_world(opened)
    world.db.tiers.disk.set_committed(topic.runtime.state.id, 12)
    world.round(1)
    assert start_of(topic) == 4
    assert world.db.tiers.disk.space.usage() <= CAP
    assert payloads_of(topic) == records[4:]
    assert topic.append(b"x").offset == 20
    for seed in range(5, 9):
        fill_one(world, topic, seed)
    world.move()
    assert start_of(topic) == 12
    with pytest.raises(Overloaded, match="disk tier is full"):
        topic.append(b"x")


# -- deleted topics ------------------------------------------------------------------------------


def test_files_of_a_deleted_topic_go_after_the_grace(opened):
    """They stay for the grace, and a jump of the clock does not shorten it."""
    world = opened(topics={"delete_grace_s": 7200.0})
    topic, other = world.db.create_topic("t"), world.db.create_topic("u")
    fill(world, topic)
    fill(world, other)
    world.db.delete_topic("t")
    world.round(3600)
    assert world.files(topic) > 0
    world.clock.jump(86_400)
    world.round()
    assert world.files(topic) > 0
    world.round(3700)
    assert world.files(topic) == 0
    paths = [path for path in world.disk.paths() if f"/disk/{topic.runtime.state.id:08x}/" in path]
    assert paths == []
    assert len(payloads_of(other)) == 3


def test_a_topic_of_the_same_name_has_nothing_of_the_deleted_one(opened):
    """A name that is used again begins at offset 0, with neither the files nor the rows of before."""
    world = opened(topics={"delete_grace_s": 7200.0})
    columns = {"id": "long", "n": "long"}
    old = world.db.create_topic("t", columns, primary_key="id")
    old.upsert(id=1, n=1)
    world.move()
    world.db.delete_topic("t")
    fresh = world.db.create_topic("t", columns, primary_key="id")
    assert fresh.get(1) is None
    assert fresh.upsert(id=2, n=2).offset == 0
    world.move()
    world.round(7200)
    assert column_of(fresh, "id") == [2]
    assert world.db.query("SELECT id, n FROM t").rows() == [(2, 2)]


# -- memory --------------------------------------------------------------------------------------


def test_memory_lets_old_records_go_that_files_have(opened):
    """Flushed records leave memory at `memory.retention_s`; what no file has stays."""
    world = opened(memory={"retention_s": 300.0, "flush_age_s": 86_400})
    topic = world.db.create_topic("t")
    records = fill(world, topic, 2)
    world.round(299)
    assert topic.stats()["tiers"]["memory_start"] == 0
    world.round(2)
    assert topic.stats()["tiers"]["memory_start"] == 2
    assert topic.stats()["tiers"]["memory_bytes"] == 0
    topic.append(b"young")
    world.round(3600)
    assert topic.stats()["tiers"]["memory_start"] == 2
    assert topic.stats()["tiers"]["memory_bytes"] > 0
    world.db.tiers.flush()
    world.round()
    assert topic.stats()["tiers"]["memory_start"] == 3
    assert payloads_of(topic) == [*records, b"young"]
    assert world.db.query("SELECT count(*) FROM t").rows() == [(3,)]
