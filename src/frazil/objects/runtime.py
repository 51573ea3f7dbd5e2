"""`db.objects`: topics in an object store. Threads upload them; publishing never waits for that.

One thread decides what is due, others upload, each a topic at a time. A topic that fails waits and
is tried again; the others go on. What is registered moves the topic's hold, in batches.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import (
    Closed,
    Conflict,
    CorruptionError,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.log import Pending
from frazil.log import format as fmt
from frazil.model import full_topic_name
from frazil.objects.backups import Backups
from frazil.objects.catalog import ObjectCatalog
from frazil.objects.facts import status
from frazil.objects.healing import heal
from frazil.objects.obstores import open_store
from frazil.objects.patience import Patient
from frazil.objects.place import check_place
from frazil.objects.reader import ObjectsSource
from frazil.objects.rewriting import Rewriter
from frazil.objects.shared import SharedUploader
from frazil.objects.sharing import Sharing
from frazil.objects.topic_frames import EngineFrames
from frazil.objects.topics import OBJECTS_HOLD, ObjectsTopic, hold_control
from frazil.objects.upkeep import ObjectsUpkeep
from frazil.objects.uploader import Flight, Uploader
from frazil.telemetry import event, warn
from frazil.tiers import has_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.log import Control
    from frazil.objects.store import ObjectStore
    from frazil.topic import Instance, TopicRuntime

__all__ = ["Objects"]

TICK_S: Final = 0.05
TICK_TOPIC_S: Final = 100e-6
"""The pause is at least so long for each topic: thousands that rest must not cost a core."""
HEAL_S: Final = 5.0
GRACE_S: Final = 1.0
"""A program that is done sooner uploads only what it asked for."""
REWRITES_S: Final = 1.0
HOLDS_S: Final = 1.0
"""Holds are moved so often, those of all topics together."""
BACKUP_LOOK_S: Final = 1.0
"""So often it is asked whether a backup of the metadata is due."""
CLOSE_S: Final = 5.0
"""So long a closing engine waits for uploads under way; they go on in its next life."""
READ_WAIT_S: Final = 10.0
FLUSH_TIMEOUT_S: Final = 300.0
LOOK_S: Final = 0.25


class Objects:
    """The objects tier of one engine. Any thread may call any method.

    Without a store in the settings it does nothing, and `source` is None.
    """

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self.settings = engine.settings.objects
        self.clock = engine.clock
        self.topics: dict[int, ObjectsTopic] = {}
        self.runtimes: dict[int, TopicRuntime] = {}
        """All topics at work: objects of a topic can be read though it is uploaded no more."""
        self.errors: dict[str, str] = {}
        """Bugs that a thread met, by what it did; it goes on."""
        self.failures = 0
        """How often an upload was given up, to be tried again later."""
        self.store: ObjectStore | None = None
        self.source: ObjectsSource | None = None
        self._stopping = False
        self._opened_at = engine.clock.monotonic()
        self._woken = threading.Event()
        self._ready = threading.Event()
        """Set when all objects are known."""
        self._work: SimpleQueue[ObjectsTopic | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._due: dict[str, float] = {}
        self.catalog = ObjectCatalog(
            engine.stores.shared, clock=engine.clock, epoch=lambda: engine.ownership.epoch
        )
        if self.settings.store != "none":
            store = open_store(self.settings, clock=engine.clock)
            self.store = Patient(store, self.settings, clock=engine.clock)
            self.catalog.load()
            # Somebody waits for a reader: it tells of trouble sooner than an upload would.
            wait_s = min(self.settings.retry_timeout_s, READ_WAIT_S)
            hasty = self.settings.model_copy(update={"retry_timeout_s": wait_s})
            self._hasty = Patient(store, hasty, clock=engine.clock)
            self.source = ObjectsSource(
                self.catalog,
                self._hasty,
                self._codec,
                ahead_bytes=self.settings.reader_ahead_bytes,
                **({} if engine.threaded else {"threads": 0}),
            )

    def _codec(self, topic_id: int) -> Any:
        runtime = self.runtimes.get(topic_id)
        if runtime is None:
            raise NotFound("no such topic", topic_id=topic_id)
        return runtime.codec

    # -- topics come and go ------------------------------------------------------------------------

    def bind(self, runtime: TopicRuntime) -> None:
        """Take note of a topic at work."""
        self.runtimes[runtime.state.id] = runtime

    def unbind(self, topic_id: int) -> None:
        """Take note that a topic was deleted; its objects go with its grace."""
        self.runtimes.pop(topic_id, None)
        found = self.topics.pop(topic_id, None)
        if found is not None:
            found.waits.refuse("the topic was deleted")

    def load(self) -> list[Control]:
        """Take up all topics with objects; return the frames that put their holds in order."""
        if self.store is not None:
            check_place(self._engine, self.catalog, self._hasty)
            self._prepare(self.store)
        controls: list[Control] = []
        for runtime in list(self.runtimes.values()):
            spec = runtime.state.spec
            if has_objects(spec, self._engine.settings):
                topic = self._take_up(runtime)
                wanted = topic.hold_wanted()
                if wanted is not None:
                    controls.append(hold_control(runtime, wanted))
            elif OBJECTS_HOLD in runtime.state.holds and not spec.objects:
                controls.append(hold_control(runtime, None))
        return controls

    def _prepare(self, store: ObjectStore) -> None:
        """Make all that works on the store, once the journal has told whose it is."""
        same: dict[str, Any] = {
            "broker": self._engine.log.journal.journal_id,
            "clock": self.clock,
            "settings": self.settings,
            "flight": Flight(),
        }
        self.frames = frames = EngineFrames(self.runtimes)
        self.uploader = Uploader(store, self.catalog, frames, **same)
        same["uploader"] = self.uploader
        self.rewriter = Rewriter(store, self.catalog, frames, **same)
        self.shared = SharedUploader(store, self.catalog, frames, **same)
        self.upkeep = ObjectsUpkeep(self._engine, self, store)
        self.backups = Backups(self._engine, self.catalog, store)
        self.sharing = Sharing(
            self.topics,
            self.uploader,
            self.shared,
            clock=self.clock,
            linger_s=self.settings.linger_s,
            noted=self._note_trouble,
            hurry=self.wake,
        )

    def _take_up(self, runtime: TopicRuntime) -> ObjectsTopic:
        topic_id = runtime.state.id
        topic = ObjectsTopic(
            runtime,
            picture=lambda: self.catalog.topic(topic_id),
            frames=self.frames,
            wake=partial(self.sharing.ask, topic_id),
        )
        runtime.objects = topic.waits
        self.topics[topic_id] = topic
        return topic

    def changed(self, runtimes: Sequence[TopicRuntime]) -> None:
        """Bring topics in line with what they say of objects, holds included; durable on return.

        The caller has the control lock: nothing of a topic goes before its hold is there.
        """
        for runtime in runtimes:
            wanted = has_objects(runtime.state.spec, self._engine.settings)
            known = runtime.state.id in self.topics
            if wanted and not known:
                topic = self._take_up(runtime)
                offset = topic.hold_wanted()
                if offset is not None:
                    runtime.log.control(hold_control(runtime, offset))
            elif known and not wanted:
                self.topics.pop(runtime.state.id).waits.refuse("the topic is uploaded no more")
                runtime.objects = None
                if OBJECTS_HOLD in runtime.state.holds:
                    runtime.log.control(hold_control(runtime, None))
        self.begin()

    # -- threads -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the threads if there is anything to do."""
        if self._threads or not self._engine.threaded or self.store is None or not self.topics:
            return
        for number in range(self.settings.parallel):
            self._start(self._upload_some, f"frazil-upload-{number}")
        self._start(self._share, "frazil-objects-shared")
        self._start(self._run, "frazil-objects")

    def _start(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def wake(self) -> None:
        """Have the thread look again soon."""
        self._woken.set()

    def _run(self) -> None:
        while not self._stopping and any(topic.is_lost for topic in self.all_topics):
            self._guard("heal", self.heal)
            if "heal" not in self.errors:
                break
            self._woken.wait(HEAL_S)
        self._ready.set()
        while not self._stopping:
            self._woken.wait(max(TICK_S, TICK_TOPIC_S * len(self.topics)))
            self._woken.clear()
            self._guard("round", self._round)

    def heal(self) -> None:
        """Find objects that the metadata has lost; called while nothing is uploaded."""
        assert self.store is not None
        lost = [topic for topic in self.all_topics if topic.is_lost]
        if lost and heal(self._engine, self.store, lost):
            self.catalog.load()
        for topic in lost:
            topic.go_on()
            topic.note()
            self.sharing.ask(topic.id)

    def _share(self) -> None:
        self._ready.wait()
        while not self._stopping:
            self._guard("shared", self.sharing.run)
            if "shared" in self.errors:
                self.sharing.pause()

    def _guard(self, task: str, function: Callable[[], object]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - a thread's top: it goes on
            if self._stopping and isinstance(error, Closed):
                return
            text = f"{type(error).__name__}: {error}"
            if self.errors.get(task) != text:
                warn("objects_failed", task=task, error=text)
            self.errors[task] = text
        else:
            self.errors.pop(task, None)

    def _is_due(self, task: str, interval_s: float) -> bool:
        now = self.clock.monotonic()
        if now < self._due.get(task, now):
            return False
        self._due[task] = now + interval_s
        return True

    def _round(self) -> None:
        for topic in self.all_topics:
            if self._stopping:
                return
            if not topic.busy and (self._is_upload_due(topic) or self._is_rewrite_due(topic)):
                topic.busy = True
                self._work.put(topic)
        if self._is_due("holds", HOLDS_S):
            self._guard("holds", self.move_holds)
        if self._is_due("retention", self.settings.retention_check_s):
            self._guard("retention", self.upkeep.retain)
        if self._is_due("backup", BACKUP_LOOK_S):
            self._guard("backup", self.backups.tick)

    def _is_upload_due(self, topic: ObjectsTopic) -> bool:
        if topic.stopped or not self.uploader.due(topic.id):
            return False
        if self.catalog.intent(topic.id) is not None:
            # It was begun in an earlier life, or its outcome is not known.
            return True
        if topic.behind <= 0:
            return False
        if topic.hurry:
            return True
        now = self.clock.monotonic()
        if topic.begun_at is None:
            return now - self._opened_at >= min(GRACE_S, self.settings.interval_s)
        return now - topic.begun_at >= self.settings.interval_s

    def _is_rewrite_due(self, topic: ObjectsTopic) -> bool:
        """Tell whether a topic has to be rewritten; looked at once a while, it costs a little."""
        now = self.clock.monotonic()
        if topic.stopped or now < topic.rewrite_at:
            return False
        topic.rewrite_at = now + REWRITES_S
        return self.uploader.due(topic.id) and self.rewriter.due(topic.id)

    def _upload_some(self) -> None:
        while (topic := self._work.get()) is not None:
            if not self._stopping:
                self._guard(f"upload {topic.name}", partial(self._work_on, topic))
            topic.busy = False

    def _work_on(self, topic: ObjectsTopic) -> None:
        if self._is_upload_due(topic):
            self.upload(topic)
        while not self._stopping and self.rewriter.due(topic.id):
            if not self.rewriter.rewrite(topic.id):
                break
            event("topic_rewritten", topic=topic.name, objects=len(topic.picture.descriptors))
        self._note_trouble(topic)

    def upload(self, topic: ObjectsTopic) -> bool:
        """Upload what is durable of a topic, object by object; tell whether there was any."""
        topic.begun_at = self.clock.monotonic()
        topic.hurry = False
        target, done = topic.runtime.state.durable, False
        while not self._stopping and not topic.stopped:
            before = topic.uploaded
            if not self.uploader.cycle(topic.id):
                break
            done = True
            event("topic_uploaded", topic=topic.name, first=before, uploaded=topic.uploaded)
            topic.note()
            if topic.uploaded >= target:
                break
        self._note_trouble(topic)
        return done

    def _note_trouble(self, topic: ObjectsTopic) -> None:
        trouble = self.uploader.trouble(topic.id)
        told, topic.trouble_told = topic.trouble_told, trouble
        if trouble is None:
            topic.waits.delay = ""
            return
        if trouble is told:
            return
        error = trouble.error
        if isinstance(error, CorruptionError) and self.frames.note_damage(topic.id, error):
            self.uploader.retry(topic.id)
        text = str(error)
        topic.failures += 1
        self.failures += 1
        topic.waits.delay = text
        # Each try has another key in its facts: it is the same trouble all the same.
        if told is None or error.message != told.error.message:
            warn("upload_failed", topic=topic.name, error=text, stopped=trouble.stopped)
        if trouble.stopped:
            topic.stop(text)

    def move_holds(self) -> None:
        """Move the holds of what was uploaded, those of all topics in one go."""
        pending: list[Pending] = []
        log = self._engine.log
        # Under the lock no hold is dropped that would come back here.
        with self._engine.control_lock:
            for topic in self.all_topics:
                offset = topic.hold_wanted()
                if offset is None or log.journal.failed is not None:
                    continue
                control = hold_control(topic.runtime, offset)
                waiter = Pending()
                size = len(control.payload) + fmt.FRAME_HEAD_BYTES
                log.queue.submit_waiting((None, None, control, 0, size, waiter, None))
                pending.append(waiter)
        for waiter in pending:
            waiter.result()

    def run_once(self) -> None:
        """Do a whole round in this thread; for simulations, which have no threads."""
        self.heal()
        for topic in self.all_topics:
            if not topic.stopped:
                self.upload(topic)
                while self.rewriter.due(topic.id) and self.rewriter.rewrite(topic.id):
                    pass
        self.move_holds()

    def stop(self) -> None:
        """End the threads; an upload under way gets a moment, and goes on in the next life."""
        self._stopping = True
        self._ready.set()
        self.wake()
        if self.store is not None and self._threads:
            self.sharing.stop()
        for _ in range(self.settings.parallel if self._threads else 0):
            self._work.put(None)
        deadline = self.clock.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(deadline - self.clock.monotonic(), 0.0))
        if self._threads and self.store is not None:
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
        """Have everything that is durable uploaded; return how far topics then are.

        Args:
            topic: one topic, or the partitioned one; all with objects without it.
            timeout_s: how long to wait.

        Raises:
            Unavailable: if it takes too long, or a topic is stopped; the records are safe here.
        """
        chosen = self._chosen(topic)
        deadline = self.clock.monotonic() + timeout_s
        targets = [(each, each.runtime.state.durable) for each in chosen]
        for each, end in targets:
            self.uploader.retry(each.id)
            each.waits.ask(each.runtime.part, end)
        if not self._engine.threaded:
            self.run_once()
        for each, end in targets:
            self._wait_for(each, end, deadline)
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

    def _wait_for(self, topic: ObjectsTopic, end: int, deadline: float) -> None:
        told = threading.Event()
        part = topic.runtime.part
        if topic.waits.watch(part, end, told.set):
            while not told.is_set():
                left = deadline - self.clock.monotonic()
                if left <= 0:
                    break
                told.wait(min(left, LOOK_S))
            topic.waits.forget(told.set)
        if topic.uploaded < end:
            raise Unavailable(
                "the store did not get there; the records are safe and wait",
                topic=topic.name,
                uploaded=topic.uploaded,
                durable=end,
                why=topic.waits.refusal or topic.waits.delay or "it takes longer",
            )

    def backup(self) -> dict[str, Any]:
        """Back the metadata up to the store now; return what the backup has, ready for JSON.

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
        """Upload a topic again that has stopped, after somebody has looked.

        Raises:
            Conflict: if its objects are not known: they have to be restored first.
        """
        for each in self._chosen(topic):
            each.go_on()
            if each.stopped:
                raise Conflict(each.stopped, topic=each.name)
            self.uploader.retry(each.id)
        self.wake()

    @property
    def all_topics(self) -> list[ObjectsTopic]:
        """Return the topics that are uploaded."""
        return list(self.topics.values())

    def uploaded(self, topic_id: int) -> int:
        """Return the offset below which the store has everything of a topic, 0 without objects."""
        found = self.topics.get(topic_id)
        return 0 if found is None or found.stopped else found.uploaded

    def status(self) -> dict[str, Any]:
        """Return what the store has and what is behind, by topic, ready for JSON."""
        return status(self)
