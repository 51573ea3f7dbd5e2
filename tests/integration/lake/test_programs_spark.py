"""Programs with an engine and real Spark are killed during a commit; the next ones go on.

`make crash` takes every step of a commit; `make test`, where each life costs the start of a JVM, two.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.lake.connection import connect
from tests.integration.lake.killing import GONE_SECONDS, Orders, wake
from tests.integration.lake.spark_engine import by_pyiceberg, check_rows, opened, verify_here
from tests.integration.lake.spark_program import MISFIT
from tests.integration.lake.spark_world import MARKS
from tests.integration.lake.test_kills_spark import EXHAUSTIVE, SLEEPS, TIMEOUT
from tests.integration.lake.test_worker import java_children
from tests.servers.running import free_port
from tests.support.processes import wait_gone

pytestmark = MARKS

PROGRAM = Path(__file__).with_name("spark_program.py")
ROOT = Path(__file__).resolve().parents[3]
COUNT = 20
STEPS_SHORT = ("committing", "committed")


class Lives:
    """Programs over one data directory, one after the other, and the records that were acked to them."""

    def __init__(self, path, orders):
        self.path = path
        self.orders = orders
        self.wanted = {}
        self.rejected = []
        self.programs = []
        self.port = free_port()

    def environment(self, **more):
        return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), **more}

    def begin(self):
        """Start a program; return it and its worker's number when it has drained what was left."""
        program = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(self.path), str(self.port), str(COUNT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(**self.orders.environment),
        )
        self.programs.append(program)
        return program, int(program.stdout.readline())

    def die_at(self, program, worker, step):
        """Let a program publish and commit, and kill it while its worker is frozen at a step."""
        self.orders.give(step, "stop")
        print(file=program.stdin, flush=True)
        first = int(program.stdout.readline())
        self.orders.wait_obeyed(worker)
        program.kill()
        assert program.wait(60) == -9
        for number in range(COUNT):
            if number == MISFIT:
                self.rejected.append(first + number)
            else:
                self.wanted[first + number] = 1000 + first + number

    def command(self, *words):
        """Run `frazil`; return its exit code and what it printed, as JSON."""
        options = ["--data", str(self.path), "--set", f"lake.catalog.port={self.port}"]
        done = subprocess.run(
            [sys.executable, "-m", "frazil.cli", *options, "--output", "json", *words],
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=300,
            check=False,
        )
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def end(self):
        for program in self.programs:
            program.kill()
            program.wait()
            for stream in (program.stdin, program.stdout):
                stream.close()


@pytest.fixture
def lives(tmp_path):
    made = Lives(tmp_path / "data", Orders(tmp_path / "orders"))
    yield made
    made.end()


@TIMEOUT
def test_programs_killed_during_a_commit_double_and_lose_nothing(world, lives):
    """Its worker goes on or sleeps until the next program has committed; `verify` exits with 0."""
    asleep = []
    for number, step in enumerate(SLEEPS if EXHAUSTIVE else STEPS_SHORT):
        program, worker = lives.begin()
        ended = [group for group in asleep if wake_and_wait(group)]
        assert ended == asleep
        group = [worker, *java_children(worker)]
        lives.die_at(program, worker, step)
        asleep = [group]
        if number % 2:
            # Whatever it had begun is cut short where it is: its engine is gone.
            assert wake_and_wait(asleep.pop())
    if EXHAUSTIVE:
        code, report = lives.command("verify", "t")
    else:
        code, report = verify_here(world, lives.path, "t", port=lives.port)
    assert (code, report["verdict"], report["problems"]) == (0, "good", [])
    assert all(wake_and_wait(group) for group in asleep)
    with opened(world, lives.path) as db:
        db.lake.flush("t")
        found = db.lake.verify("t")
        assert (found.verdict, found.problems) == ("good", ())
        assert found.compared == len(lives.wanted) + len(lives.rejected)
        catalog = connect(db.lake.catalog.address())
        check_rows(catalog, "t", lives.wanted)
        side = [row["_offset"] for row in by_pyiceberg(catalog, "t__rejects")]
        assert side == lives.rejected


def wake_and_wait(group):
    """Let a frozen worker go on; tell whether it and its JVM end, as their engine is gone."""
    wake(group[0])
    return wait_gone(group, GONE_SECONDS)
