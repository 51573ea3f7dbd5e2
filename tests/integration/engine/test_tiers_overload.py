"""More load than flushes can take: publishers are held back, memory stays bounded, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60


@pytest.mark.long
@pytest.mark.integration
def test_overload_is_survived_within_the_budget(tmp_path):
    """Every zone is entered and left, no acked record is missing, and green comes back.

    It does when at most as much was flushed as the budget holds, however long that takes.
    """
    script = ROOT / "bench" / "overload.py"
    command = [sys.executable, script, "--seconds", str(SECONDS), "--directory", tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.stdout, done.stderr
    facts = json.loads(done.stdout)
    assert facts["problems"] == []
    assert facts["found_records"] == facts["acked_records"] > 0
    assert facts["rss_max_mb"] < facts["rss_bar_mb"]
    assert facts["zones"][0] == facts["zones"][-1] == "green"
    assert {"yellow", "red"} < {*facts["zones"]}
    assert facts["green_mb"] <= facts["budget_mb"]
    assert facts["refused"] > 0
