"""A plan meets a snapshot: the text that DuckDB runs, and the tables that it knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import define, field

from frazil.query.hot import HotChunk
from frazil.query.keys import Unfit, keys_of
from frazil.query.plan import PlannedUse
from frazil.query.pruning import Limits, limits_of
from frazil.query.relations import Registry, empty_relation, lookup_relation, topic_relation
from frazil.query.warm import WarmFile

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.query.plan import Plan
    from frazil.query.sources import TopicName, TopicSnapshot

__all__ = ["FoundRow", "Prepared", "TableRead", "found_rows", "prepare"]


class FoundRow(NamedTuple):
    """A row that was looked up by key, and the snapshot that has it."""

    snapshot: TopicSnapshot
    row: Mapping[str, Any]


@define(eq=False)
class TableRead:
    """What is read for one table of the statement; `keys` if they were looked up instead."""

    use: PlannedUse
    limits: Limits
    chunks: list[HotChunk] = field(factory=list)
    files: list[WarmFile] = field(factory=list)
    keys: int | None = None
    found: list[FoundRow] = field(factory=list)


@define(eq=False)
class Prepared:
    """A statement that can be run now."""

    text: str
    registry: Registry
    reads: list[TableRead]
    paths: list[str]


def prepare(
    plan: Plan,
    values: Mapping[str, Any],
    folded: Sequence[Any],
    snapshots: Mapping[TopicName, Sequence[TopicSnapshot]],
    *,
    prefix: str,
    catalog: Callable[[str], pa.Table],
) -> Prepared:
    """Make the relations of all tables of a plan."""
    registry = Registry(prefix)
    relations: list[str] = []
    reads: list[TableRead] = []
    for use in plan.uses:
        if use.info is None:
            relations.append(" ".join(("SELECT * FROM", registry.add(catalog(use.catalog)))))
            continue
        read = TableRead(use, limits_of(use.conditions, values, folded, use.info))
        reads.append(read)
        if use.described:
            relations.append(empty_relation(use.columns))
            continue
        relation = _looked_up(plan, read, snapshots[use.topic], values, folded, registry)
        if relation is None:
            relation, read.chunks, read.files = topic_relation(
                snapshots[use.topic],
                use.columns,
                read.limits,
                registry,
                keyed=bool(use.info.key_names),
                log=use.log,
                rules=plan.rules,
            )
        relations.append(relation)
    paths = [file.path for read in reads for file in read.files if file.path is not None]
    return Prepared(plan.text(relations), registry, reads, paths)


def found_rows(
    keys: Sequence[tuple[Any, ...]], snapshots: Sequence[TopicSnapshot]
) -> list[FoundRow]:
    """Look keys up in all parts of a topic."""
    return [
        FoundRow(snapshot, row)
        for snapshot in snapshots
        for row in (snapshot.get_many(keys) if keys else ())
        if row is not None
    ]


def _looked_up(
    plan: Plan,
    read: TableRead,
    snapshots: Sequence[TopicSnapshot],
    values: Mapping[str, Any],
    folded: Sequence[Any],
    registry: Registry,
) -> str | None:
    """Return the relation of the rows that the conditions name by key, None if they do not."""
    if read.use.key is None:
        return None
    keys = keys_of(read.use.key, values, folded)
    if isinstance(keys, Unfit):
        return None
    read.keys = len(keys)
    read.found = found_rows(keys, snapshots)
    rows = [(found.snapshot.part, found.row) for found in read.found]
    return lookup_relation(rows, read.use.columns, registry, rules=plan.rules)
