"""The updates of the Iceberg REST specification, as they arrive in a commit.

The content of schemas, specs, orders, snapshots and statistics stays raw JSON.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = [
    "AddPartitionSpec",
    "AddSchema",
    "AddSnapshot",
    "AddSortOrder",
    "AssignUuid",
    "RemovePartitionSpecs",
    "RemovePartitionStatistics",
    "RemoveProperties",
    "RemoveSchemas",
    "RemoveSnapshotRef",
    "RemoveSnapshots",
    "RemoveStatistics",
    "SetCurrentSchema",
    "SetDefaultSortOrder",
    "SetDefaultSpec",
    "SetLocation",
    "SetPartitionStatistics",
    "SetProperties",
    "SetSnapshotRef",
    "SetStatistics",
    "Update",
    "UpgradeFormatVersion",
]


class _Update(msgspec.Struct, tag_field="action", rename="kebab"):
    """One update; its tag is the name in the specification."""


class AssignUuid(_Update, tag="assign-uuid"):
    """Set the UUID of a new table."""

    uuid: str


class UpgradeFormatVersion(_Update, tag="upgrade-format-version"):
    """Raise the format version."""

    format_version: int


class AddSchema(_Update, tag="add-schema"):
    """Add a schema; an equal one is found again."""

    schema: dict[str, Any]
    last_column_id: int | None = None


class SetCurrentSchema(_Update, tag="set-current-schema"):
    """Choose the schema for new rows; -1 is the one just added."""

    schema_id: int


class AddPartitionSpec(_Update, tag="add-spec"):
    """Add a partition spec; an equal one is found again."""

    spec: dict[str, Any]


class SetDefaultSpec(_Update, tag="set-default-spec"):
    """Choose the spec for new files; -1 is the one just added."""

    spec_id: int


class AddSortOrder(_Update, tag="add-sort-order"):
    """Add a sort order; an equal one is found again."""

    sort_order: dict[str, Any]


class SetDefaultSortOrder(_Update, tag="set-default-sort-order"):
    """Choose the order for new files; -1 is the one just added."""

    sort_order_id: int


class AddSnapshot(_Update, tag="add-snapshot"):
    """Add a snapshot; nothing points at it yet."""

    snapshot: dict[str, Any]


class SetSnapshotRef(_Update, tag="set-snapshot-ref"):
    """Let a branch or a tag point at a snapshot."""

    ref_name: str
    type: str
    snapshot_id: int
    max_ref_age_ms: int | None = None
    max_snapshot_age_ms: int | None = None
    min_snapshots_to_keep: int | None = None


class RemoveSnapshots(_Update, tag="remove-snapshots"):
    """Forget snapshots, with the refs and statistics that need them."""

    snapshot_ids: list[int]


class RemoveSnapshotRef(_Update, tag="remove-snapshot-ref"):
    """Drop a branch or a tag."""

    ref_name: str


class SetLocation(_Update, tag="set-location"):
    """Let new files go elsewhere."""

    location: str


class SetProperties(_Update, tag="set-properties"):
    """Set or replace properties."""

    updates: dict[str, str]


class RemoveProperties(_Update, tag="remove-properties"):
    """Drop properties."""

    removals: list[str]


class RemovePartitionSpecs(_Update, tag="remove-partition-specs"):
    """Forget specs that no file uses any more."""

    spec_ids: list[int]


class RemoveSchemas(_Update, tag="remove-schemas"):
    """Forget schemas that no snapshot uses any more."""

    schema_ids: list[int]


class SetStatistics(_Update, tag="set-statistics"):
    """Attach a statistics file to a snapshot, instead of the one it had."""

    statistics: dict[str, Any]


class SetPartitionStatistics(_Update, tag="set-partition-statistics"):
    """Attach a partition statistics file to a snapshot, instead of the one it had."""

    partition_statistics: dict[str, Any]


class RemoveStatistics(_Update, tag="remove-statistics"):
    """Detach a snapshot's statistics file."""

    snapshot_id: int


class RemovePartitionStatistics(_Update, tag="remove-partition-statistics"):
    """Detach a snapshot's partition statistics file."""

    snapshot_id: int


Update: TypeAlias = (
    AssignUuid
    | UpgradeFormatVersion
    | AddSchema
    | SetCurrentSchema
    | AddPartitionSpec
    | SetDefaultSpec
    | AddSortOrder
    | SetDefaultSortOrder
    | AddSnapshot
    | SetSnapshotRef
    | RemoveSnapshots
    | RemoveSnapshotRef
    | SetLocation
    | SetProperties
    | RemoveProperties
    | RemovePartitionSpecs
    | RemoveSchemas
    | SetStatistics
    | SetPartitionStatistics
    | RemoveStatistics
    | RemovePartitionStatistics
)
