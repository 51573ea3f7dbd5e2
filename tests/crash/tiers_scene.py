"""A data directory with files in every stage, and the moves that may be cut off or fail in it."""

from __future__ import annotations

import copy
from random import Random

from frazil.errors import CorruptionError, Unavailable
from frazil.tiers import merge_once
from tests.crash.checker import require
from tests.property.tiers_model import Ask, Column, TopicModel
from tests.property.tiers_world import DEFAULTS, LOG, TierWorld

KEYED = "/default/keyed"
PLAIN = "/default/plain"
KEYS = 9


def scene_settings():
    """Small row groups and segments, and a log that lets go of what is in files after a minute."""
    log = {**LOG, "segment_bytes_max": 4096}
    disk = {"log_keep_s": 60.0}
    return DEFAULTS.model_copy(
        update={
            "log": DEFAULTS.log.model_copy(update=log),
            "memory": DEFAULTS.memory.model_copy(update={"budget_bytes": 64 << 20}),
            "disk": DEFAULTS.disk.model_copy(update=disk),
            "query": DEFAULTS.query.model_copy(update={"threads": 1}),
        }
    )


class Scene(TierWorld):
    """A keyed topic with partitions and an append topic: sets in files, the rest in memory.

    Args:
        freed: the log has let go of everything that is in files.
        expires: the append topic's retention takes whatever is in files.
    """

    def __init__(self, *, freed=False, expires=False, sets=5):
        super().__init__(Random(1), 1)
        self.settings = scene_settings()
        self.tier_limits = {"row_group_rows": 6}
        self.open()
        columns = [Column(1, "id", "long"), Column(2, "a", "int"), Column(3, "b", "string")]
        keyed = TopicModel(KEYED, columns, key=(1,))
        self.create(keyed, partition_by=["bucket[2](id)"])
        plain = TopicModel(PLAIN, [Column(4, "n", "long")], expires=expires)
        retention = {"retention_age": 0, "retention_bytes": 0} if expires else {}
        self.create(plain, **retention)
        for number in range(sets):
            self.work(number)
            self.engine.tiers.flush()
        if freed:
            self.free()
        self.work(sets)

    def work(self, number):
        """Publish a little of everything."""
        keyed, plain = self.models[KEYED], self.models[PLAIN]
        topic = self.topic(keyed)
        asks = [
            Ask("upsert", (key,), {1: key, 2: number, 3: f"v{number}"})
            for key in range(number % 3, KEYS, 2)
        ]
        records = [keyed.shown(ask.columns) for ask in asks]
        self.publish(keyed, asks, lambda: topic.append_many(records))
        key = (number % KEYS,)
        self.publish(
            keyed, [Ask("update", key, {2: -number})], lambda: topic.update(key[0], a=-number)
        )
        gone = ((number + 4) % KEYS,)
        self.publish(keyed, [Ask("delete", gone, {})], lambda: topic.delete(gone[0]))
        asks = [Ask("append", (), {4: 10 * number + each}) for each in range(5)]
        records = [plain.shown(ask.columns) for ask in asks]
        self.publish(plain, asks, lambda: self.topic(plain).append_many(records))

    def twin(self):
        """The same scene again, as a killed process leaves it; not open."""
        twin = copy.copy(self)
        twin.disk = self.disk.kill_clone()
        twin.clock = copy.copy(self.clock)
        twin.clock._mutex = type(self.clock)()._mutex
        twin.clock._random = Random(7)
        twin.models = copy.deepcopy(self.models)
        twin.engine = None
        twin.history = []
        return twin

    def free(self):
        """Let the log go of what is in files."""
        self.engine.log.queue.call(self.engine.log.journal.rotate)
        self.clock.advance(70)
        self.engine.tiers.run_once()
        self.engine.upkeep.run_once()

    def files(self, part=""):
        """The paths of the disk tier's files."""
        return [path for path in self.disk.paths() if "/disk/" in path and part in path]

    # -- checks ----------------------------------------------------------------------------------

    def check(self):
        """Everything that can be asked has the model's answer."""
        for model in self.models.values():
            self.check_start(model)
            self.check_log(model)
            self.check_files(model)
            self._check_sql(model)
        keyed = self.models[KEYED]
        self.check_keys(keyed, [(key,) for key in range(KEYS + 1)])
        self.check_feed(keyed)

    def _check_sql(self, model):
        first = self.files_start(model) if model.expires else 0
        rows = sorted(self.engine.query(f"SELECT * FROM {model.short}").rows())
        for at, time, *_ in rows:
            # A time that nobody has read yet is whatever it is.
            model.times.setdefault(at, time)
        wanted = [
            (at, model.times.get(at), *row.values())
            for at, row in sorted(model.rows_at(model.exposed).items())
            if at >= first
        ]
        require(rows == wanted, "another result", topic=model.name, have=rows, want=wanted)

    def check_damaged(self, *, whole):
        """No answer is wrong; a refusal is right only where the log cannot help any more."""
        keyed = self.models[KEYED]
        questions = [lambda m=model: self.check_log(m) for model in self.models.values()]
        questions += [lambda m=model: self.check_files(m) for model in self.models.values()]
        questions += [lambda m=model: self._check_sql(m) for model in self.models.values()]
        questions.append(lambda: self.check_keys(keyed, [(key,) for key in range(KEYS + 1)]))
        questions.append(lambda: self.check_feed(keyed))
        refused = 0
        for question in questions:
            refused += self._refused(question, whole=whole)
        return refused

    def _refused(self, question, *, whole):
        for _ in range(4):
            try:
                question()
            except Unavailable:
                # A file was just written again: the same question has an answer now.
                continue
            except CorruptionError as error:
                require(not whole, "a refusal although the log has it", error=error)
                return 1
            return 0
        require(condition=False, message="a question has no answer after four attempts")
        return 1


# -- moves: each is cut off, and each of its calls fails ------------------------------------------


def flush(scene):
    scene.engine.tiers.flush()


def merge(scene):
    for topic in scene.engine.tiers.topics:
        merge_once(topic.disk, topic.id)


def evict(scene):
    scene.engine.tiers.evict()


def everything(scene):
    scene.clock.advance(400)
    scene.engine.tiers.run_once()
    scene.engine.upkeep.run_once()
    scene.engine.tiers.run_once()


def free(scene):
    scene.free()


def expire(scene):
    scene.engine.tiers.flush()
    scene.clock.advance(100)
    scene.engine.tiers.run_once()


def restart(scene):
    scene.close()
    scene.open()
    scene.engine.tiers.run_once()


def rebuild(scene):
    """A page of a file is damaged; the reader of it has the set written again."""
    path = scene.files(".parquet")[0]
    scene.disk.corrupt(path, lambda data: data.__setitem__(60, data[60] ^ 1))
    scene.clock.advance(2 * scene.engine.tiers.disk.limits.scrub_interval_s)
    scene.engine.tiers.disk.damage.scrub_once()


MOVES = (flush, merge, evict, everything, free, expire, restart, rebuild)
