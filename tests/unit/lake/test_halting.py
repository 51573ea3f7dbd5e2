"""The failpoint of a worker ends or freezes it at one step, once, and does nothing unasked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from frazil.lake.worker_jobs import VARIABLE

CHILD = """
import os
from frazil.fs import RealFileSystem
from frazil.lake.worker_jobs import Failpoints
os.setpgid(0, 0)
failpoints = Failpoints(os.environ, RealFileSystem())
for step in ("", "looked", "committing", "committed"):
    print(step, flush=True)
    failpoints.reached(step)
"""


def run(variables):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )


def test_a_worker_is_killed_at_its_step_once(tmp_path):
    """The file is obeyed once, at its step alone, and may come at any time."""
    orders = tmp_path / "orders"
    assert run({}).returncode == run({VARIABLE: str(orders)}).returncode == 0
    orders.write_text("missing:kill")
    assert (run({VARIABLE: str(orders)}).returncode, orders.exists()) == (0, True)
    orders.write_text("committing:kill")
    killed = run({VARIABLE: str(orders)})
    assert (killed.returncode, orders.exists()) == (-signal.SIGKILL, False)
    assert killed.stdout.split() == ["looked", "committing"]
