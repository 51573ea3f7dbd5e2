"""The lake's processes take cores only when the engine does not want them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.lake.worker_client import NICENESS

SCRIPT = """
import os
from pathlib import Path
from frazil.lake.worker_client import step_back
step_back()
group = Path("/proc/self/autogroup")
words = group.read_text().split() if group.exists() else []
print(os.nice(0), words[-1] if words else "none")
"""


def session_niceness():
    """Return the niceness of this session, "none" where the kernel does not group sessions.

    A kernel that could but was told not to has the file, and it is empty.
    """
    path = Path("/proc/self/autogroup")
    words = path.read_text().split() if path.exists() else []
    return words[-1] if words else "none"


def stepped_back(*, session):
    """Return the niceness of a process that has stepped back, and of its session."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        start_new_session=session,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    niceness, group = ended.stdout.split()
    return int(niceness), group


def expected():
    return min(19, os.nice(0) + NICENESS)


def test_a_process_steps_back_and_leaves_the_session_of_its_engine_alone():
    """A child in the engine's session gets a lower priority itself; the session keeps its own."""
    assert stepped_back(session=False) == (expected(), session_niceness())


@pytest.mark.skipif(session_niceness() == "none", reason="this kernel does not group sessions")
def test_a_session_of_its_own_steps_back_as_a_whole():
    """Where Linux shares cores between sessions, a worker's session has the lower share."""
    assert stepped_back(session=True) == (expected(), str(NICENESS))
