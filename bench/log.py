"""Measure the log: `python bench/log.py [--only NAME ...] [--quick]`.

Each measure runs in a process of its own, both of its sides in that process and in turn. The table
is printed, and the rows are written as JSON; nothing fails because a bar does not hold.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MEASURES = (
    "single_producer",
    "many_producers",
    "arrow_producers",
    "many_topics",
    "frozen_hold",
    "read_back",
    "recovery_time",
    "resident_memory",
)


def main() -> int:
    sys.path[0] = ROOT
    arguments = _arguments()
    if arguments.worker:
        return _work(arguments)
    from bench import harness

    loads = [os.getloadavg()[0]]
    rows: list[harness.Row] = []
    failed: list[str] = []
    with harness.scratch(arguments.directory) as directory:
        for measure in arguments.only or MEASURES:
            begin = time.perf_counter()
            found = _start(measure, directory, quick=arguments.quick)
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the log against its bars.")
    parser.add_argument("--only", nargs="+", choices=MEASURES, help="run these measures only")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it work at all")
    parser.add_argument(
        "--directory", default=os.path.join(ROOT, "data-bench"), help="where data goes"
    )
    parser.add_argument("--output", default=os.path.join(ROOT, "bench", "results", "log.json"))
    parser.add_argument("--worker", choices=MEASURES, help=argparse.SUPPRESS)
    return parser.parse_args()


def _start(measure: str, directory: str, *, quick: bool):
    """Run one measure in a fresh process and return its rows, None if it failed."""
    from bench import harness

    output = os.path.join(directory, f"{measure}.json")
    command = [sys.executable, os.path.abspath(__file__), "--worker", measure]
    command += ["--directory", os.path.join(directory, measure), "--output", output]
    ended = subprocess.run(command + ["--quick"] * quick, check=False)
    if ended.returncode:
        print(f"== {measure} failed", flush=True)
        return None
    with open(output, encoding="utf-8") as file:
        return harness.rows_from(json.load(file))


def _work(arguments: argparse.Namespace) -> int:
    from bench import harness

    module = importlib.import_module(f"bench.{arguments.worker}")
    with harness.scratch(arguments.directory) as directory:
        rows = module.run(harness.Bench(directory, quick=arguments.quick))
    harness.write_json(arguments.output, harness.document(rows, machine={}, commit=""))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
