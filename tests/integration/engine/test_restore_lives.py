"""Random lives of a broker: publishes, backups, restarts, lost machines, restores."""

from __future__ import annotations

import contextlib
import os
import random

import pytest

from tests.integration.engine.opening import rows_of
from tests.integration.engine.restore_scene import Scene
from tests.support.log_limits import set_log_limits

SEEDS = int(os.environ.get("FRAZIL_TEST_RESTORE_SEEDS", "6"))
NAMES = ("a", "b", "c")


class Lives:
    """A broker with what is known of its records: `acked` must be there, `sent` may be."""

    def __init__(self, scene, seed):
        self.scene = scene
        self.chance = random.Random(seed)
        self.acked = {name: {} for name in NAMES}
        self.sent = {name: {} for name in NAMES}
        self.sequences = dict.fromkeys(NAMES, 0)
        self.rows = {}
        self.epoch = 0
        self.known_from = dict.fromkeys(NAMES, 0)
        for name in NAMES:
            scene.engine.create_topic(name)
        columns = {"id": "int64", "v": "int64"}
        scene.engine.create_topic("rows", columns, primary_key="id")
        # A topic without records is known to backups alone.
        scene.engine.objects.backup()

    def publish(self):
        """Publish some records of one topic; only some acks say that they are in the store."""
        name = self.chance.choice(NAMES)
        topic = self.scene.engine.topic(name)
        uploaded = self.chance.random() < 0.6
        for _ in range(self.chance.randint(1, 6)):
            sequence = self.sequences[name]
            payload = f"{name}:{self.epoch}:{sequence}".encode()
            ack = topic.append(
                payload=payload,
                producer="p",
                sequence=sequence,
                producer_epoch=self.epoch,
                ack="uploaded" if uploaded else "fsynced",
            )
            self.sequences[name] += 1
            assert self.sent[name].setdefault(ack.offset, payload) == payload, "an offset is reused"
            if uploaded:
                self.acked[name][ack.offset] = payload
        if uploaded:
            # All that was sent in this life lies below, and is in the store as well.
            self.acked[name].update(self.here(name))

    def change_rows(self):
        """Change a keyed topic; its acks say that the changes are in the store."""
        topic = self.scene.engine.topic("rows")
        key, value = self.chance.randint(0, 9), self.chance.randint(0, 1_000_000)
        if key in self.rows and self.chance.random() < 0.3:
            topic.delete({"id": key}, ack="uploaded")
            del self.rows[key]
        else:
            topic.upsert({"id": key, "v": value}, ack="uploaded")
            self.rows[key] = value

    def back_up(self):
        """Make a backup, with or without uploading first."""
        if self.chance.random() < 0.5:
            self.scene.engine.objects.flush()
            for name in NAMES:
                self.acked[name].update(self.here(name))
        self.scene.engine.objects.backup()

    def here(self, name):
        """Return what was sent to a topic and is not lost by now."""
        floor = self.known_from[name]
        return {offset: sent for offset, sent in self.sent[name].items() if offset >= floor}

    def restart(self):
        """End a life in order and begin another."""
        self.scene.close()
        self.scene.open()

    def lose(self):
        """Lose the machine and restore on another; producers begin a new epoch."""
        self.scene.lose_and_restore(local_all=self.chance.random() < 0.4)
        self.check()
        self.epoch += 1
        for name in NAMES:
            self.sequences[name] = 0
            self.known_from[name] = max(self.sent[name], default=-1) + 1

    def check(self):
        """Compare what is served with what is known."""
        for name in NAMES:
            found = {
                row["_offset"]: row["payload"] for row in rows_of(self.scene.engine.topic(name))
            }
            assert list(found) == sorted(found)
            missing = self.acked[name].keys() - found.keys()
            assert not missing, (name, sorted(missing))
            strange = {o: p for o, p in found.items() if self.sent[name].get(o) != p}
            assert not strange, (name, strange)
            self.acked[name] = found
        topic = self.scene.engine.topic("rows")
        rows = {key: topic.get(key) for key in range(10)}
        assert {key: row["v"] for key, row in rows.items() if row is not None} == self.rows


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_life_loses_what_was_uploaded_or_gives_an_offset_twice(tmp_path, seed):
    """Whatever happens in whatever order: uploaded records and rows are served, none is invented."""
    set_log_limits(prefill_bytes=4096, retention_check_s=0.05)
    with contextlib.closing(Scene(tmp_path, **{"log.retention_age_s": 0})) as scene:
        lives = Lives(scene, seed)
        steps = [lives.publish] * 8 + [lives.change_rows] * 4
        steps += [lives.back_up, lives.restart, lives.lose, lives.lose]
        for _ in range(40):
            lives.chance.choice(steps)()
        lives.lose()
