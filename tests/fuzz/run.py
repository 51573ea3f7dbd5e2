"""Fuzz the decoders: `python -m tests.fuzz.run --seconds N [--target NAME]`.

Each target runs in a child process, two at a time: under atheris where it is installed, else under
the plain mutator. The exit code is not zero if any target raised something that is not ours.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).resolve().parent / "corpus"
ENGINE_NAMES = ("frames", "state", "payloads", "texts", "directory", "objects")
TRANSPORT_NAMES = ("h2", "headers", "grpc")
REQUEST_NAMES = ("danube", "clients")
SERVE_NAMES = (*TRANSPORT_NAMES, *REQUEST_NAMES)
NAMES = (*ENGINE_NAMES, *SERVE_NAMES)
RSS_MIB_MAX = 256
INPUT_SECONDS_MAX = 5
GRACE_S = 300


class Outcome(NamedTuple):
    """How one target's run ended."""

    target: str
    engine: str
    executions: int
    code: int
    output: str


def has_atheris():
    """Tell whether atheris can be imported on this Python."""
    return importlib.util.find_spec("atheris") is not None


def corpus(name):
    """Return the committed inputs of a target."""
    path = CORPUS / f"{name}.hex"
    lines = path.read_text(encoding="ascii").split() if path.exists() else []
    return [bytes.fromhex(line) for line in lines]


def target_of(name):
    """Return the function of a target; only what it needs is imported."""
    if name in TRANSPORT_NAMES:
        from tests.fuzz.transport_targets import TRANSPORT_TARGETS

        return TRANSPORT_TARGETS[name]
    if name in REQUEST_NAMES:
        from tests.fuzz.request_targets import REQUEST_TARGETS

        return REQUEST_TARGETS[name]
    from tests.fuzz.targets import TARGETS

    return TARGETS[name]


def run_target(name, *, seconds, engine, seed):
    """Run one target in a child process."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", engine, "--target", name]
    command += ["--seconds", str(seconds), "--seed", str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=seconds * 2 + GRACE_S,
        check=False,
    )
    counts = re.findall(r"Done (\d+) (?:runs|in)", done.stdout)
    executions = int(counts[-1]) if counts else 0
    code = done.returncode or (0 if executions else 1)
    return Outcome(name, engine, executions, code, done.stdout)


def run_all(names, *, seconds, engine, seed, jobs=2):
    """Run targets, some at a time; print a line for each; return their outcomes."""
    outcomes = []
    lock = threading.Lock()

    def one(name):
        outcome = run_target(name, seconds=seconds, engine=engine, seed=seed)
        with lock:
            outcomes.append(outcome)
            verdict = "ok" if outcome.code == 0 else f"FAILED (exit code {outcome.code})"
            print(f"{name:10} {engine:8} {outcome.executions:>10,} executions  {verdict}")
            if outcome.code:
                print(outcome.output[-6000:])

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, names))
    return outcomes


def child_plain(name, *, seconds, seed):
    """Fuzz in this process with the plain mutator."""
    from tests.fuzz import mutate

    target = target_of(name)
    seeds = corpus(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    count = mutate.fuzz(target, seeds, seconds=seconds, seed=seed)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(f"Done {count} runs, memory grew by {grown} MiB")
    return 1 if grown > RSS_MIB_MAX else 0


def child_atheris(name, *, seconds, seed):
    """Fuzz in this process with atheris; does not return."""
    import atheris

    with atheris.instrument_imports(include=["frazil", "hpack"]):
        target = target_of(name)
    found = tempfile.mkdtemp(prefix="frazil-fuzz-")
    for number, data in enumerate(corpus(name)):
        Path(found, f"seed-{number}").write_bytes(data)
    # The limit is on what fuzzing adds: Arrow and its like are there before it starts.
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    options = [
        sys.argv[0],
        f"-max_total_time={seconds}",
        f"-rss_limit_mb={held + RSS_MIB_MAX}",
        f"-timeout={INPUT_SECONDS_MAX}",
        f"-seed={seed % (1 << 31)}",
        f"-artifact_prefix={found}/crash-",
        "-max_len=4096",
        "-print_final_stats=1",
        found,
    ]
    atheris.Setup(options, target)
    atheris.Fuzz()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--target", choices=NAMES, action="append")
    parser.add_argument("--engine", choices=("atheris", "plain"))
    parser.add_argument("--seed", type=int, default=time.time_ns() % (1 << 31))
    parser.add_argument("--child", choices=("atheris", "plain"))
    arguments = parser.parse_args()
    if arguments.child == "plain":
        return child_plain(arguments.target[0], seconds=arguments.seconds, seed=arguments.seed)
    if arguments.child == "atheris":
        return child_atheris(arguments.target[0], seconds=arguments.seconds, seed=arguments.seed)
    engine = arguments.engine or ("atheris" if has_atheris() else "plain")
    print(f"seed {arguments.seed}")
    if engine == "plain" and not arguments.engine:
        print("atheris is not installed for this Python: the plain mutator runs instead")
    names = arguments.target or NAMES
    outcomes = run_all(names, seconds=arguments.seconds, engine=engine, seed=arguments.seed)
    return 1 if any(outcome.code for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
