"""`frazil catalog serve`: the tables of a directory without an engine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from typer.testing import CliRunner

from frazil.cli.catalog import app
from frazil.cli.session import Session
from frazil.errors import Conflict, NotFound

ROWS = pa.table({"a": pa.array(range(10), pa.int64())})
COMMAND = """
from frazil.cli.catalog import app
from frazil.cli.session import Session
app(obj=Session(output="json"))
"""


def served(*arguments):
    """Run the command in this process and return what it raised."""
    return CliRunner().invoke(app, ["serve", *arguments], obj=Session()).exception


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    """It tells its address, serves tables, refuses a second one, and ends cleanly by Ctrl-C."""
    server = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "serve", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        text = server.stdout.readline()
        while not text.rstrip().endswith("}"):
            text += server.stdout.readline()
        address = json.loads(text)
        client = RestCatalog("x", uri=address["uri"], token=address["token"])
        client.create_namespace("db")
        client.create_table("db.t", schema=ROWS.schema).append(ROWS)
        assert len(client.load_table("db.t").scan().to_arrow()) == 10
        assert isinstance(served(str(tmp_path)), Conflict)
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) == 0
        server.stdout.close()
    assert (tmp_path / "catalog.db").exists()
    assert not (tmp_path / "run" / "catalog.json").exists()


def test_a_directory_that_is_missing_is_said(tmp_path):
    """Serving makes no data directory."""
    raised = served(str(tmp_path / "nowhere"))
    assert isinstance(raised, NotFound)
    assert not (tmp_path / "nowhere").exists()
