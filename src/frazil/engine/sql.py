"""SQL over an engine: the first query starts DuckDB, within the memory budget."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from frazil.errors import InvalidRequest, Overloaded
from frazil.query import EngineSources
from frazil.tiers import RED, RETRY_AFTER_MS

if TYPE_CHECKING:
    from frazil.engine.engine import Engine
    from frazil.query import QueryEngine


class Sql:
    """The query engine of an engine; the first query creates it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._made: QueryEngine | None = None

    def engine(self) -> QueryEngine:
        """Return the query engine.

        Raises:
            InvalidRequest: if DuckDB is not installed, or there is no memory tier.
        """
        tiers = self._engine.tiers
        # In a forked child the files and the tiers' threads belong to the parent.
        tiers.disk.catalog.check_owner()
        with self._engine.control_lock:
            if self._made is None:
                self._made = self._new()
                tiers.pressure.add_source("queries", self._made.bytes_ahead)
                tiers.pressure.on_red(
                    lambda: self.cancel_all("memory is short, publishes come first")
                )
            return self._made

    def cancel_all(self, reason: str = "") -> None:
        """Cancel all running queries."""
        if self._made is not None:
            self._made.cancel_all(*([reason] if reason else []))

    def close(self) -> None:
        """Stop all queries and close DuckDB."""
        if self._made is not None:
            self._made.close()

    def _new(self) -> QueryEngine:
        try:
            from frazil.query import PoolLimits, QueryEngine
        except ImportError as error:
            raise InvalidRequest("SQL needs DuckDB, install frazil[query]", error=error) from error
        engine, query = self._engine, self._engine.settings.query
        spill_path = f"{engine.paths.run}/duckdb"
        self._clear_spilled(spill_path)
        limits = PoolLimits(
            directories=[engine.paths.disk],
            temp_directory=spill_path,
            threads=query.threads,
            memory_bytes=query.memory_bytes,
            concurrency_max=query.concurrency_max,
            timeout_s=query.timeout_s,
        )
        return QueryEngine(EngineSources(engine), limits, clock=engine.clock, admit=self._admit)

    def _admit(self) -> None:
        pressure = self._engine.tiers.pressure
        if pressure.level < RED:
            return
        # The zone may be out of date, so the current use of memory decides.
        pressure.recount()
        if pressure.level >= RED:
            raise Overloaded(
                "memory is nearly full and publishes come first, run the query again later",
                percent=round(pressure.percent, 1),
                retry_after_ms=RETRY_AFTER_MS,
            )

    def _clear_spilled(self, spill_path: str) -> None:
        """Remove the spill files of a killed process's queries."""
        files = self._engine.file_system
        directory, name_start = os.path.split(spill_path)
        with contextlib.suppress(OSError):
            for name in files.list_directory(directory):
                if name == name_start or name.startswith(f"{name_start}-"):
                    for spilled in files.list_directory(f"{directory}/{name}"):
                        files.unlink(f"{directory}/{name}/{spilled}")
