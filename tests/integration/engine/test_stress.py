"""Eight producers, four readers, rotation and retention at once: what is read is what was acked."""

from __future__ import annotations

import threading
import time

import pytest

from frazil.errors import NotFound
from tests.integration.engine.opening import LOG_ALONE, open_small

SECONDS = 2.5
PRODUCERS = 8
READERS = 4
TIERS = {
    "alone": {"memory": LOG_ALONE},
    "files": {
        "memory": {"flush_offsets": 500, "retention_s": 1.0},
        "disk": {"log_keep_s": 0.0},
        "tiers": {"file_bytes": 100_000, "small_file_bytes": 50_000},
    },
}


class Load:
    """Producers and readers of one topic; every ack and every record read is kept."""

    def __init__(self, db):
        self.db = db
        self.topic = db.create_topic("t", sync="commit")
        self.table = db.create_topic("u", {"n": "long"}, sync="periodic")
        self.acked = {self.topic.name: {}, self.table.name: {}}
        self.read = [{self.topic.name: {}, self.table.name: {}} for _ in range(READERS)]
        self.skipped = 0
        self.errors = []
        self.stop = threading.Event()
        self.done = threading.Event()

    def guarded(self, work, *arguments):
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is fails the test
            self.errors.append(error)
            self.stop.set()

    def produce(self, producer):
        """Publish by turns to both topics, one record or many."""
        number = producer * 10_000_000
        while not self.stop.is_set():
            number += 3
            ack = self.topic.append(b"%d" % number + b" " * 200)
            self.acked[self.topic.name][ack.offset] = number
            ack = self.table.append_many([{"n": number}, {"n": number + 1}])
            self.acked[self.table.name][ack.offset] = number
            self.acked[self.table.name][ack.offset_last] = number + 1

    def consume(self, reader, topic):
        """Tail a topic; every second reader begins late and reads in small pieces."""
        seen = self.read[reader][topic.name]
        position = 0
        while not self.done.is_set() or position < topic.stats()["head"]:
            try:
                with topic.tail(position, timeout_s=0.05, bytes_max=50_000) as tail:
                    for batch in tail:
                        assert batch.offset == position
                        position = batch.offset_next
                        self.take(batch, seen)
            except NotFound as error:
                # This reader was not pinned yet when retention came by.
                assert position == 0
                position = error.details["offset_first"]
                self.skipped += 1

    def take(self, batch, seen):
        """Keep what a reader saw."""
        columns = batch.data.to_pydict()
        values = columns.get("n") or [int(payload) for payload in columns["payload"]]
        seen.update(enumerate(values, batch.offset))

    def upkeep(self):
        """Rotate and free all the time."""
        while not self.stop.wait(0.05):
            self.db.log.queue.call(self.db.log.journal.rotate)
            self.db.upkeep.task.make_all_due()


@pytest.mark.parametrize("tiers", TIERS)
def test_everything_read_equals_what_was_acked(tmp_path, tiers):
    """Under load each reader sees each acked record of its range once, at its offset."""
    options = {"retention_bytes": 200_000, "retention_age_s": 0.0, "retention_check_s": 0.05}
    with open_small(tmp_path, **options, **TIERS[tiers]) as db:
        load = Load(db)
        works = [(load.produce, each) for each in range(PRODUCERS)]
        works += [(load.upkeep,)]
        readers = [
            (load.consume, each, load.topic if each % 2 else load.table) for each in range(READERS)
        ]
        threads = [threading.Thread(target=load.guarded, args=work) for work in works]
        followers = [threading.Thread(target=load.guarded, args=work) for work in readers]
        for thread in (*threads, *followers):
            thread.start()
        time.sleep(SECONDS)
        load.stop.set()
        for thread in threads:
            thread.join(20)
        load.done.set()
        for thread in followers:
            thread.join(20)
        assert load.errors == []
        for reader, topic in enumerate([load.table, load.topic] * (READERS // 2)):
            seen, acked = load.read[reader][topic.name], load.acked[topic.name]
            first = min(seen)
            assert sorted(seen) == list(range(first, topic.stats()["head"]))
            assert seen == {at: value for at, value in acked.items() if at >= first}
        assert db.upkeep.segments_freed > 0
        if db.has_tiers:
            # Records went from log to files, and from files for good, under the readers.
            ids = [each.runtime.state.id for each in (load.topic, load.table)]
            assert all(db.tiers.topic(each).flushes > 1 for each in ids)
            assert any(db.tiers.disk.start(each) > 0 for each in ids)
        assert db.stats()["health"] == "ok"
        assert len(load.acked[load.topic.name]) > 100
