"""Frames for uploads: verbatim from the journal, or rebuilt from files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.log import Frame, covering
from frazil.objects.reframe import Reframer, Runs
from frazil.tiers import FileGone

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from frazil.log import SpecialRange, TopicState
    from frazil.tiers import DiskTier, SentRun, StoredRows, TopicFiles
    from frazil.topic import TopicRuntime

__all__ = ["TopicFrames"]

READ_BYTES: Final = 1 << 20
"""The approximate limit of the bytes of frames that are read at once."""
FRAMED_BYTES_MAX: Final = 8 << 20
"""The approximate limit of the bytes of frames that are made from files at once."""
FILE_READ_BYTES: Final = 2 << 20
FILE_READS_MAX: Final = 10
"""Attempts to read files that are being merged."""


class TopicFrames:
    """The frames of an engine's topics to upload. Any thread may call."""

    def __init__(self, topics: Mapping[int, TopicRuntime]) -> None:
        self._topics = topics

    def available(self, topic_id: int) -> tuple[int, int]:
        """Return the first offset that the log or files have, and the end of durable records."""
        runtime = self._runtime(topic_id)
        start, picture = runtime.state.start, _files(runtime)
        if picture is not None and picture.flushed > picture.start:
            start = min(picture.start, start)
        return start, runtime.state.durable

    def state(self, topic_id: int) -> TopicState:
        """Return the topic's state in the journal: definition, columns, producers."""
        return self._runtime(topic_id).state

    def gap(self, topic_id: int, offset: int) -> SpecialRange | None:
        """Return the gap or lost range from an offset on, None if the offset has a record."""
        runtime = self._runtime(topic_id)
        special = covering(list(runtime.state.ranges), offset)
        if special is None and offset < runtime.state.start:
            picture = _files(runtime)
            special = None if picture is None else picture.gap_at(offset)
        return special and special._replace(first=offset)

    def frames(self, topic_id: int, *, offset: int, end: int) -> list[Frame]:
        """Return verified frames in order, without a gap; the first of them has `offset`.

        Frames are read from the log. If the log has freed them or they are damaged there, they are
        made from files.

        Raises:
            NotFound: neither has the offset; `offset_first` is the first one left in the log.
            CorruptionError: the frame is damaged; the details name the lost offsets.
        """
        runtime = self._runtime(topic_id)
        try:
            return runtime.log.source.frames(topic_id, offset=offset, end=end, bytes_max=READ_BYTES)
        except (NotFound, CorruptionError):
            picture = _files(runtime)
            if picture is None or not picture.start <= offset < picture.flushed:
                raise
        for _ in range(FILE_READS_MAX):
            # A missing file was merged with others: the new picture has the merged file.
            with contextlib.suppress(FileGone):
                return _framed_again(runtime, offset, end)
        raise Unavailable("files are being moved, try again", topic=runtime.name, offset=offset)

    def _runtime(self, topic_id: int) -> TopicRuntime:
        found = self._topics.get(topic_id)
        if found is None:
            raise NotFound("no such topic", topic_id=topic_id)
        return found


def _files(runtime: TopicRuntime) -> TopicFiles | None:
    return None if runtime.tiers is None else runtime.tiers.disk.picture(runtime.state.id)


def _framed_again(runtime: TopicRuntime, first: int, end: int) -> list[Frame]:
    """Make frames of the rows in files from `first` on: up to a gap, at least one."""
    assert runtime.tiers is not None
    topic, disk = runtime.state.id, runtime.tiers.disk
    picture = disk.picture(topic)
    known, covered = _sent_runs(disk, picture, first)
    limit = min(picture.flushed, end, covered, picture.gap_behind(first) or covered)
    runs = Runs(known)
    reframer = Reframer(runs, topic=topic, keyed=bool(runtime.state.spec.primary_key))
    frames: list[Frame] = []
    size = 0
    for frame in reframer.frames(_stored(disk, topic, first, runs.begun(limit, first=first))):
        size += len(frame.buffer)
        if frames and size > FRAMED_BYTES_MAX:
            break
        frames.append(frame)
    return frames


def _stored(disk: DiskTier, topic: int, first: int, end: int) -> Iterator[StoredRows]:
    """Yield the rows of `[first, end)` from files."""
    offset = first
    while offset < end:
        rows = disk.history.stored(topic, offset=offset, bytes_max=FILE_READ_BYTES)
        rows = rows._replace(batch=rows.batch.slice(0, end - offset))
        yield rows
        offset += rows.batch.num_rows


def _sent_runs(disk: DiskTier, picture: TopicFiles, first: int) -> tuple[list[SentRun], int]:
    """Return the producer runs of the next flush sets, and the end of these sets."""
    found: list[SentRun] = []
    covered, size = first, 0
    for span in picture.spans:
        if span.end <= first:
            continue
        found += [run for file in span.files for run in disk.readers.reader(file).runs()]
        covered = span.end
        size += sum(file.bytes for file in span.files)
        if size > FRAMED_BYTES_MAX:
            break
    return found, covered
