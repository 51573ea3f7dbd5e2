"""Frames of a journal on their way into objects, verbatim.

`JournalFrames` gives a topic's frames as the journal has them, found by their places: whole ones
only, below `durable` only. First their heads are counted and hashed, then the frames themselves go
by once, verified as they are sent: no object needs more memory than a piece of it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.fs import read_fully
from frazil.log import format as fmt
from frazil.objects.descriptor import Hint
from frazil.objects.format import Range
from frazil.objects.frame_run import (
    Heads,
    Tally,
    Topic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

    from frazil.fs import File
    from frazil.log import Journal, Places, Segment, SpecialRange, TopicState
    from frazil.model import TopicSpec

__all__ = ["JournalFrames"]

WINDOW_BYTES: Final = 1 << 20
"""So much is read at once; a larger frame is read in pieces of this."""
HOLE_BYTES_MAX: Final = 4 << 10
"""Neighbouring frames of a topic are read at once over holes of at most this many bytes."""
HEAD_BYTES: Final = fmt.FRAME_HEAD_BYTES + 4 * fmt.RUN.size
LONE_BYTES_MIN: Final = 8 << 10
"""The heads of frames that are larger than this are read one by one, without what is between."""
FITTING_FRAMES: Final = 1 << 14
"""So many lengths are added up at once: a large object can have millions of frames."""
RANGES_MAX: Final = 1_000
"""A run ends when it has so many gaps, so that its descriptor stays small."""


class _Stretch(NamedTuple):
    """Frames `[first, stop)` of a topic in one segment."""

    segment: Segment
    file: File
    places: Places
    first: int
    stop: int


@attrs.frozen(kw_only=True)
class JournalRun:
    """A run of frames as they lie in the segments of a journal; see `FrameRun`."""

    topic: Topic
    first: int
    end: int
    size: int
    ranges: tuple[Range, ...]
    hint: Hint
    stretches: tuple[_Stretch, ...]

    def pieces(self, tally: Tally | None = None) -> Iterator[Buffer]:
        for stretch in self.stretches:
            reading = _Reading(stretch, self.topic.spec)
            for first, stop in reading.windows():
                if stop - first == 1 and stretch.places.lengths[first] > WINDOW_BYTES:
                    yield from reading.large(first, tally)
                else:
                    yield from reading.window(first, stop, tally)

    def count(self, tally: Tally) -> None:
        for stretch in self.stretches:
            reading = _Reading(stretch, self.topic.spec)
            for first, stop in reading.windows():
                reading.count_heads(first, stop, tally)


class _Reading(NamedTuple):
    """Reads frames of a stretch."""

    stretch: _Stretch
    spec: TopicSpec

    def windows(self) -> Iterator[tuple[int, int]]:
        """Yield numbers `[first, stop)` of frames to read at once."""
        _segment, _file, places, number, stop = self.stretch
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

    def window(self, first: int, stop: int, tally: Tally | None) -> Iterator[Buffer]:
        """Yield frames that are read at once, without what is between; verified with a tally."""
        places = self.stretch.places
        positions, lengths = places.positions, places.lengths
        start = positions[first] << 3
        data = self._read(start, (positions[stop - 1] << 3) + lengths[stop - 1] - start)
        view = memoryview(data)
        if tally is not None:
            self._verify(view, start, first, stop, tally)
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
        yield parts[0] if len(parts) == 1 else b"".join(parts)

    def _verify(self, view: memoryview, start: int, first: int, stop: int, tally: Tally) -> None:
        heads, starts = self._heads(view, start, first, stop)
        lengths = self.stretch.places.lengths[first:stop]
        payloads = [at + 80 + runs * 24 for at, runs in zip(starts, heads.columns[6], strict=True)]
        crc32 = zlib.crc32
        crcs = [
            crc32(view[at : at + 12], crc32(view[at + 16 : payload], crc32(view[payload : at + n])))
            for at, payload, n in zip(starts, payloads, lengths, strict=True)
        ]
        if tuple(crcs) != heads.columns[2]:
            found = zip(crcs, heads.columns[2], strict=True)
            number = next(i for i, (crc, promised) in enumerate(found) if crc != promised)
            raise self._damaged(first + number, "checksum does not match")
        tally.add_all(heads, _runs(view, starts, heads), lengths)

    def _heads(
        self, view: memoryview, start: int, first: int, stop: int
    ) -> tuple[Heads, list[int]]:
        """Return the heads of frames in bytes that were read at `start`, and where they begin.

        Raises:
            CorruptionError: the bytes end before, or a head is not the one that was written here.
        """
        segment, _file, places, _first, _stop = self.stretch
        starts = [(position << 3) - start for position in places.positions[first:stop]]
        lengths = places.lengths[first:stop]
        if starts[-1] + lengths[-1] > len(view):
            cut = next(i for i, at in enumerate(starts) if at + lengths[i] > len(view))
            raise self._damaged(first + cut, "segment is cut short")
        heads = Heads(b"".join([view[at : at + 80] for at in starts]))
        columns = heads.columns
        if (
            columns[0] != tuple(places.offsets[first:stop])
            or columns[1] != tuple([length - fmt.FRAME_PREFIX_BYTES for length in lengths])
            or not {1, 2}.issuperset(columns[3])
            or set(columns[4]) != {segment.salt}
            or set(columns[7]) != {self.spec.id}
            or set(columns[12]) != {segment.generation}
            or any(
                runs * 24 > length - 80 for runs, length in zip(columns[6], lengths, strict=True)
            )
        ):
            for number, head in enumerate(zip(*columns, strict=True), first):
                self._check_head(number, head, 80 + head[6] * 24)
        return heads, starts

    def count_heads(self, first: int, stop: int, tally: Tally) -> None:
        """Count frames by their heads: read one by one if they are large, else at once."""
        places = self.stretch.places
        start = places.positions[first] << 3
        size = (places.positions[stop - 1] << 3) + places.lengths[stop - 1] - start
        if size > LONE_BYTES_MIN * (stop - first):
            for number in range(first, stop):
                self._count_lone(number, tally)
            return
        view = memoryview(self._read(start, size))
        heads, starts = self._heads(view, start, first, stop)
        tally.add_all(heads, _runs(view, starts, heads), places.lengths[first:stop])

    def _count_lone(self, number: int, tally: Tally) -> None:
        places = self.stretch.places
        at = places.positions[number] << 3
        data = memoryview(self._read(at, HEAD_BYTES))
        if len(data) < fmt.FRAME_HEAD_BYTES:
            raise self._damaged(number, "segment is cut short")
        head = fmt.FRAME_HEAD.unpack_from(data, 0)
        runs_end = fmt.FRAME_HEAD_BYTES + head[6] * fmt.RUN.size
        self._check_head(number, head, runs_end)
        if runs_end > len(data):
            data = memoryview(self._read(at, runs_end))
        tally.add(head, data[fmt.FRAME_HEAD_BYTES : runs_end], places.lengths[number])

    def _check_head(self, number: int, head: tuple[Any, ...], runs_end: int) -> None:
        segment, _file, places, _first, _stop = self.stretch
        if (
            head[0] != places.offsets[number]
            or head[7] != self.spec.id
            or head[4] != segment.salt
            or head[12] != segment.generation
            or not 0 < head[3] <= fmt.KIND_ROWS
            or head[1] + fmt.FRAME_PREFIX_BYTES != places.lengths[number]
            or runs_end > places.lengths[number]
        ):
            raise self._damaged(number, "frame is not the one that was written here")

    def large(self, number: int, tally: Tally | None) -> Iterator[Buffer]:
        """Yield a frame that is larger than a window; with a tally its last piece is verified."""
        places = self.stretch.places
        start, length = places.positions[number] << 3, places.lengths[number]
        head = fmt.read_head(self._read(start, fmt.FRAME_HEAD_BYTES).ljust(80, b"\0"), 0)
        runs_end = fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
        if head.length + fmt.FRAME_PREFIX_BYTES != length or runs_end > length:
            raise self._damaged(number, "length does not fit")
        front = self._read(start, runs_end)
        crc = 0
        before: Buffer = front
        for at in range(runs_end, length, WINDOW_BYTES):
            yield before
            data = self._read(start + at, min(WINDOW_BYTES, length - at))
            crc = zlib.crc32(data, crc)
            before = data
        if tally is not None:
            self._check_large(number, head, front, crc)
            tally.add(head, memoryview(front)[fmt.FRAME_HEAD_BYTES :], length)
        yield before

    def _check_large(self, number: int, head: fmt.FrameHead, front: bytes, crc: int) -> None:
        segment = self.stretch.segment
        crc = zlib.crc32(front[:12], zlib.crc32(front[fmt.FRAME_PREFIX_BYTES :], crc))
        if (
            crc != head.crc
            or head.offset != self.stretch.places.offsets[number]
            or (head.topic, head.salt) != (self.spec.id, segment.salt)
            or head.generation != segment.generation
            or not 0 < head.kind <= fmt.KIND_ROWS
        ):
            raise self._damaged(number, "frame is not the one that was written here")

    def _read(self, position: int, size: int) -> bytes:
        try:
            return read_fully(self.stretch.file, position, size)
        except OSError as error:
            raise Unavailable(
                "segment cannot be read", path=self.stretch.segment.path, error=error
            ) from error

    def _damaged(self, number: int, reason: str) -> CorruptionError:
        places = self.stretch.places
        following = places.offsets[number + 1] if number + 1 < places.count else places.end
        return CorruptionError(
            "stored records are damaged, run `frazil doctor`; they cannot be uploaded",
            topic=self.spec.name,
            offset_first=places.offsets[number],
            offset_next=following,
            reason=reason,
            segment=self.stretch.segment.id,
            position=places.positions[number] << 3,
        )


def _runs(view: memoryview, starts: Sequence[int], heads: Heads) -> bytes:
    """Return the encoded producer runs of frames, one behind another."""
    if not any(heads.columns[6]):
        return b""
    found = zip(starts, heads.columns[6], strict=True)
    return b"".join([view[at + 80 : at + 80 + runs * 24] for at, runs in found if runs])


class JournalFrames:
    """The frames of a journal's topics, as they lie there; see `FrameSource`."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def available(self, topic_id: int) -> tuple[int, int]:
        state = self._topic(topic_id)
        return state.start, state.durable

    def frames(
        self, topic_id: int, first: int, *, bytes_max: int, end: int | None = None
    ) -> JournalRun:
        state = self._topic(topic_id)
        if first < state.start:
            raise _gone(state, first)
        limit = state.durable if end is None else min(end, state.durable)
        plan = _Plan(state, self._journal.segments, first, limit, bytes_max)
        plan.run()
        if first < state.start:
            # Freed while we looked: what was not found there is no damage.
            raise _gone(state, first)
        producers = {found.id: found.name for found in list(state.producers.values())}
        return JournalRun(
            topic=Topic(state.spec, dict(state.schemas), producers),
            first=first,
            end=plan.offset,
            size=plan.size,
            ranges=tuple(plan.ranges),
            hint=plan.hint,
            stretches=tuple(plan.stretches),
        )

    def _topic(self, topic_id: int) -> TopicState:
        state = self._journal.state.topics.get(topic_id)
        if state is None:
            raise NotFound("no such topic in this journal", topic_id=topic_id)
        return state


def _gone(state: TopicState, offset: int) -> NotFound:
    return NotFound("offset is no longer in the log", offset=offset, offset_first=state.start)


class _Plan:
    """Chooses the frames of a run: goes from frame to frame and over gaps, up to a limit."""

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
        self.stretches: list[_Stretch] = []
        self.hint = Hint()

    def run(self) -> None:
        while self.offset < self._limit and self.size < self._bytes_max:
            number = bisect_right(self._special, self.offset, key=_first) - 1
            special = self._special[number] if number >= 0 else None
            if special is not None and special.end > self.offset:
                going = self._over_gap(special)
            else:
                going = self._along_frames()
            if not going:
                return

    def _over_gap(self, special: SpecialRange) -> bool:
        if special.end > self._limit or len(self.ranges) >= RANGES_MAX:
            return False
        found = Range(self.offset, special.end, special.kind, special.reason)
        self.ranges.append(found)
        self.offset = special.end
        return True

    def _along_frames(self) -> bool:
        for segment in self._segments:
            summary = segment.summary(self._state.id)
            if summary is None or summary[1] <= self.offset:
                continue
            if summary[0] > self.offset:
                return self._nothing_here()
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
        # A frame belongs to the run if it ends at or below the border.
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
        self.stretches.append(_Stretch(segment, file, places, first, fitting))
        self.size += size
        last = fitting - 1
        self.offset = self._end(places, last)
        self.hint = Hint(segment.id, (places.positions[last] << 3) + places.lengths[last])
        return fitting == stop

    def _end(self, places: Places, number: int) -> int:
        """Return the offset behind a frame: where the next one or a gap begins."""
        # In this order: a writer adds the next frame's offset before it moves the end.
        following = places.end
        if number + 1 < len(places.offsets):
            following = places.offsets[number + 1]
        special = bisect_right(self._special, places.offsets[number], key=_first)
        if special < len(self._special):
            following = min(following, self._special[special].first)
        return following

    def _nothing_here(self) -> bool:
        """Stop before offsets that no frame holds; it is damage if they come first."""
        if self.stretches or self.ranges or self.offset < self._state.start:
            return False
        raise CorruptionError(
            "no segment holds this offset, run `frazil doctor`; it cannot be uploaded",
            topic=self._state.spec.name,
            offset_first=self.offset,
            offset_next=self._limit,
        )


def _fitting(places: Places, first: int, stop: int, room: int) -> tuple[int, int]:
    """Return how far frames from `first` on fit into `room` bytes, and how many bytes they have."""
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
