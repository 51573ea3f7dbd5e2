"""What a query would read, as a dictionary for people and programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frazil.query.relations import relation_facts
from frazil.query.views import LOG_SUFFIX

if TYPE_CHECKING:
    from frazil.query.plan import Plan
    from frazil.query.point import PointPlan
    from frazil.query.prepared import FoundRow, Prepared, TableRead
    from frazil.query.sources import TopicName, TopicSnapshot

__all__ = ["explained_point", "explained_scan"]


def explained_point(
    point: PointPlan, keys: Sequence[object], found: Sequence[FoundRow]
) -> dict[str, Any]:
    """Describe a look-up by key, which asks the index and reads the rows that it finds."""
    table = {
        "topic": "/".join(("", *point.topic)),
        "log": False,
        "columns": [column.name for _, column in point.shown],
        **_looked_up(len(keys), found),
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
    by_key = bool(prepared.reads) and all(read.keys is not None for read in prepared.reads)
    path = "index" if by_key and not catalog else "scan"
    return {"path": path, "tables": tables, "catalog": catalog, "plan": text}


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
        found |= _looked_up(read.keys, read.found)
    return found


def _looked_up(keys: int, found: Sequence[FoundRow]) -> dict[str, Any]:
    """Tell where rows lie that were looked up.

    Files are those whose offsets include a row's: of several that overlap one has it.
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
