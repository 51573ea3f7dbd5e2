"""What becomes of files: retention, quotas, the cap of the tier, topics that were deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, Overloaded
from frazil.telemetry import event

if TYPE_CHECKING:
    from frazil.engine.registry import Registry
    from frazil.engine.runtime import TopicRuntime
    from frazil.engine.tiering import Tiers
    from frazil.engine.topic_tiers import TopicTiers
    from frazil.tiers.disk import DiskTier


class DiskUpkeep:
    """Lets files go, and stops publishes when none may go. One thread calls it."""

    def __init__(self, engine: Registry, tiers: Tiers) -> None:
        self._engine = engine
        self._tiers = tiers
        self._disk = tiers.disk

    # -- retention -------------------------------------------------------------------------------

    def retain(self) -> None:
        """Let records go that no hold needs and that are older, or more, than a topic keeps.

        The rows of a keyed topic are its state: they stay, however old, until they are held
        elsewhere.
        """
        for topic in self._tiers.topics:
            if not topic.keyed_topic:
                # Holds stand still under the lock: none that needs the records comes meanwhile.
                with self._engine.control_lock:
                    below = self.retained_from(topic)
                    if below > self._disk.start(topic.id):
                        self.expire(topic, below)

    def retained_from(self, topic: TopicTiers) -> int:
        """Return the offset below which retention lets files go."""
        spec, log = topic.state.spec, self._engine.settings.log
        age_us = int(log.retention_age_s * 1e6) if spec.retention_us is None else spec.retention_us
        bytes_max = log.retention_bytes if spec.retention_bytes is None else spec.retention_bytes
        limit = topic.state.floor
        pinned = self._disk.history.pinned(topic.id)
        if pinned is not None:
            limit = min(limit, pinned)
        spans = self._disk.picture(topic.id).spans
        later = sum(file.size for span in spans for file in span.files)
        trusted = self._engine.upkeep.time_trusted()
        now_us = self._engine.clock.now_us()
        below = 0
        for span in spans:
            later -= sum(file.size for file in span.files)
            old = trusted and max(file.time_last for file in span.files) + age_us <= now_us
            if span.end > limit or not (old or later >= bytes_max):
                break
            below = span.end
        return below

    def expire(self, topic: TopicTiers, below: int) -> None:
        """Let everything below an offset go, from all tiers."""
        self._disk.expire(topic.id, below)
        topic.memory.evict(min(below, topic.flushed))
        if topic.keyed is not None:
            topic.keyed.expire(below)

    # -- quotas ----------------------------------------------------------------------------------

    def held_bytes(self, runtime: TopicRuntime) -> int:
        """Return the bytes of files that a topic's holds need."""
        return self._disk.held_bytes(runtime.state.id, runtime.state.floor)

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
        """Keep the files below their cap: evict what is safely elsewhere, else hold the writers."""
        floors = {topic.id: topic.state.floor for topic in self._tiers.topics}
        before = {topic.id: self._disk.start(topic.id) for topic in self._tiers.topics}
        self._disk.evict(floors)
        bytes_max = self._engine.settings.disk.bytes_max
        full = self._disk.usage() > bytes_max
        for topic in self._tiers.topics:
            start = self._disk.start(topic.id)
            if start > before[topic.id]:
                topic.memory.evict(min(start, topic.flushed))
            runtime = topic.runtime
            if full and runtime.refusal is None:
                runtime.refusal = _CapStop(self._disk, bytes_max)
            elif not full and isinstance(runtime.refusal, _CapStop):
                runtime.refusal = None

    # -- deleted topics --------------------------------------------------------------------------

    def drop_deleted(self) -> None:
        """Remove the files of topics that were deleted longer ago than the grace."""
        engine = self._engine
        main = engine.main.journal
        if main.failed is not None or not engine.upkeep.time_trusted():
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
            event("topic_files_removed", topic_id=topic_id)

    def stats(self) -> dict[str, Any]:
        """Return what the disk tier holds."""
        return {
            "bytes": self._disk.usage(),
            "bytes_max": self._engine.settings.disk.bytes_max,
            "purposes": self._disk.purposes(),
            "files": sum(len(self._disk.files(topic)) for topic in self._disk.topics),
        }


class _CapStop:
    """The refusal of publishes while the disk tier is full of what is nowhere else."""

    def __init__(self, disk: DiskTier, bytes_max: int) -> None:
        self._disk = disk
        self._bytes_max = bytes_max

    def __call__(self) -> FrazilError:
        return Overloaded(
            "the disk tier is full of records that are nowhere else; raise disk.bytes_max, shorten "
            "retention or let the lake catch up",
            bytes=self._disk.usage(),
            bytes_max=self._bytes_max,
            retry_after_ms=1000,
        )
