"""Real processes killed under load, and a separate process that checks what they left.

`FRAZIL_TEST_CRASH_KILLS` is the number of kills of each variant, 100 without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time

import pytest

from tests.crash.broker_process import Peer

KILLS = int(os.environ.get("FRAZIL_TEST_CRASH_KILLS", "100"))
EARLY_S = 0.02
LATE_S = 0.16
CHECK_SHARE = 0.35
ACK_WAIT_S = 60.0


def wait_for_ack(directory, size):
    """Wait until a publisher has written an ack down: on a busy machine it may begin late."""
    acks, deadline = directory / "acks", time.monotonic() + ACK_WAIT_S
    while time.monotonic() < deadline and not (acks.exists() and acks.stat().st_size > size):
        time.sleep(0.002)


def kill_loop(directory, *, kills, seed):
    """Kill publishers at random times; return the checker's last answer and how often it checked."""
    chosen = random.Random(seed)
    child = Peer("tests.crash.kill_child", str(directory))
    checker = Peer("tests.crash.kill_checker", str(directory))
    checks = 0
    with contextlib.closing(child), contextlib.closing(checker):
        for kill in range(kills):
            acks = directory / "acks"
            size = acks.stat().st_size if acks.exists() else 0
            pid = int(child.ask("start"))
            early = chosen.random() < 0.35
            if not early:
                # The others die while they open; these while they publish.
                wait_for_ack(directory, size)
            time.sleep(chosen.uniform(0, EARLY_S if early else LATE_S))
            os.kill(pid, signal.SIGKILL)
            code = int(child.ask(f"reap {pid}"))
            error = directory / "child-error"
            assert code == -signal.SIGKILL, error.read_text() if error.exists() else code
            if chosen.random() < CHECK_SHARE:
                checks += 1
                answer = json.loads(checker.ask("check"))
                assert "error" not in answer, f"kill {kill} seed {seed}: {answer['error']}"
        return json.loads(checker.ask("final")), checks


@pytest.mark.integration
@pytest.mark.timeout(0)
@pytest.mark.parametrize("run", range(2))
def test_no_kill_loses_an_acked_record(tmp_path, run):
    """After every SIGKILL all acked records are there, once, in order, at their offsets."""
    seed = random.randrange(1 << 32)
    print(f"run {run} seed {seed}")
    final, checks = kill_loop(tmp_path, kills=KILLS, seed=seed)
    assert "error" not in final, f"seed {seed}: {final['error']}"
    assert checks >= KILLS // 10
    assert final["acked"] > KILLS * 10
    assert final["read"] >= final["acked"]
    print(final)


@pytest.mark.integration
@pytest.mark.timeout(0)
@pytest.mark.parametrize("wrong", ["/kill/commit ghost 0 0", "/kill/table ghost 7 99999999"])
def test_the_checker_misses_what_is_not_there(tmp_path, wrong):
    """An ack whose record is another one, or nowhere, is reported as lost."""
    final, _checks = kill_loop(tmp_path, kills=6, seed=1)
    assert "error" not in final
    with (tmp_path / "acks").open("a") as acks:
        acks.write(f"{wrong}\n")
    with contextlib.closing(Peer("tests.crash.kill_checker", str(tmp_path))) as checker:
        answer = json.loads(checker.ask("final"))
    assert "ghost" in answer["error"]


@pytest.mark.integration
@pytest.mark.timeout(0)
def test_the_checker_sees_a_segment_that_went_missing(tmp_path):
    """A journal whose largest segment was taken away is not accepted."""
    for seed in range(2, 20):
        # On a busy machine the first kills may come before the first ack.
        final, _checks = kill_loop(tmp_path, kills=8, seed=seed)
        assert "error" not in final
        if final["acked"]:
            break
    segments = [path for path in (tmp_path / "data" / "journal").iterdir() if path.is_file()]
    max(segments, key=lambda path: path.stat().st_size).unlink()
    with contextlib.closing(Peer("tests.crash.kill_checker", str(tmp_path))) as checker:
        answer = json.loads(checker.ask("final"))
    assert "error" in answer
