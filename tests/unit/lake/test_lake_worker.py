"""The supervisor of the lake worker: a thread at the other end of a socket pair plays the worker."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from frazil.errors import Closed, Unavailable
from frazil.lake import worker_client
from frazil.lake.wire import Answer, receive, send
from frazil.lake.worker_client import LakeWorker, Launched


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def now_us(self):
        return int(self.now * 1e6)

    def monotonic(self):
        return self.now

    def random_bytes(self, size):
        return bytes(size)


class Process:
    """A worker that answers what its script says: by operation, a list of answers."""

    def __init__(self, script):
        self.script = script
        self.code = None
        self.signals = []
        self.asked = []
        self.pid = 4711
        self.ours, self.theirs = socket.socketpair()
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        # A process that dies in the middle of an answer has its socket taken away.
        with contextlib.suppress(Closed, OSError):
            while True:
                request = receive(self.ours)
                self.asked.append(request.op)
                for answer in self.script.get(request.op, ()):
                    send(self.ours, Answer(request.id, **answer))

    def poll(self):
        return self.code

    def terminate(self):
        self.signals.append("term")

    def kill(self):
        self.signals.append("kill")
        self.die(-9)

    def die(self, code):
        self.code = code
        self.ours.close()


class World:
    """A supervisor with its clock, and all processes that it started."""

    def __init__(self, script=None):
        self.script = {"hello": [{"state": "done", "body": {"versions": "x"}}]}
        self.script |= script or {}
        self.processes = []
        self.epochs = []
        self.clock = Clock()
        self.refusal = None
        self.woken = threading.Event()
        self.worker = LakeWorker(
            self.launch,
            hello=lambda epoch: {"epoch": epoch},
            next_epoch=lambda: len(self.epochs) + 7,
            clock=self.clock,
            wake=self.woken.set,
        )
        self.worker.wanted = True

    def launch(self, epoch):
        if self.refusal is not None:
            raise self.refusal
        self.epochs.append(epoch)
        process = Process(self.script)
        self.processes.append(process)
        return Launched(process, process.theirs)

    def until(self, condition):
        """Step until something is so; the clock stands still."""
        for _attempt in range(2000):
            self.worker.step()
            if condition():
                return
            self.woken.wait(0.005)
            self.woken.clear()
        pytest.fail(f"it never came: {self.worker.describe()}")

    def ready(self):
        self.until(lambda: self.worker.state == "ready")

    def ask(self):
        """Ask for a commit; return the list that its answers go to."""
        answers = []
        self.worker.request("commit", {}, answers.append)
        return answers

    def later(self, seconds):
        """Step once so many seconds later."""
        self.clock.now += seconds
        self.worker.step()


@pytest.fixture
def world():
    """Return a supervisor whose worker greets."""
    made = World()
    yield made
    for process in made.processes:
        # The other ends wake up before they are closed.
        for end in (process.ours, process.theirs):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def test_a_worker_is_started_greeted_and_asked(world):
    """It is ready when it has answered `hello`; a request gets all its answers, in order."""
    steps = [{"state": "progress", "body": {"step": "looked"}}, {"state": "done"}]
    world.script["commit"] = steps
    assert world.worker.state == "waiting"
    with pytest.raises(Closed):
        world.worker.request("commit", {}, lambda answer: None)
    world.ready()
    assert world.worker.describe()["versions"] == "x"
    assert (world.worker.epoch, world.worker.starts) == (7, 1)
    answers = []
    world.worker.request("commit", {"plan": 1}, answers.append)
    world.until(lambda: len(answers) == 2)
    assert [answer.state for answer in answers] == ["progress", "done"]
    assert answers[0].body == {"step": "looked"}


def test_a_worker_that_dies_is_replaced_with_a_higher_epoch(world):
    """Requests under way fail with an unknown outcome; the next worker starts after a pause."""
    world.ready()
    answers = world.ask()
    world.processes[0].die(137)
    world.until(lambda: answers)
    assert [(answer.state, answer.error) for answer in answers] == [("failed", "commit_unknown")]
    assert world.worker.state == "waiting"
    world.worker.step()
    assert len(world.processes) == 1
    world.clock.now += 0.6
    world.ready()
    assert world.epochs == [7, 8]


def test_a_worker_that_hangs_is_killed_and_replaced(world):
    """It is pinged; sixty seconds without an answer are its end, and not one second less."""
    world.ready()
    world.clock.now += 3.0
    world.until(lambda: "ping" in world.processes[0].asked)
    world.later(56.9)
    assert world.worker.state == "ready"
    world.later(0.2)
    assert world.processes[0].signals == ["kill"]
    assert "said nothing for 60 s" in world.worker.why
    world.clock.now += 0.6
    world.ready()
    assert world.epochs == [7, 8]


def test_a_worker_that_answers_pings_may_work_for_long(world):
    """A commit of many minutes is no reason to replace a worker that answers pings."""
    world.script["ping"] = [{"state": "done"}]
    world.ready()
    answers = world.ask()
    for _minute in range(20):
        world.clock.now += 3.0
        asked = world.processes[0].asked
        pings = asked.count("ping")
        world.until(lambda pings=pings, asked=asked: asked.count("ping") > pings)
        heard = threading.Event()
        heard.wait(0.02)
        world.worker.step()
    assert (world.worker.state, answers, world.epochs) == ("ready", [], [7])


def test_a_worker_that_is_never_ready_is_replaced(world, monkeypatch):
    """One that answers pings and is not ready in time is killed."""
    monkeypatch.setattr(worker_client, "START_TIMEOUT_S", 50.0)
    world.script["hello"] = [{"state": "progress", "body": {"step": "java"}}]
    world.script["ping"] = [{"state": "done"}]
    world.until(lambda: world.processes and "hello" in world.processes[0].asked)
    world.clock.now += 39.0
    world.until(lambda: "ping" in world.processes[0].asked)
    world.later(10.9)
    assert world.worker.state == "starting"
    world.later(0.2)
    assert world.processes[0].signals == ["kill"]
    assert "not ready in 50 s" in world.worker.why


def test_a_worker_that_hangs_while_it_starts_is_replaced(world):
    """It answers pings while Spark starts; a minute without one is its end, once it has answered."""
    world.script["hello"] = [{"state": "progress", "body": {"step": "java"}}]
    world.until(lambda: world.worker.step_name)
    world.clock.now += 30.0
    world.until(lambda: "ping" in world.processes[0].asked)
    assert world.worker.state == "starting"
    world.later(29.0)
    assert world.worker.state == "starting"
    world.later(1.5)
    assert world.worker.state == "waiting"


def test_a_worker_that_refuses_to_start_says_why(world):
    """`why` has the failure of `hello`, and starts come ever more slowly."""
    world.script["hello"] = [
        {"state": "failed", "error": "unavailable", "message": "there is no Java"}
    ]
    pauses = []
    for _start in range(5):
        count = len(world.processes)
        begun = world.clock.now
        while len(world.processes) == count:
            world.clock.now += 0.25
            world.worker.step()
        pauses.append(world.clock.now - begun)
        world.until(lambda: world.worker.state == "waiting")
        assert world.worker.why == "there is no Java"
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 5.0


def test_a_process_that_cannot_be_started_is_tried_again(world):
    """A failed fork is reported and tried again later."""
    world.refusal = Unavailable("no processes left")
    world.worker.step()
    assert "no processes left" in world.worker.why
    world.refusal = None
    world.clock.now += 1.0
    world.ready()
    assert world.worker.why == ""


def test_the_end_gives_a_running_commit_its_time(world):
    """SIGTERM first; the answer that comes meanwhile is taken in, then the process is gone."""
    world.ready()
    answers = world.ask()
    process = world.processes[0]

    def pause(_seconds):
        world.clock.now += 1.0
        if world.clock.now > 1010 and not answers:
            send(process.ours, Answer(3, "done"))
            send(process.ours, Answer(2, "done", {"state": "committed"}))
            time.sleep(0.05)
        elif answers and process.code is None:
            process.die(0)

    world.worker.stop(pause)
    assert process.signals == ["term"]
    assert answers[0].body == {"state": "committed"}
    assert world.worker.state == "off"


def test_a_worker_that_ends_reads_nothing_and_is_not_pinged(world):
    """It has stopped listening, as the real one does: that is no reason to kill its commit."""
    world.ready()
    answers = world.ask()
    process = world.processes[0]
    begun = world.clock.now

    def terminate():
        process.signals.append("term")
        process.ours.shutdown(socket.SHUT_RD)

    def pause(_seconds):
        world.clock.now += 1.0
        time.sleep(0.005)
        if world.clock.now - begun > 25 and process.code is None:
            send(process.ours, Answer(2, "done", {"state": "committed"}))
            time.sleep(0.05)
            process.die(0)

    process.terminate = terminate
    world.worker.stop(pause)
    assert process.signals == ["term"]
    assert [answer.body for answer in answers] == [{"state": "committed"}]


def test_a_commit_that_takes_too_long_is_abandoned_at_the_end(world):
    """After its time the process is killed, and the commit's outcome is not known."""
    world.script["ping"] = [{"state": "done"}]
    world.ready()
    answers = world.ask()
    begun = world.clock.now

    def pause(_seconds):
        world.clock.now += 0.5
        time.sleep(0.01)

    world.worker.stop(pause)
    assert world.processes[0].signals == ["term", "kill"]
    assert 60 <= world.clock.now - begun <= 62
    assert [answer.error for answer in answers] == ["commit_unknown"]


def test_a_worker_that_was_never_ready_is_ended_at_once(world):
    """A JVM that is being started has nothing to finish."""
    world.script["hello"] = []
    world.until(lambda: world.processes and "hello" in world.processes[0].asked)
    world.worker.stop(lambda _seconds: pytest.fail("it waited"))
    assert world.processes[0].signals == ["kill"]


def test_repeated_refusals_of_starts_are_logged_once(world, caplog):
    """From the second refusal on waiting calls get it; only the first is a warning."""
    refusal = {"state": "failed", "error": "unavailable", "message": "there is no Java"}
    world.script["hello"] = [refusal]
    refusals = []
    for count in range(1, 4):
        world.clock.now += 60.0
        world.until(lambda count=count: len(world.processes) == count)
        world.until(lambda: world.worker.state == "waiting")
        refusals.append(world.worker.refused)
    assert refusals == ["", "there is no Java", "there is no Java"]
    warnings = [each for each in caplog.records if each.levelname == "WARNING"]
    assert [each.message for each in warnings] == ["lake_worker_lost"]
    world.script["hello"] = [{"state": "done"}]
    world.clock.now += 60.0
    world.ready()
    assert world.worker.refused == ""


def test_the_steps_of_a_start_are_reported(world):
    """`describe` has the step of a worker that is not ready yet."""
    step = "fetching Spark's jars, 3 of 49 MB"
    world.script["hello"] = [{"state": "progress", "body": {"step": step}}]
    world.until(lambda: world.worker.step_name)
    assert world.worker.describe()["step"] == step
