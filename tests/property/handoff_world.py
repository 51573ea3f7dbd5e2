"""An engine with all its tiers and a store in virtual time, and readers that never stop.

Records go from memory to files to objects, and are given up on the way: a reader must get
each offset once, in order, wherever it is by then. The store outlives every end of the engine.
"""

from __future__ import annotations

import contextlib
import random
from functools import partial
from unittest.mock import patch

from frazil.config import Settings
from frazil.engine import Engine
from frazil.errors import CorruptionError, FrazilError, NotFound, Overloaded, Unavailable
from frazil.objects import ObjectsSource
from tests.crash.checker import Violation, require
from tests.property.tiers_world import LOG, let_go
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.log_limits import set_log_limits
from tests.support.objects_limits import set_objects_limits
from tests.support.simulated_fs import SimulatedCrash
from tests.support.simulated_store import SimulatedStore
from tests.support.tier_limits import set_tier_limits

TOPICS = ("/default/a", "/default/b")
STEPS = 120
READERS_MAX = 6
PASSING = ("throttled", "stall", "missing", "flipped", "short")
DEFAULTS = Settings(data_dir="/data")
FAILURES = (AssertionError, FrazilError, Violation, SimulatedCrash)


def settings_of(chance):
    """Sizes so small that a short life meets every limit; each life has its own."""
    objects = {
        "store": "memory",
        "root": "simulated",
        "object_bytes_max": chance.choice((1_000, 4_000, 1 << 20)),
        "interval_s": 1.0,
    }
    disk = {
        "bytes_max": chance.choice((1, 20_000, 100 << 20)),
        "log_keep_s": chance.choice((0.0, 5.0)),
    }
    memory = {"enabled": chance.random() < 0.8, "retention_s": 1.0, "flush_offsets": 40}
    log = {
        **LOG,
        "segment_bytes_max": chance.choice((4096, 16 << 10)),
        "retention_age_s": chance.choice((1.0, 1_000.0)),
    }
    sections = {"objects": objects, "disk": disk, "memory": memory, "log": log}
    update = {
        name: getattr(DEFAULTS, name).model_copy(update=values) for name, values in sections.items()
    }
    return DEFAULTS.model_copy(update=update)


class Follower:
    """Reads a topic from an offset on for ever; it may hold nothing, or pin what it needs."""

    def __init__(self, world, topic, start, *, pinned):
        self.world = world
        self.topic = topic
        self.offset = start
        self.seen = 0
        self.pinned = pinned
        self.expired = 0
        self.reader = self.open() if pinned else None

    def open(self):
        # What objects gave up before is in the log by chance, if it is, and may go at any time.
        self.expired = self.world.expired(self.topic)
        return self.world.engine.topic(self.topic).tail(self.offset)

    def reopened(self):
        """Go on in the next life of the engine."""
        if self.pinned:
            self.reader = self.open()

    def read(self, pieces=1):
        """Read some pieces; returns whether anything came."""
        for _ in range(pieces):
            batches = self._poll() if self.pinned else self._piece()
            if not batches:
                return False
            for batch in batches:
                self._take(batch)
        return True

    def _poll(self):
        batch = self.reader.poll()
        return [] if batch is None else [batch]

    def _piece(self):
        runtime = self.world.engine.topic(self.topic).runtime
        size = self.world.read_bytes
        try:
            piece = runtime.history.read(runtime.state.id, offset=self.offset, bytes_max=size)
        except NotFound as error:
            first = error.details["offset_first"]
            allowed = self.world.expired(self.topic)
            require(
                self.offset < first <= allowed, "gone too early", offset=self.offset, first=first
            )
            self.offset = first
            return self._piece()
        return piece.batches

    def _take(self, batch):
        if self.offset < batch.offset <= self.expired:
            gaps = [(gap.first, gap.end) for gap in batch.gaps]
            require(gaps == [(self.offset, batch.offset)], "a gap is not reported", gaps=gaps)
            self.offset = batch.offset
        require(batch.offset == self.offset, "gap or repeat", want=self.offset, got=batch.offset)
        payloads = batch.data.column("payload").to_pylist()
        wanted = self.world.records[self.topic][batch.offset : batch.offset_next]
        require(payloads == wanted, "other records", offset=batch.offset)
        self.offset = batch.offset_next
        self.seen += batch.count


class World:
    """One life: an engine, its disk, its store, its readers."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.settings = settings_of(self.chance)
        self.tier_limits = {
            "file_bytes": 8 << 10,
            "small_file_bytes": 4 << 10,
            "row_group_rows": self.chance.choice((3, 50)),
        }
        self.read_bytes = self.chance.choice((1, 500, 1 << 20))
        self.index_bytes = self.chance.choice((200, 1_000, 1 << 20))
        self.ahead_bytes = self.chance.choice((64 << 10, 1 << 20))
        self.clock = SimulatedClock(seed)
        self.disk = SimulatedFileSystem(seed)
        self.store = SimulatedStore(self.clock, seed=seed, latency_s=0.001)
        self.records = {topic: [] for topic in TOPICS}
        self.readers = []
        self.history = []
        self.engine = None

    def note(self, text):
        self.history.append(text)

    # -- life --------------------------------------------------------------------------------------

    def open(self):
        set_objects_limits(retry_s=0.0)
        set_tier_limits(**self.tier_limits)
        set_log_limits(
            prefill_bytes=1024, rows_arrow_min=3, read_bytes=self.read_bytes, check_at_open=False
        )
        source = partial(ObjectsSource, ahead_bytes=self.ahead_bytes)
        with (
            patch("frazil.objects.runtime.open_store", lambda _settings, clock: self.store),
            patch("frazil.objects.runtime.ObjectsSource", source),
        ):
            self.engine = Engine(
                self.settings, file_system=self.disk, clock=self.clock, threads=False
            )
        self.engine.objects.uploader.index_bytes = self.index_bytes
        for topic in TOPICS:
            options = {}
            if topic == TOPICS[1]:
                options["objects_retention_bytes"] = 3_000
            self.engine.create_topic(topic, exist_ok=True, **options)
        for reader in self.readers:
            reader.reopened()

    def reopen(self):
        self.note("restart")
        self.engine.close()
        self.open()

    def crash(self):
        power = self.chance.random() < 0.5
        self.note(f"crash power={power}")
        engine, self.engine = self.engine, None
        self.disk.crash()
        let_go(engine)
        self.disk = (
            self.disk.crash_clone(self.chance.getrandbits(48)) if power else self.disk.kill_clone()
        )
        self.open()

    def expired(self, topic):
        """Return the first offset that remote retention left, as far as it may have gone."""
        topic_id = self.engine.topic(topic).runtime.state.id
        return self.engine.objects.catalog.topic(topic_id).start

    # -- steps -------------------------------------------------------------------------------------

    def publish(self):
        topic = self.chance.choice(TOPICS)
        known = self.records[topic]
        payloads = [
            b"%s:%d:" % (topic.encode(), len(known) + n) + b"x" * self.chance.choice((0, 20, 300))
            for n in range(self.chance.choice((1, 1, 5, 30)))
        ]
        self.note(f"publish {topic} {len(payloads)}")
        try:
            ack = self.engine.topic(topic).append_many(payloads)
        except Overloaded:
            # Files are full of what was not uploaded yet: nothing was written.
            self.note("refused")
            return
        require(ack.offset == len(known), "other offset", ack=ack, want=len(known))
        known += payloads

    def upload(self):
        self.note("upload")
        self.engine.objects.run_once()

    def move(self):
        """Records move between the tiers at hand, or are given up there."""
        self.note("move")
        engine = self.engine
        if engine.has_tiers and self.chance.random() < 0.5:
            engine.tiers.flush()
            engine.tiers.evict()
        if self.chance.random() < 0.5:
            engine.log.queue.call(engine.log.journal.rotate)
        self.clock.advance(self.chance.choice((0.5, 10.0, 2_000.0)))
        engine.objects.move_holds()
        if engine.has_tiers:
            engine.tiers.run_once()
            require(not engine.tiers.errors, "a move failed", errors=engine.tiers.errors)
        engine.upkeep.run_once()

    def retain(self):
        self.note("retain")
        self.clock.advance(120.0)
        with contextlib.suppress(Unavailable):
            self.engine.objects.retention.run()

    def begin(self):
        topic = self.chance.choice(TOPICS)
        runtime = self.engine.topic(topic).runtime
        held = runtime.history.range(runtime.state.id)
        if len(self.readers) >= READERS_MAX or held.first >= held.end:
            return
        start = self.chance.choice((held.first, self.chance.randint(held.first, held.end)))
        self.note(f"reader of {topic} from {start}")
        pinned = self.chance.random() < 0.5
        self.readers.append(Follower(self, topic, start, pinned=pinned))

    def read(self):
        for reader in self.readers:
            if self.chance.random() < 0.5:
                before = sum(self.store.fired.values())
                try:
                    reader.read(self.chance.choice((1, 1, 5)))
                except (Unavailable, CorruptionError):
                    if sum(self.store.fired.values()) == before:
                        raise
                    self.note("trouble passed to a reader")

    def faults(self):
        rates = {kind: self.chance.choice((0.0, 0.1)) for kind in PASSING}
        self.note(f"faults {rates}")
        self.store.rates.update(rates)

    def run(self, steps=STEPS):
        """Live, then heal: in the end every reader gets everything."""
        self.open()
        weighted = (
            *[self.publish] * 6,
            *[self.read] * 8,
            *[self.upload] * 5,
            *[self.move] * 4,
            *[self.begin] * 2,
            self.retain,
            self.faults,
            self.store.heal,
            self.chance.choice((self.reopen, self.crash)),
        )
        for _ in range(steps):
            self.chance.choice(weighted)()
        self.settle()

    def settle(self):
        """With a store that works again, everything is uploaded and read to its end."""
        self.store.heal()
        self.clock.advance(1_000.0)
        self.engine.objects.run_once()
        status = self.engine.objects.status()["topics"]
        behind = {name: each for name, each in status.items() if each["lag_records"]}
        require(not behind, "not uploaded", behind=behind)
        for topic in TOPICS:
            runtime = self.engine.topic(topic).runtime
            held = runtime.history.range(runtime.state.id)
            require(held.end == len(self.records[topic]), "another head", held=held)
            require(held.first <= self.expired(topic), "start is not remote", held=held)
            if topic == TOPICS[0]:
                require(held.first == 0, "records are gone that nothing lets go", held=held)
            self.readers.append(Follower(self, topic, held.first, pinned=False))
        for reader in self.readers:
            while reader.read():
                pass
            end = len(self.records[reader.topic])
            require(reader.offset == end, "reader does not end", at=reader.offset, end=end)
        self.engine.close()


def failure(seed, **options):
    """Run a life; return it with its error, None if it had none."""
    world = World(seed)
    try:
        world.run(**options)
    except FAILURES as error:
        return world, error
    return world, None
