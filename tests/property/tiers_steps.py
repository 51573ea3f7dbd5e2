"""A life of an engine with tiers: random calls, moves, restarts and crashes, checked all along.

A step draws from a `Random` of its own, made of the seed and the step's number, so that leaving
steps out changes little about the others: `shrink` looks for the few that are needed.
"""

from __future__ import annotations

from random import Random

from frazil.errors import FrazilError
from frazil.tiers import merge_once
from tests.crash.checker import require
from tests.property.tiers_calls import Calls
from tests.property.tiers_model import WIDER, Column, TopicModel
from tests.property.tiers_queries import check_query
from tests.property.tiers_world import TierWorld
from tests.support import SimulatedCrash

STEPS = 32
TYPES = ("int", "long", "float", "double", "string")
KEYS = (
    (("id", "long"),),
    (("id", "string"),),
    (("tenant", "string"), ("id", "int")),
)
SYNCS = ("commit", "commit", "commit", "periodic", "periodic")
POLICIES = ("ignore", "ignore", "error", "insert")
MOVES = (
    *("flush", "flush", "flush", "evict", "evict", "round"),
    *("merge", "fold", "upkeep", "tick", "time", "free", "free", "files", "files"),
)
FAILURES = (
    AssertionError,
    FrazilError,
    OSError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)


class Life:
    """One seed: topics, then steps; raises `Violation` when a promise is broken."""

    def __init__(self, seed, *, checks=1.0, steps=STEPS, skip=(), rewinds=False):
        self.seed = seed
        self.random = Random(f"{seed}/start")
        self.world = TierWorld(self.random, seed)
        self.calls = Calls(self.world)
        self.checks = checks
        """The share of steps behind which everything is checked."""
        self.rewinds = rewinds
        """At crashes the metadata may forget what it knew last."""
        self.steps = [number for number in range(steps) if number not in skip]
        self.column = 0
        self.crashes = 0
        self.queries = 0
        self.merges = 0
        self.step_now = -1

    def run(self):
        """Run all steps, then a clean restart with every check."""
        self.world.open()
        self._create_topics()
        for number in self.steps:
            self.step_now = number
            self.random = self.world.random = Random(f"{self.seed}/{number}")
            self._step()
        self._reopen()
        self.check(queries=1.0)
        self.world.close()

    def _step(self):
        random = self.random
        chosen = random.random()
        # Somewhere in this step, or behind all the points that it passes, power is lost.
        if random.random() < 0.12:
            self._arm(12)
        try:
            if chosen < 0.56:
                self.calls.publish(self._model(), random)
            elif chosen < 0.60:
                self._alter()
            elif chosen < 0.86:
                self._move()
            elif chosen < 0.92:
                self._reopen()
            else:
                self._crash(power=random.random() < 0.7)
            if random.random() < self.checks:
                self.check(queries=0.05)
        except SimulatedCrash:
            self._crash(power=True)
        self.world.disk.crash_at = None
        if self.rewinds:
            self.world.remember()

    def check(self, *, queries):
        """Compare everything with the models; SQL at some steps only."""
        random, world = self.random, self.world
        for model in world.models.values():
            world.check_log(model)
            if random.random() < 0.3:
                world.check_files(model)
            if model.keyed:
                world.check_keys(model, self._keys(model))
                if random.random() < 0.3:
                    world.check_feed(model)
            if random.random() < queries:
                check_query(world, model, random)
                self.queries += 1

    def _keys(self, model):
        known = list({change.key: None for change in model.log.values()})
        self.calls.random = self.random
        keys = [*known, *(self.calls._key(model) for _ in range(3))]
        self.random.shuffle(keys)
        return keys

    # -- ends ------------------------------------------------------------------------------------

    def _crash(self, *, power):
        """End abruptly and open again, perhaps after more crashes on the way."""
        world, random = self.world, self.random
        world.note("-- power lost" if power else "-- killed")
        self.crashes += 1
        world.crash(power=power)
        if self.rewinds and random.random() < 0.6:
            world.rewind()
        again = random.random() < 0.3
        while True:
            disk = world.disk
            disk.crash_at = disk.sync_points + random.randint(1, 14) if again else None
            try:
                world.open()
                world.settle()
                if again:
                    world.engine.tiers.run_once()
            except SimulatedCrash:
                world.note("-- power lost in recovery")
                self.crashes += 1
                world.crash(power=True)
                again = random.random() < 0.3
                continue
            disk.crash_at = None
            return

    def _reopen(self):
        self.world.note("-- restart")
        self.world.close()
        self.world.open()
        self.world.settle()

    # -- topics ----------------------------------------------------------------------------------

    def _model(self):
        return self.random.choice(list(self.world.models.values()))

    def _new_column(self, name, kind):
        self.column += 1
        return Column(self.column, name, kind)

    def _create_topics(self):
        random, world = self.random, self.world
        for number in range(random.choice((1, 2))):
            key = [self._new_column(*each) for each in random.choice(KEYS)]
            count = random.randint(1, 3)
            others = [self._new_column(f"c{at}", random.choice(TYPES)) for at in range(count)]
            columns = [*key, *others]
            if random.random() < 0.3:
                random.shuffle(columns)
            model = TopicModel(
                f"/default/keyed{number}",
                columns,
                key=tuple(column.number for column in key),
                policy=random.choice(POLICIES),
                sync=random.choice(SYNCS),
            )
            by = [] if random.random() < 0.5 else [f"bucket[3]({key[-1].name})"]
            world.create(model, partition_by=by)
        columns = [self._new_column("n", "long"), self._new_column("v", "string")]
        expires, sync = random.random() < 0.3, random.choice(SYNCS)
        # An expiry that the metadata forgot looks like a loss.
        expires = expires and not self.rewinds
        model = TopicModel("/default/plain", columns, expires=expires, sync=sync)
        by = [] if random.random() < 0.5 else [random.choice(("v", "truncate[5](n)"))]
        retention = {"retention_age": 0, "retention_bytes": 0} if model.expires else {}
        world.create(model, partition_by=by, **retention)

    def _alter(self):
        model, random = self._model(), self.random
        columns = list(model.columns)
        others = [c for c in model.others if model.keyed or c.name not in {"n", "v"}]
        narrow = [column for column in others if column.type in WIDER]
        verb = random.choice(("add", "add", "rename", "drop", "widen"))
        if verb == "rename" and others:
            old = random.choice(others)
            fresh = old._replace(name=f"r{self.step_now}")
            columns[columns.index(old)] = fresh
            change = {"rename": {old.name: fresh.name}}
        elif verb == "drop" and len(others) > 1:
            old = random.choice(others)
            columns.remove(old)
            change = {"drop": [old.name]}
        elif verb == "widen" and narrow:
            old = random.choice(narrow)
            columns[columns.index(old)] = old._replace(type=WIDER[old.type])
            change = {"widen": {old.name: WIDER[old.type]}}
        else:
            fresh = self._new_column(f"a{self.step_now}", random.choice(TYPES))
            columns.append(fresh)
            change = {"add": {fresh.name: fresh.type}}
        self.world.note(f"{model.short}: alter {change}")
        model.sent.clear()
        model.columns_doubt = columns
        self.world.engine.alter_topic(model.name, **change)
        model.columns, model.columns_doubt = columns, None

    # -- moves -----------------------------------------------------------------------------------

    def _move(self):
        """Something moves between the tiers, or time passes."""
        random, world = self.random, self.world
        engine, model = world.engine, self._model()
        verb = random.choice(MOVES)
        name = model.name if random.random() < 0.6 else None
        world.note(f"-- {verb} {name or ''}")
        if verb == "flush":
            engine.tiers.flush(name)
        elif verb == "evict":
            engine.tiers.evict(name)
        elif verb == "merge":
            self._merge()
        elif verb == "files":
            for _ in range(random.randint(3, 5)):
                self.calls.publish(model, random)
                engine.tiers.flush(model.name)
            self._merge()
        elif verb == "fold":
            engine.tiers.fold_once()
        elif verb == "upkeep":
            engine.upkeep.run_once()
        elif verb == "tick":
            world.clock.advance(random.choice((0.03, 1.5)))
            engine.log.journal.tick()
        else:
            if verb == "free":
                engine.log.queue.call(engine.log.journal.rotate)
            if verb != "round":
                world.clock.advance(random.choice((0.5, 70.0, 70.0, 1000.0)))
            engine.tiers.run_once()
            engine.upkeep.run_once()
        errors = engine.tiers.errors
        require(not errors, "a move failed", errors=errors)
        for each in world.models.values():
            world.check_start(each)

    def _merge(self):
        for each in self.world.engine.tiers.topics:
            if self.random.random() < 0.3:
                self._arm(12)
            while merge_once(each.disk, each.id):
                self.merges += 1

    def _arm(self, points):
        """Lose power at one of the next points, if so many come in this step."""
        disk = self.world.disk
        disk.crash_at = disk.sync_points + self.random.randint(1, points)


def failure(seed, **options):
    """Run a life; return it with its error, None if it had none."""
    life = Life(seed, **options)
    try:
        life.run()
    except FAILURES as error:
        return life, error
    return life, None


def shrink(seed, *, steps=STEPS, **options):
    """Leave out steps as long as the life still fails; return what is left out, and the error."""
    life, error = failure(seed, steps=steps, **options)
    if error is None:
        return (), None
    skip = set(range(life.step_now + 1, steps))
    size = max((steps - len(skip)) // 2, 1)
    while size:
        left = [number for number in range(steps) if number not in skip]
        for at in range(0, len(left), size):
            trial = skip | set(left[at : at + size])
            found = failure(seed, steps=steps, skip=trial, **options)[1]
            if type(found) is type(error) and str(found)[:40] == str(error)[:40]:
                skip, error = trial, found
        size //= 2
    return tuple(sorted(skip)), error
