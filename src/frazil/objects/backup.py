"""Backups of a broker's metadata in its object store: the state that footers do not have.

A backup has the checkpoint of the journal (topics, columns, subscriptions, producers, registry) and
the registered objects at one moment. Each backup has a unique key and is never replaced. The newest
readable one counts, by its owner's epoch and then its number. `docs/internals/objects.md` has the
byte layout.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from frazil.errors import (
    Conflict,
    CorruptionError,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.log import encode_checkpoint
from frazil.metadata import LEASE
from frazil.objects.descriptor import Descriptor, ObjectsState
from frazil.objects.store import PIECE_BYTES_MAX
from frazil.struct_types import learnt
from frazil.telemetry import event, warn
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.store import ObjectMeta, ObjectStore
    from frazil.topic import Instance

__all__ = [
    "Backup",
    "BackupKey",
    "Backups",
    "Newest",
    "TopicCopy",
    "backup_key",
    "backup_keys",
    "brokers_in",
    "copies_of",
    "decode_backup",
    "encode_backup",
    "listed",
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
"""The number of backups that are kept: older ones replace a damaged one."""
_KEY: Final = re.compile(
    r"(?P<broker>[0-9a-f]{32})/backup/"
    r"(?P<seq>[0-9a-f]{16})-(?P<epoch>[0-9a-f]{8,16})-(?P<sha>[0-9a-f]{16})\.frzb\Z"
)
_BROKER: Final = re.compile(r"(?P<broker>[0-9a-f]{32})/(?:topics|backup)/")
INTERVAL_S: Final = 300.0
"""The interval of backups while metadata changes."""
RETRY_S: Final = 30.0
CHANGED_S: Final = 5.0
"""The shortest interval between backups, even if topics or subscriptions changed."""


class TopicCopy(msgspec.Struct, array_like=True, frozen=True):
    """A topic's objects in the metadata at the backup."""

    topic: int
    state: ObjectsState
    descriptors: tuple[Descriptor, ...]


def copies_of(catalog: ObjectCatalog) -> tuple[TopicCopy, ...]:
    """Return the objects of all topics, by topic."""
    pictures = sorted(catalog.topics().items())
    return tuple(TopicCopy(topic, each.state, each.descriptors) for topic, each in pictures)


class Backup(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """The metadata that a new machine needs besides the objects."""

    broker: bytes
    """The id of the main journal, the first part of all keys."""
    epoch: int
    seq: int
    created_us: int
    checkpoint: bytes
    """The journal's state: topics, columns, subscriptions, producers, registry; may be empty."""
    topics: tuple[TopicCopy, ...]


class BackupKey(NamedTuple):
    """The parts of a backup's key; they sort from old to new."""

    epoch: int
    seq: int
    key: str
    size: int


class Newest(NamedTuple):
    """The newest readable backup, its key or an empty one, and the errors of newer ones by key."""

    backup: Backup
    key: str
    unreadable: dict[str, str]


def backup_key(backup: Backup, data: bytes) -> str:
    """Return the key of a backup's bytes."""
    sha = hashlib.sha256(data).hexdigest()[:16]
    return f"{backup.broker.hex()}/backup/{backup.seq:016x}-{backup.epoch:08x}-{sha}.frzb"


def parse_backup_key(found: ObjectMeta) -> BackupKey | None:
    """Return the parts of a key, None if it is not a backup's key."""
    parts = _KEY.match(found.key)
    if parts is None:
        return None
    return BackupKey(int(parts["epoch"], 16), int(parts["seq"], 16), found.key, found.size)


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
    """Put a backup into the store, verify its size there, and return its key and size.

    Raises:
        Unavailable: the store does not answer, or has no object of this size.
    """
    data = encode_backup(backup)
    key = backup_key(backup, data)
    # An earlier try of this call may have written it: the key has the content's hash.
    with contextlib.suppress(Conflict):
        if len(data) <= PIECE_BYTES_MAX:
            store.put(key, data)
        else:
            starts = range(0, len(data), PIECE_BYTES_MAX)
            store.put_stream(key, [data[start : start + PIECE_BYTES_MAX] for start in starts])
    found = store.head(key)
    if found is None or found.size != len(data):
        raise Unavailable("a backup is not in the store as it was written, try again", key=key)
    return key, len(data)


def backup_keys(store: ObjectStore, broker: bytes) -> list[BackupKey]:
    """Return the backups of a broker, the newest last."""
    found = (parse_backup_key(meta) for meta in listed(store, f"{broker.hex()}/backup/"))
    return sorted(key for key in found if key is not None)


def newest_backup(store: ObjectStore, broker: bytes) -> Newest:
    """Return the newest readable backup of a broker, an empty one if there is none."""
    unreadable: dict[str, str] = {}
    for found in reversed(backup_keys(store, broker)):
        try:
            return Newest(_read(store, found), found.key, unreadable)
        except (CorruptionError, NotFound) as error:
            unreadable[found.key] = str(error)
    empty = Backup(broker=broker, epoch=0, seq=0, created_us=0, checkpoint=b"", topics=())
    return Newest(empty, "", unreadable)


def _read(store: ObjectStore, found: BackupKey) -> Backup:
    data = store.get(found.key, start=0, length=found.size)
    backup = decode_backup(data)
    if backup_key(backup, data) != found.key:
        raise CorruptionError("content of a backup does not match its key", key=found.key)
    return backup


def brokers_in(store: ObjectStore) -> list[bytes]:
    """Return the brokers with objects in a store, without listing all their objects."""
    found: list[bytes] = []
    after = ""
    while page := store.list("", after=after, limit=1):
        key = page[0].key
        match = _BROKER.match(key)
        if match is not None:
            found.append(bytes.fromhex(match["broker"]))
        # "0" follows "/": skip all other keys with this first part.
        after = f"{key.partition('/')[0]}0" if "/" in key else key
    return found


def listed(store: ObjectStore, prefix: str) -> Iterator[ObjectMeta]:
    """Yield all objects under a prefix, page by page."""
    after = ""
    while page := store.list(prefix, after=after):
        yield from page
        after = page[-1].key


class Backups:
    """Makes the backups of one engine. Any thread may call."""

    def __init__(self, engine: Instance, catalog: ObjectCatalog, store: ObjectStore) -> None:
        self._engine = engine
        self._catalog = catalog
        self._store = store
        self._lock = threading.Lock()
        self._seq = 0
        """The number of the last backup in the store; 0 before the first look."""
        self._content = b""
        self._shape: tuple[int, ...] = ()
        self._next_at = self._made_at = 0.0
        self.last: dict[str, Any] = {}
        """The result of the last `now`."""

    def tick(self) -> None:
        """Make a backup if one is due: at the interval, or soon after topics changed."""
        now = self._engine.clock.monotonic()
        shape = self._shape_now()
        soon = shape != self._shape and self._content and now >= self._made_at + CHANGED_S
        if now < self._next_at and not soon:
            return
        self._made_at = now
        self._next_at = now + RETRY_S
        self.make(only_changed=True)
        self._shape = shape
        self._next_at = now + INTERVAL_S

    def now(self) -> dict[str, Any]:
        """Make a backup and describe it, ready for JSON.

        Raises:
            Unavailable: if the store or a journal does not answer.
            Conflict: if another broker with the same objects is in use.
        """
        self.make(only_changed=False)
        return self.last

    def make(self, *, only_changed: bool) -> None:
        """Write a backup; with `only_changed` only if something changed since the last one."""
        with self._lock:
            checkpoint = self._checkpoint()
            topics = copies_of(self._catalog)
            content = hashlib.sha256(msgspec.msgpack.encode([checkpoint, topics])).digest()
            if only_changed and content == self._content:
                return
            self._write(checkpoint, topics)
            self._content = content

    def _write(self, checkpoint: bytes, topics: tuple[TopicCopy, ...]) -> None:
        engine = self._engine
        broker = engine.log.journal.journal_id
        self._check_alone(broker)
        backup = Backup(
            broker=broker,
            epoch=engine.ownership.epoch,
            seq=self._seq + 1,
            created_us=engine.clock.now_us(),
            checkpoint=checkpoint,
            topics=topics,
        )
        key, size = write_backup(self._store, backup)
        self._seq = backup.seq
        self.last = {
            "key": key,
            "bytes": size,
            "epoch": backup.epoch,
            "created_us": backup.created_us,
            "topics": len(engine.log.journal.state.topics),
            "objects": sum(len(copy.descriptors) for copy in topics),
        }
        event("backup_made", key=key, bytes=size)
        # If the removal of older backups fails, the new backup is still complete.
        with contextlib.suppress(FrazilError):
            self._forget(broker, backup.epoch)

    def _check_alone(self, broker: bytes) -> None:
        """Check for another broker with this id, and continue after the last number.

        Raises:
            Conflict: a broker that was restored from this store has a higher epoch.
        """
        found = backup_keys(self._store, broker)
        epoch = self._engine.ownership.epoch
        if found and found[-1].epoch > epoch:
            if not self._engine.ownership.expires:
                # After a restart this broker has the higher epoch.
                self._engine.states.put(StateTag.EPOCH, LEASE, b"%d" % found[-1].epoch)
            raise Conflict(
                "another broker with these objects is in use, restored from this store or from a "
                "copy: a restore would ignore uploads of this broker; stop the other one, then "
                "start this one again",
                epoch=epoch,
                epoch_found=found[-1].epoch,
                key=found[-1].key,
            )
        seq = max((key.seq for key in found), default=0)
        if self._seq and seq > self._seq:
            warn("restored_elsewhere", key=found[-1].key, seq=seq, seq_own=self._seq)
        self._seq = max(seq, self._seq)

    def _forget(self, broker: bytes, epoch: int) -> None:
        """Remove old backups, but none of a later owner."""
        keys = backup_keys(self._store, broker)
        gone = [found.key for found in keys[:-KEPT] if found.epoch <= epoch]
        if gone:
            self._store.delete(gone)

    def _checkpoint(self) -> bytes:
        journal = self._engine.log.journal
        # Only the journal's thread may read its state.
        found: bytes = self._engine.log.queue.call(
            lambda: encode_checkpoint(journal.state, lsn=journal.state.lsn)
        )
        return found

    def _shape_now(self) -> tuple[int, ...]:
        """Return numbers that change with topics, columns and subscriptions."""
        known = list(self._engine.log.journal.state.topics.values())
        return (
            len(known),
            sum(topic.spec.version for topic in known),
            sum(topic.schema_version for topic in known),
            sum(len(runtime.state.cursors) for runtime in self._engine.runtimes),
        )
