"""Lives of subscriptions and small values over kills, power losses, rotation, freeing, old metadata.

The model knows offsets one by one and nothing of ranges, frames or folding. A change that was
answered is there; of a change that a crash cut short all is there or nothing.
"""

from __future__ import annotations

import contextlib
from copy import deepcopy
from random import Random

from frazil.config import Settings
from frazil.engine import Engine
from frazil.errors import FrazilError
from frazil.log import (
    PLAIN,
    Control,
    CursorState,
    Dropped,
    acked,
    attempted,
    delayed,
    encode_changes,
    placed,
)
from frazil.log import format as fmt
from frazil.subscribe import HOLD_PREFIX
from frazil.topic import known_cursors
from tests.crash.checker import require
from tests.crash.driven_log import DrivenLog, log_settings
from tests.integration.engine.opening import apply
from tests.support import SimulatedClock, SimulatedCrash, SimulatedFileSystem
from tests.support.log_limits import set_log_limits

ROOT = "/data"
METADATA = f"{ROOT}/meta.db"
TOPIC = 7
TAG = 18
NAMES = ("a", "b" * 200, "c" * 500)
"""Some are long, so that the frames of one call often lie in different sectors."""
DEFAULTS = Settings()
# Smaller than a user may set them, so that a short life reaches rotation and freeing.
LOG = {
    "segment_bytes_max": 4096,
    "ballast_bytes": 0,
    "retention_age_s": 0.0,
}
SETTINGS = DEFAULTS.model_copy(
    update={
        "data_dir": ROOT,
        "log": DEFAULTS.log.model_copy(update=LOG),
        "memory": DEFAULTS.memory.model_copy(update={"enabled": False}),
    }
)


class Progress:
    """The progress of one subscription: acked records, and the deliveries of others."""

    def __init__(self, below=0):
        self.acked = set(range(below))
        self.attempts = {}
        self.dues = {}

    def ack(self, offsets):
        self.acked |= set(offsets)
        self.attempts = {o: n for o, n in self.attempts.items() if o not in self.acked}
        self.dues = {o: due for o, due in self.dues.items() if o not in self.acked}

    def attempt(self, offset, number):
        if offset not in self.acked and number > self.attempts.get(offset, 0):
            self.attempts[offset] = number
            self.dues.pop(offset, None)

    def delay(self, offset, number, due):
        if self.attempts.get(offset) == number:
            self.dues[offset] = due

    @property
    def below(self):
        """The first offset that is not acked."""
        return next(offset for offset in range(len(self.acked) + 1) if offset not in self.acked)

    def shown(self):
        counted = sorted(self.attempts.items()), sorted(self.dues.items())
        return sorted(self.acked), *counted


def seen(cursor):
    """A cursor of the product as the model would show it."""
    offsets = set(range(cursor.acked_below)).union(*[range(*each) for each in cursor.ranges()])
    counted = sorted(cursor.attempts.items()), sorted(cursor.dues.items())
    return sorted(offsets), *counted


def shown(model):
    return {name: progress.shown() for name, progress in model.items()}


def apply_to(model, change):
    """Do to the model what a change says."""
    verb, name, *rest = change
    if verb == "place":
        model[name] = Progress(rest[0])
    elif verb == "drop":
        model.pop(name, None)
    elif name in model:
        for numbers in rest[0]:
            if verb == "ack":
                model[name].ack(range(*numbers))
            elif verb == "delay":
                model[name].delay(*numbers)
            else:
                model[name].attempt(*numbers)


def wire(change):
    """The change as the product takes it."""
    verb, name, *rest = change
    if verb == "place":
        return placed(name, CursorState(rest[0]))
    if verb == "drop":
        return Dropped(name)
    make = {"ack": acked, "attempt": attempted, "delay": delayed}[verb]
    return make(name, *rest[0])


def some_changes(random, names, head, low=0):
    """One frame's acks and attempts, over one or more subscriptions."""
    changes = []
    for _ in range(random.choice((1, 1, 2, 3))):
        name = random.choice(names)
        first = random.randrange(low, head)
        if random.random() < 0.3:
            number = random.randint(2, 6)
            changes.append(("attempt", name, [(first, number)]))
            if random.random() < 0.5:
                changes.append(("delay", name, [(first, number, random.randrange(1 << 40))]))
            continue
        numbers = [(first, min(first + random.choice((1, 1, 2, 8)), head))]
        if random.random() < 0.3:
            other = random.randrange(low, head)
            numbers.append((other, other + 1))
        changes.append(("ack", name, numbers))
    return changes


class JournalLives:
    """One seed of a journal alone: groups of records and cursor frames, torn anywhere."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.disk = SimulatedFileSystem(seed)
        self.clock = SimulatedClock(seed)
        self.settings = log_settings(segment_bytes_max=1 << 20)
        set_log_limits(prefill_bytes=self.random.choice((0, 1024)))
        self.model = {}
        self.doubt = []
        """Frames of the group that a crash cut short, in their order."""
        self.head = 0
        self.crashes = self.recoveries = self.kept = self.dropped = 0

    def run(self):
        random = self.random
        for _ in range(random.choice((2, 3, 4))):
            self.disk.crash_at = random.choice((random.randint(1, 12), random.randint(5, 40)))
            with contextlib.suppress(SimulatedCrash):
                self.open()
                for _ in range(random.randint(2, 12)):
                    self.step()
            self.crashes += 1
            kill = random.random() < 0.25
            self.disk = (
                self.disk.kill_clone() if kill else self.disk.crash_clone(random.getrandbits(48))
            )
        self.disk.crash_at = None
        self.open()
        self.log.close()
        self.open()

    def open(self):
        """Recover and compare: what was answered, and a whole number of the frames in doubt."""
        self.log = DrivenLog(self.disk, clock=self.clock, settings=self.settings)
        self.recoveries += 1
        if TOPIC not in self.log.journal.state.topics:
            require(not self.model and not self.head, "the topic is lost")
            self.log.create(TOPIC, "/default/t")
        topic = self.log.topic(TOPIC)
        found = {name: seen(cursor) for name, cursor in topic.cursors.items()}
        model = deepcopy(self.model)
        number = 0
        while found != shown(model):
            require(number < len(self.doubt), "cursors are others", found=found, want=shown(model))
            for change in self.doubt[number]:
                apply_to(model, change)
            number += 1
        self.kept += number
        self.dropped += len(self.doubt) - number
        self.model, self.doubt = model, []
        require(topic.next >= self.head, "the head falls back", head=topic.next, was=self.head)
        self.head = topic.next

    def step(self):
        random = self.random
        chosen = random.random()
        if chosen < 0.12:
            self.log.journal.rotate()
        elif chosen < 0.2 and len(self.log.journal.segments) > 1:
            self.log.free(self.log.journal.active.id)
        elif chosen < 0.3:
            self.clock.advance(0.1)
            self.log.journal.tick()
        elif chosen < 0.36:
            self.log.close()
            self.open()
        else:
            self.group()

    def group(self):
        """Commit records and several cursor frames at once."""
        random = self.random
        frames = [self.frame() for _ in range(random.choice((0, 1, 1, 2, 5)))]
        controls = [
            Control(fmt.KIND_CURSOR, TOPIC, encode_changes([*map(wire, frame)])) for frame in frames
        ]
        entries = [(None, None, control, 0, 100, None, None) for control in controls]
        count = random.choice((0, 1, 3))
        if count or not entries:
            payloads = [bytes(random.choice((5, 700)))] * max(count, 1)
            data = (self.log.topic(TOPIC), PLAIN, payloads, len(payloads), 100, None, None)
            entries.insert(random.randint(0, len(entries)), data)
        self.doubt = frames
        answers = self.log.commit(*entries)
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        require(not refused, "a frame was refused", refused=refused)
        for frame in frames:
            for change in frame:
                apply_to(self.model, change)
        self.doubt = []
        self.head = self.log.topic(TOPIC).next

    def frame(self):
        random = self.random
        chosen = random.random()
        if not self.head or chosen < 0.15:
            return [("place", random.choice(NAMES), random.randint(0, self.head))]
        if chosen < 0.22:
            return [("drop", random.choice(NAMES))]
        return some_changes(random, NAMES, self.head)


class CrashBeforeSegmentSync:
    """Crash where a group may be torn: right before the n-th sync of a segment."""

    def __init__(self, nth):
        self.left = nth

    def __call__(self, event):
        if event.startswith("before sync ") and event.endswith(".seg"):
            self.left -= 1
            if self.left <= 0:
                raise SimulatedCrash


class EngineLives:
    """One seed of a whole engine whose metadata may be old, or gone, after every crash."""

    def __init__(self, seed):
        self.random = Random(seed)
        self.clock = SimulatedClock(seed)
        self.disk = SimulatedFileSystem(seed)
        self.disk.make_directory(ROOT)
        self.disk.sync_directory("/")
        self.engine = None
        self.model = {}
        self.values = {}
        self.doubt = None
        """(changes of cursors, changes of values) of the call that a crash cut short."""
        self.exists = False
        self.head = 0
        self.copies = []
        self.crashes = self.recoveries = self.rewound = self.freed = 0

    def run(self):
        random = self.random
        for _ in range(random.choice((1, 2))):
            if random.random() < 0.5:
                self.disk.crash_at = random.choice((random.randint(1, 60), random.randint(30, 120)))
            else:
                self.disk.on_sync = CrashBeforeSegmentSync(random.randint(3, 14))
            try:
                self.open()
                for _ in range(random.randint(4, 14)):
                    self.step()
            except SimulatedCrash:
                pass
            self.crash()
        self.disk.crash_at = self.disk.on_sync = None
        self.open()
        self.step()
        self.engine.close()
        self.open()
        self.engine.close()

    def crash(self):
        """Lose power or be killed; let the metadata forget its last transactions, or all."""
        random = self.random
        self.crashes += 1
        if self.engine is not None:
            with contextlib.suppress(SimulatedCrash, FrazilError):
                self.engine._indexer._store.close()
        self.engine = None
        kill = random.random() < 0.3
        self.disk = (
            self.disk.kill_clone() if kill else self.disk.crash_clone(random.getrandbits(48))
        )
        if self.copies and random.random() < 0.5:
            self.rewound += 1
            for path in self.disk.paths():
                if path.startswith(METADATA):
                    self.disk.unlink(path)
            for path, data in random.choice([{}, *self.copies]).items():
                self.disk.write_bytes(path, data)

    def open(self):
        set_log_limits(prefill_bytes=1024, check_at_open=False)
        self.engine = Engine(SETTINGS, file_system=self.disk, clock=self.clock, threads=False)
        self.recoveries += 1
        if "/default/t" not in self.engine.topics():
            require(not self.exists, "the topic is lost")
            self.engine.create_topic("t")
            self.engine.topic("t").append_many([b"first"] * 5)
        self.exists = True
        self.check()
        names = [path for path in self.disk.paths() if path.startswith(METADATA)]
        self.copies.append({path: self.disk.read_bytes(path, durable=True) for path in names})

    def check(self):
        """Compare cursors, values, holds and records with what was promised."""
        engine = self.engine
        found = {name: seen(cursor) for name, cursor in engine.cursors.load("t").items()}
        values = engine.states.items(TAG)
        if (found, values) != (shown(self.model), self.values) and self.doubt is not None:
            changes, puts = self.doubt
            for change in changes:
                apply_to(self.model, change)
            self.values.update(puts)
            self.values = {key: value for key, value in self.values.items() if value is not None}
        require(found == shown(self.model), "cursors are others", found=found, m=shown(self.model))
        require(values == self.values, "values are others", found=values, want=self.values)
        self.doubt = None
        facts = engine.describe("t")
        marks = facts["watermarks"]
        require(marks["head"] >= self.head, "the head falls back", marks=marks, was=self.head)
        require(not facts["lost"], "loss is reported without damage", lost=facts["lost"])
        require(not facts["gaps"], "gap in a commit topic", gaps=facts["gaps"])
        self.head = marks["head"]
        self.check_holds(facts)

    def check_holds(self, facts):
        """Every subscription is held where it can go on, and nothing else is."""
        holds, start = facts["holds"], facts["watermarks"]["start"]
        names = {name.removeprefix(HOLD_PREFIX) for name in holds}
        require(names == set(self.model), "holds of others", holds=holds, model=set(self.model))
        for name, progress in self.model.items():
            require(holds[HOLD_PREFIX + name] <= progress.below, "hold is ahead", name=name)
            require(start <= progress.below, "unacked records are gone", name=name, start=start)
        self.freed += start > 0
        store = self.engine._indexer._store
        topic_id = self.engine.topic_runtime("t").state.id
        copies = known_cursors(store).get(topic_id, {})
        # An opening and a close bring them in line; in between they lag.
        require(set(copies) <= {*NAMES}, "copies of others", copies=copies)

    def step(self):
        random, engine = self.random, self.engine
        chosen = random.random()
        known = sorted(self.model)
        if chosen < 0.15 or not self.head:
            engine.topic("t").append_many([bytes(random.choice((5, 900)))] * random.choice((1, 3)))
            self.head = engine.describe("t")["watermarks"]["head"]
        elif chosen < 0.3:
            self.clock.advance(random.choice((0.03, 60.0)))
            engine.upkeep.run_once()
            require(not engine.upkeep.errors, "upkeep failed", errors=engine.upkeep.errors)
        elif chosen < 0.36:
            engine.log.journal.rotate()
        elif chosen < 0.42:
            engine.close()
            self.open()
        elif chosen < 0.52:
            key = random.choice("xy")
            value = random.choice((None, b"%d" % random.randrange(99)))
            self.doing([], {key: value}, lambda: engine.states.submit(TAG, key, value).result())
        elif chosen < 0.65 or not known:
            self.place(random.choice(NAMES))
        elif chosen < 0.7:
            name = random.choice(known)
            self.doing([("drop", name)], {}, lambda: engine.cursors.drop("t", name))
        else:
            changes = some_changes(random, known, self.head)
            self.doing(changes, {}, lambda: apply(engine, [*map(wire, changes)]).result())

    def place(self, name):
        """Begin a subscription, or put it somewhere else."""
        engine = self.engine
        start = engine.describe("t")["watermarks"]["start"]
        offset = self.random.randint(start, self.head)
        call = engine.cursors.reset if name in self.model else engine.cursors.create
        self.doing([("place", name, offset)], {}, lambda: call("t", name, offset))

    def doing(self, changes, puts, call):
        """Make a call; until it is answered its outcome is in doubt."""
        self.doubt = (changes, puts)
        call()
        self.doubt = None
        for change in changes:
            apply_to(self.model, change)
        self.values.update(puts)
        self.values = {key: value for key, value in self.values.items() if value is not None}


def run_seeds(lives, seeds):
    """Run seeds; return the lives that ran and, for the first that fails, what went wrong."""
    done = []
    for seed in seeds:
        done.append(lives(seed))
        try:
            done[-1].run()
        except (AssertionError, FrazilError, OSError, SimulatedCrash) as error:
            return done, f"{lives.__name__}({seed}): {type(error).__name__}: {error}"
    return done, ""
