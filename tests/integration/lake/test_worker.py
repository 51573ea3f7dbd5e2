"""The worker as a process: it serves, answers while it works, and ends with its engine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from frazil.config import load_settings
from frazil.lake import Answer, CommitResult, Request, receive, send
from frazil.lake.worker_jobs import hello_body
from tests.integration.lake.spark_world import MARKS, QUICK
from tests.servers.running import free_port
from tests.support.processes import is_alive, wait_gone

pytestmark = MARKS

GONE_SECONDS = 60.0
"""Processes that were left behind would be there for ever; it takes a second or two."""


# The first commit of a JVM takes long where others want the machine as well.
PROGRAM = "from frazil.lake import worker; worker.STOP_SECONDS = 240.0; worker.main()"


class Engine:
    """The engine's side of a worker's socket."""

    def __init__(self, world, directory, *, environment=None):
        self.world = world
        self.directory = directory
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(300)
        with theirs:
            number = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, "--socket", str(number), "--epoch", "3"],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
            )
        self.ids = iter(range(1, 1000))
        self.heard = []

    def ask(self, op, body=None):
        number = next(self.ids)
        send(self.connection, Request(number, op, body or {}))
        return number

    def hear(self, number):
        """Return the final answer to a request; what comes in between is kept."""
        for answer in self.heard:
            if answer.id == number and answer.state != "progress":
                return answer
        while True:
            answer = receive(self.connection)
            assert isinstance(answer, Answer)
            self.heard.append(answer)
            if answer.id == number and answer.state != "progress":
                return answer

    def hello(self):
        settings = load_settings(
            environment={},
            overrides={
                "data_dir": str(self.directory),
                "lake.spark.conf": QUICK,
            },
        )
        return self.ask("hello", hello_body(settings, self.world.address))

    def steps(self, number):
        steps = [each for each in self.heard if each.id == number and each.state == "progress"]
        return [each.body["step"] for each in steps]

    def end(self):
        self.connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def engine(world, tmp_path_factory):
    made = []

    def make(**options):
        made.append(Engine(world, tmp_path_factory.mktemp("w"), **options))
        return made[-1]

    yield make
    for each in made:
        each.end()


def java_children(pid):
    """Return the Java processes in a worker's group."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != pid:
            try:
                if os.getpgid(int(name)) == pid:
                    found.append(int(name))
            except ProcessLookupError:
                continue
    return found


def test_a_worker_serves_and_ends_with_its_engine(world, engine):
    """It commits, answers pings meanwhile, refuses what it does not know, and leaves no process."""
    made = engine()
    hello = made.hello()
    ping = made.ask("ping")
    assert made.hear(ping).body["ready"] is False
    early = made.ask("commit", {})
    assert made.hear(early).error == "unavailable"
    greeted = made.hear(hello)
    assert greeted.state == "done", greeted
    assert made.steps(hello) == ["starting"]
    assert greeted.body["versions"]["spark"].startswith("4.")
    topic = world.topic({"id": "long"})
    plan = topic.plan(topic.stage([{"id": number} for number in range(100)]))
    number = made.ask("commit", topic.request(plan).body())
    meanwhile = made.ask("ping")
    assert made.hear(meanwhile).body["jobs"] == [number]
    assert not any(each.id == number and each.state == "done" for each in made.heard)
    result = CommitResult.of(made.hear(number).body)
    assert (result.state, result.rows_out, result.ends) == ("committed", 100, {-1: 100})
    assert (result.files, result.bytes > 0) == (1, True)
    assert made.steps(number) == ["looked", "staged", "committing", "committed"]
    again = CommitResult.of(made.hear(made.ask("commit", topic.request(plan).body())).body)
    assert again.state == "already"
    kept = made.hear(made.ask("maintain", {"table": list(topic.table)}))
    assert (kept.state, kept.body["expired"]) == ("done", 0)
    for op, body in (("burn", {}), ("commit", {"plan": 1})):
        refused = made.hear(made.ask(op, body))
        assert (refused.state, refused.error) == ("failed", "invalid")
    missing = topic.request(plan)
    gone = topic.world.topic({"id": "long"})
    gone.foreign("DROP TABLE {table}")
    answer = made.hear(made.ask("commit", missing.body() | {"plan": plan_for(plan, gone)}))
    assert answer.body["state"] == "stopped"
    pids = [made.process.pid, greeted.body["java_pid"]]
    assert all(is_alive(pid) for pid in pids)
    made.connection.close()
    made.process.wait(60)
    assert wait_gone(pids, GONE_SECONDS)
    assert topic.offsets() == list(range(100))
    log = (made.directory / "logs" / "lake.log").read_text()
    assert "lake_worker_ready" in log
    assert "lake_engine_gone" in log


def plan_for(plan, topic):
    """Return a plan's JSON for another topic's table."""
    body = topic.request(plan).body()["plan"]
    return body | {"table": list(topic.table), "topic_id": topic.uid}


def test_a_worker_that_is_asked_to_end_finishes_its_commit(world, engine):
    """SIGTERM lets the running commit come to its end and be answered; nothing new is begun."""
    made = engine()
    greeted = made.hear(made.hello())
    assert greeted.state == "done", greeted
    topic = world.topic({"id": "long"})
    plan = topic.plan(topic.stage([{"id": number} for number in range(50)]))
    number = made.ask("commit", topic.request(plan).body())
    assert made.hear(made.ask("ping")).body["jobs"] == [number]
    made.process.send_signal(signal.SIGTERM)
    assert CommitResult.of(made.hear(number).body).state == "committed"
    assert made.process.wait(60) == 0
    assert wait_gone([greeted.body["java_pid"]], GONE_SECONDS)
    assert topic.offsets() == list(range(50))
    assert not list((made.directory / "run").glob("spark-*"))


def test_a_worker_that_is_starting_ends_with_its_engine(engine):
    """The JVM that is just coming up goes too."""
    made = engine()
    hello = made.hello()
    while not java_children(made.process.pid):
        assert made.process.poll() is None
        time.sleep(0.05)
    assert not any(each.id == hello and each.state == "done" for each in made.heard)
    pids = [made.process.pid, *java_children(made.process.pid)]
    made.connection.close()
    made.process.wait(60)
    assert wait_gone(pids, GONE_SECONDS)


def test_a_worker_that_cannot_start_says_why(world, engine):
    """A wrong catalog is one sentence with the setting; the worker can be asked nothing."""
    made = engine()
    body = hello_body(
        load_settings(environment={}, overrides={"data_dir": str(made.directory)}), world.address
    )
    body["catalog"]["uri"] = f"http://127.0.0.1:{free_port()}"
    answer = made.hear(made.ask("hello", body))
    assert (answer.state, answer.error) == ("failed", "unavailable")
    assert "catalog cannot be reached" in answer.message
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(60) == 0
