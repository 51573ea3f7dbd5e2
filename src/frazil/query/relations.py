"""What a name of a topic stands for in one query: SQL over Arrow tables and files.

The text of a relation is the only place that names files; users never see it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from frazil.query.arrow_scan import scanned
from frazil.query.hot import LIVE, HotChunk, hot_table, kept_chunks, rows_table
from frazil.query.views import ViewColumn, quoted_name
from frazil.query.warm import OPERATION, WarmFile, file_groups, group_sql, kept_files, operation_sql

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.query.arrow_scan import ScanRules
    from frazil.query.pruning import Limits
    from frazil.query.sources import TopicSnapshot

__all__ = [
    "Registry",
    "RelationFacts",
    "TierFacts",
    "empty_relation",
    "lookup_relation",
    "relation_facts",
    "topic_relation",
]


class Registry:
    """The Arrow tables of one query, by the names under which its text knows them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.tables: dict[str, pa.Table] = {}

    def add(self, table: pa.Table) -> str:
        """Keep a table for the query and return its name."""
        name = f"{self._prefix}t{len(self.tables)}_"
        self.tables[name] = table
        return name


@define
class TierFacts:
    """What a tier has of a topic, and what of it the query reads."""

    items: int = 0
    rows: int = 0
    bytes: int = 0
    items_read: int = 0
    rows_read: int = 0
    bytes_read: int = 0

    def as_dict(self, what: str) -> dict[str, int]:
        """Return the facts for `explain`; `what` the tier is made of."""
        return {
            what: self.items,
            "rows": self.rows,
            "bytes": self.bytes,
            f"{what}_pruned": self.items - self.items_read,
            f"{what}_read": self.items_read,
            "rows_read": self.rows_read,
            "bytes_read": self.bytes_read,
        }


@define
class RelationFacts:
    """What stands behind one name of a topic in a query."""

    memory: TierFacts = field(factory=TierFacts)
    disk: TierFacts = field(factory=TierFacts)
    files_read: list[str] = field(factory=list)


def topic_relation(
    snapshots: Sequence[TopicSnapshot],
    columns: Sequence[ViewColumn],
    limits: Limits,
    registry: Registry,
    *,
    keyed: bool,
    log: bool,
    rules: ScanRules,
) -> tuple[str, list[HotChunk], list[WarmFile]]:
    """Return the SQL of the view, and which chunks and files it reads."""
    state = keyed and not log
    files = kept_files(snapshots, limits)
    by_part = any(column.name == "_part" for column in columns)
    branches = [
        group_sql(group, dead, columns, registry.add, keyed=keyed, rules=rules)
        for group, dead in file_groups(files, keyed=state, by_part=by_part)
    ]
    chunks = kept_chunks(snapshots, limits)
    whole = [hot for hot in chunks if not state or hot.chunk.live is None]
    marked = [hot for hot in chunks if state and hot.chunk.live is not None]
    for group, live in ((whole, False), (marked, True)):
        if group:
            branches.append(_hot_sql(group, columns, registry, keyed=keyed, live=live, rules=rules))
    if not branches:
        branches.append(empty_relation(columns))
    return " UNION ALL ".join(branches), chunks, files


def empty_relation(columns: Sequence[ViewColumn]) -> str:
    """Return the SQL of the view's columns without any row."""
    shown = ", ".join(
        f"CAST(NULL AS {column.sql_type}) AS {quoted_name(column.name)}" for column in columns
    )
    return f"SELECT {shown} WHERE false"


def lookup_relation(
    rows: Sequence[tuple[int | None, Any]],
    columns: Sequence[ViewColumn],
    registry: Registry,
    *,
    rules: ScanRules,
) -> str:
    """Return the SQL of a few rows that were found by key."""
    shown = ", ".join(scanned(c.name, c.type, rules) for c in columns)
    table = rows_table(rows, columns, rules=rules)
    return " ".join(("SELECT", shown, "FROM", registry.add(table)))


def relation_facts(
    snapshots: Sequence[TopicSnapshot], chunks: Sequence[HotChunk], files: Sequence[WarmFile]
) -> RelationFacts:
    """Count what there is and what is read of it."""
    facts = RelationFacts()
    for snapshot in snapshots:
        for chunk in snapshot.chunks:
            facts.memory.items += 1
            facts.memory.rows += chunk.batch.num_rows
            facts.memory.bytes += chunk.batch.nbytes
        for file in snapshot.files:
            if file.offset_first < snapshot.cut:
                facts.disk.items += 1
                facts.disk.rows += file.rows
                facts.disk.bytes += file.bytes
    for hot in chunks:
        facts.memory.items_read += 1
        facts.memory.rows_read += hot.chunk.batch.num_rows
        facts.memory.bytes_read += hot.chunk.batch.nbytes
    for warm in files:
        facts.disk.items_read += 1
        facts.disk.rows_read += warm.file.rows
        facts.disk.bytes_read += warm.file.bytes
        facts.files_read.append(warm.file.name)
    return facts


def _hot_sql(
    chunks: Sequence[HotChunk],
    columns: Sequence[ViewColumn],
    registry: Registry,
    *,
    keyed: bool,
    live: bool,
    rules: ScanRules,
) -> str:
    named = any(column.field is None and column.name == OPERATION for column in columns)
    table = hot_table(chunks, columns, operation=named and keyed, live=live, rules=rules)
    shown = ", ".join(_hot_expression(column, keyed=keyed, rules=rules) for column in columns)
    clauses = ["SELECT", shown, "FROM", registry.add(table)]
    if live:
        clauses += ["WHERE", LIVE]
    return " ".join(clauses)


def _hot_expression(column: ViewColumn, *, keyed: bool, rules: ScanRules) -> str:
    if column.field is None and column.name == OPERATION:
        name = operation_sql(OPERATION) if keyed else "'append'"
        return f"{name} AS {OPERATION}"
    return scanned(column.name, column.type, rules)
