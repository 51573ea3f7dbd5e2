"""What a query would read, as a dictionary for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frazil.query.relations import relation_facts
from frazil.query.views import LOG_SUFFIX

if TYPE_CHECKING:
    from frazil.query.plan import Plan
    from frazil.query.point import PointPlan
    from frazil.query.prepared import Prepared, TableRead
    from frazil.query.sources import TopicName, TopicSnapshot

__all__ = ["explained_point", "explained_scan"]


def explained_point(point: PointPlan, keys: Sequence[object]) -> dict[str, Any]:
    """Describe a look-up by key, which asks the index and nothing else."""
    table = {
        "topic": "/".join(("", *point.topic)),
        "log": False,
        "columns": [column.name for _, column in point.shown],
        "keys": len(keys),
    }
    return {"path": "index", "tables": [table], "plan": ""}


def explained_scan(
    plan: Plan,
    prepared: Prepared,
    snapshots: Mapping[TopicName, Sequence[TopicSnapshot]],
    text: str,
) -> dict[str, Any]:
    """Describe a query that DuckDB runs; `text` is its plan."""
    tables = [_table(read, snapshots[read.use.topic]) for read in prepared.reads]
    catalog = [use.catalog for use in plan.uses if use.catalog]
    return {"path": "scan", "tables": tables, "catalog": catalog, "plan": text}


def _table(read: TableRead, snapshots: Sequence[TopicSnapshot]) -> dict[str, Any]:
    use = read.use
    namespace, name = use.topic
    facts = relation_facts(snapshots, read.chunks, read.files)
    found: dict[str, Any] = {
        "topic": f"/{namespace}/{name}",
        "view": name + LOG_SUFFIX if use.log else name,
        "log": use.log,
        "columns": [column.name for column in use.columns],
        "conditions": read.limits.describe(),
        "snapshot": [
            {"part": snapshot.part, "end": snapshot.end, "cut": snapshot.cut}
            for snapshot in snapshots
        ],
        "memory": facts.memory.as_dict("chunks"),
        "disk": facts.disk.as_dict("files") | {"names_read": facts.files_read},
    }
    if read.keys is not None:
        found["keys"] = read.keys
        found["rows_found"] = read.rows_found
    return found
