"""The five calls on tables in memory, as one worker makes them: they fail in every way.

Each call and each step is a point where others may go on instead, or where the worker is killed. To
wait there a worker is left by an exception; to go on it runs from its beginning again, with the
answers it got the first time. That is as good as a thread, as `commit` has no other input, and
the seed alone decides what happens.
"""

from __future__ import annotations

from frazil.errors import (
    CommitUnknown,
    Conflict,
    CorruptionError,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake import Verdict
from tests.crash.lake_table import Broken

CALLS_MAX = 120
FATES = ("lost", "error", "conflict", "slow", "slow", "never", "down")
UNKNOWN = (CommitUnknown, CommitUnknown, Unavailable)
AFTER_LANDING = (*UNKNOWN, Conflict, InvalidRequest, CorruptionError)


class Suspended(BaseException):
    """The worker waits for its turn."""


class Worker:
    """A call of `commit` that is run step by step. One that is killed is not run any more."""

    def __init__(self, work):
        self._work = work
        self._answers = []
        self._read = 0
        self._budget = 0
        self.calls = 0
        self.outcome = None
        self.last_step = ""

    def run(self, points):
        """Let it go on for some points; return whether it has ended."""
        self._budget = points
        self._read = self.calls = 0
        try:
            self.outcome = self._work(self)
        except Suspended:
            return False
        except Exception as error:  # noqa: BLE001 - given to the simulation
            self.outcome = error
        return True

    def act(self, action):
        """Do something to the world, once, and give its answer each time."""
        if self._read == len(self._answers):
            try:
                self._answers.append((action(), None))
            except (FrazilError, Broken) as error:
                self._answers.append((None, error))
        answer, error = self._answers[self._read]
        self._read += 1
        if error is not None:
            raise error
        return answer

    def point(self):
        """Wait here for the others, if it is their turn."""
        if self._read == len(self._answers):
            if self._budget <= 0:
                raise Suspended
            self._budget -= 1
        self.act(_nothing)

    def step(self, name):
        self.last_step = name
        self.point()

    def called(self):
        self.calls += 1
        if self.calls > CALLS_MAX:
            raise Broken(f"a commit has made {self.calls} calls")
        self.point()


def _nothing():
    return None


class Calls:
    """The calls of `SparkTables` for one worker. `faults` is the chance of a call to fail."""

    def __init__(self, world, worker):
        self._world = world
        self._worker = worker
        self._last_file = None

    def _table(self, name):
        table = self._world.tables.get(name)
        if table is None:
            raise NotFound("no such table", table=name)
        return table

    def _fails(self):
        return self._world.random.random() < self._world.faults

    def load(self, table):
        self._worker.called()
        return self._worker.act(lambda: self._loaded(table))

    def _loaded(self, table):
        if self._fails() and self._world.random.random() < 0.4:
            raise Unavailable("catalog cannot be reached")
        return self._table(table).view()

    def cas_append(self, table, rows, *, sid, summary):
        """Write a file, then let a snapshot land that has it, or not, or later."""
        worker, summary = self._worker, dict(summary)
        worker.called()
        file = self._last_file = worker.act(lambda: self._table(table).write_file(rows))

        def land():
            landed = self._table(table).land((file,), sid=sid, summary=summary)
            self._world.landed()
            return landed

        worker.point()
        fate, error = worker.act(self._fate)
        landed = None
        if fate in ("none", "lost", "error"):
            landed = worker.act(land)
            worker.point()
        elif fate == "slow":
            worker.act(lambda: self._world.pending.append(("append", land)))
        if error is not None:
            raise error("no reply", fate=fate)
        return landed

    def _fate(self):
        """Draw the outcome of a write and the error that its caller gets."""
        random = self._world.random
        if self._world.forced:
            fate = self._world.forced.pop(0)
        else:
            fate = random.choice(FATES) if self._fails() else "none"
        if fate == "none":
            return fate, None
        self._world.seen[f"fault {fate}"] += 1
        errors = {"conflict": (Conflict,), "down": (Unavailable,), "error": AFTER_LANDING}
        return fate, random.choice(errors.get(fate, UNKNOWN))

    def set_property(self, table, properties):
        self._worker.called()
        self._worker.act(lambda: self._set(table, dict(properties)))
        self._worker.point()

    def _set(self, table, properties):
        def land():
            self._table(table).properties.update(properties)

        fate, error = self._fate()
        if fate in ("none", "lost", "error"):
            land()
        elif fate == "slow":
            self._world.pending.append(("property", land))
        if error is not None:
            raise error("no reply", fate=fate)

    def discard(self):
        """Remove the file of the last append: nothing but a planted bug does that."""
        self._worker.act(self._discarded)

    def _discarded(self):
        for table in self._world.tables.values():
            table.files.pop(self._last_file, None)


class JudgedRows:
    """The stages: what becomes of a record depends on its part and offset alone."""

    def __init__(self, world, worker):
        self._world = world
        self._worker = worker

    def verdict(self, plan, from_offsets):
        self._worker.point()
        return self._worker.act(lambda: self._judged(plan, from_offsets))

    def _judged(self, plan, from_offsets):
        found = {"row": [], "reject": [], "drop": []}
        for each in plan.parts:
            if each.part not in from_offsets:
                continue
            for offset in range(from_offsets[each.part], each.hi):
                if any(first <= offset < end for first, end in each.gaps):
                    continue
                if offset < self._world.held.get(each.part, 0):
                    raise NotFound("a staged file is gone", offset=offset)
                found[self._world.kind(each.part, offset)].append((each.part, offset, True))
        rows, rejects, dropped = found["row"], found["reject"], found["drop"]
        counts = len(rows), len(rejects), len(dropped)
        return Verdict(rows, rejects, sum(counts), *counts)

    def rejects_from(self, verdict, from_offsets):
        return [row for row in verdict.rejects if row[1] >= from_offsets.get(row[0], 1 << 60)]
