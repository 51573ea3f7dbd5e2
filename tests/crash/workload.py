"""Random work on a journal, drawn from a seed; the checker's model gets every answer."""

from __future__ import annotations

import attrs
import msgspec

from frazil.errors import Closed, FrazilError, InvalidRequest, Overloaded, Unavailable
from frazil.log import PLAIN, STATE_HOLD, Control, PlainCodec, Sender
from frazil.log import format as fmt
from frazil.model import Ack, TopicSpec
from tests.crash.checker import TopicModel, check_read, read_all, require

SYNC_MODES = (
    ("commit", "commit", "periodic", "periodic"),
    ("commit", "periodic"),
    ("periodic", "periodic"),
)
SIZES = (0, 8, 30, 100, 100, 300, 900, 2000)
SIZE_BIG = 40_000
TOPICS_MAX = 4
WINDOW = 5
BAD = b"bad"


class VersionedCodec(PlainCodec):
    """Payloads of a topic with schemas: each version has its own codec."""

    def __init__(self, model, version):
        self.model = model
        self.version = version

    def encode(self, records):
        if any(record.startswith(BAD) for record in records):
            raise InvalidRequest("record does not fit its columns")
        return super().encode(records)

    def upgraded(self, data, *, many):
        return VersionedCodec(self.model, max(self.model.schemas, default=0)), data


@attrs.define(eq=False)
class Sent:
    """A batch of an idempotent producer."""

    sequence: int
    payloads: list
    ack: object = None
    first: object = None
    """The offset it is known to have, from an ack or from reading it after a crash."""


@attrs.define(eq=False)
class ProducerModel:
    """An idempotent producer that repeats what it does not know to be durable."""

    name: str
    model: object
    epoch: int = 1
    sequence: int = 0
    batches: list = attrs.Factory(list)


@attrs.define(eq=False)
class Waiter:
    """One entry in flight."""

    kind: str
    model: object = None
    payloads: tuple = ()
    producer: object = None
    batch: object = None
    sync: bool = False
    numbers: list = attrs.Factory(list)
    answer: object = None
    value: object = None
    """What a control sets: the model takes it when it is acked."""


class Work:
    """Draws operations and applies them to one journal after another through crashes."""

    def __init__(self, random, clock):
        self.random = random
        self.clock = clock
        self.modes = random.choice(SYNC_MODES)
        self.models = {}
        self.producers = []
        self.journal = None
        self.number = 0
        self.id_next = 1
        self.lsn_acked = 0
        self.lsn_kept = 0
        self.disk = None
        self.doubtful_topics = {}
        self._codecs = {}

    # -- answers ---------------------------------------------------------------------------------

    def deliver(self, waiters, results):
        """Take the answers of a commit: this is the moment at which promises are made."""
        require(len(waiters) == len(results), "answers are missing", waiters=len(waiters))
        for waiter, result in zip(waiters, results, strict=True):
            require(waiter.answer is None, "an entry is answered twice", kind=waiter.kind)
            waiter.answer = result
            if isinstance(result, Ack):
                getattr(self, f"_acked_{waiter.kind}")(waiter, result)
            else:
                self._failed(waiter, result)

    def _failed(self, waiter, error):
        require(isinstance(error, FrazilError), "answer is no error of ours", error=error)
        if isinstance(error, Unavailable):
            return
        expected = waiter.kind in ("bad", "misfit") or isinstance(error, Overloaded | Closed)
        late = waiter.kind == "repeat" and self._may_be_forgotten(waiter)
        require(expected or late, "entry is refused", kind=waiter.kind, error=str(error))
        # A refused entry was never submitted: its records must not be there.
        for payload, number in zip(waiter.payloads, waiter.numbers, strict=False):
            waiter.model.numbers[payload].remove(number)

    def _may_be_forgotten(self, waiter):
        batches = waiter.producer.batches
        return waiter.batch not in batches[-WINDOW:]

    def _acked_append(self, waiter, ack):
        model = waiter.model
        fsynced = waiter.sync or self.journal.state.topics[model.spec.id].sync_on_append
        batch = waiter.batch
        if batch is not None and batch.first is not None:
            # Sent twice in one group, or found in the log after a crash: there is a first ack.
            self._check_repeat(batch, ack)
            model.repeated(ack, waiter.payloads, fsynced=fsynced)
            return
        if batch is not None and ack.offset < min(model.exposed, model.freed_end):
            # It survived a crash and was freed before anyone could look: this is the first ack.
            batch.first = ack.offset
            return
        model.acked(ack, waiter.payloads, fsynced=fsynced)
        require(ack.lsn >= self.lsn_acked, "sequence goes back", lsn=ack.lsn, last=self.lsn_acked)
        self.lsn_acked = ack.lsn
        if batch is not None:
            batch.ack, batch.first = ack, ack.offset

    _acked_repeat = _acked_append

    def _check_repeat(self, batch, ack):
        require(ack.offset == batch.first, "repeat has another ack", first=batch.first, ack=ack)
        require(batch.ack in (None, ack), "repeat has another ack", first=batch.ack, ack=ack)

    def _acked_bad(self, waiter, ack):
        require(False, "bad record is acked", ack=ack)

    _acked_misfit = _acked_bad

    def _acked_topic(self, waiter, ack):
        spec = waiter.value
        model = waiter.model
        self.models[spec.id] = model
        model.spec = spec
        model.specs = [spec]

    def _acked_schema(self, waiter, ack):
        version, data = waiter.value
        waiter.model.schemas[version] = data

    def _acked_hold(self, waiter, ack):
        name, offset = waiter.value
        waiter.model.holds[name] = [offset]

    def _acked_free(self, waiter, ack):
        waiter.value = True

    # -- operations ------------------------------------------------------------------------------

    def step(self):
        """Do one operation."""
        if not self.models:
            self.create()
            return
        chosen = self.random.random()
        for share, operation in OPERATIONS:
            chosen -= share
            if chosen < 0:
                operation(self)
                return
        self.append()

    def commit(self, entries):
        """Commit entries; everything must be answered on return."""
        waiters = [entry[5] for entry in entries]
        self.journal.commit(entries, self.deliver)
        for waiter in waiters:
            require(waiter.answer is not None, "an entry has no answer", kind=waiter.kind)

    def _control(self, control, waiter):
        return (None, None, control, 0, len(control.payload) + 100, waiter, None)

    def create(self):
        """Create a topic, or alter the sync mode of one."""
        random = self.random
        if len(self.models) < TOPICS_MAX:
            spec = TopicSpec(
                id=self.id_next,
                name=f"/default/t{self.id_next}",
                kind="message",
                created_us=1,
                sync=random.choice(self.modes),
            )
            self.id_next += 1
            model = TopicModel(spec)
        else:
            model = random.choice(list(self.models.values()))
            old = model.spec
            spec = msgspec.structs.replace(
                old, sync=random.choice(self.modes), version=old.version + 1
            )
            model.specs.append(spec)
        self.doubtful_topics[spec.id] = model
        waiter = Waiter("topic", model=model, value=spec)
        control = Control(fmt.KIND_TOPIC, spec.id, msgspec.msgpack.encode(spec))
        self.commit([self._control(control, waiter)])
        if isinstance(waiter.answer, Ack):
            del self.doubtful_topics[spec.id]

    def change_schema(self):
        """Give a topic its next schema, with appends before and behind it in one group."""
        model = self._any_model()
        version = max(model.schemas, default=0) + 1
        data = b"schema %d %d" % (model.spec.id, self.random.randrange(1 << 30))
        model.schemas_doubtful.add((version, data))
        waiter = Waiter("schema", model=model, value=(version, data))
        control = Control(fmt.KIND_SCHEMA, model.spec.id, data, schema=version)
        entries = [self._entry(model), self._control(control, waiter), self._entry(model)]
        self.commit(entries[self.random.randrange(2) :])

    def hold(self):
        """Set, move or drop a hold at a durable offset."""
        model = self._any_model()
        state = self._state(model)
        name = self.random.choice(("lake", "copy"))
        offset = None
        if self.random.random() < 0.8:
            offset = self.random.randint(state.start, state.durable)
        model.holds.setdefault(name, [None]).append(offset)
        waiter = Waiter("hold", model=model, value=(name, offset))
        payload = msgspec.msgpack.encode((STATE_HOLD, name, offset))
        control = Control(fmt.KIND_STATE, model.spec.id, payload)
        self.commit([self._control(control, waiter)])

    def tick(self):
        """Let time pass, or jump, and do what is due."""
        random = self.random
        if random.random() < 0.3:
            self.clock.jump(random.choice((-7200, -1, 0.5, 3600, 7200)))
        self.clock.advance(random.choice((0.001, 0.03, 0.03, 1.2)))
        self.journal.tick()

    def rotate(self):
        """Start a new segment, as at a full one."""
        self.journal.rotate()

    def seal(self):
        self.journal.seal_one()

    def free(self):
        """Free the oldest segments."""
        journal = self.journal
        ids = [segment.id for segment in journal.segments]
        first = self.random.choice(ids)
        for model in self.models.values():
            state = self._state(model)
            found = (s.summary(state.id) for s in journal.segments if s.id >= first)
            kept = min((summary[0] for summary in found if summary), default=state.next)
            model.freed_end = max(model.freed_end, kept)
        waiter = Waiter("free")
        self.commit([self._control(journal.free(first), waiter)])
        if waiter.value:
            journal.unlink(journal.detach_freed())

    def read(self):
        """Read a topic from anywhere; what was read must stay."""
        model = self._any_model()
        state = self._state(model)
        offset = self.random.randint(state.start, state.durable)
        records, _lost = read_all(self.journal, state.id, offset=offset)
        count = state.durable - offset
        require(len(records) == count, "a read skips offsets", topic=state.id, offset=offset)
        check_read(model, records)
        model.kept_end = max(model.kept_end, state.durable)

    def fill_disk(self):
        """Append while the disk is nearly full; afterwards there is room again."""
        disk = self.disk
        capacity = disk.capacity_bytes
        used = disk.space("/").total_bytes - disk.space("/").free_bytes
        disk.capacity_bytes = used + self.random.choice((0, 512, 2048))
        try:
            self.append()
        finally:
            disk.capacity_bytes = capacity

    # -- appends ---------------------------------------------------------------------------------

    def append(self):
        """Commit a group of 1 to 6 entries on any topics."""
        random = self.random
        entries = []
        for _ in range(random.choice((1, 1, 2, 3, 6))):
            if random.random() < 0.3:
                entries += self._idempotent()
            else:
                entries.append(self._entry(self._any_model()))
        self.commit(entries)

    def _any_model(self):
        return self.random.choice(list(self.models.values()))

    def _state(self, model):
        return self.journal.state.topics[model.spec.id]

    def _payload(self, model, *, prefix=b"v"):
        random = self.random
        self.number += 1
        size = SIZE_BIG if random.random() < 0.01 else random.choice(SIZES)
        payload = b""
        if size:
            payload = b"%s%d.%d;" % (prefix, model.spec.id, self.number)
            if len(payload) < size:
                payload = (payload * (size // len(payload) + 1))[:size]
        return payload

    def _codec(self, model):
        version = self._state(model).schema_version
        if not version:
            return PLAIN
        # Now and then an entry was validated just before the schema changed.
        version -= version > 1 and self.random.random() < 0.2
        key = (model.spec.id, version)
        if key not in self._codecs:
            self._codecs[key] = VersionedCodec(model, version)
        return self._codecs[key]

    def _tuple(self, waiter, payloads, *, sender, many):
        model = waiter.model
        for payload in payloads:
            self.number += 1
            model.numbers.setdefault(payload, []).append(self.number)
            waiter.numbers.append(self.number)
        data, count = (payloads, len(payloads)) if many else (payloads[0], 0)
        size = sum(map(len, payloads)) + 100
        return (self._state(model), self._codec(model), data, count, size, waiter, sender)

    def _entry(self, model):
        """Return an entry of no producer: one record or several, sometimes bad or retried."""
        random = self.random
        sync = random.random() < 0.2
        sender = Sender(sync=True) if sync else None
        many = random.random() < 0.3
        count = random.randint(1, 4) if many else 1
        versioned = self._state(model).schema_version
        if versioned and random.random() < 0.1:
            payloads = [self._payload(model, prefix=BAD) or BAD]
            waiter = Waiter("bad", model=model, payloads=payloads)
            return self._tuple(waiter, payloads, sender=sender, many=False)
        payloads = [self._payload(model) for _ in range(count)]
        if model.values and random.random() < 0.05:
            # A producer without a name sends again what it had an ack for.
            old = random.choice(list(model.values.values()))
            if old not in model.idempotent:
                payloads[0] = old
        waiter = Waiter("append", model=model, payloads=payloads, sync=sync)
        return self._tuple(waiter, payloads, sender=sender, many=many)

    def _idempotent(self):
        """Return entries of an idempotent producer: new, repeated, or refused ones."""
        random = self.random
        if not self.producers or (len(self.producers) < 3 and random.random() < 0.5):
            model = self._any_model()
            self.producers.append(ProducerModel(f"p{len(self.producers)}", model))
        producer = random.choice(self.producers)
        unsettled = [batch for batch in producer.batches if batch.first is None]
        if unsettled:
            # In order, for the journal knows them by their sequence.
            return [self._send(producer, batch, kind="append") for batch in unsettled]
        chosen = random.random()
        if chosen < 0.25 and producer.batches:
            batch = random.choice(producer.batches[-WINDOW - 1 :])
            return [self._send(producer, batch, kind="repeat")]
        if chosen < 0.35 and producer.batches and producer.batches[-1].first is not None:
            return [self._misfit(producer)]
        if chosen < 0.42 and producer.batches:
            producer.epoch += 1
            producer.sequence = 0
            producer.batches = []
        batch = self._new_batch(producer)
        entries = [self._send(producer, batch, kind="append")]
        if random.random() < 0.2:
            entries.append(self._send(producer, batch, kind="repeat"))
        return entries

    def _new_batch(self, producer):
        count = self.random.choice((1, 1, 3))
        payloads = [self._payload(producer.model) or b"i%d" % self.number for _ in range(count)]
        producer.model.idempotent.update(payloads)
        batch = Sent(producer.sequence, payloads)
        producer.sequence += count
        producer.batches.append(batch)
        return batch

    def _send(self, producer, batch, *, kind):
        sync = self.random.random() < 0.3
        sender = Sender(producer.name, producer.epoch, batch.sequence, sync)
        waiter = Waiter(
            kind,
            model=producer.model,
            payloads=batch.payloads,
            producer=producer,
            batch=batch,
            sync=sync,
        )
        return self._tuple(waiter, batch.payloads, sender=sender, many=len(batch.payloads) > 1)

    def _misfit(self, producer):
        """Return an entry that must be refused: a gap in the sequence, or a fenced epoch."""
        payload = b"misfit %d" % self.number
        fenced = self.random.random() < 0.5
        epoch = producer.epoch - 1 if fenced else producer.epoch
        sender = Sender(producer.name, epoch, producer.sequence + (0 if fenced else 1))
        waiter = Waiter("misfit", model=producer.model, payloads=[payload], producer=producer)
        return self._tuple(waiter, [payload], sender=sender, many=False)

    # -- after a crash ---------------------------------------------------------------------------

    def reconcile(self):
        """After recovery: producers send again what the log does not hold."""
        for model in list(self.doubtful_topics.values()):
            state = self.journal.state.topics.get(model.spec.id)
            if state is not None and model.spec.id not in self.models:
                self.models[model.spec.id] = model
        self.doubtful_topics.clear()

    def settle_producers(self):
        """Look which batches are there; those that are not must be sent again."""
        for producer in self.producers:
            model = producer.model
            found = {p: offset for offset, p in model.values.items()}
            for batch in producer.batches:
                batch.first = found.get(batch.payloads[0])
                if batch.first is None:
                    batch.ack = None


OPERATIONS = (
    (0.08, Work.create),
    (0.05, Work.change_schema),
    (0.07, Work.hold),
    (0.12, Work.tick),
    (0.06, Work.rotate),
    (0.06, Work.seal),
    (0.04, Work.free),
    (0.08, Work.read),
    (0.01, Work.fill_disk),
)
"""Shares of the operations; the rest are appends."""
