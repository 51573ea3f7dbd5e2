"""Real processes: the guided run killed and started again, pipes, signals, and bugs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

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


def demo(data, *words, code=0):
    return run("demo", "--data", data, "--rate", 3000, *words, code=code)[0]


def await_lines(process, count):
    """Read until so many lines of the view were printed; return them."""
    lines = []
    while len(lines) < count:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        if line.startswith("records/s"):
            lines.append(line)
    return lines


def verified(text):
    found = re.search(r"nothing lost: ([\d,]+) records verified, ([\d,]+) of them acked", text)
    assert found, text
    return tuple(int(number.replace(",", "")) for number in found.groups())


def test_the_guided_run_goes_on_after_a_kill(tmp_path):
    """Killed in the middle and started again, it verifies what it had acked, and goes on."""
    data = tmp_path / "data"
    process = start("demo", "--data", data, "--rate", 3000)
    lines = await_lines(process, 2)
    process.kill()
    process.communicate()
    acked_seen = int(re.search(r" acked=([\d,]+)", lines[0])[1].replace(",", ""))
    records, acked = verified(demo(data, "--seconds", 0.5))
    assert records >= acked >= acked_seen > 0
    again, acked_again = verified(demo(data, "--seconds", 0))
    assert again == acked_again > records
    with frazil.open(data) as engine:
        assert engine.stats()["message_count"] == again


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_guided_run_stops_cleanly(tmp_path, number):
    """Ctrl-C and SIGTERM end it with code 0 and the count of what was acked; all of it is there."""
    data = tmp_path / "data"
    process = start("demo", "--data", data, "--rate", 1000)
    await_lines(process, 1)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    count = int(re.search(r"([\d,]+) records acked in", out)[1].replace(",", ""))
    assert verified(demo(data, "--seconds", 0)) == (count, count)


def test_the_guided_run_tells_a_loss(tmp_path):
    """If acked records are gone, the next start says so and ends with code 8."""
    data = tmp_path / "data"
    demo(data, "--seconds", 0.5)
    with frazil.open(data) as engine:
        engine.delete_topic("/demo/messages")
        engine.create_topic("/demo/messages")
    _out, err = run("demo", "--data", data, "--seconds", 0, code=8)
    assert "/demo/messages: acked up to" in err


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


def test_ctrl_c_ends_following_with_130(tmp_path):
    """A follower shows what is there, waits, and ends at Ctrl-C without a traceback."""
    data = tmp_path / "data"
    with frazil.open(data) as engine:
        engine.append("t", b"here")
    process = start(
        "read", "t", "--follow", "--data", data, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert "here" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[0].startswith("following this directory alone")
    assert "Traceback" not in err


def test_a_killed_publish_is_finished_by_the_next(tmp_path):
    """A publish with a producer, killed and run again, has each line exactly once."""
    data, file = tmp_path / "data", tmp_path / "x.txt"
    file.write_text("".join(f"line {n}\n" for n in range(LINES)))
    words = ("publish", "t", file, "--producer", "p", "--batch", 20, "--data", data)
    process = start(*words)
    deadline = time.monotonic() + 20
    while not list((data / "journal").glob("*.seg")) and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
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
