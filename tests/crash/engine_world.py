"""An engine on a simulated disk beside a list model of what it promised, driven by a `Random`.

The model knows only what the API answered: acks, reads, descriptions. An operation that a crash cut
short is in doubt: after the next opening it happened whole or not at all.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from functools import cache, partial

import attrs
import pyarrow as pa

from frazil.config import ProducerSettings, Settings, TopicSettings
from frazil.config.sections import DAY, LogSettings
from frazil.engine import Engine
from frazil.errors import NotFound
from frazil.model import Ack
from frazil.query import pool
from frazil.topic import known_topics
from tests.crash.checker import require
from tests.support import SimulatedClock, SimulatedCrash, SimulatedFileSystem
from tests.support.log_limits import set_log_limits

CONNECT = pool.connect_locked
LIMITS = {"prefill_bytes": 1024, "rows_arrow_min": 3}

ROOT = "/data"
LOG = LogSettings(
    segment_bytes_max=64 << 10,
    write_bytes_max=16 << 10,
    retention_age_s=0.0,
    retention_bytes=0,
    ballast_bytes=0,
    free_bytes_min=0,
    free_ratio_min=0.0,
)
SETTINGS = Settings(data_dir=ROOT).model_copy(
    update={
        "log": LOG,
        "topics": TopicSettings(delete_grace_s=365 * DAY),
        "producers": ProducerSettings(window_age_s=365 * DAY),
    }
)


@contextlib.contextmanager
def many_lives():
    """Make room for many lives of an engine, crashes among them, in one process.

    SQLite may call a dead disk on its way out: what it meets there has nobody to go to. What
    crashed is collected before the end, so that it does not speak up in another test. SQL of all
    lives runs in one instance of DuckDB: to start one costs more than most steps of a life.
    """
    hook = sys.unraisablehook
    connect = pool.connect_locked

    def pass_over(unraisable):
        if not isinstance(unraisable.exc_value, SimulatedCrash):
            hook(unraisable)

    sys.unraisablehook = pass_over
    pool.connect_locked = _connect
    try:
        yield
    finally:
        pool.connect_locked = connect
        gc.collect()
        sys.unraisablehook = hook


def _connect(*, directories, **settings):
    return _instance(tuple(directories), **settings).cursor()


@cache
def _instance(directories, **settings):
    return CONNECT(directories=directories, **settings)


@attrs.define(eq=False)
class TopicModel:
    """One topic as it was seen from outside."""

    name: str
    kind: str
    sync: str
    columns: dict = attrs.Factory(dict)
    """name → number of the column, which renames keep"""
    wide: set = attrs.Factory(set)
    """numbers of the columns that are `long`"""
    columns_doubt: dict | None = None
    values: dict = attrs.Factory(dict)
    """offset → row (by number of the column) of everything acked or read"""
    doubt: dict = attrs.Factory(dict)
    """serial → row of what was submitted without an answer"""
    kept_end: int = 0
    """Everything known below it must survive."""
    exposed: int = 0
    """The end of all offsets that ever left the engine."""
    freed_end: int = 0
    """Records below it may be gone."""
    holds: dict = attrs.Factory(dict)
    holds_doubt: dict | None = None
    sent: dict = attrs.Factory(dict)
    """producer → (sequence, rows, ack or None)"""

    def row(self, record):
        """A record that was read, by the numbers of its columns."""
        if self.kind == "message":
            return {0: int(record["payload"])}
        return {number: record[name] for name, number in self.columns.items()}

    def expected(self, row):
        """A stored row as the current columns show it."""
        if self.kind == "message":
            return row
        return {number: row.get(number) for number in self.columns.values()}


class World:
    """The engine, its disk, its clock and the models; every verb works on both sides."""

    def __init__(self, random, seed=0, *, settings=SETTINGS):
        self.random = random
        self.settings = settings
        self.clock = SimulatedClock(seed)
        self.disk = SimulatedFileSystem(seed)
        self.models: dict[str, TopicModel] = {}
        self.creating: TopicModel | None = None
        self.deleting: TopicModel | None = None
        self.serial = 0
        self.column = 0
        self.engine: Engine | None = None
        self.cache_lives = True
        """No power was lost since the last opening: all that was written is still to be seen."""
        self.history: list[str] = []
        self.answers: list[object] = []

    # -- life ------------------------------------------------------------------------------------

    def open(self):
        """Open the engine on the current disk."""
        set_log_limits(**LIMITS)
        self.engine = Engine(self.settings, file_system=self.disk, clock=self.clock, threads=False)

    def close(self):
        """Close cleanly: from then on everything must survive."""
        self.engine.close()
        failed = self.engine.log.journal.failed
        require(failed is None, "the journal failed at its end", failed=failed)
        self.keep_all()

    def keep_all(self):
        """No power was lost: whatever was seen is still there."""
        for model in self.models.values():
            model.kept_end = model.exposed

    def kill(self):
        """End the process only: what it wrote stays in the cache of the operating system."""
        self._note("-- killed")
        self.disk = self.disk.kill_clone()

    def lose_power(self):
        """End the machine: what was not synced may be gone."""
        self._note("-- power lost")
        self.cache_lives = False
        self.disk = self.disk.crash_clone(self.random.getrandbits(48))

    def topic(self, model):
        return self.engine.topic(model.name)

    def _note(self, text):
        self.history.append(text)

    def act(self, verb):
        """Do one operation, on a topic that chance chooses; without a topic create one."""
        random, models = self.random, list(self.models.values())
        if verb == "create" or not models:
            sync = random.choice(("commit", "commit", "periodic", "periodic"))
            self.create(kind=random.choice(("message", "table")), sync=sync)
            return
        model = random.choice(models)
        ack = random.choice((None, None, "fsynced", "received"))
        if verb == "append":
            self.append(model, ack=ack)
        elif verb in ("append_many", "append_arrow"):
            getattr(self, verb)(model, random.randint(1, 8), ack=ack)
        elif verb == "produce":
            self.produce(model, random.choice(("p", "q")))
        elif verb in ("hold", "delete"):
            getattr(self, verb)(model)
        elif verb != "alter":
            getattr(self, verb)()
        elif model.kind == "table":
            self.alter(model)

    # -- topics ----------------------------------------------------------------------------------

    def create(self, *, kind, sync="commit"):
        """Create a topic of either kind."""
        self.serial += 1
        name = f"/sim/t{self.serial}"
        model = TopicModel(name, kind, sync)
        columns = None
        if kind == "table":
            model.columns = {"n": self._new_column(), "v": self._new_column()}
            model.wide = {model.columns["n"]}
            columns = {"n": "long", "v": "int"}
        self._note(f"create {name} {kind} {sync}")
        self.creating = model
        self.engine.create_topic(name, columns, sync=sync)
        self.models[name] = model
        self.creating = None
        return model

    def delete(self, model):
        """Delete a topic."""
        self._note(f"delete {model.name}")
        self.deleting = model
        self.engine.delete_topic(model.name)
        del self.models[model.name]
        self.deleting = None

    def _new_column(self):
        self.column += 1
        return self.column

    def alter(self, model):
        """Add, widen, rename or drop a column."""
        columns = dict(model.columns)
        others = [name for name in columns if name != "n"]
        narrow = [name for name in others if columns[name] not in model.wide]
        verb = self.random.choice(["add", "add", "rename", "drop", "widen"])
        number = self._new_column()
        if verb == "add" or not others or (verb == "widen" and not narrow):
            columns[f"c{number}"] = number
            change = {"add": {f"c{number}": "int"}}
        elif verb == "rename":
            old = self.random.choice(others)
            columns = {f"r{number}" if n == old else n: at for n, at in columns.items()}
            change = {"rename": {old: f"r{number}"}}
        elif verb == "drop":
            old = self.random.choice(others)
            del columns[old]
            change = {"drop": [old]}
        else:
            old = self.random.choice(narrow)
            change = {"widen": {old: "long"}}
            model.wide.add(columns[old])
        self._note(f"alter {model.name} {change}")
        model.columns_doubt = columns
        self.engine.alter_topic(model.name, **change)
        model.columns, model.columns_doubt = columns, None

    # -- publish ---------------------------------------------------------------------------------

    def rows(self, model, count):
        """New rows, each with a number that no other row has."""
        result = []
        for _ in range(count):
            self.serial += 1
            if model.kind == "message":
                result.append({0: self.serial})
                continue
            row = {at: self.random.randint(0, 99) for at in model.columns.values()}
            row[model.columns["n"]] = self.serial
            result.append(row)
        return result

    def records(self, model, rows):
        """The rows as the API takes them."""
        if model.kind == "message":
            return [b"%d" % row[0] for row in rows]
        return [{name: row.get(at) for name, at in model.columns.items()} for row in rows]

    def append(self, model, *, ack=None):
        """Publish one record."""
        rows = self.rows(model, 1)
        [record] = self.records(model, rows)
        self._publish(model, rows, lambda: self.topic(model).append(record, ack=ack), ack)

    def append_many(self, model, count, *, ack=None):
        """Publish several records in one call."""
        rows = self.rows(model, count)
        records = self.records(model, rows)
        self._publish(model, rows, lambda: self.topic(model).append_many(records, ack=ack), ack)

    def append_arrow(self, model, count, *, ack=None):
        """Publish a record batch."""
        rows = self.rows(model, count)
        records = self.records(model, rows)
        if model.kind == "message":
            table = pa.table({"payload": pa.array(records, pa.binary())})
        else:
            table = pa.Table.from_pylist(records, schema=self.topic(model).schema)
        self._publish(model, rows, lambda: self.topic(model).append_arrow(table, ack=ack), ack)

    def _publish(self, model, rows, call, ack):
        self._note(f"publish {model.name} {len(rows)} from {self.key(model, rows[0])} ack={ack}")
        for row in rows:
            model.doubt[self.key(model, row)] = row
        durable = model.sync == "commit" or ack == "fsynced"
        self._listen()
        try:
            answer = call()
        except SimulatedCrash:
            if self.answers and all(isinstance(each, Ack) for each in self.answers):
                # The ack left the engine before the crash: another thread may have seen it.
                first, last = self.answers[0], self.answers[-1]
                whole = Ack(first.offset, last.offset_last, last.lsn)
                if whole.offset_last - whole.offset + 1 == len(rows):
                    self.acked(model, rows, whole, durable=durable)
            raise
        self.acked(model, rows, answer, durable=durable)

    def _listen(self):
        """Hear every answer at the moment it is given."""
        self.answers.clear()
        journal = self.engine.log.journal
        if "commit" not in vars(journal):
            journal.commit = partial(self._commit, journal.commit)

    def _commit(self, commit, entries, deliver):
        def heard(waiters, results):
            self.answers.extend(results)
            deliver(waiters, results)

        commit(entries, heard)

    def key(self, model, row):
        return row[0] if model.kind == "message" else row[model.columns["n"]]

    def acked(self, model, rows, ack, *, durable):
        """Take an ack into the model: its offsets are new and belong to these rows for ever."""
        count = ack.offset_last - ack.offset + 1
        require(count == len(rows), "ack covers another count", ack=ack, rows=len(rows))
        for offset, row in enumerate(rows, ack.offset):
            require(offset not in model.values, "offset used twice", topic=model.name, at=offset)
            model.values[offset] = row
            model.doubt.pop(self.key(model, row), None)
        require(ack.offset >= model.exposed, "offset goes backwards", ack=ack, was=model.exposed)
        model.exposed = max(model.exposed, ack.offset_last + 1)
        if durable:
            model.kept_end = max(model.kept_end, ack.offset_last + 1)

    def produce(self, model, name):
        """Publish the next batch of an idempotent producer, now and then a repeat of the last."""
        last = model.sent.get(name)
        if last is not None and self.random.random() < 0.3:
            self.repeat(model, name)
            return
        sequence = 0 if last is None else last[0] + len(last[1])
        rows = self.rows(model, self.random.randint(1, 3))
        self._note(f"produce {model.name} {name} {sequence} from {self.key(model, rows[0])}")
        for row in rows:
            model.doubt[self.key(model, row)] = row
        model.sent[name] = (sequence, rows, None)
        ack = self._produce(model, name, sequence, rows)
        model.sent[name] = (sequence, rows, ack)
        self.acked(model, rows, ack, durable=True)

    def _produce(self, model, name, sequence, rows):
        return self.topic(model).append_many(
            self.records(model, rows), producer=name, sequence=sequence, ack="fsynced"
        )

    def repeat(self, model, name):
        """Send a producer's last batch again: the first ack comes back, or it is new now."""
        sequence, rows, first = model.sent[name]
        self._note(f"repeat {model.name} {name} {sequence}")
        known = {self.key(model, row): at for at, row in model.values.items()}
        ack = self._produce(model, name, sequence, rows)
        at = known.get(self.key(model, rows[0]))
        if first is not None:
            require(ack == first, "a repeat got another ack", ack=ack, first=first)
        elif at is not None:
            require(ack.offset == at, "a repeat was stored twice", ack=ack, at=at)
        else:
            self.acked(model, rows, ack, durable=True)
        model.sent[name] = (sequence, rows, ack)

    # -- holds, segments, time -------------------------------------------------------------------

    def hold(self, model):
        """Set, advance or drop a hold."""
        topic = self.topic(model)
        marks = topic.describe()["watermarks"]
        holds = dict(model.holds)
        name = self.random.choice(["a", "b"])
        if name not in holds:
            holds[name] = self.random.randint(marks["start"], marks["durable"])
            call, arguments = topic.hold, (name, holds[name])
        elif self.random.random() < 0.4:
            del holds[name]
            call, arguments = topic.drop, (name,)
        else:
            holds[name] = self.random.randint(holds[name], marks["durable"])
            call, arguments = topic.advance, (name, holds[name])
        self._note(f"{call.__name__} {model.name} {arguments}")
        model.holds_doubt = holds
        call(*arguments)
        model.holds, model.holds_doubt = holds, None
        model.kept_end = max(model.kept_end, topic.describe()["watermarks"]["durable"])

    def rotate(self):
        """Start a new segment, as its size would."""
        self._note("rotate")
        self.engine.log.queue.call(self.engine.log.journal.rotate)

    def seal(self):
        """Write the footers that wait."""
        self._note("seal")
        self.engine.upkeep.seal()

    def free(self):
        """Free whatever no hold needs; settings keep nothing else."""
        self._note("free")
        self.note_freed()
        self.engine.upkeep.free()

    def note_freed(self):
        """Take into the models what may be freed now."""
        for model in self.models.values():
            floor = min(model.holds.values(), default=None)
            if model.holds_doubt is None:
                head = self.topic(model).describe()["watermarks"]["head"]
                model.freed_end = max(model.freed_end, head if floor is None else floor)

    def tick(self):
        """Let time pass: periodic syncs and markers become due."""
        self._note("tick")
        self.clock.advance(self.random.choice([0.03, 1.5]))
        self.engine.log.journal.tick()

    def reopen(self):
        """Close cleanly, open again and check."""
        self._note("reopen")
        self.close()
        self.open()
        self.check()

    def sync(self):
        """Let readers see everything, as an idle journal does in time."""
        self.engine.log.journal.write_marker()

    # -- checks ----------------------------------------------------------------------------------

    def read(self, model, *, start=None, limit=None, bytes_max=None):
        """Read and compare with the model; return the offsets that were read."""
        self.sync()
        reader = self.topic(model).read(
            "earliest" if start is None else start, limit=limit, bytes_max=bytes_max
        )
        position = reader.offset
        seen = []
        for batch in reader:
            require(not batch.gaps, "offsets are skipped", topic=model.name, gaps=batch.gaps)
            for record in batch.records():
                require(record["_offset"] == position, "undeclared gap", at=position, got=record)
                self._check_record(model, position, model.row(record))
                seen.append(position)
                position += 1
        return seen

    def _check_record(self, model, offset, row):
        known = model.values.get(offset)
        if known is None:
            key = row[0] if model.kind == "message" else row[model.columns["n"]]
            known = model.doubt.pop(key, None)
            require(known is not None, "record was invented", offset=offset, row=row)
            require(offset >= model.exposed, "offset used twice", offset=offset, row=row)
            model.values[offset] = known
        require(
            model.expected(known) == row,
            "another record at this offset",
            topic=model.name,
            offset=offset,
            want=model.expected(known),
            got=row,
        )

    def check(self):
        """Check every promise after an opening; what was in doubt is settled by what is there."""
        self._settle_topics()
        self.check_metadata()
        ahead = [text for text in self.engine.warnings if "metadata knows batch" in text]
        require(not ahead, "metadata was newer than the log", warnings=ahead)
        if self.cache_lives:
            self.keep_all()
        self.cache_lives = True
        for model in self.models.values():
            self._check_topic(model)

    def _settle_topics(self):
        names = set(self.engine.topics())
        if self.creating is not None and self.creating.name in names:
            self.models[self.creating.name] = self.creating
        if self.deleting is not None and self.deleting.name not in names:
            self.models.pop(self.deleting.name, None)
        self.creating = self.deleting = None
        require(names == set(self.models), "other topics", have=names, want=set(self.models))

    def _check_topic(self, model):
        facts = self.engine.describe(model.name)
        self._settle_facts(model, facts)
        marks = facts["watermarks"]
        require(not facts["lost"], "ranges are lost", topic=model.name, lost=facts["lost"])
        require(facts["kind"] == model.kind, "another kind", facts=facts)
        start, head = marks["start"], marks["head"]
        # A declared gap behind the freed records may go with them: nobody can miss it.
        gone = [at for at in model.values if model.freed_end <= at < min(start, model.kept_end)]
        require(not gone, "held records were freed", topic=model.name, marks=marks, gone=gone)
        require(head >= model.kept_end, "head falls back", marks=marks, was=model.kept_end)
        for at in [at for at in model.values if at < start]:
            del model.values[at]
        seen = set(self.read(model))
        tail = [at for at in model.values if at not in seen]
        kept = [at for at in tail if at < model.kept_end]
        require(not kept, "acked records are lost", topic=model.name, offsets=kept, marks=marks)
        for at in tail:
            require(model.sync != "commit", "acked records are lost", topic=model.name, at=at)
            del model.values[at]
        require(not facts["gaps"], "offsets are skipped", topic=model.name, facts=facts)
        model.doubt.clear()
        # Offsets that were acked and not synced may be given again.
        model.exposed = model.kept_end = head
        self._check_producers(model)

    def _settle_facts(self, model, facts):
        names = [column["name"] for column in facts["columns"]]
        if model.kind == "table":
            if model.columns_doubt is not None and names == list(model.columns_doubt):
                model.columns = model.columns_doubt
            require(names == list(model.columns), "other columns", have=names, want=model.columns)
            wide = {model.columns[c["name"]] for c in facts["columns"] if c["type"] == "long"}
            require(
                wide == {at for at in model.columns.values() if at in model.wide}
                or model.columns_doubt is not None,
                "other types",
                have=facts["columns"],
            )
            model.wide = wide
        if model.holds_doubt is not None and facts["holds"] == model.holds_doubt:
            model.holds = model.holds_doubt
        require(facts["holds"] == model.holds, "other holds", have=facts["holds"], m=model.holds)
        model.columns_doubt = model.holds_doubt = None

    def _check_producers(self, model):
        for name in sorted(model.sent):
            self.repeat(model, name)

    def check_metadata(self):
        """The index says what the log says, and knows nothing that the log does not."""
        store = self.engine._indexer._store
        journal = self.engine.log.journal
        applied, lsn = store.applied_lsn(journal.journal_id.hex()), journal.state.lsn
        require(applied is None or applied <= lsn, "metadata is newer than the log")
        topics, ends = known_topics(store)
        states = {runtime.state.id: runtime.state for runtime in self.engine.runtimes}
        require(set(topics) == set(states), "index has other topics", have=set(topics))
        for topic_id, state in states.items():
            spec, schemas = topics[topic_id]
            require(spec == state.spec, "index has another topic", have=spec, want=state.spec)
            require(schemas == state.schemas, "index has other schemas", topic=state.spec.name)
            require(ends[topic_id] <= state.next, "index knows a later end", ends=ends)

    def check_offset_missing(self, model, offset):
        """An offset below the start is refused, and the error says where to begin."""
        try:
            self.read(model, start=offset)
        except NotFound as error:
            start = self.topic(model).describe()["watermarks"]["start"]
            require(error.details["offset_first"] == start, "wrong first offset", error=error)
            return
        require(condition=False, message="an offset below the start was served", offset=offset)
