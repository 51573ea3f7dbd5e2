"""Background work of an engine, in one thread: seal segments, free them, check the disk, scrub."""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from frazil.background import Task
from frazil.errors import Overloaded
from frazil.log import (
    RANGE_GAP,
    STATE_HOLD,
    Control,
    Policy,
    RetentionView,
    SpaceGuard,
    body_hash,
    held_bytes,
    read_footer,
    segments_to_free,
)
from frazil.log import format as fmt
from frazil.subscribe import is_stored
from frazil.telemetry import event, warn
from frazil.tiers import on_full_of, quota_of
from frazil.topic import NotStored

if TYPE_CHECKING:
    from frazil.engine.engine import Engine
    from frazil.log import Segment
    from frazil.topic import TopicRuntime

PAUSE_S: Final = 0.05
METADATA_S: Final = 1.0
FREE_CHECK_S: Final = 1.0
"""The interval at which the free space of the disk is checked."""
RETENTION_CHECK_S: Final = 60.0
"""The interval at which retention looks for segments to free."""
SCRUB_INTERVAL_S: Final = 86_400.0
"""The interval at which each sealed segment is read and compared with its hash."""
FOREVER: Final = 1 << 62
NOT_DAMAGE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of a read that do not mean damage of the file."""


class Upkeep:
    """The periodic tasks of an engine. `run_once` runs one round and may be called in any thread.

    A fault of one task never stops the other tasks or the thread; it is in `errors` and in `stats`.
    Decisions about holds and definitions are made under the engine's control lock.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._settings = engine.settings.log
        self._scrubbed: dict[str, float] = {}
        self._space_lock = threading.Lock()
        clock = engine.clock
        self.space = SpaceGuard(engine.file_system, engine.paths.root, self._settings)
        self.damage: dict[str, str] = {}
        """Sealed segments whose bytes no longer match their hash, with the reason."""
        self.publishing_stopped = False
        """The disk is too full, and every topic refuses to publish."""
        self.segments_freed = 0
        self.task = Task(
            "frazil-upkeep",
            self.run_once,
            clock=clock,
            pause_s=self._pause_s,
            failed_event="upkeep_failed",
        )
        self.errors = self.task.errors

    def start(self) -> None:
        """Check topics and the disk at once, then start the thread."""
        for runtime in self._engine.runtimes:
            self._refuse_unstored(runtime)
        self.task.run("space", self.check_space)
        if self._engine.threaded:
            self.task.start()

    def stop(self) -> None:
        """End the thread after its current step."""
        self.task.stop()
        self.task.run("seal", self.seal)

    def new_topic(self, runtime: TopicRuntime) -> None:
        """Apply a current stop to a topic that was just created."""
        with self._space_lock:
            self._refuse_unstored(runtime)
            if self.publishing_stopped and runtime.refusal is None:
                runtime.refusal = self.space.error

    def _refuse_unstored(self, runtime: TopicRuntime) -> None:
        if not is_stored(self._engine, runtime):
            runtime.refusal = NotStored(runtime.name)

    def _pause_s(self) -> float:
        is_behind = bool(self._engine.log.journal.to_seal)
        return PAUSE_S if is_behind else min(FREE_CHECK_S, RETENTION_CHECK_S, 0.5)

    def run_once(self) -> None:
        """Run the tasks that are due: seal, check the disk, free, scrub."""
        self.task.run("seal", self.seal)
        if self.task.is_due("space", FREE_CHECK_S):
            self.task.run("space", self.check_space)
        if self.task.is_due("retention", RETENTION_CHECK_S):
            self.task.run("cursors", self._engine.cursors.follow)
            self.task.run("quota", self.check_quotas)
            self.task.run("retention", self.free)
            self.task.run("forget", self.forget_gone)
        if self._engine.metadata_failed and self.task.is_due("metadata", METADATA_S):
            self.task.run("metadata", self._engine.mend_metadata)
        if self.task.is_due("scrub", min(SCRUB_INTERVAL_S / 10, 60.0)):
            self.task.run("scrub", self.scrub)

    # -- tasks -----------------------------------------------------------------------------------

    def seal(self) -> None:
        """Write the footers of rotated segments."""
        journal = self._engine.log.journal
        sealed = False
        while journal.failed is None and journal.seal_one():
            sealed = True
        if sealed:
            event("segment_sealed", segments=len(journal.segments))
            self._engine.note_segments()

    def check_space(self) -> None:
        """Stop publishing while the disk is too full, and resume it when there is space."""
        with self._space_lock:
            self.space.check()
            self._apply_space()

    def disk_full(self) -> None:
        """Stop publishing at once: a write met a full disk. Called by a journal's thread."""
        self.task.run("space", self._block)

    def _block(self) -> None:
        with self._space_lock:
            try:
                # Even if publishing is blocked already: the failed write needs the ballast's space.
                self.space.block()
            finally:
                self._apply_space()

    def _apply_space(self) -> None:
        """Stop or resume publishing in all topics if the state of the disk has changed."""
        if self.space.blocked == self.publishing_stopped:
            return
        error = self.space.error
        name = "publishing_stopped" if self.space.blocked else "publishing_resumed"
        warn(name, free_bytes=self.space.free_bytes, free_bytes_min=self.space.mark_bytes)
        for runtime in self._engine.runtimes:
            if isinstance(runtime.refusal, NotStored):
                continue
            if self.space.blocked:
                runtime.refusal = error
            elif runtime.refusal == error:
                runtime.refusal = None
        # Set last, so that every topic has the new state when a caller sees this flag.
        self.publishing_stopped = self.space.blocked

    def forget_gone(self) -> None:
        """Drop the state of removed segments and topics."""
        journal = self._engine.log.journal
        paths = {segment.path for segment in journal.segments}
        for noted in (self._scrubbed, self.damage):
            for path in set(noted) - paths:
                noted.pop(path, None)
        for topic_id in set(self._engine.released) - set(journal.state.topics):
            self._engine.released.pop(topic_id, None)

    def free(self) -> int:
        """Free the oldest segments that no hold, reader or retention rule keeps; return the number.

        No new hold or pin on the records may appear between the decision and its effect. Holds are
        set, moved and dropped under the control lock, which is kept throughout. `Log.free` checks
        pins again and blocks new ones until the segments are detached. A reader that pins after
        that gets `NotFound` at its first read, never in the middle.
        """
        log = self._engine.log
        journal = log.journal
        with self._engine.control_lock:
            if journal.failed is not None or journal.closed:
                return 0
            topics = dict(journal.state.topics)
            count = segments_to_free(journal.segments, topics, self._view())
            gone = log.free(count) if count else []
        if not gone:
            return 0
        journal.unlink(gone)
        self.segments_freed += len(gone)
        event("segments_freed", segments=len(gone), segment_first=gone[-1].id + 1)
        self._engine.note_segments()
        return len(gone)

    def _view(self) -> RetentionView:
        """Return the rules for freeing segments.

        With the disk tier the log frees only the records that files have; retention acts on the
        files. Readers find the remaining records in files, so that neither a slow reader nor a
        stuck topic keeps segments of the journal, which all topics share.
        """
        engine, log = self._engine, self._settings
        topics = dict(engine.log.journal.state.topics)
        policies = dict.fromkeys(topics, Policy(age_us=FOREVER, bytes_max=FOREVER))
        pinned = {}
        if not engine.has_tiers:
            for topic_id, topic in topics.items():
                age_us, bytes_max = topic.spec.retention_us, topic.spec.retention_bytes
                policies[topic_id] = Policy(
                    age_us=int(log.retention_age_s * 1e6) if age_us is None else age_us,
                    bytes_max=log.retention_bytes if bytes_max is None else bytes_max,
                )
                offset = engine.log.source.pinned(topic_id)
                if offset is not None:
                    pinned[topic_id] = offset
        return RetentionView(
            now_us=engine.clock.now_us(),
            time_trusted=engine.time_trusted(),
            delete_grace_us=int(engine.settings.topics.delete_grace_s * 1e6),
            policies=policies,
            released=dict(engine.released),
            pinned=pinned,
            journal_bytes_max=FOREVER if engine.has_tiers else log.journal_bytes_max,
        )

    def check_quotas(self) -> None:
        """Act on topics whose holds keep more than their quota: block them, or expire data."""
        for runtime in self._engine.runtimes:
            # Under the lock no hold changes, so no moved or dropped hold is written again.
            with self._engine.control_lock:
                self._check_quota(runtime)

    def _check_quota(self, runtime: TopicRuntime) -> None:
        spec = runtime.state.spec
        size, bytes_max = self._held_bytes(runtime), quota_of(spec, self._settings)
        if size <= bytes_max:
            if isinstance(runtime.refusal, _QuotaStop):
                runtime.refusal = None
        elif on_full_of(spec, self._settings) == "expire":
            self._expire(runtime, self._quota_end(runtime, bytes_max))
        elif runtime.refusal is None:
            runtime.refusal = _QuotaStop(spec.name, size, bytes_max)

    def _held_bytes(self, runtime: TopicRuntime) -> int:
        """Return the size of the records that holds of a topic keep."""
        state, journal = runtime.state, runtime.log.journal
        if not state.holds or state.spec.deleted_us or journal.failed is not None:
            return 0
        if runtime.tiers is None:
            released = self._engine.released.get(state.id, 0)
            return held_bytes(state, journal.segments, released)[0]
        # A keyed topic with files has a quota of all of them: `Retention.check_keyed` judges it.
        keyed = bool(state.spec.primary_key)
        return 0 if keyed else self._engine.tiers.retention.held_bytes(runtime)

    def _quota_end(self, runtime: TopicRuntime, bytes_max: int) -> int:
        """Return the offset below which records must be removed to keep a topic in its quota."""
        state, journal = runtime.state, runtime.log.journal
        if runtime.tiers is not None:
            return self._engine.tiers.retention.quota_end(runtime, bytes_max)
        target = max(state.floor, self._engine.released.get(state.id, 0))
        for segment in journal.segments[:-1]:
            summary = segment.summary(state.id)
            if summary is None or summary[1] <= target:
                continue
            target = summary[1]
            size, _oldest = held_bytes(state, journal.segments, target)
            if size <= bytes_max:
                break
        return target

    def _expire(self, runtime: TopicRuntime, target: int) -> None:
        """Expire the oldest held records of one topic, as a declared gap, and move its holds."""
        state, log = runtime.state, runtime.log
        floor = state.floor
        if target <= floor:
            return
        payload = msgspec.msgpack.encode((target, RANGE_GAP, "expired at the topic's quota"))
        log.control(Control(fmt.KIND_GAP, state.id, payload, offset=floor))
        for name in list(state.holds):
            if state.holds.get(name, target) < target:
                moved = msgspec.msgpack.encode((STATE_HOLD, name, target))
                log.control(Control(fmt.KIND_STATE, state.id, moved))
        if runtime.tiers is not None:
            self._engine.tiers.retention.expire(runtime.tiers, target)

    def scrub(self) -> None:
        """Read the sealed segment whose check is due and compare it with its hash (F3)."""
        now = self._engine.clock.monotonic()
        for segment in self._engine.log.journal.segments[:-1]:
            last = self._scrubbed.get(segment.path)
            if last is not None and now - last < SCRUB_INTERVAL_S:
                continue
            self._scrubbed[segment.path] = now
            # A segment that was just sealed or opened is due after a whole interval.
            if last is not None:
                self.scrub_segment(segment)
                return

    def scrub_segment(self, segment: Segment) -> str:
        """Compare one sealed segment with its hash; return the fault, or an empty text."""
        try:
            fault = self._segment_fault(segment)
        except OSError as error:
            if error.errno in NOT_DAMAGE:
                raise
            # A medium error means damage that the disk itself reports.
            fault = f"cannot be read: {error}"
        if fault:
            self.damage[segment.path] = fault
            warn("segment_damaged", segment=segment.id, fault=fault)
        else:
            self.damage.pop(segment.path, None)
        return fault

    def _segment_fault(self, segment: Segment) -> str:
        with contextlib.closing(self._engine.file_system.open(segment.path, "read")) as file:
            footer = read_footer(file)
            if footer is None:
                return "footer is missing or damaged"
            is_whole = body_hash(file, footer.body_end) == footer.sha256
            return "" if is_whole else "content does not match its hash"


@attrs.frozen
class _QuotaStop:
    """The refusal of publishes to a topic whose holds keep more than its quota."""

    topic: str
    size: int
    bytes_max: int

    def __call__(self) -> Overloaded:
        return Overloaded(
            "the topic's quota is full of records that holds still need; advance or drop a hold, "
            "or set on_full to expire",
            topic=self.topic,
            bytes=self.size,
            bytes_max=self.bytes_max,
            retry_after_ms=1000,
        )
