"""Read a journal by topic and offset while its writer appends: the log as a `HistorySource`."""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import pyarrow as pa

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.fs import read_fully
from frazil.log import format as fmt
from frazil.log.history import Batch, Piece
from frazil.log.state import RANGE_LOST
from frazil.model import OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.log.index import FrameIndex
    from frazil.log.journal import Journal
    from frazil.log.segment import Segment
    from frazil.log.state import SpecialRange, TopicState

UNDECODABLE: Final = (
    CorruptionError,
    pa.ArrowException,
    EOFError,
    OverflowError,
    TypeError,
    ValueError,
)
"""Errors of a decoder for intact bytes that do not match their frame."""
HOLE_BYTES_MAX: Final = 256
"""One read covers adjacent frames of a topic across holes of at most this many bytes."""


SMALL_RECORDS_MAX: Final = 64
"""Frames of at most this many records are decoded together."""
RUN_RECORDS_MAX: Final = 512
"""The limit of records decoded together: larger columns gain nothing."""


class Frame(NamedTuple):
    """A verified data frame in memory."""

    head: fmt.FrameHead
    buffer: bytes
    start: int
    """Where the payload starts in the buffer."""


class Decoder(Protocol):
    """Turns the data frames of one topic into record batches under its current schema."""

    def decode(self, frame: Frame) -> pa.RecordBatch:
        """Decode one frame without copying where the layout allows it."""

    def decode_small(self, frames: list[Frame]) -> pa.RecordBatch | None:
        """Decode consecutive small frames at once; None if they cannot be joined."""


class LogPin:
    """A reader's claim on a topic's records; it delays retention, in memory only."""

    def __init__(self, source: LogSource, topic: int, offset: int) -> None:
        self._source = source
        self.topic = topic
        self.offset = offset

    def advance(self, offset: int) -> None:
        self.offset = max(self.offset, offset)

    def close(self) -> None:
        self._source.unpin(self)


class LogSource:
    """Reads the records of a journal's topics. Safe for any number of threads."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._pins: set[LogPin] = set()
        # Re-entrant, because the garbage collector may close a forgotten reader at any point.
        self._lock = threading.RLock()
        self.bytes_read = 0
        self.frames_read = 0

    def range(self, topic: int) -> OffsetRange:
        state = self._journal.state.topics.get(topic)
        if state is None:
            return OffsetRange(0, 0)
        return OffsetRange(state.start, state.durable)

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        state = self._topic(topic)
        visible = state.durable
        if self._journal.failed is not None and offset >= state.durable:
            raise self._journal.closed_error()
        if offset < state.start:
            raise NotFound(
                "offset is no longer in the log, start at the first available one",
                offset=offset,
                offset_first=state.start,
            )
        gaps: list[OffsetRange] = []
        while (special := covering(state.ranges, offset)) is not None:
            if special.kind == RANGE_LOST and gaps:
                # The gap before it is reported first; the next read is refused.
                return Piece([], offset, tuple(gaps))
            if special.kind == RANGE_LOST:
                raise lost_error(special, topic=state.spec.name)
            gaps.append(OffsetRange(offset, special.end, special.reason))
            offset = special.end
        if offset >= visible:
            return Piece([], offset, tuple(gaps))
        try:
            frames = self.frames(topic, offset=offset, end=visible, bytes_max=bytes_max)
            batches = batches_of(frames, state.codec, offset=offset, topic=state.spec.name)
        except CorruptionError:
            if not gaps:
                raise
            return Piece([], offset, tuple(gaps))
        batches[0].gaps = tuple(gaps)
        return Piece(batches, batches[-1].offset_next)

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        state = self._topic(topic)
        visible = state.durable
        for segment in self._journal.segments:
            summary = segment.summary(topic)
            if summary is None or summary[4] < time_us:
                continue
            index = self._index(segment, topic)
            number = index.find_time(time_us)
            if number < index.count and index.offsets[number] < visible:
                return max(index.offsets[number], state.start)
        return None

    def pin(self, topic: int, *, offset: int) -> LogPin:
        pin = LogPin(self, topic, offset)
        with self._lock:
            self._pins.add(pin)
        return pin

    def unpin(self, pin: LogPin) -> None:
        """Forget a pin; a second call is ignored."""
        with self._lock:
            self._pins.discard(pin)

    def pinned(self, topic: int) -> int | None:
        """Return the lowest offset that a reader of the topic still needs."""
        with self._lock:
            pins = tuple(self._pins)
        # Outside the lock: the garbage collector may close a forgotten reader at this point.
        return min((pin.offset for pin in pins if pin.topic == topic), default=None)

    # -- frames ----------------------------------------------------------------------------------

    def _topic(self, topic: int) -> TopicState:
        state = self._journal.state.topics.get(topic)
        if state is None:
            raise NotFound("no such topic in this journal", topic=topic)
        return state

    def _index(self, segment: Segment, topic: int) -> FrameIndex:
        try:
            index = segment.index(topic)
        except OSError as error:
            raise _unreadable(segment, self._topic(topic), error) from error
        assert index is not None
        return index

    def frames(self, topic: int, *, offset: int, end: int, bytes_max: int) -> list[Frame]:
        """Return verified frames below `end`, the first of which holds `offset`.

        They are from one segment, contiguous, and of about `bytes_max` bytes.

        Raises:
            NotFound: the log has freed the offset.
            CorruptionError: the first frame is damaged or missing; the details name the lost range.
        """
        state = self._topic(topic)
        for segment in self._journal.segments:
            summary = segment.summary(state.id)
            if summary is None or summary[1] <= offset:
                continue
            index = self._index(segment, state.id)
            first = index.find(offset)
            if _frame_end(index, first) <= offset:
                first += 1
            if index.offsets[first] > offset:
                raise _not_here(state, offset, offset_next=index.offsets[first])
            stop = _stop(index, first, end, bytes_max, state.ranges)
            return self._load(segment, index, first, stop, state)
        raise _not_here(state, offset, offset_next=end)

    def _load(
        self, segment: Segment, index: FrameIndex, first: int, stop: int, state: TopicState
    ) -> list[Frame]:
        """Read frames `[first, stop)`, neighbours with one call, and verify each."""
        try:
            file = segment.file()
        except OSError as error:
            raise _unreadable(segment, state, error) from error
        frames: list[Frame] = []
        for number, last, start, size in index.stretches(
            first, stop, hole_bytes_max=HOLE_BYTES_MAX
        ):
            try:
                data = read_fully(file, start, size)
            except OSError as error:
                raise Unavailable("segment cannot be read", path=segment.path) from error
            self.bytes_read += len(data)
            found = _Found(data, start, index, segment, state)
            try:
                frames.extend(found.all_verified(number, last))
            except CorruptionError:
                # The list has the frames before the damage; the next read meets the damage.
                if not frames:
                    raise
                break
        self.frames_read += len(frames)
        return frames


def _not_here(state: TopicState, offset: int, *, offset_next: int) -> NotFound | CorruptionError:
    """Return the error for an offset without a frame: it was freed just now, or it is lost."""
    if offset < state.start:
        return NotFound(
            "offset is no longer in the log, start at the first available one",
            offset=offset,
            offset_first=state.start,
        )
    return CorruptionError(
        "no segment holds this offset, run `frazil doctor`; reading may go on at offset_next",
        topic=state.spec.name,
        offset_first=offset,
        offset_next=offset_next,
    )


def _unreadable(segment: Segment, state: TopicState, error: OSError) -> NotFound | Unavailable:
    """Return the error for a segment's file that cannot be opened: just freed, or an I/O error."""
    summary = segment.summary(state.id)
    if isinstance(error, FileNotFoundError) and summary is not None and summary[1] <= state.start:
        return NotFound(
            "offset is no longer in the log, start at the first available one",
            offset_first=state.start,
        )
    return Unavailable("segment cannot be opened, try again", path=segment.path, error=error)


class _Found(NamedTuple):
    """Bytes read from a segment at `start`, and the expected frames."""

    data: bytes
    start: int
    frame_index: FrameIndex
    segment: Segment
    state: TopicState

    def all_verified(self, first: int, last: int) -> Iterator[Frame]:
        """Yield frames `[first, last)`, each checked against its index and its own checksums.

        Raises:
            CorruptionError: at the first damaged frame.
        """
        data, start, index = self.data, self.start, self.frame_index
        view = memoryview(data)
        topic, salt, generation = self.state.id, self.segment.salt, self.segment.generation
        unpack, crc32, new_tuple = fmt.FRAME_HEAD.unpack_from, zlib.crc32, tuple.__new__
        positions, offsets = index.positions, index.offsets
        limit = len(data) - fmt.FRAME_HEAD_BYTES
        for number in range(first, last):
            at = (positions[number] << 3) - start
            if at > limit:
                raise self._damage(number)
            fields = unpack(data, at)
            payload = at + 80 + fields[6] * 24
            end = at + 16 + fields[1]
            crc = crc32(view[at + 16 : payload], crc32(view[payload:end]))
            if (
                crc32(view[at : at + 12], crc) != fields[2]
                or fields[0] != offsets[number]
                or fields[7] != topic
                or fields[4] != salt
                or fields[12] != generation
                or not 0 < fields[3] <= fmt.KIND_ROWS
                or end > len(data)
            ):
                raise self._damage(number)
            yield new_tuple(Frame, (new_tuple(fmt.FrameHead, fields), data, payload))

    def _damage(self, number: int) -> CorruptionError:
        """Return the error for a damaged frame, with its fault."""
        data, index = self.data, self.frame_index
        at = (index.positions[number] << 3) - self.start
        fault = "segment is cut short"
        if at + index.lengths[number] <= len(data):
            fault = fmt.frame_fault(memoryview(data), at, fmt.read_head(data, at))
        return CorruptionError(
            "stored records are damaged, run `frazil doctor`; reading may go on at offset_next",
            topic=self.state.spec.name,
            offset_first=index.offsets[number],
            offset_next=_frame_end(index, number),
            reason=fault or "frame does not belong at this position",
            segment=self.segment.id,
            position=index.positions[number] << 3,
        )


def _frame_end(index: FrameIndex, number: int) -> int:
    """Return the offset after a frame; a gap after it counts as part of it, which is harmless."""
    if number + 1 < index.count:
        return index.offsets[number + 1]
    return index.end


def _stop(
    index: FrameIndex, first: int, visible: int, bytes_max: int, ranges: list[SpecialRange]
) -> int:
    """Return the index after the last frame of a piece: within bytes, visible, before a gap."""
    limit = visible
    offset = index.offsets[first]
    for special in ranges:
        if special.first > offset:
            limit = min(limit, special.first)
            break
    size = index.lengths[first]
    stop = first + 1
    count = index.count
    offsets, lengths = index.offsets, index.lengths
    while stop < count and offsets[stop] < limit:
        size += lengths[stop]
        if size > bytes_max:
            break
        stop += 1
    return stop


def batches_of(frames: list[Frame], decoder: Decoder, *, offset: int, topic: object) -> list[Batch]:
    """Decode consecutive verified frames from `offset` on, which the first frame holds.

    Small neighbours are decoded together. The frames before an undecodable frame are returned;
    `topic` names the topic in errors.

    Raises:
        CorruptionError: if the first frame cannot be decoded.
    """
    batches: list[Batch] = []
    number = 0
    while number < len(frames):
        small = _small_run(frames, number)
        data = _decode_small(decoder, small) if len(small) > 1 else None
        if data is not None:
            times = tuple((frame.head.records, frame.head.time) for frame in small)
            batches.append(Batch(data, offset=small[0].head.offset, times=times))
            number += len(small)
            continue
        frame = frames[number]
        try:
            data = decoder.decode(frame)
        except UNDECODABLE as error:
            if batches:
                # The frames before it are returned first, as before any damage.
                break
            raise _undecodable(frame, topic, error) from error
        head = frame.head
        batches.append(Batch(data, offset=head.offset, times=((head.records, head.time),)))
        number += 1
    if batches[0].offset < offset:
        batches[0] = batches[0].slice(offset - batches[0].offset)
    return batches


def _small_run(frames: list[Frame], number: int) -> list[Frame]:
    """Return the frames from `number` on that are worth decoding together: small, not too many."""
    stop, records = number, 0
    while stop < len(frames):
        head = frames[stop].head
        records += head.records
        if head.kind != fmt.KIND_ROWS or records > RUN_RECORDS_MAX:
            break
        if head.records > (1 if head.flags & fmt.FLAG_PLAIN else SMALL_RECORDS_MAX):
            break
        stop += 1
    return frames[number:stop]


def _decode_small(decoder: Decoder, frames: list[Frame]) -> pa.RecordBatch | None:
    try:
        return decoder.decode_small(frames)
    except UNDECODABLE:
        # Decoding them one by one finds the bad frame.
        return None


def _undecodable(frame: Frame, topic: object, error: Exception) -> CorruptionError:
    head = frame.head
    return CorruptionError(
        "stored records cannot be decoded, run `frazil doctor`; reading may go on at offset_next",
        topic=topic,
        offset_first=head.offset,
        offset_next=head.offset + head.records,
        lsn=head.lsn,
        reason=error,
    )


def covering(ranges: Sequence[SpecialRange], offset: int) -> SpecialRange | None:
    """Return the special range that holds an offset."""
    for special in ranges:
        if special.first <= offset < special.end:
            return special
    return None


def lost_error(special: SpecialRange, *, topic: object) -> CorruptionError:
    """Return the error for a read in a range whose records are known to be lost."""
    return CorruptionError(
        "records were lost to damage, run `frazil doctor`; reading may go on at offset_next",
        topic=topic,
        offset_first=special.first,
        offset_next=special.end,
        reason=special.reason,
    )
