"""Limits of the tiers: retention, quotas, the cap of the disk tier, deleted topics.

The newest rows of a keyed topic are its state, so neither age nor size expires any of them. At its
quota, or when its deletion vector fills memory, publishing is stopped for that topic alone. Its
publishes wait and are then refused with advice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from frazil.errors import Overloaded
from frazil.telemetry import event, warn
from frazil.tiers.disk.reader import FOREVER
from frazil.tiers.disk.writer import merge_once
from frazil.tiers.pressure import RETRY_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from frazil.config import LogSettings
    from frazil.errors import FrazilError
    from frazil.model import OnFull, TopicSpec
    from frazil.tiers.disk.catalog import Span
    from frazil.tiers.runtime import Tiers
    from frazil.tiers.topic_tiers import TopicTiers
    from frazil.topic import Instance, TopicRuntime

VECTORS_SHARE: Final = 0.25
"""Deletion vectors may use this share of the budget; above it the largest topics are stopped.

Key indexes may use a quarter as well. Both together leave memory green: no flush frees either."""
STEPS: Final = 8
"""A file spans at most this part of a topic's retention, so that retention works in steps."""


def on_full_of(spec: TopicSpec, log: LogSettings) -> OnFull:
    """Return the action at a topic's quota; the rows of a keyed topic never expire."""
    return "block" if spec.primary_key else spec.on_full or log.on_full


def quota_of(spec: TopicSpec, log: LogSettings) -> int:
    """Return the number of bytes that a topic may keep."""
    return log.retention_bytes if spec.retention_bytes is None else spec.retention_bytes


class PublishStop(NamedTuple):
    """The refusal of a topic's publishes at one kind of limit.

    Attributes:
        wait_s: the time that publishes wait for the end of the stop.
    """

    kind: str
    error: Callable[[], FrazilError]
    wait_s: float

    def __call__(self) -> FrazilError:
        return self.error()


class Retention:
    """Removes files, and stops publishes when no file may be removed. One thread calls it."""

    def __init__(self, engine: Instance, tiers: Tiers) -> None:
        self._engine = engine
        self._tiers = tiers

    # -- retention ---------------------------------------------------------------------------------

    def retain(self) -> None:
        """Remove records that no hold needs and that are beyond their topic's age or size."""
        for topic in self._tiers.topics:
            if not topic.keyed_topic and self._tiers.disk.picture(topic.id).spans:
                # Under these locks no new hold or reader can need the records.
                with self._engine.control_lock, topic.runtime.log.pinning:
                    below = self.retained_from(topic)
                    if below > self._tiers.disk.start(topic.id):
                        self.expire(topic, below)

    def retained_from(self, topic: TopicTiers) -> int:
        """Return the offset below which retention removes files."""
        age_us, bytes_max = self._kept(topic)
        limit = min(topic.state.floor, self._tiers.disk.history.pinned(topic.id))
        spans = self._tiers.disk.picture(topic.id).spans
        later = sum(_size(span) for span in spans)
        trusted = self._engine.time_trusted()
        now_us = self._engine.clock.now_us()
        below = 0
        for span in spans:
            later -= _size(span)
            old = trusted and max(file.time_last for file in span.files) + age_us <= now_us
            if span.end > limit or not (old or later >= bytes_max):
                break
            below = span.end
        return below

    def _kept(self, topic: TopicTiers) -> tuple[int, int]:
        """Return the age and the number of bytes up to which a topic's records are kept."""
        spec, log = topic.state.spec, self._engine.settings.log
        age_us = int(log.retention_age_s * 1e6) if spec.retention_us is None else spec.retention_us
        return (FOREVER if topic.keyed_topic else age_us), quota_of(spec, log)

    def expire(self, topic: TopicTiers, below: int) -> None:
        """Remove all records below an offset from memory and disk; not for keyed topics."""
        assert not topic.keyed_topic
        self._tiers.disk.space.expire(topic.id, below)
        topic.memory.evict(min(below, topic.flushed))

    def merge(self, topic: TopicTiers) -> bool:
        """Merge small files of a topic; return whether there were any.

        Retention removes whole files, so no file spans more than a part of the topic's retention.
        Otherwise the one file of a slow topic would never expire, and a quota would remove all.
        """
        age_us, bytes_max = self._kept(topic)
        spans = self._tiers.disk.picture(topic.id).spans
        names = {file.name for span in spans for file in span.files}
        for run in _runs(spans, age_us // STEPS, bytes_max // STEPS):
            own = {file.name for span in run for file in span.files}
            if len(run) > 1 and merge_once(self._tiers.disk, topic.id, keep=names - own):
                return True
        return False

    # -- quotas ------------------------------------------------------------------------------------

    def held_bytes(self, runtime: TopicRuntime) -> int:
        """Return the bytes that a topic's holds need, in files and in the log after them."""
        state, disk = runtime.state, self._tiers.disk
        size = disk.space.held_bytes(state.id, state.floor)
        first = max(disk.flushed(state.id), state.floor)
        for segment in runtime.log.journal.segments:
            summary = segment.summary(state.id)
            if summary is not None and summary[1] > first:
                # A segment's bytes are counted in proportion to its records that no file has.
                begin, end, held = summary[:3]
                size += held * (end - max(begin, first)) // (end - begin)
        return size

    def quota_end(self, runtime: TopicRuntime, bytes_max: int) -> int:
        """Return the offset below which files must be removed to keep a topic within its quota."""
        size = self.held_bytes(runtime)
        end = runtime.state.floor
        for span in self._tiers.disk.picture(runtime.state.id).spans:
            if size <= bytes_max:
                break
            if span.end > end:
                size -= _size(span)
                end = span.end
        return end

    def vectors_bytes(self) -> int:
        """Return the bytes of the deletion vectors of all topics."""
        return sum(map(_vector_bytes, self._tiers.topics))

    def check_keyed(self) -> None:
        """Stop the keyed topics that are at a limit, and end the stops of the others."""
        settings = self._engine.settings
        keyed = [topic for topic in self._tiers.topics if topic.keyed_topic]
        vectors_max = int(settings.memory.budget_bytes * VECTORS_SHARE)
        # At the limit, topics with more than an equal share are stopped.
        part = vectors_max // max(len(keyed), 1)
        full = self.vectors_bytes() > vectors_max
        for parts in _families(keyed):
            size = sum(self._tiers.disk.space.held_bytes(topic.id, 0) for topic in parts)
            over = size > quota_of(parts[0].state.spec, settings.log)
            for topic in parts:
                large = full and _vector_bytes(topic) > part
                self._hold(
                    topic, "quota", partial(_quota_error, self._tiers, parts) if over else None
                )
                error = partial(_vectors_error, topic, vectors_max)
                self._hold(topic, "deletion_vectors", error if large and not over else None)

    def _hold(
        self,
        topic: TopicTiers,
        kind: str,
        error: Callable[[], FrazilError] | None,
    ) -> None:
        """Stop a topic's publishes for one reason, or end that stop if there is no error."""
        runtime = topic.runtime
        current: object = runtime.refusal
        if error is None:
            if isinstance(current, PublishStop) and current.kind == kind:
                runtime.refusal = None
        elif current is None:
            wait_s = self._engine.settings.memory.wait_s if self._engine.threaded else 0.0
            runtime.refusal = cast("Callable[[], FrazilError]", PublishStop(kind, error, wait_s))
            warn("topic_stopped", topic=topic.name, limit=kind, why=str(error()))

    # -- the cap -----------------------------------------------------------------------------------

    def check_cap(self) -> None:
        """Keep the files below their cap: evict files that another tier has, else stop publishing.

        Keyed topics are checked first, so that a keyed topic at its limit does not stop all.
        """
        self.check_keyed()
        disk, bytes_max = self._tiers.disk, self._engine.settings.disk.bytes_max
        before = {topic.id: disk.start(topic.id) for topic in self._tiers.topics}
        if disk.space.usage() > bytes_max:
            self._evict(bytes_max)
        full = disk.space.usage() > bytes_max

        def over_cap() -> FrazilError:
            return Overloaded(
                "the disk tier is full of records that are nowhere else; raise disk.bytes_max, "
                "shorten retention or let the lake or the object store catch up",
                bytes=disk.space.usage(),
                bytes_max=bytes_max,
                retry_after_ms=RETRY_AFTER_MS,
            )

        for topic in self._tiers.topics:
            start = disk.start(topic.id)
            if start > before.get(topic.id, start):
                topic.memory.evict(min(start, topic.flushed))
            self._hold(topic, "cap", over_cap if full else None)

    def _evict(self, bytes_max: int) -> None:
        # Under these locks no new hold or reader can need the files.
        with self._engine.control_lock, self._engine.log.pinning:
            floors = {topic.id: topic.state.floor for topic in self._tiers.topics}
            # Look-ups by key need the rows of a keyed topic locally.
            uploaded = {
                topic.id: self._engine.objects.uploaded(topic.id)
                for topic in self._tiers.topics
                if not topic.keyed_topic
            }
            self._tiers.disk.space.evict(bytes_max, floors, uploaded)

    # -- deleted topics ----------------------------------------------------------------------------

    def drop_deleted(self) -> None:
        """Remove the files of topics that were deleted longer ago than the grace."""
        for topic_id in deleted_topics(self._engine, self._tiers.disk.catalog.topics):
            self._tiers.disk.drop_topic(topic_id)
            event("topic_files_removed", topic_id=topic_id)


def deleted_topics(engine: Instance, topic_ids: Iterable[int]) -> Iterator[int]:
    """Return those of the topics that were deleted longer ago than the grace."""
    main = engine.log.journal
    if main.failed is not None or not engine.time_trusted():
        return
    grace_us = int(engine.settings.topics.delete_grace_s * 1e6)
    for topic_id in topic_ids:
        state = main.state.topics.get(topic_id)
        if state is not None:
            deleted_us = state.spec.deleted_us
            if not deleted_us or deleted_us + grace_us > engine.clock.now_us():
                continue
        elif topic_id > main.state.topic_id_last or main.report.lost or main.report.warnings:
            # Its definition may be lost, and a tier may have the only copy of the topic.
            continue
        yield topic_id


def _families(topics: Sequence[TopicTiers]) -> list[list[TopicTiers]]:
    """Group the parts of each partitioned topic; any other topic is a group by itself."""
    found: dict[int, list[TopicTiers]] = {}
    for topic in topics:
        spec = topic.state.spec
        found.setdefault(spec.part_of or spec.id, []).append(topic)
    return list(found.values())


def _vector_bytes(topic: TopicTiers) -> int:
    return 0 if topic.keyed is None else topic.keyed.vectors.files.nbytes


def _quota_error(tiers: Tiers, parts: Sequence[TopicTiers]) -> FrazilError:
    return Overloaded(
        "the topic's quota is full and the rows of a keyed topic never expire; raise its "
        "retention_bytes, or copy needed rows to another topic and delete this one",
        topic=parts[0].name,
        bytes=sum(tiers.disk.space.held_bytes(topic.id, 0) for topic in parts),
        bytes_max=quota_of(parts[0].state.spec, tiers.settings.log),
        retry_after_ms=RETRY_AFTER_MS,
    )


def _vectors_error(topic: TopicTiers, bytes_max: int) -> FrazilError:
    return Overloaded(
        "the topic has too many superseded rows in files, and its deletion vector fills its "
        "share of memory; raise memory.budget_bytes, or copy needed rows to another topic and "
        "delete this one",
        topic=topic.name,
        bytes=_vector_bytes(topic),
        bytes_max=bytes_max,
        retry_after_ms=RETRY_AFTER_MS,
    )


def _size(span: Span) -> int:
    return sum(file.size for file in span.files)


def _runs(spans: Sequence[Span], age_us: int, bytes_max: int) -> list[list[Span]]:
    """Split sets, oldest first, into runs within a time and a number of bytes."""
    runs: list[list[Span]] = []
    size = begun_us = 0
    for span in spans:
        last_us = max(file.time_last for file in span.files)
        if not runs or size + _size(span) > bytes_max or last_us - begun_us > age_us:
            runs.append([])
            size, begun_us = 0, min(file.time_first for file in span.files)
        runs[-1].append(span)
        size += _size(span)
    return runs
