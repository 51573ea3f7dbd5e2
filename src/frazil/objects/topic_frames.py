"""Where the frames of an upload come from: the log, and for what it has let go the disk tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.log import format as fmt
from frazil.objects.descriptor import Hint
from frazil.objects.format import Range
from frazil.objects.frame_run import Tally, Topic
from frazil.objects.frames import JournalFrames
from frazil.objects.reframe import MadeFrame, Reframer, Runs
from frazil.objects.store import PIECE_BYTES_MAX
from frazil.tiers import FileGone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import Buffer

    from frazil.objects.frame_run import FrameRun
    from frazil.tiers import DiskHistory, SentRun, StoredRows, TopicFiles
    from frazil.topic import TopicRuntime

__all__ = ["EngineFrames"]

REFRAMED_BYTES_MAX: Final = 8 << 20
"""Frames that are made again are kept while they are uploaded: they go by twice, the same."""
READ_BYTES: Final = 2 << 20
ATTEMPTS_MAX: Final = 10


@attrs.frozen(kw_only=True)
class ReframedRun:
    """A run of frames that were made again from files; see `FrameRun`."""

    topic: Topic
    first: int
    end: int
    ranges: tuple[Range, ...]
    frames: tuple[MadeFrame, ...]
    hint: Hint

    @property
    def size(self) -> int:
        return sum(len(frame.data) for frame in self.frames)

    def pieces(self, tally: Tally | None = None) -> Iterator[Buffer]:
        for frame in self.frames:
            view = memoryview(frame.data)
            if tally is not None:
                head = fmt.read_head(view, 0)
                runs_end = fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
                tally.add(head, view[fmt.FRAME_HEAD_BYTES : runs_end], len(view))
            for at in range(0, len(view), PIECE_BYTES_MAX):
                yield view[at : at + PIECE_BYTES_MAX]


class EngineFrames:
    """The frames of an engine's topics, by their ids; see `FrameSource`."""

    def __init__(self, topics: Mapping[int, TopicRuntime]) -> None:
        self._topics = topics
        self._damaged: dict[int, tuple[int, int]] = {}
        """Where the log was found damaged, by topic: files may have it."""

    def note_damage(self, topic_id: int, error: CorruptionError) -> bool:
        """Take note that the log cannot give some frames; tell whether files will be asked."""
        first, end = error.details.get("offset_first"), error.details.get("offset_next")
        runtime = self._topics.get(topic_id)
        if runtime is None or not isinstance(first, int) or not isinstance(end, int):
            return False
        known = self._damaged.get(topic_id) == (first, end)
        self._damaged[topic_id] = (first, end)
        return not known and self._in_files(runtime, first)

    def available(self, topic_id: int) -> tuple[int, int]:
        runtime = self._runtime(topic_id)
        state = runtime.state
        return self._first(runtime), state.durable

    def frames(
        self, topic_id: int, first: int, *, bytes_max: int, end: int | None = None
    ) -> FrameRun:
        runtime = self._runtime(topic_id)
        low, high = self._damaged.get(topic_id, (0, 0))
        if low <= first < high and self._in_files(runtime, first):
            return self._reframed(
                runtime, first, bytes_max, high if end is None else min(high, end)
            )
        if first >= runtime.state.start:
            try:
                found = JournalFrames(runtime.log.journal)
                return found.frames(topic_id, first, bytes_max=bytes_max, end=end)
            except NotFound:
                # Freed while we looked: files have it.
                if runtime.tiers is None:
                    raise
        if runtime.tiers is None or not self._in_files(runtime, first):
            raise NotFound(
                "offset is held neither by the log nor by files",
                topic=runtime.name,
                offset=first,
                offset_first=self._first(runtime),
            )
        return self._reframed(runtime, first, bytes_max, end)

    def _runtime(self, topic_id: int) -> TopicRuntime:
        found = self._topics.get(topic_id)
        if found is None:
            raise NotFound("no such topic", topic_id=topic_id)
        return found

    def _first(self, runtime: TopicRuntime) -> int:
        """Return the first offset that the log or files have."""
        start = runtime.state.start
        if runtime.tiers is None:
            return start
        disk = runtime.tiers.disk
        held = disk.start(runtime.state.id)
        return min(held, start) if disk.flushed(runtime.state.id) > held else start

    def _in_files(self, runtime: TopicRuntime, offset: int) -> bool:
        picture = runtime.tiers.disk.picture(runtime.state.id) if runtime.tiers else None
        return picture is not None and picture.start <= offset < picture.flushed

    # -- made again --------------------------------------------------------------------------------

    def _reframed(
        self, runtime: TopicRuntime, first: int, bytes_max: int, end: int | None
    ) -> ReframedRun:
        """Make the frames from `first` on: up to a gap, or at least one frame.

        Raises:
            Unavailable: files were joined again and again while they were looked at.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._reframed_once(runtime, first, bytes_max, end)
            except FileGone:
                # It was joined with others meanwhile: the new picture has the joined one.
                continue
        raise Unavailable("files are being moved, try again", topic=runtime.name, offset=first)

    def _reframed_once(
        self, runtime: TopicRuntime, first: int, bytes_max: int, end: int | None
    ) -> ReframedRun:
        assert runtime.tiers is not None
        topic, disk = runtime.state.id, runtime.tiers.disk
        picture = disk.picture(topic)
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
        frames: list[MadeFrame] = []
        if offset < limit:
            frames = self._made(runtime, picture, offset, limit, min(bytes_max, REFRAMED_BYTES_MAX))
            last = frames[-1]
            offset = last.offset + last.records
        return ReframedRun(
            topic=self._topic(runtime),
            first=first,
            end=offset,
            ranges=tuple(ranges),
            frames=tuple(frames),
            hint=Hint(),
        )

    def _made(
        self, runtime: TopicRuntime, picture: TopicFiles, first: int, end: int, bytes_max: int
    ) -> list[MadeFrame]:
        assert runtime.tiers is not None
        topic, disk = runtime.state.id, runtime.tiers.disk
        known, covered = self._runs(runtime, picture, first)
        runs = Runs(known)
        end = runs.begun(min(end, covered), first=first)
        keyed = bool(runtime.state.spec.primary_key)
        reframer = Reframer(runs, topic=topic, keyed=keyed)
        frames: list[MadeFrame] = []
        size = 0
        for frame in reframer.frames(_stored(disk.history, topic, first, end)):
            size += len(frame.data)
            if frames and size > bytes_max:
                break
            frames.append(frame)
        return frames

    def _runs(
        self, runtime: TopicRuntime, picture: TopicFiles, first: int
    ) -> tuple[list[SentRun], int]:
        """Return the runs of some sets, and where these end: no more of them than are needed."""
        assert runtime.tiers is not None
        readers = runtime.tiers.disk.readers
        found: list[SentRun] = []
        covered = first
        size = 0
        for span in picture.spans:
            if span.end <= first:
                continue
            found += [run for file in span.files for run in readers.reader(file).runs()]
            covered = span.end
            size += sum(file.bytes for file in span.files)
            if size > REFRAMED_BYTES_MAX:
                break
        return found, covered

    def _topic(self, runtime: TopicRuntime) -> Topic:
        state = runtime.state
        producers = {found.id: found.name for found in list(state.producers.values())}
        return Topic(state.spec, dict(state.schemas), producers)


def _stored(history: DiskHistory, topic: int, first: int, end: int) -> Iterator[StoredRows]:
    """Yield the rows of `[first, end)` as files have them."""
    offset = first
    while offset < end:
        rows = history.stored(topic, offset=offset, bytes_max=READ_BYTES)
        count = min(rows.batch.num_rows, end - offset)
        if count < rows.batch.num_rows:
            rows = rows._replace(batch=rows.batch.slice(0, count))
        yield rows
        offset += count
