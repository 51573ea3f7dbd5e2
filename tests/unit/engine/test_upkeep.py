"""Upkeep decides under the engine's lock, outlives its own faults, and leaves nothing behind."""

from __future__ import annotations

import errno
import logging
import threading

import pytest

from frazil.config import TopicSettings
from frazil.config.sections import MemorySettings
from frazil.engine.engine import Engine
from frazil.errors import NotFound, Overloaded
from tests.crash.engine_world import LOG, SETTINGS
from tests.integration.engine.opening import declare_gap, open_small
from tests.support import SimulatedClock, SimulatedFileSystem

WAIT_S = 10.0


def open_simulated(disk=None, clock=None, *, grace_s=None, **log):
    """Open a log alone, without threads, that keeps nothing longer than it must."""
    update = {"log": LOG.model_copy(update=log), "memory": MemorySettings(enabled=False)}
    if grace_s is not None:
        update["topics"] = TopicSettings(delete_grace_s=grace_s)
    return Engine(
        SETTINGS.model_copy(update=update),
        file_system=disk or SimulatedFileSystem(1),
        clock=clock or SimulatedClock(1),
        threads=False,
    )


def publish(topic, count=200):
    for _ in range(count):
        topic.append(b"x" * 1000)


def sealed():
    """Open an engine with a topic of some segments, all sealed but the last."""
    db = open_simulated()
    topic = db.create_topic("t")
    publish(topic)
    db.upkeep.seal()
    return db, topic


class Beside:
    """Runs a call in another thread and tells whether it has returned."""

    def __init__(self, call):
        self.error = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call):
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def is_done(self, seconds):
        self._thread.join(seconds)
        return not self._thread.is_alive()


def test_no_hold_is_granted_while_segments_are_freed():
    """A hold asked for between the decision and its effect waits, and is then judged anew."""
    db, topic = sealed()
    journal, asked = db.log.journal, []
    free = journal.free

    def free_meanwhile(segment_first):
        asked.append(Beside(lambda: db.topic("t").hold("mine", 0)))
        assert not asked[0].is_done(0.2)
        return free(segment_first)

    journal.free = free_meanwhile
    db.upkeep.free()
    assert asked[0].is_done(WAIT_S)
    assert topic.runtime.state.start > 0
    assert not topic.runtime.state.holds
    assert asked[0].error.details["start"] == topic.runtime.state.start


def test_a_pin_that_comes_after_the_decision_is_respected():
    """What a reader pinned before the segments go stays, though freeing them was decided."""
    db, topic = sealed()
    call, readers = db.log.queue.call, []

    def call_later(function, timeout_s=None):
        if not readers:
            readers.append(topic.read(0))
        return call(function, timeout_s)

    db.log.queue.call = call_later
    db.upkeep.free()
    assert topic.runtime.state.start == 0
    assert sum(batch.count for batch in readers[0]) == 200
    db.upkeep.free()
    assert topic.runtime.state.start > 0


def test_no_reader_pins_while_segments_go():
    """A reader that pins too late fails at its first read, never after it got some records."""
    db, topic = sealed()
    journal, found = db.log.journal, []
    free = journal.free

    def read():
        found.extend(topic.read(0))

    def free_meanwhile(segment_first):
        found_by.append(Beside(read))
        assert not found_by[0].is_done(0.2)
        return free(segment_first)

    found_by = []
    journal.free = free_meanwhile
    db.upkeep.free()
    assert found_by[0].is_done(WAIT_S)
    assert isinstance(found_by[0].error, NotFound)
    assert not found


def test_a_reader_in_a_gap_goes_on_behind_it_when_the_records_before_it_go():
    """Freeing what lies before a declared gap takes no record from a reader that stands in it."""
    db = open_simulated()
    topic = db.create_topic("t")
    topic.append(b"x")
    declare_gap(db, "t", 100)
    [gap] = topic.describe()["gaps"]
    reader = topic.tail(gap["first"] + 2, timeout_s=0)
    db.log.journal.rotate()
    db.upkeep.seal()
    topic.append(b"y")
    db.upkeep.free()
    assert topic.runtime.state.start == gap["end"]
    [batch] = list(reader)
    assert batch.offset == gap["end"]
    assert [(each.first, each.end) for each in batch.gaps] == [(gap["first"] + 2, gap["end"])]


def test_a_hold_that_its_owner_dropped_stays_dropped():
    """Expiring records moves the holds there are; dropping one meanwhile waits for that."""
    db = open_simulated(retention_bytes=70_000, on_full="expire")
    topic = db.create_topic("t")
    topic.append(b"x")
    topic.hold("h", 0)
    publish(topic, 250)
    db.upkeep.seal()
    control, drops = db.log.control, []

    def control_meanwhile(frame):
        if not drops:
            drops.append(Beside(lambda: db.topic("t").drop("h")))
            assert not drops[0].is_done(0.2)
        return control(frame)

    db.log.control = control_meanwhile
    db.upkeep.check_quotas()
    assert drops[0].is_done(WAIT_S)
    assert drops[0].error is None
    assert not topic.runtime.state.holds


def test_the_thread_outlives_a_bug_and_stats_tell_of_it(tmp_path):
    """Stats and health report a task that raises; the rounds go on, and it recovers."""
    with open_small(tmp_path, free_check_s=0.02) as db:
        upkeep = db.upkeep
        check, calls = upkeep.space.check, threading.Semaphore(0)

        def broken():
            calls.release()
            raise RuntimeError("dictionary changed size during iteration")

        upkeep.space.check = broken
        for _ in range(3):
            assert calls.acquire(timeout=WAIT_S)
        assert "dictionary changed" in db.stats()["upkeep"]["errors"]["space"]
        assert db.stats()["health"] == "degraded"
        healthy = threading.Event()

        def mended():
            if "space" not in upkeep.errors:
                healthy.set()
            return check()

        upkeep.space.check = mended
        assert healthy.wait(WAIT_S)
        assert db.stats()["health"] == "ok"


def test_publishing_is_stopped_everywhere_before_stats_say_so():
    """When stats report that publishing stopped or resumed, every topic is in line with it."""
    disk = SimulatedFileSystem(1)
    db = open_simulated(disk, free_bytes_min=1 << 20)
    topic = db.create_topic("t")
    seen = []

    class Listener(logging.Handler):
        def emit(self, record):
            stopped = db.stats()["disk"]["publishing_stopped"]
            seen.append((record.getMessage(), stopped))

    listener = Listener()
    logging.getLogger("frazil").addHandler(listener)
    try:
        disk.capacity_bytes = 1 << 20
        db.upkeep.check_space()
        assert db.stats()["disk"]["publishing_stopped"]
        for refused in (topic, db.create_topic("u")):
            with pytest.raises(Overloaded):
                refused.append(b"x")
        disk.capacity_bytes = 100 << 20
        db.upkeep.check_space()
        assert not db.stats()["disk"]["publishing_stopped"]
        for taken in (topic, db.topic("u")):
            taken.append(b"x")
    finally:
        logging.getLogger("frazil").removeHandler(listener)
    assert ("publishing_stopped", False) in seen
    assert ("publishing_resumed", True) in seen


def test_topics_made_during_a_round_do_not_disturb_it():
    """Retention looks at a copy of the topics while others are created."""
    db = open_simulated()
    publish(db.create_topic("t"))
    db.upkeep.seal()
    pinned, names = db.log.source.pinned, iter(range(1000))

    def pinned_meanwhile(topic_id):
        db.create_topic(f"new{next(names)}")
        return pinned(topic_id)

    db.log.source.pinned = pinned_meanwhile
    db.upkeep.free()
    assert db.topic("t").runtime.state.start > 0


class BadMedium:
    """A disk on which one file cannot be read."""

    def __init__(self, disk):
        self._disk = disk
        self.bad = None
        self.number = errno.EIO

    def __getattr__(self, name):
        return getattr(self._disk, name)

    def open(self, path, mode):
        if path == self.bad and mode == "read":
            raise OSError(self.number, "medium error", path)
        return self._disk.open(path, mode)


def test_a_segment_that_cannot_be_read_is_damage():
    """Scrubbing tells of a medium error with its reason; a lack of file handles is no damage."""
    disk = BadMedium(SimulatedFileSystem(1))
    db = open_simulated(disk, retention_bytes=1 << 40, retention_age_s=1e9)
    publish(db.create_topic("t"))
    db.upkeep.seal()
    segment = db.log.journal.segments[0]
    disk.bad = segment.path
    assert "medium error" in db.upkeep.scrub_segment(segment)
    assert "medium error" in db.upkeep.damage[segment.path]
    assert db.stats()["health"] == "degraded"
    disk.bad = None
    assert not db.upkeep.scrub_segment(segment)
    assert not db.upkeep.damage
    disk.bad, disk.number = segment.path, errno.EMFILE
    with pytest.raises(OSError, match="medium error"):
        db.upkeep.scrub_segment(segment)
    assert not db.upkeep.damage


def test_what_was_noted_of_segments_and_topics_goes_with_them():
    """Neither scrubbed paths, damage nor released offsets outlive what they are about."""
    clock = SimulatedClock(1)
    db = open_simulated(clock=clock, grace_s=1, retention_age_s=100.0, retention_bytes=1 << 40)
    topic = db.create_topic("t")
    topic.append(b"x")
    db.release(topic.runtime.state.id, 1)
    publish(db.create_topic("s"))
    db.upkeep.seal()
    db.upkeep.scrub()
    path = db.log.journal.segments[0].path
    db.upkeep.damage[path] = "content does not match its hash"
    db.upkeep.forget_gone()
    assert path in db.upkeep._scrubbed
    assert path in db.upkeep.damage
    assert db.released == {topic.runtime.state.id: 1}
    db.delete_topic("t")
    clock.advance(1000)
    db.upkeep.run_once()
    db.log.journal.rotate()
    db.upkeep.run_once()
    db.upkeep.forget_gone()
    assert path not in db.upkeep._scrubbed
    assert not db.upkeep.damage
    assert not db.released
