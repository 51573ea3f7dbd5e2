"""An engine with its tiers on a simulated disk, beside the models of its topics.

Every verb works on both sides. A call that a crash cut short is in doubt: after the next opening
it happened whole or not at all.
"""

from __future__ import annotations

import contextlib

from frazil.config import Settings
from frazil.engine import Engine
from frazil.errors import FrazilError
from frazil.schema import positions_of
from tests.crash.checker import require
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.log_limits import set_log_limits
from tests.support.tier_limits import set_tier_limits

ROOT = "/data"
METADATA = f"{ROOT}/meta.db"
COPIES_MAX = 6
SET_ASIDE = "reason=a file of its set is missing"
OPS = {1: "insert", 2: "update", 3: "upsert", 4: "delete"}
DEFAULTS = Settings(data_dir=ROOT)
LOG = {
    "write_bytes_max": 16 << 10,
    "ballast_bytes": 0,
    "free_bytes_min": 0,
    "free_ratio_min": 0.0,
}


def settings_of(random):
    """Sizes so small that a short life meets every limit; each life has its own."""
    memory = {
        "budget_bytes": 64 << 20,
        "flush_offsets": random.choice((15, 100_000)),
        "retention_s": random.choice((1.0, 900.0)),
    }
    disk = {"log_keep_s": random.choice((0.0, 60.0))}
    log = {**LOG, "segment_bytes_max": random.choice((4096, 16 << 10))}
    return DEFAULTS.model_copy(
        update={
            "log": DEFAULTS.log.model_copy(update=log),
            "memory": DEFAULTS.memory.model_copy(update=memory),
            "disk": DEFAULTS.disk.model_copy(update=disk),
            "query": DEFAULTS.query.model_copy(update={"threads": 1}),
        }
    )


def tier_limits_of(random):
    """Constants of the tiers so small that a short life meets every limit."""
    return {
        "flush_changes": random.choice((10, 40, 10_000)),
        "index_share": random.choice((0.25, 2e-5, 5e-6)),
        "merge_rows": random.choice((4, 16, 64 << 10)),
        "row_group_rows": random.choice((3, 20, 64 << 10)),
        "file_bytes": random.choice((8 << 10, 128 << 20)),
        "small_file_bytes": random.choice((4 << 10, 64 << 20)),
        "open_files_max": random.choice((1, 4, 64)),
    }


class TierWorld:
    """The engine, its disk, its clock and the models."""

    def __init__(self, random, seed=0):
        self.random = random
        self.settings = settings_of(random)
        self.tier_limits = tier_limits_of(random)
        self.log_limits = {"prefill_bytes": 1024, "rows_arrow_min": 3, "check_at_open": False}
        self.clock = SimulatedClock(seed)
        self.disk = SimulatedFileSystem(seed)
        self.models = {}
        self.engine = None
        self.cache_lives = True
        """No power was lost since the last opening: all that was written is still to be seen."""
        self.history = []
        self.copies = []
        """Older states of the metadata's files, newest last."""
        self.rewound = False

    # -- life ------------------------------------------------------------------------------------

    def open(self):
        """Open the engine on the current disk."""
        set_tier_limits(**self.tier_limits)
        set_log_limits(**self.log_limits)
        self.engine = Engine(self.settings, file_system=self.disk, clock=self.clock, threads=False)

    def close(self):
        """Close cleanly: from then on everything must survive."""
        engine, self.engine = self.engine, None
        engine.close()
        for model in self.models.values():
            model.kept_end = model.exposed

    def crash(self, *, power):
        """End the process, or the machine; what was not synced may then be gone."""
        engine, self.engine = self.engine, None
        self.disk.crash()
        if engine is not None:
            let_go(engine)
        if power:
            self.cache_lives = False
            self.disk = self.disk.crash_clone(self.random.getrandbits(48))
        else:
            self.disk = self.disk.kill_clone()

    def remember(self):
        """Keep a copy of the metadata's files, as of a loss of power just now."""
        names = [path for path in self.disk.paths() if path.startswith(METADATA)]
        self.copies.append({path: self.disk.read_bytes(path, durable=True) for path in names})
        del self.copies[:-COPIES_MAX]

    def rewind(self):
        """Let the metadata forget its last transactions, or everything; the engine is not open."""
        if not self.copies:
            return
        self.note("-- metadata forgets")
        self.rewound = True
        for path in self.disk.paths():
            if path.startswith(METADATA):
                self.disk.unlink(path)
        # What is forgotten once does not come back: files have changed with what was left.
        kept = self.random.randrange(len(self.copies)) + 1 if self.random.random() < 0.8 else 0
        del self.copies[kept:]
        for path, data in self.copies[-1].items() if kept else ():
            self.disk.write_bytes(path, data)

    def topic(self, model):
        return self.engine.topic(model.name)

    def sync(self):
        """Let readers see everything, as an idle journal does in time."""
        self.engine.log.journal.write_marker()

    def note(self, text):
        self.history.append(text)

    def create(self, model, *, partition_by=(), **options):
        """Create a topic; its model is known before, in case of a crash on the way."""
        names = {column.number: column.name for column in model.columns}
        key = [names[number] for number in model.key]
        columns = {column.name: column.type for column in model.columns}
        self.note(f"create {model.name} {columns} key={key} by={partition_by} {options}")
        if model.keyed:
            options["unknown_key"] = model.policy
        options["sync"] = model.sync
        self.engine.create_topic(
            model.name, columns, primary_key=key, partition_by=partition_by, **options
        )
        self.models[model.name] = model

    # -- publish ---------------------------------------------------------------------------------

    def publish(self, model, asks, call, *, ack=None):
        """Make a call; its answer must be what the model expects."""
        expected = model.expected(asks)
        self.note(f"{model.short}: {[tuple(ask) for ask in asks]} ack={ack}")
        if isinstance(expected, type):
            try:
                answer = call()
            except FrazilError as error:
                require(isinstance(error, expected), "another error", got=error, want=expected)
                return None
            require(False, "an error was due", want=expected.__name__, got=answer)
        model.doubt.append(expected)
        answer = call()
        model.doubt.pop()
        self.acked(model, expected, answer, durable=ack == "fsynced" or model.sync == "commit")
        return answer

    def acked(self, model, changes, ack, *, durable):
        """Take an ack into the model: its offsets are new."""
        count = ack.offset_last - ack.offset + 1
        require(count == len(changes), "ack covers another count", ack=ack, want=len(changes))
        require(ack.offset >= model.exposed, "offset goes backwards", ack=ack, was=model.exposed)
        model.take(ack.offset, changes)
        if durable:
            model.kept_end = max(model.kept_end, model.exposed)

    # -- read ------------------------------------------------------------------------------------

    def read(self, model, start="earliest"):
        """Read a topic to its end: offset → what the log says of it."""
        found = {}
        for batch in self.topic(model).read(start):
            for record in batch.records():
                offset = record.pop("_offset")
                require(offset not in found, "a record came twice", offset=offset)
                require(not found or offset > max(found), "out of order", offset=offset)
                time = record.pop("_time")
                known = model.times.setdefault(offset, time)
                require(known == time, "another time", offset=offset, first=known, now=time)
                found[offset] = record
        return found

    def check_log(self, model):
        """The list of all records is the model's."""
        self.sync()
        # The log may still have records whose files retention took.
        found = {at: record for at, record in self.read(model).items() if at >= model.start}
        wanted = sorted(offset for offset in model.log if offset >= model.start)
        have = sorted(found)
        require(have == wanted, "other offsets", topic=model.name, have=have, want=wanted)
        for offset, record in found.items():
            self.check_record(model, offset, record, model.log[offset])

    def check_files(self, model):
        """The files alone give every record that was flushed, as the log does."""
        self.sync()
        disk, topic = self.engine.tiers.disk, self.topic(model).runtime.state.id
        held = disk.history.range(topic)
        found, offset = {}, held.first
        while offset < held.end:
            piece = disk.history.read(
                topic, offset=offset, bytes_max=self.random.choice((1, 4096, 1 << 20))
            )
            for batch in piece.batches:
                found |= {record.pop("_offset"): record for record in batch.records()}
            require(piece.offset_next > offset, "no progress", topic=model.name, offset=offset)
            offset = piece.offset_next
        wanted = {at for at in model.log if held.first <= at < held.end}
        require(set(found) >= wanted, "files lack records", lack=wanted - set(found))
        for at in wanted:
            require(found[at].pop("_time") == model.times[at], "another time", offset=at)
            self.check_record(model, at, found[at], model.log[at])

    def check_record(self, model, offset, record, change):
        """One record of the log is the change that the model has."""
        fault = self._difference(model, dict(record), change)
        require(not fault, "another record", topic=model.name, offset=offset, what=fault)

    def _difference(self, model, record, change):
        if model.keyed:
            op, present = OPS[record.pop("_op")], record.pop("_present")
            if op != change.op:
                return f"op {op} instead of {change.op}"
            if (present is None) != (change.named is None):
                return f"present {present!r} with {change.named}"
            if present is not None:
                numbers = {model.columns[at].number for at in positions_of(present)}
                known = {column.number for column in model.columns}
                if numbers != change.named & known:
                    return f"names {numbers} instead of {change.named & known}"
        wanted = model.logged_row(change)
        return "" if record == wanted else f"{record} instead of {wanted}"

    def check_keys(self, model, keys):
        """Look-ups of these keys give the model's rows."""
        self.sync()
        topic = self.topic(model)
        wanted = [model.shown(model.state[key][1]) if key in model.state else None for key in keys]
        given = [key if len(key) > 1 else key[0] for key in keys]
        found = topic.get_many(given)
        require(found == wanted, "other rows", topic=model.name, keys=keys, have=found, want=wanted)
        one = topic.get(given[0])
        require(one == wanted[0], "another row", topic=model.name, key=given[0], have=one)

    def check_feed(self, model):
        """The change feed has every change with the row before and after it."""
        self.sync()
        found = [
            (one["offset"], one["op"], one["before"], one["after"])
            for one in self.topic(model).changes()
        ]
        wanted = list(model.feed())
        require(found == wanted, "another feed", topic=model.name, have=found, want=wanted)

    def check_start(self, model):
        """The start moves forwards only, over what retention may take."""
        marks = self.topic(model).describe()["watermarks"]
        start = marks["start"]
        if start <= model.start:
            # Over a gap it may go back: files tell of it again when they are written.
            return
        gone = [at for at in model.log if at < start]
        require(model.expires or not gone, "records are gone", topic=model.name, marks=marks)
        require(start <= model.exposed, "start lies behind the end", marks=marks)
        model.expire(start)

    def files_start(self, model):
        """The first offset that files and memory have; retention may be ahead of the log."""
        disk, topic = self.engine.tiers.disk, self.topic(model).runtime.state.id
        start = disk.start(topic)
        require(start <= disk.flushed(topic), "the start lies behind the end", start=start)
        return start

    # -- after an opening ------------------------------------------------------------------------

    def settle(self):
        """Check every promise after an opening; what was in doubt is settled by what is there."""
        names = set(self.engine.topics())
        require(names == set(self.models), "other topics", have=names, want=set(self.models))
        # With metadata that forgot something, half of a set may be the only copy: it is put aside.
        warnings = [w for w in self.engine.warnings if not self.rewound or SET_ASIDE not in w]
        require(not warnings, "warnings without damage", warnings=warnings)
        for model in self.models.values():
            if self.cache_lives:
                model.kept_end = model.exposed
            self._settle_columns(model)
            self.check_start(model)
            self._settle_log(model)
        self.cache_lives = True

    def _settle_columns(self, model):
        shown = [(c["name"], c["type"]) for c in self.engine.describe(model.name)["columns"]]
        for columns in (model.columns, model.columns_doubt):
            if columns is not None and shown == [(c.name, c.type) for c in columns]:
                model.columns, model.columns_doubt = columns, None
                return
        require(False, "other columns", topic=model.name, have=shown, want=model.columns)

    def _settle_log(self, model):
        found = {at: record for at, record in self.read(model).items() if at >= model.start}
        marks = self.engine.describe(model.name)["watermarks"]
        require(marks["head"] >= model.kept_end, "head falls back", marks=marks, was=model.kept_end)
        lost = [at for at in model.log if at not in found and at >= model.start]
        kept = [at for at in lost if at < model.kept_end]
        require(not kept, "acked records are lost", topic=model.name, offsets=kept, marks=marks)
        later = [at for at in found if lost and at > min(lost) and at in model.log]
        require(not later, "a hole in the log", topic=model.name, lost=lost, later=later)
        log = {at: model.log[at] for at in sorted(found) if at in model.log}
        fresh = sorted(at for at in found if at not in model.log)
        self._settle_doubt(model, log, fresh)
        for at, record in found.items():
            self.check_record(model, at, record, log[at])
        model.replace(log)
        model.times = {at: time for at, time in model.times.items() if at in log}
        model.exposed = model.kept_end = marks["head"]
        model.doubt.clear()
        if not self.cache_lives:
            model.sent.clear()

    def _settle_doubt(self, model, log, fresh):
        """What nobody had an answer for is there whole, or not at all."""
        if not fresh:
            return
        require(len(model.doubt) == 1, "records were invented", topic=model.name, offsets=fresh)
        changes = model.doubt[0]
        want = list(range(fresh[0], fresh[0] + len(changes)))
        require(fresh == want, "a call is there in part", offsets=fresh, want=changes)
        require(not log or fresh[0] > max(log), "an old offset was used", offsets=fresh)
        log.update(zip(fresh, changes, strict=True))


def let_go(engine):
    """Close what a dead process had open; its disk answers nothing any more."""
    with contextlib.suppress(BaseException):
        engine._indexer._store.close()
    with contextlib.suppress(BaseException):
        engine._sql.close()
