"""Keep a table's metadata small: expire snapshots, never rows.

Iceberg writes all snapshots into each new metadata file, so a table without expiry writes with the
square of its commits. The data files of the remaining snapshots stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.lake.connection import load
from frazil.lake.iceberg import TableMetadata, parse_metadata
from frazil.lake.table import end_key
from frazil.lake.table_state import state_of
from frazil.lake.watermark import watermarks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyiceberg.catalog import Catalog

    from frazil.lake.iceberg import Snapshot
    from frazil.lake.plan import TableName
    from frazil.lake.spark_table import SparkTables
    from frazil.lake.table import Ends

__all__ = [
    "METADATA_BYTES_MAX",
    "SNAPSHOTS_MAX",
    "SNAPSHOTS_MIN",
    "expirable",
    "expire_snapshots",
]

SNAPSHOTS_MAX: Final = 500
METADATA_BYTES_MAX: Final = 1 << 20
SNAPSHOTS_MIN: Final = 20
"""The newest snapshots always stay, so that running readers and writers keep theirs."""
METADATA_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
"""Delete old metadata files with each commit; another program may have removed these properties."""
CALL_SNAPSHOTS_MAX: Final = 1000
"""One call expires at most so many snapshots; the next one continues."""


def expirable(
    metadata: TableMetadata,
    *,
    metadata_bytes: int,
    snapshots_max: int = SNAPSHOTS_MAX,
    snapshots_min: int = SNAPSHOTS_MIN,
    metadata_bytes_max: int = METADATA_BYTES_MAX,
) -> list[int]:
    """Return the snapshots to expire, oldest first; none while both limits hold.

    Once a limit is reached half of it stays, so that expiry is rare. These always stay: the newest
    `snapshots_min` of `main`, the heads of branches and tags, the newest with a watermark, for each
    part the newest that has its highest, and all of `main` above those: a snapshot can be reached
    only from its children. Without them only the table's property would have the watermark.

    The table's property must be set to its watermark before these are expired.
    """
    count = len(metadata.snapshots)
    if count <= snapshots_max and metadata_bytes <= metadata_bytes_max:
        return []
    share = metadata_bytes / max(count, 1)
    room = int(metadata_bytes_max / 2 / max(share, 1.0))
    keep = max(snapshots_min, min(snapshots_max // 2, room))
    line = list(metadata.ancestors())
    kept = {each.snapshot_id for each in line[: max(keep, _marked(line))]}
    kept |= {each.snapshot_id for each in metadata.refs.values()}
    return [each.snapshot_id for each in metadata.snapshots if each.snapshot_id not in kept]


def _marked(line: Sequence[Snapshot]) -> int:
    """Return how many of the newest snapshots are needed to have the watermark of every part."""
    ends = [each.ends for each in line]
    best: Ends = {}
    for each in ends:
        for part, end in each.items():
            best[part] = max(end, best.get(part, 0))
    needed = 0
    open_parts = set(best)
    for number, each in enumerate(ends, start=1):
        found = {part for part in open_parts if each.get(part) == best[part]}
        if found or (each and not needed):
            open_parts -= found
            needed = number
    return needed


def expire_snapshots(
    tables: SparkTables,
    catalog: Catalog,
    table: TableName,
    *,
    snapshots_max: int = SNAPSHOTS_MAX,
    metadata_bytes_max: int = METADATA_BYTES_MAX,
    progress: Callable[[str], None] = lambda _step: None,
) -> dict[str, int]:
    """Expire snapshots of a table that has too many, or too much metadata; return the figures.

    The property is set first, so the table keeps its watermark if the worker crashes in between, or
    if another program expires the remaining snapshots.

    Raises:
        NotFound: there is no such table.
        Conflict: another program changed the table; try again later.
        CommitUnknown, Unavailable: the catalog failed; both outcomes are safe.
    """
    loaded = load(catalog, table)
    view = state_of(catalog, table, loaded)
    metadata = parse_metadata(loaded.metadata, table)
    # A late commit of another topic: its watermark must not become the table's property.
    chosen = (
        []
        if view.strays
        else expirable(
            metadata,
            metadata_bytes=view.metadata_bytes,
            snapshots_max=snapshots_max,
            metadata_bytes_max=metadata_bytes_max,
        )[:CALL_SNAPSHOTS_MAX]
    )
    if chosen:
        marks, _conclusive = watermarks(view, {})
        properties = {end_key(part): str(end) for part, end in marks.items()}
        missing = METADATA_PROPERTIES.keys() - metadata.properties.keys()
        properties |= {key: METADATA_PROPERTIES[key] for key in missing}
        progress("property_setting")
        tables.set_property(table, properties)
        progress("property_set")
        tables.expire(table, chosen)
        progress("expired")
    return {
        "snapshots": view.snapshots,
        "metadata_bytes": view.metadata_bytes,
        "expired": len(chosen),
    }
