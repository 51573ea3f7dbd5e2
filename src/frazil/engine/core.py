"""The engine: opens journals, lanes and metadata, and keeps the topics by name."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from frazil.clock import SystemClock
from frazil.config import Settings, load_settings
from frazil.engine import facts
from frazil.engine.catalog import (
    TOPIC_ENCODER,
    check_hold_name,
    check_options,
    first_columns,
    request_topic,
    specs_of,
)
from frazil.engine.directory import DataDirectory, prepare, take_lock
from frazil.engine.indexing import Indexer, known_topics, open_store
from frazil.engine.lanes import LaneRuntime
from frazil.engine.partitioned import PartitionedTopic
from frazil.engine.runtime import TopicRuntime
from frazil.engine.topic import Topic
from frazil.engine.upkeep import Upkeep
from frazil.errors import Closed, Conflict, InvalidRequest, NotFound, Overloaded, Unavailable
from frazil.fs import RealFileSystem
from frazil.ingest.columns import IngestLimits
from frazil.ingest.evolution import (
    AddColumn,
    DropColumn,
    RenameColumn,
    WidenColumn,
    evolve,
)
from frazil.log import format as fmt
from frazil.log.codec import Control
from frazil.log.history import ChainedHistory
from frazil.log.journal import Journal
from frazil.log.state import STATE_HOLD
from frazil.model import Ack, TopicSpec, full_topic_name
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.log.history import HistorySource
    from frazil.log.state import TopicState


class Engine:
    """An open data directory. Safe to use from many threads; a context manager.

    Opening recovers the log: every record acked as fsynced is there. One process at a time.
    """

    def __init__(
        self, settings: Settings, *, file_system: FileSystem, clock: Clock, threads: bool = True
    ) -> None:
        if not __debug__:
            raise InvalidRequest("run Python without -O: Frazil checks its own work by assertions")
        self.settings = settings
        self.paths = DataDirectory(os.path.abspath(settings.data_dir))
        self.clock = clock
        self.warnings: list[str] = []
        self.closed = False
        self.file_system = file_system
        self._threads = threads
        self._limits = _limits(settings)
        compression = settings.log.compression
        self._options = pa.ipc.IpcWriteOptions(
            compression=None if compression == "none" else compression
        )
        self._control = threading.RLock()
        self._lanes: dict[int, LaneRuntime] = {}
        self._topics: dict[str, TopicRuntime] = {}
        self._parents: dict[str, TopicSpec] = {}
        self._sources: list[HistorySource] = []
        prepare(file_system, self.paths, allow_network_fs=settings.log.allow_network_fs)
        self._lock = take_lock(file_system, self.paths)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    def _open(self) -> None:
        store, warnings = open_store(
            self.settings, self.paths, file_system=self.file_system, clock=self.clock
        )
        self.warnings += warnings
        self._indexer = Indexer(store)
        try:
            known, ends = known_topics(store)
            shared = {t: end for t, end in ends.items() if known[t][0].lane == "shared"}
            self.main = self._open_lane(self.paths.journal, "journal", known, shared)
            for topic in list(self.main.journal.state.topics.values()):
                if topic.spec.lane == "dedicated" and not topic.spec.partitions:
                    self._open_topic_lane(topic.spec, topic.schemas, known, ends)
            for lane in self._all_lanes():
                self.warnings += lane.journal.report.warnings
            self._bind_all()
            self.upkeep = Upkeep(self, threads=self._threads)
            self.warnings += self._rebuild_index()
        except BaseException:
            self._indexer.close()
            raise
        for lane in self._all_lanes():
            lane.queue.start()
        self.upkeep.start()
        event("engine_opened", data_dir=self.paths.root, topics=len(self._topics))
        for warning in self.warnings:
            warn("engine_warning", warning=warning)

    def _open_lane(
        self, directory: str, name: str, known: Mapping[int, Any], ends: Mapping[int, int]
    ) -> LaneRuntime:
        try:
            journal = Journal.open(
                self.file_system,
                directory,
                clock=self.clock,
                settings=self.settings.log,
                producers=self.settings.producers,
                watermarks=ends,
                known_topics=known,
            )
        except OSError as error:
            raise Unavailable(
                "the journal cannot be opened, check the disk and the directory's rights",
                path=directory,
                error=error,
            ) from error
        journal.delete_grace_us = int(self.settings.topics.delete_grace_s * 1_000_000)
        return LaneRuntime(journal, self.settings.log, name=name, threads=self._threads)

    def _open_topic_lane(
        self,
        spec: TopicSpec,
        schemas: Mapping[int, bytes],
        known: Mapping[int, Any],
        ends: Mapping[int, int],
    ) -> LaneRuntime:
        """Open a dedicated lane and write into it what it must know of its topic."""
        own = {spec.id: ends[spec.id]} if spec.id in ends else {}
        lane = self._open_lane(self.paths.lane(spec.id), f"lane-{spec.id}", known, own)
        self._lanes[spec.id] = lane
        state = lane.journal.state.topics.get(spec.id)
        controls: list[Control] = []
        if state is None or state.spec != spec:
            controls.append(_topic_control(spec))
        have = {} if state is None else state.schemas
        controls += [
            Control(fmt.KIND_SCHEMA, spec.id, data, schema=version)
            for version, data in schemas.items()
            if version not in have
        ]
        self._commit_inline(lane, controls)
        return lane

    def _bind_all(self) -> None:
        """Bind all topics; what a crash left half made is removed or completed first."""
        topics = self.main.journal.state.topics
        parents = {t.id for t in topics.values() if t.spec.partitions and not t.spec.deleted_us}
        controls: list[Control] = []
        for topic in list(topics.values()):
            spec = topic.spec
            if spec.deleted_us:
                continue
            columns_missing = spec.kind == "table" and not spec.partitions and not topic.schemas
            if columns_missing or (spec.part_of and spec.part_of not in parents):
                self.warnings.append(f"topic {spec.name} was half made and is removed")
                fresh = msgspec.structs.replace(spec, deleted_us=self.clock.now_us())
                controls.append(_topic_control(fresh))
            elif spec.part_of:
                controls += _missing_schemas(topic, topics.values())
        self._commit_inline(self.main, controls)
        for topic in sorted(topics.values(), key=lambda topic: topic.spec.partitions):
            if not topic.spec.deleted_us:
                self._bind(topic.spec)

    def _commit_inline(self, lane: LaneRuntime, controls: Sequence[Control]) -> None:
        """Commit control frames while the journal's thread does not run yet."""
        if not controls:
            return
        entries: list[Any] = [(None, None, control, 0, 0, None, None) for control in controls]
        lane.journal.commit(entries, lambda _waiters, _results: None)
        if lane.journal.failed is not None:
            raise lane.journal.closed_error()

    def _rebuild_index(self) -> list[str]:
        """Bring the metadata in line with the log: all topics, parents of parts included."""
        known = self.main.journal.state.topics
        states = [runtime.state for runtime in self._topics.values()]
        states += [known[parent.id] for parent in self._parents.values()]
        return self._indexer.rebuild([lane.journal for lane in self._all_lanes()], states)

    def _bind(self, spec: TopicSpec) -> None:
        if spec.partitions:
            self._parents[spec.name] = spec
            for part in self._runtimes(spec.name) if spec.primary_key else ():
                # How many parts there are is known from here on: they are made before their parent.
                part.routing = (part.state.spec.part_index, spec.partitions)
            return
        lane = self._lanes.get(spec.id, self.main)
        runtime = TopicRuntime(
            lane.journal.state.topics[spec.id],
            lane,
            settings=self.settings,
            limits=self._limits,
            clock=self.clock,
            options=self._options,
        )
        self._topics[spec.name] = runtime
        self._chain(runtime)

    def _chain(self, runtime: TopicRuntime) -> None:
        runtime.history = ChainedHistory([*self._sources, runtime.lane.source])

    def _all_lanes(self) -> list[LaneRuntime]:
        return [self.main, *self._lanes.values()]

    # -- topics ----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[pa.Field] | pa.Schema | None = None,
        *,
        primary_key: Sequence[str] | str = (),
        partition_by: Sequence[str] = (),
        partitions: int = 0,
        exist_ok: bool = False,
        **options: Any,
    ) -> Topic | PartitionedTopic:
        """Create a topic; durable on return.

        Without `columns` it is a message topic, with them a table topic. Options are `sync`,
        `lane`, `retention_age`, `retention_bytes` and `on_full`; what is not given follows the
        settings.

        Raises:
            InvalidRequest: if the definition is wrong.
            Conflict: if the topic exists (unless `exist_ok`).
            Overloaded: if there are too many topics.
        """
        request = request_topic(
            name,
            columns=columns,
            primary_key=primary_key,
            partition_by=partition_by,
            partitions=partitions,
            options=options,
            limits=self._limits,
            settings=self.settings,
        )
        with self._control:
            self._check_open()
            if request.name in self._topics or request.name in self._parents:
                if exist_ok:
                    return self.topic(request.name)
                raise Conflict("topic exists already", topic=request.name)
            count = len(self._topics) + len(self._parents) + 1 + request.partitions
            if count > self.settings.topics.topics_max:
                raise Overloaded(
                    "too many topics, delete some or raise topics.topics_max",
                    topics_max=self.settings.topics.topics_max,
                )
            state = self.main.journal.state
            specs = specs_of(
                request,
                topic_id=state.topic_id_last + 1,
                now_us=self.clock.now_us(),
                sync_default=self.settings.log.sync,
            )
            schema = b"" if request.schema is None else request.schema.serialize().to_pybytes()
            for spec in specs:
                self._create_one(spec, schema)
            self._indexer.topic_changed(
                self.main.journal, [state.topics[spec.id] for spec in specs]
            )
            event("topic_created", topic=request.name, kind=request.kind)
            return self.topic(request.name)

    def _create_one(self, spec: TopicSpec, schema: bytes) -> None:
        # A crash between these steps leaves a half-made topic, which the next opening removes.
        self.main.control(_topic_control(spec))
        schemas: dict[int, bytes] = {}
        if schema and not spec.partitions:
            self.main.control(Control(fmt.KIND_SCHEMA, spec.id, schema, schema=1))
            schemas[1] = schema
        if spec.lane == "dedicated" and not spec.partitions:
            lane = self._open_topic_lane(spec, schemas, {}, {})
            lane.queue.start()
        self._bind(spec)
        if spec.name in self._topics:
            self.upkeep.new_topic(self._topics[spec.name])

    def topic(self, name: str) -> Topic | PartitionedTopic:
        """Return the handle of a topic.

        Raises:
            NotFound: if there is no such topic.
        """
        self._check_open()
        full = full_topic_name(name)
        runtime = self._topics.get(full)
        if runtime is not None:
            return Topic(self, runtime)
        parent = self._parents.get(full)
        if parent is None:
            raise NotFound("no such topic, create it first", topic=full)
        parts = [self._topics[f"{full}-part-{index}"] for index in range(parent.partitions)]
        return PartitionedTopic(self, parent, [Topic(self, part) for part in parts])

    def topics(self, namespace: str | None = None) -> list[str]:
        """Return the names of all topics, sorted; parts are left out."""
        self._check_open()
        names = [n for n, r in self._topics.items() if not r.state.spec.part_of]
        names += self._parents
        prefix = "/" if namespace is None else f"/{namespace}/"
        return sorted(name for name in names if name.startswith(prefix))

    def alter_topic(
        self,
        name: str,
        *,
        add: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Topic | PartitionedTopic:
        """Change the columns of a live table topic, or a topic's options; durable on return.

        Records published before are read under the new columns.

        Raises:
            InvalidRequest: with the reason, if a change is not allowed; nothing is changed then.
        """
        clean = check_options(options, self.settings)
        if "lane" in clean:
            raise InvalidRequest("the lane of a topic cannot be changed", topic=name)
        changes: list[Any] = [AddColumn(column, kind) for column, kind in (add or {}).items()]
        changes += [WidenColumn(column, kind) for column, kind in (widen or {}).items()]
        changes += [RenameColumn(column, new) for column, new in (rename or {}).items()]
        changes += [DropColumn(column) for column in drop]
        with self._control:
            self._check_open()
            handle = self.topic(name)
            for runtime in self._runtimes(handle.name):
                if changes:
                    self._evolve(runtime, changes)
                if clean:
                    self._redefine(runtime.state.spec, clean)
                self._indexer.topic_changed(runtime.lane.journal, [runtime.state])
            if clean and handle.name in self._parents:
                parent = self._redefine(self._parents[handle.name], clean)
                state = self.main.journal.state.topics[parent.id]
                self._indexer.topic_changed(self.main.journal, [state])
            return self.topic(name)

    def _runtimes(self, full: str) -> list[TopicRuntime]:
        parent = self._parents.get(full)
        if parent is None:
            return [self._topics[full]]
        return [self._topics[f"{full}-part-{index}"] for index in range(parent.partitions)]

    def _evolve(self, runtime: TopicRuntime, changes: Sequence[Any]) -> None:
        spec = runtime.state.spec
        if spec.kind == "message":
            raise InvalidRequest("a message topic has fixed columns", topic=spec.name)
        fixed = {*spec.primary_key, *(field.column_id for field in spec.partition_by)}
        schema = evolve(
            runtime.codec.schema, changes, limits=self._limits, fixed_ids=frozenset(fixed)
        )
        version = runtime.state.schema_version + 1
        control = Control(fmt.KIND_SCHEMA, spec.id, schema.serialize().to_pybytes(), schema=version)
        # The main journal first: a lane may lack what main has, and is completed at the next open.
        self.main.control(control)
        if runtime.lane is not self.main:
            runtime.lane.control(control)
        runtime.codec.use(runtime.state.schemas)

    def _redefine(self, spec: TopicSpec, changes: Mapping[str, Any]) -> TopicSpec:
        fresh = msgspec.structs.replace(spec, version=spec.version + 1, **changes)
        self.main.control(_topic_control(fresh))
        lane = self._lanes.get(spec.id)
        if lane is not None:
            lane.control(_topic_control(fresh))
        if fresh.partitions:
            self._parents[fresh.name] = fresh
        return fresh

    def delete_topic(self, name: str) -> None:
        """Delete a topic; durable on return. Its data goes after `topics.delete_grace_s`.

        Raises:
            InvalidRequest: if it is one part of a partitioned topic.
            NotFound: if there is no such topic.
        """
        with self._control:
            self._check_open()
            full = self.topic(name).name
            runtimes = self._runtimes(full)
            if runtimes[0].state.spec.part_of and full not in self._parents:
                raise InvalidRequest("Cannot delete individual partition", topic=full)
            specs = [runtime.state.spec for runtime in runtimes]
            if full in self._parents:
                specs.insert(0, self._parents.pop(full))
            for spec in specs:
                self._redefine(spec, {"deleted_us": self.clock.now_us()})
                self._parents.pop(spec.name, None)
                gone = self._topics.pop(spec.name, None)
                if gone is not None:
                    gone.refusal = lambda: NotFound("topic was deleted", topic=full)
            state = self.main.journal.state
            self._indexer.topic_changed(self.main.journal, [state.topics[s.id] for s in specs])
            event("topic_deleted", topic=full)

    # -- publish by name -------------------------------------------------------------------------

    def append(self, name: str, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record to a topic by name; see `Topic.append`.

        An absent topic is created when `topics.auto_create` is on: a message topic for bytes, a
        table topic with inferred columns for a dict or keywords.
        """
        ack: Ack = self.topic_for(name, record, options).append(record, **options)
        return ack

    def topic_for(self, name: str, record: object, options: Mapping[str, Any]) -> Any:
        """Return a topic's handle, creating the topic from a first record if that is allowed.

        Raises:
            NotFound: if the topic is absent and none may be created.
            InvalidRequest: if no topic could take the record; none is created then.
        """
        try:
            return self.topic(name)
        except NotFound:
            if not self.settings.topics.auto_create:
                raise
        columns = first_columns(record, options, self._limits)
        return self.create_topic(name, columns, exist_ok=True)

    # -- holds -----------------------------------------------------------------------------------

    def hold(self, topic: str, name: str, offset: int) -> None:
        """Keep a topic's records from `offset` on; durable on return.

        Raises:
            Conflict: if a hold of this name exists.
            InvalidRequest: if the offset is not in `[start, durable]`.
        """
        check_hold_name(name)
        with self._control:
            runtime = self._runtime(topic)
            state = runtime.state
            if name in state.holds:
                raise Conflict("hold exists already, use advance", topic=state.spec.name, hold=name)
            if not state.start <= offset <= state.durable:
                raise InvalidRequest(
                    "hold must be within the topic's records",
                    offset=offset,
                    start=state.start,
                    durable=state.durable,
                )
            self._set_hold(runtime, name, offset)

    def advance(self, topic: str, name: str, offset: int) -> None:
        """Move a hold forwards; durable on return.

        Raises:
            NotFound: if there is no such hold.
            Conflict: if it would move backwards.
            InvalidRequest: if the offset is above `durable`.
        """
        with self._control:
            runtime = self._runtime(topic)
            state = runtime.state
            if name not in state.holds:
                raise NotFound("no such hold", topic=state.spec.name, hold=name)
            if offset < state.holds[name]:
                raise Conflict(
                    "a hold never moves backwards", hold=name, offset=offset, now=state.holds[name]
                )
            if offset > state.durable:
                raise InvalidRequest(
                    "hold must not pass what is durable", offset=offset, durable=state.durable
                )
            self._set_hold(runtime, name, offset)

    def drop(self, topic: str, name: str) -> None:
        """Remove a hold; durable on return.

        Raises:
            NotFound: if there is no such hold.
        """
        with self._control:
            runtime = self._runtime(topic)
            if name not in runtime.state.holds:
                raise NotFound("no such hold", topic=runtime.name, hold=name)
            self._set_hold(runtime, name, None)

    def _set_hold(self, runtime: TopicRuntime, name: str, offset: int | None) -> None:
        payload = msgspec.msgpack.encode((STATE_HOLD, name, offset))
        runtime.lane.control(Control(fmt.KIND_STATE, runtime.state.id, payload))

    def _runtime(self, name: str) -> TopicRuntime:
        self._check_open()
        full = full_topic_name(name)
        runtime = self._topics.get(full)
        if runtime is None:
            raise NotFound("no such topic", topic=full)
        return runtime

    # -- other tiers -----------------------------------------------------------------------------

    def add_source(self, source: HistorySource) -> None:
        """Put a history source before the log: readers take from it what the log gave up."""
        with self._control:
            self._sources.insert(0, source)
            for runtime in self._topics.values():
                self._chain(runtime)

    def release(self, name: str, offset: int) -> None:
        """Say that another tier durably holds a topic's records below `offset`.

        The log may then free them whatever the holds say; readers find them in that tier.
        """
        runtime = self._runtime(name)
        if offset > runtime.state.durable:
            raise InvalidRequest("only durable records can be released", offset=offset)
        self.upkeep.release(runtime.state.id, offset)

    # -- facts -----------------------------------------------------------------------------------

    def describe(self, name: str) -> dict[str, Any]:
        """Return everything that is known about a topic, ready for JSON."""
        full = full_topic_name(name)
        parent = self._parents.get(full)
        if parent is not None:
            return facts.describe_parent(parent, self._runtimes(full))
        return facts.describe(self._runtime(full), self.settings)

    def topic_stats(self, name: str) -> dict[str, Any]:
        """Return counts, sizes and watermarks of one topic."""
        return facts.topic_stats(self._runtime(name))

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the whole engine."""
        return facts.engine_stats(self, self._all_lanes(), list(self._topics.values()))

    @property
    def metadata_failed(self) -> str:
        """Return why the metadata store stopped, empty if it works."""
        return "" if self._indexer.failed is None else str(self._indexer.failed)

    @property
    def runtimes(self) -> list[TopicRuntime]:
        """Return all topics at work."""
        return list(self._topics.values())

    @property
    def lanes(self) -> list[LaneRuntime]:
        """Return all journals at work, the shared one first."""
        return self._all_lanes()

    def drop_lane(self, topic_id: int) -> None:
        """Close the lane of a topic that was deleted long ago and remove its files."""
        with self._control:
            lane = self._lanes.pop(topic_id, None)
            if lane is None or self.closed:
                return
            lane.stop()
            lane.journal.unlink(lane.journal.segments)
            event("lane_dropped", lane=lane.name)

    def note_segments(self, lane: LaneRuntime) -> None:
        """Note a journal's segments in the metadata."""
        with self._control:
            if not self.closed:
                self._indexer.segments_changed(lane.journal)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the engine is closed")

    # -- the end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit what waits, sync, close everything; closing twice is fine."""
        with self._control:
            if self.closed:
                return
            self.closed = True
        self.upkeep.stop()
        for lane in self._all_lanes():
            lane.stop()
        self._rebuild_index()
        self._indexer.close()
        self._lock.release()
        event("engine_closed", data_dir=self.paths.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _topic_control(spec: TopicSpec) -> Control:
    return Control(fmt.KIND_TOPIC, spec.id, TOPIC_ENCODER.encode(spec))


def _missing_schemas(part: TopicState, topics: Iterable[TopicState]) -> list[Control]:
    """Return the schemas that a part lacks and its siblings have: an `alter` was cut short."""
    siblings = [topic for topic in topics if topic.spec.part_of == part.spec.part_of]
    newest = max(siblings, key=lambda topic: topic.schema_version)
    return [
        Control(fmt.KIND_SCHEMA, part.id, data, schema=version)
        for version, data in sorted(newest.schemas.items())
        if version not in part.schemas
    ]


def _limits(settings: Settings) -> IngestLimits:
    topics = settings.topics
    return IngestLimits(
        message_bytes_max=topics.message_bytes_max,
        key_bytes_max=topics.key_bytes_max,
        attributes_max=topics.attributes_max,
        attributes_bytes_max=topics.attributes_bytes_max,
        columns_max=topics.columns_max,
        nesting_max=topics.nesting_max,
        future_time_max_us=int(topics.future_time_max_s * 1_000_000),
    )


def open_engine(
    path: str | os.PathLike[str] | Settings | None = None,
    *,
    file_system: FileSystem | None = None,
    clock: Clock | None = None,
    **overrides: Any,
) -> Engine:
    """Open (or make) a data directory and return the engine.

    `path` is the directory, or whole settings. Other settings may be given by dotted path:
    `open(path, **{"log.sync": "periodic"})`. On return everything that was acked as fsynced
    before is readable.

    Raises:
        Conflict: if another process has the directory open.
        InvalidRequest: if a setting is wrong, or a newer Frazil wrote the directory.
        CorruptionError: if the directory cannot be understood at all; see `frazil doctor`.
    """
    if isinstance(path, Settings):
        if overrides:
            raise InvalidRequest("give either settings or overrides, not both")
        settings = path
    else:
        if path is not None:
            overrides["data_dir"] = os.fspath(path)
        settings = load_settings(overrides=overrides)
    return Engine(
        settings,
        file_system=RealFileSystem() if file_system is None else file_system,
        clock=SystemClock() if clock is None else clock,
    )
