"""Run the static checks and the tests of each part of Frazil; print its time beside its share."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parent.parent

SHARES_S = {"static": 40, "log": 200, "tiers": 240, "lake": 360, "broker": 240, "objects": 180}
"""Seconds on two cores; the static checks and the log have four minutes together."""
JVM_STARTS_MAX = {"lake": 12}
PARTS = {
    "objects": re.compile(
        r"object|upload|etcd|restor|backup|handoff|ownership|fenc|patient|simulated_store"
        r"|store_answers|config_import|config_secret"
    ),
    "broker": re.compile(r"serve|subscri|registry|cursor_frames|state_frames|delivery|broker"),
    "lake": re.compile(r"lake|contract/test_catalog|cli/test_verify_command"),
    "tiers": re.compile(
        r"tier|tail|query|change|fold|keyed|lookup|moment|moved|moves|nanosecond|sequencer|resent|feeds"
        r"|purposes|bulks|odd_names|full_waits|disk_upkeep|cli/test_(sql|top|get)"
        r"|engine/test_(facts|part_)"
    ),
    "log": re.compile(""),
}
"""The part of a test file is the first whose pattern its path has."""
NO_TESTS = 5
"""Pytest's exit code for a run without tests."""
LOOK_S = 0.2
SPARK = b"org.apache.spark.deploy.SparkSubmit"
"""What the JVM of a session runs."""
LAUNCHER = b"org.apache.spark.launcher.Main"
"""What the JVM runs that only puts the command line of the other together."""

MARK_NAME = "TEST_TIMES_OF"
"""The variable that the processes of this run have in their environment."""


class Ran(NamedTuple):
    """How one part went."""

    seconds: float
    code: int
    jvm_starts: int


def main() -> int:
    """Print the table; return 1 if something failed or took more than it may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(SHARES_S), metavar="part")
    parser.add_argument("--jobs", type=int, default=3)
    arguments = parser.parse_args()
    rows = {name: ran(name, arguments.jobs) for name in arguments.parts}
    print(f"\n{'part':<8} {'time':>8} {'share':>7} {'JVM starts':>11}  result")
    for name, row in rows.items():
        starts = f"{row.jvm_starts} of {JVM_STARTS_MAX.get(name, 0)}"
        print(
            f"{name:<8} {row.seconds:>7.1f}s {SHARES_S[name]:>6}s {starts:>11}  {verdict(name, row)}"
        )
    return 0 if all(verdict(name, row) == "ok" for name, row in rows.items()) else 1


def part_of(path: str) -> str:
    """Return the part that a test file belongs to, given as a path below `tests`."""
    return next(part for part, pattern in PARTS.items() if pattern.search(path))


def files_of(part: str) -> list[str]:
    """Return a part's test files."""
    found = sorted((ROOT / "tests").rglob("test_*.py"))
    names = [path.relative_to(ROOT / "tests").as_posix() for path in found]
    return [f"tests/{name}" for name in names if part_of(name) == part]


def command(part: str, jobs: int) -> list[str]:
    """Return the command line of one row: a part's tests, or what `make test` checks first."""
    if part == "static":
        return ["make", "static"]
    pytest = [sys.executable, "-m", "pytest", "-n", str(jobs), "-q"]
    return [*pytest, *files_of(part)]


def ran(part: str, jobs: int) -> Ran:
    """Run one row."""
    print(f"--- {part}", flush=True)
    with Jvms() as jvms:
        started = time.perf_counter()
        code = subprocess.run(command(part, jobs), cwd=ROOT, check=False).returncode
        seconds = time.perf_counter() - started
    return Ran(seconds, code, len(jvms.seen))


def verdict(part: str, row: Ran) -> str:
    """Say in a word how a row went."""
    if row.code != 0:
        return "NO TESTS" if row.code == NO_TESTS else f"FAILED ({row.code})"
    if row.seconds > SHARES_S[part] or row.jvm_starts > JVM_STARTS_MAX.get(part, 0):
        return "ABOVE ITS SHARE"
    return "ok"


class Jvms:
    """Counts the JVMs that start below this process while the context is open, where /proc is."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str]] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self.seen |= jvms_now()


def jvms_now() -> set[tuple[int, str]]:
    """Return pid and start time of each JVM that this process or one below it has started.

    A JVM that starts another program looks like two for a moment: a child of one is none.
    """
    found: dict[int, str] = {}
    parents: dict[int, int] = {}
    mark = f"{MARK_NAME}={os.getpid()}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if not os.path.basename(os.readlink(entry / "exe")).startswith("java"):
                continue
            line = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            facts = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if SPARK in line and LAUNCHER not in line and mark in environment:
            found[int(entry.name)] = facts[19]
            parents[int(entry.name)] = int(facts[1])
    return {(pid, started) for pid, started in found.items() if parents[pid] not in found}


if __name__ == "__main__":
    os.environ[MARK_NAME] = str(os.getpid())
    sys.exit(main())
