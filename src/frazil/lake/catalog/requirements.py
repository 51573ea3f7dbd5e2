"""Requirements: the conditions of a commit on the table's current metadata. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from frazil.lake.catalog.refusals import already_exists, bad_request, commit_failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from frazil.lake.catalog.schemas import Json

__all__ = ["Requirement", "check", "is_creation"]

Kind: TypeAlias = Literal[
    "assert-create",
    "assert-table-uuid",
    "assert-ref-snapshot-id",
    "assert-last-assigned-field-id",
    "assert-current-schema-id",
    "assert-last-assigned-partition-id",
    "assert-default-spec-id",
    "assert-default-sort-order-id",
]
_NUMBERS: Final = {
    "assert-last-assigned-field-id": ("last_assigned_field_id", "last-column-id"),
    "assert-current-schema-id": ("current_schema_id", "current-schema-id"),
    "assert-last-assigned-partition-id": ("last_assigned_partition_id", "last-partition-id"),
    "assert-default-spec-id": ("default_spec_id", "default-spec-id"),
    "assert-default-sort-order-id": ("default_sort_order_id", "default-sort-order-id"),
}
"""The field of each requirement about a number, and the key of the metadata that it is about."""


class Requirement(msgspec.Struct, rename="kebab"):
    """One requirement; each type has the fields of the specification."""

    type: Kind
    uuid: str = ""
    ref: str = ""
    snapshot_id: int | None = None
    last_assigned_field_id: int | None = None
    current_schema_id: int | None = None
    last_assigned_partition_id: int | None = None
    default_spec_id: int | None = None
    default_sort_order_id: int | None = None


def is_creation(requirements: Iterable[Requirement]) -> bool:
    """Return whether a commit creates a table."""
    return any(requirement.type == "assert-create" for requirement in requirements)


def check(requirements: Iterable[Requirement], metadata: Json | None, *, table: str) -> None:
    """Refuse a commit whose requirements are not true of `metadata`, None where there is no table.

    Raises:
        Refusal: 409, with the required and the current value.
    """
    for requirement in requirements:
        if requirement.type == "assert-create":
            if metadata is not None:
                raise already_exists("requirement failed: table already exists", table=table)
            continue
        if metadata is None:
            raise bad_request(
                "requirement has no meaning for a table that does not exist yet", table=table
            )
        what, expected, found = _compared(requirement, metadata)
        if expected != found:
            raise commit_failed(
                f"requirement failed: {what} has changed",
                table=table,
                expected=expected,
                found=found,
            )


def _compared(requirement: Requirement, metadata: Json) -> tuple[str, Any, Any]:
    """Return the subject of a requirement, the value it expects, and the table's."""
    if requirement.type == "assert-table-uuid":
        return "table UUID", requirement.uuid.lower(), str(metadata["table-uuid"]).lower()
    if requirement.type == "assert-ref-snapshot-id":
        if not requirement.ref:
            raise bad_request("requirement names no ref", type=requirement.type)
        ref = metadata["refs"].get(requirement.ref, {})
        what = f"{ref.get('type', 'branch or tag')} {requirement.ref}"
        return what, requirement.snapshot_id, ref.get("snapshot-id")
    field, key = _NUMBERS[requirement.type]
    return key, getattr(requirement, field), metadata[key]
