"""The engine: opens the journal and the metadata, and keeps the topics by name."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs
import msgspec
import pyarrow as pa

from frazil.clock import SystemClock
from frazil.config import Settings, load_settings
from frazil.engine import stats as facts
from frazil.engine.partitioned import PartitionedTopic
from frazil.engine.registry import Registry
from frazil.engine.topic import Topic
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
from frazil.lake import check_lake_columns, check_lake_topic
from frazil.model import Ack, TopicSpec, full_topic_name, part_name, topic_uid
from frazil.query import EngineSources
from frazil.schema import evolve
from frazil.telemetry import event
from frazil.tiers import RED, RETRY_AFTER_MS, check_objects_option
from frazil.topic import (
    TableCodec,
    check_keyed_options,
    check_options,
    column_changes,
    first_columns,
    missing_schemas,
    parts_options,
    request_topic,
    schema_control,
    shared_schemas,
    specs_of,
    topic_control,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from frazil.log import HistorySource
    from frazil.model import PartitionField
    from frazil.query import QueryEngine, Result
    from frazil.schema import Change
    from frazil.topic import TopicRequest, TopicRuntime


class Engine(Registry):
    """An open data directory. Safe to use from many threads; a context manager.

    Opening recovers the log: every record acked as fsynced is there. One process at a time. Topics
    and SQL are its own calls; `tiers`, `subscriptions`, `objects` and `lake` have theirs.
    """

    _query_engine: QueryEngine | None = None

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
        store), `objects_retention_age` and `objects_retention_bytes`; else the settings count. A
        `loose_part` is a topic of its own that is named like a part, `…-part-0`: clients of the
        wire protocol make the parts of their topics one by one.

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
        with self._control:
            self._check_open()
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
            states = [state.topics[spec.id] for spec in specs]
            self._indexer.topic_changed(self.log.journal, states)
            self.objects.changed(self._runtimes(request.name))
            event("topic_created", topic=request.name, kind=request.kind)
            self._note_lake(request.name)
            return self.topic(request.name)

    def _with_lake(self, request: TopicRequest) -> TopicRequest:
        """Return a request that says whether the topic has a lake, checked if it has."""
        has_lake = bool(request.options.get("lake", self.settings.lake.default))
        if has_lake:
            self._check_lake(request.name, request.schema, request.partition_by)
        return attrs.evolve(request, options={**request.options, "lake": has_lake})

    def _check_lake(
        self, name: str, schema: pa.Schema | None, partition_by: Sequence[PartitionField]
    ) -> None:
        check_lake_topic(self, name, schema, partition_by, has_tiers=self.has_tiers)

    def _note_lake(self, name: str) -> None:
        """Tell the lake that a topic was created or changed, or that this failed."""
        with contextlib.suppress(NotFound, Closed):
            self.lake.changed(full_topic_name(name))

    def _check_place(self, request: TopicRequest) -> None:
        """Refuse a topic for whose name, or for which at all, there is no place."""
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
        """Refuse columns that no codec can be made for, before the first frame says otherwise."""
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
        """Return the first of the ids for a topic and its parts: nothing is left of any of them.

        Ids are given once, but the journal that counts them may have been lost.
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
                "the topic could not be created and is not there, try again",
                topic=specs[-1].name,
                cause=error,
            ) from error

    def _unmake(self, specs: Sequence[TopicSpec]) -> None:
        """Take back what was made of topics whose creation failed."""
        for spec in specs:
            self._unbind(spec)
            if spec.id in self.log.journal.state.topics:
                self._deleting[spec.id] = spec
        with contextlib.suppress(FrazilError):
            self._finish_deleting()

    def _unbind(self, spec: TopicSpec) -> None:
        self._parents.pop(spec.name, None)
        gone = self._topics.pop(spec.name, None)
        self._topics_version += 1
        if gone is not None:
            gone.refusal = lambda: NotFound("topic was deleted", topic=spec.name)
            self.objects.unbind(gone.state.id)
            if self.has_tiers:
                self.tiers.unbind(gone.state.id)

    def _check_same(self, request: TopicRequest) -> None:
        """Refuse to pass a topic of another kind off as the one that was asked for."""
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
        # A crash between these steps leaves a half-made topic, which the next opening removes.
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
        self._check_open()
        full = full_topic_name(name)
        runtime = self._topics.get(full)
        if runtime is not None:
            return Topic(self, runtime)
        parent = self._parents.get(full)
        if parent is None and full in self.unusable:
            why = self.unusable[full]
            raise Unavailable("the topic could not be opened", topic=full, cause=why)
        if parent is None:
            raise NotFound("no such topic, create it first", topic=full)
        return PartitionedTopic(self, parent, [Topic(self, part) for part in self._runtimes(full)])

    def topics(self, namespace: str | None = None) -> list[str]:
        """Return the names of all topics, sorted; parts are left out."""
        self._check_open()
        # Copied first, each in one step: other threads may create topics meanwhile.
        names = [n for n, r in list(self._topics.items()) if not r.state.spec.part_of]
        names += list(self._parents)
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
        confirm: bool = False,
        **options: Any,
    ) -> Topic | PartitionedTopic:
        """Change the columns of a live table topic, or a topic's options; durable on return.

        Records published before are read under the new columns. `lake=False` needs `confirm`:
        records that the table does not have yet may then go by the topic's retention.

        Raises:
            InvalidRequest: with the reason, if a change is not allowed; nothing is changed then.
        """
        clean = check_options(options)
        changes = column_changes(add=add, drop=drop, rename=rename, widen=widen)
        if clean.get("lake") is False:
            self._check_open()
            self.lake.leave(full_topic_name(name), confirm=confirm)
        try:
            return self._alter(name, clean, changes)
        finally:
            # Without the lock, which the lake's thread may wait for.
            self._note_lake(name)

    def _alter(
        self, name: str, clean: dict[str, Any], changes: Sequence[Change]
    ) -> Topic | PartitionedTopic:
        with self._control:
            self._check_open()
            handle = self.topic(name)
            runtimes = self._runtimes(handle.name)
            if runtimes[0].state.spec.part_of and handle.name not in self._parents:
                raise InvalidRequest("alter the partitioned topic, not one part", topic=handle.name)
            spec = runtimes[0].state.spec
            if clean.get("lake") and not spec.lake:
                schema = None if spec.kind == "message" else runtimes[0].codec.schema
                self._check_lake(self.whole_name(spec), schema, spec.partition_by)
            check_objects_option(handle.name, clean, self.settings)
            if runtimes[0].state.spec.primary_key:
                check_keyed_options(handle.name, clean)
            fresh = self._evolved(runtimes, changes) if changes else None
            parent = self._parents.get(handle.name)
            if clean and parent is not None:
                # The parent first: an opening after a crash brings the parts in line with it.
                parent = self._redefine(parent, clean)
                state = self.log.journal.state.topics[parent.id]
                self._indexer.topic_changed(self.log.journal, [state])
                # All of the parent's options: a part may lack those of an `alter` that failed.
                clean = parts_options(parent)
            for runtime in runtimes:
                if fresh is not None:
                    self._give_schemas(runtime, fresh)
                if clean:
                    self._redefine(runtime.state.spec, clean)
                self._indexer.topic_changed(self.log.journal, [runtime.state])
            self.objects.changed(runtimes)
            return self.topic(name)

    def _evolved(
        self, runtimes: Sequence[TopicRuntime], changes: Sequence[Change]
    ) -> dict[int, bytes]:
        """Return all versions of the columns with the changed ones: the same for every part.

        An unfinished `alter` is completed first, so that no version ever
        means different columns in different places. The same call again finds its work done.
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
            self._topics_version += 1

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
        """Delete a topic; durable on return. Its data goes after `topics.delete_grace_s`.

        Its Iceberg table stays, unless `drop_table`.

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
                specs.insert(0, self._parents[full])
            # Taken before: without a grace a deleted topic may be forgotten at any rotation.
            known = self.log.journal.state.topics
            states = [known[spec.id] for spec in specs]
            self._finish_deleting()
            # The first frame decides, an opening completes the rest. If it fails nothing changes.
            self._mark_deleted(specs[0])
            for spec in specs:
                self._unbind(spec)
            self._deleting.update({spec.id: spec for spec in specs[1:]})
            with contextlib.suppress(FrazilError):
                self._finish_deleting()
            self._indexer.topic_changed(self.log.journal, states)
            event("topic_deleted", topic=full)
        self.lake.deleted(specs[0], drop_table=drop_table)
        names = [runtime.name for runtime in runtimes]
        self.subscribing.forget_topic(names, topic_uid(specs[0]))

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

    # -- SQL ------------------------------------------------------------------------------------------

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
        """Run one read statement of SQL over all topics; it sees everything that was acked.

        A topic is a view: `events` is `/default/events`, `"ns"."name"` is `/ns/name`, and
        `"events$log"` has every change. A query sees one snapshot of all tiers; `as_of_offset` and
        `as_of_time` look back; `min_offset` waits, no longer than `timeout_s`. Both offsets are an
        ack, a list of acks, an offset, or a mapping of these by topic. A number in `as_of_offset`
        is the first offset that is not seen, an ack's own records are; topics and parts that it
        does not name are seen as they are now.

        Raises:
            InvalidRequest: if the statement is wrong or not allowed.
            Overloaded: if too many queries run, or memory is nearly full; look-ups by key alone
                are answered even then.
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
        """Plan a query and say which tiers, files, rows and bytes it would read.

        It is not run; keys are looked up, to tell where their rows lie.
        """
        return self.queries().explain(sql, params, **options)

    def cancel_queries(self) -> None:
        """Cancel all queries that run now."""
        if self._query_engine is not None:
            self._query_engine.cancel_all()

    def queries(self) -> QueryEngine:
        """Return the SQL engine, which the first call makes.

        Raises:
            InvalidRequest: if DuckDB is not installed, or there is no memory tier.
        """
        self._check_open()
        tiers = self.tiers
        # In a forked child the files, and the threads that move records, are the parent's.
        tiers.disk.catalog.check_owner()
        with self._control:
            if self._query_engine is None:
                made = self._query_engine = self._new_query_engine()
                pressure = tiers.pressure
                pressure.add_source("queries", made.bytes_ahead)
                pressure.on_red(self._cancel_for_memory)
            return self._query_engine

    def _new_query_engine(self) -> QueryEngine:
        try:
            from frazil.query import PoolLimits, QueryEngine
        except ImportError as error:
            raise InvalidRequest("SQL needs DuckDB, install frazil[query]", error=error) from error
        query = self.settings.query
        spill_path = f"{self.paths.run}/duckdb"
        self._clear_spilled(spill_path)
        limits = PoolLimits(
            directories=[self.paths.disk],
            temp_directory=spill_path,
            threads=query.threads,
            memory_bytes=query.memory_bytes,
            concurrency_max=query.concurrency_max,
            timeout_s=query.timeout_s,
        )
        return QueryEngine(
            EngineSources(self),
            limits,
            clock=self.clock,
            admit=self._admit_query,
        )

    def _admit_query(self) -> None:
        pressure = self.tiers.pressure
        if pressure.level < RED:
            return
        # It may be over: what a query would add is judged by what is held now.
        pressure.recount()
        if pressure.level >= RED:
            raise Overloaded(
                "memory is nearly full and publishes come first, run the query again later",
                percent=round(pressure.percent, 1),
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _clear_spilled(self, spill_path: str) -> None:
        """Remove what queries of a process that was killed had spilled to disk."""
        files = self.file_system
        with contextlib.suppress(OSError):
            for name in files.list_directory(self.paths.run):
                path = f"{self.paths.run}/{name}"
                if path == spill_path or path.startswith(f"{spill_path}-"):
                    for spilled in files.list_directory(path):
                        files.unlink(f"{path}/{spilled}")

    def _cancel_for_memory(self) -> None:
        if self._query_engine is not None:
            self._query_engine.cancel_all("memory is short, publishes come first")

    # -- facts ----------------------------------------------------------------------------------------

    def add_source(self, source: HistorySource) -> None:
        """Put a history source before the log: readers take from it what the log gave up."""
        with self._control:
            self._sources.insert(0, source)
            for runtime in self._topics.values():
                self._chain(runtime)

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
        return facts.engine_stats(self, list(self._topics.values()))

    def close(self) -> None:
        """Commit queued records, sync, close everything; closing twice is fine."""
        # A forked child has no threads that could end the queries, and no right to their files.
        if self._query_engine is not None and os.getpid() == self._process:
            self._query_engine.close()
        super().close()

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
            # An error that is on its way already says more than the failed closing.
            if kind is None:
                raise


def open_engine(path: str | os.PathLike[str] | Settings | None = None, **overrides: Any) -> Engine:
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
    return Engine(settings, file_system=RealFileSystem(), clock=SystemClock())
