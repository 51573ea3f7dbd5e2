"""The frame positions of each topic in a segment, in memory and in a sealed one's footer. Pure."""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import CorruptionError
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

INDEX_COMPRESS_BYTES_MIN: Final = 1024


class FrameIndex:
    """The frames of one topic in one segment, 24 bytes each, in offset order.

    The writer appends while readers look: an entry is complete before `count` grows.
    """

    __slots__ = (
        "bytes",
        "count",
        "end",
        "lengths",
        "offsets",
        "positions",
        "records",
        "time_max",
        "times",
    )

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.positions = array("I")
        self.lengths = array("I")
        self.times = array("q")
        self.count = 0
        self.end = 0
        self.records = 0
        self.bytes = 0
        self.time_max = 0

    def append(self, offset: int, position: int, length: int, time_us: int, records: int) -> None:
        """Add a frame at `position` (a multiple of 8) of `length` bytes in all."""
        self.offsets.append(offset)
        self.positions.append(position >> 3)
        self.lengths.append(length)
        self.times.append(time_us)
        self.end = offset + records
        self.records += records
        self.bytes += length
        self.time_max = max(self.time_max, time_us)
        self.count += 1

    def extend(
        self,
        offsets: Sequence[int],
        positions: Sequence[int],
        lengths: Sequence[int],
        times: Sequence[int],
        records: Sequence[int],
    ) -> None:
        """Add many frames at once; the same as `append` of each."""
        self.offsets.extend(offsets)
        self.positions.extend([position >> 3 for position in positions])
        self.lengths.extend(lengths)
        self.times.extend(times)
        self.end = offsets[-1] + records[-1]
        self.records += sum(records)
        self.bytes += sum(lengths)
        self.time_max = max(self.time_max, *times)
        self.count += len(offsets)

    @property
    def first(self) -> int:
        """Return the first offset."""
        return self.offsets[0]

    def find(self, offset: int) -> int:
        """Return the number of the frame that holds `offset`, or of the next one after it."""
        number = bisect_right(self.offsets, offset, 0, self.count) - 1
        return max(number, 0)

    def find_time(self, time_us: int) -> int:
        """Return the number of the first frame at or after a time; `count` if there is none."""
        return bisect_left(self.times, time_us, 0, self.count)

    def stretches(
        self, first: int, stop: int, *, hole_bytes_max: int, bytes_max: int = 1 << 62
    ) -> Iterator[tuple[int, int, int, int]]:
        """Yield frames `[first, stop)` as stretches of the file, each worth one read.

        A stretch is its first frame, the frame after its last, its position and its size.
        """
        while first < stop:
            start = self.positions[first] << 3
            end = start + self.lengths[first]
            last = first + 1
            while last < stop:
                position = self.positions[last] << 3
                following = position + self.lengths[last]
                if position - end > hole_bytes_max or following - start > bytes_max:
                    break
                end = following
                last += 1
            yield first, last, start, end - start
            first = last

    def cut(self, position: int, holes: Mapping[int, int]) -> None:
        """Forget the frames at and after a position in the file.

        `holes` has each frame after the position whose offset does not continue the frame before it
        (offset → end of the frame before). The offsets alone do not show where that frame ends.
        """
        number = bisect_left(self.positions, position >> 3, 0, self.count)
        if number == self.count:
            return
        first = self.offsets[number]
        self.records -= self.end - first
        self.records += sum(offset - end for offset, end in holes.items() if offset > first)
        self.end = holes.get(first, first)
        self.bytes -= sum(self.lengths[number:])
        for column in (self.offsets, self.positions, self.lengths, self.times):
            del column[number:]
        self.count = number
        self.time_max = max(self.times, default=0)

    def to_bytes(self) -> bytes:
        """Return the index blob for a footer."""
        n = self.count
        columns = (self.offsets[:n], self.times[:n], self.positions[:n], self.lengths[:n])
        data = b"".join([column.tobytes() for column in columns])
        if len(data) < INDEX_COMPRESS_BYTES_MIN:
            return b"\x01" + data
        return b"\x02" + zlib.compress(data, 1)


class TopicEntry(msgspec.Struct, array_like=True, frozen=True):
    """The entry of one topic in the footer of a sealed segment."""

    topic: int
    first: int
    end: int
    frames: int
    records: int
    bytes: int
    time_min: int
    time_max: int
    index_position: int
    index_length: int
    index_crc: int


class Footer(msgspec.Struct, array_like=True, frozen=True):
    """The footer of a sealed segment; the index blobs are between body and footer."""

    segment: int
    generation: int
    body_end: int
    frames: int
    lsn_last: int
    time_us: int
    sha256: bytes
    topics: list[TopicEntry]


def footer_of(
    indexes: dict[int, FrameIndex],
    *,
    segment: int,
    generation: int,
    body_end: int,
    frames: int,
    lsn_last: int,
    time_us: int,
    sha256: bytes,
) -> tuple[bytes, bytes]:
    """Return the index blobs and the encoded footer of a segment."""
    blobs: list[bytes] = []
    entries: list[TopicEntry] = []
    position = body_end
    for topic, found in sorted(indexes.items()):
        if not found.count:
            continue
        blob = found.to_bytes()
        entries.append(
            TopicEntry(
                topic=topic,
                first=found.first,
                end=found.end,
                frames=found.count,
                records=found.records,
                bytes=found.bytes,
                time_min=found.times[0],
                time_max=found.time_max,
                index_position=position,
                index_length=len(blob),
                index_crc=zlib.crc32(blob),
            )
        )
        blobs.append(blob)
        position += len(blob)
    footer = Footer(
        segment=segment,
        generation=generation,
        body_end=body_end,
        frames=frames,
        lsn_last=lsn_last,
        time_us=time_us,
        sha256=sha256,
        topics=entries,
    )
    return b"".join(blobs), msgspec.msgpack.encode(footer)


def decode_footer(data: bytes) -> Footer:
    """Decode a footer with a verified checksum."""
    try:
        return msgspec.msgpack.decode(data, type=learnt(Footer))
    except msgspec.MsgspecError as error:
        raise CorruptionError("segment footer cannot be decoded", error=error) from error


def decode_index(blob: bytes, entry: TopicEntry) -> FrameIndex:
    """Rebuild a topic's index from its index blob.

    Raises:
        CorruptionError: if the blob is damaged.
    """
    if zlib.crc32(blob) != entry.index_crc or not blob:
        raise CorruptionError("segment index checksum does not match", topic=entry.topic)
    size = entry.frames * 24
    data = blob[1:]
    if blob[0] == 2:
        try:
            data = zlib.decompressobj().decompress(data, size + 1)
        except zlib.error as error:
            raise CorruptionError("segment index does not unpack", topic=entry.topic) from error
    if len(data) != size:
        raise CorruptionError("segment index has the wrong size", topic=entry.topic)
    index = FrameIndex()
    n = entry.frames
    index.offsets.frombytes(data[: 8 * n])
    index.times.frombytes(data[8 * n : 16 * n])
    index.positions.frombytes(data[16 * n : 20 * n])
    index.lengths.frombytes(data[20 * n :])
    index.count = n
    index.end = entry.end
    index.records = entry.records
    index.bytes = entry.bytes
    index.time_max = entry.time_max
    return index
