"""A process whose close hangs ends all the same: by its time, or by a second signal."""

from __future__ import annotations

import signal
import sys

import pytest

from tests.integration.serve.test_serve_command import SETTINGS, run

pytestmark = pytest.mark.integration


def test_a_close_that_hangs_ends_all_the_same():
    """When the time is over the process is gone, with the code of what is not available."""
    code = "import time; from frazil.serve import process; process._watch(0.2); time.sleep(600)"
    assert run(sys.executable, "-c", code).returncode == 5


HANGING = """
import os, sys, threading
from frazil.config import load_settings
from frazil.engine.engine import Engine
from frazil.serve import broker, process
from frazil.telemetry import configure

def hang(_engine):
    if later:
        os.kill(os.getpid(), later)
    threading.Event().wait()

configure(sys.stderr, log_level="warning", log_format="text")
Engine.close = hang
first, later = map(int, sys.argv[1:3])
pairs = dict(pair.split("=", 1) for pair in sys.argv[3:])
process.CLOSE_S = float(pairs.pop("serve.close_s", 3600))
broker.DRAIN_S = process.DRAIN_S = float(pairs.pop("serve.drain_s"))
process.run_broker(
    load_settings(environment={}, overrides=pairs), lambda _: os.kill(os.getpid(), first)
)
"""


def run_hanging(tmp_path, first, later=0, **settings):
    """Run a broker whose engine never closes: a signal when it is ready, another meanwhile."""
    given = {
        **SETTINGS,
        "data_dir": tmp_path / "data",
        **{f"serve.{name}": 0 for name in ("port", "admin_port", "http_port")},
        **{f"serve.{name}": value for name, value in settings.items()},
    }
    words = [f"{key}={value}" for key, value in given.items()]
    return run(sys.executable, "-c", HANGING, str(int(first)), str(int(later)), *words)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("later", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path, first, later):
    """Whichever of the two it is: nothing is waited for any more, not even what hangs."""
    done = run_hanging(tmp_path, first, later, drain_s="0.1")
    assert done.returncode == -later, done.stderr


def test_sigterm_sets_the_time_for_draining_and_closing(tmp_path):
    """With a disk that never answers the process ends after both times; the log has their sum."""
    done = run_hanging(tmp_path, signal.SIGTERM, drain_s="0.3", close_s="0.4")
    assert done.returncode == 5, done.stderr
    assert "broker_ended_late" in done.stderr
    assert "seconds=0.7" in done.stderr
