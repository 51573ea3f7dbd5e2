"""`db.lake`: topics as Iceberg tables. One thread moves them all; publishing never waits for it.

The catalog and the worker that runs Spark are children of this process. They are started when the
first topic with a lake needs them, and again when they die.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import (
    Closed,
    CommitUnknown,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake.adoption import adopt
from frazil.lake.catalog_runtime import LakeCatalog
from frazil.lake.facts import topic_facts, totals
from frazil.lake.plans import LakePlans
from frazil.lake.process import launcher
from frazil.lake.topics import HOLD, LakeTopic
from frazil.lake.watermark import watermarks
from frazil.lake.worker_client import LakeWorker, error_of
from frazil.log import STATE_HOLD, Control, Pending
from frazil.log import format as fmt
from frazil.model import full_topic_name, topic_uid
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from frazil.lake.rejects import TopicRejects
    from frazil.lake.table import Ends
    from frazil.lake.tables import CatalogTables
    from frazil.lake.verify import VerifyResult
    from frazil.lake.watermark import Choice
    from frazil.lake.wire import Answer
    from frazil.metadata import MetadataStore
    from frazil.model import TopicSpec
    from frazil.tiers import Tiers
    from frazil.topic import Instance, TopicRuntime

__all__ = ["Lake"]

TICK_S: Final = 0.1
GRACE_S: Final = 1.0
"""A program that is done sooner never starts the catalog or Spark."""
CALL_TIMEOUT_S: Final = 120.0
FLUSH_TIMEOUT_S: Final = 300.0
LOOK_S: Final = 0.25


class Lake:
    """The lake of one engine. Any thread may call any method."""

    def __init__(self, engine: Instance, store: MetadataStore, tiers: Tiers | None) -> None:
        self._engine = engine
        self._tiers = tiers
        self.clock = engine.clock
        self.topics: dict[str, LakeTopic] = {}
        self.error = ""
        """A bug that the lake's thread met; the other topics go on."""
        self.by_itself = True
        """The children are started after a moment; else only when somebody asks for them."""
        self._started = False
        self._needs = 0
        self._stopping = False
        self._opened_at = engine.clock.monotonic()
        self._woken = threading.Event()
        self._calls: list[tuple[Callable[[], Any], Pending]] = []
        self._lock = threading.RLock()
        self.settling = threading.Lock()
        """Held while rejects are replayed or dropped: their marks are read, changed and written."""
        self._thread: threading.Thread | None = None
        self.catalog = LakeCatalog(
            engine.settings, engine.paths, file_system=engine.file_system, clock=engine.clock
        )
        if tiers is not None:
            self.plans = LakePlans(store, tiers.disk)
            self.worker = LakeWorker(
                launcher(engine.paths, engine.file_system),
                hello=self._hello,
                next_epoch=self.plans.next_epoch,
                settings=engine.settings.lake.worker,
                clock=engine.clock,
                wake=self.wake,
            )

    # -- for topics on their way -------------------------------------------------------------------

    @property
    def tiers(self) -> Tiers:
        """Return memory and disk.

        Raises:
            InvalidRequest: if there are none.
        """
        if self._tiers is None:
            raise InvalidRequest("the lake needs the memory tier, set memory.enabled")
        return self._tiers

    def tables(self) -> CatalogTables:
        """Return the catalog's tables; `Unavailable` while the catalog does not answer."""
        return self.catalog.tables()

    def wake(self) -> None:
        """Have the lake's thread look again soon."""
        self._woken.set()

    def set_hold(self, runtime: TopicRuntime, offset: int | None) -> None:
        """Move the lake's hold of a topic or part; durable on return."""
        payload = msgspec.msgpack.encode((STATE_HOLD, HOLD, offset))
        with self._engine.control_lock:
            runtime.lane.control(Control(fmt.KIND_STATE, runtime.state.id, payload))

    def _hello(self, epoch: int) -> Mapping[str, Any]:
        """Return what a new worker is told."""
        from frazil.lake.worker_calls import hello_body

        return {**hello_body(self._engine.settings, self.catalog.address()), "epoch": epoch}

    # -- topics come and go ------------------------------------------------------------------------

    def load(self) -> None:
        """Take up all topics with a lake, before files are merged that their plans name."""
        for name in self._engine.lake_names():
            self._take_up(name)

    def changed(self, name: str) -> None:
        """Take note that a topic came or changed."""
        spec, _runtimes = self._engine.whole_topic(name)
        if spec.lake and name not in self.topics:
            self._take_up(name)
            self.begin()

    def leave(self, name: str, *, confirm: bool) -> None:
        """Stop committing a topic and drop the lake's hold; its table stays.

        Called before the definition changes: a crash in between leaves a topic with a lake whose
        hold is made again, never a hold that nothing moves.

        Raises:
            InvalidRequest: if the topic has a lake and `confirm` is missing.
        """
        spec, runtimes = self._engine.whole_topic(name)
        if not spec.lake or spec.part_of:
            return
        if not confirm:
            raise InvalidRequest(
                "without its lake the topic no longer keeps records for the table: those that are "
                "not committed go with its retention; give confirm=True",
                topic=name,
                committed=self.committed(name),
            )
        self.call(lambda: self._let_go(name, gone=False))
        for runtime in runtimes:
            if HOLD in runtime.state.holds:
                self.set_hold(runtime, None)

    def deleted(self, spec: TopicSpec, *, drop_table: bool) -> None:
        """Take note that a topic was deleted; its table stays unless it is to be dropped.

        Raises:
            InvalidRequest: if the topic had no lake.
            Unavailable: if the catalog cannot be reached; the topic is gone, its table is not.
        """
        found = self.topics.get(spec.name)
        if found is not None:
            self.call(lambda: self._let_go(spec.name, gone=True))
        if not drop_table:
            return
        if found is None:
            raise InvalidRequest("the topic is deleted; it had no table to drop", topic=spec.name)
        try:
            self.call(lambda: self.catalog.tables().drop(found.table, topic_uid(spec)))
        except NotFound:
            return
        except FrazilError as error:
            raise Unavailable(
                "the topic is deleted, but its table could not be dropped; drop it in the catalog",
                topic=spec.name,
                table=found.table,
                error=error,
            ) from error

    def _take_up(self, name: str) -> None:
        spec, runtimes = self._engine.whole_topic(name)
        topic = LakeTopic(self, spec, runtimes)
        topic.load()
        for runtime in runtimes:
            runtime.lake = topic.waits
        self.topics[name] = topic

    def _let_go(self, name: str, *, gone: bool) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            topic.leave(gone=gone)
            for runtime in topic.runtimes:
                runtime.lake = None

    # -- the thread --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread if there is anything to do; the children follow after a moment."""
        with self._lock:
            if self._thread is None and self.topics and self._engine.threaded:
                self._opened_at = self.clock.monotonic()
                self._thread = threading.Thread(target=self._run, name="frazil-lake", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopping:
            self._woken.wait(TICK_S)
            self._woken.clear()
            try:
                self._round()
                self.error = ""
            except Exception as error:  # noqa: BLE001 - the thread's top: it goes on
                text = f"{type(error).__name__}: {error}"
                if text != self.error:
                    warn("lake_failed", error=text)
                self.error = text
        self._answer_calls()

    def _round(self) -> None:
        self._answer_calls()
        wanted = self._is_wanted()
        # The worker is told where the catalog is: that comes first.
        self.worker.wanted = (wanted or self._needs > 0) and self.catalog.uri() is not None
        if self.catalog.has_moved():
            self.worker.replace("the catalog has another address")
        self.worker.step()
        for topic in list(self.topics.values()):
            if self._stopping:
                return
            topic.step(begin=wanted)
            topic.waits.delay = topic.why or self.worker.why

    def _is_wanted(self) -> bool:
        """Tell whether topics are to be moved, which takes the catalog and Spark."""
        active = [each for each in self.topics.values() if each.state in {"starting", "running"}]
        if not active or self._stopping:
            return False
        old = self.by_itself and self.clock.monotonic() - self._opened_at >= GRACE_S
        return self._started or old or any(each.waits.is_asked() for each in active)

    def call(self, function: Callable[[], Any], timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Run a function in the lake's thread and return what it returns."""
        with self._lock:
            running = self._thread is not None and self._thread.is_alive()
            if running and threading.current_thread() is not self._thread:
                pending = Pending()
                self._calls.append((function, pending))
            else:
                return function()
        self.wake()
        return pending.result(timeout_s)

    def _answer_calls(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    return
                function, pending = self._calls.pop(0)
            try:
                pending.settle(function())
            except FrazilError as error:
                pending.settle(error)
            except BaseException as error:
                pending.settle(Unavailable("the lake failed", error=error))
                raise

    def stop(self) -> None:
        """End the thread and the children; a commit under way gets its time."""
        self._stopping = True
        self.wake()
        thread = self._thread
        if thread is not None:
            thread.join()
        if self._tiers is not None:
            self.worker.stop(self._wait)
            for topic in self.topics.values():
                topic.waits.refuse("the engine is closed")
        self.catalog.stop()

    def _wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()

    # -- calls -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the catalog and Spark now instead of when they are needed; returns at once."""
        self._check_open()
        self._started = True
        self.begin()
        self.wake()

    def flush(self, topic: str | None = None, timeout_s: float | None = None) -> dict[str, Ends]:
        """Have everything that is durable committed; return where the tables then stand, by part.

        Args:
            topic: one topic; all with a lake without it.
            timeout_s: how long to wait; `lake.ack_timeout_s` at least five minutes without it.

        Raises:
            Unavailable: if it takes too long, a table is stopped or paused, or Spark cannot be
                started.
        """
        self._check_open()
        limit = FLUSH_TIMEOUT_S if timeout_s is None else timeout_s
        deadline = self.clock.monotonic() + limit
        chosen = [each for each in self._chosen(topic) if topic is not None or not each.keyed]
        if chosen:
            self.call(self.worker.try_again)
        targets = [(each, each.durable()) for each in chosen]
        for each, ends in targets:
            for part, end in ends.items():
                each.waits.ask(part, end)
        for each, ends in targets:
            for part, end in ends.items():
                self._wait_for(each, part, end, deadline)
        return {each.name: dict(each.waits.reached) for each, _ends in targets}

    def _wait_for(self, topic: LakeTopic, part: int, end: int, deadline: float) -> None:
        told = threading.Event()
        if topic.waits.watch(part, end, told.set):
            while not told.is_set() and not self.worker.refused:
                left = deadline - self.clock.monotonic()
                if left <= 0:
                    break
                told.wait(min(left, LOOK_S))
            topic.waits.forget(told.set)
        if topic.waits.reached.get(part, 0) < end:
            raise Unavailable(
                "the lake did not get there; the records are safe and wait",
                topic=topic.name,
                state=topic.state,
                why=topic.waits.refusal or topic.why or self.worker.why or "it takes longer",
                committed=(topic.waits.reached or topic.remembered()).get(part, 0),
                durable=end,
            )

    def status(self) -> dict[str, Any]:
        """Return what the lake does, by topic, ready for JSON."""
        topics = list(self.topics.values())
        if self._tiers is None or not topics:
            return {"state": "off", "topics": {}}
        worker = self.worker.describe()
        state = "running" if worker["state"] == "ready" else "starting"
        if not any(each.state in {"starting", "running"} for each in topics):
            state = "idle"
        now_us = self.clock.now_us()
        facts = {each.name: topic_facts(each, self.tiers, self.worker, now_us) for each in topics}
        return {
            "state": state,
            "worker": worker,
            "catalog": self.catalog.describe(),
            "error": self.error,
            "totals": totals(topics, facts),
            "topics": facts,
        }

    def committed(self, topic: str) -> Ends:
        """Return where a topic's table stands, by part; -1 is a topic without parts."""
        found = self.topics.get(full_topic_name(topic))
        return {} if found is None else dict(found.waits.reached or found.remembered())

    def pause(self, topic: str | None = None) -> None:
        """Let records wait; a commit under way is finished. Outlives a restart."""
        for each in self._chosen(topic):
            wishes = msgspec.structs.replace(each.wishes, paused=True)
            self.call(partial(each.decide, wishes))

    def resume(
        self,
        topic: str | None = None,
        *,
        replay: bool = False,
        accept: bool = False,
        rejects: bool = False,
    ) -> None:
        """Go on after a pause or a stop: look at the table again.

        Args:
            topic: one topic; all without it.
            replay: the table was rolled back or is gone: move its rows again.
            accept: the table was rolled back, or records are held nowhere any more: go on without.
            rejects: let a plan with too many rejects through.
        """
        if replay and accept:
            raise InvalidRequest("choose replay or accept, not both")
        if topic is None and (replay or accept or rejects):
            raise InvalidRequest("a choice is for one topic, name it")
        choice: Choice = "replay" if replay else "accept" if accept else ""
        for each in self._chosen(topic):
            wishes = msgspec.structs.replace(each.wishes, paused=False)
            if rejects:
                wishes = msgspec.structs.replace(wishes, rejects_allowed=True)
            if choice:
                chosen = self.call(partial(self._ends_of, each))
                wishes = msgspec.structs.replace(wishes, choice=choice, chosen=chosen)
            self.call(partial(each.decide, wishes))

    def _ends_of(self, topic: LakeTopic) -> Ends:
        """Return where a table stands by its own word; nowhere if there is none."""
        try:
            return watermarks(self.tables().look(topic.table), {})[0]
        except NotFound:
            return {}

    def adopt(self, topic: str, *, confirm: bool = False) -> dict[str, Any]:
        """Continue after the end of a table that this topic did not fill; return what was done.

        The topic's head is raised to the table's end with a declared gap, so that no offset is used
        twice. Own records at offsets that the table has filled stay readable in the log and do not
        get into the table: `left_out` has their offsets.

        Raises:
            InvalidRequest: if the table is another topic's, or own records would be left out, and
                `confirm` is missing.
            NotFound: if there is no table.
        """
        [found] = self._chosen(topic)
        if found.keyed:
            raise InvalidRequest("keyed tables come later", topic=found.name)
        self._check_open()
        done: dict[str, Any] = self.call(lambda: adopt(found, self.tables(), confirm=confirm))
        self._started = True
        return done

    def rejects(self, topic: str) -> TopicRejects:
        """Return the records of a topic that its table could not take.

        Raises:
            InvalidRequest: if the topic has no lake.
            NotFound: if there is no such topic.
        """
        from frazil.lake.rejects import TopicRejects

        self._check_open()
        [found] = self._chosen(topic)
        return TopicRejects(self, found)

    def verify(
        self,
        topic: str,
        *,
        timeout_s: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> VerifyResult:
        """Check with Spark that a topic's table has each of its records once.

        Works for paused and stopped topics as well. The result's `verdict` is `good`,
        `rows deleted by others` or `damaged`, its `lines` are for people.

        Args:
            topic: one topic.
            timeout_s: how long to wait; a day without it.
            progress: called with each step.

        Raises:
            InvalidRequest: if the topic has no lake, or is keyed.
            NotFound: if there is no such topic, or it has no table yet.
            Conflict: if the table is another topic's.
            CorruptionError: if a file of the table is gone or cannot be read.
            Unavailable: if Spark does not come, is lost, or takes too long.
        """
        from frazil.lake.verify import verify_topic

        self._check_open()
        [found] = self._chosen(topic)
        return verify_topic(self, found, timeout_s=timeout_s, progress=progress)

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        """Have Spark run meanwhile, whatever state the topics are in; none is moved by this."""
        with self._lock:
            self._needs += 1
        self.begin()
        self.wake()
        try:
            yield
        finally:
            with self._lock:
                self._needs -= 1

    def ask_worker(
        self, op: str, body: Mapping[str, Any], progress: Callable[[Answer], None] | None = None
    ) -> Pending:
        """Send a request that only reads; its answer's body or error settles what is returned.

        Raises:
            Unavailable: if there is no worker that is ready.
        """
        pending = Pending()

        def take(answer: Answer) -> None:
            if answer.state == "progress":
                if progress is not None:
                    progress(answer)
            elif answer.state == "done":
                pending.settle(answer.body)
            else:
                pending.settle(_read_error(answer))

        try:
            self.call(lambda: self.worker.request(op, body, take))
        except Closed as error:
            raise Unavailable("there is no lake worker yet, try again", error=error) from error
        return pending

    def _chosen(self, topic: str | None) -> list[LakeTopic]:
        if topic is None:
            return list(self.topics.values())
        found = self.topics.get(full_topic_name(topic))
        if found is None:
            self._engine.whole_topic(full_topic_name(topic))
            raise InvalidRequest(
                "the topic has no lake, give it one with alter and lake=True", topic=topic
            )
        return [found]

    def _check_open(self) -> None:
        if self._engine.closed:
            raise Closed("the engine is closed")


def _read_error(answer: Answer) -> FrazilError:
    """Return why a request that writes nothing failed: its outcome is never in doubt."""
    error = error_of(answer)
    if isinstance(error, CommitUnknown):
        return Unavailable("the lake worker was lost meanwhile, try again", why=error)
    return error
