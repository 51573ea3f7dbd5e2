"""One SQL over all tiers: DuckDB does the SQL, this package decides what it may see and read."""

from __future__ import annotations

from frazil.query.engine import QueryEngine
from frazil.query.pool import PoolLimits, RunningQuery
from frazil.query.result import Result
from frazil.query.snapshots import EngineSnapshot, EngineSources

__all__ = [
    "EngineSnapshot",
    "EngineSources",
    "PoolLimits",
    "QueryEngine",
    "Result",
    "RunningQuery",
]
