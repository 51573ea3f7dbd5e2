"""Keep a table's metadata small: expire snapshots that nobody needs, never rows.

The property is set first: were the worker to die in between, or somebody else to expire what is
left, the table still tells its watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import CorruptionError
from frazil.lake.connection import load
from frazil.lake.expiry import METADATA_BYTES_MAX, SNAPSHOTS_MAX, SnapshotFact, expirable
from frazil.lake.look import view_of
from frazil.lake.table import end_key, ends_of
from frazil.lake.watermark import watermarks
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog

    from frazil.lake.plan import TableName
    from frazil.lake.spark_table import SparkTables

__all__ = ["Expired", "maintain"]

METADATA_PROPERTIES: Final = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
}
"""Old metadata files go with each commit; somebody may have taken these off the table."""
CALL_SNAPSHOTS_MAX: Final = 1000
"""So many snapshots are expired by one call; the next one takes the rest."""


class Expired(msgspec.Struct, frozen=True):
    """What maintenance found and did."""

    snapshots: int
    metadata_bytes: int
    expired: int = 0


class _Snapshot(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    snapshot_id: int
    parent_snapshot_id: int | None = None
    summary: dict[str, str] = {}


class _Reference(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    snapshot_id: int


class _Metadata(msgspec.Struct, frozen=True, rename="kebab"):
    current_snapshot_id: int | None = None
    snapshots: list[_Snapshot] = []
    refs: dict[str, _Reference] = {}
    properties: dict[str, str] = {}


def _unheard(step: str) -> None:
    """Take no notice of progress."""
    del step


def maintain(
    tables: SparkTables,
    catalog: Catalog,
    table: TableName,
    *,
    snapshots_max: int = SNAPSHOTS_MAX,
    metadata_bytes_max: int = METADATA_BYTES_MAX,
    progress: Callable[[str], None] = _unheard,
) -> Expired:
    """Expire snapshots of a table that has too many, or too much metadata.

    Raises:
        NotFound: there is no such table.
        Conflict: somebody else changed the table; try again later.
        CommitUnknown, Unavailable: the catalog failed; what happened is safe either way.
    """
    loaded = load(catalog, table)
    view = view_of(catalog, table, loaded)
    try:
        metadata = msgspec.json.decode(loaded.metadata, type=learnt(_Metadata))
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "metadata of the table cannot be read", table=table, reason=error
        ) from error
    chosen = expirable(
        [
            SnapshotFact(each.snapshot_id, each.parent_snapshot_id, ends_of(each.summary) or None)
            for each in metadata.snapshots
        ],
        current=view.sid,
        referenced={each.snapshot_id for each in metadata.refs.values()},
        metadata_bytes=view.metadata_bytes,
        snapshots_max=snapshots_max,
        metadata_bytes_max=metadata_bytes_max,
    )[:CALL_SNAPSHOTS_MAX]
    if view.strays:
        # Another topic's commit came late: its watermark must not become the table's property.
        chosen = []
    found = Expired(view.snapshots, view.metadata_bytes, len(chosen))
    if not chosen:
        return found
    marks, _conclusive = watermarks(view, {})
    properties = {end_key(part): str(end) for part, end in marks.items()}
    missing = METADATA_PROPERTIES.keys() - metadata.properties.keys()
    properties |= {key: METADATA_PROPERTIES[key] for key in missing}
    progress("property_setting")
    tables.set_property(table, properties)
    progress("property_set")
    tables.expire(table, chosen)
    progress("expired")
    return found
