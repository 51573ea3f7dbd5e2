"""Format 1 of an object: header, frames as the journal has them, footer, trailer. Pure functions.

`docs/internals/objects.md` has the byte diagram and the crash table; `tests/data/` pins the bytes.
An object describes itself: its footer has all that a topic needs to live again without metadata.

The content's hash is that of the footer, and the footer has the hash of the header and of the heads
of all frames, each of which has the CRC of its frame: whoever reads the end of an object knows what
the whole of it must be, and the hash is known before the frames are read.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import struct
import zlib
from typing import Final, Literal, NamedTuple

import msgspec

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import decode_sections, encode_sections
from frazil.model import TopicSpec
from frazil.struct_types import learnt

__all__ = [
    "FOOTER_BYTES_MAX",
    "HEADER_BYTES",
    "INDEX_ENTRIES_MAX",
    "KIND_SHARED",
    "KIND_TOPIC",
    "TRAILER_BYTES",
    "Footer",
    "Header",
    "IndexEntry",
    "KeyParts",
    "Range",
    "TopicSlice",
    "Trailer",
    "content_hash",
    "decode_footer",
    "decode_header",
    "decode_trailer",
    "encode_footer",
    "encode_header",
    "encode_trailer",
    "pack_index",
    "parse_key",
    "read_footer",
    "shared_key",
    "topic_key",
    "unpack_index",
]

FORMAT_VERSION: Final = 1
READER_VERSION: Final = 1
MAGIC: Final = b"FRAZOBJ1"
MAGIC_END: Final = b"FRAZOBE1"
KIND_TOPIC: Final = 1
KIND_SHARED: Final = 2
"""The frames of one topic, or of all topics that waited, each topic's in one piece."""

_HEADER: Final = struct.Struct("<8sHHHH16sQq12x")
HEADER_BYTES: Final = _HEADER.size + 4
_TRAILER: Final = struct.Struct("<QIII4x8s")
"""footer position, footer length, crc of the footer, crc of the three numbers, zeroes, magic"""
TRAILER_BYTES: Final = _TRAILER.size
_NUMBERS: Final = struct.Struct("<QII")
FOOTER_BYTES_MAX: Final = 64 << 20
INDEX_ENTRIES_MAX: Final = 8_192
"""An index has at most so many entries; a larger object has them further apart."""
_ENTRY: Final = struct.Struct("<QQq")

TAG_BODY: Final = 1
TAG_TOPICS: Final = 2

_KEY: Final = re.compile(
    r"(?P<broker>[0-9a-f]{32})/"
    r"(?:topics/(?P<topic>[0-9a-f]{8})-(?P<uid>[0-9A-Za-z]+)|(?P<shared>shared))/"
    r"(?P<first>[0-9a-f]{16})-(?P<end>[0-9a-f]{16})-(?P<epoch>[0-9a-f]{8,16})-(?P<sha>[0-9a-f]{16})"
    r"\.frz\Z"
)


class Header(NamedTuple):
    """The first bytes of an object."""

    kind: int
    broker: bytes
    """The id of the broker's main journal."""
    epoch: int
    created_us: int
    format_version: int = FORMAT_VERSION
    reader_version_min: int = READER_VERSION


class Trailer(NamedTuple):
    """The last bytes of an object: where its footer is, and the footer's checksum."""

    position: int
    length: int
    crc: int


class IndexEntry(NamedTuple):
    """A frame of a sparse index: its first offset, its position in the object, its time."""

    offset: int
    position: int
    time_us: int


class Range(msgspec.Struct, array_like=True, frozen=True):
    """Offsets `[first, end)` without records: a declared gap, or lost data."""

    first: int
    end: int
    kind: str
    reason: str = ""


class TopicSlice(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """What an object holds of one topic: the records of `[first, end)` but for `ranges`.

    Its frames lie one behind another at `[position, position + length)` of the object, in offset
    order. The first of them may begin below `first`: what lies there belongs to another object.
    """

    topic: int
    uid: str
    spec: TopicSpec
    schemas: dict[int, bytes]
    """The definitions of the schema versions that the frames have."""
    producers: dict[int, str]
    """The names of the producers in the frames' runs, as far as they are known."""
    first: int
    end: int
    records: int
    """Records of `[first, end)`."""
    frames: int
    time_first_us: int
    time_last_us: int
    """The times of the first frame and of the latest one; 0 if there is none."""
    position: int
    length: int
    ranges: tuple[Range, ...] = ()
    index: bytes = b""
    """Packed `IndexEntry`s; `unpack_index` reads them."""


class Footer(msgspec.Struct, frozen=True):
    """What an object says of itself."""

    heads_sha256: bytes
    """Of the header and the fixed fields of all frames, in their order."""
    topics: tuple[TopicSlice, ...]
    lsn_first: int = 0
    lsn_last: int = 0
    unknown: tuple[tuple[int, bytes], ...] = ()
    """Sections whose tag this version does not know, kept as they are."""

    def of(self, topic: int) -> TopicSlice | None:
        """Return what the object holds of a topic."""
        return next((found for found in self.topics if found.topic == topic), None)


def encode_header(header: Header) -> bytes:
    """Encode a header of 64 bytes; its CRC is the last four."""
    data = _HEADER.pack(
        MAGIC,
        header.format_version,
        header.reader_version_min,
        header.kind,
        0,
        header.broker,
        header.epoch,
        header.created_us,
    )
    return data + zlib.crc32(data).to_bytes(4, "little")


def decode_header(data: bytes) -> Header:
    """Decode and check a header.

    Raises:
        InvalidRequest: if a newer Frazil wrote it (its checksum holds, its version does not fit).
        CorruptionError: if the bytes are damaged.
    """
    if len(data) < HEADER_BYTES:
        raise CorruptionError("header of an object is cut short", bytes=len(data))
    data = data[:HEADER_BYTES]
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptionError("checksum of an object's header does not match")
    magic, version, reader_min, kind, _zero, broker, epoch, created_us = _HEADER.unpack_from(data)
    if magic[:7] != MAGIC[:7]:
        raise CorruptionError("not an object of Frazil", magic=magic.hex())
    if magic != MAGIC or reader_min > READER_VERSION:
        raise InvalidRequest(
            "object was written by a newer Frazil, upgrade this one",
            format_version=version,
            reader_version_min=reader_min,
            reader_version=READER_VERSION,
        )
    if kind not in (KIND_TOPIC, KIND_SHARED):
        raise CorruptionError("kind of an object is unknown", kind=kind)
    return Header(kind, broker, epoch, created_us, version, reader_min)


def encode_footer(footer: Footer) -> bytes:
    """Encode a footer as tagged sections."""
    body = [footer.heads_sha256, footer.lsn_first, footer.lsn_last]
    sections = [
        (TAG_BODY, msgspec.msgpack.encode(body)),
        (TAG_TOPICS, msgspec.msgpack.encode(footer.topics)),
    ]
    return encode_sections([*sections, *footer.unknown])


def decode_footer(data: bytes, *, position: int) -> Footer:
    """Decode a footer whose checksum was verified; it begins at `position` of its object.

    Raises:
        CorruptionError: if it is no footer, or its numbers do not fit one another.
    """
    known = {TAG_BODY: b"", TAG_TOPICS: b""}
    unknown: list[tuple[int, bytes]] = []
    for tag, section in decode_sections(data):
        if tag in known:
            known[tag] = section
        else:
            unknown.append((tag, section))
    try:
        heads_sha256, lsn_first, lsn_last = msgspec.msgpack.decode(
            known[TAG_BODY], type=tuple[bytes, int, int]
        )
        topics = msgspec.msgpack.decode(known[TAG_TOPICS], type=learnt(tuple[TopicSlice, ...]))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError("footer of an object cannot be decoded", reason=error) from error
    if len(heads_sha256) != hashlib.sha256().digest_size:
        raise CorruptionError("footer of an object has no hash", bytes=len(heads_sha256))
    for topic in topics:
        _check_slice(topic, body_end=position)
    return Footer(heads_sha256, topics, lsn_first, lsn_last, tuple(unknown))


def _check_slice(found: TopicSlice, *, body_end: int) -> None:
    fits = HEADER_BYTES <= found.position <= found.position + found.length <= body_end
    if not fits or found.length < 0 or not 0 <= found.first <= found.end:
        raise CorruptionError(
            "footer of an object does not fit its body",
            topic_id=found.topic,
            position=found.position,
            length=found.length,
            offset_first=found.first,
            offset_end=found.end,
        )
    for entry in unpack_index(found.index):
        if not found.position <= entry.position < found.position + found.length:
            raise CorruptionError("index of an object leads elsewhere", position=entry.position)
    if any(not found.first <= r.first < r.end <= found.end for r in found.ranges):
        raise CorruptionError("gap of an object lies elsewhere", topic_id=found.topic)


def encode_trailer(footer: bytes, *, position: int) -> bytes:
    """Encode the last 32 bytes of an object whose footer begins at `position`."""
    if len(footer) > FOOTER_BYTES_MAX:
        raise InvalidRequest("footer of an object is too large", bytes=len(footer))
    numbers = _NUMBERS.pack(position, len(footer), zlib.crc32(footer))
    return _TRAILER.pack(*_NUMBERS.unpack(numbers), zlib.crc32(numbers), MAGIC_END)


def decode_trailer(data: bytes, *, size: int) -> Trailer:
    """Decode the last bytes of an object of `size` bytes.

    Raises:
        CorruptionError: if they are damaged, or the object has another size than they say.
    """
    if len(data) != TRAILER_BYTES:
        raise CorruptionError("trailer of an object is cut short", bytes=len(data))
    position, length, crc, numbers_crc, magic = _TRAILER.unpack(data)
    if magic != MAGIC_END:
        raise CorruptionError("object has no trailer", magic=magic.hex())
    if zlib.crc32(data[: _NUMBERS.size]) != numbers_crc or length > FOOTER_BYTES_MAX:
        raise CorruptionError("checksum of an object's trailer does not match")
    if position < HEADER_BYTES or position + length + TRAILER_BYTES != size:
        raise CorruptionError(
            "object has another size than its trailer says",
            bytes=size,
            bytes_expected=position + length + TRAILER_BYTES,
        )
    return Trailer(position, length, crc)


def read_footer(data: bytes, trailer: Trailer) -> Footer:
    """Check the bytes of a footer against its trailer and decode them.

    Raises:
        CorruptionError: if they are not what the trailer promises.
    """
    if len(data) != trailer.length or zlib.crc32(data) != trailer.crc:
        raise CorruptionError("checksum of an object's footer does not match")
    return decode_footer(data, position=trailer.position)


def content_hash(footer: bytes) -> str:
    """Return the hash of an object's content as hex: that of its encoded footer."""
    return hashlib.sha256(footer).hexdigest()


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
    """What an object's key says: offsets of a topic, or LSNs of a shared object."""

    kind: Literal["topic", "shared"]
    broker: bytes
    topic: int
    uid: str
    first: int
    end: int
    epoch: int
    sha: str
    """The first 16 hex digits of the content's hash."""


def topic_key(
    broker: bytes, topic: int, uid: str, *, first: int, end: int, epoch: int, sha: str
) -> str:
    """Return the key of a topic's object of `[first, end)`."""
    place = f"{broker.hex()}/topics/{topic:08x}-{uid}"
    return f"{place}/{first:016x}-{end:016x}-{epoch:08x}-{sha[:16]}.frz"


def shared_key(broker: bytes, *, lsn_first: int, lsn_last: int, epoch: int, sha: str) -> str:
    """Return the key of an object of many topics."""
    return f"{broker.hex()}/shared/{lsn_first:016x}-{lsn_last:016x}-{epoch:08x}-{sha[:16]}.frz"


def parse_key(key: str) -> KeyParts | None:
    """Return what a key says, None if it is none of ours."""
    found = _KEY.match(key)
    if found is None:
        return None
    kind: Literal["topic", "shared"] = "shared" if found["shared"] else "topic"
    return KeyParts(
        kind=kind,
        broker=bytes.fromhex(found["broker"]),
        topic=int(found["topic"] or "0", 16),
        uid=found["uid"] or "",
        first=int(found["first"], 16),
        end=int(found["end"], 16),
        epoch=int(found["epoch"], 16),
        sha=found["sha"],
    )
