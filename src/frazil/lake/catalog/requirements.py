"""Requirements: what a commit says must still be true of the table. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from frazil.lake.catalog.refusals import already_exists, bad_request, commit_failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from frazil.lake.catalog.schemas import Json

__all__ = ["Requirement", "check", "is_creation"]


class _Requirement(msgspec.Struct, tag_field="type", rename="kebab"):
    """One requirement; its tag is the specification's name."""


class AssertCreate(_Requirement, tag="assert-create"):
    """The table must not exist."""


class AssertTableUuid(_Requirement, tag="assert-table-uuid"):
    """The table must be this very one, not another of its name."""

    uuid: str


class AssertRefSnapshotId(_Requirement, tag="assert-ref-snapshot-id"):
    """A branch or tag must be at a snapshot, or not exist if that is null."""

    ref: str
    snapshot_id: int | None = None


class AssertLastAssignedFieldId(_Requirement, tag="assert-last-assigned-field-id"):
    """No column was added meanwhile."""

    last_assigned_field_id: int


class AssertCurrentSchemaId(_Requirement, tag="assert-current-schema-id"):
    """The current schema did not change."""

    current_schema_id: int


class AssertLastAssignedPartitionId(_Requirement, tag="assert-last-assigned-partition-id"):
    """No partition field was added meanwhile."""

    last_assigned_partition_id: int


class AssertDefaultSpecId(_Requirement, tag="assert-default-spec-id"):
    """The default partition spec did not change."""

    default_spec_id: int


class AssertDefaultSortOrderId(_Requirement, tag="assert-default-sort-order-id"):
    """The default sort order did not change."""

    default_sort_order_id: int


Requirement: TypeAlias = (
    AssertCreate
    | AssertTableUuid
    | AssertRefSnapshotId
    | AssertLastAssignedFieldId
    | AssertCurrentSchemaId
    | AssertLastAssignedPartitionId
    | AssertDefaultSpecId
    | AssertDefaultSortOrderId
)


def is_creation(requirements: Iterable[Requirement]) -> bool:
    """Tell whether a commit makes a new table."""
    return any(isinstance(requirement, AssertCreate) for requirement in requirements)


def check(requirements: Iterable[Requirement], metadata: Json | None, *, table: str) -> None:
    """Refuse a commit whose requirements are not true of `metadata`, None where there is no table.

    Raises:
        Refusal: 409, with what was required and what is there.
    """
    for requirement in requirements:
        if isinstance(requirement, AssertCreate):
            if metadata is not None:
                raise already_exists("requirement failed: table already exists", table=table)
        elif metadata is None:
            raise bad_request(
                "requirement has no meaning for a table that does not exist yet", table=table
            )
        elif isinstance(requirement, AssertTableUuid):
            _same(
                "table UUID does not match",
                requirement.uuid.lower(),
                str(metadata["table-uuid"]).lower(),
                table,
            )
        elif isinstance(requirement, AssertRefSnapshotId):
            _check_ref(requirement, metadata, table)
        else:
            _check_number(requirement, metadata, table)


def _same(message: str, expected: object, found: object, table: str) -> None:
    if expected != found:
        raise commit_failed(
            f"requirement failed: {message}", table=table, expected=expected, found=found
        )


def _check_ref(requirement: AssertRefSnapshotId, metadata: Json, table: str) -> None:
    name, expected = requirement.ref, requirement.snapshot_id
    ref = metadata["refs"].get(name)
    if ref is None:
        if expected is not None:
            raise commit_failed(
                "requirement failed: branch or tag is missing",
                table=table,
                ref=name,
                expected=expected,
            )
    elif expected is None:
        raise commit_failed(
            f"requirement failed: {ref['type']} was created concurrently",
            table=table,
            ref=name,
            found=ref["snapshot-id"],
        )
    elif ref["snapshot-id"] != expected:
        raise commit_failed(
            f"requirement failed: {ref['type']} has changed",
            table=table,
            ref=name,
            expected=expected,
            found=ref["snapshot-id"],
        )


def _check_number(requirement: Requirement, metadata: Json, table: str) -> None:
    match requirement:
        case AssertLastAssignedFieldId(expected):
            _same("last assigned field id has changed", expected, metadata["last-column-id"], table)
        case AssertCurrentSchemaId(expected):
            _same("current schema has changed", expected, metadata["current-schema-id"], table)
        case AssertLastAssignedPartitionId(expected):
            found = metadata["last-partition-id"]
            _same("last assigned partition id has changed", expected, found, table)
        case AssertDefaultSpecId(expected):
            _same(
                "default partition spec has changed", expected, metadata["default-spec-id"], table
            )
        case AssertDefaultSortOrderId(expected):
            found = metadata["default-sort-order-id"]
            _same("default sort order has changed", expected, found, table)
