"""The registry's stored entries of a key and a value; deleting an entry removes its key.

    subject:<name>            id, mode, next version; written before the first version
    version:<number>:<name>   one definition (compressed) with its notes
    topic:<name>              subject and policy of a topic
    ids                       the next schema id, written when a subject is removed

Values are MessagePack maps: a reader ignores unknown names and uses defaults for missing ones.
Entries may be read in any order.
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple, TypeVar

import msgspec

from frazil.errors import CorruptionError, InvalidRequest
from frazil.registry.kinds import CompatibilityMode, SchemaType, ValidationPolicy
from frazil.struct_types import learnt

__all__ = [
    "DEFINITION_BYTES_MAX",
    "IDS_KEY",
    "Change",
    "IdsEntry",
    "SubjectEntry",
    "TopicEntry",
    "VersionEntry",
    "check_definition_size",
    "decode",
    "encode",
    "pack",
    "parse_key",
    "subject_key",
    "topic_key",
    "unpack",
    "version_key",
]

IDS_KEY: Final = "ids"
DEFINITION_BYTES_MAX: Final = 1 << 20
ENTRY_BYTES_MAX: Final = 1 << 20
"""The limit of one entry, its definition compressed."""
_COMPRESSION_LEVEL: Final = 6


class Change(NamedTuple):
    """One entry to write, or to remove when `value` is None."""

    key: str
    value: bytes | None


class SubjectEntry(msgspec.Struct, frozen=True):
    """A subject without its versions."""

    schema_id: int
    mode: CompatibilityMode
    version_next: int


class VersionEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version; `packed` is the definition, compressed."""

    schema_id: int
    type: SchemaType
    packed: bytes
    fingerprint: str
    created_at: int = 0
    created_by: str = ""
    description: str = ""
    tags: tuple[str, ...] = ()


class TopicEntry(msgspec.Struct, frozen=True):
    """The schema settings of a topic."""

    subject: str
    policy: ValidationPolicy
    check_payload: bool


class IdsEntry(msgspec.Struct, frozen=True):
    """The lowest schema id that no subject has had yet."""

    schema_id_next: int


_EntryT = TypeVar("_EntryT", SubjectEntry, VersionEntry, TopicEntry, IdsEntry)


def subject_key(subject: str) -> str:
    return f"subject:{subject}"


def version_key(subject: str, version: int) -> str:
    return f"version:{version}:{subject}"


def topic_key(topic: str) -> str:
    return f"topic:{topic}"


def parse_key(text: str) -> tuple[str, str, int]:
    """Return a key's kind (subject, version, topic or ids), name and version.

    Raises:
        CorruptionError: if this module did not create it.
    """
    kind, _, name = text.partition(":")
    if text == IDS_KEY or (kind in {"subject", "topic"} and name):
        return kind, name, 0
    number, _, name = name.partition(":")
    if kind == "version" and name and number.isdecimal():
        return kind, name, int(number)
    raise CorruptionError("not a key of the schema registry", key=text)


def encode(entry: SubjectEntry | VersionEntry | TopicEntry | IdsEntry) -> bytes:
    """Return an entry's value."""
    value = msgspec.msgpack.encode(entry)
    if len(value) > ENTRY_BYTES_MAX:
        raise InvalidRequest(
            "the schema is too large even when it is compressed",
            bytes=len(value),
            bytes_max=ENTRY_BYTES_MAX,
        )
    return value


def decode(key: str, value: bytes, kind: type[_EntryT]) -> _EntryT:
    """Return the entry of a value."""
    try:
        return msgspec.msgpack.decode(value, type=learnt(kind))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptionError("an entry of the schema registry is damaged", key=key) from error


def check_definition_size(definition: bytes) -> None:
    """Refuse a definition that is too large."""
    if len(definition) > DEFINITION_BYTES_MAX:
        raise InvalidRequest(
            "the schema definition is too large",
            bytes=len(definition),
            bytes_max=DEFINITION_BYTES_MAX,
        )


def pack(definition: bytes) -> bytes:
    """Compress a definition: definitions are text, and all of them are kept in memory."""
    return zlib.compress(definition, _COMPRESSION_LEVEL)


def unpack(packed: bytes, *, key: str) -> bytes:
    """Decompress a definition; its size is checked while it grows."""
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(packed, DEFINITION_BYTES_MAX + 1)
    except zlib.error as error:
        raise CorruptionError("a schema definition is damaged", key=key) from error
    if not reader.eof or len(found) > DEFINITION_BYTES_MAX:
        raise CorruptionError("a schema definition is damaged", key=key)
    return found
