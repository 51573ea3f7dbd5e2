"""`frazil backup` and `frazil restore` as processes, beside a broker and without one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from frazil.cli.restore import store_of
from frazil.errors import InvalidRequest

WAIT_S = 60


@pytest.fixture
def world(tmp_path):
    """Return a way to call `frazil` with a store in a directory; brokers end with the test."""
    store = tmp_path / "store"
    store.mkdir()
    config = tmp_path / "frazil.yaml"
    config.write_text(
        f"objects: {{store: fs, root: {store}, interval_s: 1h, backup_interval_s: 1h}}\n"
        "log: {ballast_bytes: 0, free_bytes_min: 0, free_ratio_min: 0}\n"
        "serve: {port: 0, admin_port: 0, http_port: 0}\nlake: {default: false}\n",
        encoding="utf-8",
    )
    found = World(tmp_path, config)
    yield found
    for broker in found.brokers:
        if broker.poll() is None:
            os.kill(broker.pid, signal.SIGKILL)
        broker.wait(WAIT_S)


class World:
    """Directories and processes of one test."""

    def __init__(self, path, config):
        self.path = path
        self.config = config
        self.brokers = []

    def command(self, *words):
        """Return a command line."""
        return [sys.executable, "-m", "frazil.cli", "--config", str(self.config), *words]

    def run(self, *words, text=None, expect=0):
        """Run a command to its end and return what it said on stdout."""
        done = subprocess.run(
            self.command(*words),
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_S * 2,
            check=False,
        )
        assert done.returncode == expect, done.stderr
        return done.stdout if expect == 0 else done.stderr

    def serve(self, data):
        """Start a broker and wait until it answers."""
        broker = subprocess.Popen(
            self.command("-d", data, "serve"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.brokers.append(broker)
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            asked = subprocess.run(
                self.command("-d", data, "-o", "json", "subscription", "list"),
                capture_output=True,
                check=False,
                timeout=WAIT_S,
            )
            if asked.returncode == 0:
                return broker
            assert broker.poll() is None
            time.sleep(0.2)
        raise AssertionError("the broker does not answer")


def payloads(world, data):
    """Return what a topic has, by `frazil read`."""
    lines = world.run("-d", data, "read", "events", "--from", "earliest", "--output", "json")
    return [json.loads(line)["payload"] for line in lines.splitlines()]


def test_a_directory_is_backed_up_and_restored(world):
    """Published, backed up, lost, restored: the new directory reads the same."""
    data, fresh = str(world.path / "data"), str(world.path / "fresh")
    world.run("-d", data, "publish", "events", text="one\ntwo\nthree\n")
    made = json.loads(world.run("-d", data, "-o", "json", "backup"))
    assert made["uploaded"] == {"/default/events": 3}
    assert (world.path / "store" / made["key"]).is_file()
    before = payloads(world, data)
    shutil.rmtree(data)
    said = world.run("restore", "--from", str(world.path / "store"), "--to", fresh)
    assert "restored 1 topics" in said
    assert payloads(world, fresh) == before
    assert "not empty" in world.run("restore", "--to", fresh, expect=4)


def test_a_running_broker_is_backed_up(world):
    """The command finds the directory in use and has the broker make the backup."""
    data, fresh = str(world.path / "data"), str(world.path / "fresh")
    world.run("-d", data, "publish", "events", text="one\ntwo\n")
    broker = world.serve(data)
    made = json.loads(world.run("-d", data, "-o", "json", "backup"))
    assert made["uploaded"] == {"/default/events": 2}
    os.kill(broker.pid, signal.SIGKILL)
    broker.wait(WAIT_S)
    shutil.rmtree(data)
    report = json.loads(world.run("-o", "json", "restore", "--local", "all", "--to", fresh))
    assert [(topic["name"], topic["end"]) for topic in report["topics"]] == [("/default/events", 2)]
    assert len(payloads(world, fresh)) == 2


def test_without_a_store_both_say_what_to_set(tmp_path):
    """Neither guesses: the message names the settings."""
    config = tmp_path / "frazil.yaml"
    config.write_text(
        "log: {ballast_bytes: 0, free_bytes_min: 0, free_ratio_min: 0}\n", encoding="utf-8"
    )
    world = World(tmp_path, config)
    data = str(tmp_path / "data")
    world.run("-d", data, "publish", "events", text="one\n")
    assert "objects.store" in world.run("-d", data, "backup", expect=2)
    assert "--from" in world.run("restore", "--to", str(tmp_path / "new"), expect=2)


@pytest.mark.parametrize(
    ("source", "kind", "root"),
    [
        ("s3://bucket/prefix", "s3", "s3://bucket/prefix"),
        ("gs://bucket", "gcs", "gcs://bucket"),
        ("az://container/x", "azblob", "azblob://container/x"),
        ("file:///srv/objects", "fs", "/srv/objects"),
        ("/srv/objects", "fs", "/srv/objects"),
    ],
)
def test_a_url_names_the_store(source, kind, root):
    """Each kind has its schemes; a bare path is a directory."""
    assert store_of(source) == (kind, root)


def test_an_unknown_url_is_refused():
    """A scheme that no store has is named."""
    with pytest.raises(InvalidRequest, match="unknown kind of store"):
        store_of("ftp://host/x")
