"""A disk that fills while the store is away: publishing stops and goes on, nothing is lost."""

from __future__ import annotations

import random
import threading

import pytest

from frazil.errors import Overloaded
from tests.integration.engine.objects_world import (
    forget_log,
    give_back,
    open_with_objects,
    registered,
    take_away,
    uploaded_rows,
    wait_until,
)
from tests.integration.engine.opening import payloads_of


def test_the_cap_of_files_stops_publishing_until_the_store_is_back(tmp_path):
    """Files that are nowhere else stay, whatever their cap; when they are uploaded, they go."""
    disk = {"bytes_max": 1 << 20, "log_keep_s": 0}
    sent = []
    with open_with_objects(tmp_path, retry_s=0.0, disk=disk, memory={"wait_s": 0.01}) as db:
        take_away(tmp_path)
        topic = db.create_topic("full")

        def is_full():
            payload = random.Random(len(sent)).randbytes(10_000)
            try:
                topic.append(payload)
            except Overloaded as error:
                assert "object store" in str(error)
                return True
            sent.append(payload)
            if len(sent) % 40 == 0:
                forget_log(db, [topic])
                db.tiers.retention.check_cap()
            return False

        wait_until(is_full)
        assert len(sent) > 60
        assert db.tiers.disk.start(topic.runtime.state.id) == 0
        give_back(tmp_path)
        wait_until(lambda: topic.runtime.refusal is None, "publishing did not go on")
        sent.append(b"again")
        topic.append(b"again", ack="uploaded")
        assert db.tiers.disk.space.usage() <= 1 << 20
        assert payloads_of(topic) == sent
        assert [row["payload"] for row in uploaded_rows(db, topic)] == sent


def test_uploads_go_on_while_the_volume_is_full(tmp_path):
    """Publishing is stopped for want of room; uploads, holds and readers are not (F7)."""
    with open_with_objects(tmp_path, retry_s=0.0) as db:
        take_away(tmp_path)
        topic = db.create_topic("volume")
        for number in range(20):
            topic.append(b"%d" % number)
    give_back(tmp_path)
    with open_with_objects(tmp_path, free_bytes_min=1 << 44) as db:
        topic = db.topic("volume")
        assert db.stats()["disk"]["publishing_stopped"]
        with pytest.raises(Overloaded):
            topic.append(b"no room")
        wait_until(lambda: topic.stats()["uploaded"] == 20)
        wait_until(lambda: topic.describe()["holds"] == {"objects": 20})
        assert [row["payload"] for row in uploaded_rows(db, topic)] == payloads_of(topic)


def test_topics_come_and_go_while_others_are_uploaded(tmp_path):
    """Creating, altering and deleting under way disturbs no upload of another topic."""
    with open_with_objects(tmp_path, topics={"delete_grace_s": 0}) as db:
        steady = db.create_topic("steady")
        done = threading.Event()
        acks = []

        def publish():
            while not done.is_set():
                acks.append(steady.append(b"%d" % len(acks), ack="uploaded"))

        publisher = threading.Thread(target=publish)
        publisher.start()
        for number in range(15):
            topic = db.create_topic(f"short{number}", objects=number % 2 == 0)
            topic.append(b"x")
            db.alter_topic(topic.name, objects=number % 3 == 0)
            topic.append(b"y")
            db.delete_topic(topic.name)
        done.set()
        publisher.join()
        assert [ack.offset for ack in acks] == list(range(len(acks)))
        rows = uploaded_rows(db, steady)
        assert [row["payload"] for row in rows] == [b"%d" % n for n in range(len(acks))]
        registered(db, steady.runtime.state.id)
        assert set(db.objects.status()["topics"]) == {"/default/steady"}
        assert db.objects.errors == {}
