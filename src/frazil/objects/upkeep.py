"""What becomes of objects: rewriting of shared ones, retention, garbage, topics that were deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import Closed, FrazilError, Unavailable
from frazil.objects.collect import Collector
from frazil.objects.retention import ObjectsPolicy, ObjectsView, expired_below
from frazil.objects.topics import OBJECTS_HOLD
from frazil.telemetry import event

if TYPE_CHECKING:
    from frazil.objects.runtime import Objects
    from frazil.objects.store import ObjectStore
    from frazil.topic import Instance, TopicRuntime

__all__ = ["ObjectsUpkeep"]


class ObjectsUpkeep:
    """Lets objects go. One thread calls it."""

    def __init__(self, engine: Instance, objects: Objects, store: ObjectStore) -> None:
        self._engine = engine
        self._objects = objects
        self._settings = engine.settings.objects
        self.collector = Collector(
            store,
            objects.catalog,
            engine.stores.shared,
            clock=engine.clock,
            broker=engine.main.journal.journal_id,
            epoch=lambda: engine.ownership.epoch,
            grace_us=int(self._settings.collect_grace_s * 1e6),
            is_suspect=self._is_suspect,
        )

    def _is_suspect(self) -> bool:
        """Tell whether the metadata may lack what was registered once."""
        engine = self._engine
        return bool(engine.stores.warnings) or any(
            each.stopped for each in self._objects.all_topics
        )

    def retain(self) -> None:
        """Let objects go that are older, or more, than their topics keep; then what they named."""
        failure: FrazilError | None = None
        # Those that are uploaded no more, too: what they have in objects grows old as well.
        for runtime in list(self._objects.runtimes.values()):
            try:
                self._retain(runtime)
            except (Unavailable, Closed):
                raise
            except FrazilError as error:
                # One topic must not keep the others from letting go.
                failure = failure or error
        self.drop_deleted()
        self.collector.cycle(unregistered=False)
        if failure is not None:
            raise failure

    def _retain(self, runtime: TopicRuntime) -> None:
        topic_id, source = runtime.state.id, self._objects.source
        known = self._objects.topics.get(topic_id)
        policy = self._policy(runtime)
        if policy is None or source is None or (known is not None and known.is_lost):
            return
        # Nobody may gain a claim on records between the decision and its effect: subscriptions
        # begin under the first lock, readers under the second, and then behind what goes.
        with self._engine.control_lock, runtime.lane.pinning:
            view = ObjectsView(
                now_us=self._engine.clock.now_us(),
                time_trusted=self._engine.time_trusted(),
                pinned=source.pinned(topic_id),
                needed=_needed(runtime),
            )
            picture = self._objects.catalog.topic(topic_id)
            below = expired_below(picture, policy, view)
            if below <= picture.start:
                return
            source.retire(topic_id, below=below)
        try:
            gone = self._objects.catalog.expire(topic_id, below)
        finally:
            source.retire(topic_id, below=0)
        size = sum(each.length for each in gone)
        event("objects_expired", topic=runtime.name, objects=len(gone), bytes=size)

    def _policy(self, runtime: TopicRuntime) -> ObjectsPolicy | None:
        """Return how much of a topic is kept in objects, None if everything is."""
        spec, settings = runtime.state.spec, self._settings
        age_us = spec.objects_retention_us
        if age_us is None and settings.retention_age_s is not None:
            age_us = int(settings.retention_age_s * 1e6)
        bytes_max = spec.objects_retention_bytes
        if bytes_max is None:
            bytes_max = settings.retention_bytes
        if spec.primary_key or (age_us is None and bytes_max is None):
            # The rows of keys are their topic's state: a new machine needs all of them.
            return None
        return ObjectsPolicy(age_us, bytes_max)

    def drop_deleted(self) -> None:
        """Let the objects of topics go that were deleted longer ago than the grace."""
        engine, main = self._engine, self._engine.main.journal
        if main.failed is not None or not engine.time_trusted():
            return
        grace_us = int(engine.settings.topics.delete_grace_s * 1e6)
        for topic_id in self._objects.catalog.topics():
            state = main.state.topics.get(topic_id)
            if state is not None:
                deleted_us = state.spec.deleted_us
                if not deleted_us or deleted_us + grace_us > engine.clock.now_us():
                    continue
            elif topic_id > main.state.topic_id_last or main.report.lost or main.report.warnings:
                # The definition may be what was lost: these objects are what is left of a topic.
                continue
            self._objects.catalog.drop(topic_id)
            event("topic_objects_dropped", topic_id=topic_id)


def _needed(runtime: TopicRuntime) -> int | None:
    """Return the first offset that somebody needs; on a new machine only objects may have it."""
    holds = list(runtime.state.holds.items())
    return min((offset for name, offset in holds if name != OBJECTS_HOLD), default=None)
