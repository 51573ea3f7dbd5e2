"""The runtime of the tiers above the log: memory budget, signals, flushes, eviction, merges.

One thread decodes and folds new records and measures the budget. A second thread moves data between
the tiers. Publishes wait for neither, except in the red zone.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from frazil.background import Task, in_slices
from frazil.errors import Closed, FrazilError, NotFound, Unavailable
from frazil.telemetry import event
from frazil.tiers.disk.tier import DiskLimits as DiskTierLimits
from frazil.tiers.disk.tier import DiskTier
from frazil.tiers.pressure import Pressure
from frazil.tiers.retention import VECTORS_SHARE, Retention
from frazil.tiers.topic_tiers import TopicTiers
from frazil.tiers.zones import HYSTERESIS_RATIO, RED, YELLOW_RATIO
from frazil.topic import DiskFacts, Limits, disk_signals, memory_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from frazil.metadata import MetadataStore
    from frazil.tiers.disk.maintenance import Staged
    from frazil.topic import Instance, TopicRuntime

INDEX_SHARE: Final = 0.25
"""The key indexes of all topics take at most this share of the budget."""
RSS_CHECK_S: Final = 0.1
"""The interval at which the resident size of the process is read."""
FOLD_PAUSE_S: Final = 0.01
MOVE_PAUSE_S: Final = 0.1
FOLD_PAUSE_TOPIC_S: Final = 50e-6
MOVE_PAUSE_TOPIC_S: Final = 500e-6
"""The minimum pause per topic: thousands of idle topics must not use a whole core."""
STATS_SHARE: Final = 20
"""Writing statistics takes at most one part of the time divided by this number."""
SETTLE_ROWS: Final = 4096
"""The number of rows of a topic that are folded before the next topic's turn."""
RELIEF_SHARE_MIN: Final = 1 / 256
"""A topic below this share of the budget is not flushed to free memory for other uses."""
BACKLOG_ENTRIES: Final = 64
"""With more frames than this left, the background thread continues without a pause."""
QUEUE_SHOWN_MAX: Final = 100
DISK_LIMITS = DiskTierLimits()


class Tiers:
    """Memory and disk of all topics of one engine.

    Attributes:
        queue: the topics whose staged files the lake should commit, by id.
        suspect: whether the metadata may have lost files.
        write_stats: writes the statistics file; set by the engine.
    """

    def __init__(self, engine: Instance, store: MetadataStore, *, threads: bool) -> None:
        self._engine = engine
        self.settings = engine.settings
        self._limits = Limits.of(engine.settings)
        self.clock = engine.clock
        self._threads = threads
        self._each: Callable[[list[TopicTiers]], Iterable[TopicTiers]] = (
            partial(in_slices, clock=engine.clock) if threads else iter
        )
        self.write_stats: Callable[[], None] = lambda: None
        self.suspect = False
        self.queue: dict[int, Staged] = {}
        self.fired: Counter[str] = Counter()
        self._topics: dict[int, TopicTiers] = {}
        self._to_release: deque[tuple[float, int, int]] = deque()
        self.disk = DiskTier(
            engine.file_system,
            engine.paths.disk,
            store,
            clock=engine.clock,
            limits=DISK_LIMITS,
            quarantine=engine.paths.quarantine,
        )
        self.disk.readers.convert = self._convert
        self.disk.damage.on_damage = self._rebuild
        self.disk.damage.must_wait = self._must_wait
        self.retention = Retention(engine, self)
        self._fold = Task(
            "frazil-fold",
            self.fold_once,
            clock=engine.clock,
            pause_s=lambda: max(FOLD_PAUSE_S, FOLD_PAUSE_TOPIC_S * len(self._topics)),
            failed_event="tiers_failed",
        )
        self._move = Task(
            "frazil-move",
            self.move_once,
            clock=engine.clock,
            pause_s=lambda: max(MOVE_PAUSE_S, MOVE_PAUSE_TOPIC_S * len(self._topics)),
            failed_event="tiers_failed",
        )
        # Without threads only the sources count, and a publish cannot wait for another step.
        simulated: dict[str, Any] = {} if threads else {"rss": lambda: 0, "sleep": lambda _s: None}
        memory = engine.settings.memory
        memory = memory if threads else memory.model_copy(update={"wait_s": 0.0})
        self.pressure = pressure = Pressure(memory, engine.clock, wake=self._fold.wake, **simulated)
        pressure.add_source("batches", self._memory_bytes)
        pressure.add_source("index", self._index_bytes)
        pressure.add_source("deletion_vectors", self.retention.vectors_bytes, share=VECTORS_SHARE)
        pressure.add_source("queues", self._queued_bytes)
        pressure.add_source("files", lambda: self.disk.cache_bytes + self.disk.writer_bytes)
        pressure.add_source("deliveries", lambda: engine.read_ahead_bytes())  # noqa: PLW0108 - replaced
        pressure.on_red(self._move.wake)

    def open(self, *, suspect: bool) -> dict[int, int]:
        """Find the files of all topics; return each topic's flushed offset.

        Raises:
            Unavailable: if their directories cannot be created or read.
        """
        self.suspect = suspect
        try:
            return self.disk.open(suspect=suspect)
        except OSError as error:
            raise Unavailable(
                "the disk tier cannot be opened, check its directory and rights",
                path=self._engine.paths.disk,
                error=error,
            ) from error

    def bind(self, runtime: TopicRuntime) -> TopicTiers:
        """Add a topic; from now on the journal's records are added to its memory."""
        tiers = TopicTiers(self, runtime)
        self._topics[tiers.id] = tiers
        if tiers.flushed:
            # Delayed, so that damage in files is found and rebuilt from the log first.
            self.note_flushed(tiers, tiers.flushed)
        return tiers

    def unbind(self, topic_id: int) -> None:
        """Remove a deleted topic; its files are removed after its grace."""
        found = self._topics.pop(topic_id, None)
        if found is not None:
            found.state.memory = None
            for errors in (self._fold.errors, self._move.errors):
                for step in [each for each in list(errors) if each.endswith(f" {found.name}")]:
                    errors.pop(step, None)
        self.queue.pop(topic_id, None)

    def topic(self, topic_id: int) -> TopicTiers:
        """Return the tiers of a topic."""
        found = self._topics.get(topic_id)
        if found is None:
            raise NotFound("no such topic in the tiers", topic=topic_id)
        return found

    # -- calls of users ----------------------------------------------------------------------------

    def flush(self, name: str | None = None) -> dict[str, int]:
        """Write the records of one topic, or of all topics, to files; return the flushed offsets.

        Raises:
            Closed: in a forked child, which must open the directory itself.
        """
        return self._moved(name, lambda topic: topic.flush())

    def evict(self, name: str | None = None) -> dict[str, int]:
        """Evict flushed records from memory, and files beyond the cap that another tier has.

        Returns the bytes freed in memory by topic.
        """
        freed = self._moved(name, lambda topic: topic.evict(before_us=None))
        self.retention.check_cap()
        return freed

    def _moved(self, name: str | None, move: Callable[[TopicTiers], int]) -> dict[str, int]:
        engine = self._engine
        engine.check_open()
        self.disk.catalog.check_owner()
        moved: dict[str, int] = {}
        for runtime in engine.runtimes if name is None else engine.parts_of(name):
            try:
                moved[runtime.name] = move(self.topic(runtime.state.id))
            except NotFound as error:
                if name is not None or engine.is_current(runtime):
                    raise NotFound("no such topic, it was deleted", topic=runtime.name) from error
        return moved

    def describe_files(self, name: str) -> list[dict[str, Any]]:
        """Describe the files of a topic."""
        self.disk.catalog.check_owner()
        purpose_of = self.disk.space.purpose_of
        return [
            {
                "topic": runtime.name,
                "file": file.name,
                "offset_first": file.offset_first,
                "offset_last": file.offset_last,
                "rows": file.rows,
                "bytes": file.size,
                "partition": file.partition,
                "schema": file.schema,
                "deletes": file.deletes,
                "purpose": purpose_of(file, committed=file.set_end <= committed),
            }
            for runtime in self._engine.parts_of(name)
            for committed in (self.disk.committed(runtime.state.id),)
            for file in self.disk.files(runtime.state.id)
        ]

    @property
    def topics(self) -> list[TopicTiers]:
        """Return the tiers of all topics."""
        return list(self._topics.values())

    @property
    def errors(self) -> dict[str, str]:
        """Return the last error of each step that fails."""
        return {**self._fold.errors, **self._move.errors}

    def start(self) -> None:
        """Start the threads."""
        self.pressure.refresh()
        if self._threads:
            self._fold.start()
            self._move.start()

    def stop(self) -> None:
        """End the threads after their current step."""
        # Signal both threads before joining them: a step of one may wait for the other.
        self._fold.stopping = self._move.stopping = True
        self.pressure.close()
        self._fold.stop()
        self._move.stop()
        self.disk.close()

    # -- the budget --------------------------------------------------------------------------------

    def _memory_bytes(self) -> int:
        return sum(each.memory.bytes for each in self.topics)

    def _index_bytes(self) -> int:
        return sum(each.keyed.index.bytes for each in self.topics if each.keyed is not None)

    def _queued_bytes(self) -> int:
        return int(getattr(self._engine.log.queue, "queued", (0, 0))[1])

    def index_bytes_max(self) -> int:
        """Return the limit of one topic's index: its part of the share of all indexes."""
        keyed = sum(1 for each in self.topics if each.keyed is not None)
        return int(self.settings.memory.budget_bytes * INDEX_SHARE) // max(keyed, 1)

    # -- rounds ------------------------------------------------------------------------------------

    def _run(
        self, task: Task, step: str, function: Callable[[], object], topic: TopicTiers
    ) -> None:
        """Run one step for one topic; errors of a deleted topic are ignored."""

        def run() -> None:
            try:
                function()
            except (Closed, NotFound):
                if not task.stopping and self._topics.get(topic.id) is topic:
                    raise

        task.run(f"{step} {topic.name}", run)

    def run_once(self) -> None:
        """Run one round of all steps; for simulations, which have no threads."""
        self._fold.make_all_due()
        self._move.make_all_due()
        self.fold_once()
        self.move_once()

    def fold_once(self) -> None:
        """Decode and fold a slice of new records of each topic."""
        task = self._fold
        if self.pressure.red_pending or task.is_due("pressure", RSS_CHECK_S):
            task.run("pressure", self.pressure.refresh)
        # With thousands of topics most are idle, so skipping one must be nearly free.
        topics = [each for each in self.topics if each.keyed is not None or each.memory.tail]
        for topic in self._each(topics):
            if task.stopping:
                return
            if self.pressure.red_pending:
                task.run("pressure", self.pressure.refresh)
            if topic.loaded:
                self._settle(topic)
        if self._threads and task.is_due("stats", 1.0):
            began = self.clock.monotonic()
            task.run("stats", self.write_stats)
            task.put_off("stats", max(STATS_SHARE * (self.clock.monotonic() - began) - 1.0, 0.0))

    def _settle(self, topic: TopicTiers) -> None:
        """Decode and fold a slice of a topic's new records, if it has any."""
        if topic.keyed is not None or topic.memory.is_foldable():
            self._run(self._fold, "fold", partial(topic.settle, SETTLE_ROWS), topic)
            if len(topic.memory.tail) > BACKLOG_ENTRIES:
                self._fold.wake()

    def move_once(self) -> None:
        """Flush where a signal fires, evict, release the log, merge small files."""
        task = self._move
        for topic in self._each(self.topics):
            if task.stopping:
                return
            self._move_topic(topic)
        task.run("evict", self.evict_flushed)
        task.run("relieve", self.relieve)
        task.run("release", self.release)
        if task.is_due("commit", 1.0):
            task.run("commit", self.judge_commits)
        if task.is_due("disk", 1.0):
            task.run("cap", self.retention.check_cap)
            task.run("retention", self.retention.retain)
            task.run("deleted", self.retention.drop_deleted)
            self._merge_all()
        if task.is_due("scrub", min(self.disk.limits.scrub_interval_s / 10, 60.0)):
            task.run("scrub", self.disk.damage.scrub_once)

    def _move_topic(self, topic: TopicTiers) -> None:
        task = self._move
        failing = bool(task.errors or self._fold.errors)
        if failing or self.disk.damage.damaged():
            self._run(task, "rebuild", topic.repair, topic)
        if failing or not topic.loaded:
            self._run(task, "load", topic.ensure_loaded, topic)
        self._run(task, "flush", partial(self.judge, topic), topic)

    def _merge_all(self) -> None:
        for topic in self._each(self.topics):
            if self._move.stopping:
                return
            self._run(self._move, "merge", partial(self.retention.merge, topic), topic)

    # -- memory → disk -----------------------------------------------------------------------------

    def limits(self, topic: TopicTiers) -> Limits:
        """Return a topic's limits of the signals."""
        own = topic.state.spec.signals
        return Limits.of(self.settings, own) if own else self._limits

    def judge(self, topic: TopicTiers) -> None:
        """Flush a topic if a signal fires."""
        if topic.state.durable <= max(topic.flushed, topic.memory.start if topic.flushed else 0):
            return
        facts = topic.facts(self.pressure.usage_ratio, self.clock.now_us())
        reasons = tuple(each.reason for each in memory_signals(facts, self.limits(topic)))
        if self.pressure.level == RED and "memory" not in reasons:
            reasons = (*reasons, "memory")
        if reasons:
            self._flush(topic, reasons, evict=self.pressure.level > 0)

    def _flush(self, topic: TopicTiers, reasons: tuple[str, ...], *, evict: bool) -> None:
        self.fired.update(reasons)
        topic.fired.update(reasons)
        topic.fired_last = ", ".join(reasons)
        event("signal_fired", topic=topic.name, reasons=topic.fired_last)
        topic.flush(reason=reasons[0])
        if evict:
            topic.evict(before_us=None)
            self.pressure.refresh()

    def evict_flushed(self) -> None:
        """Evict flushed records from memory: old ones, and all of them when memory gets short.

        Eviction starts below yellow: a flush takes time, and publishes should not be delayed by
        data that can be evicted.
        """
        short = YELLOW_RATIO - 2 * HYSTERESIS_RATIO
        eager = self.pressure.level > 0 or self.pressure.usage_ratio >= short
        old_us = self.clock.now_us() - int(self.settings.memory.retention_s * 1e6)
        for topic in self._each(self.topics):
            evict = partial(topic.evict, before_us=None if eager else old_us)
            self._run(self._move, "evict", evict, topic)
        if eager:
            self.pressure.refresh()

    def relieve(self) -> None:
        """Flush the largest topics from just below yellow on, until memory use has dropped.

        Eviction frees only flushed records: without this flush, the rest of a burst would delay
        publishes until its age signal fires. All memory use counts, so that flushed records also
        free memory for readers and writers of files.
        """
        begin = YELLOW_RATIO - HYSTERESIS_RATIO
        if not self.pressure.level and self.pressure.usage_ratio < begin:
            return
        target = begin - HYSTERESIS_RATIO
        budget = self.settings.memory.budget_bytes
        sizes = {topic: topic.memory.bytes for topic in self.topics}
        self.pressure.refresh()
        for topic in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if self._move.stopping or self.pressure.usage_ratio < target:
                return
            is_others = self._memory_bytes() + self._index_bytes() < target * budget
            if is_others and sizes[topic] < RELIEF_SHARE_MIN * budget:
                # Other uses fill the memory, and a flush of this topic would free little.
                return
            if topic.state.durable > topic.flushed:
                flush = partial(self._flush, topic, ("memory",), evict=True)
                self._run(self._move, "flush", flush, topic)

    def note_flushed(self, topic: TopicTiers, end: int) -> None:
        """Schedule the release of a topic's flushed records by the log."""
        at = self.clock.monotonic() + self.settings.disk.log_keep_s
        self._to_release.append((at, topic.id, end))

    def release(self) -> None:
        """Let the log free the records that were flushed long enough ago."""
        now = self.clock.monotonic()
        while self._to_release and self._to_release[0][0] <= now:
            _at, topic_id, end = self._to_release.popleft()
            topic = self._topics.get(topic_id)
            if topic is None:
                self._engine.release(topic_id, end)
                continue
            try:
                gap = topic.gap_behind()
                if gap is not None:
                    # The log frees a gap with the records before it, so files must have the gap.
                    topic.flush(gap, reason="gap")
            except FrazilError:
                self._to_release.append((now + 1.0, topic_id, end))
                raise
            free = topic.releasable(end)
            self._engine.release(topic_id, free)
            if free < end:
                self._to_release.append((now + 1.0, topic_id, end))

    # -- disk → lake -------------------------------------------------------------------------------

    def judge_commits(self) -> None:
        """Keep the queue of topics whose staged files the lake should commit."""
        now_us = self.clock.now_us()
        for topic in self._each(self.topics):
            staged = self.disk.space.staged(topic.id)
            facts = DiskFacts(
                partition_bytes_max=staged.partition_bytes_max,
                since_commit_s=max(now_us - staged.since_us, 0) / 1e6,
                small_files=staged.small_files,
                deletes_pending=staged.deletes,
                staged_bytes=staged.bytes,
            )
            fired = disk_signals(facts, self.limits(topic)) if staged.files else ()
            known = self.queue.pop(topic.id, None)
            if fired:
                self.queue[topic.id] = staged._replace(
                    topic=topic.name,
                    reasons=tuple(each.reason for each in fired),
                    since_us=now_us if known is None else known.since_us,
                )

    # -- hooks of the disk tier --------------------------------------------------------------------

    def _convert(self, topic_id: int, version: int, batch: Any) -> Any:
        topic = self.topic(topic_id)
        return topic.convert(version, batch, topic.runtime.codec.columns)

    def _rebuild(self, topic_id: int, file: Any) -> bool:
        found = self._topics.get(topic_id)
        return found is not None and found.rebuild(file)

    def _must_wait(self, topic_id: int) -> bool:
        found = self._topics.get(topic_id)
        if found is None or not found.busy():
            return False
        self._move.wake()
        return True

    def stats(self) -> dict[str, Any]:
        """Return the facts of all tiers, ready for JSON."""
        return {
            "pressure": vars(self.pressure.snapshot()),
            "signals_fired": dict(self.fired),
            "disk": {
                "bytes": self.disk.space.usage(),
                "bytes_max": self.settings.disk.bytes_max,
                "purposes": self.disk.space.purposes(),
                "files": sum(len(self.disk.files(topic)) for topic in self.disk.catalog.topics),
            },
            "commit_queue": [due._asdict() for due in list(self.queue.values())[:QUEUE_SHOWN_MAX]],
            "errors": self.errors,
        }
