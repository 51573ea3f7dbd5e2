"""Run the static checks and the test suites one by one; print each one's time beside its share."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

SHARES_S = {
    "static": 15,
    "unit": 25,
    "contract": 12,
    "property": 35,
    "crash": 53,
    "integration": 30,
    "fuzz": 60,
    "style": 10,
}
"""Seconds on two cores; together the four minutes of `make test`."""

NO_TESTS = 5
"""Pytest's exit code for a suite without tests."""


def main() -> int:
    """Print the table; return 1 if something failed or all together took more than their sum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    rows = [(name, *timed(name, arguments.jobs)) for name in SHARES_S]
    print(f"\n{'suite':<12} {'time':>8} {'share':>8}  result")
    for name, seconds, code in rows:
        print(f"{name:<12} {seconds:>7.1f}s {SHARES_S[name]:>7}s  {verdict(name, seconds, code)}")
    total, allowed = sum(row[1] for row in rows), sum(SHARES_S.values())
    flag = "  ABOVE ITS SHARE" if total > allowed else ""
    print(f"{'total':<12} {total:>7.1f}s {allowed:>7}s{flag}")
    failed = any(code not in {0, NO_TESTS} for _, _, code in rows)
    return 1 if failed or total > allowed else 0


def command(name: str, jobs: int) -> list[str]:
    """Return the command line of one row: a folder of tests, or what `make test` checks first."""
    if name == "static":
        return ["make", "static"]
    return [sys.executable, "-m", "pytest", f"tests/{name}", "-n", str(jobs), "-q"]


def timed(name: str, jobs: int) -> tuple[float, int]:
    """Run one row; return its seconds and its exit code."""
    print(f"--- {name}", flush=True)
    started = time.perf_counter()
    code = subprocess.run(command(name, jobs), cwd=ROOT, check=False).returncode
    return time.perf_counter() - started, code


def verdict(name: str, seconds: float, code: int) -> str:
    """Say in a word how a row went."""
    if code == NO_TESTS and name != "static":
        return "no tests"
    if code != 0:
        return f"FAILED ({code})"
    return "ABOVE ITS SHARE" if seconds > SHARES_S[name] else "ok"


if __name__ == "__main__":
    sys.exit(main())
