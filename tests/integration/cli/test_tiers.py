"""SQL, look-ups and tiers by real processes: formats, stdin, the shell, an engine beside them."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app

pytestmark = pytest.mark.integration

FRAZIL = [sys.executable, "-m", "frazil.cli"]
SLOW = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b"


def call(data, *words, code=0):
    """Run `frazil` on a directory in this process; return stdout as bytes and stderr as text."""
    result = CliRunner().invoke(app, ["--data", str(data), *map(str, words)])
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout_bytes, result.stderr


def run(data, *words, given=None, code=0):
    """Do the same in a process of its own."""
    process = subprocess.run(
        [*FRAZIL, "--data", str(data), *map(str, words)],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )
    err = process.stderr.decode()
    assert process.returncode == code, (process.stdout, err)
    assert "Traceback" not in err
    return process.stdout, err


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A directory with a keyed topic, half of it in files, and one with a key of two columns."""
    path = tmp_path_factory.mktemp("tiers") / "data"
    with frazil.open(path) as db:
        users = db.create_topic("users", {"id": "long", "name": "string"}, primary_key="id")
        users.append_many([{"id": n, "name": f"user {n}"} for n in range(50)])
        db.tiers.flush("users")
        users.append_many([{"id": n, "name": f"user {n}"} for n in range(50, 100)])
        users.update(7, {"name": "Ada"})
        users.delete(8)
        columns = {"shop": "string", "sku": "long", "price": "decimal(10,2)"}
        items = db.create_topic("/shop/items", columns, primary_key=("shop", "sku"))
        items.upsert(shop="a,b", sku=1, price=Decimal("9.50"))
    return path


def test_one_statement_in_each_format(data):
    """`sql -c` prints JSON, CSV, Arrow and tables of memory and files, with parameters."""
    words = ("sql", "-c", "select id, name from users where id >= $low and id < $high order by id")
    words += ("--param", "low=6", "--param", "high=9")
    rows = [{"id": 6, "name": "user 6"}, {"id": 7, "name": "Ada"}]
    assert json.loads(run(data, *words, "--format", "json")[0]) == rows
    assert call(data, *words, "-f", "csv")[0] == b"id,name\n6,user 6\n7,Ada\n"
    assert pa.ipc.open_stream(call(data, *words, "-f", "arrow")[0]).read_all().to_pylist() == rows


def test_statements_on_stdin_and_an_error(data):
    """Statements on stdin run one after another; one that fails ends it with one line."""
    given = b"select count(*) as n from users; -- a note;\nselect ';' as s;\nselect * from nope"
    out, err = run(data, "sql", "--format", "ndjson", given=given, code=3)
    assert out == b'{"n":99}\n{"s":";"}\n'
    assert err.startswith("error: ")
    assert "nope" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [("-f", "json"), ("-f", "arrow"), ("-o", "json")])
def test_one_document_takes_one_statement(data, words):
    """Two results one behind the other would be no document: nothing is run."""
    out, err = call(data, "sql", "-c", "select 1; select 2", *words, code=2)
    assert out == b""
    assert "ndjson" in err


def test_maps_intervals_and_empty_texts_are_printed_as_documented(data):
    """By `get` and `sql` alike, as JSON, CSV and text."""
    with frazil.open(data) as engine:
        topic = engine.create_topic("m", {"id": "long", "m": "map<string,int>"}, primary_key="id")
        topic.upsert(id=1, m={"x": 1})
    assert json.loads(call(data, "get", "m", "1", "-o", "json")[0]) == [{"id": 1, "m": {"x": 1}}]
    assert b'{"x": 1}' in call(data, "get", "m", "1")[0]
    words = ("sql", "-c", "select interval 1 day i, null n, '' t", "-f")
    assert call(data, *words, "csv")[0] == b'i,n,t\nP1D,,""\n'
    assert json.loads(call(data, *words, "json")[0]) == [{"i": "P1D", "n": None, "t": ""}]


def test_sql_without_duckdb_says_what_to_install(data, monkeypatch):
    """Without the extra there is one line with the command that installs it, and code 2."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    _out, err = call(data, "sql", "-c", "select 1", code=2)
    assert "pip install frazil[query]" in err
    assert len(err.splitlines()) == 1


def test_sql_looks_back_and_explains(data):
    """`--as-of-offset` shows the rows as they were; EXPLAIN tells what is read, as JSON, too."""
    words = ("sql", "-f", "csv", "-c", "select name from users where id = 7")
    assert call(data, *words)[0] == b"name\nAda\n"
    assert call(data, *words, "--as-of-offset", 100)[0] == b"name\nuser 7\n"
    words = ("sql", "-c", "explain select count(*) from users where id > 3")
    assert b"users" in call(data, *words)[0]
    assert "users" in json.dumps(json.loads(call(data, *words, "-o", "json")[0]))
    assert "EXPLAIN" in call(data, *words, "-f", "csv", code=2)[1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("-c", " ; -- nothing"), "no statement"),
        (("-c", "select 1; select 2", "-f", "arrow"), "one statement"),
        (("-c", "select 1", "--param", "x"), "name=value"),
        (("-c", "select 1", "--as-of-time", "12"), "ISO 8601"),
        (("-c", "select 1", "--timeout", "soon"), "duration"),
    ],
)
def test_wrong_calls_of_sql_are_refused(data, words, reason):
    """Each wrong option is one line that names it, and code 2."""
    _out, err = call(data, "sql", *words, code=2)
    assert reason in err
    assert len(err.splitlines()) == 1


def test_rows_are_looked_up_by_key(data):
    """`get` prints the rows of keys in files and memory; a key without a row makes the code 1."""
    out, err = run(data, "get", "users", "7", "8", "60", "-o", "json", code=1)
    assert json.loads(out) == [{"id": 7, "name": "Ada"}, None, {"id": 60, "name": "user 60"}]
    assert "no row has the key 8" in err
    assert b"9.50" in call(data, "get", "/shop/items", '"a,b",1')[0]
    assert b"9.50" in call(data, "get", "/shop/items", '["a,b", 1]')[0]
    assert "no row" in call(data, "get", "users", "-5", code=1)[1]
    call(data, "get", "users", "x", code=2)
    call(data, "get", "nope", "1", code=3)


def test_top_watches_an_engine_of_another_process(tmp_path):
    """`top --once -o json` shows a running engine from its file; rates are of two samples."""
    with frazil.open(tmp_path) as db:
        topic = db.create_topic("t")
        topic.append_many([b"x"] * 100)
        db.tiers.flush("t")
        deadline = time.monotonic() + 20
        while not (tmp_path / "run" / "stats.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        found = json.loads(run(tmp_path, "top", "--once", "-o", "json")[0])
        assert found["pid"] == os.getpid()
        assert found["rates"]["records"] is not None
        tiers = found["stats"]["tiers"]
        assert (tiers["pressure"]["zone"], tiers["disk"]["files"]) == ("green", 1)
        shown = found["stats"]["per_topic"]["/default/t"]
        assert (shown["head"], shown["tiers"]["flushed"]) == (100, 100)


def test_top_needs_a_running_engine(data):
    """Without a running engine `top` says that none runs."""
    assert "no engine runs on this directory" in call(data, "top", "--once", code=3)[1]


class Terminal:
    """A process with a terminal of its own."""

    ACCEPTED = "\x1b[?2004l"
    """What is written when a prompt is over."""

    def __init__(self, *words, **environment):
        self.side, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.process = subprocess.Popen(
            [*FRAZIL, *map(str, words)],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **environment},
        )
        os.close(other)
        self.raw = ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.side)

    def send(self, text):
        """Type a line and wait until the prompt took it."""
        os.write(self.side, text.encode() + b"\r")
        self.until(self.ACCEPTED, is_raw=True)

    def saw(self, word, *, seconds):
        """Read for a while; tell whether a word came."""
        deadline = time.monotonic() + seconds
        while word not in self.raw and (left := deadline - time.monotonic()) > 0:
            if select.select([self.side], [], [], left)[0]:
                self.raw += os.read(self.side, 65536).decode(errors="replace")
        return word in self.raw

    def until(self, *words, is_raw=False):
        """Read until all words came since the last time."""
        deadline = time.monotonic() + 40
        while True:
            text = self.raw if is_raw else re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw)
            if all(word in text for word in words):
                break
            left = deadline - time.monotonic()
            assert left > 0, self.raw
            if select.select([self.side], [], [], left)[0]:
                self.raw += os.read(self.side, 65536).decode(errors="replace")
        self.raw = self.raw.rpartition(words[0])[2] if is_raw else ""


def test_the_shell_completes_describes_and_survives_ctrl_c(data, tmp_path):
    """Topics complete, statements may have several lines, Ctrl-C ends the query, not the shell."""
    with Terminal("sql", "--data", data, XDG_STATE_HOME=str(tmp_path)) as shell:
        shell.until("frazil>")
        os.write(shell.side, b"\\d use\t")
        shell.until("rs")
        shell.send("")
        shell.until("column_type", "_offset", "name")
        shell.send("select count(*)\rfrom users;")
        shell.until("99", "1 row, ", " ms")
        shell.send(f"{SLOW};")
        # The line is taken, but on a busy machine the query may begin later than Ctrl-C comes.
        for _turn in range(20):
            time.sleep(0.5)
            shell.process.send_signal(signal.SIGINT)
            if shell.saw("cancelled", seconds=2):
                break
        shell.until("cancelled")
        shell.send("\\f json")
        shell.until("format is json")
        shell.send("select 40 + 2 as n;")
        shell.until('{"n":42}')
        shell.send("select nope;")
        shell.until("error: ")
        shell.send("\\q")
        assert shell.process.wait(30) == 0
    assert "+select 40 + 2 as n;" in (tmp_path / "frazil" / "sql_history").read_text()


def test_tiers_are_listed_flushed_and_evicted(tmp_path):
    """`tier flush` makes files, `tier ls` lists them, `tier evict` keeps every record."""
    with frazil.open(tmp_path) as db:
        db.create_topic("t").append_many([b"x" * 100] * 1000)
    assert json.loads(run(tmp_path, "tier", "flush", "-o", "json")[0]) == {"/default/t": 1000}
    (file,) = json.loads(call(tmp_path, "tier", "ls", "t", "-o", "json")[0])
    assert (file["offset_first"], file["offset_last"], file["rows"]) == (0, 999, 1000)
    (summary,) = json.loads(call(tmp_path, "tier", "ls", "-o", "json")[0])
    assert (summary["flushed"], summary["unflushed"], summary["files"]) == (1000, 0, 1)
    assert "/default/t" in call(tmp_path, "tier", "evict", "t")[0].decode()
    with frazil.open(tmp_path) as db:
        assert sum(batch.count for batch in db.topic("t").read()) == 1000
