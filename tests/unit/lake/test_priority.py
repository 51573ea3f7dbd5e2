"""The lake's processes take cores only when the engine does not want them."""

from __future__ import annotations

import os
import subprocess
import sys

from frazil.lake.worker_client import NICENESS

SCRIPT = (
    "import os; from frazil.lake.worker_client import step_back; step_back(); print(os.nice(0))"
)


def test_a_process_that_steps_back_has_a_lower_priority():
    """The worker and the catalog call it first of all."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert int(ended.stdout) == min(19, os.nice(0) + NICENESS)
