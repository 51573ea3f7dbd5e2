"""Real processes: the ledger example killed and started again, pipes, signals, and bugs."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import frazil

pytestmark = pytest.mark.integration

LINES = 60_000
FRAZIL = [sys.executable, "-m", "frazil.cli"]


def start(*words, **options):
    return subprocess.Popen(
        [*FRAZIL, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def run(*words, given=None, code=0):
    process = start(*words, stdin=subprocess.PIPE)
    out, err = process.communicate(given, timeout=60)
    assert process.returncode == code, (out, err)
    assert "Traceback" not in err
    return out, err


LEDGER = [sys.executable, str(Path(__file__).parents[3] / "examples" / "ledger.py")]


def ledger(data, seconds, code=0):
    """Run the example; return how many records and changes it verified, and its errors."""
    done = subprocess.run(
        [*LEDGER, data, "--seconds", str(seconds)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    found = re.search(r"nothing lost: (\d+) records and (\d+) changes verified", done.stdout)
    return found and tuple(map(int, found.groups())), done.stderr


def test_the_ledger_example_survives_a_kill(tmp_path):
    """Killed in the middle and started again, it finds every record and change that was acked."""
    data = tmp_path / "data"
    process = subprocess.Popen([*LEDGER, data], stdout=subprocess.PIPE, text=True)
    assert "nothing lost: 0" in process.stdout.readline()
    line = process.stdout.readline()
    process.kill()
    process.communicate()
    seen = ast.literal_eval(line.partition(": ")[2])
    records, changes = ledger(data, 0)[0]
    assert records >= seen["/ledger/messages"] > 0
    assert changes >= seen["/ledger/stock"] > 0


def test_the_ledger_example_reports_a_loss(tmp_path):
    """If acked records are gone, the next run says so and ends with code 8."""
    data = tmp_path / "data"
    ledger(data, 0.5)
    with frazil.open(data) as engine:
        engine.delete_topic("/ledger/messages")
        engine.create_topic("/ledger/messages")
    _none, errors = ledger(data, 0, code=8)
    assert "/ledger/messages: acked up to" in errors


def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """`frazil read | head -1` ends quietly."""
    data = tmp_path / "data"
    with frazil.open(data) as engine:
        engine.create_topic("t").append_many([b"x" * 1000] * 5000)
    process = start("read", "t", "--data", data)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


def test_ctrl_c_ends_a_command_with_130(tmp_path):
    """A command that waits for its input ends at Ctrl-C without a traceback."""
    process = start("publish", "t", "--data", tmp_path / "data", stdin=subprocess.PIPE)
    wait_for_journal(tmp_path / "data")
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in err


def beginning_of(path):
    with path.open("rb") as file:
        return file.read(1 << 20)


def wait_for_journal(data, content=b""):
    """Wait until the beginning of a segment has some content."""
    deadline = time.monotonic() + 60
    segments = data / "journal"
    while not any(content in beginning_of(each) for each in segments.glob("*.seg")):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_publish_is_finished_by_the_next(tmp_path):
    """A publish with a producer, killed and run again, has each line exactly once."""
    data, file = tmp_path / "data", tmp_path / "x.txt"
    file.write_text("".join(f"line {n}\n" for n in range(LINES)))
    words = ("publish", "t", file, "--producer", "p", "--batch", 20, "--data", data)
    process = start(*words)
    wait_for_journal(data, b"line 100")
    process.kill()
    process.communicate()
    with frazil.open(data) as engine:
        before = engine.stats()["message_count"]
    assert 0 < before < LINES
    out, _err = run(*words[:-4], "--batch", 1000, "--data", data)
    assert f"{LINES - before} accepted" in out
    with frazil.open(data) as engine:
        payloads = [
            p for b in engine.topic("t").read() for p in b.data.column("payload").to_pylist()
        ]
    assert payloads == [b"line %d" % n for n in range(LINES)]


def test_an_unknown_error_is_one_line_and_debug_shows_more(tmp_path):
    """A bug gives one line with a hint; --debug shows the traceback."""
    broken = tmp_path / "sitecustomize.py"
    broken.write_text(
        "import frazil.cli.session as s\n"
        "def fail(self):\n    raise RuntimeError('planted')\n"
        "s.Session.settings = fail\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    for words, shown in ((["topic", "list"], False), (["topic", "list", "--debug"], True)):
        process = start(*words, env={**os.environ, "PYTHONPATH": path})
        _out, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "error: RuntimeError: planted" in err
        assert "--debug" in err
        assert ("Traceback" in err) is shown
