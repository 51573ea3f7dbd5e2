"""What an engine can do with its tiers: SQL over all of them, flush, evict, look at the files."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from frazil.engine.registry import Registry
from frazil.errors import InvalidRequest, NotFound, Overloaded
from frazil.query import EngineSources
from frazil.tiers import RED, RETRY_AFTER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.query import QueryEngine, Result
    from frazil.tiers import Tiers, TopicTiers


class TierCalls(Registry):
    """The calls of an engine that need memory and disk."""

    _query_engine: QueryEngine | None = None

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
        self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None, **options: Any
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
        """Return what runs SQL; made at the first call.

        Raises:
            InvalidRequest: if DuckDB is not installed, or there is no memory tier.
        """
        self._check_open()
        self._tiers()
        with self._control:
            if self._query_engine is None:
                made = self._query_engine = self._new_query_engine()
                pressure = self._tiers().pressure
                pressure.add_source("queries", made.bytes_ahead)
                pressure.on_red(self._cancel_for_memory)
            return self._query_engine

    def _new_query_engine(self) -> QueryEngine:
        try:
            from frazil.query import PoolLimits, QueryEngine
        except ImportError as error:
            raise InvalidRequest("SQL needs DuckDB, install frazil[query]", error=error) from error
        query = self.settings.query
        self._clear_spilled()
        limits = PoolLimits(
            directories=[self.paths.disk],
            temp_directory=self._spill_path,
            threads=query.threads,
            memory_bytes=query.memory_bytes,
            memory_each_bytes=query.memory_each_bytes,
            concurrency_max=query.concurrency_max,
            wait_s=query.wait_s,
            timeout_s=query.timeout_s,
        )
        return QueryEngine(
            EngineSources(self),
            limits,
            clock=self.clock,
            result_bytes_ahead=query.result_bytes_ahead,
            admit=self._admit_query,
        )

    def _admit_query(self) -> None:
        pressure = self._tiers().pressure
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

    @property
    def _spill_path(self) -> str:
        return f"{self.paths.run}/duckdb"

    def _clear_spilled(self) -> None:
        """Remove what queries of a process that was killed had spilled to disk."""
        with contextlib.suppress(OSError):
            for directory in self.file_system.list_directory(self.paths.run):
                path = f"{self.paths.run}/{directory}"
                if path == self._spill_path or path.startswith(f"{self._spill_path}-"):
                    self._clear_directory(path)

    def _clear_directory(self, path: str) -> None:
        with contextlib.suppress(OSError):
            for name in self.file_system.list_directory(path):
                with contextlib.suppress(OSError):
                    self.file_system.unlink(f"{path}/{name}")

    def _cancel_for_memory(self) -> None:
        if self._query_engine is not None:
            self._query_engine.cancel_all("memory is short, publishes come first")

    def _tiers(self) -> Tiers:
        if self.tiers is None:
            raise InvalidRequest("this needs the memory tier, set memory.enabled")
        # In a forked child the files, and the threads that move records, are the parent's.
        self.tiers.disk.catalog.check_owner()
        return self.tiers

    # -- tiers -----------------------------------------------------------------------------------

    def flush(self, name: str | None = None) -> dict[str, int]:
        """Write what memory holds of one topic, or of all, to files; return how far each got.

        Raises:
            Closed: in a forked child, which must open the directory for itself.
        """
        return self._moved(name, lambda topic: topic.flush())

    def evict(self, name: str | None = None) -> dict[str, int]:
        """Drop from memory what files have, and files beyond the cap that are held elsewhere.

        Returns the bytes that memory gave up, by topic.
        """
        tiers = self._tiers()
        freed = self._moved(name, lambda topic: topic.evict(before_us=None))
        tiers.retention.check_cap()
        return freed

    def _moved(self, name: str | None, move: Callable[[TopicTiers], int]) -> dict[str, int]:
        """Move records of one topic, or of all that are still there when it is their turn."""
        self._check_open()
        tiers = self._tiers()
        moved: dict[str, int] = {}
        for runtime in self.runtimes if name is None else self.parts_of(name):
            try:
                moved[runtime.name] = move(tiers.topic(runtime.state.id))
            except NotFound as error:
                if name is not None or self._topics.get(runtime.name) is runtime:
                    raise NotFound("no such topic, it was deleted", topic=runtime.name) from error
        return moved

    def tier_files(self, name: str) -> list[dict[str, Any]]:
        """Describe the files of a topic."""
        tiers = self._tiers()
        found: list[dict[str, Any]] = []
        for runtime in self.parts_of(name):
            committed = tiers.disk.committed(runtime.state.id)
            purpose_of = tiers.disk.space.purpose_of
            found += [
                {
                    "topic": runtime.name,
                    "file": file.name,
                    "offset_first": file.offset_first,
                    "offset_last": file.offset_last,
                    "rows": file.rows,
                    "bytes": file.size,
                    "partition": file.partition,
                    "schema": file.schema,
                    "deletes": file.deletes,
                    "purpose": purpose_of(file, committed=file.set_end <= committed),
                }
                for file in tiers.disk.files(runtime.state.id)
            ]
        return found

    def close(self) -> None:
        """Commit what waits, sync, close everything; closing twice is fine."""
        # A forked child has no threads that could end the queries, and no right to their files.
        if self._query_engine is not None and os.getpid() == self._process:
            self._query_engine.close()
        super().close()
