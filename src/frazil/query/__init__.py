"""One SQL over all tiers: DuckDB runs the SQL; this package checks it and selects its data."""

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
