"""Format 1 of the journal on disk: frames, segment header, segment footer. Pure functions.

`docs/internals/log.md` has the byte diagrams and the crash table; `tests/data/` pins the bytes.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import CorruptionError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

FORMAT_VERSION: Final = 1
READER_VERSION: Final = 1

KIND_ARROW: Final = 1
KIND_ROWS: Final = 2
KIND_SCHEMA: Final = 3
KIND_TOPIC: Final = 4
KIND_CURSOR: Final = 5
KIND_CHECKPOINT: Final = 6
KIND_MARKER: Final = 7
KIND_GAP: Final = 8
KIND_STATE: Final = 9
KIND_NAMES: Final = {
    KIND_ARROW: "arrow",
    KIND_ROWS: "rows",
    KIND_SCHEMA: "schema",
    KIND_TOPIC: "topic",
    KIND_CURSOR: "cursor",
    KIND_CHECKPOINT: "checkpoint",
    KIND_MARKER: "marker",
    KIND_GAP: "gap",
    KIND_STATE: "state",
}
KIND_LAST: Final = KIND_STATE

FLAG_OP: Final = 1
FLAG_PRESENT: Final = 2
FLAG_TIME: Final = 4
FLAG_PLAIN: Final = 8
"""Data: the columns `_op`, `_present`, `_time` follow the user's; rows that are payload only."""
FLAG_CLOSE: Final = 1
"""Marker: the journal was closed cleanly after this frame."""

FRAME_PREFIX: Final = struct.Struct("<QI")
FRAME_HEAD: Final = struct.Struct("<QIIB8sBHIIIQQIIqII")
"""offset length crc | kind salt flags runs topic count schema lsn synced generation size time
head_crc zero"""
BODY_FIELDS: Final = struct.Struct("<B8sBHIIIQQIIq")
_HEAD_CRC: Final = struct.Struct("<II")
_HEAD_TAG: Final = b"head"
"""Part of the head's own checksum. A CRC that directly followed its own input would make the
frame's CRC constant there, and head and payload would no longer be bound together."""
_ONE_END: Final = struct.Struct("<ii")
RUN: Final = struct.Struct("<QIQI")
"""producer id, producer epoch, first sequence, count"""

FRAME_PREFIX_BYTES: Final = 16
BODY_HEAD_BYTES: Final = BODY_FIELDS.size + _HEAD_CRC.size
HEAD_CRC_POSITION: Final = FRAME_PREFIX_BYTES + BODY_FIELDS.size
FRAME_HEAD_BYTES: Final = FRAME_HEAD.size
SALT_POSITION: Final = 17
BODY_BYTES_MAX: Final = 256 << 20
RUNS_MAX: Final = 0xFFFF
ALIGNMENT: Final = 8
_PADDING: Final = tuple(bytes(count) for count in range(ALIGNMENT))

SEGMENT_MAGIC: Final = b"FRAZSEG1"
SEGMENT_HEADER: Final = struct.Struct("<8sHHI16sQ8sIIQQQqQ")
SEGMENT_HEADER_BYTES: Final = 128
FOOTER_MAGIC: Final = b"FRAZEND1"
TRAILER: Final = struct.Struct("<QII8s")
"""position of the index blobs, footer length, crc of footer and both numbers, magic"""
FOOTER_BYTES_MAX: Final = 64 << 20


class FrameHead(NamedTuple):
    """The fixed fields of a frame, in byte order."""

    offset: int
    length: int
    crc: int
    kind: int
    salt: bytes
    flags: int
    runs: int
    topic: int
    records: int
    schema: int
    lsn: int
    synced: int
    generation: int
    size: int
    time: int
    head_crc: int
    zero: int


class Run(NamedTuple):
    """Consecutive records of one producer; producer 0 means none."""

    producer: int
    epoch: int
    sequence: int
    records: int


class SegmentHeader(NamedTuple):
    """The first bytes of a segment file.

    The predecessor is valid up to `previous_length` bytes and `previous_lsn`; the rest of its file
    does not exist for any reader.
    """

    journal: bytes
    segment: int
    salt: bytes
    generation: int
    previous_segment: int
    previous_length: int
    previous_lsn: int
    created_us: int
    initial_length: int = 0
    """Bytes below this were synced before the file was renamed: they are never a torn tail."""
    format_version: int = FORMAT_VERSION
    reader_version_min: int = READER_VERSION


def frame_buffers(
    kind: int,
    payload: Buffer,
    payload_bytes: int,
    *,
    payload_crc: int | None = None,
    offset: int,
    salt: bytes,
    generation: int,
    lsn: int,
    synced: int,
    time_us: int,
    topic: int = 0,
    count: int = 0,
    schema: int = 0,
    flags: int = 0,
    runs: bytes = b"",
) -> tuple[bytes, Buffer, bytes, int]:
    """Encode one frame as head, payload and padding to write in this order, and its size.

    The payload is not copied. The CRC covers the payload first, then the rest of the body, offset
    and length, so that a producer can checksum a large payload (`payload_crc`) before its offset
    is known. The head has a second checksum, so that its offset range stays known if the payload
    is damaged.
    """
    runs_bytes = len(runs)
    padding = _PADDING[-payload_bytes & 7]
    length = BODY_HEAD_BYTES + runs_bytes + payload_bytes + len(padding)
    assert length <= BODY_BYTES_MAX
    prefix = FRAME_PREFIX.pack(offset, length)
    fields = BODY_FIELDS.pack(
        kind,
        salt,
        flags,
        runs_bytes // RUN.size,
        topic,
        count,
        schema,
        lsn,
        synced,
        generation,
        payload_bytes,
        time_us,
    )
    head_crc = zlib.crc32(_HEAD_TAG, zlib.crc32(fields, zlib.crc32(prefix)))
    rest = fields + _HEAD_CRC.pack(head_crc, 0) + runs
    crc = zlib.crc32(payload) if payload_crc is None else payload_crc
    if padding:
        crc = zlib.crc32(padding, crc)
    crc = zlib.crc32(prefix, zlib.crc32(rest, crc))
    head = b"%b%b%b" % (prefix, crc.to_bytes(4, "little"), rest)
    return head, payload, padding, FRAME_PREFIX_BYTES + length


def encode_runs(runs: Sequence[Run]) -> bytes:
    """Encode producer runs; they are between the body's fixed fields and the payload."""
    return b"".join([RUN.pack(*run) for run in runs])


def decode_runs(body: memoryview, count: int) -> list[Run]:
    """Decode the producer runs of a verified frame's body."""
    end = BODY_HEAD_BYTES + count * RUN.size
    return [Run(*fields) for fields in RUN.iter_unpack(body[BODY_HEAD_BYTES:end])]


def read_head(buffer: Buffer, position: int) -> FrameHead:
    """Decode the fixed fields at `position` without checking them."""
    return FrameHead(*FRAME_HEAD.unpack_from(buffer, position))


def frame_fault(buffer: memoryview, position: int, head: FrameHead) -> str:
    """Return the fault of the frame at `position`, an empty string if it is valid."""
    if head.kind == 0 or head.kind > KIND_LAST:
        return "unknown kind"
    inner = BODY_HEAD_BYTES + head.runs * RUN.size + head.size
    if head.length > BODY_BYTES_MAX or head.length != inner + (-inner & 7):
        return "length does not fit its parts"
    end = position + FRAME_PREFIX_BYTES + head.length
    if end > len(buffer):
        return "frame ends after the end of the file"
    payload = position + FRAME_HEAD_BYTES + head.runs * RUN.size
    crc = zlib.crc32(
        buffer[position + FRAME_PREFIX_BYTES : payload], zlib.crc32(buffer[payload:end])
    )
    if zlib.crc32(buffer[position : position + 12], crc) != head.crc:
        return "checksum does not match"
    return ""


def head_fault(head_bytes: bytes) -> bool:
    """Tell whether the fixed fields alone fail their own checksum."""
    crc = zlib.crc32(head_bytes[FRAME_PREFIX_BYTES:HEAD_CRC_POSITION], zlib.crc32(head_bytes[:12]))
    crc = zlib.crc32(_HEAD_TAG, crc)
    return head_bytes[HEAD_CRC_POSITION : HEAD_CRC_POSITION + 4] != crc.to_bytes(4, "little")


def payload_of(buffer: memoryview, position: int, head: FrameHead) -> memoryview:
    """Return the payload of a verified frame, not copied."""
    start = position + FRAME_HEAD_BYTES + head.runs * RUN.size
    return buffer[start : start + head.size]


def plain_payload(payloads: Sequence[bytes]) -> bytes:
    """Encode payload-only records: `count + 1` int32 ends from 0, then the bytes.

    It is the layout of an Arrow binary array, so that reading copies nothing.
    """
    if len(payloads) == 1:
        return _ONE_END.pack(0, len(payloads[0])) + payloads[0]
    ends = array("i", accumulate(map(len, payloads), initial=0))
    return ends.tobytes() + b"".join(payloads)


def encode_segment_header(header: SegmentHeader) -> bytes:
    """Encode a segment header of 128 bytes; its CRC is the last four."""
    fields = SEGMENT_HEADER.pack(
        SEGMENT_MAGIC,
        header.format_version,
        header.reader_version_min,
        SEGMENT_HEADER_BYTES,
        header.journal,
        header.segment,
        header.salt,
        header.generation,
        0,
        header.previous_segment,
        header.previous_length,
        header.previous_lsn,
        header.created_us,
        header.initial_length,
    )
    data = fields.ljust(SEGMENT_HEADER_BYTES - 4, b"\0")
    return data + zlib.crc32(data).to_bytes(4, "little")


def decode_segment_header(data: bytes) -> SegmentHeader:
    """Decode and check a segment header.

    Raises:
        InvalidRequest: if a newer Frazil wrote it (its checksum matches, its version does not).
        CorruptionError: if the bytes are damaged.
    """
    if len(data) < SEGMENT_HEADER_BYTES:
        raise CorruptionError("segment header is cut short", bytes=len(data))
    data = data[:SEGMENT_HEADER_BYTES]
    if zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise CorruptionError("segment header checksum does not match")
    fields = SEGMENT_HEADER.unpack_from(data)
    magic, version, reader_min = fields[0], fields[1], fields[2]
    if magic[:7] != SEGMENT_MAGIC[:7]:
        raise CorruptionError("not a segment file", magic=magic.hex())
    if magic != SEGMENT_MAGIC or reader_min > READER_VERSION:
        raise InvalidRequest(
            "data was written by a newer Frazil, upgrade this one; nothing was touched",
            format_version=version,
            reader_version_min=reader_min,
            reader_version=READER_VERSION,
        )
    return SegmentHeader(
        journal=fields[4],
        segment=fields[5],
        salt=fields[6],
        generation=fields[7],
        previous_segment=fields[9],
        previous_length=fields[10],
        previous_lsn=fields[11],
        created_us=fields[12],
        initial_length=fields[13],
        format_version=version,
        reader_version_min=reader_min,
    )


def encode_trailer(footer: bytes, *, index_position: int) -> bytes:
    """Encode the last 24 bytes of a sealed segment."""
    numbers = struct.pack("<QI", index_position, len(footer))
    crc = zlib.crc32(numbers, zlib.crc32(footer))
    return TRAILER.pack(index_position, len(footer), crc, FOOTER_MAGIC)


def decode_trailer(data: bytes) -> tuple[int, int, int] | None:
    """Return index position, footer length and footer CRC; None if there is no trailer."""
    if len(data) != TRAILER.size:
        return None
    index_position, length, crc, magic = TRAILER.unpack(data)
    if magic != FOOTER_MAGIC or length > FOOTER_BYTES_MAX:
        return None
    return index_position, length, crc


def footer_matches(footer: bytes, *, index_position: int, crc: int) -> bool:
    """Tell whether `footer` matches its trailer."""
    numbers = struct.pack("<QI", index_position, len(footer))
    return zlib.crc32(numbers, zlib.crc32(footer)) == crc
