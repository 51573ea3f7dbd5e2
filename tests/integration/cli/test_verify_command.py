"""`frazil verify` with real Spark: what it prints and its exit codes; one JVM."""

from __future__ import annotations

import contextlib
import json

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app
from frazil.cli.session import Session
from frazil.lake.connection import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SETTINGS = {
    "lake.catalog.port": 0,
    "lake.writer.flush_interval": "1h",
    "lake.ack_timeout_s": "300s",
    "lake.spark.conf": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
}


def run(*words, code):
    """Run `frazil` in this process; return all that it printed."""
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_the_exit_code_tells_good_deleted_and_damaged(tmp_path, monkeypatch):
    """0, then 2 when others deleted a row, then 8 when one is doubled; the certificate says where."""
    with frazil.open(tmp_path, **SETTINGS) as db:
        # Each command would start a catalog and a JVM of its own.
        monkeypatch.setattr(Session, "engine", lambda _self: contextlib.nullcontext(db))
        topic = db.create_topic("proved", {"id": "long", "text": "string"}, lake=True)
        topic.append_many([{"id": n, "text": "x"} for n in range(20)], ack="committed")
        shown = run("verify", "proved", code=0)
        assert "verdict    good" in shown
        assert "compared   20 rows with the disk tier" in shown
        table = connect(db.lake.catalog.address()).load_table(("default", "proved"))
        first = table.scan("_offset == 3").to_arrow()
        table.delete("_offset == 7")
        found = json.loads(run("-o", "json", "verify", "proved", code=2))
        assert (found["verdict"], found["deleted_places"]) == ("rows deleted by others", ["7"])
        assert found["versions"]["frazil"] == frazil.__version__
        table.append(first)
        db.lake.pause()
        shown = run("verify", "proved", code=8)
        assert "PROBLEM    doubled: 1 offsets that are there more than once: 3" in shown
        assert "nowhere" in run("verify", "nowhere", code=3)
