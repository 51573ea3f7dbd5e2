"""A broker's uploads in virtual time: topics, a store and metadata that misbehave, crashes.

The store and the metadata outlive every crash. Records that are not durable are lost with a crash,
and their offsets are given to other records afterwards: an upload of too much is found.
"""

from __future__ import annotations

import hashlib
import random
import types

import pytest

from frazil.errors import Closed, FrazilError, NotFound, Unavailable
from frazil.log import Frame, SpecialRange
from frazil.log import format as fmt
from frazil.metadata import MemoryStore
from frazil.model import TopicSpec
from frazil.objects import (
    LEASE_NAME,
    Descriptor,
    ObjectCatalog,
    Uploader,
    writer,
)
from frazil.objects import descriptor as rows
from frazil.objects import format as objects
from tests.crash.checker import Violation, require
from tests.support import SimulatedClock
from tests.support.simulated_fs import SimulatedCrash
from tests.support.simulated_store import SimulatedStore
from tests.unit.objects.objects_world import footer_of, records_of

BROKER = b"broker-id-of-16b"
SALT = b"saltsalt"
OBJECT_BYTES_MAX = 2_000
INDEX_BYTES = 300
RATES = ("partial", "truncated", "error_in_200", "own_412", "conflict_409", "lost_answer")
RATES_MORE = ("throttled", "stall", "missing", "flipped", "short", "stale_list")
LIVENESS_ROUNDS = 60
PIECE_BYTES_SMALL = 700


class Log:
    """One topic's frames, gaps and watermarks; `records` has what each offset holds."""

    def __init__(self, topic):
        self.spec = TopicSpec(id=topic, name=f"/default/t{topic}", kind="message", created_us=topic)
        self.frames = []
        self.gaps = []
        self.records = {}
        self.start = self.durable = self.next = 0

    def append(self, payloads, *, lsn, time_us):
        payload = fmt.plain_payload(payloads)
        parts = fmt.frame_buffers(
            fmt.KIND_ROWS,
            payload,
            len(payload),
            offset=self.next,
            salt=SALT,
            generation=1,
            lsn=lsn,
            synced=0,
            time_us=time_us,
            topic=self.spec.id,
            count=len(payloads),
            flags=fmt.FLAG_PLAIN,
            runs=fmt.encode_runs([fmt.Run(9, 1, lsn, len(payloads))]),
        )
        self.frames.append((self.next, self.next + len(payloads), b"".join(map(bytes, parts[:3]))))
        for payload in payloads:
            self.records[self.next] = payload
            self.next += 1

    def gap(self, records):
        """Declare offsets without records; they are durable at once, as all before them."""
        self.gaps.append((self.next, self.next + records))
        self.next += records
        self.durable = self.next

    def crash(self):
        """Lose what is not durable."""
        self.frames = [frame for frame in self.frames if frame[1] <= self.durable]
        self.records = {o: r for o, r in self.records.items() if o < self.durable}
        self.next = self.durable

    def free(self, offset):
        """Let the log forget whole frames and gaps below an offset."""
        ends = [end for _, end, _ in self.frames] + [end for _, end in self.gaps]
        self.start = max([self.start, *[end for end in ends if end <= offset]])
        self.frames = [frame for frame in self.frames if frame[0] >= self.start]


class Logs:
    """Frames out of the world's logs; see `TopicFrames`."""

    def __init__(self, logs):
        self.logs = logs

    def available(self, topic_id):
        return self.logs[topic_id].start, self.logs[topic_id].durable

    def state(self, topic_id):
        producer = types.SimpleNamespace(id=9, name="producer")
        spec = self.logs[topic_id].spec
        return types.SimpleNamespace(spec=spec, schemas={}, producers={9: producer})

    def gap(self, topic_id, offset):
        for first, end in self.logs[topic_id].gaps:
            if first <= offset < end:
                return SpecialRange(offset, end, "gap", "declared")
        return None

    def frames(self, topic_id, *, offset, end):
        log = self.logs[topic_id]
        if offset < log.start:
            raise NotFound("gone", offset=offset, offset_first=log.start)
        found = []
        for first, last, data in log.frames:
            if last <= offset or last > end or (found and first != found[-1][1]):
                continue
            head = fmt.read_head(data, 0)
            assert not fmt.frame_fault(memoryview(data), 0, head)
            start = fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
            found.append((first, last, Frame(head, data, start)))
        return [frame for _first, _last, frame in found]


class Metadata(MemoryStore):
    """Metadata that may be down or unsure, notes registrations, and calls a hook around every commit."""

    def __init__(self, *, clock, chance):
        super().__init__(clock=clock)
        self.chance = chance
        self.rate = 0.0
        self.on_step = lambda _name: None
        self.acting = lambda: ""
        self.puts = []

    @property
    def operations_max(self):
        return 24

    def commit(self, transaction):
        self.on_step("commit asked")
        draw = self.chance.random() if self.rate else 1.0
        if draw < self.rate:
            raise Unavailable("metadata is down")
        if draw < 2 * self.rate:
            raise Unavailable("no answer", outcome="unknown")
        before = self._rows.revision
        revision = super().commit(transaction)
        if revision != before:
            self.puts.append((self.acting(), set(transaction.puts)))
        self.on_step("commit done")
        if draw < 3 * self.rate:
            raise Unavailable("no answer", outcome="unknown")
        return revision

    def list(self, prefix, **given):
        if self.rate and self.chance.random() < 8 * self.rate:
            raise Unavailable("metadata is down")
        return super().list(prefix, **given)


class Life:
    """A broker from its start to its crash: catalog, uploaders, one epoch."""

    def __init__(self, world):
        lease = world.metadata.acquire(LEASE_NAME, "me", 86_000.0)
        self.epoch = lease.epoch
        self.source = world.source_class(world.logs)
        self.catalog = world.catalog_class(
            world.metadata, clock=world.clock, epoch=lambda: self.epoch
        )
        self.catalog.load()
        self.uploader = world.uploader_class(
            world.store,
            self.catalog,
            self.source,
            broker=BROKER,
            clock=world.clock,
            object_bytes_max=OBJECT_BYTES_MAX,
            on_step=world.step,
        )
        self.uploader.index_bytes = INDEX_BYTES
        self.expected = world.promised(self.catalog)


class World:
    """All of it, driven by a seed."""

    source_class = Logs
    catalog_class = ObjectCatalog
    uploader_class = Uploader

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = SimulatedClock(seed)
        self.store = SimulatedStore(self.clock, seed=seed, on_step=self.step)
        self.metadata = Metadata(clock=self.clock, chance=self.random)
        self.metadata.on_step = self.step
        self.metadata.acting = lambda: self.acting
        self.logs = {topic: Log(topic) for topic in range(1, self.random.randint(2, 5))}
        self.lsn = 0
        self.steps_left = None
        self.history = []
        self.checked = {}
        self.zombies = []
        self.acting = "owner"
        self.life = Life(self)
        calm = self.random.random() < 0.15
        self.fault_rate = 0.0 if calm else self.random.choice([0.01, 0.03, 0.08])
        self.metadata_rate = 0.0 if calm else self.random.choice([0.0, 0.02, 0.05])
        self.weights = self.random.choice([(6, 7, 3, 4, 2), (8, 1, 9, 4, 2), (8, 4, 4, 2, 1)])
        self.trouble(on=True)

    def trouble(self, *, on):
        if not on:
            self.store.heal()
            self.metadata.rate = 0.0
            self.steps_left = None
            return
        self.store.rates = dict.fromkeys((*RATES, *RATES_MORE), self.fault_rate)
        # A storm refuses everything for a while, which hides the other faults.
        self.store.rates["throttled"] = self.fault_rate / 4
        self.metadata.rate = self.metadata_rate

    # -- what happens -----------------------------------------------------------------------------

    def step(self, name):
        """One moment at which the broker may die; what was written is checked here, too."""
        self.history.append(f"  {self.acting}: {name}")
        if name in ("put done", "put_stream done") and self.acting == "owner":
            self.check_written()
        if self.steps_left is not None and self.acting != "zombie":
            self.steps_left -= 1
            if self.steps_left <= 0:
                self.steps_left = None
                raise SimulatedCrash(name)

    def run(self, steps=40):
        for _ in range(steps):
            if self.random.random() < 0.25:
                self.steps_left = self.random.randint(1, 14)
            act = self.random.choices(
                [self.publish, self.upload, self.ask, self.upkeep, self.haunt],
                self.weights,
            )[0]
            self.history.append(act.__name__)
            try:
                act()
            except SimulatedCrash as crash:
                self.history.append(f"crash at {crash}")
                self.restart()
        self.check()
        self.check_liveness()
        self.check()

    def restart(self):
        self.steps_left = None
        for log in self.logs.values():
            log.crash()
        if self.random.random() < 0.3:
            self.zombies.append(self.life)
        self.acting = "owner"
        rate, self.metadata.rate = self.metadata.rate, 0.0
        self.life = Life(self)
        self.metadata.rate = rate
        self.check()

    def publish(self):
        for log in self.random.choices(list(self.logs.values()), k=self.random.randint(1, 4)):
            if self.random.random() < 0.1:
                log.gap(self.random.randint(1, 5))
                continue
            self.lsn += 1
            sizes = [self.random.randint(0, 300) for _ in range(self.random.randint(1, 4))]
            payloads = [self.random.randbytes(size) for size in sizes]
            log.append(payloads, lsn=self.lsn, time_us=self.clock.now_us())
            if self.random.random() < 0.7:
                log.durable = log.next

    def upload(self):
        for topic in self.logs:
            if self.life.uploader.cycle(topic):
                self.history.append(f"  uploaded {topic}")
        self.clock.advance(self.random.choice([0.0, 1.0, 30.0, 700.0]))

    def ask(self):
        """Publishers wait for `uploaded`: the offsets that they are answered with must be true."""
        topics = self.random.sample(sorted(self.logs), self.random.randint(1, len(self.logs)))
        ends = {}
        for topic in topics:
            self.life.uploader.cycle(topic, is_waiting=True)
            ends[topic] = self.life.catalog.topic(topic).uploaded
        self.clock.advance(self.random.choice([0.0, 1.0, 5.0]))
        stored = self.loaded()
        for topic, end in ends.items():
            require(stored.topic(topic).uploaded >= end, "metadata lags", topic=topic, end=end)

    def upkeep(self):
        """Free local data below `uploaded`, expire objects, and delete garbage."""
        catalog = self.life.catalog
        for topic, log in self.logs.items():
            if self.random.random() < 0.5:
                log.free(self.random.randint(0, catalog.topic(topic).uploaded))
            if self.random.random() < 0.1:
                self.quietly(catalog.expire, topic, catalog.topic(topic).uploaded // 2)
        if not catalog.suspect:
            keys = self.garbage_of(catalog)
            if keys and self.quietly(self.store.delete, keys):
                self.quietly(catalog.forget_garbage, keys)

    def garbage_of(self, catalog):
        try:
            return [found.key for found in catalog.garbage()]
        except FrazilError:
            return []

    def haunt(self):
        """A broker of the past goes on as if nothing had happened."""
        if not self.zombies:
            return
        zombie = self.random.choice(self.zombies)
        self.acting = "zombie"
        before = self.rows()
        for topic in self.logs:
            zombie.uploader.retry(topic)
            zombie.uploader.cycle(topic)
        require(self.rows() == before, "a broker of the past changed the metadata")
        self.acting = "owner"

    def quietly(self, call, *given):
        try:
            call(*given)
        except FrazilError:
            return False
        return True

    # -- what must be true ------------------------------------------------------------------------

    def loaded(self):
        rate, self.metadata.rate = self.metadata.rate, 0.0
        catalog = ObjectCatalog(self.metadata, clock=self.clock)
        catalog.load()
        self.metadata.rate = rate
        return catalog

    def rows(self):
        return dict(self.metadata._memory.entries)

    def promised(self, catalog):
        """Return what this life must register first: whole objects that were begun before it."""
        found = {}
        for topic in self.logs:
            intent = catalog.topic(topic).state.intent
            stored = None if intent is None else self.store.objects.get(intent.key)
            if stored is None or not is_whole(stored.data):
                continue
            if catalog.topic(topic).uploaded == intent.first:
                misled = self.store.fired["missing"] + self.store.fired["flipped"]
                found[topic] = (intent.key, intent.first, misled)
        return found

    def check_written(self):
        """No registered byte is written again, and none that an earlier life had written whole."""
        key, _size = self.store.written[-1]
        parts = objects.parse_key(key)
        if parts is None:
            return
        uploaded = self.loaded().topic(parts.topic).uploaded
        require(parts.first >= uploaded, "confirmed bytes are uploaded again", key=key)
        promised, first, misled = self.life.expected.get(parts.topic, ("", -1, 0))
        honest = misled == self.store.fired["missing"] + self.store.fired["flipped"]
        again = honest and first == parts.first and promised != key
        require(not again, "written again though it was there", first=promised, again=key)

    def check(self):
        """Registered objects hold what was published, in order, each offset once."""
        catalog = self.loaded()
        for topic, picture in catalog.topics().items():
            log = self.logs[topic]
            at = picture.start
            for found in picture.descriptors:
                require(found.first == at, "a hole or an overlap", topic=topic, at=at, found=found)
                self.check_object(log, found)
                at = found.end
            is_end = at == picture.uploaded and at <= log.durable
            require(is_end, "objects end elsewhere", topic=topic, at=at, state=picture.state)
        self.check_rows_put_once()

    def check_object(self, log, found: Descriptor):
        stored = self.store.objects.get(found.key)
        require(stored is not None, "registered object is missing", key=found.key)
        if self.checked.get((log.spec.id, found)) is stored:
            return
        self.checked[log.spec.id, found] = stored
        data = stored.data
        try:
            footer = footer_of(data)
        except FrazilError as error:
            raise Violation(f"registered object is damaged: {found.key}: {error}") from error
        own = (footer.content_sha256, len(data), footer.topic, footer.first, footer.end)
        hashed = heads_hash(data, objects.HEADER_BYTES + footer.length)
        wanted = (hashed, found.size, log.spec.id, found.first, found.end)
        require(own == wanted, "footer, frames and descriptor differ", own=own, wanted=wanted)
        records = dict(records_of(data, found, log.spec.id))
        expected = {o: r for o, r in log.records.items() if found.first <= o < found.end}
        is_same = records == expected and found.records == len(records)
        require(is_same, "records differ", key=found.key, got=records.keys(), of=expected.keys())
        empty = {o for r in found.ranges for o in range(r.first, r.end)}
        offsets = sorted([*empty, *records])
        is_full = offsets == list(range(found.first, found.end))
        require(is_full, "gaps do not fit", key=found.key, ranges=found.ranges)

    def check_rows_put_once(self):
        """A descriptor's row is put once."""
        seen = set()
        for _acting, puts in self.metadata.puts:
            for key in puts:
                if key.startswith(rows.GARBAGE_PREFIX) or key.endswith(f"/{rows.STATE}"):
                    continue
                require(key not in seen, "registered twice", key=key)
                seen.add(key)
        self.metadata.puts[:] = [("", seen)]

    def check_liveness(self):
        """When nothing goes wrong any more, everything durable is uploaded, with no help."""
        self.trouble(on=False)
        self.acting = "owner"
        for log in self.logs.values():
            log.durable = log.next
        for _ in range(LIVENESS_ROUNDS):
            self.clock.advance(70.0)
            more = [self.life.uploader.cycle(topic) for topic in self.logs]
            ends = [self.life.catalog.topic(t).uploaded for t in self.logs]
            if not any(more) and ends == [log.durable for log in self.logs.values()]:
                return
        troubles = self.life.uploader.troubles
        raise Violation(f"does not come to an end: {ends} {troubles}")


def is_whole(data):
    try:
        footer_of(data)
    except FrazilError:
        return False
    return True


def heads_hash(data, end):
    """Return the hash of the heads of an object's frames."""
    digest = hashlib.sha256()
    position = objects.HEADER_BYTES
    while position < end:
        digest.update(data[position : position + fmt.FRAME_HEAD_BYTES])
        position += fmt.FRAME_PREFIX_BYTES + fmt.read_head(data, position).length
    return digest.digest()


def failure(seed, world_class=World, **given):
    """Return a world after its life, and what was wrong with it."""
    world = world_class(seed)
    with pytest.MonkeyPatch.context() as patch:
        if seed % 3 == 0:
            # Most objects of these lives are larger than a piece: they are streamed.
            patch.setattr(writer, "PIECE_BYTES_MAX", PIECE_BYTES_SMALL)
        try:
            world.run(**given)
        except (Violation, AssertionError, Closed) as error:
            return world, error
    return world, None


def command(seed):
    """Return how to repeat a life."""
    return (
        f"FRAZIL_TEST_UPLOAD_SEED_FIRST={seed} FRAZIL_TEST_UPLOAD_SEEDS=1 "
        "python -m pytest tests/property/test_upload_machine.py -k promise"
    )
