"""What readers of an engine get from objects: by time, by subscription, and in trouble."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading

import pytest

import frazil
from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.objects import Fetcher
from tests.integration.engine.opening import wait_until
from tests.servers.seaweed import SeaweedServer
from tests.support.log_limits import set_log_limits
from tests.support.objects_limits import set_objects_limits

pytestmark = pytest.mark.integration

TOPIC = "/default/t"
BATCHES = 60
BATCH = 100
RECORDS = BATCHES * BATCH
SMALL = {
    "log.segment_bytes_max": "2MiB",
    "log.write_bytes_max": "256KiB",
    "log.ballast_bytes": 0,
    "log.retention_age_s": 0,
    "topics.message_bytes_max": "128KiB",
    "memory.enabled": False,
    "objects.store": "fs",
    "objects.object_bytes_max": "1MiB",
}


@pytest.fixture
def place(tmp_path):
    set_objects_limits(retry_s=0)
    set_log_limits(retention_check_s=0.05)
    return {**SMALL, "objects.root": str(tmp_path / "objects")}


def fill(db):
    """Publish records until older ones are in objects alone; returns the topic."""
    topic = db.create_topic(TOPIC)
    for first in range(0, RECORDS, BATCH):
        topic.append_many([b"%d:" % n + b"x" * 1_000 for n in range(first, first + BATCH)])
        if first % (10 * BATCH) == 9 * BATCH:
            db.objects.flush(TOPIC)
    assert len(objects_of(db, topic)) >= BATCHES // 10
    wait_until(lambda: topic.runtime.state.start, "nothing was freed")
    return topic


@pytest.fixture
def db(tmp_path, place):
    """An engine whose topic has its older records in objects alone."""
    with frazil.open(tmp_path / "data", **place) as found:
        fill(found)
        yield found


@pytest.fixture
def topic(db):
    """The topic of that engine."""
    return db.topic(TOPIC)


def objects_of(db, topic):
    return db.objects.catalog.topic(topic.runtime.state.id).descriptors


def moment(time_us):
    return dt.datetime.fromtimestamp(0, dt.UTC) + dt.timedelta(microseconds=time_us)


def first_of(reader):
    with reader:
        return next(iter(reader)).offset


def test_a_time_leads_into_objects(topic):
    """Reading from a time begins with the first record at or after it, wherever that is."""
    times = [
        (batch.offset + sum(n for n, _us in batch.times[:at]), us)
        for batch in topic.read(0)
        for at, (_n, us) in enumerate(batch.times)
    ]
    for offset, time_us in (times[0], times[5], times[len(times) // 2], times[-1]):
        first = min(at for at, us in times if us >= time_us)
        assert first_of(topic.read(moment(time_us))) == first
        assert offset >= first
    assert list(topic.read(moment(times[-1][1] + 1))) == []


def test_a_subscription_from_the_beginning_reads_objects_first(db, topic):
    """A subscription gets every record once, in order, from objects and then from the log."""
    seen, waiting = [], []
    with topic.subscribe("replay", start="earliest", max_unacked=2 * BATCH) as stream:
        for delivery in stream:
            seen.append(delivery.offset)
            waiting.append(delivery)
            if len(waiting) == BATCH:
                stream.ack(waiting)
                waiting = []
            if len(seen) == RECORDS:
                break
    assert seen == list(range(RECORDS))
    assert db.objects.source.frames_read > 0
    [facts] = topic.subscriptions()
    assert facts["lag_records"] == 0


def test_asyncio_looks_a_time_up_in_a_worker(db, topic, tmp_path, place, monkeypatch):
    """The loop's thread never waits for the store, not even for the start of a reader."""
    start = next(iter(topic.read(100))).time_us
    db.close()
    asked = []
    plain = Fetcher.get

    def watched(self, span):
        asked.append(threading.current_thread())
        return plain(self, span)

    monkeypatch.setattr(Fetcher, "get", watched)

    async def main():
        async with frazil.open_async(tmp_path / "data", **place) as again:
            reader = again.topic(TOPIC).read(moment(start))
            return [batch.offset async for batch in reader], threading.current_thread()

    offsets, loop_thread = asyncio.run(main())
    assert offsets[0] == 100
    assert asked
    assert loop_thread not in asked


def test_a_missing_object_is_reported_and_not_skipped(db, topic, tmp_path):
    """The reader learns which records are gone, and reads the records after them."""
    gone = objects_of(db, topic)[1]
    (tmp_path / "objects" / gone.key).unlink()
    seen = 0
    with pytest.raises(CorruptionError) as caught:
        for batch in topic.read("earliest"):
            seen = batch.offset_next
    assert seen == gone.first
    assert caught.value.details["offset_next"] == gone.end
    assert first_of(topic.read(gone.end)) == gone.end


def test_a_flipped_byte_costs_its_frame_alone(db, topic, tmp_path):
    """Damage in an object is reported as one range; all other records come."""
    hit = objects_of(db, topic)[0]
    path = tmp_path / "objects" / hit.key
    data = bytearray(path.read_bytes())
    data[8 + 200_000] ^= 1
    path.write_bytes(bytes(data))
    seen, lost, offset = [], [], 0
    while offset < RECORDS:
        try:
            for batch in topic.read(offset):
                seen += range(batch.offset, batch.offset_next)
                offset = batch.offset_next
        except CorruptionError as error:
            lost += range(error.details["offset_first"], error.details["offset_next"])
            offset = error.details["offset_next"]
    assert 0 < len(lost) <= 2 * BATCH
    assert sorted(seen + lost) == list(range(RECORDS))


def test_the_copy_at_hand_is_preferred(db, topic, tmp_path):
    """Records that the log has are read there: a store that is gone does not matter to them."""
    at_hand = topic.runtime.state.start
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    assert sum(batch.count for batch in topic.read(at_hand)) == RECORDS - at_hand
    assert db.objects.source.frames_read == 0


def test_a_store_that_is_down_is_unavailable_and_comes_back(tmp_path):
    """Old reads say when to try again; when the store is back they go on, without a restart."""
    with SeaweedServer(tmp_path / "seaweed") as server:
        set_objects_limits(retry_s=0, request_s=5)
        set_log_limits(retention_check_s=0.05)
        settings = {**SMALL, **server.settings()}
        with frazil.open(tmp_path / "data", **settings) as db:
            topic = fill(db)
            server.kill()
            with pytest.raises(Unavailable) as caught:
                list(topic.read(0))
            assert caught.value.details["retry_after_ms"] > 0
            assert first_of(topic.read(topic.runtime.state.start)) == topic.runtime.state.start
            server.start()
            assert sum(batch.count for batch in topic.read(0)) == RECORDS


def test_what_remote_retention_took_is_named(db, topic):
    """Below the first object that is kept, readers learn the first offset there is."""
    kept = objects_of(db, topic)[1]
    db.objects.catalog.expire(topic.runtime.state.id, kept.first)
    with pytest.raises(NotFound, match=f"offset_first={kept.first}"):
        list(topic.read(0))
    assert first_of(topic.read("earliest")) == kept.first
