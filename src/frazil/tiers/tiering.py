"""The tiers above the log at work: who is in memory, what fires, what moves, what is let go.

Two threads: one folds and merges what was just written and watches the budget, the other writes
files. Neither is ever waited for by a publish, except in the red zone.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import Closed, FrazilError, NotFound, Unavailable
from frazil.telemetry import event, warn
from frazil.tiers.breathing import Breath
from frazil.tiers.disk.tier import DiskTier
from frazil.tiers.disk.upkeep import DiskUpkeep
from frazil.tiers.keyed_limits import marks_bytes, marks_counted
from frazil.tiers.keys.marks import keep_marks
from frazil.tiers.pressure import Pressure
from frazil.tiers.topic_tiers import TopicTiers
from frazil.tiers.zones import RED
from frazil.topic import DiskFacts, DiskLimits, MemoryLimits, disk_signals, memory_signals

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.metadata import MetadataStore
    from frazil.topic import Instance, TopicRuntime

FOLD_PAUSE_S: Final = 0.01
MOVE_PAUSE_S: Final = 0.1
FOLD_PAUSE_TOPIC_S: Final = 50e-6
MOVE_PAUSE_TOPIC_S: Final = 500e-6
"""The pauses are at least so long for each topic: thousands that rest must not cost a core."""
TOLD_SHARE: Final = 20
"""What is told to other processes takes at most one part in so many of the time."""
SETTLE_ROWS: Final = 4096
"""The background folds so many rows of a topic before it looks at the next one."""
RELIEF_SHARE_MIN: Final = 1 / 256
"""A topic with less of the budget is not flushed to make room for what is not records."""
BACKLOG_ENTRIES: Final = 64
"""With more than so many frames left the background goes on without a pause."""
QUEUE_TOLD_MAX: Final = 100


class CommitDue(msgspec.Struct, frozen=True):
    """A topic whose staged files the lake should take, and why."""

    topic: str
    reasons: tuple[str, ...]
    offset_first: int
    offset_end: int
    files: int
    bytes: int
    since_us: int


class Tiers:
    """Memory and disk of all topics of one engine."""

    def __init__(self, engine: Instance, store: MetadataStore, *, threads: bool) -> None:
        self._engine = engine
        self.settings = engine.settings
        self.clock = engine.clock
        self._threads = threads
        self.write_stats: Callable[[Breath], None] = lambda _breath: None
        """Writes the statistics file; set by the engine."""
        self.disk = DiskTier(
            engine.file_system,
            engine.paths.disk,
            store,
            clock=engine.clock,
            settings=engine.settings.disk,
            quarantine=engine.paths.quarantine,
        )
        self.marks_directory = engine.paths.marks
        self.quarantine = engine.paths.quarantine
        self.disk.convert = self._convert
        self.disk.on_damage = self._rebuild
        self.disk.damage.must_wait = self._must_wait
        self.suspect = False
        """The metadata may have lost what it knew of files."""
        self.files = DiskUpkeep(engine, self)
        # Without threads time passes as the simulation says, and memory is what it counts.
        simulated: dict[str, Any] = {} if threads else {"rss": lambda: 0, "wait": _no_wait}
        self.pressure = Pressure(engine.settings.memory, engine.clock, **simulated)
        self.throttle: Callable[[int], None] | None = None
        """Called with the bytes that a flush writes; tests slow it down here."""
        self._topics: dict[int, TopicTiers] = {}
        self.queue: dict[int, CommitDue] = {}
        self._since: dict[int, int] = {}
        self.fired: Counter[str] = Counter()
        self._to_release: deque[tuple[float, int, int]] = deque()
        self.errors: dict[str, str] = {}
        self._due: dict[str, float] = {}
        self._stopping = False
        self._fold_breath = Breath(engine.clock, pauses=threads)
        self._move_breath = Breath(engine.clock, pauses=threads)
        self._wake_fold = threading.Event()
        self._wake_move = threading.Event()
        self._fold_thread = threading.Thread(target=self._run_fold, name="frazil-fold", daemon=True)
        self._move_thread = threading.Thread(target=self._run_move, name="frazil-move", daemon=True)
        pressure = self.pressure
        pressure.add_source("batches", self._memory_bytes)
        pressure.add_source("index", self._index_bytes)
        pressure.add_source("marks", self._marks_bytes, share=marks_counted(engine.settings.memory))
        pressure.add_source("queues", self._queued_bytes)
        pressure.add_source("files", lambda: self.disk.cache_bytes + self.disk.writer_bytes)
        pressure.add_source("deliveries", lambda: engine.read_ahead_bytes())  # noqa: PLW0108 - replaced
        pressure.on_red(self._wake_move.set)

    def open(self, *, suspect: bool) -> dict[int, int]:
        """Find the files of all topics; return the offset below which each topic is flushed.

        `suspect` says that the metadata may have lost what it knew of files.

        Raises:
            Unavailable: if their directories cannot be made or read.
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
        """Take a topic in; from here on memory gets what the journal writes."""
        tiers = TopicTiers(self, runtime)
        self._topics[tiers.id] = tiers
        if tiers.flushed:
            # Not at once: what is damaged in the files is found, and rebuilt from the log, first.
            self.note_flushed(tiers, tiers.flushed)
        return tiers

    def unbind(self, topic_id: int) -> None:
        """Let a deleted topic go; its files go with its grace."""
        found = self._topics.pop(topic_id, None)
        if found is not None:
            found.state.memory = None
            for task in [each for each in list(self.errors) if each.endswith(f" {found.name}")]:
                self.errors.pop(task, None)
        self.queue.pop(topic_id, None)

    def topic(self, topic_id: int) -> TopicTiers:
        """Return what the tiers hold of a topic."""
        found = self._topics.get(topic_id)
        if found is None:
            raise NotFound("no such topic in the tiers", topic=topic_id)
        return found

    # -- calls of users --------------------------------------------------------------------------

    def flush(self, name: str | None = None) -> dict[str, int]:
        """Write what memory holds of one topic, or of all, to files; return how far each got.

        Raises:
            Closed: in a forked child, which must open the directory for itself.
        """
        return self._moved(name, lambda topic: topic.flush())

    def evict(self, name: str | None = None) -> dict[str, int]:
        """Drop from memory what files have, and files beyond the cap that are held elsewhere.

        Returns the bytes that memory gave up, by topic.
        """
        freed = self._moved(name, lambda topic: topic.evict(before_us=None))
        self.files.check_cap()
        return freed

    def _moved(self, name: str | None, move: Callable[[TopicTiers], int]) -> dict[str, int]:
        """Move records of one topic, or of all that still exist when it is their turn."""
        engine = self._engine
        engine.check_open()
        self.disk.rows.check_owner()
        moved: dict[str, int] = {}
        for runtime in engine.runtimes if name is None else engine.parts_of(name):
            try:
                moved[runtime.name] = move(self.topic(runtime.state.id))
            except NotFound as error:
                if name is not None or engine.is_current(runtime):
                    raise NotFound("no such topic, it was deleted", topic=runtime.name) from error
        return moved

    def describe_files(self, name: str) -> list[dict[str, Any]]:
        """Describe the files of a topic: `purpose` is what most of a file's bytes are kept for."""
        self.disk.rows.check_owner()
        found: list[dict[str, Any]] = []
        for runtime in self._engine.parts_of(name):
            committed = self.disk.committed(runtime.state.id)
            purposes_of = self.disk.space.purposes_of
            found += [
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
                    "purpose": max(purposes, key=lambda each: purposes[each]),
                    "purposes": purposes,
                }
                for file in self.disk.files(runtime.state.id)
                for purposes in (purposes_of(file, committed=file.set_end <= committed),)
            ]
        return found

    @property
    def topics(self) -> list[TopicTiers]:
        """Return all topics."""
        return list(self._topics.values())

    @property
    def topics_in_turn(self) -> list[TopicTiers]:
        """Return all topics for the thread that moves: others run between two of them."""
        return self._move_breath.between(self._topics.values())

    def start(self) -> None:
        """Start the threads."""
        self.pressure.refresh()
        if self._threads:
            self._fold_thread.start()
            self._move_thread.start()

    def stop(self) -> None:
        """End the threads; what they are at is finished."""
        self._stopping = True
        self.pressure.close()
        self._wake_fold.set()
        self._wake_move.set()
        for thread in (self._fold_thread, self._move_thread):
            if thread.is_alive():
                thread.join()
        for topic in self.topics:
            self._guard("marks", partial(keep_marks, topic), topic)
        self.disk.close()

    # -- the budget ------------------------------------------------------------------------------

    def _memory_bytes(self) -> int:
        return sum(each.memory.bytes for each in self.topics)

    def _index_bytes(self) -> int:
        return sum(each.keyed.index_bytes for each in self.topics if each.keyed is not None)

    def _marks_bytes(self) -> int:
        return sum(map(marks_bytes, self.topics))

    def _queued_bytes(self) -> int:
        return sum(getattr(lane.queue, "queued", (0, 0))[1] for lane in self._engine.lanes)

    def index_bytes_max(self) -> int:
        """Return what one topic's index may have: its part of the indexes' share."""
        keyed = sum(1 for each in self.topics if each.keyed is not None)
        memory = self.settings.memory
        return int(memory.budget_bytes * memory.index_share) // max(keyed, 1)

    # -- threads ---------------------------------------------------------------------------------

    def _run_fold(self) -> None:
        due_s = 0.0
        while not self._stopping:
            is_woken = self._wake_fold.wait(FOLD_PAUSE_S)
            self._wake_fold.clear()
            is_due = is_woken or self.clock.monotonic() >= due_s
            if is_due and not self._stopping:
                self._guard("fold", self.fold_once)
                due_s = self.clock.monotonic() + FOLD_PAUSE_TOPIC_S * len(self._topics)
            elif self.pressure.red_untold:
                self._guard("pressure", self.pressure.refresh)

    def _run_move(self) -> None:
        while not self._stopping:
            self._wake_move.wait(max(MOVE_PAUSE_S, MOVE_PAUSE_TOPIC_S * len(self._topics)))
            self._wake_move.clear()
            if not self._stopping:
                self._guard("move", self.move_once)

    def _guard(
        self, task: str, function: Callable[[], object], topic: TopicTiers | None = None
    ) -> None:
        """Do something for one topic, or for all; a fault is kept in `errors` and ends no other."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - the thread's top: a bug must not end all moves
            if topic is not None:
                task = f"{task} {topic.name}"
            gone = topic is not None and self._topics.get(topic.id) is not topic
            if isinstance(error, Closed | NotFound) and (self._stopping or gone):
                # The engine is closing, or the topic was deleted meanwhile.
                self.errors.pop(task, None)
                return
            text = f"{type(error).__name__}: {error}"
            if self.errors.get(task) != text:
                warn("tiers_failed", task=task, error=text)
            self.errors[task] = text
        else:
            if self.errors:
                self.errors.pop(task if topic is None else f"{task} {topic.name}", None)

    def _is_due(self, task: str, interval_s: float) -> bool:
        now = self.clock.monotonic()
        if now < self._due.get(task, now):
            return False
        self._due[task] = now + interval_s
        return True

    def run_once(self) -> None:
        """Do a whole round of everything; for simulations, which have no threads."""
        self._due.clear()
        self.fold_once()
        self.move_once()

    def fold_once(self) -> None:
        """Take what was written into chunks and indexes, a slice at a time."""
        if self.pressure.red_untold or self._is_due("pressure", self.settings.memory.rss_check_s):
            self.pressure.refresh()
        # Of thousands of topics most rest: to pass over those must cost nearly nothing.
        topics = [each for each in self.topics if each.keyed is not None or each.memory.tail]
        for topic in self._fold_breath.between(topics):
            if self.pressure.red_untold:
                self.pressure.refresh()
            if topic.loaded and (topic.keyed is not None or topic.memory.is_foldable()):
                self._guard("fold", partial(topic.settle, SETTLE_ROWS), topic)
                if len(topic.memory.tail) > BACKLOG_ENTRIES:
                    self._wake_fold.set()
            if self._stopping:
                return
        if self._is_due("told", 1.0):
            begun = self.clock.monotonic()
            self._guard("told", self.tell)
            took = self.clock.monotonic() - begun
            self._due["told"] += max(TOLD_SHARE * took - 1.0, 0.0)

    def tell(self) -> None:
        """Write down what there is to tell, for `frazil top` in another process."""
        if self._threads:
            self.write_stats(self._fold_breath)

    # -- moving ----------------------------------------------------------------------------------

    def move_once(self) -> None:
        """Flush what a signal asks for, let go what is held elsewhere, merge small files."""
        for topic in self.topics_in_turn:
            if self._stopping:
                return
            if self.errors or self.disk.damage.damaged():
                self._guard("rebuild", topic.repair, topic)
            if self.errors or not topic.loaded:
                self._guard("load", topic.ensure_loaded, topic)
            self._guard("flush", partial(self.judge, topic), topic)
        self._guard("evict", self.evict_flushed)
        self._guard("relieve", self.relieve)
        self._guard("release", self.release)
        if self._is_due("commit", 1.0):
            self._guard("commit", self.judge_commits)
        if self._is_due("disk", 1.0):
            self._guard("cap", self.files.check_cap)
            self._guard("writable", self.files.check_writable)
            self._guard("retention", self.files.retain)
            self._guard("deleted", self.files.drop_deleted)
            for topic in self.topics_in_turn:
                if self._stopping:
                    return
                self._guard("merge", partial(self.files.merge, topic), topic)
        if self._is_due("scrub", min(self.settings.disk.scrub_interval_s / 10, 60.0)):
            self._guard("scrub", self.disk.scrub_once)

    def memory_limits(self, topic: TopicTiers) -> MemoryLimits:
        """Return a topic's limits of the signals from memory to disk."""
        return MemoryLimits.of(self.settings.memory, topic.state.spec.signals)

    def disk_limits(self, topic: TopicTiers) -> DiskLimits:
        """Return a topic's limits of the signals from disk to the lake."""
        writer = self.settings.lake.writer
        return DiskLimits.of(self.settings.disk, topic.state.spec.signals, writer=writer)

    def judge(self, topic: TopicTiers) -> None:
        """Flush a topic if a signal fires."""
        if topic.state.durable <= max(topic.flushed, topic.memory.start if topic.flushed else 0):
            return
        facts = topic.facts(self.pressure.usage_ratio, self.clock.now_us())
        fired = memory_signals(facts, self.memory_limits(topic))
        reasons = tuple(each.reason for each in fired)
        if self.pressure.level == RED and "memory" not in reasons:
            reasons = (*reasons, "memory")
        if not reasons:
            return
        for reason in reasons:
            self.fired[reason] += 1
        topic.note_fired(reasons)
        event("signal_fired", topic=topic.name, reasons=", ".join(reasons))
        topic.flush(reason=reasons[0])
        if self.pressure.level:
            topic.evict(before_us=None)
            self.pressure.refresh()

    def evict_flushed(self) -> None:
        """Let go of flushed records in memory: old ones, and all of them when it gets short.

        That is before yellow: a flush takes a while, and publishers should not pay for what may go.
        """
        memory = self.settings.memory
        short = memory.yellow_ratio - 2 * memory.hysteresis_ratio
        eager = self.pressure.level > 0 or self.pressure.usage_ratio >= short
        before_us = self.clock.now_us() - int(self.settings.memory.retention_s * 1e6)
        freed: list[int] = []

        def evict(topic: TopicTiers) -> None:
            freed.append(topic.evict(before_us=None if eager else before_us))

        for topic in self.topics_in_turn:
            self._guard("evict", partial(evict, topic), topic)
        if any(freed):
            self.pressure.refresh()

    def relieve(self) -> None:
        """Flush the largest topics from just below yellow on, until there is room again.

        Eviction can only let go of what files have: without this, what is left of a burst would
        hold publishers back until it is old enough to be flushed. All that counts is looked at:
        what readers and writers of files take for a while must be made room for, too.
        """
        memory = self.settings.memory
        begin = memory.yellow_ratio - memory.hysteresis_ratio
        if not self.pressure.level and self.pressure.usage_ratio < begin:
            return
        target = max(begin - memory.hysteresis_ratio, begin / 2)
        target_bytes = target * memory.budget_bytes
        sizes = {topic: topic.memory.bytes for topic in self.topics}
        self.pressure.refresh()
        for topic in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if self._stopping or self.pressure.usage_ratio < target:
                return
            is_others = self._memory_bytes() + self._index_bytes() < target_bytes
            if is_others and sizes[topic] < RELIEF_SHARE_MIN * memory.budget_bytes:
                # It is not the records that take the room, and their last few would free little.
                return
            if topic.state.durable > topic.flushed:
                self._guard("flush", partial(self._flush_for_memory, topic), topic)

    def _flush_for_memory(self, topic: TopicTiers) -> None:
        self.fired["memory"] += 1
        topic.note_fired(("memory",))
        event("signal_fired", topic=topic.name, reasons="memory")
        topic.flush(reason="memory")
        topic.evict(before_us=None)
        self.pressure.refresh()

    def note_flushed(self, topic: TopicTiers, end: int) -> None:
        """Remember that the log may let a topic's records go after a while."""
        at = self.clock.monotonic() + self.settings.disk.log_keep_s
        self._to_release.append((at, topic.id, end))

    def release(self) -> None:
        """Tell the log what it may let go: flushed long enough ago."""
        now = self.clock.monotonic()
        while self._to_release and self._to_release[0][0] <= now:
            _at, topic_id, end = self._to_release.popleft()
            try:
                self._flush_gap(topic_id)
            except FrazilError:
                self._to_release.append((now + 1.0, topic_id, end))
                raise
            topic = self._topics.get(topic_id)
            free = end if topic is None else topic.releasable(end)
            self._engine.release(topic_id, free)
            if free < end:
                self._to_release.append((now + 1.0, topic_id, end))

    def _flush_gap(self, topic_id: int) -> None:
        """Write the gap behind what was flushed to files before the log may let it go.

        It would go with the records before it, and then nobody could tell of it any more.
        """
        topic = self._topics.get(topic_id)
        gap = None if topic is None else topic.gap_behind()
        if topic is not None and gap is not None:
            topic.flush(gap, reason="gap")

    def judge_commits(self) -> None:
        """Keep the queue of topics whose staged files the lake should take."""
        now_us = self.clock.now_us()
        for topic in self.topics:
            staged = self.disk.staged(topic.id)
            if not staged.files:
                self.queue.pop(topic.id, None)
                continue
            facts = DiskFacts(
                partition_bytes_max=staged.partition_bytes_max,
                since_commit_s=max(now_us - staged.since_us, 0) / 1e6,
                small_files=staged.small_files,
                deletes_pending=staged.deletes,
                staged_bytes=staged.bytes,
            )
            fired = disk_signals(facts, self.disk_limits(topic))
            if fired:
                known = self.queue.get(topic.id)
                self.queue[topic.id] = CommitDue(
                    topic=topic.name,
                    reasons=tuple(each.reason for each in fired),
                    offset_first=staged.offset_first,
                    offset_end=staged.offset_end,
                    files=staged.files,
                    bytes=staged.bytes,
                    since_us=now_us if known is None else known.since_us,
                )
            else:
                self.queue.pop(topic.id, None)

    # -- what the disk tier asks for -------------------------------------------------------------

    def _convert(self, topic_id: int, version: int, batch: Any) -> Any:
        topic = self.topic(topic_id)
        return topic.convert(version, batch, topic.runtime.codec.columns)

    def _rebuild(self, topic_id: int, file: Any) -> bool:
        """Write a damaged file's set again from the log; False if the log no longer has it."""
        found = self._topics.get(topic_id)
        return found is not None and found.rebuild(file)

    def _must_wait(self, topic_id: int) -> bool:
        """Tell whether this thread must leave a rebuild to the one that moves, and wake that."""
        found = self._topics.get(topic_id)
        if found is None or not found.busy():
            return False
        self._wake_move.set()
        return True

    def stats(self) -> dict[str, Any]:
        """Return what the tiers hold and did, ready for JSON."""
        return {
            "pressure": self.pressure.snapshot()._asdict(),
            "signals_fired": dict(self.fired),
            "disk": self.files.stats(),
            "commit_queue": [
                msgspec.to_builtins(due) for due in list(self.queue.values())[:QUEUE_TOLD_MAX]
            ],
            "errors": dict(self.errors),
        }


def _no_wait(event: threading.Event, timeout_s: float) -> bool:
    del timeout_s
    return event.is_set()
