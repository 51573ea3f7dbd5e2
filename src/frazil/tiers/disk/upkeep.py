"""What becomes of files: retention, quotas, the cap of the tier, topics that were deleted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Closed, FrazilError, Overloaded, Unavailable
from frazil.telemetry import event
from frazil.tiers.keyed_limits import KeyedLimits
from frazil.tiers.keys.marks import remove_marks
from frazil.tiers.zones import RED
from frazil.topic import Sequencer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.tiers.disk.catalog import Span
    from frazil.tiers.disk.tier import DiskTier
    from frazil.tiers.tiering import Tiers
    from frazil.tiers.topic_tiers import TopicTiers
    from frazil.topic import Instance, TopicRuntime

STEPS: Final = 8
"""Files of a topic are joined up to this part of what it keeps, so that it goes in steps."""
FOREVER: Final = 1 << 62


class DiskUpkeep:
    """Lets files go, and stops publishes when none may go. One thread calls it."""

    def __init__(self, engine: Instance, tiers: Tiers) -> None:
        self._engine = engine
        self._tiers = tiers
        self._disk = tiers.disk
        self._keyed = KeyedLimits(engine, tiers)
        self._marks_swept = False

    # -- retention -------------------------------------------------------------------------------

    def retain(self) -> None:
        """Let records go that no hold needs and that are older, or more, than a topic keeps.

        The rows of a keyed topic are its state: they stay, however old. Its quota stops it.
        """
        for topic in self._tiers.topics_in_turn:
            if not topic.keyed_topic and self._disk.picture(topic.id).spans:
                # Under these locks no hold is set and no reader begins that needs the records.
                with self._engine.control_lock, topic.runtime.lane.pinning:
                    below = self.retained_from(topic)
                    if below > self._disk.start(topic.id):
                        self.expire(topic, below)

    def retained_from(self, topic: TopicTiers) -> int:
        """Return the offset below which retention lets files go."""
        age_us, bytes_max = self._kept(topic)
        limit = topic.state.floor
        pinned = self._disk.history.pinned(topic.id)
        if pinned is not None:
            limit = min(limit, pinned)
        spans = self._disk.picture(topic.id).spans
        later = sum(file.size for span in spans for file in span.files)
        trusted = self._engine.time_trusted()
        now_us = self._engine.clock.now_us()
        below = 0
        for span in spans:
            later -= sum(file.size for file in span.files)
            old = trusted and max(file.time_last for file in span.files) + age_us <= now_us
            if span.end > limit or not (old or later >= bytes_max):
                break
            below = span.end
        return below

    def _kept(self, topic: TopicTiers) -> tuple[int, int]:
        """Return for how long, and how many bytes, a topic's records are kept."""
        spec, log = topic.state.spec, self._engine.settings.log
        age_us = int(log.retention_age_s * 1e6) if spec.retention_us is None else spec.retention_us
        bytes_max = log.retention_bytes if spec.retention_bytes is None else spec.retention_bytes
        return age_us, bytes_max

    def expire(self, topic: TopicTiers, below: int) -> None:
        """Let everything below an offset go, from all tiers."""
        if topic.keyed is not None:
            # Before the files go: else a look-up would name a row that nobody has any more.
            topic.keyed.floor = max(topic.keyed.floor, below)
        self._disk.expire(topic.id, below)
        topic.memory.evict(min(below, topic.flushed))
        if topic.keyed is not None:
            topic.keyed.expire(below)
        queue = topic.runtime.queue
        if isinstance(queue, Sequencer):
            # What it remembers as written may be gone: no change must build on that.
            queue.forget_written()

    # -- merging ---------------------------------------------------------------------------------

    def merge(self, topic: TopicTiers) -> bool:
        """Join small files of a topic; tell whether there was anything to join.

        Whole files go by age and at a quota. So none spans more than a part of what the topic
        keeps: else a slow topic's one file would never be old, and a quota would take all at once.
        """
        age_us, bytes_max = self._kept(topic)
        if topic.keyed_topic:
            age_us = FOREVER
        spans = self._disk.picture(topic.id).spans
        names = {file.name for span in spans for file in span.files}
        for run in _runs(spans, age_us // STEPS, bytes_max // STEPS):
            own = {file.name for span in run for file in span.files}
            if len(run) > 1 and self._disk.merge_once(topic.id, keep=names - own):
                return True
        return False

    # -- quotas ----------------------------------------------------------------------------------

    def held_bytes(self, runtime: TopicRuntime) -> int:
        """Return the bytes that a topic's holds need: of files, and of the log what no file has."""
        state = runtime.state
        size = self._disk.held_bytes(state.id, state.floor)
        first = max(self._disk.flushed(state.id), state.floor)
        for segment in runtime.lane.journal.segments:
            summary = segment.summary(state.id)
            if summary is not None and summary[1] > first:
                # Where a file has some of a segment's records, the others count by their number.
                begin, end, held = summary[:3]
                size += held * (end - max(begin, first)) // (end - begin)
        return size

    def quota_end(self, runtime: TopicRuntime, bytes_max: int) -> int:
        """Return the offset below which files must go for a topic to be within its quota."""
        spans = self._disk.picture(runtime.state.id).spans
        size = self.held_bytes(runtime)
        end = runtime.state.floor
        for span in spans:
            if size <= bytes_max:
                break
            if span.end > end:
                size -= sum(file.size for file in span.files)
                end = span.end
        return end

    # -- the cap ---------------------------------------------------------------------------------

    def check_cap(self) -> None:
        """Keep the files below their cap: evict what is safely elsewhere, else hold the writers.

        Keyed topics are judged before, so that one of them stops itself and not all.
        """
        self._keyed.check()
        before = {topic.id: self._disk.start(topic.id) for topic in self._tiers.topics}
        bytes_max = self._engine.settings.disk.bytes_max
        if self._disk.usage() > bytes_max:
            self._evict()
        full = self._disk.usage() > bytes_max
        for topic in self._tiers.topics:
            start = self._disk.start(topic.id)
            if start > before.get(topic.id, start):
                topic.memory.evict(min(start, topic.flushed))
            runtime = topic.runtime
            if full and runtime.refusal is None:
                wait_s = self._engine.settings.memory.wait_s if self._engine.threaded else 0.0
                runtime.refusal = _CapStop(self._disk, bytes_max, wait_s)
            elif not full and isinstance(runtime.refusal, _CapStop):
                runtime.refusal = None

    def check_writable(self) -> None:
        """Refuse publishes when memory is full and no file can be written until a new start."""
        failure: Closed | None = None
        try:
            self._disk.directory.check()
        except Closed as error:
            failure = error
        stuck = failure is not None and self._tiers.pressure.level == RED
        for topic in self._tiers.topics:
            runtime = topic.runtime
            if failure is not None and stuck and runtime.refusal is None:
                runtime.refusal = _WriteStop(failure)
            elif not stuck and isinstance(runtime.refusal, _WriteStop):
                runtime.refusal = None

    def _evict(self) -> None:
        # Under these locks no hold is set and no reader begins that needs what goes.
        with self._engine.control_lock, contextlib.ExitStack() as pinning:
            for lane in self._engine.lanes:
                pinning.enter_context(lane.pinning)
            floors = {topic.id: topic.state.floor for topic in self._tiers.topics}
            # Look-ups by key need the rows at hand: of a keyed topic all files stay.
            uploaded = {
                topic.id: self._engine.objects.uploaded(topic.id)
                for topic in self._tiers.topics
                if not topic.keyed_topic
            }
            self._disk.evict(floors, uploaded)

    # -- deleted topics --------------------------------------------------------------------------

    def drop_deleted(self) -> None:
        """Remove the files of topics that were deleted longer ago than the grace."""
        self._drop_marks()
        engine = self._engine
        main = engine.main.journal
        if main.failed is not None or not engine.time_trusted():
            return
        grace_us = int(engine.settings.topics.delete_grace_s * 1e6)
        for topic_id in self._disk.topics:
            state = main.state.topics.get(topic_id)
            if state is not None:
                deleted_us = state.spec.deleted_us
                if not deleted_us or deleted_us + grace_us > engine.clock.now_us():
                    continue
            elif topic_id > main.state.topic_id_last or main.report.lost or main.report.warnings:
                # The definition may be what was lost: these files are all that is left of a topic.
                continue
            self._disk.drop_topic(topic_id)
            self._marks_swept = False
            event("topic_files_removed", topic_id=topic_id)
        self._drop_marks()

    def _drop_marks(self) -> None:
        """Remove what a clean end has kept of topics without files, also what a crash left."""
        if not self._marks_swept:
            # Marks say which rows in files are superseded: without files they say nothing.
            files, directory = self._engine.file_system, self._tiers.marks_directory
            self._marks_swept = remove_marks(files, directory, keep=self._disk.topics)

    def stats(self) -> dict[str, Any]:
        """Return what the disk tier holds."""
        return {
            "bytes": self._disk.usage(),
            "bytes_max": self._engine.settings.disk.bytes_max,
            "purposes": self._disk.purposes(),
            "files": sum(len(self._disk.files(topic)) for topic in self._disk.topics),
        }


def _runs(spans: Sequence[Span], age_us: int, bytes_max: int) -> list[list[Span]]:
    """Part sets, oldest first, into runs that span neither more time nor more bytes than that."""
    runs: list[list[Span]] = []
    size = begun_us = 0
    for span in spans:
        own = sum(file.size for file in span.files)
        last_us = max(file.time_last for file in span.files)
        if not runs or size + own > bytes_max or last_us - begun_us > age_us:
            runs.append([])
            size, begun_us = 0, min(file.time_first for file in span.files)
        runs[-1].append(span)
        size += own
    return runs


class _WriteStop:
    """The refusal of publishes that memory has no room for, because no file can be written."""

    def __init__(self, cause: Closed) -> None:
        self._cause = cause

    def __call__(self) -> FrazilError:
        return Unavailable(
            "memory is full and the disk tier takes no more files, open the engine again",
            cause=self._cause,
        )


class _CapStop:
    """The refusal of publishes while the disk tier is full of what is nowhere else."""

    def __init__(self, disk: DiskTier, bytes_max: int, wait_s: float) -> None:
        self._disk = disk
        self._bytes_max = bytes_max
        self.wait_s = wait_s
        """So long publishes wait, in case that room is made."""

    def __call__(self) -> FrazilError:
        return Overloaded(
            "the disk tier is full of records that are nowhere else; raise disk.bytes_max, shorten "
            "retention or let the lake or the object store catch up",
            bytes=self._disk.usage(),
            bytes_max=self._bytes_max,
            retry_after_ms=1000,
        )
