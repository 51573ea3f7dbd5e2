"""Removal of objects: expiry by policy, then collection of garbage (F26, F28).

Expiry removes descriptors and condemns their objects by rows in the metadata; a later cycle deletes
the objects. Objects that were never registered are found by listing the store FIRST and reading the
metadata THEN, so that an upload that registers in between is seen. Listing alone deletes nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Closed, FrazilError, Unavailable
from frazil.objects.backup import listed
from frazil.objects.format import parse_key
from frazil.telemetry import event
from frazil.tiers import deleted_topics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.clock import Clock
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.descriptor import Garbage, TopicObjects
    from frazil.objects.runtime import Objects
    from frazil.objects.store import ObjectMeta, ObjectStore
    from frazil.topic import Instance, TopicRuntime

__all__ = [
    "OBJECTS_HOLD",
    "Collected",
    "Collector",
    "ObjectsRetention",
    "expired_below",
]

OBJECTS_HOLD: Final = "objects"
"""The hold of records that are not uploaded yet."""
DELETE_KEYS_MAX: Final = 1_000
COLLECT_GRACE_US: Final = 7 * 86_400 * 1_000_000
"""Objects that were never registered are kept for a week."""
UNREGISTERED: Final = "nothing registered it"


def expired_below(
    picture: TopicObjects,
    *,
    now_us: int | None,
    age_us: int | None = None,
    bytes_max: int | None = None,
    needed: int | None = None,
) -> int:
    """Return the offset below which the topic's objects may be removed; `start` if none may.

    Only whole objects are removed, the oldest first.

    Args:
        picture: the topic's objects.
        now_us: the wall clock; None if it jumped recently: then no object expires by age.
        age_us: the age up to which objects are kept; None is for ever.
        bytes_max: the bytes of the topic that are kept; None is no limit.
        needed: the lowest offset that a subscription or an open reader needs, or None.
    """
    limit = picture.uploaded if needed is None else needed
    below, later = picture.start, picture.bytes
    for found in picture.descriptors:
        later -= found.length
        is_large = bytes_max is not None and later >= bytes_max
        is_old = age_us is not None and now_us is not None and found.time_last_us + age_us <= now_us
        if found.end > limit or not (is_large or is_old):
            break
        below = found.end
    return below


class Collected(NamedTuple):
    """The result of a cycle, or of a dry run."""

    deleted: list[Garbage]
    """Condemned in an earlier cycle, deleted in this one."""
    condemned: list[ObjectMeta]
    """Objects never registered and old enough: a later cycle deletes them."""
    spared: int
    """The number of unregistered objects that are too young to be garbage."""
    suspended: str = ""
    """The reason why the cycle examined no object, if it did not."""


class Collector:
    """Collects the garbage of one broker. Cycles run one after another; any thread may call.

    Args:
        store: the store of the objects.
        catalog: the registered objects, which are in use.
        clock: for the age of objects; the objects' times are the store's.
        broker: the id in the keys of this broker; other keys are never touched.
        grace_us: the age at which an object that was never registered is garbage.
        is_suspect: returns whether the metadata may lack registered objects.
    """

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        *,
        clock: Clock,
        broker: bytes,
        grace_us: int,
        is_suspect: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._clock = clock
        self._broker = broker
        self._grace_us = grace_us
        self._is_suspect = is_suspect
        self._turn = threading.Lock()
        self._cycle_us = clock.now_us()
        """Garbage that was condemned before this may be deleted."""

    def cycle(self, *, unregistered: bool = True, dry_run: bool = False) -> Collected:
        """Delete garbage of earlier cycles, then condemn objects that were never registered.

        Args:
            unregistered: also list the store for objects that were never registered.
            dry_run: change nothing, and return what would be changed.

        Raises:
            Unavailable: if the store or the metadata cannot be reached; the next cycle continues.
        """
        with self._turn:
            if self._suspended():
                return Collected([], [], 0, self._suspended())
            now_us = self._clock.now_us()
            going = [row for row in self._catalog.garbage() if row.since_us < self._cycle_us]
            if not dry_run:
                going = list(self._delete(going))
            found, spared = self._unregistered(now_us) if unregistered else ([], 0)
            if self._suspended():
                # A change of the metadata became uncertain during this cycle.
                return Collected(going, [], spared, self._suspended())
            if not dry_run:
                self._catalog.condemn([meta.key for meta in found], UNREGISTERED)
                for meta in found:
                    event("object_condemned", key=meta.key, why=UNREGISTERED)
                self._cycle_us = self._clock.now_us()
            return Collected(going, found, spared)

    def _suspended(self) -> str:
        if self._is_suspect():
            return "metadata may lack objects that were registered"
        if self._catalog.suspect:
            return "the outcome of a change of the metadata is unknown"
        return ""

    def _delete(self, going: Sequence[Garbage]) -> Iterator[Garbage]:
        for start in range(0, len(going), DELETE_KEYS_MAX):
            # Checked again right before the deletion: an object in use must never be deleted.
            used = self._catalog.keys_in_use()
            page = [row for row in going[start : start + DELETE_KEYS_MAX] if row.key not in used]
            self._store.delete([row.key for row in page])
            # First the objects, then their rows: after a crash the objects are deleted again.
            self._catalog.forget_garbage([row.key for row in page])
            for row in page:
                event("object_deleted", key=row.key, why=row.why)
                yield row

    def _unregistered(self, now_us: int) -> tuple[list[ObjectMeta], int]:
        """Return the objects that were never registered, and the number of too young ones."""
        candidates: list[ObjectMeta] = []
        for meta in listed(self._store, f"{self._broker.hex()}/"):
            parts = parse_key(meta.key)
            # Only a later owner decides about its objects.
            if parts is not None and parts.epoch <= self._catalog.epoch:
                candidates.append(meta)
        # Read the references only now: an object registered during the listing is in use.
        known = self._catalog.keys_in_use() | {row.key for row in self._catalog.garbage()}
        strays = [meta for meta in candidates if meta.key not in known]
        found = [meta for meta in strays if meta.modified_us + self._grace_us <= now_us]
        return found, len(strays) - len(found)


class ObjectsRetention:
    """Expires the objects of an engine's topics. One thread calls it."""

    def __init__(self, engine: Instance, objects: Objects, store: ObjectStore) -> None:
        self._engine = engine
        self._objects = objects
        self._settings = engine.settings.objects
        self.collector = Collector(
            store,
            objects.catalog,
            clock=engine.clock,
            broker=engine.log.journal.journal_id,
            grace_us=COLLECT_GRACE_US,
            is_suspect=lambda: (
                bool(engine.stores.warnings) or any(each.stopped for each in objects.all_topics)
            ),
        )

    def run(self) -> None:
        """Expire objects by the policies of their topics, then delete garbage."""
        failure: FrazilError | None = None
        # Topics that are no longer uploaded are included: their objects expire too.
        for runtime in list(self._objects.runtimes.values()):
            try:
                self._expire(runtime)
            except (Unavailable, Closed):
                raise
            except FrazilError as error:
                # A failing topic must not stop the expiry of others.
                failure = failure or error
        self.drop_deleted()
        self.collector.cycle(unregistered=False)
        if failure is not None:
            raise failure

    def _expire(self, runtime: TopicRuntime) -> None:
        topic_id, source = runtime.state.id, self._objects.source
        known = self._objects.topics.get(topic_id)
        policy = self._policy(runtime)
        if not policy or source is None or (known is not None and known.stopped):
            return
        # No claim on records may begin between the decision and its effect: subscriptions begin
        # under the first lock, readers under the second.
        with self._engine.control_lock, runtime.log.pinning:
            # After a restore only objects may have the records of a hold.
            held = list(runtime.state.holds.items())
            needed = [offset for name, offset in held if name != OBJECTS_HOLD]
            needed += source.pinned_offsets(topic_id)
            now_us = self._engine.clock.now_us() if self._engine.time_trusted() else None
            picture = self._objects.catalog.topic(topic_id)
            below = expired_below(
                picture, now_us=now_us, needed=min(needed, default=None), **policy
            )
            if below <= picture.start:
                return
            source.retire(topic_id, below=below)
        try:
            gone = self._objects.catalog.expire(topic_id, below)
        finally:
            source.retire(topic_id, below=0)
        size = sum(each.length for each in gone)
        event("objects_expired", topic=runtime.name, objects=len(gone), bytes=size)

    def _policy(self, runtime: TopicRuntime) -> dict[str, int]:
        """Return the age and bytes up to which a topic is kept; empty if all of it is kept."""
        spec, settings = runtime.state.spec, self._settings
        if spec.primary_key:
            # A keyed topic's rows are its state: a new machine needs all of them.
            return {}
        age_us, bytes_max = spec.objects_retention_us, spec.objects_retention_bytes
        if age_us is None and settings.retention_age_s is not None:
            age_us = int(settings.retention_age_s * 1e6)
        if bytes_max is None:
            bytes_max = settings.retention_bytes
        found = {"age_us": age_us, "bytes_max": bytes_max}
        return {name: value for name, value in found.items() if value is not None}

    def drop_deleted(self) -> None:
        """Drop the objects of topics that were deleted longer ago than the grace."""
        for topic_id in deleted_topics(self._engine, self._objects.catalog.topics()):
            self._objects.catalog.drop(topic_id)
            event("topic_objects_dropped", topic_id=topic_id)
