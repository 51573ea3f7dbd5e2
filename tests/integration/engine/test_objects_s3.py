"""Uploads to a real S3 server that is killed, paused and started again under load."""

from __future__ import annotations

import threading
import time

import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.engine import Engine
from frazil.errors import Unavailable
from frazil.fs import RealFileSystem
from tests.integration.engine.objects_world import registered, uploaded_rows, wait_until
from tests.integration.engine.opening import payloads_of
from tests.servers.seaweed import SeaweedServer
from tests.support.objects_limits import set_objects_limits

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return a running SeaweedFS."""
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as running:
        yield running


def opened(path, server, *, ack_s=60, **changes):
    """Open an engine whose objects are in the server, in a root of its own."""
    set_objects_limits(retry_s=1.0, request_s=5.0, ack_s=ack_s)
    overrides = server.settings(
        **{
            "data_dir": str(path),
            "objects.root": f"s3://frazil-test/{path.name}",
            "objects.interval_s": 0.1,
            "log.ballast_bytes": 0,
            **changes,
        }
    )
    settings = load_settings(environment={}, overrides=overrides)
    return Engine(settings, file_system=RealFileSystem(), clock=SystemClock())


def test_records_are_in_s3_once(tmp_path, server):
    """What was acked as uploaded can be read from the server alone, also in a new life."""
    with opened(tmp_path, server) as db:
        topic = db.create_topic("s3", {"id": "long not null", "text": "string"})
        for number in range(20):
            topic.append(id=number, text="x" * number, ack="uploaded" if number % 5 == 0 else None)
        topic.append_many([{"id": number} for number in range(20, 1_000)], ack="uploaded")
        assert [row["id"] for row in uploaded_rows(db, topic)] == list(range(1_000))
        before = registered(db, topic.runtime.state.id)
    with opened(tmp_path, server) as db:
        topic = db.topic("s3")
        assert registered(db, topic.runtime.state.id) == before
        assert [row["id"] for row in uploaded_rows(db, topic)] == list(range(1_000))


class Load:
    """Publishers that go on whatever the store does, and remember what was promised to them."""

    def __init__(self, topics):
        self.topics = topics
        self.sent = {topic.name: [] for topic in topics}
        self.uploaded = {topic.name: -1 for topic in topics}
        self.late = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(topic,)) for topic in topics]

    def _run(self, topic):
        number = 0
        while not self._stop.is_set():
            payload = b"%s %d" % (topic.name.encode(), number)
            wait = number % 10 == 9
            self.sent[topic.name].append(payload)
            try:
                ack = topic.append(payload, ack="uploaded" if wait else None)
            except Unavailable as error:
                assert error.details["outcome"] == "fsynced"
                self.late += 1
            else:
                assert ack.offset == number
                if wait:
                    self.uploaded[topic.name] = ack.offset
            number += 1
            time.sleep(0.002)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def grown(self, count):
        """Return a condition: every topic has so many more records that are uploaded."""
        ends = {name: end + count for name, end in self.uploaded.items()}
        return lambda: all(self.uploaded[name] >= end for name, end in ends.items())


def test_a_server_that_dies_under_load_loses_and_doubles_nothing(tmp_path, server):
    """Publishing goes on; late acks say fsynced; afterwards objects have every record."""
    with opened(tmp_path, server, ack_s=2.0) as db:
        topics = [db.create_topic(f"t{number}") for number in range(3)]
        with Load(topics) as load:
            wait_until(load.grown(20), "nothing was uploaded")
            server.kill()
            count = {name: len(sent) for name, sent in load.sent.items()}
            wait_until(lambda: load.late >= 3, "no ack said that the store is away")
            assert all(len(load.sent[name]) > before for name, before in count.items())
            server.start()
            wait_until(load.grown(20), "it did not go on after a kill")
            server.pause()
            wait_until(lambda: load.late >= 6, "no ack said that the store hangs")
            server.resume()
            wait_until(load.grown(20), "it did not go on after a pause")
        db.objects.flush(timeout_s=60)
        for topic in topics:
            sent = load.sent[topic.name]
            assert [row["payload"] for row in uploaded_rows(db, topic)] == sent
            assert payloads_of(topic) == sent
            registered(db, topic.runtime.state.id)
        assert db.objects.status()["totals"]["states"] == {"running": 3}
