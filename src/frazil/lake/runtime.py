"""`db.lake`: topics as Iceberg tables. One thread moves them all; publishing never waits for it.

The catalog and the worker that runs Spark are children of this process. They are started when the
first topic with a lake needs them, and again when they die.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.background import Task
from frazil.errors import (
    Closed,
    CommitUnknown,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake.plans import LakePlans
from frazil.lake.topics import COUNTS, HOLD, LakeTopic, adopt
from frazil.lake.watermark import watermarks
from frazil.lake.worker_client import LakeWorker, error_of, launcher
from frazil.log import STATE_HOLD, Control, Pending
from frazil.log import format as fmt
from frazil.model import full_topic_name, topic_uid
from frazil.topic import special_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.lake.catalog import CatalogAddress, CatalogProcess
    from frazil.lake.rejects import TopicRejects
    from frazil.lake.table import Ends
    from frazil.lake.tables import CatalogTables
    from frazil.lake.verify import VerifyResult
    from frazil.lake.watermark import Choice
    from frazil.lake.wire import Answer
    from frazil.log import DataDirectory
    from frazil.metadata import MetadataStore
    from frazil.model import TopicSpec
    from frazil.tiers import Tiers, TopicTiers
    from frazil.topic import Instance, TopicRuntime

__all__ = ["Lake", "LakeCatalog", "topic_facts", "totals"]

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
        self.by_itself = True
        """Start the children after a moment; else only when a call needs them."""
        self._started = False
        self._begun = False
        self._task = Task(
            "frazil-lake",
            self._round,
            clock=engine.clock,
            pause_s=lambda: TICK_S,
            failed_event="lake_failed",
        )
        self._needs = 0
        self._worker_uri = ""
        """The catalog's address at the start of the worker."""
        self._opened_at = engine.clock.monotonic()
        self._lock = threading.Lock()
        self._turn = threading.RLock()
        """Held during a round, and by each call that changes a topic or uses the worker."""
        self.settling = threading.Lock()
        """Held while rejects are replayed or dropped: their marks are read, changed and written."""
        self.catalog = LakeCatalog(
            engine.settings, engine.paths, file_system=engine.file_system, clock=engine.clock
        )
        if tiers is not None:
            self.plans = LakePlans(store, tiers.disk)
            self.worker = LakeWorker(
                launcher(engine.paths, engine.file_system),
                hello=self._hello,
                next_epoch=self.plans.next_epoch,
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
        """Begin the next round now."""
        self._task.wake()

    def set_hold(self, runtime: TopicRuntime, offset: int | None) -> None:
        """Move the lake's hold of a topic or part; durable on return."""
        payload = msgspec.msgpack.encode((STATE_HOLD, HOLD, offset))
        with self._engine.control_lock:
            runtime.log.control(Control(fmt.KIND_STATE, runtime.state.id, payload))

    def _hello(self, epoch: int) -> Mapping[str, Any]:
        """Return the body of `hello`."""
        from frazil.lake.worker_jobs import hello_body

        address = self.catalog.address()
        self._worker_uri = address.uri
        return {**hello_body(self._engine.settings, address), "epoch": epoch}

    # -- topics come and go ------------------------------------------------------------------------

    def load(self) -> None:
        """Attach all topics with a lake, before files that their plans name are merged."""
        for name in self._engine.lake_names():
            self._attach(name)

    def changed(self, name: str) -> None:
        """Attach a topic that was created or changed, if it has a lake."""
        spec, _runtimes = self._engine.whole_topic(name)
        if spec.lake and name not in self.topics:
            self._attach(name)
            self.begin()

    def leave(self, name: str, *, confirm: bool) -> None:
        """Stop committing a topic and remove the lake's hold; its table stays.

        Called before the definition changes: after a crash in between the topic still has a lake
        and its hold is created again; a hold without a lake cannot remain.

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
        self.call(lambda: self._detach(name, gone=False))
        for runtime in runtimes:
            if HOLD in runtime.state.holds:
                self.set_hold(runtime, None)

    def deleted(self, spec: TopicSpec, *, drop_table: bool) -> None:
        """Detach a deleted topic; its table stays unless `drop_table`.

        Raises:
            InvalidRequest: if the topic had no lake.
            Unavailable: if the catalog cannot be reached; the topic is deleted, its table is not.
        """
        found = self.topics.get(spec.name)
        if found is not None:
            self.call(lambda: self._detach(spec.name, gone=True))
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

    def _attach(self, name: str) -> None:
        spec, runtimes = self._engine.whole_topic(name)
        topic = LakeTopic(self, spec, runtimes)
        topic.load()
        for runtime in runtimes:
            runtime.lake = topic.waits
        self.topics[name] = topic

    def _detach(self, name: str, *, gone: bool) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            topic.leave(gone=gone)
            for runtime in topic.runtimes:
                runtime.lake = None

    # -- the thread --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the thread if there is anything to do; the children follow after a moment."""
        with self._lock:
            if not self._begun and self.topics and self._engine.threaded:
                self._begun = True
                self._opened_at = self.clock.monotonic()
                self._task.start()

    def _round(self) -> None:
        with self._turn:
            self._work()

    def _work(self) -> None:
        wanted = self._is_wanted()
        # `hello` has the catalog's address, so the catalog starts first.
        uri = self.catalog.uri()
        self.worker.wanted = (wanted or self._needs > 0) and uri is not None
        if uri not in {None, self._worker_uri}:
            self.worker.replace("the catalog has another address")
        self.worker.step()
        for topic in list(self.topics.values()):
            if self._task.stopping:
                return
            topic.step(begin=wanted)
            topic.waits.delay = topic.why or self.worker.why

    def _is_wanted(self) -> bool:
        """Return whether there are topics to commit, which needs the catalog and Spark."""
        active = [each for each in self.topics.values() if each.state in {"starting", "running"}]
        if not active or self._task.stopping:
            return False
        old = self.by_itself and self.clock.monotonic() - self._opened_at >= GRACE_S
        return self._started or old or any(each.waits.is_asked() for each in active)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function between two rounds of the lake's thread; return its result.

        Raises:
            Unavailable: the present round does not end in time.
        """
        if not self._turn.acquire(timeout=CALL_TIMEOUT_S):
            raise Unavailable("the lake is busy, try again")
        try:
            return function()
        finally:
            self._turn.release()
            self.wake()

    def stop(self) -> None:
        """End the thread and the children; a running commit gets time to finish."""
        self._task.stop()
        if self._tiers is not None:
            self.worker.stop(self._task.wait)
            for topic in self.topics.values():
                topic.waits.refuse("the engine is closed")
        self.catalog.stop()

    # -- calls -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the catalog and Spark now instead of when they are needed; returns at once."""
        self._check_open()
        self._started = True
        self.begin()
        self.wake()

    def flush(self, topic: str | None = None, timeout_s: float | None = None) -> dict[str, Ends]:
        """Commit everything that is durable; return the watermarks of the tables, by part.

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
        targets = [(each, part, end) for each in chosen for part, end in each.durable().items()]
        for each, part, end in targets:
            each.waits.ask(part, end)
        for each, part, end in targets:
            self._wait_for(each, part, end, deadline)
        return {each.name: dict(each.waits.reached) for each in chosen}

    def _wait_for(self, topic: LakeTopic, part: int, end: int, deadline: float) -> None:
        moved = threading.Event()
        if topic.waits.watch(part, end, moved.set):
            while not self.worker.refused and self.clock.monotonic() < deadline:
                if moved.wait(min(deadline - self.clock.monotonic(), LOOK_S)):
                    break
            topic.waits.forget(moved.set)
        if topic.waits.reached.get(part, 0) < end:
            raise Unavailable(
                "the commit timed out; the records are safe and will be committed later",
                topic=topic.name,
                state=topic.state,
                why=topic.waits.refusal or topic.why or self.worker.why or "it takes longer",
                committed=(topic.waits.reached or topic.remembered()).get(part, 0),
                durable=end,
            )

    def status(self) -> dict[str, Any]:
        """Return the lake's state, by topic, ready for JSON."""
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
            "error": self._task.errors.get("round", ""),
            "totals": totals(topics, facts),
            "topics": facts,
        }

    def committed(self, topic: str) -> Ends:
        """Return the watermark of a topic's table, by part; -1 is a topic without parts."""
        found = self.topics.get(full_topic_name(topic))
        return {} if found is None else dict(found.waits.reached or found.remembered())

    def pause(self, topic: str | None = None) -> None:
        """Stop committing after the running commit; survives a restart."""
        for each in self._chosen(topic):
            self.call(partial(each.decide, msgspec.structs.replace(each.overrides, paused=True)))

    def resume(
        self,
        topic: str | None = None,
        *,
        replay: bool = False,
        accept: bool = False,
        rejects: bool = False,
    ) -> None:
        """Continue after a pause or a stop: load the table's state again.

        Args:
            topic: one topic; all without it.
            replay: the table was rolled back or dropped: move its rows again.
            accept: the table was rolled back, or records are no longer held: continue without them.
            rejects: let a plan with too many rejects through.
        """
        if replay and accept:
            raise InvalidRequest("choose replay or accept, not both")
        if topic is None and (replay or accept or rejects):
            raise InvalidRequest("a choice is for one topic, name it")
        choice: Choice = "replay" if replay else "accept" if accept else ""
        for each in self._chosen(topic):
            changes: dict[str, Any] = {"paused": False}
            if rejects:
                changes["rejects_allowed"] = True
            if choice:
                changes |= {"choice": choice, "chosen": self.call(partial(self._ends_of, each))}
            self.call(partial(each.decide, msgspec.structs.replace(each.overrides, **changes)))

    def _ends_of(self, topic: LakeTopic) -> Ends:
        """Return the watermark that a table states; empty if there is no table."""
        try:
            return watermarks(self.tables().look(topic.table), {})[0]
        except NotFound:
            return {}

    def adopt(self, topic: str, *, confirm: bool = False) -> dict[str, Any]:
        """Continue after the end of a table that this topic did not fill; return the changes.

        The topic's head is raised to the table's end with a declared gap, so that no offset is used
        twice. The topic's records at offsets below that end stay readable in the log and are not
        committed: `left_out` has their offsets.

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
            CorruptionError: if a file of the table is missing or cannot be read.
            Unavailable: if Spark does not start, is lost, or takes too long.
        """
        from frazil.lake.verify import verify_topic

        self._check_open()
        [found] = self._chosen(topic)
        return verify_topic(self, found, timeout_s=timeout_s, progress=progress)

    @contextlib.contextmanager
    def needed(self) -> Iterator[None]:
        """Keep Spark running in this context, in any state of the topics; this commits nothing."""
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
        """Send a read-only request; return its pending answer.

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
        return Unavailable("the lake worker was lost, try again", why=error)
    return error


def topic_facts(topic: LakeTopic, tiers: Tiers, worker: LakeWorker, now_us: int) -> dict[str, Any]:
    """Describe one topic with a lake: state, watermark, lag and the reason."""
    committed = topic.waits.reached or topic.remembered()
    durable = topic.durable()
    state: str = topic.state if topic.state != "stopped" else f"stopped: {topic.reason}"
    if state == "running" and worker.state != "ready":
        state = "starting"
    return {
        "state": state,
        "why": _why(topic, worker),
        "table": str(topic.table),
        "topic_id": topic.uid,
        "committed": _shown(committed),
        "durable": _shown(durable),
        "lag_records": sum(_records(each, committed.get(each.part, 0)) for each in topic.runtimes),
        **_waiting(topic, tiers, committed, now_us),
        "last_commit_us": topic.last_commit_us,
        "commit_seconds": round(topic.results[-1], 3) if topic.results else None,
        "step": topic.step_name or None,
        "plan": None if topic.plan is None else topic.plan.id,
        "schema_version": topic.table_version,
        **topic.counts,
    }


def totals(topics: Sequence[LakeTopic], facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counters of all topics together, and their lag.

    Counters begin with the engine. `commit_seconds` is of the last hundred commits of each topic.
    """
    waits = [each["lag_seconds"] for each in facts.values() if each["lag_seconds"] is not None]
    return {
        **{name: sum(topic.counts[name] for topic in topics) for name in COUNTS},
        "lag_records": sum(each["lag_records"] for each in facts.values()),
        "lag_bytes": sum(each["lag_bytes"] for each in facts.values()),
        "lag_seconds": max(waits, default=None),
        "commit_seconds": _quantiles([each for topic in topics for each in topic.results]),
        "states": dict(Counter(topic.state for topic in topics)),
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the middle, the slow end and the slowest of some durations."""
    if not seconds:
        return {"count": 0, "p50": None, "p99": None, "max": None}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    shown = {"p50": ordered[last // 2], "p99": ordered[last * 99 // 100], "max": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 3) for name, value in shown.items()}}


def _why(topic: LakeTopic, worker: LakeWorker) -> str:
    if topic.why:
        return topic.why
    if topic.state in {"starting", "running"} and worker.state != "ready":
        step = worker.step_name
        return worker.why or (step if step != "starting" else "") or "Spark is starting"
    return ""


def _shown(ends: Ends) -> int | dict[str, int]:
    """Return one number for a topic without parts, else one for each part."""
    if set(ends) <= {-1}:
        return ends.get(-1, 0)
    return {str(part): end for part, end in sorted(ends.items())}


def _records(runtime: TopicRuntime, committed: int) -> int:
    waiting = max(runtime.state.durable - committed, 0)
    gaps = sum(
        max(0, min(each.end, runtime.state.durable) - max(each.first, committed))
        for each in special_ranges(runtime)
    )
    return max(waiting - gaps, 0)


def _waiting(topic: LakeTopic, tiers: Tiers, committed: Ends, now_us: int) -> dict[str, Any]:
    """Return the bytes that wait, how many files they are in, and how old the oldest is."""
    size = files = 0
    times: list[int] = []
    for runtime in topic.runtimes:
        end = committed.get(runtime.part, 0)
        with contextlib.suppress(NotFound):
            own = tiers.topic(runtime.state.id)
            spans = [span for span in own.disk.picture(own.id).spans if span.end > end]
            staged = [file for span in spans for file in span.files if file.rows]
            bytes_memory, times_memory = _not_flushed(runtime, own, end)
            size += bytes_memory + sum(file.bytes for file in staged)
            files += len(staged)
            times += [*times_memory, *(file.time_first for file in staged)]
    return {
        "lag_bytes": size,
        "lag_seconds": round(max(now_us - min(times), 0) / 1e6, 3) if times else None,
        "staged_files": files,
    }


def _not_flushed(runtime: TopicRuntime, own: TopicTiers, committed: int) -> tuple[int, list[int]]:
    """Return the bytes of records that are in no file, and the times of some of the oldest."""
    unflushed = own.memory.unflushed(own.flushed)
    size, times = unflushed.bytes, [unflushed.time_us]
    if not own.loaded:
        bytes_log, time_us = _only_in_the_log(runtime, max(own.flushed, committed))
        size = max(size, bytes_log)
        times.append(time_us)
    return size, [each for each in times if each]


def _only_in_the_log(runtime: TopicRuntime, first: int) -> tuple[int, int]:
    """Estimate the bytes of records that were not loaded since the start, and the first one's time.

    Both are 0 if there are none; the time is 0 if it cannot be read.
    """
    state = runtime.state
    count, kept = state.durable - first, state.durable - state.start
    if count <= 0 or kept <= 0:
        return 0, 0
    size = state.bytes_local * min(count, kept) // kept
    try:
        batches = runtime.log.source.read(state.id, offset=first, bytes_max=1).batches
    except FrazilError:
        return size, 0
    return size, batches[0].time_us if batches else 0


READY_S: Final = 5.0
"""The time that a call waits for a restarting catalog."""


class LakeCatalog:
    """Starts the catalog when it is needed and has its address.

    The first caller, usually the lake's thread, starts it, which takes a moment.
    """

    def __init__(
        self, settings: Settings, paths: DataDirectory, *, file_system: FileSystem, clock: Clock
    ) -> None:
        self._settings = settings
        self._file_system = file_system
        self._paths = paths
        self._clock = clock
        self._process: CatalogProcess | None = None
        self._tables: CatalogTables | None = None
        self._closed = False
        self._lock = threading.Lock()

    def tables(self) -> CatalogTables:
        """Return the tables; the catalog is started if it is not running.

        Raises:
            Unavailable: if it does not start or does not answer.
        """
        from frazil.lake.tables import CatalogTables

        address = self.address()
        with self._lock:
            if self._tables is None or self._tables.address != address:
                self._tables = CatalogTables(address, settings=self._settings, clock=self._clock)
            return self._tables

    def address(self) -> CatalogAddress:
        """Return where the catalog is; it is started if it is not running.

        Raises:
            Unavailable: if it does not start.
        """
        with self._lock:
            if self._closed:
                raise Closed("the lake is closed")
            return self._running().wait_ready(timeout=READY_S)

    def _running(self) -> CatalogProcess:
        from frazil.lake.catalog.process import CatalogOptions, CatalogProcess

        if self._process is None:
            lake, paths = self._settings.lake, self._paths
            options = CatalogOptions(
                run_directory=paths.run,
                db=paths.catalog,
                warehouse=self._warehouse(),
                port=lake.catalog.port,
                log_path=f"{paths.logs}/catalog.log",
            )
            process = CatalogProcess(options, clock=self._clock)
            process.start()
            self._process = process
        return self._process

    def _warehouse(self) -> str:
        """Return the checked directory of the tables; the catalog would exit with a wrong one.

        Raises:
            InvalidRequest: if it is no local path.
            Unavailable: if it is one that cannot be made.
        """
        warehouse = self._settings.lake.warehouse or self._paths.warehouse
        path = warehouse.removeprefix("file://")
        if "://" in path:
            raise InvalidRequest(
                "the embedded catalog keeps tables on the local disk only, set lake.warehouse to a "
                "directory",
                warehouse=warehouse,
            )
        try:
            self._file_system.make_directory(path)
        except OSError as error:
            raise Unavailable(
                "the warehouse cannot be made, correct lake.warehouse or its rights",
                warehouse=warehouse,
                error=error,
            ) from error
        return warehouse

    def uri(self) -> str | None:
        """Return where the catalog listens now, None while it does not."""
        found = None if self._process is None else self._process.address
        return None if found is None else found.uri

    def describe(self) -> dict[str, Any]:
        """Return facts for people, ready for JSON."""
        return {
            "uri": self.uri(),
            "restarts": 0 if self._process is None else self._process.restarts,
            "warehouse": self._settings.lake.warehouse or self._paths.warehouse,
        }

    def stop(self) -> None:
        """End the child."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.stop()
