"""SQL and the tiers under asyncio: everything runs in a thread, and a cancelled query is stopped."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.engine.engine import Engine
    from frazil.query import QueryEngine, Result


class AsyncTierCalls:
    """The calls of an engine that need memory and disk; see `Engine` for each."""

    engine: Engine

    async def query(
        self,
        sql: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        *,
        as_of_offset: Any = None,
        as_of_time: Any = None,
        min_offset: Any = None,
        timeout_s: float | None = None,
    ) -> Result:
        """Run one read statement of SQL over all topics; see `Engine.query`.

        Cancelling the task stops the query. A result of more than `query.result_bytes_ahead` is
        read on as its rows are asked for: do that in a thread.
        """
        run = _Run()
        working = asyncio.ensure_future(
            asyncio.to_thread(
                run.query,
                self.engine,
                sql,
                params,
                as_of_offset=as_of_offset,
                as_of_time=as_of_time,
                min_offset=min_offset,
                timeout_s=timeout_s,
            )
        )
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            working.add_done_callback(_let_go)
            run.cancel()
            raise

    async def explain(
        self, sql: str, params: Sequence[Any] | Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Say which tiers, files, rows and bytes a query considers and reads."""
        return await asyncio.to_thread(self.engine.explain, sql, params, **options)

    async def flush(self, name: str | None = None) -> dict[str, int]:
        """Write what memory holds of one topic, or of all, to files; return how far each got."""
        return await asyncio.to_thread(self.engine.flush, name)

    async def evict(self, name: str | None = None) -> dict[str, int]:
        """Drop from memory what files have; return the bytes by topic."""
        return await asyncio.to_thread(self.engine.evict, name)


class _Run:
    """One query in a thread, which the loop's thread may stop at any time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: QueryEngine | None = None
        self._id: int | None = None
        self._cancelled = False

    def query(self, engine: Engine, sql: str, params: Any, **options: Any) -> Result:
        self._queries = engine.queries()
        return self._queries.query(sql, params, on_begin=self._begun, **options)

    def _begun(self, query_id: int) -> None:
        with self._lock:
            self._id = query_id
            cancelled = self._cancelled
        if cancelled:
            # The task was cancelled while the query waited for its turn.
            self._stop()

    def cancel(self) -> None:
        """Stop the query, as soon as it begins if it has not yet."""
        with self._lock:
            self._cancelled = True
            begun = self._id is not None
        if begun:
            self._stop()

    def _stop(self) -> None:
        assert self._queries is not None
        assert self._id is not None
        self._queries.cancel(self._id)


def _let_go(working: asyncio.Future[Result]) -> None:
    """Close the result that came too late; take note of an error that nobody waits for."""
    if not working.cancelled() and working.exception() is None:
        working.result().close()
