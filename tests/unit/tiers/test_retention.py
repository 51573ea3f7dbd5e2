"""Files go under the engine's locks: no hold and no reader comes between decision and effect."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from frazil.engine import Engine
from frazil.errors import InvalidRequest, NotFound
from frazil.tiers.disk.tier import DiskLimits
from tests.crash.engine_world import LOG, SETTINGS
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.tier_limits import set_tier_limits

WAIT_S = 10.0


def open_simulated():
    """Open an engine without threads whose files go as soon as nothing needs them."""
    set_tier_limits(small_file_bytes=1)
    update = {"log": LOG}
    return Engine(
        SETTINGS.model_copy(update=update),
        file_system=SimulatedFileSystem(1),
        clock=SimulatedClock(1),
        threads=False,
    )


def publish(db, topic, count=3, size=1000):
    """Publish records, each into a file of its own, and let the log go of them."""
    for number in range(count):
        topic.append(bytes([number]) * size)
        db.tiers.flush()
    db.log.journal.rotate()
    db.upkeep.seal()
    db.clock.advance(3600)
    db.tiers.release()
    db.upkeep.free()
    assert topic.runtime.state.start == count


def meanwhile(owner, name, call):
    """Have `call` made in another thread in the middle of a method; return where its future is."""
    calls, work = [], getattr(owner, name)

    def patched(*arguments):
        if not calls:
            calls.append(ThreadPoolExecutor(1).submit(call))
            with pytest.raises(TimeoutError):
                calls[0].result(0.2)
        return work(*arguments)

    setattr(owner, name, patched)
    return calls


def retain(db, topic):
    """Find everything too old."""
    del topic
    db.tiers.retention.retain()


def evict(db, topic):
    """Find the cap too small for anything, all of which is committed elsewhere."""
    disk = db.settings.disk.model_copy(update={"bytes_max": 1})
    db.settings = db.settings.model_copy(update={"disk": disk})
    db.tiers.disk.set_committed(topic.runtime.state.id, topic.runtime.state.durable)
    db.tiers.retention.check_cap()


@pytest.mark.parametrize(
    ("ask", "error", "fact"),
    [
        (lambda topic: topic.hold("mine", 0), InvalidRequest, "start"),
        (lambda topic: list(topic.read(0)), NotFound, "offset_first"),
    ],
)
@pytest.mark.parametrize(("way", "method"), [(retain, "expire"), (evict, "evict")])
def test_no_hold_and_no_reader_begins_while_files_go(way, method, ask, error, fact):
    """A hold or read between the decision and its effect waits, and is refused afterwards."""
    db = open_simulated()
    topic = db.create_topic("t")
    publish(db, topic)
    asked = meanwhile(db.tiers.disk.space, method, lambda: ask(topic))
    way(db, topic)
    refused = asked[0].exception(WAIT_S)
    assert db.tiers.disk.start(topic.runtime.state.id) == 3
    assert isinstance(refused, error)
    assert refused.details[fact] == 3
    assert not topic.runtime.state.holds
    db.close()


def test_a_topic_made_while_the_cap_is_judged_does_not_disturb_it():
    """The cap is judged over topics as they come and go."""
    db = open_simulated()
    publish(db, db.create_topic("t"))
    usage = db.tiers.disk.space.usage

    def usage_meanwhile():
        db.create_topic("u", exist_ok=True)
        return usage()

    db.tiers.disk.space.usage = usage_meanwhile
    db.tiers.retention.check_cap()
    assert db.topics() == ["/default/t", "/default/u"]
    assert db.topic("u").append(b"x").offset == 0
    db.close()


@pytest.mark.parametrize(
    ("retention", "files_max"),
    [({"retention_age": "8h"}, 28), ({"retention_bytes": 400_000}, 32), ({}, 8)],
)
def test_files_are_joined_up_to_a_part_of_what_a_topic_keeps(retention, files_max):
    """However many small files come, few are left, and none is more than a step of retention."""
    db = open_simulated()
    db.tiers.disk.limits = DiskLimits()
    db.settings = db.settings.model_copy(
        update={"log": LOG.model_copy(update={"retention_age_s": 1e9, "retention_bytes": 1 << 40})}
    )
    topic = db.create_topic("t", **retention)
    tiers = db.tiers.topic(topic.runtime.state.id)
    for number in range(100):
        topic.append(bytes([number]) * 1000)
        db.tiers.flush()
        db.clock.advance(300)
        db.tiers.retention.merge(tiers)
        db.tiers.retention.retain()
    spans = db.tiers.disk.picture(tiers.id).spans
    assert len(spans) <= files_max
    for span in spans:
        [file] = span.files
        if "retention_age" in retention:
            assert file.time_last - file.time_first <= 3600 * 1_000_000
        if "retention_bytes" in retention:
            assert file.size <= 400_000 // 8
    assert sum(batch.count for batch in topic.read()) == 100 - db.tiers.disk.start(tiers.id)
    db.close()
