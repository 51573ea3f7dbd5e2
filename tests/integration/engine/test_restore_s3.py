"""A broker is killed and its disk wiped; a new one serves all it acked, from a real S3 server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.integration.engine.opening import rows_of
from tests.integration.engine.restore_scene import SMALL, Scene
from tests.servers.seaweed import SeaweedServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ACKS = 30
WAIT_S = 120


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run an S3 server."""
    with SeaweedServer(tmp_path_factory.mktemp("seaweed")) as found:
        yield found


def publish_until_killed(settings):
    """Run the child until it has said so many acks, kill it, and return them."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.engine.restore_child", json.dumps(settings)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    timer = threading.Timer(WAIT_S, child.kill)
    timer.start()
    try:
        acked = [line.split() for _, line in zip(range(ACKS), child.stdout, strict=False)]
        os.kill(child.pid, signal.SIGKILL)
        # What it could still say was acked as well.
        acked += [line.split() for line in child.stdout if line.count(" ") == 2]
    finally:
        timer.cancel()
        child.kill()
        child.stdout.close()
        child.wait(WAIT_S)
    return [(name, int(offset), text) for name, offset, text in acked]


@pytest.mark.parametrize("local_all", [False, True])
def test_a_killed_and_wiped_broker_loses_no_uploaded_record(tmp_path, server, local_all):
    """Each acked record is served at its offset, and the producers' repeats are recognised."""
    home = tmp_path / "home"
    home.mkdir()
    overrides = {**SMALL, **server.settings()}
    overrides["objects.root"] += f"/{local_all}"
    acked = publish_until_killed({**overrides, "data_dir": str(home / "machine-0")})
    assert len(acked) >= ACKS
    shutil.rmtree(home / "machine-0")
    with contextlib.closing(Scene(home, opened=False, **overrides)) as scene:
        report = scene.restore(local_all=local_all)
        assert report["backup"]
        scene.open()
        for name in ("a", "b", "c"):
            topic = scene.engine.topic(name)
            found = {row["_offset"]: row["payload"].decode() for row in rows_of(topic)}
            wanted = {offset: text for each, offset, text in acked if each == name}
            assert {offset: found.get(offset) for offset in wanted} == wanted
            last = max(wanted)
            number = int(wanted[last].partition("-")[2])
            repeat = topic.append(
                payload=wanted[last].encode(), producer="child", sequence=number, ack="uploaded"
            )
            assert repeat.offset == last
            assert list(found.values()) == [f"{name}-{n}" for n in range(len(found))]
