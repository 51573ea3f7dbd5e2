"""Format 1 of an object: magic, frames as the journal has them, footer, trailer. Pure functions.

`docs/internals/objects.md` has the byte diagram and the crash table; `tests/data/` pins the bytes.
An object describes itself: its footer is enough to define its topic and to register it again.
"""

from __future__ import annotations

import itertools
import re
import struct
import zlib
from typing import Final, NamedTuple

import msgspec

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import SpecialRange
from frazil.model import TopicSpec
from frazil.struct_types import learnt

__all__ = [
    "FOOTER_BYTES_MAX",
    "HEADER_BYTES",
    "MAGIC",
    "TRAILER_BYTES",
    "Footer",
    "IndexEntry",
    "KeyParts",
    "Trailer",
    "decode_trailer",
    "encode_footer",
    "encode_trailer",
    "object_key",
    "pack_index",
    "parse_key",
    "read_footer",
    "topic_prefix",
    "unpack_index",
]

FORMAT_VERSION: Final = 1
READER_VERSION: Final = 1
MAGIC: Final = b"FRAZOBJ1"
HEADER_BYTES: Final = len(MAGIC)
"""Frames begin here; they stay aligned to 8 bytes."""
MAGIC_END: Final = b"FRAZOBE1"

_TRAILER: Final = struct.Struct("<QIIHHI8s")
"""footer position, footer length, crc of the footer, format version, oldest reader version, crc of
the fields before, magic"""
TRAILER_BYTES: Final = _TRAILER.size
_CHECKED_BYTES: Final = 20
"""The trailer's fields before its own CRC."""
FOOTER_BYTES_MAX: Final = 64 << 20
_ENTRY: Final = struct.Struct("<QQq")

_KEY: Final = re.compile(
    r"(?P<broker>[0-9a-f]{32})/topics/(?P<topic>[0-9a-f]{8})-(?P<uid>[0-9A-Za-z]+)/"
    r"(?P<first>[0-9a-f]{16})-(?P<epoch>[0-9a-f]{8,16})-(?P<upload>[0-9a-f]{8})\.frz\Z"
)


class Trailer(NamedTuple):
    """The last bytes of an object: the footer's position, length and checksum."""

    position: int
    length: int
    crc: int


class IndexEntry(NamedTuple):
    """A frame of a sparse index: its first offset, its position in the object, its time."""

    offset: int
    position: int
    time_us: int


class Footer(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """An object's description of itself: it holds the records `[first, end)` but for `ranges`.

    Its frames are adjacent, in offset order, from `HEADER_BYTES` on. The first of them may begin
    below `first`: the records below belong to another object.
    """

    broker: bytes
    """The id of the broker's main journal."""
    epoch: int
    created_us: int
    content_sha256: bytes
    """SHA-256 of the fixed fields of all frames, each with the CRC32 of its frame."""
    lsn_last: int
    """The highest LSN of a frame; 0 if there is none."""
    topic: int
    uid: str
    spec: TopicSpec
    schemas: dict[int, bytes]
    """The definitions of the schema versions that the frames use."""
    producers: dict[int, str]
    """The names of the producers in the frames' runs, as far as they are known."""
    first: int
    end: int
    records: int
    """Records of `[first, end)`."""
    frames: int
    time_first_us: int
    time_last_us: int
    """The times of the first frame and of the latest one; 0 without frames."""
    length: int
    """Bytes of the frames."""
    ranges: tuple[SpecialRange, ...] = ()
    index: bytes = b""
    """Packed `IndexEntry`s; `unpack_index` reads them."""


def encode_footer(footer: Footer) -> bytes:
    """Encode a footer."""
    return msgspec.msgpack.encode(footer)


def read_footer(data: bytes, trailer: Trailer) -> Footer:
    """Check the bytes of a footer against its trailer and decode them.

    Raises:
        CorruptionError: if they differ from the trailer, or the numbers contradict each other.
    """
    if len(data) != trailer.length or zlib.crc32(data) != trailer.crc:
        raise CorruptionError("checksum of an object's footer does not match")
    try:
        footer = msgspec.msgpack.decode(data, type=learnt(Footer))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError("footer of an object cannot be decoded", reason=error) from error
    if HEADER_BYTES + footer.length != trailer.position or not 0 <= footer.first <= footer.end:
        raise CorruptionError(
            "footer of an object does not fit its frames",
            topic_id=footer.topic,
            length=footer.length,
            offset_first=footer.first,
            offset_end=footer.end,
        )
    for entry in unpack_index(footer.index):
        if not HEADER_BYTES <= entry.position < trailer.position:
            raise CorruptionError("index of an object leaves its frames", position=entry.position)
    if any(not footer.first <= r.first < r.end <= footer.end for r in footer.ranges):
        raise CorruptionError("gap of an object leaves its offsets", topic_id=footer.topic)
    return footer


def encode_trailer(footer: bytes, *, position: int) -> bytes:
    """Encode the last 32 bytes of an object whose footer begins at `position`."""
    if len(footer) > FOOTER_BYTES_MAX:
        raise InvalidRequest("footer of an object is too large", bytes=len(footer))
    fields = (position, len(footer), zlib.crc32(footer), FORMAT_VERSION, READER_VERSION)
    crc = zlib.crc32(_TRAILER.pack(*fields, 0, MAGIC_END)[:_CHECKED_BYTES])
    return _TRAILER.pack(*fields, crc, MAGIC_END)


def decode_trailer(data: bytes, *, size: int) -> Trailer:
    """Decode the last bytes of an object of `size` bytes.

    Raises:
        InvalidRequest: if a newer Frazil wrote the object.
        CorruptionError: if the bytes are damaged, or the object has another size than they say.
    """
    if len(data) != TRAILER_BYTES:
        raise CorruptionError("trailer of an object is cut short", bytes=len(data))
    position, length, crc, version, reader_min, own_crc, magic = _TRAILER.unpack(data)
    if magic[:7] != MAGIC_END[:7] or zlib.crc32(data[:_CHECKED_BYTES]) != own_crc:
        raise CorruptionError("object has no valid trailer", magic=magic.hex())
    if magic != MAGIC_END or reader_min > READER_VERSION:
        raise InvalidRequest(
            "object was written by a newer Frazil, upgrade this one",
            format_version=version,
            reader_version_min=reader_min,
            reader_version=READER_VERSION,
        )
    whole = position + length + TRAILER_BYTES == size
    if position < HEADER_BYTES or length > FOOTER_BYTES_MAX or not whole:
        raise CorruptionError(
            "object has another size than its trailer says",
            bytes=size,
            bytes_expected=position + length + TRAILER_BYTES,
        )
    return Trailer(position, length, crc)


def pack_index(entries: list[IndexEntry]) -> bytes:
    """Pack a sparse index, 24 bytes an entry."""
    return b"".join([_ENTRY.pack(*entry) for entry in entries])


def unpack_index(data: bytes) -> list[IndexEntry]:
    """Unpack a sparse index.

    Raises:
        CorruptionError: if it is no whole number of entries, or they are out of order.
    """
    if len(data) % _ENTRY.size:
        raise CorruptionError("index of an object is cut short", bytes=len(data))
    entries = [IndexEntry(*fields) for fields in _ENTRY.iter_unpack(data)]
    for before, entry in itertools.pairwise(entries):
        if before.offset >= entry.offset or before.position >= entry.position:
            raise CorruptionError("index of an object is out of order", offset=entry.offset)
    return entries


class KeyParts(NamedTuple):
    """The parts of an object's key."""

    broker: bytes
    topic: int
    uid: str
    first: int
    epoch: int
    upload: str
    """8 random hex digits: each attempt to upload a range has a key of its own."""


def topic_prefix(broker: bytes) -> str:
    """Return the prefix of all objects of a broker's topics."""
    return f"{broker.hex()}/topics/"


def object_key(parts: KeyParts) -> str:
    """Return the key of an object."""
    folder = f"{topic_prefix(parts.broker)}{parts.topic:08x}-{parts.uid}"
    return f"{folder}/{parts.first:016x}-{parts.epoch:08x}-{parts.upload}.frz"


def parse_key(key: str) -> KeyParts | None:
    """Return the parts of a key, None if it is not an object's key."""
    found = _KEY.match(key)
    if found is None:
        return None
    return KeyParts(
        broker=bytes.fromhex(found["broker"]),
        topic=int(found["topic"], 16),
        uid=found["uid"],
        first=int(found["first"], 16),
        epoch=int(found["epoch"], 16),
        upload=found["upload"],
    )
