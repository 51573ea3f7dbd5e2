"""Open a journal: recover it, then create its active segment or resume the last one.

The order matters. The new segment, with the checkpoint and all frames not proven to be synced, is
durable before the old one is cut; only then is the old one sealed.
"""

from __future__ import annotations

import errno
import json
from contextlib import closing
from typing import TYPE_CHECKING, Final

import attrs
import msgspec

from frazil.errors import CorruptionError
from frazil.fs import File, read_fully, write_fully
from frazil.log import format as fmt
from frazil.log.checkpoint import encode_checkpoint
from frazil.log.index import FrameIndex
from frazil.log.recovery import Found, RecoveryReport, Survey
from frazil.log.segment import Segment, create_segment, segment_name
from frazil.log.state import RANGE_GAP, JournalState, SpecialRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from frazil.clock import Clock
    from frazil.config import LogSettings
    from frazil.fs import FileSystem
    from frazil.log.cursor_state import CursorState
    from frazil.log.segment import OpenFiles
    from frazil.log.state import TopicState
    from frazil.model import TopicSpec

QUARANTINE: Final = "quarantine"
COPY_BYTES: Final = 4 << 20
RESUME_SHARE_MAX: Final = 0.5
"""A cleanly closed segment is resumed only below this share of its size."""


@attrs.define
class Opened:
    """A journal ready for writing."""

    state: JournalState
    report: RecoveryReport
    header: fmt.SegmentHeader
    segments: list[Segment]
    active: Segment
    file: File
    position: int
    frames: int
    marked_lsn: int
    to_seal: list[tuple[Segment, int]] = attrs.Factory(list)


def open_journal(
    file_system: FileSystem,
    directory: str,
    *,
    clock: Clock,
    settings: LogSettings,
    files: OpenFiles,
    watermarks: Mapping[int, int],
    known_topics: Mapping[int, tuple[TopicSpec, Mapping[int, bytes]]],
    known_cursors: Mapping[int, Mapping[str, CursorState]],
) -> Opened:
    """Recover the journal in `directory` and return it ready for appending."""
    _make_directory(file_system, directory)
    survey = Survey(
        file_system,
        directory,
        files=files,
        known_topics=known_topics,
        known_cursors=known_cursors,
    )
    survey.run()
    opening = _Opening(file_system, directory, clock, settings, files, survey)
    opening.remove_temp_segments()
    freed = opening.forget_freed()
    opening.quarantine()
    if not survey.found:
        _sync_ancestors(file_system, directory)
        survey.restore_known(watermarks)
        return opening.first()
    state = survey.state
    is_older = survey.restore_later()
    gaps = declare_gaps(state.topics.values(), watermarks)
    survey.report.gaps.extend(gaps)
    may_resume = not is_older and opening.may_resume(gaps)
    opened = opening.resume() if may_resume else opening.succeed(gaps)
    opening.drop_freed(freed)
    return opened


def _make_directory(file_system: FileSystem, directory: str) -> None:
    """Make a directory durable: the name of each new directory is synced in its parent."""
    parents: list[str] = []
    path = directory
    while path and file_system.stat(path) is None:
        path = path.rpartition("/")[0]
        parents.append(path or "/")
    if parents:
        file_system.make_directory(directory)
        for parent in reversed(parents):
            file_system.sync_directory(parent)


def _sync_ancestors(file_system: FileSystem, directory: str) -> None:
    """Sync the path of a new journal: the process that created it may have been killed."""
    path = directory
    while path:
        path = path.rpartition("/")[0]
        try:
            file_system.sync_directory(path or "/")
        except PermissionError:
            # A directory that we cannot open was not created by us.
            return


def declare_gaps(
    topics: Iterable[TopicState], watermarks: Mapping[int, int]
) -> list[tuple[int, SpecialRange]]:
    """Raise heads to every end known to any store; the difference is a declared gap."""
    gaps: list[tuple[int, SpecialRange]] = []
    for topic in topics:
        cursors = (cursor.end for cursor in topic.cursors.values())
        known = (watermarks.get(topic.id, 0), *topic.holds.values(), *cursors)
        head = max(topic.next, *known)
        if head > topic.next:
            reason = "offsets that were given out by a journal that is lost"
            special = SpecialRange(topic.next, head, RANGE_GAP, reason)
            gaps.append((topic.id, special))
            topic.add_range(special)
    return gaps


def initial_frames(
    header: fmt.SegmentHeader,
    checkpoint: bytes,
    *,
    lsn: int,
    time_us: int,
    rest: Sequence[Buffer] = (),
    lsn_end: int | None = None,
) -> list[Buffer]:
    """Return the initial frames of a segment: checkpoint, `rest`, and a marker.

    The marker may call all of them synced: no reader sees the file before they are.
    """
    end = lsn if lsn_end is None else lsn_end
    same = {"salt": header.salt, "generation": header.generation, "time_us": time_us, "offset": 0}
    first = fmt.frame_buffers(
        fmt.KIND_CHECKPOINT,
        checkpoint,
        len(checkpoint),
        lsn=lsn,
        synced=lsn,
        **same,  # type: ignore[arg-type]
    )
    marker = fmt.frame_buffers(fmt.KIND_MARKER, b"", 0, lsn=end, synced=end, **same)  # type: ignore[arg-type]
    return [*first[:3], *rest, *marker[:3]]


def refresh_topics(
    topics: Iterable[TopicState], segments: Sequence[Segment], *, freed: bool = True
) -> None:
    """Recompute each topic's local range from the remaining segments.

    Unless segments were freed, a lost range at a topic's front stays its front: a read there is
    refused with the lost range, instead of as expired.
    """
    front = _front_after_freeing if freed else _front_kept
    for topic in topics:
        summaries = [segment.summary(topic.id) for segment in segments]
        held = [summary for summary in summaries if summary is not None]
        topic.start = max(topic.start, front(topic, held[0][0] if held else topic.next))
        topic.bytes_local = sum(summary[2] for summary in held)
        topic.ranges = [special for special in topic.ranges if special.end > topic.start]


def _front_after_freeing(topic: TopicState, start: int) -> int:
    for special in reversed(topic.ranges):
        if special.kind == RANGE_GAP and special.end == start > topic.floor:
            # A hold inside a gap keeps its offset: reading from it reports the gap.
            start = max(special.first, topic.floor)
    return start


def _front_kept(topic: TopicState, start: int) -> int:
    for special in reversed(topic.ranges):
        if special.end == start and special.first >= topic.start:
            start = special.first
    return start


class _Opening:
    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        clock: Clock,
        settings: LogSettings,
        files: OpenFiles,
        survey: Survey,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._clock = clock
        self._settings = settings
        self._files = files
        self._survey = survey

    # -- before ----------------------------------------------------------------------------------

    def remove_temp_segments(self) -> None:
        """Remove segments that were never renamed: no reader saw their content."""
        for name in self._survey.temp_files:
            self._file_system.unlink(f"{self._directory}/{name}")

    def forget_freed(self) -> list[Found]:
        """Remove from the survey the segments that a crash left half freed, and return them."""
        first = self._survey.state.segment_first
        freed = [found for found in self._survey.found if found.header.segment < first]
        for found in freed:
            self._survey.found.remove(found)
        return freed

    def drop_freed(self, freed: Sequence[Found]) -> None:
        """Remove freed segments after their freeing is durable: see the tail of `succeed`."""
        for found in freed:
            self._files.drop(found.path)
            self._file_system.unlink(found.path)
        if freed:
            self._file_system.sync_directory(self._directory)

    def quarantine(self) -> None:
        """Copy damaged segments to quarantine with the reason, before any change."""
        report = self._survey.report
        hopeless, report.quarantined = report.quarantined, []
        for found in self._survey.found:
            if found.damaged:
                lost = [
                    {"topic": topic, "first": special.first, "end": special.end}
                    for topic, special in report.lost
                ]
                self._copy_aside(found.path, found.segment.id, found.damaged, lost)
        for path in hopeless:
            self._copy_aside(path, 0, ["neither header nor first frame is valid"], [])
            self._files.drop(path)
            self._file_system.rename(path, f"{path}.damaged")
            self._file_system.sync_directory(self._directory)

    def _copy_aside(
        self, path: str, segment: int, damage: list[str], lost: list[dict[str, int]]
    ) -> None:
        name = path.rpartition("/")[2]
        aside = f"{self._directory}/{QUARANTINE}"
        self._file_system.make_directory(aside)
        target = f"{aside}/{name}.{self._clock.now_us()}"
        existing = self._file_system.list_directory(aside)
        if any(other.startswith(name) and other.endswith(".json") for other in existing):
            return
        reason = json.dumps({"segment": segment, "damage": damage, "lost": lost}, indent=2)
        try:
            self._write_new(target, self._pieces(path, 0))
            self._write_new(f"{target}.reason.json", [reason.encode()])
        except OSError as error:
            for half in (target, f"{target}.reason.json"):
                if self._file_system.stat(half) is not None:
                    self._file_system.unlink(half)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # The damaged segment itself is kept in the directory; only its copy has no room.
            self._survey.report.warnings.append(f"no room for a copy of the damaged {name}")
            return
        self._file_system.sync_directory(aside)
        self._file_system.sync_directory(self._directory)
        self._survey.report.quarantined.append(target)

    def _pieces(self, path: str, start: int) -> Iterator[bytes]:
        source = self._files.get(path)
        size = source.size()
        for position in range(start, size, COPY_BYTES):
            yield read_fully(source, position, min(COPY_BYTES, size - position))

    def _write_new(self, path: str, pieces: Iterable[bytes]) -> None:
        """Write a file, replacing an existing one, and sync it."""
        if self._file_system.stat(path) is not None:
            self._file_system.unlink(path)
        with closing(self._file_system.open(path, "create")) as file:
            position = 0
            for data in pieces:
                position += write_fully(file, position, [data])
            file.sync()

    # -- the active segment ----------------------------------------------------------------------

    def first(self) -> Opened:
        """Create a new journal."""
        state = self._survey.state
        state.segment_first = 1
        header = self._header(segment=1, generation=1, previous=0, length=0, lsn=0)
        return self._create(header, _Rewriter(header, 0), lsn=0, segments=[])

    def may_resume(self, gaps: Sequence[object]) -> bool:
        """Tell whether the last segment was closed cleanly and may be resumed."""
        last = self._survey.found[-1]
        scan = last.scan
        report = self._survey.report
        return (
            scan is not None
            and scan.closed
            and not (last.sealed or gaps or report.lost or last.damaged or last.header_damaged)
            and last.torn_from < 0
            and scan.lsn == scan.synced
            and last.header.format_version == fmt.FORMAT_VERSION
            and scan.end <= self._settings.segment_bytes_max * RESUME_SHARE_MAX
        )

    def resume(self) -> Opened:
        """Resume the last segment after its closing marker."""
        survey = self._survey
        last = survey.found[-1]
        assert last.scan is not None
        survey.report.resumed = True
        segments = [found.segment for found in survey.found]
        refresh_topics(survey.state.topics.values(), segments, freed=False)
        file = self._file_system.open(last.path, "write")
        # After a failed sync the markers at the end may be in the cache only: rewritten and synced,
        # they leave no hole before the next frames.
        cut, _lsn = last.scan.proven()
        write_fully(file, cut, [read_fully(file, cut, last.scan.end - cut)])
        file.sync()
        return Opened(
            state=survey.state,
            report=survey.report,
            header=last.header,
            segments=[found.segment for found in survey.found],
            active=last.segment,
            file=file,
            position=last.scan.end,
            frames=last.scan.frames,
            marked_lsn=survey.state.lsn,
            to_seal=self._to_seal(survey.found[:-1]),
        )

    def succeed(self, gaps: list[tuple[int, SpecialRange]]) -> Opened:
        """Create the successor of the last segment, then cut and seal the old one."""
        survey = self._survey
        last = survey.found[-1]
        scan = last.scan
        assert scan is not None
        # Before the checkpoint is written: it carries each topic's start to the next recovery.
        segments = [found.segment for found in survey.found]
        refresh_topics(survey.state.topics.values(), segments, freed=False)
        cut, lsn = (scan.end, scan.lsn) if last.sealed else scan.proven()
        header = self._header(
            segment=max(last.header.segment, survey.state.segment_first) + 1,
            generation=last.header.generation + 1,
            previous=last.header.segment,
            length=cut,
            lsn=lsn,
        )
        # A killed process may have left names that are only in the cache; the successor's name must
        # not outlive theirs.
        self._file_system.sync_directory(self._directory)
        rest = _Rewriter(header, lsn)
        rest.copy(self._files.get(last.path), cut, scan.end)
        for topic, special in [*survey.report.lost, *gaps]:
            rest.gap(topic, special)
        survey.report.frames_rewritten = rest.copied
        scan.cut_indexes(cut)
        last.segment.body_end = cut
        last.segment.lsn_last = lsn
        opened = self._create(header, rest, lsn=lsn, segments=segments)
        self._save_torn(last)
        opened.to_seal = self._to_seal(survey.found)
        return opened

    def _header(
        self, *, segment: int, generation: int, previous: int, length: int, lsn: int
    ) -> fmt.SegmentHeader:
        found = self._survey.found
        journal = found[-1].header.journal if found else self._clock.random_bytes(16)
        return fmt.SegmentHeader(
            journal=journal,
            segment=segment,
            salt=self._clock.random_bytes(8),
            generation=generation,
            previous_segment=previous,
            previous_length=length,
            previous_lsn=lsn,
            created_us=max(self._clock.now_us(), self._survey.state.time_us),
        )

    def _create(
        self,
        header: fmt.SegmentHeader,
        rest: _Rewriter,
        *,
        lsn: int,
        segments: list[Segment],
    ) -> Opened:
        """Create the active segment with the checkpoint and the frames of `rest`."""
        state = self._survey.state
        checkpoint = encode_checkpoint(state, lsn=lsn)
        rest.index_frames(fmt.SEGMENT_HEADER_BYTES + _frame_size(len(checkpoint)))
        buffers = initial_frames(
            header,
            checkpoint,
            lsn=lsn,
            time_us=header.created_us,
            rest=rest.frames,
            lsn_end=rest.lsn,
        )
        file, position = create_segment(self._file_system, self._directory, header, buffers)
        state.lsn = rest.lsn
        path = f"{self._directory}/{segment_name(header.segment)}"
        active = Segment(path, header, self._files)
        active.body_end = position
        active.lsn_last = rest.lsn
        active.indexes = rest.indexes
        segments = [*segments, active]
        refresh_topics(state.topics.values(), segments, freed=False)
        return Opened(
            state=state,
            report=self._survey.report,
            header=header,
            segments=segments,
            active=active,
            file=file,
            position=position,
            frames=2 + rest.count,
            marked_lsn=rest.lsn,
        )

    # -- after -----------------------------------------------------------------------------------

    def _save_torn(self, found: Found) -> None:
        """Save the bytes after the torn point: they are evidence, not data."""
        if found.torn_from < 0:
            return
        target = f"{found.path}.torn-{self._clock.now_us()}"
        self._write_new(target, self._pieces(found.path, found.torn_from))
        self._file_system.sync_directory(self._directory)

    def _to_seal(self, found: Iterable[Found]) -> list[tuple[Segment, int]]:
        """Return the segments without a footer, with their frame counts.

        They are sealed in the background: until then a successor's cut records their ends.
        """
        return [
            (item.segment, 0 if item.scan is None else item.scan.frames)
            for item in found
            # A file that is cut short has no true end for a footer.
            if not item.sealed and item.size >= item.segment.body_end
        ]


def _frame_size(payload_bytes: int) -> int:
    return fmt.FRAME_HEAD_BYTES + payload_bytes + (-payload_bytes & 7)


class _Rewriter:
    """Rewrites frames for another segment: same offsets and sequence, new salt."""

    def __init__(self, header: fmt.SegmentHeader, lsn: int) -> None:
        self._header = header
        self._data: list[tuple[fmt.FrameHead, int, int]] = []
        self.frames: list[Buffer] = []
        self.indexes: dict[int, FrameIndex] = {}
        self.size = 0
        self.lsn = self._synced = lsn
        self.copied = 0
        self.count = 0

    def copy(self, source: File, start: int, end: int) -> None:
        """Copy the frames in `[start, end)` of the old segment, all verified before."""
        position = start
        while position < end:
            head = fmt.read_head(read_fully(source, position, fmt.FRAME_HEAD_BYTES), 0)
            whole = fmt.FRAME_PREFIX_BYTES + head.length
            if head.kind not in (fmt.KIND_CHECKPOINT, fmt.KIND_MARKER):
                data = memoryview(read_fully(source, position, whole))
                runs_end = fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
                runs = bytes(data[fmt.FRAME_HEAD_BYTES : runs_end])
                self._put(head, fmt.payload_of(data, 0, head), runs)
                self.copied += 1
            position += whole

    def gap(self, topic: int, special: SpecialRange) -> None:
        """Add a frame that declares a range of offsets to hold no record."""
        payload = msgspec.msgpack.encode((special.end, special.kind, special.reason))
        head = fmt.FrameHead(
            offset=special.first,
            length=0,
            crc=0,
            kind=fmt.KIND_GAP,
            salt=b"",
            flags=0,
            runs=0,
            topic=topic,
            records=0,
            schema=0,
            lsn=self.lsn + 1,
            synced=0,
            generation=0,
            size=len(payload),
            time=self._header.created_us,
            head_crc=0,
            zero=0,
        )
        self._put(head, payload, b"")

    def _put(self, head: fmt.FrameHead, payload: Buffer, runs: bytes) -> None:
        first, data, padding, size = fmt.frame_buffers(
            head.kind,
            payload,
            head.size,
            offset=head.offset,
            salt=self._header.salt,
            generation=self._header.generation,
            lsn=head.lsn,
            synced=self._synced,
            time_us=head.time,
            topic=head.topic,
            count=head.records,
            schema=head.schema,
            flags=head.flags,
            runs=runs,
        )
        if head.lsn != self.lsn + 1:
            raise CorruptionError(
                "the frames at the log's end do not follow each other, run `frazil doctor`",
                lsn=head.lsn,
                lsn_expected=self.lsn + 1,
            )
        self.lsn = head.lsn
        if head.kind in (fmt.KIND_ARROW, fmt.KIND_ROWS):
            self._data.append((head, self.size, size))
        self.frames += (first, data, padding)
        self.count += 1
        self.size += size

    def index_frames(self, position: int) -> None:
        """Record the frames' positions in the new segment."""
        for head, at, size in self._data:
            index = self.indexes.setdefault(head.topic, FrameIndex())
            index.append(head.offset, position + at, size, head.time, head.records)
