"""What the disk tier knows of one file: its name, its facts, the flush sets it stands for.

A flush writes a *set* of files for one contiguous range of offsets. Every file says in its footer
which set it belongs to and what its number in it is, so that a directory without any metadata
tells which sets are whole. `docs/internals/disk.md` has the names and the footer's fields.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from frazil.errors import CorruptionError
from frazil.log import OFFSET_FIELD, TIME_FIELD, SpecialRange
from frazil.schema import ID_KEYS
from frazil.struct_types import learnt
from frazil.tiers.disk.stats import ColumnRange

if TYPE_CHECKING:
    from frazil.tiers.disk.parquet_file import FileFacts
    from frazil.tiers.disk.stats import RangeValue

__all__ = [
    "MIXED",
    "DiskFile",
    "FileLabel",
    "Member",
    "SetName",
    "file_schema",
    "keys_name",
    "parse_name",
    "set_name",
    "user_schema",
]

LABEL_KEY: Final = "frazil"
LABEL_FORMAT: Final = 1
MIXED: Final = "*"
"""The partition of a file that has rows of several: a flush with too many partitions."""
SUFFIX: Final = ".parquet"
KEYS_SUFFIX: Final = ".keys"
TEMPORARY_SUFFIX: Final = ".tmp"
SYSTEM_ID_FIRST: Final = 2_147_480_000
FIELD_ID: Final = b"PARQUET:field_id"
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9]+)-([0-9a-f]{8})\.parquet\Z")

OP_FIELD: Final = pa.field("_op", pa.int8(), nullable=False)
PRESENT_FIELD: Final = pa.field("_present", pa.binary())


class SetName(NamedTuple):
    """What a file's name says: its set's range and id, and its number in the set."""

    first: int
    end: int
    number: int
    id: str


class Member(msgspec.Struct, frozen=True, array_like=True):
    """The place of a file in the set that one flush or one merge wrote.

    `set_files` is how many files the set has; 0 if that was not known when the file was written.
    A set has at least one file that knows. `name` is the file's name.
    """

    set_first: int
    set_end: int
    set_files: int
    name: str


class FileLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file says of itself in its footer beside its facts."""

    topic: int
    members: tuple[Member, ...]
    schema: int
    created_us: int
    partition: str = ""
    values: str = ""
    """The partition's values, msgpack in base64: JSON has no bytes."""
    key_ids: tuple[int, ...] = ()
    deltas: int = 0
    gaps: tuple[tuple[int, int, str, str], ...] = ()
    format: int = LABEL_FORMAT

    def to_metadata(self) -> dict[str, str]:
        """Return the entry of the footer."""
        return {LABEL_KEY: msgspec.json.encode(self).decode()}

    @classmethod
    def from_metadata(cls, metadata: dict[str, str]) -> FileLabel:
        """Decode the entry of a footer.

        Raises:
            CorruptionError: if there is none, or of a version that this program does not know.
        """
        try:
            label = msgspec.json.decode(metadata[LABEL_KEY], type=learnt(cls))
        except (KeyError, msgspec.MsgspecError, ValueError) as error:
            raise CorruptionError("file does not say what it holds", reason=error) from error
        if label.format != LABEL_FORMAT or len(label.members) != 1:
            raise CorruptionError("file has another format", format=label.format)
        return label


class DiskFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One registered file of the disk tier. Times are microseconds.

    `offset_first` and `offset_last` are those of its rows; a file without rows only keeps the gaps
    of its set. `gaps` are the declared and lost ranges of its sets, on one file of each set.
    """

    topic: int
    name: str
    members: tuple[Member, ...]
    offset_first: int
    offset_last: int
    rows: int
    bytes: int
    crc: int
    footer_crc: int
    schema: int
    created_us: int
    partition: str = ""
    partition_values: tuple[Any, ...] = ()
    time_first: int = 0
    time_last: int = 0
    columns: dict[str, ColumnRange] = {}
    deletes: int = 0
    partials: int = 0
    deltas: int = 0
    key_ids: tuple[int, ...] = ()
    key_bytes: int = 0
    """The size of the side file with the map of keys."""
    gaps: tuple[tuple[int, int, str, str], ...] = ()

    @property
    def set_first(self) -> int:
        """Return the first offset of the set it belongs to."""
        return self.members[0].set_first

    @property
    def set_end(self) -> int:
        """Return the offset behind the set it belongs to."""
        return self.members[0].set_end

    @property
    def dense(self) -> bool:
        """Tell whether it has every offset from its first to its last."""
        return self.rows == self.offset_last - self.offset_first + 1

    @property
    def size(self) -> int:
        """Return the bytes it takes on disk, with its side file."""
        return self.bytes + self.key_bytes

    @property
    def keyed(self) -> bool:
        """Tell whether its rows are changes of keys."""
        return bool(self.key_ids)

    @property
    def ranges(self) -> tuple[SpecialRange, ...]:
        """Return its gaps as the log knows them."""
        return tuple(SpecialRange(*gap) for gap in self.gaps)


def file_of(name: str, label: FileLabel, facts: FileFacts, *, key_bytes: int = 0) -> DiskFile:
    """Return the file that a footer describes."""
    empty = facts.rows == 0
    first = label.members[0].set_first
    return DiskFile(
        topic=label.topic,
        name=name,
        members=label.members,
        offset_first=first if empty else facts.offset_first,
        offset_last=first - 1 if empty else facts.offset_last,
        rows=facts.rows,
        bytes=facts.bytes,
        crc=facts.crc,
        footer_crc=facts.footer_crc,
        schema=label.schema,
        created_us=label.created_us,
        partition=label.partition,
        partition_values=_unpacked(label.values),
        time_first=facts.time_first,
        time_last=facts.time_last,
        columns=facts.columns,
        deletes=facts.deletes,
        partials=facts.partials,
        deltas=label.deltas,
        key_ids=label.key_ids,
        key_bytes=key_bytes,
        gaps=label.gaps,
    )


def packed_values(values: tuple[RangeValue, ...]) -> str:
    """Return a partition's values as text."""
    return base64.b64encode(msgspec.msgpack.encode(values)).decode() if values else ""


def _unpacked(text: str) -> tuple[RangeValue, ...]:
    if not text:
        return ()
    try:
        data = base64.b64decode(text, validate=True)
        return msgspec.msgpack.decode(data, type=tuple[Any, ...])
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptionError("partition of a file cannot be read", reason=error) from error


def set_name(name: SetName) -> str:
    """Return the name of a file."""
    return f"{name.first:016x}-{name.end:016x}-{name.number}-{name.id}{SUFFIX}"


def parse_name(text: str) -> SetName | None:
    """Return what a file's name says, None if it is no such name."""
    match = _NAME.match(text)
    if match is None:
        return None
    return SetName(int(match[1], 16), int(match[2], 16), int(match[3]), match[4])


def keys_name(name: str) -> str:
    """Return the name of a file's map of keys."""
    return name.removesuffix(SUFFIX) + KEYS_SUFFIX


def file_schema(schema: pa.Schema, *, keyed: bool) -> pa.Schema:
    """Return the columns of a file for a topic's columns: the system's first, all with ids."""
    system = [OFFSET_FIELD, TIME_FIELD, *((OP_FIELD, PRESENT_FIELD) if keyed else ())]
    numbered = [
        field.with_metadata({FIELD_ID: str(SYSTEM_ID_FIRST + number)})
        for number, field in enumerate(system)
    ]
    return pa.schema([*numbered, *map(_with_field_id, schema)])


def user_schema(schema: pa.Schema) -> pa.Schema:
    """Return the topic's columns of a file, without the system's."""
    names = {OFFSET_FIELD.name, TIME_FIELD.name, OP_FIELD.name, PRESENT_FIELD.name}
    return pa.schema([field for field in schema if field.name not in names])


def ids_of(schema: pa.Schema) -> list[int]:
    """Return the id of each column, negative where there is none."""
    return [_id_of(field, -1 - number) for number, field in enumerate(schema)]


def _id_of(field: pa.Field, absent: int) -> int:
    metadata = field.metadata or {}
    for key in ID_KEYS:
        if key in metadata:
            return int(metadata[key])
    return absent


def _with_field_id(field: pa.Field) -> pa.Field:
    data_type = field.type
    if pa.types.is_struct(data_type):
        data_type = pa.struct([_with_field_id(child) for child in data_type])
    elif pa.types.is_map(data_type):
        key, value = _with_field_id(data_type.key_field), _with_field_id(data_type.item_field)
        data_type = pa.map_(key, value)
    elif pa.types.is_list(data_type):
        data_type = pa.list_(_with_field_id(data_type.value_field))
    found = _id_of(field, -1)
    metadata = dict(field.metadata or {})
    if found >= 0:
        metadata[FIELD_ID] = b"%d" % found
    return field.with_type(data_type).with_metadata(metadata or None)
