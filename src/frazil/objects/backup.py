"""Backups of a broker's metadata in its object store: what no object's footer can say.

A backup has the checkpoints of the journals (topics, columns, subscriptions, producers, registry)
and the registered objects at one moment. It is written under a name of its own and never replaced;
the newest that can be read counts, by its owner's epoch and then its number.
`docs/internals/objects.md` has the bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow as pa

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.objects.descriptor import Descriptor, ObjectsState
from frazil.objects.store import PIECE_BYTES_MAX
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = [
    "Backup",
    "BackupKey",
    "LaneCopy",
    "Newest",
    "TopicCopy",
    "backup_key",
    "backup_keys",
    "brokers_in",
    "decode_backup",
    "encode_backup",
    "newest_backup",
    "parse_backup_key",
    "write_backup",
]

MAGIC: Final = b"FRAZBAK1"
FORMAT_VERSION: Final = 1
READER_VERSION: Final = 1
_HEAD: Final = struct.Struct("<8sHHIQ4x")
"""magic, format, oldest reader, crc of the body, bytes of the body before compression"""
_CRC: Final = struct.Struct("<I")
HEAD_BYTES: Final = _HEAD.size + _CRC.size
BODY_BYTES_MAX: Final = 1 << 30
KEPT: Final = 8
"""So many backups are kept; a damaged one has others before it."""
_KEY: Final = re.compile(
    r"(?P<broker>[0-9a-f]{32})/backup/"
    r"(?P<seq>[0-9a-f]{16})-(?P<epoch>[0-9a-f]{8,16})-(?P<sha>[0-9a-f]{16})\.frzb\Z"
)
_BROKER: Final = re.compile(r"(?P<broker>[0-9a-f]{32})/(?:topics|shared|backup)/")


class LaneCopy(msgspec.Struct, array_like=True, frozen=True):
    """A journal as it was: its id and the checkpoint of its state; `topic` is 0 for the main one."""

    topic: int
    journal: bytes
    checkpoint: bytes
    lsn: int


class TopicCopy(msgspec.Struct, array_like=True, frozen=True):
    """What the metadata had of a topic's objects."""

    topic: int
    state: ObjectsState
    descriptors: tuple[Descriptor, ...]


class Backup(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """All that a new machine needs besides the objects themselves."""

    broker: bytes
    """The id of the main journal, under which the objects lie."""
    epoch: int
    seq: int
    created_us: int
    lanes: tuple[LaneCopy, ...]
    topics: tuple[TopicCopy, ...]


class BackupKey(NamedTuple):
    """What the key of a backup says; they sort from old to new."""

    epoch: int
    seq: int
    key: str
    size: int
    modified_us: int


class Newest(NamedTuple):
    """The newest backup that can be read, and why newer ones cannot, by their keys."""

    backup: Backup
    key: str
    unreadable: dict[str, str]


def backup_key(backup: Backup, data: bytes) -> str:
    """Return the key of a backup's bytes."""
    sha = hashlib.sha256(data).hexdigest()[:16]
    return f"{backup.broker.hex()}/backup/{backup.seq:016x}-{backup.epoch:08x}-{sha}.frzb"


def parse_backup_key(found: ObjectMeta) -> BackupKey | None:
    """Return what a key says, None if it is none of a backup."""
    parts = _KEY.match(found.key)
    if parts is None:
        return None
    epoch, seq = int(parts["epoch"], 16), int(parts["seq"], 16)
    return BackupKey(epoch, seq, found.key, found.size, found.modified_us)


def encode_backup(backup: Backup) -> bytes:
    """Encode a backup: a head with checksums, then compressed MessagePack."""
    body = msgspec.msgpack.encode(backup)
    if len(body) > BODY_BYTES_MAX:
        raise InvalidRequest("backup is too large", bytes=len(body), bytes_max=BODY_BYTES_MAX)
    packed: bytes = pa.Codec("zstd").compress(body, asbytes=True)
    head = _HEAD.pack(MAGIC, FORMAT_VERSION, READER_VERSION, zlib.crc32(packed), len(body))
    return head + _CRC.pack(zlib.crc32(head)) + packed


def decode_backup(data: bytes) -> Backup:
    """Decode a backup.

    Raises:
        InvalidRequest: if a newer Frazil wrote it.
        CorruptionError: if the bytes are damaged.
    """
    head = data[: _HEAD.size]
    if len(data) < HEAD_BYTES or _CRC.pack(zlib.crc32(head)) != data[_HEAD.size : HEAD_BYTES]:
        raise CorruptionError("checksum of a backup's head does not match")
    magic, version, reader_min, crc, size = _HEAD.unpack(head)
    if magic[:7] != MAGIC[:7]:
        raise CorruptionError("not a backup of Frazil", magic=magic.hex())
    if magic != MAGIC or reader_min > READER_VERSION:
        raise InvalidRequest(
            "backup was written by a newer Frazil, upgrade this one",
            format_version=version,
            reader_version_min=reader_min,
        )
    packed = memoryview(data)[HEAD_BYTES:]
    if zlib.crc32(packed) != crc or size > BODY_BYTES_MAX:
        raise CorruptionError("checksum of a backup does not match")
    try:
        body = pa.Codec("zstd").decompress(packed, decompressed_size=size, asbytes=True)
        return msgspec.msgpack.decode(body, type=learnt(Backup))
    except (msgspec.MsgspecError, pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError("backup cannot be decoded", reason=error) from error


def write_backup(store: ObjectStore, backup: Backup) -> tuple[str, int]:
    """Put a backup into the store and return its key and size; it was looked at there.

    Raises:
        Unavailable: the store does not answer, or does not have what was written.
    """
    data = encode_backup(backup)
    key = backup_key(backup, data)
    # An earlier try of this very call may have written it: the name has the content's hash.
    with contextlib.suppress(Conflict):
        if len(data) <= PIECE_BYTES_MAX:
            store.put(key, data)
        else:
            view = memoryview(data)
            starts = range(0, len(data), PIECE_BYTES_MAX)
            pieces = [view[start : start + PIECE_BYTES_MAX] for start in starts]
            store.put_stream(key, pieces, size=len(data))
    found = store.head(key)
    if found is None or found.size != len(data):
        raise Unavailable("a backup is not in the store as it was written, try again", key=key)
    return key, len(data)


def backup_keys(store: ObjectStore, broker: bytes) -> list[BackupKey]:
    """Return the backups of a broker, the newest last."""
    found = (parse_backup_key(meta) for meta in listed(store, f"{broker.hex()}/backup/"))
    return sorted(key for key in found if key is not None)


def newest_backup(store: ObjectStore, broker: bytes) -> Newest | None:
    """Return the newest backup of a broker that can be read, None if it never made one.

    Raises:
        CorruptionError: if it made some and none can be read.
    """
    unreadable: dict[str, str] = {}
    for found in reversed(backup_keys(store, broker)):
        try:
            backup = _read(store, found)
        except (CorruptionError, NotFound) as error:
            unreadable[found.key] = str(error)
            continue
        return Newest(backup, found.key, unreadable)
    if unreadable:
        raise CorruptionError("no backup can be read", backups=len(unreadable), broker=broker.hex())
    return None


def _read(store: ObjectStore, found: BackupKey) -> Backup:
    data = store.get(found.key, start=0, length=found.size)
    backup = decode_backup(data)
    if backup_key(backup, data) != found.key:
        raise CorruptionError("content of a backup is not what its name says", key=found.key)
    return backup


def brokers_in(store: ObjectStore) -> list[bytes]:
    """Return the brokers that have anything in a store, without listing all they have."""
    found: list[bytes] = []
    after = ""
    while page := store.list("", after=after, limit=1):
        key = page[0].key
        match = _BROKER.match(key)
        if match is not None:
            found.append(bytes.fromhex(match["broker"]))
        # "0" follows "/": on to what lies behind everything of this first part of the name.
        after = f"{key.partition('/')[0]}0" if "/" in key else key
    return found


def listed(store: ObjectStore, prefix: str) -> Iterator[ObjectMeta]:
    """Yield all objects under a prefix, page by page."""
    after = ""
    while page := store.list(prefix, after=after):
        yield from page
        after = page[-1].key
