"""`frazil lake` and the lake's options of `frazil topic`; the worker runs without Spark."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app
from frazil.lake import runtime as engine_lake
from frazil.lake.connection import connect
from tests.integration.engine.lake_stand_in import StandIn

pytestmark = pytest.mark.integration

SETTINGS = ["--set", "lake.catalog.port=0", "--set", "log.ballast_bytes=0"]
COLUMNS = ["--column", "id:long"]


def call(data, *words, code=0):
    """Run `frazil` on a directory in this process; return stdout."""
    words = ["--data", str(data), *SETTINGS, *map(str, words)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, (result.output, result.exception)
    return result.output if code else result.stdout


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A directory with a topic that has a lake."""
    monkeypatch.setattr(engine_lake, "launcher", lambda *_, **__: StandIn().launch)
    path = tmp_path / "data"
    call(path, "topic", "create", "orders", *COLUMNS, "--lake")
    return path


def test_a_topic_is_flushed_paused_and_shown(data):
    """What `flush` says is committed; `pause` outlives the command, and `status` tells of it."""
    with frazil.open(data) as db:
        db.topic("orders").append_many([{"id": n} for n in range(3)])
    assert json.loads(call(data, "-o", "json", "lake", "flush")) == {"/default/orders": {"-1": 3}}
    assert "paused" in call(data, "lake", "pause", "orders")
    found = json.loads(call(data, "-o", "json", "lake", "status"))["topics"]["/default/orders"]
    assert (found["state"], found["committed"], found["lag_records"]) == ("paused", 3, 0)
    assert "paused" in call(data, "lake", "flush", "orders", code=5)
    call(data, "lake", "resume", "orders")
    shown = call(data, "lake", "status")
    assert "at rest" in shown
    assert "/default/orders" in shown
    assert "not both" in call(data, "lake", "resume", "orders", "--replay", "--accept", code=2)
    described = json.loads(call(data, "-o", "json", "topic", "describe", "orders"))
    assert described["lake"] is True
    assert described["watermarks"]["committed"] == 3


def test_waiting_records_are_reported_where_no_engine_runs(data):
    """Records that only the log has count in bytes and seconds; the last commit is remembered."""
    with frazil.open(data) as db:
        db.topic("orders").append_many([{"id": n} for n in range(3)])
    call(data, "lake", "flush")
    done = json.loads(call(data, "-o", "json", "lake", "status"))["topics"]["/default/orders"]
    assert (done["state"], done["why"], done["lag_bytes"]) == ("at rest", "", 0)
    assert done["last_commit_us"] > 0
    with frazil.open(data) as db:
        db.topic("orders").append_many([{"id": n} for n in range(5)])
    found = json.loads(call(data, "-o", "json", "lake", "status"))
    waits = found["topics"]["/default/orders"]
    assert (found["state"], waits["state"], waits["lag_records"]) == ("at rest", "at rest", 5)
    assert "frazil lake flush" in waits["why"]
    assert waits["lag_bytes"] > 0
    # An age in seconds, not in another unit: no test takes an hour.
    assert 0 <= waits["lag_seconds"] < 3600
    assert waits["last_commit_us"] == done["last_commit_us"]
    call(data, "lake", "pause")
    assert "committed=3 durable=8" in call(data, "lake", "flush", "orders", code=5)


def test_a_topic_is_deleted_with_or_without_its_table(data):
    """The table stays, and is dropped with --drop-table; a topic without one says so."""
    call(data, "topic", "create", "kept", *COLUMNS, "--lake")
    with frazil.open(data) as db:
        for name in ("orders", "kept"):
            db.topic(name).append(id=1)
    call(data, "lake", "flush")
    call(data, "topic", "delete", "kept", "--yes")
    call(data, "topic", "delete", "orders", "--yes", "--drop-table")
    call(data, "topic", "create", "dry", *COLUMNS, "--no-lake")
    assert "no table" in call(data, "topic", "delete", "dry", "--yes", "--drop-table", code=2)
    with frazil.open(data, **{"lake.catalog.port": 0}) as db:
        catalog = connect(db.lake.catalog.address())
        found = {name for _namespace, name in catalog.list_tables("default")}
    assert found == {"kept", "kept__rejects"}


def test_a_lake_is_taken_away_with_a_confirmation_only(data):
    """Without a terminal --yes is the confirmation."""
    assert "give --yes" in call(data, "topic", "alter", "orders", "--no-lake", code=2)
    call(data, "topic", "alter", "orders", "--no-lake", "--yes")
    assert "no topic has a lake" in call(data, "lake", "status")
    assert "has no lake" in call(data, "lake", "flush", "orders", code=2)
    call(data, "topic", "delete", "orders", "--yes")


def test_status_is_reported_while_an_engine_runs(data):
    """It reads what the engine writes about itself; what changes something names the process."""
    program = (
        "import sys, frazil\n"
        "with frazil.open(sys.argv[1]) as db:\n"
        "    db.lake.pause()\n"
        "    db.topic('orders').append(id=1)\n"
        "    db.tiers.write_stats()\n"
        "    print('ready', flush=True)\n"
        "    sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout.readline() == "ready\n"
        shown = call(data, "lake", "status")
        assert f"engine of pid {child.pid}" in shown
        assert "paused" in shown
        assert f"pid={child.pid}" in call(data, "lake", "flush", code=4)
        child.communicate("\n")
    assert child.returncode == 0
