"""A world around the commit protocol: an engine, its workers, their zombies, and other people.

A life is made of a seed. The commit module is the real one; engine and table are models. While it
lasts everything may fail, be killed, stall or land late; then the faults end, and all that was
published must get into the tables.
"""

from __future__ import annotations

import itertools
import zlib
from collections import Counter
from random import Random

from frazil.errors import Conflict, FrazilError
from frazil.lake import (
    MISSING_RANGE,
    ROLLED_BACK,
    CommitRequest,
    CommitResult,
    Known,
    PartSets,
    Plan,
    StagedFile,
    StagedSet,
    TableName,
    decide,
    end_key,
    ends_of,
    expirable,
    plan_parts,
    watermarks,
)
from frazil.lake.commit import commit
from frazil.model import WHOLE
from tests.crash.lake_calls import Calls, JudgedRows, Worker
from tests.crash.lake_table import Broken, IcebergTable

TABLE = TableName("ns", "events")
TOPIC_ID = "0123456789abcdef"
DISPATCHES_MAX = 60
EVENTS = (
    *("run",) * 14,
    *("publish",) * 5,
    *("dispatch",) * 6,
    *("land",) * 2,
    *("compact", "append", "delete", "expire", "expire_old", "maintain"),
    *("roll_back", "evict", "evict", "recut"),
    *("kill", "stall", "stall", "crash", "forget_plan"),
)


class World:
    """One life. `step` does one thing; `drain` ends the faults and checks the end."""

    def __init__(self, seed):
        self.random = random = Random(f"lake/{seed}")
        self.seed = seed
        ids = itertools.count(1)
        self.tables = {name: IcebergTable(TOPIC_ID, ids) for name in (TABLE, TABLE.rejects)}
        self.main, self.side = self.tables.values()
        self.parts = random.choice(((WHOLE,), (WHOLE,), (0, 1), (0, 1, 2)))
        self.faults = random.choice((0.0, 0.1, 0.25, 0.5, 0.8))
        self.foreign = random.random() < 0.7
        self.shares = random.choice(((0, 0), (10, 10), (30, 10), (60, 0), (100, 0), (90, 10)))
        self.durable = dict.fromkeys(self.parts, 0)
        self.held = dict.fromkeys(self.parts, 0)
        self.sets = {part: [] for part in self.parts}
        self.gaps = set()
        self.pending = []
        self.forced = []
        """What becomes of the next writes; drawn by chance when it is empty."""
        self.worker = None
        self.zombies = []
        self.plan = None
        self.committed = None
        self.remembered = {}
        self.choice = ""
        self.chosen = {}
        self.deleted = set()
        self.rolled = set()
        self.excused = set()
        self.rollbacks = 0
        self.seen = Counter()
        self.trace = []

    def kind(self, part, offset):
        """What the stages make of a record: a pure function."""
        share = zlib.crc32(f"{self.seed}/{part}/{offset // 3}".encode()) % 100
        rejects, dropped = self.shares
        return "reject" if share < rejects else "drop" if share < rejects + dropped else "row"

    # -- a life --

    def live(self, events):
        """Let things happen, then drain."""
        for _ in range(events):
            self.step()
        self.drain()

    def step(self):
        event = self.random.choice(EVENTS)
        self.trace.append(event)
        self.seen[event] += 1
        getattr(self, f"do_{event}")()

    def drain(self):
        """End the faults; all must be in the tables, within a bounded number of attempts.

        The engine looks first: a rollback of a table that gets nothing new is not seen otherwise.
        """
        self.trace.append("drain")
        self.faults = 0.0
        while self.worker is not None:
            self._run_worker()
        self.committed = None
        for _ in range(DISPATCHES_MAX):
            self._settle_some()
            if self.committed == self.durable and self.worker is None and self.plan is None:
                break
            self.do_dispatch()
            while self.worker is not None:
                self._settle_some()
                self._run_worker()
        else:
            raise Broken(f"not drained: committed={self.committed} durable={self.durable}")
        while self.zombies or self.pending:
            self._settle_some()
        self._check_placed(self.durable, set())
        for table in self.tables.values():
            table.check_files()

    def _settle_some(self):
        if self.pending and self.random.random() < 0.6:
            self.do_land()
        if self.zombies and self.random.random() < 0.6:
            self._run_zombie()

    # -- the engine --

    def do_publish(self):
        random, part = self.random, self.random.choice(self.parts)
        first = self.durable[part]
        end = first + random.randint(1, 8)
        gaps = ()
        if random.random() < 0.2:
            lower = random.randint(first, end - 1)
            gaps = ((lower, random.randint(lower + 1, end)),)
            self.gaps |= {(part, offset) for offset in range(*gaps[0])}
        rows = [offset for offset in range(first, end) if (part, offset) not in self.gaps]
        files = ()
        if rows:
            files = (StagedFile(f"{part}-{first}", len(rows), 10, rows[0], rows[-1]),)
        self.sets[part].append(StagedSet(first, end, 1, files, gaps))
        self.durable[part] = end

    def do_recut(self):
        """The disk tier merges two of its sets: the next plan has other boundaries."""
        sets = self.sets[self.random.choice(self.parts)]
        if len(sets) > 1:
            at = self.random.randrange(len(sets) - 1)
            one, two = sets[at : at + 2]
            sets[at : at + 2] = [
                StagedSet(one.first, two.end, 1, one.files + two.files, one.gaps + two.gaps)
            ]

    def do_dispatch(self):
        """Look if need be, plan if there is none, and start a worker."""
        if self.worker is not None:
            return
        if self.committed is None and not self._look():
            return
        if self.plan is None:
            self.plan = self._planned()
        if self.plan is None:
            return
        request = CommitRequest(
            plan=self.plan,
            remembered=dict(self.remembered),
            durable=dict(self.durable),
            held=dict(self.held),
            choice=self.choice,
            chosen=dict(self.chosen),
            rejects_allowed=True,
        )

        def work(worker):
            return commit(
                Calls(self, worker),
                JudgedRows(self, worker),
                request,
                pause=lambda _seconds: worker.point(),
                progress=worker.step,
            )

        self.worker = Worker(work)

    def _look(self):
        known = Known(TOPIC_ID, self.remembered, self.durable, self.held, self.choice, self.chosen)
        decision = decide(TABLE, self.main.view(), known)
        if decision.case == "stop":
            self._operator(decision.reason, decision.message, decision.stated)
            return False
        self.committed = {part: decision.marks.get(part, 0) for part in self.parts}
        self._remember(spent=decision.choice_spent)
        return True

    def _remember(self, *, spent=False):
        """Keep the marks that were seen; while a replay is wanted the table has not come back."""
        if spent and self.choice:
            self.choice = ""
            self.remembered = {}
        if self.choice != "replay":
            for part, end in self.committed.items():
                self.remembered[part] = max(end, self.remembered.get(part, 0))

    def _planned(self):
        sources = [
            PartSets(part, 7, self.committed[part], tuple(self.sets[part])) for part in self.parts
        ]
        limits = self.random.choice((1, 20, 40, 1000))
        version, ranges = plan_parts(sources, bytes_max=limits, files_max=100)
        if not ranges:
            return None
        return Plan(
            id=f"plan-{len(self.trace)}",
            topic="/ns/events",
            topic_id=TOPIC_ID,
            table=TABLE,
            kind="table",
            schema_version=version,
            schema="",
            parts=ranges,
            created_us=0,
        )

    def do_run(self):
        if self.zombies and self.random.random() < 0.35:
            self._run_zombie()
        else:
            self._run_worker()

    def _run_worker(self):
        if self.worker is not None and self.worker.run(self.random.randint(1, 9)):
            outcome, self.worker = self.worker.outcome, None
            self._took(outcome)

    def _run_zombie(self):
        zombie = self.random.choice(self.zombies)
        if zombie.run(self.random.randint(1, 9)):
            self.zombies.remove(zombie)
            if isinstance(zombie.outcome, BaseException):
                self._took_error(zombie.outcome)

    def _took(self, outcome):
        """Do with a result what the engine does."""
        if isinstance(outcome, BaseException):
            self._took_error(outcome)
            return
        assert isinstance(outcome, CommitResult)
        self.trace.append(f"{outcome.state} {outcome.reason} {outcome.ends}")
        self.seen[outcome.state] += 1
        if outcome.state == "stopped":
            self._operator(outcome.reason, outcome.message, outcome.ends)
        if outcome.state not in ("committed", "already", "replan"):
            return
        ends = {part: outcome.ends.get(part, 0) for part in self.parts}
        before, self.committed, self.plan = self.committed, ends, None
        if outcome.state != "replan":
            self._check_placed(ends, self.rolled)
        if not self.rollbacks and not self.main.inverted and before is not None:
            for part, end in before.items():
                if ends[part] < end:
                    raise Broken(f"committed went back: {before} {ends}")
        self._remember(spent=outcome.choice_spent)

    def _took_error(self, error):
        self.trace.append(repr(error))
        self.seen[type(error).__name__] += 1
        if isinstance(error, Broken) or not isinstance(error, FrazilError):
            raise error

    def _operator(self, reason, message, ends):
        """Choose a way out of a stop; one without a cause is a bug."""
        self.trace.append(f"stopped {reason}")
        self.seen[reason] += 1
        self.committed = self.plan = None
        self.chosen = dict(ends)
        if reason == ROLLED_BACK and (self.rollbacks or self.main.highest_expired()):
            self.choice = self.random.choice(("replay", "accept"))
        elif reason == MISSING_RANGE:
            self.choice = "accept"
        else:
            raise Broken(f"stopped without a cause: {reason} {message}")
        if self.choice == "accept":
            self.excused |= self.rolled

    def do_evict(self):
        """Let staged sets go that are committed."""
        if self.committed is None:
            return
        for part in self.parts:
            sets = self.sets[part]
            while sets and sets[0].end <= self.committed[part] and self.random.random() < 0.7:
                self.held[part] = sets.pop(0).end

    # -- what goes wrong --

    def do_kill(self):
        if self.worker is not None:
            self.seen[f"killed at {self.worker.last_step}"] += 1
            self.worker = None

    def do_stall(self):
        """The engine gives a worker up, which is not dead."""
        if self.worker is not None:
            self.seen[f"stalled at {self.worker.last_step}"] += 1
            self.zombies.append(self.worker)
            self.worker = None

    def do_crash(self):
        """The engine dies, its worker with it or a little later."""
        self.random.choice((self.do_kill, self.do_stall))()
        self.committed = None
        if self.random.random() < 0.4:
            self.remembered = {}
            self.choice = ""
        if self.random.random() < 0.4:
            self.plan = None

    def do_forget_plan(self):
        """Plan anew although the old plan may be on its way."""
        if self.worker is None:
            self.plan = None

    def do_land(self):
        """A commit lands that everybody has given up."""
        if self.pending:
            kind, land = self.pending.pop(self.random.randrange(len(self.pending)))
            if kind == "append" and self.random.random() < 0.1:
                return
            try:
                land()
            except Conflict:
                self.seen["late, fenced off"] += 1
            else:
                self.seen["late, landed"] += 1

    # -- what others do --

    def _some_table(self):
        return self.random.choice((self.main, self.main, self.side)) if self.foreign else None

    def do_compact(self):
        table = self._some_table()
        if table is not None:
            table.compact()

    def do_append(self):
        table = self._some_table()
        if table is not None:
            table.append_foreign(self.random.choice(self.parts))

    def do_nothing(self):
        """Nobody else is there."""

    def do_delete(self):
        table = self._some_table()
        if table is not None:
            self.deleted |= set(table.delete_rows(self.random))

    def do_expire(self):
        """Expire all but the current snapshot, half of the time behind a compaction.

        Not while the table is rolled back and nobody knows: then nothing tells that it was. Not
        while the property is above the table, set before a rollback and not lowered yet.
        """
        table = self._some_table()
        if table is None or self.rolled - self.excused - set(self.main.ours()):
            return
        marks = table.ends() or {}
        if any(end > marks.get(p, 0) for p, end in ends_of(table.properties).items()):
            return
        if self.random.random() < 0.7:
            table.compact()
        table.expire_all()

    def do_expire_old(self):
        """Expire all but the newest snapshot with a mark and what is behind it."""
        table = self._some_table()
        if table is None:
            return
        line = list(table.line())
        newest = next((n for n, each in enumerate(line) if ends_of(each.summary)), len(line))
        kept = {each.sid for each in line[: newest + 1]}
        table.expire([sid for sid in table.snapshots if sid not in kept])

    def do_maintain(self):
        """Expire as the product does: the property first."""
        table = self.random.choice((self.main, self.side))
        marks, _conclusive = watermarks(table.view(), {})
        table.properties.update({end_key(part): str(end) for part, end in marks.items()})
        gone = expirable(
            table.metadata(),
            metadata_bytes=0,
            snapshots_max=self.random.choice((2, 4, 8)),
            snapshots_min=1,
        )
        before = table.ends()
        table.expire(gone)
        if table.ends() != before:
            raise Broken(f"our own expiry has changed the mark: {before} {table.ends()}")

    def do_roll_back(self):
        """Set main back to a snapshot that knows its mark."""
        if not self.foreign or self.random.random() < 0.4:
            return
        line = list(self.main.line())
        marked = [n for n, each in enumerate(line) if ends_of(each.summary)]
        targets = line[1 : marked[-1] + 1] if marked else []
        if targets:
            gone = self.main.roll_back(self.random.choice(targets).sid)
            self.rolled |= gone
            self.rollbacks += 1
            self.seen["rolled back"] += 1
            self.pending = [each for each in self.pending if each[0] == "append"]

    # -- checking --

    def landed(self):
        """No offset is more than once in main and rejects."""
        counts = Counter(self.main.ours())
        counts.update(self.side.ours())
        doubled = [row for row, count in counts.items() if count > 1]
        if doubled:
            raise Broken(f"doubled: {sorted(doubled)}")

    def _check_placed(self, ends, rolled_back):
        """Every record below the marks is where it belongs."""
        rows, rejects = set(self.main.ours()), set(self.side.ours())
        missing = [
            (part, offset)
            for part, end in ends.items()
            for offset in range(end)
            if (part, offset) not in self.gaps
            and not self._placed(part, offset, rows, rejects)
            and (part, offset) not in self.deleted | self.excused | rolled_back
        ]
        if missing:
            raise Broken(f"lost: {missing} of {ends}")

    def _placed(self, part, offset, rows, rejects):
        kind = self.kind(part, offset)
        where = {"row": rows, "reject": rejects}.get(kind)
        return where is None or (part, offset) in where
