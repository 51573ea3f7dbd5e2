"""Workers with their JVM sleep over others' commits and are killed at each step of their own.

`make crash` takes every step; `make test`, where each kill costs the start of a JVM, some.
"""

from __future__ import annotations

import os
import signal
import time

import pyarrow as pa
import pytest

from frazil.lake import STEPS, CommitResult, PartFacts, StagedRows, VerifyRequest
from frazil.lake.verify_job import examine
from tests.integration.lake.catalog_proxy import CatalogProxy
from tests.integration.lake.killing import Orders, Workers, wake
from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
TIMEOUT = pytest.mark.timeout(7200 if EXHAUSTIVE else 600)
BEYOND_MS = 1 << 60
"""A time that the table cannot hold: its record is rejected."""
ROWS = 10
MISFIT = 4
SNAPSHOTS_TO_REFRESH = 100
"""So many commits of others make ours set the property."""
SNAPSHOTS_TO_EXPIRE = 30
SNAPSHOTS_MAX = 25

SLEEPS = (
    "looked",
    "staged",
    "rejects_looked",
    "rejects_committing",
    "rejects_committed",
    "committing",
    "committed",
)
REQUESTS = {
    "rejects_sent": ("{table}__rejects", "hold_request", "add-snapshot"),
    "rejects_landed": ("{table}__rejects", "hold_reply", "add-snapshot"),
    "sent": ("{table}", "hold_request", "add-snapshot"),
    "landed": ("{table}", "hold_reply", "add-snapshot"),
    "expiry_sent": ("{table}", "hold_request", "remove-snapshots"),
    "expiry_landed": ("{table}", "hold_reply", "remove-snapshots"),
}
"""Steps inside of a call, where the catalog's proxy holds the request or the answer."""
SLEEPS_SHORT = ("staged", "rejects_committed", "committing")
KILLS_SHORT = ("rejects_committed", "landed")
KILLS_ALL = (
    *SLEEPS[:4],
    "rejects_sent",
    "rejects_landed",
    *SLEEPS[4:6],
    "sent",
    "landed",
    "committed",
    "property_setting",
    "property_set",
    "maintain:property_setting",
    "maintain:property_set",
    "maintain:expiry_sent",
    "maintain:expiry_landed",
    "maintain:expired",
)


class Story:
    """A topic, everything that was staged for it, and what its tables must have in the end."""

    def __init__(self, world):
        self.world = world
        self.topic = world.topic({"id": "long", "at": "timestamp[ms, UTC]"})
        self.plans = []
        self.wanted = {}
        self.rejected = []

    def next_plan(self):
        """Stage rows of which one cannot be converted, behind those before."""
        first = self.plans[-1].parts[0].hi if self.plans else 0
        times = [BEYOND_MS if number == MISFIT else number for number in range(ROWS)]
        rows = pa.table(
            {
                "id": pa.array([1000 + first + number for number in range(ROWS)], pa.int64()),
                "at": pa.array(times, pa.int64()).view(pa.timestamp("ms", "UTC")),
            }
        )
        self.plans.append(self.topic.plan(self.topic.stage(rows, first=first), lo=first))
        for number in range(ROWS):
            if number == MISFIT:
                self.rejected.append(first + number)
            else:
                self.wanted[first + number] = 1000 + first + number
        return self.plans[-1]

    def request(self, plan):
        """Return the request of an engine whose log has more than the plan."""
        return self.topic.request(plan, durable={-1: plan.parts[0].hi + 10 * ROWS})

    def commit_here(self, plan):
        """Commit by the worker that the tests' own session is."""
        result = self.topic.commit(plan)
        assert result.state in {"committed", "already"}, result
        return result

    def others_commit(self, count):
        """Let others make snapshots without rows, which push our marks back."""
        table = self.world.catalog.load_table(tuple(self.topic.table))
        nothing = table.schema().as_arrow().empty_table()
        for _number in range(count):
            table.append(nothing)

    def own_commits(self):
        """Return the watermarks of our commits in main, in their order."""
        key = "frazil.offset-end"
        summaries = [each.summary.additional_properties for each in self.topic.snapshots()]
        return [int(each[key]) for each in summaries if key in each]

    def check_quickly(self):
        found = self.topic.by_pyiceberg("_offset", "id").to_pylist()
        assert [(row["_offset"], row["id"]) for row in found] == list(self.wanted.items())

    def check(self):
        """Assert that each record is there once, by four readers."""
        for reader in ("by_spark", "by_pyiceberg", "by_duckdb"):
            found = getattr(self.topic, reader)("_offset", "id").to_pylist()
            assert [(row["_offset"], row["id"]) for row in found] == list(self.wanted.items())
        assert [row["_offset"] for row in self.topic.rejects()] == self.rejected
        found = self.verify()
        assert (found.verdict, found.problems) == ("good", ())
        assert found.compared == len(self.wanted) + len(self.rejected)

    def verify(self):
        """Return the result, with everything compared that was staged."""
        names = {name: name for name in self.topic.schema.names}
        request = VerifyRequest(
            topic=self.topic.name,
            topic_id=self.topic.uid,
            table=self.topic.table,
            parts=(PartFacts(-1),),
            staged=tuple(StagedRows(plan, names) for plan in self.plans),
        )
        return examine(self.world.session, self.world.catalog, request)


class Stage:
    """Where workers sleep and die: orders for their steps, a proxy before their catalog."""

    def __init__(self, world, directories):
        self.world = world
        self.proxy = CatalogProxy(world.address)
        self.orders = Orders(directories() / "orders")
        self.workers = Workers(world, directories, self.proxy.address, self.orders)

    def close(self):
        self.workers.end()
        self.proxy.close()

    def ask(self, story, plan):
        """Ask the worker, a new one if the last is dead, for a commit."""
        return self.workers.engine.ask("commit", story.request(plan).body())

    def commit(self, story, plan):
        result = CommitResult.of(self.workers.engine.hear(self.ask(story, plan)).body)
        assert result.state in {"committed", "already"}, result
        story.topic.ends |= result.ends

    # -- sleeping --

    def sleep_at(self, story, step):
        """Freeze a worker at a step, let another commit its plan and the next, wake it."""
        assert step in STEPS
        plan = story.next_plan()
        self.orders.give(step, "stop")
        number = self.ask(story, plan)
        self.orders.wait_obeyed(self.workers.pid)
        story.commit_here(plan)
        story.commit_here(story.next_plan())
        wake(self.workers.pid)
        result = CommitResult.of(self.workers.engine.hear(number).body)
        assert result.state in {"committed", "already"}, (step, result)
        story.check_quickly()

    def sleep_in_a_request(self, story):
        """Freeze a worker whose commit is on its way; it arrives behind that of another."""
        plan = story.next_plan()
        self.proxy.arm(story.topic.table.name, "hold_request")
        number = self.ask(story, plan)
        assert self.proxy.reached.wait(120)
        os.killpg(self.workers.pid, signal.SIGSTOP)
        story.commit_here(plan)
        self.release(409)
        wake(self.workers.pid)
        assert CommitResult.of(self.workers.engine.hear(number).body).ends == story.topic.ends
        story.check_quickly()

    def release(self, *statuses):
        """Let the proxy go on and wait until the catalog has answered what it held."""
        before = len(self.proxy.happened)
        self.proxy.release.set()
        deadline = time.monotonic() + 60
        while len(self.proxy.happened) == before:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert self.proxy.happened[-1][1] in statuses

    # -- dying --

    def die_at(self, story, step):
        """Kill a worker and its JVM at a step; return the plan that it was at, if it was at one."""
        op, _, name = step.rpartition(":")
        if op:
            story.others_commit(SNAPSHOTS_TO_EXPIRE)
            self.commit(story, story.next_plan())
        elif name.startswith("property"):
            story.others_commit(SNAPSHOTS_TO_REFRESH)
        plan = None if op else story.next_plan()
        if name in REQUESTS:
            table, fault, update = REQUESTS[name]
            self.proxy.arm(table.format(table=story.topic.table.name), fault, update=update)
            self._begin(story, plan)
            assert self.proxy.reached.wait(120), step
            self.workers.kill()
        else:
            self.orders.give(name, "kill")
            self._begin(story, plan)
        self.workers.wait_dead()
        assert not self.orders.path.exists(), f"the step was not reached: {step}"
        return plan

    def let_arrive(self, step):
        """Let a request of a dead worker arrive at the catalog, behind its successor's commits."""
        name = step.rpartition(":")[2]
        if REQUESTS.get(name, ("", ""))[1] == "hold_request":
            # A late expiry is no harm: what it takes was not needed, and is not needed now.
            self.release(409, *((200,) if name == "expiry_sent" else ()))
        self.proxy.release.set()

    def _begin(self, story, plan):
        engine = self.workers.engine
        if plan is None:
            body = {"table": list(story.topic.table), "snapshots_max": SNAPSHOTS_MAX}
            engine.ask("maintain", body)
        else:
            engine.ask("commit", story.request(plan).body())


@pytest.fixture
def stage(world, tmp_path_factory):
    made = Stage(world, lambda: tmp_path_factory.mktemp("k"))
    yield made
    made.close()


@TIMEOUT
def test_workers_that_sleep_or_die_at_a_step_double_and_lose_nothing(world, stage):
    """Who sleeps over another's commit adds nothing; who dies is followed by one that ends it."""
    story = Story(world)
    stage.commit(story, story.next_plan())
    for step in SLEEPS if EXHAUSTIVE else SLEEPS_SHORT:
        stage.sleep_at(story, step)
    stage.sleep_in_a_request(story)
    assert stage.workers.starts == 1
    ends = story.own_commits()
    assert ends == sorted(set(ends)), "a plan was committed twice"
    for step in KILLS_ALL if EXHAUSTIVE else KILLS_SHORT:
        plan = stage.die_at(story, step)
        last = step == KILLS_SHORT[-1] and not EXHAUSTIVE
        successor = story.commit_here if last else lambda each: stage.commit(story, each)
        if plan is not None:
            successor(plan)
        successor(story.next_plan())
        stage.let_arrive(step)
        story.check_quickly()
    story.check()
