"""Frazil's basic types: names, ids, topics, acks. No I/O, no clock."""

from __future__ import annotations

import re
import unicodedata
from typing import Final, Literal, NewType

import msgspec

from frazil.errors import InvalidRequest

__all__ = [
    "NAMESPACES_AT_BOOT",
    "OP_DELETE",
    "OP_INSERT",
    "OP_NAMES",
    "OP_UPDATE",
    "OP_UPSERT",
    "WHOLE",
    "Ack",
    "AckLevel",
    "Lsn",
    "Offset",
    "OffsetRange",
    "OnFull",
    "PartitionField",
    "SegmentId",
    "SyncMode",
    "TopicId",
    "TopicKind",
    "TopicSpec",
    "UnknownKey",
    "full_topic_name",
    "part_name",
    "topic_uid",
]

NAMESPACES_AT_BOOT: Final = ("default", "system")
"""The namespaces that always exist."""
Offset = NewType("Offset", int)
Lsn = NewType("Lsn", int)
SegmentId = NewType("SegmentId", int)
TopicId = NewType("TopicId", int)

OP_INSERT: Final = 1
OP_UPDATE: Final = 2
OP_UPSERT: Final = 3
OP_DELETE: Final = 4
OP_NAMES: Final = {
    OP_INSERT: "insert",
    OP_UPDATE: "update",
    OP_UPSERT: "upsert",
    OP_DELETE: "delete",
}
"""The values of the column `_op` of a keyed topic's records; a frame without it holds upserts."""

WHOLE: Final = -1
"""The part number of a topic without partitions."""

SyncMode = Literal["periodic", "commit"]
AckLevel = Literal["received", "fsynced", "uploaded", "committed"]
TopicKind = Literal["message", "table"]
OnFull = Literal["block", "expire"]
UnknownKey = Literal["ignore", "error", "insert"]

NAME_PART_CHARACTERS_MAX: Final = 200
NAME_TEXT_CHARACTERS_MAX: Final = 2048
"""The limit for an unnormalised name: NFC makes a name shorter, by less than this allows for."""
NAMESPACE_DEFAULT: Final = "default"
_NAME_PART: Final = re.compile(r"[\w-]+\Z")
_PART_SUFFIX: Final = re.compile(r"-part-[0-9]+\Z")


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The result of a publish: the positions of its records.

    `offset` and `offset_last` are the first and last offset of the call's records in the topic;
    `lsn` is the position of their batch in the journal's order over all topics; `part` is the part
    of a partitioned topic that holds them.
    """

    offset: int
    offset_last: int
    lsn: int
    part: int = -1


class OffsetRange(msgspec.Struct, frozen=True, order=True):
    """A half-open range of offsets `[first, end)` and why it is special."""

    first: int
    end: int
    reason: str = ""


class PartitionField(msgspec.Struct, frozen=True):
    """One field of a table's partition spec: a transform of a column, e.g. `bucket[16]`."""

    column_id: int
    transform: str


class TopicSpec(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The whole definition of a topic except its columns, which are in versioned schemas.

    `partitions` > 0 makes it the parent of a partitioned topic; its parts are separate topics
    with `part_of` and `part_index` set. Columns are named by id, so that a rename is safe.
    None in a limit means "as in the settings".
    """

    id: int
    name: str
    kind: TopicKind
    created_us: int
    sync: SyncMode = "commit"
    primary_key: tuple[int, ...] = ()
    partition_by: tuple[PartitionField, ...] = ()
    partitions: int = 0
    part_of: int = 0
    part_index: int = -1
    retention_us: int | None = None
    retention_bytes: int | None = None
    on_full: OnFull | None = None
    version: int = 1
    deleted_us: int = 0
    unknown_key: UnknownKey = "ignore"
    """The meaning of an update or delete of an absent key."""
    signals: dict[str, float] | None = None
    """Limits of the data movement triggers that differ from the settings, by name."""
    lake: bool = False
    """Whether its records are moved into an Iceberg table."""
    sort_by: tuple[int, ...] = ()
    """The sort columns of its Iceberg table, ascending."""
    uid: str = ""
    """Identifies it among topics of the same name; `topic_uid` returns it for old topics, too."""
    objects: bool | None = None
    """Whether its frames are uploaded to the object store."""
    objects_retention_us: int | None = None
    objects_retention_bytes: int | None = None
    """The age and size up to which its objects are kept."""


def topic_uid(spec: TopicSpec) -> str:
    """Return the identity of a topic, assigned at its creation; parts share the whole topic's."""
    return spec.uid or f"{spec.created_us:016x}{spec.part_of or spec.id:08x}"


def full_topic_name(name: str) -> str:
    """Return `name` as `/namespace/name`, in NFC; a bare name is in the namespace `default`.

    Raises:
        InvalidRequest: if it is not two parts of letters, digits, `_` and `-`.
    """
    if not isinstance(name, str):
        raise InvalidRequest("topic name must be a string", got=type(name).__name__)
    if len(name) > NAME_TEXT_CHARACTERS_MAX:
        # Checked before normalisation, which takes hours for a few megabytes of accents.
        raise InvalidRequest("topic name is too long", characters_max=NAME_PART_CHARACTERS_MAX)
    text = unicodedata.normalize("NFC", name)
    if "/" not in text:
        text = f"/{NAMESPACE_DEFAULT}/{text}"
    parts = text.split("/")
    if len(parts) != 3 or parts[0]:
        raise InvalidRequest("topic name has the wrong shape, use /namespace/name", topic=name)
    for part in parts[1:]:
        _check_name_part(part, whole=name)
    return text


def _check_name_part(part: str, *, whole: str) -> None:
    if not part:
        raise InvalidRequest("topic name has an empty part, use /namespace/name", topic=whole)
    if len(part) > NAME_PART_CHARACTERS_MAX:
        raise InvalidRequest(
            "topic name is too long", topic=whole, characters_max=NAME_PART_CHARACTERS_MAX
        )
    if not _NAME_PART.match(part):
        raise InvalidRequest(
            "topic name may have letters, digits, '_' and '-' only, as /namespace/name",
            topic=whole,
        )


def part_name(name: str, index: int) -> str:
    """Return the name of part `index` of the partitioned topic `name`."""
    return f"{name}-part-{index}"


def is_part_name(name: str) -> bool:
    """Tell whether `name` looks like a part of a partitioned topic."""
    return _PART_SUFFIX.search(name) is not None
