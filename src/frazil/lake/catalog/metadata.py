"""Table metadata as raw JSON: a new table, and one read from a file in its complete form. Pure.

Raw, because unknown fields must survive a commit unchanged; complete, because older files may lack
fields of newer ones.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from frazil.lake.catalog.refusals import bad_request
from frazil.lake.catalog.schemas import (
    PARTITION_FIELD_ID_FIRST,
    Json,
    bound_fields,
    check_schema,
    id_highest,
    spec_fields,
    with_fresh_ids,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "FORMAT_VERSIONS",
    "FORMAT_VERSION_DEFAULT",
    "MAIN",
    "RESERVED",
    "SEPARATOR",
    "completed",
    "format_version_of",
    "joined",
    "levels",
    "new_table",
    "path_part",
    "skeleton",
    "table_name",
]

MAIN: Final = "main"
FORMAT_VERSION_DEFAULT: Final = 2
FORMAT_VERSIONS: Final = (2, 3)
UNSORTED: Final[Json] = {"order-id": 0, "fields": []}
RESERVED: Final = frozenset(
    {
        "format-version",
        "uuid",
        "snapshot-count",
        "current-snapshot-summary",
        "current-snapshot-id",
        "current-snapshot-timestamp-ms",
        "current-schema",
        "default-partition-spec",
        "default-sort-order",
    }
)
"""Reserved properties: they set parts of the metadata and are never stored as properties."""
PERSISTED: Final = {"write.parquet.compression-codec": "zstd"}
"""The properties that the reference catalog writes into a new table by default."""


def format_version_of(properties: Mapping[str, str]) -> int:
    """Return the format version that a new table's properties request."""
    text = properties.get("format-version", str(FORMAT_VERSION_DEFAULT))
    if text not in map(str, FORMAT_VERSIONS):
        raise bad_request("format version is not supported", format_version=text, versions="2, 3")
    return int(text)


def skeleton(*, format_version: int, uuid: str, now_ms: int) -> Json:
    """Return metadata without anything: the start of a staged table's first commit.

    As in the reference, the first schema, spec and order are the current ones unless the commit
    sets others: DuckDB omits that.
    """
    return {
        "format-version": format_version,
        "table-uuid": uuid,
        "location": "",
        "last-sequence-number": 0,
        "last-updated-ms": now_ms,
        "last-column-id": 0,
        "current-schema-id": 0,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [],
        "last-partition-id": PARTITION_FIELD_ID_FIRST - 1,
        "default-sort-order-id": 0,
        "sort-orders": [],
        "properties": {},
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "statistics": [],
        "partition-statistics": [],
        "snapshot-log": [],
        "metadata-log": [],
        **({"next-row-id": 0} if format_version >= 3 else {}),
    }


def new_table(
    *,
    schema: Json,
    spec: Json | None,
    order: Json | None,
    location: str,
    properties: Mapping[str, str],
    uuid: str,
    now_ms: int,
) -> Json:
    """Return the first metadata of a table: all ids are fresh, properties without reserved ones."""
    version = format_version_of(properties)
    check_schema(schema)
    fresh, renumbered = with_fresh_ids(schema)
    partition = bound_fields((spec or {}).get("fields", ()), renumbered, what="partition")
    for field in partition:
        field.pop("field-id", None)
    fields, partition_id_last = spec_fields(
        partition, earlier=(), last_id=PARTITION_FIELD_ID_FIRST - 1
    )
    sorting = bound_fields((order or {}).get("fields", ()), renumbered, what="sort")
    order_id = 1 if sorting else 0
    kept = {key: value for key, value in properties.items() if key not in RESERVED}
    return {
        **skeleton(format_version=version, uuid=uuid, now_ms=now_ms),
        "location": location,
        "last-column-id": id_highest(fresh),
        "current-schema-id": 0,
        "schemas": [{**fresh, "schema-id": 0}],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": fields}],
        "last-partition-id": partition_id_last,
        "default-sort-order-id": order_id,
        "sort-orders": [{"order-id": order_id, "fields": sorting}],
        "properties": {**PERSISTED, **kept},
    }


def completed(metadata: Json) -> Json:
    """Return metadata from a file, completed with the fields that older writers omit.

    Raises:
        Refusal: it is not a table's metadata, or has an unknown version.
    """
    version = metadata.get("format-version")
    if version not in FORMAT_VERSIONS:
        raise bad_request("metadata has a format version that is not supported", found=version)
    missing = [key for key in _REQUIRED if metadata.get(key) in (None, "", [])]
    if missing:
        raise bad_request("metadata is not complete", missing=",".join(missing))
    made = {**metadata}
    for key, default in _DEFAULTS.items():
        if made.get(key) is None:
            made[key] = default
    if version >= 3:
        made.setdefault("next-row-id", 0)
    current = made["current-snapshot-id"]
    if current == -1:
        made["current-snapshot-id"] = None
    elif current is not None and MAIN not in made["refs"]:
        made["refs"] = {MAIN: {"snapshot-id": current, "type": "branch"}, **made["refs"]}
    return made


_DEFAULTS: Final[Json] = {
    "last-sequence-number": 0,
    "last-updated-ms": 0,
    "sort-orders": [UNSORTED],
    "default-sort-order-id": 0,
    "snapshots": [],
    "statistics": [],
    "partition-statistics": [],
    "snapshot-log": [],
    "metadata-log": [],
    "properties": {},
    "current-snapshot-id": None,
    "refs": {},
}
"""Never changed: a commit replaces lists and dictionaries."""
_REQUIRED: Final = (
    *("location", "table-uuid", "schemas", "current-schema-id", "last-column-id"),
    *("partition-specs", "default-spec-id", "last-partition-id"),
)


SEPARATOR: Final = "\x1f"
"""The separator of namespace levels in a URL path; the catalog's rows use a dot."""
NAME_CHARACTERS_MAX: Final = 255
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def _check(name: str, what: str) -> str:
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise bad_request(
            f"{what} must have 1 to {NAME_CHARACTERS_MAX} characters", name=name, has=len(name)
        )
    if not name.isprintable() or "/" in name or "\\" in name or name in {".", ".."}:
        raise bad_request(f"{what} has a character that names cannot have", name=name)
    return name


def joined(parts: Sequence[str]) -> str:
    """Return a namespace as a row has it.

    Raises:
        Refusal: it is empty, too long, or has a level with a dot.
    """
    for part in parts:
        _check(part, "level of a namespace")
        if "." in part:
            raise bad_request("level of a namespace cannot have a dot", name=part)
    return _check(".".join(parts), "namespace")


def levels(namespace: str) -> list[str]:
    """Return the levels of a namespace in a row."""
    return namespace.split(".")


def table_name(name: str) -> str:
    """Return a table's name if it is one.

    Raises:
        Refusal: it is not.
    """
    return _check(name, "name of a table")


def path_part(name: str) -> str:
    """Return a name as part of a path on every disk."""
    return _UNFIT.sub("_", name)[:100]
