"""Run the test suites one by one; print each one's time beside its share of `make test`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHARES_S = {
    "unit": 30,
    "contract": 20,
    "property": 60,
    "crash": 80,
    "integration": 35,
    "style": 15,
}
"""Seconds on two cores; together the four minutes of this part of the product."""

NO_TESTS = 5
"""Pytest's exit code for a suite without tests."""


def main() -> int:
    """Print the table; return 1 if a suite failed or all of them took more than their sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    rows = [(suite, *timed(suite, arguments.jobs)) for suite in SHARES_S]
    print(f"\n{'suite':<12} {'time':>8} {'share':>8}  result")
    for suite, seconds, code in rows:
        print(
            f"{suite:<12} {seconds:>7.1f}s {SHARES_S[suite]:>7}s  {verdict(suite, seconds, code)}"
        )
    total, allowed = sum(row[1] for row in rows), sum(SHARES_S.values())
    flag = "  ABOVE ITS SHARE" if total > allowed else ""
    print(f"{'total':<12} {total:>7.1f}s {allowed:>7}s{flag}")
    failed = any(code not in {0, NO_TESTS} for _, _, code in rows)
    return 1 if failed or total > allowed else 0


def timed(suite: str, jobs: int) -> tuple[float, int]:
    """Run one suite; return its seconds and pytest's exit code."""
    print(f"--- {suite}", flush=True)
    command = [sys.executable, "-m", "pytest", f"tests/{suite}", "-n", str(jobs), "-q"]
    started = time.perf_counter()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return time.perf_counter() - started, code


def verdict(suite: str, seconds: float, code: int) -> str:
    """Say in a word how a suite went."""
    if code == NO_TESTS:
        return "no tests"
    if code != 0:
        return f"FAILED ({code})"
    return "ABOVE ITS SHARE" if seconds > SHARES_S[suite] else "ok"


if __name__ == "__main__":
    sys.exit(main())
