"""The engine: opens the journal and the metadata, and has the topics by name."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs
import msgspec
import pyarrow as pa

from frazil.clock import SystemClock
from frazil.config import Settings, load_settings
from frazil.engine import stats as facts
from frazil.engine.partitioned import PartitionedTopic
from frazil.engine.sql import Sql
from frazil.engine.topic import Topic
from frazil.engine.upkeep import Upkeep
from frazil.errors import (
    Closed,
    Conflict,
    FrazilError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from frazil.fs import RealFileSystem
from frazil.lake import Lake, check_lake_columns, check_lake_topic
from frazil.log import ChainedHistory, Control, Journal, Log, SpaceGuard, prepare, take_lock
from frazil.log import format as fmt
from frazil.metadata import LEASE, Ownership, holder_of
from frazil.model import Ack, TopicSpec, full_topic_name, part_name, topic_uid
from frazil.objects import Objects
from frazil.schema import IngestLimits, evolve
from frazil.subscribe import Cursors, Subscribing, Subscriptions
from frazil.telemetry import event, warn
from frazil.tiers import Tiers, check_objects_option
from frazil.topic import (
    Indexer,
    Instance,
    Sequencer,
    States,
    StateTag,
    Stores,
    TableCodec,
    TopicRuntime,
    check_keyed_options,
    check_options,
    column_changes,
    first_columns,
    known_cursors,
    known_topics,
    missing_schemas,
    open_stores,
    parts_options,
    request_topic,
    schema_control,
    shared_schemas,
    specs_of,
    topic_control,
    unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.log import HistorySource, TopicState
    from frazil.query import QueryEngine, Result
    from frazil.schema import Change
    from frazil.topic import TopicRequest


class Engine(Instance):
    """An open data directory. Safe to use from many threads; a context manager.

    Opening recovers the log: every record acked as fsynced can be read. Only one process at a time
    can open a directory. The engine has the calls for topics and SQL; `tiers`, `subscriptions`,
    `objects` and `lake` have the other calls.
    """

    cursors: Cursors
    subscribing: Subscribing
    objects: Objects
    upkeep: Upkeep
    lake: Lake

    def __init__(
        self,
        settings: Settings,
        *,
        file_system: FileSystem,
        clock: Clock,
        threads: bool = True,
        on_owned: Callable[[], None] = lambda: None,
    ) -> None:
        """Open a directory.

        `on_owned` is called once, as soon as it is certain that no other process serves these
        data: usually before the log is recovered. An error that it raises ends the opening.
        """
        if not __debug__:
            raise InvalidRequest("run Python without -O: Frazil needs its assertions")
        if sys.byteorder != "little":
            raise InvalidRequest("this machine is big-endian, which the format does not support")
        super().__init__(settings, file_system=file_system, clock=clock, threads=threads)
        self._on_owned = on_owned
        self._limits = IngestLimits(message_bytes_max=settings.topics.message_bytes_max)
        compression = settings.log.compression
        self._options = pa.ipc.IpcWriteOptions(
            compression=None if compression == "none" else compression
        )
        self.on_fenced: Callable[[Closed], None] | None = None
        """Called when another process has taken over the data; this process should end."""
        self._tiers: Tiers | None = None
        self.subscribing = Subscribing(self)
        self._deleting: dict[int, TopicSpec] = {}
        """Topics without a name whose deletion is not in the journal yet."""
        self.query_seconds: deque[float] = deque(maxlen=2048)
        """The times of the last queries until their first rows."""
        self._sources: list[HistorySource] = []
        self._sql = Sql(self)
        prepare(file_system, self.paths, allow_network_fs=settings.log.allow_network_fs)
        self._lock = take_lock(file_system, self.paths)
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise

    @property
    def has_tiers(self) -> bool:
        """Return whether there are memory and disk tiers; without them only the log has records."""
        return self._tiers is not None

    @property
    def tiers(self) -> Tiers:
        """Return the memory and disk tiers.

        Raises:
            InvalidRequest: if `memory.enabled` is off.
        """
        if self._tiers is None:
            raise InvalidRequest("this needs the memory tier, set memory.enabled")
        return self._tiers

    def _make_room(self) -> None:
        """Free the ballast before opening if the disk is full: recovery writes some bytes too."""
        try:
            if self.file_system.space(self.paths.root).free_bytes < self.settings.log.ballast_bytes:
                SpaceGuard(self.file_system, self.paths.root, self.settings.log).give_up_ballast()
        except OSError as error:
            warn("ballast_trouble", path=self.paths.root, error=error)

    def _open(self) -> None:
        self._make_room()
        stores = self._open_stores()
        self.cursors = Cursors(self, self._indexer)
        self.subscriptions = Subscriptions(self, self.cursors, self.subscribing)
        try:
            if not self.ownership.expires:
                # The directory's lock decides about the owner; otherwise the lease does.
                self._on_owned()
            known, ends = known_topics(stores.shared)
            self._known_cursors = known_cursors(stores.shared)
            if self.settings.memory.enabled:
                self._tiers = Tiers(self, stores.local, threads=self.threaded)
                self.tiers.write_stats = partial(facts.write_stats_file, self)
                self._sources.append(self.tiers.disk.history)
                for topic_id, end in self.tiers.open(
                    suspect=bool(stores.warnings) or not stores.local.revision()
                ).items():
                    ends[topic_id] = max(end, ends.get(topic_id, 0))
            self.objects = Objects(self)
            for topic_id, picture in self.objects.catalog.topics().items():
                ends[topic_id] = max(picture.uploaded, ends.get(topic_id, 0))
            self.log = self._open_log(known, ends)
            self._take_lease()
            if self.ownership.expires:
                self._on_owned()
            self._complete()
            self.warnings += self.log.journal.report.warnings
            self.upkeep = Upkeep(self)
            self._bind_all()
            self._settle_holds()
            self._commit_inline(self.objects.load())
            self._known_cursors = {}
            self.states = States(self)
            self.lake = Lake(self, stores.local, self._tiers)
            self.lake.load()
            self.warnings += self._rebuild_index()
        except BaseException:
            self.ownership.stop()
            stores.close()
            raise
        self._start_log()
        self.upkeep.start()
        if self.has_tiers:
            self.warnings += self.tiers.disk.warnings
            self.tiers.start()
            self.lake.begin()
        self.objects.begin()
        event("engine_opened", data_dir=self.paths.root, topics=len(self._topics))
        for warning in self.warnings:
            event("engine_warning", warning=warning)

    def _open_stores(self) -> Stores:
        """Open the metadata and the components that write under the owner's lease."""
        self.stores = stores = open_stores(
            self.settings, self.paths, file_system=self.file_system, clock=self.clock
        )
        self.warnings += stores.warnings
        self.ownership = Ownership(
            stores.shared,
            self.clock,
            holder=holder_of(self.file_system, self.paths.lock, self.clock),
            ttl_s=stores.lease_ttl_s,
        )
        self._indexer = Indexer(stores.shared, requires=self.ownership.requires)
        return stores

    def _take_lease(self) -> None:
        """Become the owner if other processes could be: with a shared store, or with objects."""
        if not self.ownership.expires and self.settings.objects.store == "none":
            return
        known = self.log.journal.state.values.get((StateTag.EPOCH, LEASE), b"0")
        self.ownership.on_epoch = lambda epoch: self.states.put(
            StateTag.EPOCH, LEASE, b"%d" % epoch
        )
        self.ownership.on_fenced = self._fenced
        epoch = self.ownership.take(epoch_above=max(int(known), self.objects.catalog.epoch_last))
        payload = msgspec.msgpack.encode((int(StateTag.EPOCH), LEASE, b"%d" % epoch))
        self._commit_inline([Control(fmt.KIND_STATE, 0, payload)])

    def _fenced(self, error: Closed) -> None:
        """Stop all writes: another process owns the data (F19)."""
        self.log.journal.fail(error)
        if self.on_fenced is not None:
            self.on_fenced(error)

    def _open_log(self, known: Mapping[int, Any], ends: Mapping[int, int]) -> Log:
        journal = Journal.open(
            self.file_system,
            self.paths.journal,
            clock=self.clock,
            settings=self.settings.log,
            producers=self.settings.producers,
            watermarks=ends,
            known_topics=known,
            known_cursors={t: c for t, c in self._known_cursors.items() if t in ends},
        )
        journal.delete_grace_us = int(self.settings.topics.delete_grace_s * 1_000_000)
        log = Log(journal, self.settings.log, threads=self.threaded)
        log.respect_pins = not self.has_tiers
        if self.ownership.expires:
            journal.fence = self.ownership.may_write
        return log

    def _complete(self) -> None:
        """Remove or complete definitions of topics that a crash interrupted."""
        controls, warnings = unfinished(self.log.journal.state.topics, now_us=self.clock.now_us())
        self.warnings += warnings
        self._commit_inline(controls)

    def _bind_all(self) -> None:
        topics = self.log.journal.state.topics.values()
        for topic in sorted(topics, key=lambda topic: topic.spec.partitions):
            if topic.spec.deleted_us:
                continue
            try:
                self._bind(topic.spec)
            except Exception as error:  # noqa: BLE001 - one topic must not keep the others shut
                self._pass_over(topic.spec, error)

    def _settle_holds(self) -> None:
        """Set the hold of every subscription, and drop holds of removed subscriptions."""
        try:
            self._commit_inline(self.cursors.unsettled())
        except Overloaded as error:
            # Without space for a frame no records are freed; the next opening tries again.
            self.warnings.append(f"holds of subscriptions could not be set: {error}")

    def _pass_over(self, spec: TopicSpec, error: Exception) -> None:
        """Open without a topic that cannot be used; its data is not changed."""
        self._topics.pop(spec.name, None)
        self._parents.pop(spec.name, None)
        self.unusable[spec.name] = f"{type(error).__name__}: {error}"
        self.warnings.append(f"topic {spec.name} could not be opened and is left as it is: {error}")

    def _commit_inline(self, controls: Sequence[Control]) -> None:
        """Commit control frames before the journal's thread runs."""
        if not controls:
            return
        entries: list[Any] = [(None, None, control, 0, 0, None, None) for control in controls]
        answers: list[Ack | BaseException] = []
        journal = self.log.journal
        journal.commit(entries, lambda _waiters, results: answers.extend(results))
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if journal.failed is not None:
            raise journal.closed_error()

    def mend_metadata(self) -> None:
        """Update the metadata from the log when a store that failed answers again (F16)."""
        if not self._indexer.answers():
            return
        with self.control_lock:
            if not self.closed:
                self._indexer.mend(self.log.journal, self._indexed_states())
        if self._indexer.failed is None:
            event("metadata_mended")

    def _rebuild_index(self) -> list[str]:
        """Update the metadata from the log: all topics, parents of parts included."""
        return self._indexer.rebuild(self.log.journal, self._indexed_states())

    def _indexed_states(self) -> list[TopicState]:
        known = self.log.journal.state.topics
        states = [runtime.state for runtime in self._topics.values()]
        states += [known[parent.id] for parent in self._parents.values()]
        states += [state for state in known.values() if state.spec.name in self.unusable]
        return states

    def _bind(self, spec: TopicSpec) -> None:
        # The version changes with the topics: caches of an older version are stale.
        if spec.partitions:
            self._parents[spec.name] = spec
            self.topics_version += 1
            for part in self._runtimes(spec.name) if spec.primary_key else ():
                # Parts are created before their parent, so their number is known from here on.
                part.routing = (part.state.spec.part_index, spec.partitions)
            return
        runtime = TopicRuntime(
            self.log.journal.state.topics[spec.id],
            self.log,
            settings=self.settings,
            limits=self._limits,
            clock=self.clock,
            options=self._options,
        )
        sources = [*self._sources, runtime.log.source]
        runtime.history = ChainedHistory(sources, far=self.objects.source)
        if self.has_tiers:
            runtime.tiers = self.tiers.bind(runtime)
            runtime.pressure = self.tiers.pressure
            if runtime.tiers.lookup is not None:
                runtime.queue = Sequencer(self.log.queue, runtime.tiers.lookup.image)
        self._topics[spec.name] = runtime
        self.topics_version += 1
        self.objects.bind(runtime)

    def _start_log(self) -> None:
        journal = self.log.journal
        journal.on_disk_full = self.upkeep.disk_full
        if self.has_tiers:
            journal.on_kept = self.tiers.pressure.grew
        self.log.queue.start()

    @property
    def has_failed(self) -> bool:
        """Whether the journal failed and accepts no more records."""
        return self.log.journal.failed is not None

    def _check_metadata(self) -> None:
        """Refuse changes that other machines could not see while the store is unreachable (F16)."""
        failed = self.metadata_failed
        if self.ownership.expires and failed:
            raise Unavailable(
                "the metadata store does not answer, topics cannot be created now; retry",
                cause=failed,
                retry_after_ms=1000,
            )

    @property
    def metadata_failed(self) -> str:
        """Return the reason why the metadata store does not work, empty if it works."""
        owner = self.ownership
        failed = self._indexer.failed or owner.fenced or owner.trouble
        return "" if failed is None else str(failed)

    def _finish_deleting(self) -> None:
        """Mark topics without a name as deleted, before their names are used again.

        Raises:
            FrazilError: if there is no space for the frames; the rest is tried again later.
        """
        for topic_id, spec in list(self._deleting.items()):
            if topic_id in self.log.journal.state.topics:
                self._mark_deleted(spec)
            del self._deleting[topic_id]

    def _mark_deleted(self, spec: TopicSpec) -> None:
        known = self.log.journal.state.topics[spec.id].spec
        now_us = self.clock.now_us()
        fresh = msgspec.structs.replace(known, version=known.version + 1, deleted_us=now_us)
        self.log.control(topic_control(fresh))

    def note_segments(self) -> None:
        """Write the journal's segments to the metadata."""
        with self.control_lock:
            if not self.closed:
                self._indexer.topic_changed(self.log.journal)

    # -- topics ------------------------------------------------------------------------------------

    @overload
    def create_topic(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[pa.Field] | pa.Schema | None = None,
        *,
        primary_key: Sequence[str] | str = (),
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] | str = (),
        partitions: Literal[0] = 0,
        exist_ok: bool = False,
        **options: Any,
    ) -> Topic: ...

    @overload
    def create_topic(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[pa.Field] | pa.Schema | None = None,
        *,
        primary_key: Sequence[str] | str = (),
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] | str = (),
        partitions: int,
        exist_ok: bool = False,
        **options: Any,
    ) -> PartitionedTopic: ...

    def create_topic(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[pa.Field] | pa.Schema | None = None,
        *,
        primary_key: Sequence[str] | str = (),
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] | str = (),
        partitions: int = 0,
        exist_ok: bool = False,
        loose_part: bool = False,
        **options: Any,
    ) -> Topic | PartitionedTopic:
        """Create a topic; durable on return.

        Without `columns` it is a message topic, with them a table topic. Options are `sync`,
        `retention_age`, `retention_bytes`, `on_full`, `unknown_key`, `signals`, `lake`
        (True: an Iceberg table as well, sorted by `sort_by`), `objects` (True: uploaded to the
        store), `objects_retention_age` and `objects_retention_bytes`; the settings have the
        defaults. A `loose_part` is a separate topic with the name of a part, `…-part-0`: clients of
        the wire protocol create the parts of their topics one by one.

        Raises:
            InvalidRequest: if the definition is wrong.
            Conflict: if the topic exists (unless `exist_ok` and it is of the same kind, with the
                same partitions and key).
            Overloaded: if there are too many topics.
        """
        request = request_topic(
            name,
            columns=columns,
            primary_key=primary_key,
            partition_by=partition_by,
            sort_by=sort_by,
            partitions=partitions,
            options=options,
            limits=self._limits,
            loose_part=loose_part,
        )
        with self.control_lock:
            self.check_open()
            if request.name in self._topics or request.name in self._parents:
                if not exist_ok:
                    raise Conflict("topic exists already", topic=request.name)
                self._check_same(request)
                return self.topic(request.name)
            self._check_metadata()
            self._check_place(request)
            check_objects_option(request.name, request.options, self.settings)
            request = self._with_lake(request)
            self._finish_deleting()
            state = self.log.journal.state
            specs = specs_of(
                request,
                topic_id=self._next_id(request),
                now_us=self.clock.now_us(),
                sync_default=self.settings.log.sync,
                uid=self.clock.random_bytes(8).hex(),
            )
            schema = b"" if request.schema is None else request.schema.serialize().to_pybytes()
            if schema:
                self._check_usable(request.name, {1: schema}, request.primary_key)
            self._create_all(specs, schema)
            self._indexer.topic_changed(self.log.journal, [state.topics[spec.id] for spec in specs])
            self.objects.changed(self._runtimes(request.name))
            event("topic_created", topic=request.name, kind=request.kind)
            self._note_lake(request.name)
            return self.topic(request.name)

    def _with_lake(self, request: TopicRequest) -> TopicRequest:
        """Return a request with its lake option resolved, and checked if it is on."""
        has_lake = bool(request.options.get("lake", self.settings.lake.default))
        if has_lake:
            check_lake_topic(
                self,
                request.name,
                request.schema,
                request.partition_by,
                has_tiers=self.has_tiers,
            )
        return attrs.evolve(request, options={**request.options, "lake": has_lake})

    def _note_lake(self, name: str) -> None:
        """Notify the lake that a topic was created or changed, or that this failed."""
        with contextlib.suppress(NotFound, Closed):
            self.lake.changed(full_topic_name(name))

    def _check_place(self, request: TopicRequest) -> None:
        """Refuse a topic whose name is in use, and topics above the limit."""
        parts = [part_name(request.name, index) for index in range(request.partitions)]
        taken = next((part for part in parts if part in self._topics), None)
        if taken is not None:
            raise Conflict("a topic has the name of a part", topic=request.name, part=taken)
        why = self.unusable.get(request.name)
        if why is not None:
            raise Conflict("topic exists, but cannot be used", topic=request.name, cause=why)
        count = len(self._topics) + len(self._parents) + 1 + request.partitions
        if count > self.settings.topics.topics_max:
            raise Overloaded(
                "too many topics, delete some or raise topics.topics_max",
                topics_max=self.settings.topics.topics_max,
            )

    def _check_usable(
        self, name: str, schemas: dict[int, bytes], primary_key: tuple[int, ...]
    ) -> None:
        """Refuse columns without a possible codec, before the first frame is written."""
        try:
            TableCodec(
                schemas,
                limits=self._limits,
                options=self._options,
                primary_key=primary_key,
            )
        except (TypeError, ValueError, pa.ArrowException) as error:
            raise InvalidRequest("columns cannot be used", topic=name, cause=error) from error

    def _next_id(self, request: TopicRequest) -> int:
        """Return the first of the ids for a topic and its parts; no data exists under these ids.

        Ids are assigned once, but the journal that counts them may have been lost.
        """
        first = self.log.journal.state.topic_id_last + 1
        while any(
            first + number in self.objects.catalog for number in range(request.partitions + 1)
        ):
            first += 1
        return first

    def _create_all(self, specs: Sequence[TopicSpec], schema: bytes) -> None:
        """Create a topic, or the parts and their parent: all of them or none."""
        try:
            for spec in specs:
                self._create_one(spec, schema)
        except FrazilError:
            self._unmake(specs)
            raise
        except Exception as error:
            self._unmake(specs)
            raise Unavailable(
                "the topic was not created, try again",
                topic=specs[-1].name,
                cause=error,
            ) from error

    def _unmake(self, specs: Sequence[TopicSpec]) -> None:
        """Remove the partial state of topics whose creation failed."""
        for spec in specs:
            self._unbind(spec)
            if spec.id in self.log.journal.state.topics:
                self._deleting[spec.id] = spec
        with contextlib.suppress(FrazilError):
            self._finish_deleting()

    def _unbind(self, spec: TopicSpec) -> None:
        self._parents.pop(spec.name, None)
        gone = self._topics.pop(spec.name, None)
        self.topics_version += 1
        if gone is not None:
            gone.refusal = lambda: NotFound("topic was deleted", topic=spec.name)
            self.objects.unbind(gone.state.id)
            if self.has_tiers:
                self.tiers.unbind(gone.state.id)

    def _check_same(self, request: TopicRequest) -> None:
        """Refuse an existing topic whose definition differs from the request."""
        parent = self._parents.get(request.name)
        spec = self._topics[request.name].state.spec if parent is None else parent
        for what in ("kind", "partitions", "primary_key"):
            if getattr(spec, what) != getattr(request, what):
                raise Conflict(
                    "topic exists with another definition",
                    topic=request.name,
                    differs=what,
                    exists=getattr(spec, what),
                    asked=getattr(request, what),
                )

    def _create_one(self, spec: TopicSpec, schema: bytes) -> None:
        # A crash between these steps leaves a partial topic, which the next opening removes.
        self.log.control(topic_control(spec))
        if schema and not spec.partitions:
            self.log.control(schema_control(spec.id, 1, schema))
        self._bind(spec)
        if spec.name in self._topics:
            self.upkeep.new_topic(self._topics[spec.name])

    def topic(self, name: str) -> Topic | PartitionedTopic:
        """Return the handle of a topic.

        Raises:
            NotFound: if there is no such topic.
        """
        self.check_open()
        full = full_topic_name(name)
        runtime = self._topics.get(full)
        if runtime is not None:
            return Topic(self, runtime)
        parent = self._parents.get(full)
        if parent is not None:
            parts = [Topic(self, part) for part in self._runtimes(full)]
            return PartitionedTopic(self, parent, parts)
        if full in self.unusable:
            why = self.unusable[full]
            raise Unavailable("the topic could not be opened", topic=full, cause=why)
        raise NotFound("no such topic, create it first", topic=full)

    def topics(self, namespace: str | None = None) -> list[str]:
        """Return the names of all topics, sorted; parts are left out."""
        self.check_open()
        prefix = "/" if namespace is None else f"/{namespace}/"
        return sorted(name for name in self.names() if name.startswith(prefix))

    def alter_topic(
        self,
        name: str,
        *,
        add: Mapping[str, Any] | None = None,
        drop: Sequence[str] = (),
        rename: Mapping[str, str] | None = None,
        widen: Mapping[str, Any] | None = None,
        confirm: bool = False,
        **options: Any,
    ) -> Topic | PartitionedTopic:
        """Change the columns of a live table topic, or a topic's options; durable on return.

        Records published before are read with the new columns. `lake=False` needs `confirm`:
        retention may then remove records that the table does not have yet.

        Raises:
            InvalidRequest: with the reason, if a change is not allowed; the topic stays unchanged.
        """
        clean = check_options(options)
        changes = column_changes(add=add, drop=drop, rename=rename, widen=widen)
        if clean.get("lake") is False:
            self.check_open()
            self.lake.leave(full_topic_name(name), confirm=confirm)
        try:
            return self._alter(name, clean, changes)
        finally:
            # Outside the lock, because the lake's thread may wait for it.
            self._note_lake(name)

    def _alter(
        self, name: str, clean: dict[str, Any], changes: Sequence[Change]
    ) -> Topic | PartitionedTopic:
        with self.control_lock:
            full = self.topic(name).name
            runtimes, parent = self._runtimes(full), self._parents.get(full)
            if runtimes[0].state.spec.part_of and parent is None:
                raise InvalidRequest("alter the partitioned topic, not one part", topic=full)
            self._check_altered(full, runtimes[0], clean)
            fresh = self._evolved(runtimes, changes) if changes else None
            if clean and parent is not None:
                # The parent first: after a crash the opening applies its options to the parts.
                parent = self._redefine(parent, clean)
                state = self.log.journal.state.topics[parent.id]
                self._indexer.topic_changed(self.log.journal, [state])
                # All of the parent's options: a part may lack options of an `alter` that failed.
                clean = parts_options(parent)
            for runtime in runtimes:
                if fresh is not None:
                    self._give_schemas(runtime, fresh)
                if clean:
                    self._redefine(runtime.state.spec, clean)
                self._indexer.topic_changed(self.log.journal, [runtime.state])
            self.objects.changed(runtimes)
            return self.topic(name)

    def _check_altered(self, full: str, runtime: TopicRuntime, clean: Mapping[str, Any]) -> None:
        """Refuse options that a topic cannot have; `runtime` is the topic's or that of a part."""
        spec = runtime.state.spec
        if clean.get("lake") and not spec.lake:
            schema = None if spec.kind == "message" else runtime.codec.schema
            check_lake_topic(self, full, schema, spec.partition_by, has_tiers=self.has_tiers)
        check_objects_option(full, clean, self.settings)
        if spec.primary_key:
            check_keyed_options(full, clean)

    def _evolved(
        self, runtimes: Sequence[TopicRuntime], changes: Sequence[Change]
    ) -> dict[int, bytes]:
        """Return all versions of the columns with the changed ones: the same for every part.

        An unfinished `alter` is completed first, so that a version never means different columns
        in different parts. If the same call is repeated, it changes nothing.
        """
        spec = runtimes[0].state.spec
        if spec.kind == "message":
            raise InvalidRequest("a message topic has fixed columns", topic=spec.name)
        copies = [runtime.state.schemas for runtime in runtimes]
        schemas = shared_schemas(copies)
        version = max(schemas)
        partition_ids = [field.column_id for field in spec.partition_by]
        fixed = {*spec.primary_key, *partition_ids, *spec.sort_by}
        if any(version not in copy for copy in copies):
            before = schemas.get(version - 1)
            for runtime in runtimes:
                self._give_schemas(runtime, schemas)
            if before is not None and self._same_change(before, schemas[version], changes, fixed):
                return schemas
        now = pa.ipc.read_schema(pa.py_buffer(schemas[version]))
        after = evolve(now, changes, limits=self._limits, fixed_ids=frozenset(fixed))
        check_lake_columns(self, spec, after)
        fresh = {**schemas, version + 1: after.serialize().to_pybytes()}
        self._check_usable(spec.name, fresh, spec.primary_key)
        return fresh

    def _same_change(
        self, before: bytes, after: bytes, changes: Sequence[Change], fixed: set[int]
    ) -> bool:
        schema = pa.ipc.read_schema(pa.py_buffer(before))
        try:
            wanted = evolve(schema, changes, limits=self._limits, fixed_ids=frozenset(fixed))
        except InvalidRequest:
            return False
        return bool(wanted.equals(pa.ipc.read_schema(pa.py_buffer(after)), check_metadata=True))

    def _give_schemas(self, runtime: TopicRuntime, schemas: Mapping[int, bytes]) -> None:
        state = runtime.state
        try:
            for control in missing_schemas(state.id, state.schemas, schemas):
                self.log.control(control)
        finally:
            runtime.codec.use(runtime.state.schemas)
            self.topics_version += 1

    def _redefine(self, spec: TopicSpec, changes: Mapping[str, Any]) -> TopicSpec:
        known = self.log.journal.state.topics[spec.id].spec
        fresh = msgspec.structs.replace(known, version=known.version + 1, **changes)
        parent = self.log.journal.state.topics.get(known.part_of)
        if parent is not None and parent.spec.version > fresh.version:
            fresh = msgspec.structs.replace(fresh, version=parent.spec.version)
        self.log.control(topic_control(fresh))
        if fresh.partitions:
            self._parents[fresh.name] = fresh
        return fresh

    def delete_topic(self, name: str, *, drop_table: bool = False) -> None:
        """Delete a topic; durable on return. Its data is removed after `topics.delete_grace_s`.

        Its Iceberg table is kept, unless `drop_table`.

        Raises:
            InvalidRequest: if it is one part of a partitioned topic.
            NotFound: if there is no such topic.
        """
        with self.control_lock:
            self.check_open()
            full = self.topic(name).name
            runtimes = self._runtimes(full)
            if runtimes[0].state.spec.part_of and full not in self._parents:
                raise InvalidRequest("Cannot delete individual partition", topic=full)
            specs = [runtime.state.spec for runtime in runtimes]
            if full in self._parents:
                specs.insert(0, self._parents[full])
            # Read before: without a grace any rotation may drop a deleted topic.
            known = self.log.journal.state.topics
            states = [known[spec.id] for spec in specs]
            self._finish_deleting()
            # The first frame decides, and an opening completes the rest. If this frame fails, the
            # topic is unchanged.
            self._mark_deleted(specs[0])
            for spec in specs:
                self._unbind(spec)
            self._deleting.update({spec.id: spec for spec in specs[1:]})
            with contextlib.suppress(FrazilError):
                self._finish_deleting()
            self._indexer.topic_changed(self.log.journal, states)
            event("topic_deleted", topic=full)
        self.lake.deleted(specs[0], drop_table=drop_table)
        self.subscribing.forget_topic([runtime.name for runtime in runtimes], topic_uid(specs[0]))

    def append(self, name: str, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record to a topic by name; see `Topic.append`.

        A missing topic is created if `topics.auto_create` is on: a message topic for bytes, a
        table topic with inferred columns for a dict or keywords.
        """
        return self.topic_for(name, record, options).append(record, **options)

    def topic_for(
        self, name: str, record: object, options: Mapping[str, Any]
    ) -> Topic | PartitionedTopic:
        """Return a topic's handle, creating the topic from a first record if that is allowed.

        Raises:
            NotFound: if the topic does not exist and must not be created.
            InvalidRequest: if no topic could accept the record; then none is created.
        """
        try:
            return self.topic(name)
        except NotFound:
            if not self.settings.topics.auto_create:
                raise
        return self.create_topic(name, first_columns(record, options, self._limits), exist_ok=True)

    def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        as_of_offset: Any = None,
        as_of_time: Any = None,
        min_offset: Any = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Run one read-only SQL statement over all topics; it sees all acked records.

        A topic is a view: `events` is `/default/events`, `"ns"."name"` is `/ns/name`, and
        `"events$log"` has every change. A query sees one snapshot of all tiers. `as_of_offset` and
        `as_of_time` select a past snapshot; `min_offset` waits at most `timeout_s`. Both offsets
        are an ack, a list of acks, an offset, or a mapping of these by topic. A number in
        `as_of_offset` is the first offset that is not visible; the records of an ack are visible.
        Topics and parts that it does not name have their current state.

        Raises:
            InvalidRequest: if the statement is wrong or not allowed.
            Overloaded: if too many queries run, or memory is nearly full; statements that only
                look up keys still run then.
            Unavailable: if it takes too long.
        """
        begun = self.clock.monotonic()
        result = self.queries().query(
            sql,
            params,
            as_of_offset=as_of_offset,
            as_of_time=as_of_time,
            min_offset=min_offset,
            timeout_s=timeout_s,
        )
        self.query_seconds.append(self.clock.monotonic() - begun)
        return result

    def explain(
        self, /, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Plan a query; return the tiers, files, rows and bytes that it would read.

        The query is not run; keys are looked up to locate their rows.
        """
        return self.queries().explain(sql, params, **options)

    def cancel_queries(self) -> None:
        """Cancel all running queries."""
        self._sql.cancel_all()

    def queries(self) -> QueryEngine:
        """Return the SQL engine; the first call creates it.

        Raises:
            InvalidRequest: if DuckDB is not installed, or there is no memory tier.
        """
        self.check_open()
        return self._sql.engine()

    def describe(self, name: str) -> dict[str, Any]:
        """Describe a topic, ready for JSON."""
        full = full_topic_name(name)
        parent = self._parents.get(full)
        if parent is not None:
            return facts.describe_parent(parent, self._runtimes(full))
        return facts.describe(self.topic_runtime(full), self.settings)

    def topic_stats(self, name: str) -> dict[str, Any]:
        """Return counts, sizes and watermarks of one topic."""
        return facts.topic_stats(self.topic_runtime(name))

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the whole engine."""
        return facts.engine_stats(self, list(self._topics.values()))

    def close(self) -> None:
        """Commit queued records, sync, and close all components; may be called twice.

        Raises:
            Unavailable: if the last sync failed; records acked only as `received` may be lost.
        """
        if os.getpid() != self._process:
            # In a forked child: files, metadata and lock belong to the parent, which uses them.
            self.closed = True
            return
        self._sql.close()
        # Before the journal closes, because deliveries still ack through it.
        self.subscribing.stop()
        with self.control_lock:
            if self.closed:
                return
            with contextlib.suppress(FrazilError):
                self._finish_deleting()
            self.closed = True
        self.lake.stop()
        self.objects.stop()
        if self.has_tiers:
            self.tiers.stop()
        self.upkeep.stop()
        before = self.log.journal.failed
        self.log.stop()
        failed = self.log.journal.failed if before is None else None
        self._rebuild_index()
        self.ownership.stop()
        self.stores.close()
        facts.remove_stats_file(self)
        self._lock.release()
        event("engine_closed", data_dir=self.paths.root)
        if failed is not None:
            raise Unavailable(
                "the last sync failed at closing; records acked as received only may be lost",
                data_dir=self.paths.root,
                cause=failed,
            ) from failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Unavailable:
            # The current error is more useful than the error of closing.
            if kind is None:
                raise


def open_engine(path: str | os.PathLike[str] | Settings | None = None, **overrides: Any) -> Engine:
    """Open (or create) a data directory and return the engine.

    `path` is the directory, or complete settings. Settings may be given by dotted path:
    `open(path, **{"log.sync": "periodic"})`. On return all records acked as fsynced before are
    readable.

    Raises:
        Conflict: if another process has the directory open.
        InvalidRequest: if a setting is wrong, or a newer Frazil wrote the directory.
        CorruptionError: if the directory cannot be read at all; see `frazil doctor`.
    """
    if isinstance(path, Settings):
        if overrides:
            raise InvalidRequest("give either settings or overrides, not both")
        settings = path
    else:
        if path is not None:
            overrides["data_dir"] = os.fspath(path)
        settings = load_settings(overrides=overrides)
    return Engine(settings, file_system=RealFileSystem(), clock=SystemClock())
