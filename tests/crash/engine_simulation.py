"""Lives of a whole engine whose metadata may forget its last transactions at every crash."""

from __future__ import annotations

import contextlib
from random import Random

from frazil.config import Settings
from frazil.engine import Engine
from frazil.errors import FrazilError
from frazil.model import Ack
from tests.crash.checker import require
from tests.support import SimulatedClock, SimulatedCrash, SimulatedFileSystem
from tests.support.log_limits import set_log_limits

ROOT = "/data"
METADATA = f"{ROOT}/meta.db"
DEFAULTS = Settings()
# Smaller than a user may set them, so that a short life reaches rotation and new reservations.
LOG = {"segment_bytes_max": 4096, "ballast_bytes": 0}
SETTINGS = DEFAULTS.model_copy(
    update={
        "data_dir": ROOT,
        "log": DEFAULTS.log.model_copy(update=LOG),
    }
)
COPIES_MAX = 8
LIMITS = {"prefill_bytes": 1024, "check_at_open": False}


class TopicView:
    """What was acked and read of one topic."""

    def __init__(self, name, *, table, sync):
        self.name = name
        self.table = table
        self.sync = sync
        self.values = {}
        self.sent = set()
        self.kept_end = 0
        self.exposed = 0
        self.columns = {"value"} if table else None
        self.columns_doubtful = None
        self.holds = {}
        self.created = False


class EngineSimulation:
    """One seed: an engine works and crashes; its metadata comes back up to k transactions old."""

    def __init__(self, seed):
        self.random = Random(seed * 2)
        self.clock = SimulatedClock(seed)
        self.disk = SimulatedFileSystem(seed)
        self.disk.make_directory(ROOT)
        self.disk.sync_directory("/")
        self.views = {}
        self.copies = []
        """Older states of the metadata's files, newest last."""
        self.number = 0
        self.recoveries = 0
        self.rewound = 0
        self.engine = None

    def run(self):
        """Run all lives; raises `Violation` when a promise is broken."""
        random = self.random
        for _ in range(random.choice((1, 2, 2, 3))):
            self.disk.crash_at = random.choice((random.randint(1, 60), 1 << 30))
            try:
                self.open()
                for _ in range(random.randint(2, 8)):
                    self.step()
                    self.remember()
            except SimulatedCrash:
                pass
            self.crash()
        self.disk.crash_at = None
        self.open()
        self.step()
        self.engine.close()
        for view in self.views.values():
            view.kept_end = view.exposed
        self.open()
        self.engine.close()

    def remember(self):
        """Keep a copy of the metadata's files, as of a crash just now."""
        names = [path for path in self.disk.paths() if path.startswith(METADATA)]
        self.copies.append({path: self.disk.read_bytes(path, durable=True) for path in names})
        del self.copies[:-COPIES_MAX]

    def crash(self):
        """Lose power or be killed, and let the metadata forget its last transactions."""
        random = self.random
        if self.engine is not None:
            # The dead process's connection: finalised later, it would only complain of its end.
            with contextlib.suppress(SimulatedCrash, FrazilError):
                self.engine._indexer.close()
        self.engine = None
        if random.random() < 0.3:
            self.disk = self.disk.kill_clone()
        else:
            self.disk = self.disk.crash_clone(random.getrandbits(48))
        if not self.copies or random.random() < 0.3:
            return
        self.rewound += 1
        for path in self.disk.paths():
            if path.startswith(METADATA):
                self.disk.unlink(path)
        if random.random() < 0.15:
            # Nothing of it is left.
            return
        for path, data in random.choice(self.copies).items():
            self.disk.write_bytes(path, data)

    def open(self):
        """Recover, then check everything against what was acked and read before."""
        set_log_limits(**LIMITS)
        self.engine = Engine(SETTINGS, file_system=self.disk, clock=self.clock, threads=False)
        self.recoveries += 1
        found = set(self.engine.topics())
        for name, view in list(self.views.items()):
            if name in found:
                self.check(view)
            else:
                require(not view.created, "topic is lost", topic=name)
                del self.views[name]
        require(found <= set(self.views), "topics were invented", found=found)

    def check(self, view):
        """Check one recovered topic."""
        topic = self.engine.topic(view.name)
        head = topic.stats()["head"]
        require(head >= view.kept_end, "head falls below a known end", topic=view.name, head=head)
        if view.table:
            names = set(topic.schema.names)
            allowed = (view.columns, view.columns_doubtful)
            require(names in allowed, "schema is another one", topic=view.name, names=names)
            view.columns, view.columns_doubtful = names, None
        found = self.read(view)
        for offset, value in list(view.values.items()):
            if offset >= head and offset >= view.kept_end:
                # Acked and not synced: the offset may be given again.
                del view.values[offset]
            else:
                require(found.get(offset) == value, "fsynced record is lost", offset=offset)
        missing = [offset for offset in range(head) if offset not in found]
        require(not missing, "offsets are skipped", missing=missing)
        described = topic.describe()
        require(not described["lost"], "loss is told without damage", lost=described["lost"])
        holds = described["holds"]
        for name, allowed in view.holds.items():
            require(holds.get(name) in allowed, "hold is another one", name=name, holds=holds)
            view.holds[name] = [holds.get(name)]
        view.created = True
        view.kept_end = view.exposed = head

    def read(self, view):
        """Read a topic to its end: offset → value; what was seen before must be the same."""
        found = {}
        last = 0
        column = "value" if view.table else "payload"
        for batch in self.engine.topic(view.name).read():
            for record in batch.records():
                offset, value = record["_offset"], record[column]
                value = value if isinstance(value, int) else int(value)
                known = view.values.setdefault(offset, value)
                require(known == value, "offset is used twice", offset=offset, first=known)
                require(value in view.sent, "record was invented", offset=offset, value=value)
                require(value > last, "record is out of order", offset=offset, value=value)
                found[offset] = last = value
        if found:
            view.exposed = max(view.exposed, max(found) + 1)
        return found

    def step(self):
        """Do one operation."""
        random = self.random
        chosen = random.random()
        if not self.views or (chosen < 0.25 and len(self.views) < 4):
            self.create()
        elif chosen < 0.35:
            self.alter()
        elif chosen < 0.45:
            self.hold()
        elif chosen < 0.55:
            self.clock.advance(random.choice((0.03, 1.5)))
            self.engine.upkeep.run_once()
        elif chosen < 0.6:
            self.engine.close()
            for view in self.views.values():
                view.kept_end = view.exposed
            self.open()
        else:
            self.append()

    def create(self):
        random = self.random
        name = f"/default/t{len(self.views)}.{self.number}".replace(".", "-")
        table = random.random() < 0.5
        sync = random.choice(("commit", "commit", "periodic", "periodic"))
        view = self.views[name] = TopicView(name, table=table, sync=sync)
        columns = {"value": "int64"} if table else None
        self.engine.create_topic(name, columns, sync=sync)
        view.created = True
        self.append(view)

    def alter(self):
        tables = [view for view in self.views.values() if view.table]
        if not tables:
            return
        view = self.random.choice(tables)
        self.number += 1
        column = f"c{self.number}"
        view.columns_doubtful = {*view.columns, column}
        self.engine.alter_topic(view.name, add={column: "string"})
        view.columns, view.columns_doubtful = view.columns_doubtful, None

    def hold(self):
        view = self._any_view()
        offset = self.random.randint(0, view.kept_end)
        allowed = view.holds.setdefault("lake", [None])
        allowed.append(offset)
        try:
            self.engine.topic(view.name).hold("lake", offset)
        except FrazilError:
            # Below the start, or held already: what stands, stands.
            allowed.pop()
            return
        view.holds["lake"] = [offset]

    def append(self, view=None):
        random = self.random
        view = view or self._any_view()
        topic = self.engine.topic(view.name)
        count = random.choice((1, 1, 3))
        values = []
        for _ in range(count):
            self.number += 1
            values.append(self.number)
        view.sent.update(values)
        records = [{"value": v} if view.table else b"%d" % v for v in values]
        level = "fsynced" if random.random() < 0.3 else None
        if count == 1:
            ack = topic.append(records[0], ack=level)
        else:
            ack = topic.append_many(records, ack=level)
        require(isinstance(ack, Ack), "an append has no ack", ack=ack)
        require(ack.offset >= view.exposed, "offset of an ack is old", ack=ack, view=view.exposed)
        for offset, value in enumerate(values, ack.offset):
            known = view.values.setdefault(offset, value)
            require(known == value, "offset is used twice", offset=offset, first=known)
        view.exposed = ack.offset_last + 1
        if level or view.sync == "commit":
            view.kept_end = view.exposed

    def _any_view(self):
        return self.random.choice(list(self.views.values()))
