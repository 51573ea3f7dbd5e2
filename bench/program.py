"""Run measures one by one, each in a process of its own, print their tables, keep them as JSON.

Nothing fails because a bar does not hold; a measure that cannot be taken makes the run end with 1.
`BENCH_QUICK=1` is the same as `--quick`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

from bench import harness

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MINUTES = "BENCH_MINUTES"
"""The environment variable that hands `--minutes` on to the measures."""


def main(name: str, measures: Sequence[str], *, about: str) -> int:
    arguments = _arguments(name, measures, about)
    if arguments.minutes is not None:
        os.environ[MINUTES] = str(arguments.minutes)
    if arguments.worker:
        return _work(arguments)
    loads = [os.getloadavg()[0]]
    rows: list[harness.Row] = []
    failed: list[str] = []
    with harness.scratch(arguments.directory) as directory:
        for measure in arguments.only or measures:
            begin = time.perf_counter()
            found = _start(name, measure, directory, quick=arguments.quick)
            loads.append(os.getloadavg()[0])
            if found is None:
                failed.append(measure)
                continue
            print(f"== {measure} ({time.perf_counter() - begin:.0f} s)", flush=True)
            print(harness.table(found), end="\n\n", flush=True)
            rows += found
        facts = harness.machine(directory)
    data = harness.document(
        rows,
        machine=facts,
        commit=harness.commit(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        quick=arguments.quick,
        loads=loads,
        failed=failed,
    )
    harness.write_json(arguments.output, data)
    print(harness.table(rows))
    missed = [row.measure for row in rows if row.holds is False]
    held = sum(row.holds is True for row in rows)
    print(f"\n{held} bars hold, {len(missed)} do not; load {max(loads):.1f}; {arguments.output}")
    return 1 if failed else 0


def minutes(default: float) -> float:
    """Return how long a measure that is given a time is to run."""
    return float(os.environ.get(MINUTES, default))


def _arguments(name: str, measures: Sequence[str], about: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--only", nargs="+", choices=measures, help="run these measures only")
    parser.add_argument(
        "--quick",
        action="store_true",
        default=os.environ.get("BENCH_QUICK", "") not in {"", "0"},
        help="small sizes: does it work at all",
    )
    parser.add_argument("--minutes", type=float, help="how long measures of a steady load run")
    parser.add_argument(
        "--directory", default=os.path.join(ROOT, "data-bench"), help="where data goes"
    )
    parser.add_argument("--output", default=os.path.join(ROOT, "bench", "results", f"{name}.json"))
    parser.add_argument("--worker", choices=measures, help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(name: str, measure: str, directory: str, *, quick: bool) -> list[harness.Row] | None:
    """Run one measure in a fresh process and return its rows, None if it failed."""
    output = os.path.join(directory, f"{measure}.json")
    command = [sys.executable, os.path.join(ROOT, "bench", f"{name}.py"), "--worker", measure]
    command += ["--directory", os.path.join(directory, measure), "--output", output]
    ended = subprocess.run(command + ["--quick"] * quick, check=False)
    if ended.returncode:
        print(f"== {measure} failed", flush=True)
        return None
    with open(output, encoding="utf-8") as file:
        return harness.rows_from(json.load(file))


def _work(arguments: argparse.Namespace) -> int:
    module = importlib.import_module(f"bench.{arguments.worker}")
    with harness.scratch(arguments.directory) as directory:
        rows = module.run(harness.Bench(directory, quick=arguments.quick))
    harness.write_json(arguments.output, harness.document(rows, machine={}, commit=""))
    return 0
