"""Limits of keyed topics, of which nothing expires: their files' bytes, and marks in memory.

The newest rows of a keyed topic are its state, so neither age nor size lets any of them go. At a
limit the topic alone is stopped: its publishes wait, and are refused with what can be done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import FrazilError, Overloaded
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.config import LogSettings, MemorySettings
    from frazil.model import OnFull, TopicSpec
    from frazil.tiers.tiering import Tiers
    from frazil.tiers.topic_tiers import TopicTiers
    from frazil.topic import Instance

RETRY_AFTER_MS: Final = 1000
MARGIN: Final = 0.01
"""What index and marks at their fullest leave below the end of yellow."""


def on_full_of(spec: TopicSpec, log: LogSettings) -> OnFull:
    """Return what happens at a topic's quota; rows that are a topic's state never expire."""
    return "block" if spec.primary_key else spec.on_full or log.on_full


def quota_of(spec: TopicSpec, log: LogSettings) -> int:
    """Return how many bytes a topic may keep."""
    return log.retention_bytes if spec.retention_bytes is None else spec.retention_bytes


def marks_counted(memory: MemorySettings) -> float:
    """Return the share of the budget up to which marks count as use of it.

    No flush frees them: with a full index they must not keep memory in yellow for good.
    """
    room = memory.yellow_ratio - memory.hysteresis_ratio - memory.index_share - MARGIN
    return max(min(memory.marks_share, room), 0.0)


class KeyedLimits:
    """Stops keyed topics at their limits, each alone. One thread calls it."""

    def __init__(self, engine: Instance, tiers: Tiers) -> None:
        self._engine = engine
        self._tiers = tiers
        self._told: set[int] = set()

    def check(self) -> None:
        """Stop the topics that are at a limit, let go on those that no longer are."""
        keyed = [topic for topic in self._tiers.topics if topic.keyed_topic]
        families: dict[int, list[TopicTiers]] = {}
        for topic in keyed:
            spec = topic.state.spec
            families.setdefault(spec.part_of or spec.id, []).append(topic)
        most_marks = self._most_marks(keyed)
        wait_s = self._engine.settings.memory.wait_s if self._engine.threaded else 0.0
        for name, parts in families.items():
            self._tell_unused(name, parts[0].state.spec)
            quota = _QuotaStop(self, parts, wait_s)
            for topic in parts:
                if quota.is_due():
                    self._stop(topic, quota)
                elif topic in most_marks:
                    self._stop(topic, _MarksStop(self, topic, wait_s))
                elif isinstance(topic.runtime.refusal, (_QuotaStop, _MarksStop)):
                    topic.runtime.refusal = None

    def bytes_of(self, parts: Sequence[TopicTiers]) -> int:
        """Return the bytes of all files of a topic."""
        return sum(self._tiers.disk.held_bytes(topic.id, 0) for topic in parts)

    def quota_of(self, topic: TopicTiers) -> int:
        """Return how many bytes a topic's files may have."""
        return quota_of(topic.state.spec, self._engine.settings.log)

    @property
    def marks_bytes_max(self) -> int:
        """Return how many bytes the marks of all topics may have."""
        memory = self._engine.settings.memory
        return int(memory.budget_bytes * memory.marks_share)

    def _most_marks(self, keyed: Sequence[TopicTiers]) -> list[TopicTiers]:
        """Return the topics with more than an equal part of the marks, if these are too many."""
        sizes = [(topic, marks_bytes(topic)) for topic in keyed]
        if sum(size for _, size in sizes) <= self.marks_bytes_max:
            return []
        return [topic for topic, size in sizes if size > self.marks_bytes_max // len(sizes)]

    def _stop(self, topic: TopicTiers, stop: _QuotaStop | _MarksStop) -> None:
        before = topic.runtime.refusal
        if before is None:
            topic.runtime.refusal = stop
            warn("keyed_topic_stopped", topic=topic.name, why=str(stop()))

    def _tell_unused(self, family: int, spec: TopicSpec) -> None:
        """Tell once of options that an earlier version took, and that are read as none."""
        if family in self._told:
            return
        self._told.add(family)
        if spec.on_full == "expire" or spec.retention_us is not None:
            warn(
                "keyed_topic_expires_nothing",
                topic=spec.name,
                on_full=spec.on_full,
                retention_us=spec.retention_us,
                hint="the rows of a keyed topic are its state: these options do nothing",
            )


def marks_bytes(topic: TopicTiers) -> int:
    """Return the bytes of the marks of a topic's superseded rows in files."""
    return 0 if topic.keyed is None else topic.keyed.vectors.files.nbytes


class _QuotaStop:
    """The refusal of publishes to one keyed topic whose files have the size of its quota."""

    def __init__(self, limits: KeyedLimits, parts: Sequence[TopicTiers], wait_s: float) -> None:
        self._limits = limits
        self._parts = parts
        self.wait_s = wait_s
        """So long publishes wait, in case that the quota is raised or files are merged."""

    def is_due(self) -> bool:
        """Tell whether the files have more than the quota."""
        return self._limits.bytes_of(self._parts) > self._limits.quota_of(self._parts[0])

    def __call__(self) -> FrazilError:
        return Overloaded(
            "the topic's quota is full and the rows of a keyed topic never expire; raise its "
            "retention_bytes, or copy what is needed to another topic and delete this one",
            topic=self._parts[0].name,
            bytes=self._limits.bytes_of(self._parts),
            bytes_max=self._limits.quota_of(self._parts[0]),
            retry_after_ms=RETRY_AFTER_MS,
        )


class _MarksStop:
    """The refusal of publishes to one keyed topic that has most of the marks memory may have."""

    def __init__(self, limits: KeyedLimits, topic: TopicTiers, wait_s: float) -> None:
        self._limits = limits
        self._topic = topic
        self.wait_s = wait_s

    def __call__(self) -> FrazilError:
        return Overloaded(
            "the topic has too many superseded rows in files, whose marks fill their share of "
            "memory; raise memory.budget_bytes or memory.marks_share, or copy what is needed to "
            "another topic and delete this one",
            topic=self._topic.name,
            bytes=marks_bytes(self._topic),
            bytes_max=self._limits.marks_bytes_max,
            retry_after_ms=RETRY_AFTER_MS,
        )
