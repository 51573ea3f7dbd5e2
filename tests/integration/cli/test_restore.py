"""`frazil backup` and `frazil restore`, beside a broker and without one."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.cli.restore import store_of
from frazil.errors import InvalidRequest
from frazil.objects import KeyParts, object_key

pytestmark = pytest.mark.integration

WAIT_S = 90
SETTINGS = (
    "log: {ballast_bytes: 0, free_bytes_min: 0, free_ratio_min: 0}\n"
    "serve: {port: 0, admin_port: 0, http_port: 0}\nlake: {default: false}\n"
)


class World:
    """Directories and commands of one test."""

    def __init__(self, path, settings):
        self.path = path
        self.data, self.fresh = str(path / "data"), str(path / "fresh")
        self.config = path / "frazil.yaml"
        self.config.write_text(settings, encoding="utf-8")

    def run(self, *words, text=None, code=0):
        """Run a command and return what it said on stdout, or on stderr if it is to fail."""
        done = CliRunner().invoke(app, ["--config", str(self.config), *words], input=text)
        assert done.exit_code == code, (done.output, done.exception)
        return done.stderr if code else done.stdout

    def payloads(self, data):
        """Return what the topic has, by `frazil read`."""
        said = self.run("-d", data, "read", "events", "--from", "earliest", "--output", "json")
        return [json.loads(line)["payload"] for line in said.splitlines()]


@pytest.fixture
def world(tmp_path):
    """Return commands with a store in a directory."""
    (tmp_path / "store").mkdir()
    objects = f"objects: {{store: fs, root: {tmp_path / 'store'}, interval_s: 1h}}\n"
    return World(tmp_path, objects + SETTINGS)


def test_a_directory_is_backed_up_and_restored(world):
    """Published, backed up, lost, restored: the new directory reads the same."""
    world.run("-d", world.data, "publish", "events", text="one\ntwo\nthree\n")
    made = json.loads(world.run("-d", world.data, "-o", "json", "backup"))
    assert made["uploaded"] == {"/default/events": 3}
    assert (world.path / "store" / made["key"]).is_file()
    before = world.payloads(world.data)
    shutil.rmtree(world.data)
    said = world.run("restore", "--from", str(world.path / "store"), "--to", world.fresh)
    assert "restored 1 topics" in said
    assert world.payloads(world.fresh) == before
    assert "not empty" in world.run("restore", "--to", world.fresh, code=4)


@pytest.fixture
def broker(world):
    """Run a broker on the directory, as a process."""
    world.run("-d", world.data, "publish", "events", text="one\ntwo\n")
    command = [sys.executable, "-m", "frazil.cli", "--config", str(world.config), "-d", world.data]
    process = subprocess.Popen(
        [*command, "serve"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not (world.path / "data" / "run" / "broker.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


def test_a_running_broker_is_backed_up(world, broker):
    """The command finds the directory in use and has the broker make the backup."""
    made = json.loads(world.run("-d", world.data, "-o", "json", "backup"))
    assert made["uploaded"] == {"/default/events": 2}
    os.kill(broker.pid, signal.SIGKILL)
    broker.wait(WAIT_S)
    shutil.rmtree(world.data)
    words = ("-o", "json", "restore", "--local", "all", "--to", world.fresh)
    report = json.loads(world.run(*words))
    assert [(topic["name"], topic["end"]) for topic in report["topics"]] == [("/default/events", 2)]
    assert len(world.payloads(world.fresh)) == 2


def test_objects_of_a_running_broker_are_listed_and_collected(world, broker):
    """Nobody has to stop a broker to see its objects and to collect what nothing registered."""
    made = json.loads(world.run("-d", world.data, "-o", "json", "backup"))
    keys = [path.relative_to(world.path / "store") for path in world.path.glob("store/**/*.frz")]
    (found,) = json.loads(world.run("-d", world.data, "-o", "json", "objects", "ls", "events"))
    assert [found["key"]] == [str(key) for key in keys]
    stray = object_key(KeyParts(bytes.fromhex(made["key"][:32]), 1, "abc", 0, 1, "00000000"))
    path = world.path / "store" / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    old = time.time() - 30 * 86_400
    os.utime(path, (old, old))
    for words, left in (((), True), (("--yes",), True), (("--yes",), False)):
        found = json.loads(world.run("-d", world.data, "-o", "json", "objects", "collect", *words))
        assert [each["key"] for each in found["condemned"] + found["deleted"]] == [stray]
        assert path.exists() is left
    assert broker.poll() is None


def test_without_a_store_both_say_what_to_set(tmp_path):
    """Neither guesses: the message names the settings."""
    world = World(tmp_path, SETTINGS)
    world.run("-d", world.data, "publish", "events", text="one\n")
    assert "objects.store" in world.run("-d", world.data, "backup", code=2)
    assert "--from" in world.run("restore", "--to", world.fresh, code=2)


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
