"""Threads read while others write, upload and give up: with real stores, each offset once."""

from __future__ import annotations

import random
import threading
import time

import pytest

import frazil
from frazil.errors import Unavailable
from tests.integration.engine.opening import wait_until
from tests.servers.seaweed import SeaweedServer
from tests.support.log_limits import set_log_limits

pytestmark = pytest.mark.integration

TOPIC = "/default/handoff"
RECORDS = 24_000
BATCH = 60
PAYLOAD_BYTES = 400
WAIT_S = 180
SMALL = {
    "log.segment_bytes_max": "2MiB",
    "log.write_bytes_max": "256KiB",
    "log.ballast_bytes": 0,
    "log.retention_age_s": 0,
    "topics.message_bytes_max": "128KiB",
    "disk.log_keep_s": 0,
    "disk.bytes_max": "1MiB",
    "memory.retention_s": 1,
    "memory.flush_offsets": 3_000,
    "objects.interval_s": 0.05,
    "objects.object_bytes_max": "512KiB",
}


def payload(offset):
    return (b"%d:" % offset).ljust(PAYLOAD_BYTES, b".")


class Reading(threading.Thread):
    """Follows the topic from an offset to the last record, and remembers what is wrong."""

    def __init__(self, topic, start):
        super().__init__(daemon=True)
        self.topic = topic
        self.offset = start
        self.wrong = None

    def run(self):
        try:
            while self.offset < RECORDS:
                self.follow()
        except Exception as error:  # noqa: BLE001 - the test tells it
            self.wrong = self.wrong or repr(error)

    def follow(self):
        with self.topic.tail(self.offset, timeout_s=WAIT_S) as reader:
            try:
                for batch in reader:
                    if not self.take(batch) or self.offset >= RECORDS:
                        return
            except Unavailable:
                # The store is away for a moment; go on where it was.
                time.sleep(0.05)

    def take(self, batch):
        if batch.offset != self.offset:
            self.wrong = f"wanted {self.offset}, got {batch.offset}"
        found = batch.data.column("payload").to_pylist()
        if found != [payload(n) for n in range(batch.offset, batch.offset_next)]:
            self.wrong = f"other records at {batch.offset}"
        self.offset = RECORDS if self.wrong else batch.offset_next
        return not self.wrong


def start_of(topic):
    """Return the first offset at hand."""
    return topic.runtime.history._near(topic.runtime.state.id).first


def finish(readers):
    """Wait until all have read everything, and nothing was wrong."""
    for reader in readers:
        reader.join(WAIT_S)
        assert not reader.is_alive(), f"a reader stays at {reader.offset}"
        assert reader.wrong is None
        assert reader.offset == RECORDS


def hand_over(path, settings, *, disturb=None):
    """Write, upload and give up while readers come from everywhere; return frames of objects."""
    chance = random.Random(7)
    set_log_limits(retention_check_s=0.05, read_bytes=64 << 10)
    with frazil.open(path, **SMALL, **settings) as db:
        topic = db.create_topic(TOPIC)
        readers = []
        for first in range(0, RECORDS, BATCH):
            topic.append_many([payload(n) for n in range(first, first + BATCH)])
            if first % (RECORDS // 12) == 0:
                readers.append(Reading(topic, chance.choice((0, chance.randint(0, first)))))
                readers[-1].start()
            if disturb is not None:
                disturb(first)
        db.objects.flush(TOPIC)
        finish(readers)
        # Nobody needs what is at hand any more: the next readers find half of it in objects alone.
        wait_until(lambda: start_of(topic) > RECORDS // 2, "nothing was given up at hand")
        readers = [Reading(topic, start) for start in (0, chance.randint(0, RECORDS // 2))]
        for reader in readers:
            reader.start()
        finish(readers)
        return db.objects.source.frames_read


@pytest.mark.parametrize("memory", [True, False], ids=["files", "log alone"])
def test_readers_of_a_directory_meet_each_offset_once(tmp_path, memory):
    """From objects to files to log to live: one ordered stream for everybody."""
    store = {"objects.store": "fs", "objects.root": str(tmp_path / "objects")}
    frames = hand_over(tmp_path / "data", {**store, "memory.enabled": memory})
    assert frames > 0


def test_readers_of_an_s3_server_meet_each_offset_once(tmp_path):
    """The same with a real S3 server, which is killed and comes back on the way."""
    with SeaweedServer(tmp_path / "seaweed") as server:

        def disturb(first):
            if first == RECORDS // 2:
                server.restart()

        frames = hand_over(tmp_path / "data", server.settings(), disturb=disturb)
    assert frames > 0
