"""A log alone frees by holds and retention; quotas block a topic or expire its oldest records."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound, Overloaded
from frazil.log import ChainedHistory, Piece
from frazil.model import OffsetRange
from tests.integration.engine.opening import LOG_ALONE, open_small, payloads_of, rotate
from tests.support import SimulatedClock, SimulatedFileSystem

NOTHING_KEPT = {"retention_age_s": 0.0, "retention_bytes": 0, "memory": LOG_ALONE}


def fill(db, topic, count=3, size=1000):
    """Publish one record to each of some segments."""
    for _ in range(count):
        topic.append(b"x" * size)
        rotate(db)


def start_of(topic):
    return topic.describe()["watermarks"]["start"]


def test_holds_are_durable_and_described(tmp_path):
    """Holds are listed by describe, survive a restart, advance forwards only and can be dropped."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("t")
        topic.append_many([b"x"] * 10)
        topic.hold("a", 2)
        topic.hold("b", 5)
        topic.advance("a", 4)
    with open_small(tmp_path) as db:
        topic = db.topic("t")
        assert topic.describe()["holds"] == {"a": 4, "b": 5}
        assert topic.describe()["watermarks"]["floor"] == 4
        topic.drop("a")
        assert topic.describe()["watermarks"]["floor"] == 5
        for wrong, error in (
            (lambda: topic.hold("b", 6), Conflict),
            (lambda: topic.advance("b", 4), Conflict),
            (lambda: topic.advance("b", 11), InvalidRequest),
            (lambda: topic.advance("c", 1), NotFound),
            (lambda: topic.drop("c"), NotFound),
            (lambda: topic.hold("c", 11), InvalidRequest),
            (lambda: topic.hold("c", -1), InvalidRequest),
            (lambda: topic.hold("", 1), InvalidRequest),
            (lambda: topic.hold("a b", 1), InvalidRequest),
            (lambda: topic.hold("x" * 201, 1), InvalidRequest),
            (lambda: topic.hold("c", "1"), InvalidRequest),
            (lambda: topic.hold(5, 1), InvalidRequest),
            (lambda: topic.advance("b", None), InvalidRequest),
        ):
            with pytest.raises(error):
                wrong()
        assert topic.describe()["holds"] == {"b": 5}
    with open_small(tmp_path) as db:
        assert db.topic("t").describe()["holds"] == {"b": 5}


def test_only_what_no_hold_needs_is_freed(tmp_path):
    """Segments go oldest first up to the lowest hold, whatever retention says."""
    with open_small(tmp_path, **NOTHING_KEPT) as db:
        topic = db.create_topic("t")
        topic.hold("a", 0)
        fill(db, topic, 4)
        db.upkeep.free()
        assert start_of(topic) == 0
        topic.advance("a", 2)
        db.upkeep.free()
        assert start_of(topic) == 2
        assert len(payloads_of(topic)) == 2
        topic.drop("a")
        db.upkeep.free()
        assert start_of(topic) == 4
        assert topic.append(b"y").offset == 4
        assert topic.stats()["message_count"] == 1


def test_retention_keeps_what_it_says(tmp_path):
    """Without holds, data is kept for its age and its size, by topic."""
    clock = SimulatedClock()
    options = {
        "file_system": SimulatedFileSystem(),
        "clock": clock,
        "memory": LOG_ALONE,
        "topics": {"delete_grace_s": 0.0},
    }
    with open_small("/data", **options) as db:
        sized = db.create_topic("sized", retention_bytes=2500)
        aged = db.create_topic("aged", retention_age="1h")
        for topic in (sized, aged):
            for _ in range(5):
                topic.append(b"x" * 1000)
                rotate(db)
        db.upkeep.free()
        assert start_of(sized) == 2
        assert start_of(aged) == 0
        db.delete_topic("sized")
        clock.advance(3500)
        db.upkeep.free()
        assert start_of(aged) == 0
        clock.advance(200)
        db.upkeep.free()
        assert start_of(aged) == 5


def test_a_clock_that_jumps_frees_nothing(tmp_path):
    """A jump of the wall clock pauses what is decided by time (F13)."""
    clock = SimulatedClock()
    options = {"retention_age_s": 3600.0, "memory": LOG_ALONE}
    with open_small("/data", file_system=SimulatedFileSystem(), clock=clock, **options) as db:
        topic = db.create_topic("t")
        fill(db, topic)
        db.upkeep.free()
        clock.jump(365 * 86_400)
        db.upkeep.free()
        assert start_of(topic) == 0
        clock.advance(3700)
        db.upkeep.free()
        assert start_of(topic) == 3


def test_a_full_quota_blocks_its_topic_only(engine):
    """A hold that keeps more than the quota stops publishes to its topic until it moves on."""
    topic = engine.create_topic("t", retention_bytes=2000, on_full="block")
    other = engine.create_topic("u")
    topic.hold("slow", 0)
    fill(engine, topic, 3)
    engine.upkeep.check_quotas()
    with pytest.raises(Overloaded, match="quota"):
        topic.append(b"x")
    assert "quota" in topic.describe()["refused"]
    assert other.append(b"x").offset == 0
    topic.advance("slow", 3)
    engine.upkeep.check_quotas()
    assert topic.append(b"y").offset == 3


def test_a_full_quota_may_expire_the_oldest(tmp_path):
    """With `expire` the oldest held records become a declared gap and the hold moves on."""
    with open_small(tmp_path, **NOTHING_KEPT) as db:
        topic = db.create_topic("t", retention_bytes=2500, on_full="expire")
        topic.hold("slow", 0)
        fill(db, topic, 5)
        db.upkeep.check_quotas()
        hold = topic.describe()["holds"]["slow"]
        assert 0 < hold < 5
        assert topic.append(b"y").offset == 5
        gaps = topic.describe()["gaps"]
        assert [(gap["first"], gap["end"]) for gap in gaps] in ([(0, hold)], [])
        reader = topic.read()
        assert sum(batch.count for batch in reader) == 6 - hold
        assert all("expired" in gap.reason for gap in reader.gaps)
        db.upkeep.free()
        assert start_of(topic) == hold
        assert topic.stats()["message_count"] == 6 - hold


def test_segments_rotate_by_size_and_are_freed_by_themselves(tmp_path):
    """The engine rotates, seals and frees without being asked, within its settings."""
    options = {**NOTHING_KEPT, "retention_check_s": 0.05}
    with open_small(tmp_path, **options) as db:
        topic = db.create_topic("t")
        for _ in range(60):
            topic.append(b"x" * 30_000)
        from tests.integration.engine.opening import wait_until

        wait_until(lambda: db.upkeep.segments_freed > 0)
        assert db.stats()["journal"]["segment"] >= 6
        assert start_of(topic) > 0
        assert topic.append(b"y").offset == 60


class Shelf:
    """Another tier in memory: it keeps the batches that were put on it."""

    def __init__(self):
        self.batches = []

    def range(self, topic):
        if not self.batches:
            return OffsetRange(0, 0)
        return OffsetRange(self.batches[0].offset, self.batches[-1].offset_next)

    def read(self, topic, *, offset, bytes_max):
        for batch in self.batches:
            if batch.offset <= offset < batch.offset_next:
                return Piece([batch.slice(offset - batch.offset)], batch.offset_next)
        raise NotFound("not on the shelf", offset=offset)

    def offset_at(self, topic, *, time_us):
        return next((b.offset for b in self.batches if b.time_us >= time_us), None)

    def pin(self, topic, *, offset):
        return SimpleNamespace(offset=offset, advance=lambda offset: None, close=lambda: None)


def test_readers_go_on_over_the_seam_of_two_tiers(tmp_path):
    """What another tier took over is read from there, what is newer from the log, without a seam."""
    shelf = Shelf()
    with open_small(tmp_path, **NOTHING_KEPT) as db:
        topic = db.create_topic("t")
        topic.hold("tier", 0)
        for number in range(4):
            topic.append(b"%d" % number)
            rotate(db)
        sources = [shelf, topic.runtime.log.source]
        topic.runtime.history = ChainedHistory(sources, far=db.objects.source)
        shelf.batches = list(topic.read(limit=3, bytes_max=1))
        db.release(topic.runtime.state.id, 3)
        db.upkeep.free()
        assert topic.runtime.state.start == 3
        assert start_of(topic) == 0
        assert payloads_of(topic) == [b"0", b"1", b"2", b"3"]
        assert payloads_of(topic, 2) == [b"2", b"3"]
        with topic.tail(1, timeout_s=0.2) as tail:
            topic.append(b"4")
            seen = [row["payload"] for batch in tail for row in batch.records()]
        assert seen == [b"1", b"2", b"3", b"4"]
