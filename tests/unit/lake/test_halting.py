"""The tests' hook ends or freezes a worker at one step, once, and does nothing unasked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from frazil.errors import InvalidRequest
from frazil.fs import RealFileSystem
from frazil.lake.worker_jobs import VARIABLE, Failpoints

CHILD = """
import os
from frazil.fs import RealFileSystem
from frazil.lake.worker_jobs import Failpoints
os.setpgid(0, 0)
halt = Failpoints(os.environ, RealFileSystem())
for step in ("looked", "committing", "committed"):
    print(step, flush=True)
    halt.reached(step)
"""


def run(value):
    environment = {**os.environ, VARIABLE: value, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )


def test_a_worker_is_killed_at_its_step(tmp_path):
    """Not before and not at another one; the next worker goes on."""
    once = tmp_path / "once"
    first = run(f"committing:kill:{once}")
    assert first.returncode == -signal.SIGKILL
    assert first.stdout.split() == ["looked", "committing"]
    second = run(f"committing:kill:{once}")
    assert (second.returncode, second.stdout.split()[-1]) == (0, "committed")


def test_orders_may_come_while_the_worker_runs(tmp_path):
    """The file is obeyed once, and by the worker that reaches its step alone."""
    orders = tmp_path / "orders"
    assert run(f"@{orders}").returncode == 0
    orders.write_text("missing:kill")
    assert (run(f"@{orders}").returncode, orders.exists()) == (0, True)
    orders.write_text("committing")
    killed = run(f"@{orders}")
    assert (killed.returncode, orders.exists()) == (-signal.SIGKILL, False)
    assert killed.stdout.split() == ["looked", "committing"]
    assert run(f"@{orders}").returncode == 0


def test_without_the_variable_nothing_happens():
    """No step of a worker is one at which it halts."""
    halt = Failpoints({}, RealFileSystem())
    for step in ("", "committing"):
        halt.reached(step)
    assert halt._step == ""


def test_what_cannot_be_understood_is_refused():
    """A mistyped hook would make a test pass that shows nothing."""
    with pytest.raises(InvalidRequest):
        Failpoints({VARIABLE: "committing:burn"}, RealFileSystem())
