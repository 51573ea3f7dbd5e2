"""`db.objects`: topics in an object store. Threads upload them; publishes never wait for uploads.

One thread decides which uploads are due; other threads upload, each one topic at a time. A topic
that fails pauses and is tried again; other topics continue. Holds move to the end of registered
objects, in batches.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.background import Task
from frazil.errors import (
    Closed,
    Conflict,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.log import STATE_HOLD, Control, Pending
from frazil.log import format as fmt
from frazil.metadata import LeaseEpoch, Transaction
from frazil.model import full_topic_name, topic_uid
from frazil.objects.backup import Backups, newest_backup
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.frames import TopicFrames
from frazil.objects.obstores import location_of, open_store
from frazil.objects.reader import ObjectsSource
from frazil.objects.restore_find import chained, find_objects, register_chain
from frazil.objects.retention import OBJECTS_HOLD, ObjectsRetention
from frazil.objects.store import RetryingStore
from frazil.objects.writer import Uploader
from frazil.telemetry import event, warn
from frazil.tiers import has_objects
from frazil.topic import TierWaits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.objects.descriptor import TopicObjects
    from frazil.objects.restore_find import Chain
    from frazil.objects.store import ObjectStore
    from frazil.objects.writer import Trouble
    from frazil.topic import Instance, TopicRuntime

__all__ = ["LOCATION_KEY", "Objects", "unreadable"]

UPLOAD_THREADS: Final = 4
ACK_TIMEOUT_S: Final = 60.0
"""The longest wait of a publish with `ack="uploaded"`."""
TICK_S: Final = 0.05
TICK_TOPIC_S: Final = 100e-6
"""The minimum tick per topic: thousands of idle topics must not use a whole core."""
RECOVER_S: Final = 5.0
GRACE_S: Final = 1.0
"""A program that ends earlier uploads only on request."""
HOLDS_S: Final = 1.0
"""The interval at which the holds of all topics move together."""
RETENTION_CHECK_S: Final = 60.0
BACKUP_CHECK_S: Final = 1.0
CLOSE_S: Final = 5.0
"""The longest wait of a closing engine for running uploads; the next process continues them."""
READ_TIMEOUT_S: Final = 10.0
"""The deadline of reads: a waiting reader gets an error sooner than an upload."""
FLUSH_TIMEOUT_S: Final = 300.0
FLUSH_POLL_S: Final = 0.005
UNREADABLE_MAX: Final = 100
"""The status names this many unreadable objects; the total counts all of them."""
LOCATION_KEY: Final = "/objects-location"
"""The metadata row with the store's location, so that a changed setting is noticed."""
LOST: Final = (
    "the metadata lacks registered objects; until they are found in the store, the topic is not "
    "uploaded and its records are kept"
)


class ObjectsTopic:
    """One topic with objects; a part of a partitioned topic is one, too."""

    def __init__(self, objects: Objects, runtime: TopicRuntime) -> None:
        self._objects = objects
        self.runtime = runtime
        self.id = runtime.state.id
        self.name = runtime.name
        # The next tick finds the waiting publishes.
        self.waits = TierWaits(lambda: None, timeout_s=ACK_TIMEOUT_S)
        self.uploading = threading.Lock()
        """The thread that uploads the topic has this lock."""
        self.begun_at: float | None = None
        """The time of its last upload's start, by the monotonic clock; None before the first."""
        self.failures = 0
        self.trouble_seen: Trouble | None = None
        """Its last counted failure."""
        self.stopped = LOST if self._lacks_objects() else ""
        """The reason why it is not uploaded, until its registered objects are found."""
        # The objects may be found soon, so waiting publishes are not refused yet.
        self.waits.delay = self.stopped
        self.note()

    @property
    def picture(self) -> TopicObjects:
        """Return its registered objects."""
        return self._objects.catalog.topic(self.id)

    @property
    def uploaded(self) -> int:
        """Return the offset below which the store has all records."""
        return self.picture.uploaded

    @property
    def missing(self) -> int:
        """Return the number of offsets that are durable here and not uploaded."""
        first = self.picture.uploaded
        if not self.picture.known:
            first = self._objects.frames.available(self.id)[0]
        return max(self.runtime.state.durable - first, 0)

    def note(self) -> None:
        """Wake publishes whose records are uploaded now."""
        self.waits.grew(self.runtime.part, self.uploaded)

    def resume(self) -> None:
        """Upload it again unless its registered objects are still missing."""
        self.stopped = self.waits.delay = LOST if self._lacks_objects() else ""
        self.waits.refuse(self.stopped)

    def hold_wanted(self) -> int | None:
        """Return the offset to move its hold to, None if the hold need not move."""
        held = self.runtime.state.holds.get(OBJECTS_HOLD)
        if self.stopped:
            return None
        if not self.picture.known:
            # No object is registered, so all records must be kept.
            return 0 if held is None else None
        uploaded = min(self.uploaded, self.runtime.state.durable)
        return uploaded if held is None or held < uploaded else None

    def is_behind(self, end: int) -> bool:
        """Return whether records below an offset are still to be uploaded, and will be."""
        return self.uploaded < end and not self.waits.refusal

    def check_uploaded(self, end: int) -> None:
        """Raise `Unavailable` unless all records below an offset are uploaded."""
        if self.uploaded < end:
            raise Unavailable(
                "records are not uploaded yet; they are safe here and will be",
                topic=self.name,
                uploaded=self.uploaded,
                durable=end,
                why=self.waits.refusal or self.waits.delay or "it takes longer",
            )

    def fits(self, end: int) -> bool:
        """Return whether objects that end there can be the registered ones."""
        state = self.runtime.state
        return state.holds.get(OBJECTS_HOLD, 0) <= end <= state.durable

    def _lacks_objects(self) -> bool:
        """Return whether the hold is above the registered objects: the metadata was lost."""
        return self.runtime.state.holds.get(OBJECTS_HOLD, 0) > self.uploaded

    def status(self, now_us: int) -> dict[str, Any]:
        """Describe the topic, ready for JSON."""
        picture, trouble = self.picture, self._objects.uploader.troubles.get(self.id)
        state = "stopped" if self.stopped else "failing" if trouble is not None else "running"
        return {
            "state": state,
            "why": self.stopped or (str(trouble.error) if trouble is not None else None),
            "start": picture.start,
            "uploaded": picture.uploaded,
            "durable": self.runtime.state.durable,
            **self._lag(now_us),
            "objects": len(picture.descriptors),
            "bytes": picture.bytes,
            "failures": self.failures,
            "last_upload_us": picture.state.changed_us or None,
        }

    def _lag(self, now_us: int) -> dict[str, Any]:
        """Return the store's lag: records, approximate bytes, and seconds."""
        records = self.missing
        first = self.runtime.state.durable - records
        size, oldest_us = 0, 0
        for segment in self.runtime.log.journal.segments if records else ():
            begin, end, length, time_us, _last = segment.summary(self.id) or (0, 0, 0, 0, 0)
            if end > first:
                size += length * (end - max(begin, first)) // (end - begin)
                oldest_us = oldest_us or time_us
        seconds = max(now_us - oldest_us, 0) / 1e6 if oldest_us else None
        return {"lag_records": records, "lag_bytes": size, "lag_seconds": seconds}


def _hold_control(runtime: TopicRuntime, offset: int | None) -> Control:
    """Return the frame that moves or drops a topic's hold."""
    payload = msgspec.msgpack.encode((STATE_HOLD, OBJECTS_HOLD, offset))
    return Control(fmt.KIND_STATE, runtime.state.id, payload)


class Objects:
    """The objects tier of one engine. Any thread may call any method.

    Without a store in the settings it does nothing, and `source` is None.
    """

    waiting_interval_s = 1.0
    """The shortest interval between uploads that waiting publishes make due."""

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self.settings = engine.settings.objects
        self.clock = engine.clock
        self.topics: dict[int, ObjectsTopic] = {}
        self.runtimes: dict[int, TopicRuntime] = {}
        """All open topics: topics that are no longer uploaded may still have objects."""
        self.failures = 0
        """Failed uploads since the start."""
        self.store: ObjectStore | None = None
        self.source: ObjectsSource | None = None
        self._opened_at = engine.clock.monotonic()
        self._work: SimpleQueue[ObjectsTopic | None] = SimpleQueue()
        self._queued: set[int] = set()
        """Topics that wait for an upload thread or are being uploaded."""
        self._uploaders: list[threading.Thread] = []
        self._is_recovered = False
        self._never = threading.Event()
        """Never set: waiting for it is a pause."""
        self._task = Task(
            "frazil-objects",
            self._round,
            clock=engine.clock,
            pause_s=lambda: max(TICK_S, TICK_TOPIC_S * len(self.topics)),
            failed_event="objects_failed",
            expected=lambda error: self._task.stopping and isinstance(error, Closed),
        )
        self.errors = self._task.errors
        """Unexpected errors of the threads, by step; the threads continue."""
        self.catalog = ObjectCatalog(
            engine.stores.shared, clock=engine.clock, epoch=lambda: engine.ownership.epoch
        )
        if self.settings.store != "none":
            store = open_store(self.settings, clock=engine.clock)
            self.store = RetryingStore(store, clock=engine.clock)
            self._reader_store = RetryingStore(store, timeout_s=READ_TIMEOUT_S, clock=engine.clock)
            self.catalog.load()
            self.source = ObjectsSource(
                self.catalog,
                self._reader_store,
                self._codec,
                **({} if engine.threaded else {"threads": 0}),
            )

    def _codec(self, topic_id: int) -> Any:
        runtime = self.runtimes.get(topic_id)
        if runtime is None:
            raise NotFound("no such topic", topic_id=topic_id)
        return runtime.codec

    # -- topics ------------------------------------------------------------------------------------

    def bind(self, runtime: TopicRuntime) -> None:
        """Add an open topic."""
        self.runtimes[runtime.state.id] = runtime

    def unbind(self, topic_id: int) -> None:
        """Remove a deleted topic; its objects are deleted after the grace."""
        self.runtimes.pop(topic_id, None)
        found = self.topics.pop(topic_id, None)
        if found is not None:
            found.waits.refuse("the topic was deleted")

    def load(self) -> list[Control]:
        """Add all topics with objects; return the frames that set or drop their holds."""
        if self.store is not None:
            _check_location(self._engine, self.catalog, self._reader_store)
            # Only now does the journal have the broker's id.
            self.frames = TopicFrames(self.runtimes)
            self.uploader = Uploader(
                self.store,
                self.catalog,
                self.frames,
                broker=self._engine.log.journal.journal_id,
                clock=self.clock,
                object_bytes_max=self.settings.object_bytes_max,
            )
            self.retention = ObjectsRetention(self._engine, self, self.store)
            self.backups = Backups(self._engine, self.catalog, self.store)
            self._steps = (
                ("holds", HOLDS_S, self.move_holds),
                ("retention", RETENTION_CHECK_S, self.retention.run),
                ("backup", BACKUP_CHECK_S, self.backups.tick),
            )
        runtimes = list(self.runtimes.values())
        return [control for runtime in runtimes for control in self._settled(runtime)]

    def changed(self, runtimes: Sequence[TopicRuntime]) -> None:
        """Start or stop the uploads of topics whose definition changed, with their holds; durable.

        The caller has the control lock: no record of a topic is removed before its hold exists.
        """
        for runtime in runtimes:
            for control in self._settled(runtime):
                runtime.log.control(control)
        self.begin()

    def _settled(self, runtime: TopicRuntime) -> list[Control]:
        """Add or remove a topic by its definition; return the frame of its hold, if any."""
        topic_id, spec = runtime.state.id, runtime.state.spec
        if not has_objects(spec, self._engine.settings):
            known = self.topics.pop(topic_id, None)
            if known is not None:
                known.waits.refuse("the topic is no longer uploaded")
                runtime.objects = None
            is_dropped = OBJECTS_HOLD in runtime.state.holds and not spec.objects
            return [_hold_control(runtime, None)] if is_dropped else []
        if topic_id in self.topics:
            return []
        topic = self.topics[topic_id] = ObjectsTopic(self, runtime)
        runtime.objects = topic.waits
        offset = topic.hold_wanted()
        return [] if offset is None else [_hold_control(runtime, offset)]

    # -- threads -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the threads if any topic has objects."""
        if self._task.is_running or not self._engine.threaded or self.store is None:
            return
        if self.topics:
            for number in range(UPLOAD_THREADS):
                name = f"frazil-upload-{number}"
                thread = threading.Thread(target=self._upload_some, name=name, daemon=True)
                self._uploaders.append(thread)
                thread.start()
            self._task.start()

    def wake(self) -> None:
        """Have the thread check all topics now."""
        self._task.wake()

    def recover(self) -> None:
        """Register the objects of topics again whose metadata was lost (F28).

        A hold above the registered objects shows the loss. The objects are found as at a restore;
        a topic whose objects do not reach up to its hold stays stopped.
        """
        assert self.store is not None
        lost = [topic for topic in self.all_topics if topic.stopped]
        if not lost:
            self._is_recovered = True
            return
        broker = self._engine.log.journal.journal_id
        backup = newest_backup(self.store, broker).backup
        found = find_objects(self.store, broker, backup.topics, epoch=backup.epoch)
        starts = {each.topic: each.state.start for each in backup.topics}
        for topic in lost:
            folder = f"-{topic_uid(topic.runtime.state.spec)}/"
            own = [each for each in found.candidates[topic.id] if folder in each.key]
            self._register_found(topic, chained(own, start=starts.get(topic.id, 0)))
        self.catalog.load()
        for topic in lost:
            topic.resume()
            topic.note()
        self._is_recovered = True

    def _register_found(self, topic: ObjectsTopic, chain: Chain) -> None:
        if not chain.descriptors or not topic.fits(chain.end):
            warn("objects_not_found", topic=topic.name, found_end=chain.end)
            return
        lease = LeaseEpoch(LEASE_NAME, self._engine.ownership.epoch)
        shared, now_us = self._engine.stores.shared, self.clock.now_us()
        register_chain(shared, topic.id, chain, now_us=now_us, lease=lease)
        event("objects_found", topic=topic.name, objects=len(chain.descriptors), end=chain.end)

    def _round(self) -> None:
        """Queue the uploads that are due, and run other steps that are due."""
        if not self._is_recovered:
            if self._task.is_due("recover", RECOVER_S):
                self._task.run("recover", self.recover)
            return
        for topic in self.all_topics:
            if self._task.stopping:
                return
            if topic.id not in self._queued and self._is_due(topic):
                self._queued.add(topic.id)
                self._work.put(topic)
        for step, interval_s, work in self._steps:
            if self._task.is_due(step, interval_s):
                self._task.run(step, work)

    def _is_due(self, topic: ObjectsTopic) -> bool:
        is_waiting = topic.waits.is_asked()
        if topic.stopped or not self.uploader.due(topic.id, is_waiting=is_waiting):
            return False
        if topic.picture.state.intent is not None:
            # An upload of an earlier process, or of unknown outcome.
            return True
        interval_s = self.waiting_interval_s if is_waiting else self.settings.interval_s
        since = topic.begun_at
        if since is None:
            since, interval_s = self._opened_at, 0 if is_waiting else min(GRACE_S, interval_s)
        return topic.missing > 0 and self.clock.monotonic() - since >= interval_s

    def _upload_some(self) -> None:
        while (topic := self._work.get()) is not None:
            if not self._task.stopping:
                self._task.run(f"upload {topic.name}", partial(self.upload, topic))
            self._queued.discard(topic.id)

    def upload(self, topic: ObjectsTopic) -> None:
        """Upload the durable records of a topic, object by object."""
        with topic.uploading:
            topic.begun_at = self.clock.monotonic()
            is_waiting, target = topic.waits.is_asked(), topic.runtime.state.durable
            while not self._task.stopping and not topic.stopped and topic.uploaded < target:
                before = topic.uploaded
                if not self.uploader.cycle(topic.id, is_waiting=is_waiting):
                    break
                event("topic_uploaded", topic=topic.name, first=before, uploaded=topic.uploaded)
                topic.note()
            self._note_trouble(topic)

    def _note_trouble(self, topic: ObjectsTopic) -> None:
        trouble = self.uploader.troubles.get(topic.id)
        before, topic.trouble_seen = topic.trouble_seen, trouble
        topic.waits.delay = "" if trouble is None else str(trouble.error)
        if trouble is None or trouble is before:
            return
        topic.failures += 1
        self.failures += 1
        # The key in the error differs with each try, so messages are compared to log new errors.
        if before is None or trouble.error.message != before.error.message:
            warn("upload_failed", topic=topic.name, error=str(trouble.error))

    def move_holds(self) -> None:
        """Move the holds of uploaded records, those of all topics in one group."""
        pending: list[Pending] = []
        log = self._engine.log
        # Under the lock no hold can be dropped and then set again here.
        with self._engine.control_lock:
            for topic in self.all_topics:
                offset = topic.hold_wanted()
                if offset is None or log.journal.failed is not None:
                    continue
                control = _hold_control(topic.runtime, offset)
                waiter = Pending()
                size = len(control.payload) + fmt.FRAME_HEAD_BYTES
                log.queue.submit_waiting((None, None, control, 0, size, waiter, None))
                pending.append(waiter)
        for waiter in pending:
            waiter.result()

    def run_once(self) -> None:
        """Run one round of all steps in this thread, for simulations."""
        self.recover()
        for topic in self.all_topics:
            if not topic.stopped:
                self.upload(topic)
        self.move_holds()

    def stop(self) -> None:
        """End the threads after a short wait; the next process continues unfinished uploads."""
        deadline = self.clock.monotonic() + CLOSE_S
        was_running = self._task.is_running
        for _ in self._uploaders:
            self._work.put(None)
        self._task.stop(CLOSE_S)
        for thread in self._uploaders:
            thread.join(max(deadline - self.clock.monotonic(), 0.0))
        if was_running:
            with contextlib.suppress(FrazilError):
                self.move_holds()
        for topic in self.all_topics:
            topic.waits.refuse("the engine is closed")
        if self.source is not None:
            self.source.close()
        if self.store is not None:
            self.store.close()

    # -- calls -------------------------------------------------------------------------------------

    def flush(self, topic: str | None = None, timeout_s: float = FLUSH_TIMEOUT_S) -> dict[str, int]:
        """Upload all durable records; return the uploaded offsets by topic.

        Args:
            topic: one topic, or a partitioned one; None means all topics with objects.
            timeout_s: the longest wait.

        Raises:
            Unavailable: if it takes too long, or a topic is stopped; the records are safe here.
        """
        now = self.clock.monotonic
        deadline = now() + timeout_s
        targets = [(each, each.runtime.state.durable) for each in self._chosen(topic)]
        for each, end in targets:
            self.uploader.retry(each.id)
            each.begun_at = None
            each.waits.ask(each.runtime.part, end)
        self.wake()
        if not self._engine.threaded:
            self.run_once()
        for each, end in targets:
            while each.is_behind(end) and now() < deadline:
                self._never.wait(FLUSH_POLL_S)
            each.check_uploaded(end)
        return {each.name: each.uploaded for each, _end in targets}

    def _chosen(self, topic: str | None) -> list[ObjectsTopic]:
        if self._engine.closed:
            raise Closed("the engine is closed")
        if topic is None:
            return self.all_topics
        _spec, runtimes = self._engine.whole_topic(full_topic_name(topic))
        found = [self.topics[each.state.id] for each in runtimes if each.state.id in self.topics]
        if not found:
            raise InvalidRequest("the topic has no objects", topic=topic)
        return found

    def backup(self) -> dict[str, Any]:
        """Back the metadata up to the store now; return a description of the backup for JSON.

        Raises:
            InvalidRequest: if no store is set.
            Unavailable: if the store does not answer.
        """
        if self._engine.closed:
            raise Closed("the engine is closed")
        if self.store is None:
            raise InvalidRequest("there is no object store, set objects.store and objects.root")
        return self.backups.now()

    def retry(self, topic: str) -> None:
        """Try a topic's uploads again at once.

        Raises:
            Conflict: if its registered objects are missing: they have to be restored first.
        """
        for each in self._chosen(topic):
            each.resume()
            if each.stopped:
                raise Conflict(each.stopped, topic=each.name)
            self.uploader.retry(each.id)
        self.wake()

    @property
    def all_topics(self) -> list[ObjectsTopic]:
        """Return the topics that are uploaded."""
        return list(self.topics.values())

    def uploaded(self, topic_id: int) -> int:
        """Return the offset below which the store has all records of a topic, 0 without objects."""
        found = self.topics.get(topic_id)
        return 0 if found is None or found.stopped else found.uploaded

    def status(self) -> dict[str, Any]:
        """Describe the store, all topics together, and each of them, ready for JSON."""
        if self.store is None:
            return {"state": "off", "topics": {}}
        now_us = self.clock.now_us()
        topics = {each.name: each.status(now_us) for each in self.all_topics}
        return {
            "state": "running" if topics else "idle",
            "store": self.settings.store,
            "root": self.settings.root,
            "epoch": self.catalog.epoch,
            "errors": dict(self.errors),
            "unreadable": unreadable(self)[:UNREADABLE_MAX],
            "totals": self._totals(topics),
            "topics": topics,
        }

    def _totals(self, topics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the totals of all topics; counters begin with the engine."""
        lags = [each["lag_seconds"] for each in topics.values() if each["lag_seconds"] is not None]
        summed = ("lag_records", "lag_bytes", "objects", "bytes")
        states = [each["state"] for each in topics.values()]
        return {
            **{name: sum(each[name] for each in topics.values()) for name in summed},
            "lag_seconds": max(lags, default=None),
            "states": {state: states.count(state) for state in sorted(set(states))},
            "failures": self.failures,
            "unreadable": len(unreadable(self)),
            "objects_uploaded": self.uploader.objects_uploaded,
            "objects_adopted": self.uploader.objects_adopted,
            "bytes_uploaded": self.uploader.bytes_uploaded,
        }


def unreadable(objects: Objects) -> list[dict[str, Any]]:
    """Return the missing or damaged objects that readers found, until they can be read again."""
    return [] if objects.source is None else objects.source.unreadable()


def _check_location(engine: Instance, catalog: ObjectCatalog, store: ObjectStore) -> None:
    """Record the store's location; after a change of the setting check that objects are there.

    Uploads to a second location would divide the topics' history.

    Raises:
        InvalidRequest: the location of the settings lacks the newest registered object.
        Unavailable: the location was changed, and the store does not answer.
    """
    settings = engine.settings.objects
    bucket, prefix = location_of(settings)
    now = f"{settings.store}:{bucket}/{prefix}"
    row = engine.stores.shared.get(LOCATION_KEY)
    before = None if row is None else row.value.decode()
    if before == now:
        return
    last = (each for picture in catalog.topics().values() for each in picture.descriptors[-1:])
    newest = max(last, key=lambda each: each.created_us, default=None)
    if newest is not None:
        found = store.head(newest.key)
        if found is None or found.size != newest.size:
            raise InvalidRequest(
                "the object store lacks objects that were uploaded: set objects.store and "
                "objects.root back, or copy all objects to the new location first",
                setting="objects.root",
                location=now,
                location_before=before or "unknown",
                key=newest.key,
            )
    requires = engine.ownership.requires()
    engine.stores.shared.commit(Transaction(puts={LOCATION_KEY: now.encode()}, requires=requires))
    event("objects_location", location=now, before=before)
