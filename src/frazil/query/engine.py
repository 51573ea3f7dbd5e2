"""SQL over all tiers: check, plan, take one snapshot, prune chunks and files, run.

A look-up by key does not use DuckDB. DuckDB runs all other statements, over the memory tier's
Arrow batches without a copy and over the files of the disk tier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from attrs import define, field

from frazil.errors import CorruptionError, FrazilError, InvalidRequest, Overloaded, Unavailable
from frazil.query.plan import PlannedUse, Planner
from frazil.query.pool import Lease, Pool, PoolLimits, RunningQuery, check_timeout, too_late
from frazil.query.pruning import Limits, folded_value, keys_of, limits_of, settled_params
from frazil.query.relations import (
    ArrowTables,
    WarmFile,
    empty_relation,
    lookup_relation,
    topic_relation,
)
from frazil.query.result import BATCH_ROWS, Result, Stream
from frazil.query.snapshots import EngineSnapshot
from frazil.query.tables import catalog_table
from frazil.query.views import LOG_SUFFIX, ChunkView
from frazil.topic import watching

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from frazil.clock import Clock
    from frazil.query.plan import Plan
    from frazil.query.snapshots import EngineSources
    from frazil.query.views import TopicName

_MESSAGE_CHARACTERS_MAX: Final = 2_000
RETRY_AFTER_MS: Final = 1_000


def query_failure(
    error: duckdb.Error | OSError, *, lease: Lease, files: Iterable[str]
) -> FrazilError:
    """Return the Frazil error for an error of DuckDB.

    If the query was interrupted, the lease has the reason. An error that names one of `files`
    means damage, not a mistake in the statement. While a result is read, Arrow raises DuckDB's
    errors as `OSError` with the same text.
    """
    text = str(error)
    if lease.stopped is not None:
        return lease.stopped
    for path in files:
        if path in text:
            return CorruptionError("a file of the disk tier cannot be read", file=path, cause=text)
    kind, _, rest = text.partition(" Error: ")
    # DuckDB's excerpt is dropped: it shows the rewritten text, not the user's.
    message = (rest or text).split("\n\nLINE ", 1)[0].strip()
    return _KINDS.get(kind, InvalidRequest)(" ".join(message.split())[:_MESSAGE_CHARACTERS_MAX])


def _out_of_memory(message: str) -> FrazilError:
    return Overloaded(
        "query needs more memory than query.memory_bytes allows; read less or raise it",
        retry_after_ms=RETRY_AFTER_MS,
        cause=message,
    )


def _storage(message: str) -> FrazilError:
    return Unavailable("query could not read its data, run it again", cause=message)


_KINDS: Final[dict[str, Callable[[str], FrazilError]]] = {
    "INTERRUPT": lambda _message: Unavailable("query was interrupted, run it again"),
    "Out of Memory": _out_of_memory,
    "IO": _storage,
    "Permission": _storage,
    "FATAL": _storage,
    "INTERNAL": _storage,
}


class FoundRow(NamedTuple):
    """A row that was looked up by key, and the snapshot that has it."""

    snapshot: EngineSnapshot
    row: Mapping[str, Any]


@define(eq=False)
class TableRead:
    """The relation of one table of the statement, or the `keys` that were looked up for it."""

    use: PlannedUse
    limits: Limits
    snapshots: Sequence[EngineSnapshot]
    chunks: list[ChunkView] = field(factory=list)
    files: list[WarmFile] = field(factory=list)
    keys: int | None = None
    found: list[FoundRow] = field(factory=list)


@define(eq=False)
class Prepared:
    """A statement that is ready to run."""

    text: str
    tables: ArrowTables
    reads: list[TableRead]
    paths: list[str]


def prepare(
    plan: Plan,
    values: Mapping[str, Any],
    folded: Sequence[Any],
    snapshots: Mapping[TopicName, Sequence[EngineSnapshot]],
    *,
    prefix: str,
    catalog: Callable[[str], pa.Table],
) -> Prepared:
    """Build the relations of all tables of a plan."""
    tables = ArrowTables(prefix)
    relations: list[str] = []
    reads: list[TableRead] = []
    for use in plan.uses:
        if use.info is None:
            relations.append(" ".join(("SELECT * FROM", tables.add(catalog(use.catalog)))))
            continue
        read = TableRead(use, limits_of(use.conditions, values, folded), snapshots[use.topic])
        reads.append(read)
        if use.described:
            relations.append(empty_relation(use.columns))
            continue
        relation = _looked_up(read, values, folded, tables)
        if relation is None:
            relation, read.chunks, read.files = topic_relation(
                read.snapshots,
                use.columns,
                read.limits,
                tables,
                keyed=bool(use.info.key_names),
                log=use.log,
            )
        relations.append(relation)
    paths = [file.path for read in reads for file in read.files if file.path is not None]
    return Prepared(plan.text(relations), tables, reads, paths)


def _looked_up(
    read: TableRead, values: Mapping[str, Any], folded: Sequence[Any], tables: ArrowTables
) -> str | None:
    """Return the relation of the rows that the conditions name by key, None if they name none."""
    if read.use.key is None:
        return None
    keys = keys_of(read.use.key, values, folded)
    if keys is None:
        return None
    read.keys = len(keys)
    read.found = [
        FoundRow(snapshot, row)
        for snapshot in read.snapshots
        for row in (snapshot.get_many(keys) if keys else ())
        if row is not None
    ]
    rows = [(found.snapshot.part, found.row) for found in read.found]
    return lookup_relation(rows, read.use.columns, tables)


def explained_scan(plan: Plan, prepared: Prepared, text: str) -> dict[str, Any]:
    """Describe a query that DuckDB runs; `text` is its plan."""
    tables = [_table(read) for read in prepared.reads]
    catalog = [use.catalog for use in plan.uses if use.catalog]
    by_key = bool(prepared.reads) and all(read.keys is not None for read in prepared.reads)
    path = "index" if by_key and not catalog else "scan"
    return {"path": path, "tables": tables, "catalog": catalog, "plan": text}


def _table(read: TableRead) -> dict[str, Any]:
    use, snapshots = read.use, read.snapshots
    namespace, name = use.topic
    chunks = [_sizes(chunk) for snapshot in snapshots for chunk in snapshot.chunks]
    found: dict[str, Any] = {
        "topic": f"/{namespace}/{name}",
        "view": name + LOG_SUFFIX if use.log else name,
        "log": use.log,
        "columns": [column.name for column in use.columns],
        "conditions": read.limits.describe(),
        "snapshot": [{"part": each.part, "end": each.end, "cut": each.cut} for each in snapshots],
        "memory": _facts("chunks", chunks, [_sizes(chunk) for chunk in read.chunks]),
        "disk": _disk_facts(read),
    }
    if read.keys is not None:
        found |= _lookup_facts(read.keys, read.found)
    return found


def _disk_facts(read: TableRead) -> dict[str, Any]:
    files = [
        (file.rows, file.bytes)
        for snapshot in read.snapshots
        for file in snapshot.files
        if file.offset_first < snapshot.cut
    ]
    facts = _facts("files", files, [(warm.file.rows, warm.file.bytes) for warm in read.files])
    return facts | {"names_read": [warm.file.name for warm in read.files]}


def _sizes(chunk: ChunkView) -> tuple[int, int]:
    return chunk.batch.num_rows, chunk.batch.nbytes


def _facts(
    what: str, every: Sequence[tuple[int, int]], read: Sequence[tuple[int, int]]
) -> dict[str, int]:
    """Return the size of a topic in a tier and the part that is read; items are (rows, bytes)."""
    return {
        what: len(every),
        "rows": sum(rows for rows, _ in every),
        "bytes": sum(size for _, size in every),
        f"{what}_pruned": len(every) - len(read),
        f"{what}_read": len(read),
        "rows_read": sum(rows for rows, _ in read),
        "bytes_read": sum(size for _, size in read),
    }


def _lookup_facts(keys: int, found: Sequence[FoundRow]) -> dict[str, Any]:
    """Return the tiers and files of the rows that were looked up.

    A file counts if its offsets include a row's. If several files overlap, one of them has the row.
    """
    in_memory = [each for each in found if each.row["_offset"] >= each.snapshot.cut]
    on_disk = [each for each in found if each.row["_offset"] < each.snapshot.cut]
    files = {
        file.name: file.bytes
        for snapshot, row in on_disk
        for file in snapshot.files
        if file.offset_first <= row["_offset"] <= file.offset_last
    }
    return {
        "keys": keys,
        "rows_found": len(found),
        "found": {
            "memory_rows": len(in_memory),
            "disk_rows": len(on_disk),
            "files": sorted(files),
            "file_bytes": sum(files.values()),
        },
    }


_HUGE: Final = frozenset({"HUGEINT", "UHUGEINT"})


class QueryEngine:
    """Answers SQL about the topics of `sources`. All methods may be called from any thread.

    `result_bytes_ahead` is the number of bytes of a result that are read before the caller gets
    it. `admit` is called before a query that scans begins and raises to refuse it. A statement
    that only looks up keys is always admitted.
    """

    def __init__(
        self,
        sources: EngineSources,
        limits: PoolLimits,
        *,
        clock: Clock,
        result_bytes_ahead: int = 64 * 1024 * 1024,
        admit: Callable[[], None] = lambda: None,
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._bytes_ahead = result_bytes_ahead
        self._timeout_s = limits.timeout_s
        self._admit = admit
        # By the query's id. Finalizers remove entries, so all calls must work without a lock.
        self._ahead: dict[int, int] = {}
        self._prefix = f"__frazil_{clock.random_bytes(8).hex()}_"
        self._pool = Pool(limits, clock)
        self._plans = Planner(sources, self._prefix)

    def query(
        self,
        sql: str,
        params: object = None,
        *,
        as_of_offset: Any = None,
        as_of_time: Any = None,
        min_offset: Any = None,
        timeout_s: float | None = None,
        on_begin: Callable[[int], None] | None = None,
    ) -> Result:
        """Run one read-only statement and return its rows.

        `params` is a list for `?` and `$1`, a mapping for `$name`. `as_of_offset` and `as_of_time`
        read the past, `min_offset` waits for a record that was acknowledged. `on_begin` gets
        the id for `cancel` of a query that scans, before the query waits for anything.

        Raises:
            InvalidRequest: if the statement is not allowed or wrong.
            NotFound: if it names a table that does not exist.
            Overloaded: if too many queries run, or it needs too much memory.
            Unavailable: if it took too long or was cancelled.
        """
        check_timeout(timeout_s)
        is_now = as_of_offset is None and as_of_time is None
        if is_now and not params and (templated := self._plans.templated(sql)) is not None:
            found = self._look_up(*templated, min_offset, timeout_s)
            if found is not None:
                return found
        plan = self._plans.plan(sql)
        params = settled_params(params)
        values = plan.bind(params)
        if is_now and plan.point is not None:
            found = self._look_up(plan, values, min_offset, timeout_s)
            if found is not None:
                return found
        at = {"as_of_offset": as_of_offset, "as_of_time": as_of_time, "min_offset": min_offset}
        self._admit()
        lease = self._pool.enter(sql, timeout_s)
        try:
            if on_begin is not None:
                on_begin(lease.id)
            return self._result(lease, self._prepare(lease, plan, values, at), params)
        except BaseException:
            self._pool.release(lease)
            raise

    def explain(
        self,
        sql: str,
        params: object = None,
        *,
        as_of_offset: Any = None,
        as_of_time: Any = None,
        min_offset: Any = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Plan a query; return the tiers, files, rows and bytes that it would read or prune.

        The query is planned at a new snapshot and not run. Keys are looked up to locate their
        rows. `path` is "index" if all tables are looked up by key, else "scan". `tables` has one
        entry for each topic that the statement names; `plan` is DuckDB's plan. Raises the same
        errors as `query`.
        """
        plan = self._plans.plan(sql)
        params = settled_params(params)
        values = plan.bind(params)
        at = {"as_of_offset": as_of_offset, "as_of_time": as_of_time, "min_offset": min_offset}
        lease = self._pool.enter(sql, timeout_s)
        try:
            prepared = self._prepare(lease, plan, values, at)
            text = self._guarded(prepared, lease, lambda: _explain_text(lease, prepared, params))
            return explained_scan(plan, prepared, text)
        finally:
            self._pool.release(lease)

    def bytes_ahead(self) -> int:
        """Return the bytes of results that were read ahead and not yet freed."""
        return sum(list(self._ahead.values()))

    def running(self) -> list[RunningQuery]:
        """Return the queries that run now or whose results are being read, oldest first."""
        return self._pool.running()

    def cancel(self, query_id: int) -> bool:
        """Stop one query; its caller gets `Unavailable`. Return whether it was running."""
        return self._pool.cancel(query_id, "cancelled by the caller") > 0

    def cancel_all(self, reason: str = "cancelled by the engine") -> int:
        """Stop all queries; their callers get `Unavailable`. Return the number of queries."""
        return self._pool.cancel(None, reason)

    def close(self) -> None:
        """Stop all queries and close DuckDB; results that were read ahead stay readable."""
        self._pool.close()
        self._plans.close()

    def _prepare(
        self, lease: Lease, plan: Plan, values: Mapping[str, Any], at: Mapping[str, Any]
    ) -> Prepared:
        """Wait for offsets, then for a slot; take the snapshots and build the relations."""
        wanted, min_offset = plan.wanted(), at["min_offset"]
        if min_offset is not None:
            with watching(self._late(lease.begun, lease.deadline, lease.check)):
                self._sources.wait(wanted, min_offset)
        self._pool.admit(lease)
        with watching(lease.check):
            snapshots = self._sources.snapshot(wanted, **at)
            lease.pins += chain.from_iterable(snapshots.values())
            lease.check()
            prepared = prepare(
                plan,
                values,
                _fold(plan, values, lease),
                snapshots,
                prefix=self._prefix,
                catalog=lambda name: catalog_table(name, self._sources.topics()),
            )
        for name, table in prepared.tables.tables.items():
            lease.connection.register(name, table)
        lease.check()
        return prepared

    def _look_up(
        self,
        plan: Plan,
        values: Mapping[str, Any],
        min_offset: Any,
        timeout_s: float | None,
    ) -> Result | None:
        """Answer from the index; None if the values must be compared as DuckDB does."""
        point = plan.point
        assert point is not None
        keys = keys_of(point.key, values, ())
        rows_max = point.rows_max(values)
        if keys is None or rows_max is None:
            return None
        # A look-up needs no lease.
        begun = self._clock.monotonic()
        deadline = begun + (self._timeout_s if timeout_s is None else timeout_s)
        with watching(self._late(begun, deadline)):
            found = self._sources.lookup(point.topic, keys, min_offset=min_offset) if keys else ()
        columns = [column for _, column in point.shown]
        rows = [tuple([row[each.name] for each in columns]) for row in found if row is not None]
        return Result.of_rows(plan.schema, [each.type for each in columns], rows[:rows_max])

    def _late(
        self, begun: float, deadline: float, check: Callable[[], None] = lambda: None
    ) -> Callable[[], None]:
        """Return a function that runs a check, then raises if the time limit has passed."""

        def late() -> None:
            check()
            now = self._clock.monotonic()
            if now > deadline:
                raise too_late(now - begun)

        return late

    def _result(self, lease: Lease, prepared: Prepared, params: object) -> Result:
        done = self._guarded(
            prepared, lease, lambda: lease.connection.execute(prepared.text, params or None)
        )
        integers = frozenset(
            index for index, column in enumerate(done.description) if str(column[1]) in _HUGE
        )
        reader = self._guarded(prepared, lease, lambda: done.to_arrow_reader(BATCH_ROWS))
        failure = partial(query_failure, lease=lease, files=prepared.paths)
        stream = Stream(reader, failure, partial(self._pool.release, lease), self._pool.defer)
        forget = partial(self._ahead.pop, lease.id, None)
        batches = []
        size = 0
        try:
            while size <= self._bytes_ahead and (batch := stream.read()) is not None:
                batches.append(batch)
                size += batch.nbytes
                self._ahead[lease.id] = size
        except BaseException:
            forget()
            raise
        left = None if stream.closed else stream
        if left is not None:
            lease.on_stop = left.close_if_idle
        return Result(
            stream.schema,
            batches,
            stream=left,
            why_stopped=lambda: lease.stopped,
            integers=integers,
            forget=forget,
        )

    def _guarded(self, prepared: Prepared, lease: Lease, work: Callable[[], Any]) -> Any:
        """Call DuckDB and convert its errors."""
        import duckdb

        try:
            return work()
        except (duckdb.Error, OSError) as error:
            raise query_failure(error, lease=lease, files=prepared.paths) from error


def _fold(plan: Plan, values: Mapping[str, Any], lease: Lease) -> list[Any]:
    """Evaluate the constants in DuckDB; if one of them fails, none is known.

    The transaction stays open: `now()` in the query must equal the `now()` of the constants.
    """
    if not plan.fold_text:
        return []
    import duckdb

    connection = lease.connection
    given = {name: values[name] for name in plan.fold_parameters}
    connection.execute("BEGIN")
    try:
        table = connection.execute(plan.fold_text, given or None).to_arrow_table()
    except duckdb.Error:
        # If the query evaluates the constant, it raises the error itself.
        connection.execute("ROLLBACK")
        return []
    return [folded_value(column[0]) for column in table.columns]


def _explain_text(lease: Lease, prepared: Prepared, params: object) -> str:
    rows = lease.connection.execute(f"EXPLAIN {prepared.text}", params or None).fetchall()
    return "\n".join(str(row[-1]) for row in rows)
