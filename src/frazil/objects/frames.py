"""Frames for uploads: verbatim from the journal, or framed again from files.

`TopicFrames` chooses a topic's next range: whole frames below `durable` only. `UploadRange.read`
reads them once, verifies each frame and gathers the footer's statistics on the way, so that an
upload needs no more memory than a piece of an object.
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import attrs
from typing_extensions import Buffer

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.fs import read_fully
from frazil.log import format as fmt
from frazil.model import TopicSpec
from frazil.objects.format import INDEX_ENTRIES_MAX, IndexEntry, Range, pack_index
from frazil.objects.reframe import Reframer, Runs
from frazil.tiers import FileGone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.fs import File
    from frazil.log import Journal, Places, Segment, SpecialRange, TopicState
    from frazil.tiers import DiskHistory, SentRun, StoredRows, TopicFiles
    from frazil.topic import TopicRuntime

__all__ = ["FooterStats", "FrameSource", "JournalFrames", "TopicFrames", "UploadRange"]

WINDOW_BYTES: Final = 1 << 20
"""Frames are read in windows of this size; a larger frame is read in pieces of it."""
HOLE_BYTES_MAX: Final = 4 << 10
"""A window reads over other topics' frames of at most this many bytes."""
FITTING_FRAMES: Final = 1 << 14
"""Lengths are added up in pages: a large object can have millions of frames."""
RANGES_MAX: Final = 1_000
"""An object ends after this many gaps, so that its descriptor stays small."""
REFRAMED_BYTES_MAX: Final = 8 << 20
"""Frames that are made again stay in memory while they are uploaded."""
FILE_READ_BYTES: Final = 2 << 20
FILE_READS_MAX: Final = 10
"""Attempts to read files that are being merged."""


class FooterStats:
    """The footer's statistics of a topic's frames, gathered while the frames are read."""

    def __init__(self, *, first: int, position: int, index_bytes: int) -> None:
        """Begin at `position` of the object; the topic's records are those from `first` on."""
        self._digest = hashlib.sha256()
        self._first = first
        self._interval = index_bytes
        self._next = position
        self.position = position
        self.frames = 0
        self.records = 0
        self.time_first_us = 0
        self.time_last_us = 0
        self.lsn_last = 0
        self.schemas: set[int] = set()
        self.producers: set[int] = set()
        self.entries: list[IndexEntry] = []

    def add(self, heads: bytes, runs: bytes, lengths: Sequence[int]) -> None:
        """Count verified frames: their fixed fields, producer runs and lengths, concatenated."""
        columns = list(zip(*fmt.FRAME_HEAD.iter_unpack(heads), strict=True))
        self.add_columns(heads, columns, runs, lengths)

    def add_columns(
        self, heads: bytes, columns: list[tuple[Any, ...]], runs: bytes, lengths: Sequence[int]
    ) -> None:
        """Count verified frames whose fixed fields are decoded already, by column."""
        self._digest.update(heads)
        if not self.frames:
            self.time_first_us = columns[14][0]
        self.frames += len(lengths)
        self.records += sum(columns[8]) - max(self._first - columns[0][0], 0)
        self.time_last_us = max(self.time_last_us, *columns[14])
        self.lsn_last = max(self.lsn_last, *columns[10])
        self.schemas.update(columns[9])
        if runs:
            self.producers.update([run[0] for run in fmt.RUN.iter_unpack(runs)])
        positions = list(accumulate(lengths, initial=self.position))
        self.position = positions.pop()
        number = bisect_left(positions, self._next)
        while number < len(positions):
            self._index(IndexEntry(columns[0][number], positions[number], columns[14][number]))
            number = bisect_left(positions, self._next, number + 1)

    def _index(self, entry: IndexEntry) -> None:
        if len(self.entries) == INDEX_ENTRIES_MAX:
            # A very large object: every other entry is enough.
            del self.entries[1::2]
            apart = (self.entries[-1].position - self.entries[0].position) // len(self.entries)
            self._interval = max(2 * self._interval, apart)
        self.entries.append(entry)
        self._next = entry.position + self._interval

    @property
    def index(self) -> bytes:
        """Return the packed index."""
        return pack_index(self.entries)

    @property
    def sha256(self) -> bytes:
        """Return the hash of all frames' fixed fields."""
        return self._digest.digest()


@attrs.frozen(kw_only=True)
class UploadRange:
    """The frames of one topic's offsets `[first, end)`, in order; those of `ranges` have none.

    The first frame may begin below `first`; the last one never ends above `end`.
    """

    spec: TopicSpec
    schemas: Mapping[int, bytes]
    producers: Mapping[int, str]
    """Names of producers by id."""
    first: int
    end: int
    size: int
    """Bytes of all frames."""
    ranges: tuple[Range, ...]
    """Gaps and lost ranges."""
    read: Callable[[FooterStats], Iterator[Buffer]]
    """Yields all frames, concatenated, in pieces; each call reads the same bytes again.

    A frame that is larger than a piece is verified before its last piece is given. Raises
    `CorruptionError` for a damaged frame (`offset_first` and `offset_next` name the lost offsets),
    and `NotFound` for frames that are gone meanwhile.
    """


class FrameSource(Protocol):
    """Gives frames of topics to upload. Any thread may call."""

    def available(self, topic_id: int) -> tuple[int, int]:
        """Return the first available offset and the end of what is durable."""

    def frames(
        self, topic_id: int, first: int, *, bytes_max: int, end: int | None = None
    ) -> UploadRange:
        """Return frames from `first` on: of about `bytes_max` at most, but at least one.

        The range ends at or below `end` if that is given; it is empty (`end` equals `first`) if
        no whole frame or gap fits.

        Raises:
            NotFound: `first` is gone (`offset_first` is the first one left), or no such topic.
        """


# -- from the journal --------------------------------------------------------------------------------


class _SegmentFrames(NamedTuple):
    """Frames `[first, stop)` of a topic in one segment."""

    segment: Segment
    file: File
    places: Places
    first: int
    stop: int


def _read_segments(
    spec: TopicSpec, parts: Sequence[_SegmentFrames], stats: FooterStats
) -> Iterator[Buffer]:
    for part in parts:
        reading = _Reading(part, spec)
        for first, stop in reading.windows():
            if stop - first == 1 and part.places.lengths[first] > WINDOW_BYTES:
                yield from reading.large(first, stats)
            else:
                yield reading.window(first, stop, stats)


class _Reading(NamedTuple):
    """Reads and verifies the frames of one segment."""

    part: _SegmentFrames
    spec: TopicSpec

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield numbers `[first, stop)` of frames to read at once."""
        _segment, _file, places, number, stop = self.part
        positions, lengths = places.positions, places.lengths
        while number < stop:
            start = positions[number] << 3
            end = start + lengths[number]
            last = number + 1
            while last < stop:
                position = positions[last] << 3
                following = position + lengths[last]
                if position - end > HOLE_BYTES_MAX or following - start > WINDOW_BYTES:
                    break
                end = following
                last += 1
            yield number, last
            number = last

    def window(self, first: int, stop: int, stats: FooterStats) -> Buffer:
        """Return verified frames that are read at once, without other topics' frames."""
        places = self.part.places
        positions, lengths = places.positions, places.lengths
        start = positions[first] << 3
        data = self._read(start, (positions[stop - 1] << 3) + lengths[stop - 1] - start)
        view = memoryview(data)
        self._verify(view, start, first, stop, stats)
        parts: list[memoryview] = []
        begin = 0
        end = lengths[first]
        for number in range(first + 1, stop):
            at = (positions[number] << 3) - start
            if at != end:
                parts.append(view[begin:end])
                begin = at
            end = at + lengths[number]
        parts.append(view[begin:end])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _verify(
        self, view: memoryview, start: int, first: int, stop: int, stats: FooterStats
    ) -> None:
        """Check that the frames are those of the index, and whole; count them."""
        segment, _file, places, _first, _stop = self.part
        starts = [(position << 3) - start for position in places.positions[first:stop]]
        lengths = places.lengths[first:stop]
        if starts[-1] + lengths[-1] > len(view):
            cut = next(i for i, at in enumerate(starts) if at + lengths[i] > len(view))
            raise self._damaged(first + cut, "segment is cut short")
        heads = b"".join([view[at : at + 80] for at in starts])
        columns: list[tuple[Any, ...]] = list(zip(*fmt.FRAME_HEAD.iter_unpack(heads), strict=True))
        payloads = [at + 80 + runs * 24 for at, runs in zip(starts, columns[6], strict=True)]
        crc32 = zlib.crc32
        crcs = [
            crc32(view[at : at + 12], crc32(view[at + 16 : payload], crc32(view[payload : at + n])))
            for at, payload, n in zip(starts, payloads, lengths, strict=True)
        ]
        if (
            tuple(crcs) != columns[2]
            or columns[0] != tuple(places.offsets[first:stop])
            or columns[1] != tuple([length - fmt.FRAME_PREFIX_BYTES for length in lengths])
            or not {fmt.KIND_ARROW, fmt.KIND_ROWS}.issuperset(columns[3])
            or set(columns[4]) != {segment.salt}
            or set(columns[7]) != {self.spec.id}
            or set(columns[12]) != {segment.generation}
        ):
            self._raise_damaged(first, columns, crcs)
        runs = b"".join(
            [view[at + 80 : end] for at, end in zip(starts, payloads, strict=True) if end - at > 80]
        )
        stats.add_columns(heads, columns, runs, lengths)

    def _raise_damaged(
        self, first: int, columns: list[tuple[Any, ...]], crcs: Sequence[int]
    ) -> None:
        for number, head in enumerate(zip(*columns, strict=True), first):
            if crcs[number - first] != head[2]:
                raise self._damaged(number, "checksum does not match")
            self._check_head(number, fmt.FrameHead(*head))

    def _check_head(self, number: int, head: fmt.FrameHead) -> None:
        segment, places = self.part.segment, self.part.places
        if (
            head.offset != places.offsets[number]
            or (head.topic, head.salt) != (self.spec.id, segment.salt)
            or head.generation != segment.generation
            or not 0 < head.kind <= fmt.KIND_ROWS
            or head.length + fmt.FRAME_PREFIX_BYTES != places.lengths[number]
        ):
            raise self._damaged(number, "frame is not the one of the index")

    def large(self, number: int, stats: FooterStats) -> Iterator[Buffer]:
        """Yield a frame that is larger than a window; it is verified before its last piece."""
        places = self.part.places
        start, length = places.positions[number] << 3, places.lengths[number]
        head = fmt.read_head(self._read(start, fmt.FRAME_HEAD_BYTES).ljust(80, b"\0"), 0)
        runs_end = fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
        if runs_end > length:
            raise self._damaged(number, "length does not fit")
        front = self._read(start, runs_end)
        crc = 0
        before: Buffer = front
        for at in range(runs_end, length, WINDOW_BYTES):
            yield before
            data = self._read(start + at, min(WINDOW_BYTES, length - at))
            crc = zlib.crc32(data, crc)
            before = data
        if zlib.crc32(front[:12], zlib.crc32(front[fmt.FRAME_PREFIX_BYTES :], crc)) != head.crc:
            raise self._damaged(number, "checksum does not match")
        self._check_head(number, head)
        stats.add(front[: fmt.FRAME_HEAD_BYTES], front[fmt.FRAME_HEAD_BYTES :], [length])
        yield before

    def _read(self, position: int, size: int) -> bytes:
        try:
            return read_fully(self.part.file, position, size)
        except OSError as error:
            raise Unavailable(
                "segment cannot be read", path=self.part.segment.path, error=error
            ) from error

    def _damaged(self, number: int, reason: str) -> CorruptionError:
        places = self.part.places
        following = places.offsets[number + 1] if number + 1 < places.count else places.end
        return CorruptionError(
            "stored records are damaged, run `frazil doctor`; they cannot be uploaded",
            topic=self.spec.name,
            offset_first=places.offsets[number],
            offset_next=following,
            reason=reason,
            segment=self.part.segment.id,
            position=places.positions[number] << 3,
        )


class JournalFrames:
    """The frames of a journal's topics, verbatim; see `FrameSource`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def available(self, topic_id: int) -> tuple[int, int]:
        state = self._topic(topic_id)
        return state.start, state.durable

    def frames(
        self, topic_id: int, first: int, *, bytes_max: int, end: int | None = None
    ) -> UploadRange:
        state = self._topic(topic_id)
        if first < state.start:
            raise _gone(state, first)
        limit = state.durable if end is None else min(end, state.durable)
        choice = _Choice(state, self._journal.segments, first, limit, bytes_max)
        choice.run()
        if first < state.start:
            # The frames were freed during the search: nothing is damaged.
            raise _gone(state, first)
        return _upload_range(
            state,
            first=first,
            end=choice.offset,
            size=choice.size,
            ranges=choice.ranges,
            read=partial(_read_segments, state.spec, choice.parts),
        )

    def _topic(self, topic_id: int) -> TopicState:
        state = self._journal.state.topics.get(topic_id)
        if state is None:
            raise NotFound("no such topic in this journal", topic_id=topic_id)
        return state


def _upload_range(
    state: TopicState,
    *,
    first: int,
    end: int,
    size: int,
    ranges: Sequence[Range],
    read: Callable[[FooterStats], Iterator[Buffer]],
) -> UploadRange:
    return UploadRange(
        spec=state.spec,
        schemas=dict(state.schemas),
        producers={found.id: found.name for found in list(state.producers.values())},
        first=first,
        end=end,
        size=size,
        ranges=tuple(ranges),
        read=read,
    )


def _gone(state: TopicState, offset: int) -> NotFound:
    return NotFound("offset is no longer in the log", offset=offset, offset_first=state.start)


class _Choice:
    """Chooses the frames of a range, frame by frame and over gaps, up to a limit."""

    def __init__(
        self,
        state: TopicState,
        segments: Sequence[Segment],
        first: int,
        limit: int,
        bytes_max: int,
    ) -> None:
        self._state = state
        self._special = list(state.ranges)
        self._segments = segments
        self._limit = limit
        self._bytes_max = bytes_max
        self.offset = first
        self.size = 0
        self.ranges: list[Range] = []
        self.parts: list[_SegmentFrames] = []

    def run(self) -> None:
        while self.offset < self._limit and self.size < self._bytes_max:
            number = bisect_right(self._special, self.offset, key=_first) - 1
            special = self._special[number] if number >= 0 else None
            if special is not None and special.end > self.offset:
                more = self._take_gap(special)
            else:
                more = self._take_frames()
            if not more:
                return

    def _take_gap(self, special: SpecialRange) -> bool:
        if special.end > self._limit or len(self.ranges) >= RANGES_MAX:
            return False
        self.ranges.append(Range(self.offset, special.end, special.kind, special.reason))
        self.offset = special.end
        return True

    def _take_frames(self) -> bool:
        for segment in self._segments:
            summary = segment.summary(self._state.id)
            if summary is None or summary[1] <= self.offset:
                continue
            if summary[0] > self.offset:
                break
            try:
                places, file = segment.places(self._state.id), segment.file()
            except OSError as error:
                raise Unavailable(
                    "segment cannot be opened, try again", path=segment.path, error=error
                ) from error
            assert places is not None
            return self._take(segment, file, places)
        return self._nothing_here()

    def _take(self, segment: Segment, file: File, places: Places) -> bool:
        first = places.find(self.offset)
        if self._end(places, first) <= self.offset:
            return self._nothing_here()
        border = self._limit
        number = bisect_left(self._special, self.offset, key=_first)
        if number < len(self._special):
            border = min(border, self._special[number].first)
        # A frame belongs to the range if it ends at or below the border.
        stop = bisect_right(places.offsets, border, first, places.count)
        if stop > first and self._end(places, stop - 1) > border:
            stop -= 1
        if stop <= first:
            return False
        fitting, size = _fitting(places, first, stop, self._bytes_max - self.size)
        if fitting == first and not self.size:
            fitting, size = first + 1, places.lengths[first]
        if fitting == first:
            return False
        self.parts.append(_SegmentFrames(segment, file, places, first, fitting))
        self.size += size
        self.offset = self._end(places, fitting - 1)
        return fitting == stop

    def _end(self, places: Places, number: int) -> int:
        """Return the offset after a frame: the beginning of the next frame or gap."""
        # In this order: the journal adds the next frame's offset before it moves the end.
        following = places.end
        if number + 1 < len(places.offsets):
            following = places.offsets[number + 1]
        special = bisect_right(self._special, places.offsets[number], key=_first)
        if special < len(self._special):
            following = min(following, self._special[special].first)
        return following

    def _nothing_here(self) -> bool:
        """Stop before offsets without a frame; it is damage if they come first."""
        if self.parts or self.ranges or self.offset < self._state.start:
            return False
        raise CorruptionError(
            "no segment holds this offset, run `frazil doctor`; it cannot be uploaded",
            topic=self._state.spec.name,
            offset_first=self.offset,
            offset_next=self._limit,
        )


def _fitting(places: Places, first: int, stop: int, room: int) -> tuple[int, int]:
    """Return the number after the last frame that fits into `room` bytes, and the bytes used."""
    size = 0
    for start in range(first, stop, FITTING_FRAMES):
        lengths = places.lengths[start : min(stop, start + FITTING_FRAMES)]
        if size + sum(lengths) > room:
            sizes = list(accumulate(lengths, initial=size))
            count = bisect_right(sizes, room) - 1
            return start + count, sizes[count]
        size += sum(lengths)
    return stop, size


def _first(special: SpecialRange) -> int:
    return special.first


# -- from journal or files ---------------------------------------------------------------------------


class TopicFrames:
    """The frames of an engine's topics, from the journal or else from files; see `FrameSource`."""

    def __init__(self, topics: Mapping[int, TopicRuntime]) -> None:
        self._topics = topics
        self._damaged: dict[int, tuple[int, int]] = {}
        """A range that is damaged in the journal, by topic: files may have it."""

    def note_damage(self, topic_id: int, error: CorruptionError) -> bool:
        """Record a damaged range of the journal; tell whether files have it."""
        first, end = error.details.get("offset_first"), error.details.get("offset_next")
        runtime = self._topics.get(topic_id)
        if runtime is None or not isinstance(first, int) or not isinstance(end, int):
            return False
        known = self._damaged.get(topic_id) == (first, end)
        self._damaged[topic_id] = (first, end)
        return not known and _in_files(runtime, first)

    def available(self, topic_id: int) -> tuple[int, int]:
        runtime = self._runtime(topic_id)
        return _first_held(runtime), runtime.state.durable

    def frames(
        self, topic_id: int, first: int, *, bytes_max: int, end: int | None = None
    ) -> UploadRange:
        runtime = self._runtime(topic_id)
        low, high = self._damaged.get(topic_id, (0, 0))
        if low <= first < high and _in_files(runtime, first):
            end = high if end is None else min(high, end)
            return _reframed(runtime, first, bytes_max, end)
        if first >= runtime.state.start:
            try:
                found = JournalFrames(runtime.log.journal)
                return found.frames(topic_id, first, bytes_max=bytes_max, end=end)
            except NotFound:
                # Freed meanwhile: files have it.
                if runtime.tiers is None:
                    raise
        if not _in_files(runtime, first):
            raise NotFound(
                "offset is held neither by the log nor by files",
                topic=runtime.name,
                offset=first,
                offset_first=_first_held(runtime),
            )
        return _reframed(runtime, first, bytes_max, end)

    def _runtime(self, topic_id: int) -> TopicRuntime:
        found = self._topics.get(topic_id)
        if found is None:
            raise NotFound("no such topic", topic_id=topic_id)
        return found


def _first_held(runtime: TopicRuntime) -> int:
    """Return the first offset that the log or files have."""
    start = runtime.state.start
    if runtime.tiers is None:
        return start
    disk = runtime.tiers.disk
    held = disk.start(runtime.state.id)
    return min(held, start) if disk.flushed(runtime.state.id) > held else start


def _in_files(runtime: TopicRuntime, offset: int) -> bool:
    picture = runtime.tiers.disk.picture(runtime.state.id) if runtime.tiers else None
    return picture is not None and picture.start <= offset < picture.flushed


def _reframed(runtime: TopicRuntime, first: int, bytes_max: int, end: int | None) -> UploadRange:
    """Frame records from files again: up to a gap, or at least one frame.

    Raises:
        Unavailable: files were merged again and again while they were read.
    """
    assert runtime.tiers is not None
    for _ in range(FILE_READS_MAX):
        picture = runtime.tiers.disk.picture(runtime.state.id)
        limit = min(picture.flushed, runtime.state.durable)
        if end is not None:
            limit = min(limit, end)
        offset, ranges = first, []
        while (gap := picture.gap_at(offset)) is not None and offset < limit:
            ranges.append(Range(offset, min(gap.end, limit), gap.kind, gap.reason))
            offset = ranges[-1].end
        behind = picture.gap_behind(offset)
        if behind is not None:
            limit = min(limit, behind)
        frames: list[bytes] = []
        try:
            if offset < limit:
                size_max = min(bytes_max, REFRAMED_BYTES_MAX)
                frames, offset = _made_frames(runtime, picture, offset, limit, size_max)
        except FileGone:
            # It was merged with others meanwhile: the new picture has the merged file.
            continue
        return _upload_range(
            runtime.state,
            first=first,
            end=offset,
            size=sum(map(len, frames)),
            ranges=ranges,
            read=partial(_read_made, frames),
        )
    raise Unavailable("files are being moved, try again", topic=runtime.name, offset=first)


def _read_made(frames: Sequence[bytes], stats: FooterStats) -> Iterator[Buffer]:
    for data in frames:
        runs = fmt.read_head(data, 0).runs * fmt.RUN.size
        head = data[: fmt.FRAME_HEAD_BYTES]
        stats.add(head, data[fmt.FRAME_HEAD_BYTES : fmt.FRAME_HEAD_BYTES + runs], [len(data)])
        yield data


def _made_frames(
    runtime: TopicRuntime, picture: TopicFiles, first: int, end: int, bytes_max: int
) -> tuple[list[bytes], int]:
    """Make frames of the rows of `[first, end)`; return them and the offset after the last."""
    assert runtime.tiers is not None
    topic, disk = runtime.state.id, runtime.tiers.disk
    known, covered = _sent_runs(runtime, picture, first)
    runs = Runs(known)
    end = runs.begun(min(end, covered), first=first)
    reframer = Reframer(runs, topic=topic, keyed=bool(runtime.state.spec.primary_key))
    frames: list[bytes] = []
    size, offset = 0, first
    for frame in reframer.frames(_stored(disk.history, topic, first, end)):
        size += len(frame.data)
        if frames and size > bytes_max:
            break
        frames.append(frame.data)
        offset = frame.offset + frame.records
    return frames, offset


def _stored(history: DiskHistory, topic: int, first: int, end: int) -> Iterator[StoredRows]:
    """Yield the rows of `[first, end)` as files have them."""
    offset = first
    while offset < end:
        rows = history.stored(topic, offset=offset, bytes_max=FILE_READ_BYTES)
        count = min(rows.batch.num_rows, end - offset)
        if count < rows.batch.num_rows:
            rows = rows._replace(batch=rows.batch.slice(0, count))
        yield rows
        offset += count


def _sent_runs(runtime: TopicRuntime, picture: TopicFiles, first: int) -> tuple[list[SentRun], int]:
    """Return the producer runs of the next flush sets, and the end of these sets."""
    assert runtime.tiers is not None
    readers = runtime.tiers.disk.readers
    found: list[SentRun] = []
    covered, size = first, 0
    for span in picture.spans:
        if span.end <= first:
            continue
        found += [run for file in span.files for run in readers.reader(file).runs()]
        covered = span.end
        size += sum(file.bytes for file in span.files)
        if size > REFRAMED_BYTES_MAX:
            break
    return found, covered
