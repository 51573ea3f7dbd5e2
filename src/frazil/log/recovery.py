"""Recover a journal's directory: find durable frames, cut torn ones, report lost ones.

The crash table in `docs/internals/log.md` explains the order of the steps. Recovery changes
nothing before the new segment is durable, so that it can be interrupted and run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import CorruptionError
from frazil.fs import read_fully
from frazil.log import format as fmt
from frazil.log.checkpoint import decode_checkpoint
from frazil.log.scan import UNNUMBERED, Fault, Scan, Scanner, frame_at
from frazil.log.segment import (
    SUFFIX_TEMP,
    OpenFiles,
    Segment,
    read_footer,
    segment_name,
    segment_number,
)
from frazil.log.state import RANGE_LOST, JournalState, SpecialRange, TopicState
from frazil.model import TopicSpec
from frazil.offsets import RangeSet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.fs import File, FileSystem
    from frazil.log.cursor_state import CursorState

LENGTH_UNKNOWN: Final = -1
SEARCH_BYTES: Final = 1 << 20
RECORDS_PER_BYTE_MAX: Final = 8
"""The smallest record is one bit of an Arrow boolean column."""


@attrs.define
class RecoveryReport:
    """The findings of opening the journal; shown by `frazil doctor` and in `stats`."""

    segments: int = 0
    frames_scanned: int = 0
    frames_rewritten: int = 0
    bytes_torn: int = 0
    resumed: bool = False
    warnings: list[str] = attrs.Factory(list)
    lost: list[tuple[int, SpecialRange]] = attrs.Factory(list)
    gaps: list[tuple[int, SpecialRange]] = attrs.Factory(list)
    quarantined: list[str] = attrs.Factory(list)


@attrs.define
class Found:
    """A segment file in the directory with its known facts."""

    path: str
    header: fmt.SegmentHeader
    segment: Segment
    size: int
    header_damaged: bool = False
    scan: Scan | None = None
    sealed: bool = False
    torn_from: int = LENGTH_UNKNOWN
    damaged: list[str] = attrs.Factory(list)


class Survey:
    """Reads a journal's directory without changing it.

    After `run`, `state` is the journal's state at its last valid frame and `found` its segments.
    """

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        *,
        files: OpenFiles,
        known_topics: Mapping[int, tuple[TopicSpec, Mapping[int, bytes]]] | None = None,
        known_cursors: Mapping[int, Mapping[str, CursorState]] | None = None,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._files = files
        self._known = known_topics or {}
        self._known_cursors = known_cursors or {}
        self._absent: list[tuple[int, int]] = []
        """Numbers `[first, end)` of missing segments; freed ones may be among them."""
        self._freed_before = 0
        self._heads_lost: list[fmt.FrameHead] = []
        """Heads of frames that are damaged or misplaced."""
        self._unknown: list[tuple[int, set[int]]] = []
        """Damage with unknown topics: a bound on its records, and the topics excluded from it."""
        self.found: list[Found] = []
        self.temp_files: list[str] = []
        self.report = RecoveryReport()
        self.state = JournalState()

    def run(self) -> None:
        """Find the segments, determine their ends, and replay the state.

        Raises:
            InvalidRequest: if a newer Frazil wrote a segment.
            CorruptionError: if segments of two journals are mixed.
        """
        self._list()
        if not self.found:
            return
        lsn = self.found[0].header.previous_lsn
        for number, found in enumerate(self.found):
            if found.header_damaged:
                # The frame used in place of the header may have been moved there.
                lsn = min(lsn, found.header.previous_lsn)
                found.header = found.header._replace(previous_lsn=lsn)
            if number + 1 < len(self.found):
                self._settle_older(found, self.found[number + 1])
            else:
                self._settle_last(found)
            lsn = found.segment.lsn_last
        self._replay()
        self._note_lost()
        self.report.segments = len(self.found)

    def restore_known(self, watermarks: Mapping[int, int]) -> None:
        """Restore topics known elsewhere of a journal without any segment.

        Their records are lost; their names, columns and offsets must not be reused.
        """
        for spec, schemas in self._known.values():
            topic = self._define_known(spec, schemas)
            end = watermarks.get(spec.id, 0)
            if end:
                special = SpecialRange(0, end, RANGE_LOST, "all segments of the journal are gone")
                topic.add_range(special)
                self.report.lost.append((spec.id, special))
        if self._known:
            self.report.warnings.append(
                f"the journal has no segment left; {len(self._known)} topics are known from the "
                f"metadata, the records of {len(self.report.lost)} of them are lost"
            )

    def restore_later(self) -> bool:
        """Restore topics newer than the last frame; tell whether there are any.

        The journal is an older copy, or lost its end: data of these topics in other stores must
        neither be forgotten nor assigned to other topics that get their ids.
        """
        names = {topic.spec.name for topic in self.state.topics.values()}
        ids = sorted(each for each in self._known if each > self.state.topic_id_last)
        later = [each for each in ids if self._known[each][0].name not in names]
        for topic_id in later:
            self._define_known(*self._known[topic_id])
        if later:
            found = f"{len(later)} topics are known from there"
            self.report.warnings.append(f"the journal is older than the metadata; {found}")
        return bool(later)

    def _define_known(self, spec: TopicSpec, schemas: Mapping[int, bytes]) -> TopicState:
        """Define a topic from the metadata because the log's own definition is lost."""
        topic = self.state.define_topic(spec)
        topic.schemas.update(schemas)
        topic.schema_version = max(topic.schemas, default=0)
        # The cursors were lost with the definition. Remaining frames are applied after these, so
        # that an older copy never overrides them.
        for name, cursor in self._known_cursors.get(spec.id, {}).items():
            topic.cursors[name] = cursor.copy()
        return topic

    # -- files -----------------------------------------------------------------------------------

    def _list(self) -> None:
        damaged: list[tuple[int, str]] = []
        for name in self._file_system.list_directory(self._directory):
            if name.endswith(SUFFIX_TEMP):
                self.temp_files.append(name)
            number = segment_number(name)
            if number is None:
                continue
            path = f"{self._directory}/{name}"
            data = read_fully(self._files.get(path), 0, fmt.SEGMENT_HEADER_BYTES)
            try:
                header = fmt.decode_segment_header(data)
            except CorruptionError:
                damaged.append((number, path))
                continue
            self._add(path, header)
        journals = {found.header.journal for found in self.found}
        if len(journals) > 1:
            raise CorruptionError(
                "segments of different journals are in one directory; move the foreign ones out",
                directory=self._directory,
            )
        for number, path in damaged:
            self._add_damaged(number, path, journals)
        self.found.sort(key=lambda found: found.header.segment)

    def _add(self, path: str, header: fmt.SegmentHeader) -> Found:
        segment = Segment(path, header, self._files)
        found = Found(path, header, segment, self._files.get(path).size())
        self.found.append(found)
        return found

    def _add_damaged(self, number: int, path: str, journals: set[bytes]) -> None:
        """Rebuild a damaged header from the first valid frame, or exclude the file."""
        file = self._files.get(path)
        size = file.size()
        head = _first_frame(file, size) or _any_frame(file, size)
        if head is None:
            self.report.warnings.append(f"segment {number}: neither header nor any frame is valid")
            self.report.quarantined.append(path)
            return
        header = fmt.SegmentHeader(
            journal=next(iter(journals), bytes(16)),
            segment=number,
            salt=head.salt,
            generation=head.generation,
            previous_segment=number - 1,
            previous_length=LENGTH_UNKNOWN,
            previous_lsn=head.lsn - (head.kind not in UNNUMBERED),
            created_us=head.time,
        )
        found = self._add(path, header)
        found.header_damaged = True
        found.damaged.append("header is damaged; its fields were taken from the first frame")
        self.report.warnings.append(f"segment {number}: {found.damaged[-1]}")

    def _scan(self, found: Found, *, end: int) -> Scan:
        header = found.header
        scan = Scanner(
            self._files.get(found.path),
            salt=header.salt,
            generation=header.generation,
            start=fmt.SEGMENT_HEADER_BYTES,
            end=min(end, found.size),
            lsn=header.previous_lsn,
        ).run()
        found.scan = scan
        self.report.frames_scanned += scan.frames
        return scan

    # -- where each segment ends -----------------------------------------------------------------

    def _settle_older(self, found: Found, successor: Found) -> None:
        """Set the end of a segment with a successor: all below its cut was synced before."""
        cut = LENGTH_UNKNOWN
        if successor.header.previous_segment == found.header.segment:
            cut = successor.header.previous_length
        else:
            self._absent.append((found.header.segment + 1, successor.header.segment))
        footer = read_footer(self._files.get(found.path))
        if (
            footer is not None
            and footer.generation == found.header.generation
            and cut in (LENGTH_UNKNOWN, footer.body_end)
        ):
            found.segment.use_footer(footer)
            found.sealed = True
            return
        scan = self._scan(found, end=cut if cut != LENGTH_UNKNOWN else found.size)
        if cut == LENGTH_UNKNOWN:
            self._drop_tail(found, scan)
            cut = scan.end
        elif found.size < cut:
            found.damaged.append(f"file is cut short: {found.size} of {cut} bytes")
            self.report.warnings.append(f"segment {found.header.segment}: {found.damaged[-1]}")
        self._note_damage(found, scan)
        self._use_scan(found, scan, end=cut)

    def _settle_last(self, found: Found) -> None:
        """Set the last segment's end: cut a torn tail, but no damaged synced frame (F1, F2)."""
        footer = read_footer(self._files.get(found.path))
        if footer is not None and footer.generation == found.header.generation:
            # It was sealed after its successor was created, so the successor's file is missing.
            self._absent.append((found.header.segment + 1, found.header.segment + 2))
            self._scan(found, end=footer.body_end)
            assert found.scan is not None
            found.segment.use_footer(footer)
            found.sealed = True
            return
        scan = self._scan(found, end=found.size)
        self._drop_tail(found, scan)
        self._note_damage(found, scan)
        self._use_scan(found, scan, end=scan.end)

    def _drop_tail(self, found: Found, scan: Scan) -> None:
        """Cut at the first fault that is not proven to have been synced."""
        for fault in scan.faults:
            if scan.synced > fault.lsn_before:
                continue
            if fault.position < found.header.initial_length:
                # These bytes were synced before the segment was renamed: they cannot be torn.
                continue
            if not fault.zero or fault.lsn_after:
                found.torn_from = fault.position
                self.report.bytes_torn += found.size - fault.position
            scan.cut(fault.position, lsn=fault.lsn_before)
            return

    def _note_damage(self, found: Found, scan: Scan) -> None:
        for fault in scan.faults:
            text = f"bytes {fault.position}..{fault.end}: {fault.reason}"
            found.damaged.append(text)
            self.report.warnings.append(f"segment {found.header.segment}: {text}")
            heads, unread = _heads_in(self._files.get(found.path), found.header, fault)
            self._heads_lost += heads
            if unread and fault.missing and found is self.found[-1]:
                # After any other segment a checkpoint carries the head of every topic.
                later = {
                    topic
                    for topic, index in scan.indexes.items()
                    if index.count and index.positions[-1] << 3 >= fault.end
                }
                self._unknown.append((unread * RECORDS_PER_BYTE_MAX, later))
        self._heads_lost += scan.misplaced

    def _use_scan(self, found: Found, scan: Scan, *, end: int) -> None:
        segment = found.segment
        segment.indexes = scan.indexes
        segment.body_end = end
        segment.lsn_last = scan.lsn

    def _missing(self, first: int, end: int) -> None:
        names = ", ".join(segment_name(number) for number in range(first, min(end, first + 10)))
        if not names:
            return
        self.report.warnings.append(f"segment files are missing: {names}")

    # -- state -----------------------------------------------------------------------------------

    def _replay(self) -> None:
        """Take the newest valid checkpoint and apply every frame after it."""
        start = len(self.found)
        while start > 0:
            start -= 1
            state = self._checkpoint_of(self.found[start])
            if state is not None:
                self.state = state
                self._freed_before = state.segment_first
                break
        else:
            self.report.warnings.append("no segment has a valid checkpoint; topics may be missing")
        for found in self.found[start:]:
            if found.scan is None:
                self._scan(found, end=found.segment.body_end)
            self._replay_scan(found.scan)
        for first, end in self._absent:
            # Files of freed segments may be missing already: their removal was not synced.
            self._missing(max(first, self.state.segment_first), end)
        if self.state.segment_first < self.found[0].header.segment:
            first = self.state.segment_first
            self.state.segment_first = self.found[0].header.segment
            if first:
                self._missing(first, self.state.segment_first)
                # Their records are lost, not freed.
                self._freed_before = self.state.segment_first

    def _checkpoint_of(self, found: Found) -> JournalState | None:
        file = self._files.get(found.path)
        head = _first_frame(file, found.size)
        if head is None or head.kind != fmt.KIND_CHECKPOINT:
            return None
        start = fmt.SEGMENT_HEADER_BYTES + fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
        data = read_fully(file, start, head.size)
        try:
            return decode_checkpoint(data)
        except CorruptionError as error:
            self.report.warnings.append(f"segment {found.header.segment}: {error}")
            return None

    def _replay_scan(self, scan: Scan | None) -> None:
        assert scan is not None
        state = self.state
        kinds = {(control.head.kind, control.head.topic) for control in scan.controls}
        for topic_id in scan.indexes:
            if topic_id not in state.topics and (fmt.KIND_TOPIC, topic_id) not in kinds:
                self._placeholder(topic_id)
        for _position, head, payload in scan.controls:
            if head.kind != fmt.KIND_CHECKPOINT:
                self._replay_control(head, payload)
        for _position, head, data in scan.runs:
            state.apply_runs(head, fmt.decode_runs(memoryview(data), head.runs))
        for topic_id, index in scan.indexes.items():
            # If all frames of a topic were cut off, `end` is the offset of the first of them.
            if index.count:
                # A damaged definition of the topic may have been skipped.
                topic = state.topics.get(topic_id) or self._placeholder(topic_id)
                topic.next = max(topic.next, index.end)
        state.lsn = max(state.lsn, scan.lsn)
        state.time_us = max(state.time_us, scan.time_us)

    def _replay_control(self, head: fmt.FrameHead, payload: bytes) -> None:
        if head.topic not in (0, *self.state.topics) and head.kind != fmt.KIND_TOPIC:
            self._placeholder(head.topic)
        try:
            self.state.apply(head, payload)
        except CorruptionError as error:
            # An intact frame without meaning here: the rest of the log is opened all the same.
            self.report.warnings.append(f"batch {head.lsn} is passed over: {error}")

    def _placeholder(self, topic_id: int) -> TopicState:
        """Replace a lost topic definition: from the metadata, or by its number."""
        known = self._known.get(topic_id)
        if known is not None:
            return self._define_known(*known)
        name = f"/system/recovered-{topic_id}"
        self.report.warnings.append(f"the definition of topic {topic_id} is lost; it is {name} now")
        return self.state.define_topic(
            TopicSpec(id=topic_id, name=name, kind="message", created_us=self.state.time_us)
        )

    # -- what is lost ----------------------------------------------------------------------------

    def _note_lost(self) -> None:
        """Compare each topic's offsets in the segments with those that they must hold."""
        kept = [f for f in self.found if f.header.segment >= self.state.segment_first]
        topics = self.state.topics
        lost_first: dict[int, int] = {}
        for head in self._heads_lost:
            # Offsets before a lost frame existed, too, even if no other head shows it.
            topic = topics.get(head.topic)
            if topic is not None and head.kind in (fmt.KIND_ARROW, fmt.KIND_ROWS):
                topic.next = max(topic.next, head.offset + head.records)
                lost_first[topic.id] = min(lost_first.get(topic.id, head.offset), head.offset)
        for topic in topics.values():
            held = [piece for found in kept for piece in _held(found, topic.id)]
            start = self._first_held(topic, kept)
            if start is None:
                known = [lost_first.get(topic.id, topic.next), *(first for first, _ in held[:1])]
                start = max(topic.start, min(known))
            there = RangeSet([*held, *(special[:2] for special in topic.ranges)])
            for first, end in there.missing(start, topic.next):
                self._lose(topic, first, end, "damaged")
        for records, later in self._unknown:
            # No topic may reuse offsets that the damaged frames may have held.
            for topic in topics.values():
                if topic.id not in later:
                    self._lose(topic, topic.next, topic.next + records, "may have been lost")

    def _lose(self, topic: TopicState, first: int, end: int, reason: str) -> None:
        special = SpecialRange(first, end, RANGE_LOST, reason)
        self.report.lost.append((topic.id, special))
        topic.add_range(special)

    def _first_held(self, topic: TopicState, kept: list[Found]) -> int | None:
        """Return the first offset that the segments must hold of a topic, None if unknown.

        The state's checkpoint has it, unless segments were freed after it.
        """
        if self._freed_before == self.state.segment_first:
            return topic.start
        first = self._checkpoint_of(kept[0]) if kept else None
        if first is None:
            return None
        # A topic absent from it was created after it: none of its records was freed.
        known = first.topics.get(topic.id)
        return topic.start if known is None else max(topic.start, known.next)


def _held(found: Found, topic: int) -> list[tuple[int, int]]:
    """Return the offsets of a topic in a segment's frames."""
    summary = found.segment.summary(topic)
    if summary is None:
        return []
    first, end = summary[:2]
    pieces: list[tuple[int, int]] = []
    breaks = [] if found.sealed or found.scan is None else found.scan.breaks
    for broken, expected, offset, _position in breaks:
        if broken == topic:
            pieces.append((first, expected))
            first = offset
    return [*pieces, (first, end)]


def _first_frame(file: File, size: int) -> fmt.FrameHead | None:
    """Return the head of the frame after the segment header if that frame is valid."""
    return frame_at(file, size, fmt.SEGMENT_HEADER_BYTES)


def _any_frame(file: File, size: int) -> fmt.FrameHead | None:
    """Return the head of the first valid frame of a file with destroyed first bytes."""
    start = fmt.SEGMENT_HEADER_BYTES
    while start + fmt.FRAME_HEAD_BYTES <= size:
        window = read_fully(file, start, SEARCH_BYTES)
        for at in range(0, len(window) - fmt.FRAME_HEAD_BYTES + 1, fmt.ALIGNMENT):
            if 0 < window[at + fmt.FRAME_PREFIX_BYTES] <= fmt.KIND_LAST and not fmt.head_fault(
                window[at : at + fmt.FRAME_HEAD_BYTES]
            ):
                head = frame_at(file, size, start + at)
                if head is not None:
                    return head
        start += SEARCH_BYTES - fmt.FRAME_HEAD_BYTES
    return None


def _heads_in(
    file: File, header: fmt.SegmentHeader, fault: Fault
) -> tuple[list[fmt.FrameHead], int]:
    """Return the intact heads in a bad stretch, and the number of bytes they do not explain."""
    heads: list[fmt.FrameHead] = []
    position = fault.position
    while position < fault.end:
        data = read_fully(file, position, fmt.FRAME_HEAD_BYTES)
        if len(data) < fmt.FRAME_HEAD_BYTES or fmt.head_fault(data):
            break
        head = fmt.read_head(data, 0)
        if (head.salt, head.generation) != (header.salt, header.generation):
            break
        heads.append(head)
        position += fmt.FRAME_PREFIX_BYTES + head.length
    return heads, max(fault.end - position, 0)
