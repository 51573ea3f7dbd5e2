"""Open a journal's directory: find what is durable, cut what is torn, report what is lost.

The crash table in `docs/internals/log.md` says why each order of steps holds. Recovery changes
nothing before the new segment is durable, so that it may be cut short and run again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from frazil.errors import CorruptionError
from frazil.fs import read_fully
from frazil.log import format as fmt
from frazil.log.checkpoint import decode_checkpoint
from frazil.log.scan import UNNUMBERED, Control, Fault, Scan, Scanner
from frazil.log.segment import (
    SUFFIX_TEMP,
    OpenFiles,
    Segment,
    read_footer,
    segment_name,
    segment_number,
)
from frazil.log.state import JournalState, SpecialRange, TopicState
from frazil.model import TopicSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from frazil.fs import File, FileSystem
    from frazil.log.cursor_state import CursorState

LENGTH_UNKNOWN: Final = -1
TOPIC_UNKNOWN: Final = 0
SEARCH_BYTES: Final = 1 << 20
RECORDS_PER_BYTE_MAX: Final = 8
"""The smallest record is one bit of an Arrow boolean column."""


@attrs.define
class RecoveryReport:
    """What opening the journal found; shown by `frazil doctor` and in `stats`."""

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
    """A segment file in the directory with what is known of it."""

    path: str
    header: fmt.SegmentHeader
    segment: Segment
    size: int
    header_damaged: bool = False
    scan: Scan | None = None
    sealed: bool = False
    torn_from: int = LENGTH_UNKNOWN
    damaged: list[str] = attrs.Factory(list)


class Candidate(NamedTuple):
    """Offsets of a topic that no frame holds; lost unless a gap declares them."""

    topic: int
    first: int
    end: int
    reason: str


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
        self._candidates: list[Candidate] = []
        self._absent: list[tuple[int, int]] = []
        """Numbers `[first, end)` of segments that are not there; freed ones may be among them."""
        self._freed_before = 0
        self.found: list[Found] = []
        self.temp_files: list[str] = []
        self.report = RecoveryReport()
        self.state = JournalState()

    def run(self) -> None:
        """Find the segments, settle where each ends, and replay the state.

        Raises:
            InvalidRequest: if a newer Frazil wrote a segment.
            CorruptionError: if segments of two journals are mixed.
        """
        self._list()
        if not self.found:
            return
        for found, successor in zip(self.found, self.found[1:], strict=False):
            self._settle_older(found, successor)
        self._settle_last(self.found[-1])
        self._replay()
        self._check_continuity()
        self.report.segments = len(self.found)

    def restore_known(self, watermarks: Mapping[int, int]) -> None:
        """Bring topics back that others remember of a journal that has no segment left.

        Their records are lost; their names, columns and offsets must not be taken anew.
        """
        for spec, schemas in self._known.values():
            topic = self._define_known(spec, schemas)
            end = watermarks.get(spec.id, 0)
            if end:
                special = SpecialRange(0, end, "lost", "all segments of the journal are gone")
                topic.add_range(special)
                self.report.lost.append((spec.id, special))
        if self._known:
            self.report.warnings.append(
                f"the journal has no segment left; {len(self._known)} topics are known from the "
                f"metadata, the records of {len(self.report.lost)} of them are lost"
            )

    def restore_later(self) -> bool:
        """Bring topics back that are younger than the last frame there is; tell if there are any.

        The journal is an older copy, or lost its end: what others hold of these topics must neither
        be forgotten nor fall to other topics that get their ids.
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
        """Define a topic as the metadata remembers it, since the log's own definition is lost."""
        topic = self.state.define_topic(spec)
        topic.schemas.update(schemas)
        topic.schema_version = max(topic.schemas, default=0)
        # They went with the definition. Frames that are left come on top, so that no older copy
        # counts for more than they do.
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
                "segments of different journals lie in one directory; move the foreign ones out",
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
        """Rebuild a damaged header from the first valid frame, or leave the file out."""
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
        """Settle a segment that has a successor: all below the cut was synced before the successor was created."""
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
        """Settle the last segment: tell its torn tail from damage to synced frames (F1, F2)."""
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
        """Cut at the first fault that nothing proves to have been synced."""
        for fault in scan.faults:
            if scan.synced > fault.lsn_before:
                continue
            if fault.position < found.header.born_length:
                # The segment was born with these bytes, synced: nothing there can be torn.
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
            later = self._later_topics(scan, fault.end)
            self._candidates.extend(_lost_in(self._files.get(found.path), found, fault, later))
        for head in scan.misplaced:
            if head.kind in (fmt.KIND_ARROW, fmt.KIND_ROWS) and not _holds(scan, head):
                end = head.offset + head.records
                self._candidates.append(Candidate(head.topic, head.offset, end, "damaged"))

    def _later_topics(self, scan: Scan, position: int) -> set[int]:
        return {
            topic
            for topic, places in scan.places.items()
            if places.count and places.positions[-1] << 3 >= position
        }

    def _use_scan(self, found: Found, scan: Scan, *, end: int) -> None:
        segment = found.segment
        segment.use_places(scan.places)
        segment.body_end = end
        segment.lsn_last = scan.lsn
        for topic, expected, offset, _position in scan.breaks:
            self._candidates.append(Candidate(topic, expected, offset, "damaged"))

    def _missing(self, first: int, end: int) -> None:
        names = ", ".join(segment_name(number) for number in range(first, min(end, first + 10)))
        if not names:
            return
        self.report.warnings.append(f"segment files are missing: {names}")

    # -- state -----------------------------------------------------------------------------------

    def _replay(self) -> None:
        """Take the newest valid checkpoint and apply every frame behind it."""
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
            # Of freed segments any may be gone already: their removal was not synced.
            self._missing(max(first, self.state.segment_first), end)
        if self.state.segment_first < self.found[0].header.segment:
            first = self.state.segment_first
            if first:
                self._missing(first, self.found[0].header.segment)
                self._candidates.extend(self._missing_front())
            self.state.segment_first = self.found[0].header.segment

    def _missing_front(self) -> Iterable[Candidate]:
        for topic in self.state.topics.values():
            first = min(
                (s[0] for f in self.found if (s := f.segment.summary(topic.id)) is not None),
                default=topic.next,
            )
            yield Candidate(topic.id, topic.start, first, "segment file is missing")

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
        for topic_id, places in scan.places.items():
            if places.count and topic_id in state.topics:
                topic = state.topics[topic_id]
                if places.first > topic.next:
                    candidate = Candidate(topic_id, topic.next, places.first, "damaged")
                    self._candidates.append(candidate)
        replay(state, scan, self._placeholder, self._not_applied)

    def _not_applied(self, control: Control, error: CorruptionError) -> None:
        """Tell of a whole frame that means nothing here; the rest of the log is opened all the same."""
        self.report.warnings.append(f"batch {control.head.lsn} is passed over: {error}")

    def _placeholder(self, topic_id: int) -> TopicState:
        """Stand in for a topic whose definition is lost: from the metadata, or by its number."""
        known = self._known.get(topic_id)
        if known is not None:
            return self._define_known(*known)
        name = f"/system/recovered-{topic_id}"
        self.report.warnings.append(f"the definition of topic {topic_id} is lost; it is {name} now")
        return self.state.define_topic(
            TopicSpec(id=topic_id, name=name, kind="message", created_us=self.state.time_us)
        )

    # -- what is lost ----------------------------------------------------------------------------

    def _check_continuity(self) -> None:
        """Compare each topic's frames over all segments; what no gap declares is lost."""
        kept = [f for f in self.found if f.header.segment >= self.state.segment_first]
        for candidate in self._candidates:
            # What stood before a lost frame was there, too, even if no head tells of it.
            if (known := self.state.topics.get(candidate.topic)) is not None:
                known.next = max(known.next, candidate.end)
        for topic in self.state.topics.values():
            end = self._first_held(topic, kept)
            for found in kept:
                summary = found.segment.summary(topic.id)
                if summary is None:
                    continue
                if end is not None and summary[0] > end:
                    self._candidates.append(Candidate(topic.id, end, summary[0], "damaged"))
                end = max(end or 0, summary[1])
            if end is not None and end < topic.next:
                self._candidates.append(Candidate(topic.id, end, topic.next, "damaged"))
        for candidate in self._candidates:
            lost_topic = self.state.topics.get(candidate.topic)
            if lost_topic is None:
                continue
            first = max(candidate.first, lost_topic.start)
            for low, high in undeclared(lost_topic.ranges, first=first, end=candidate.end):
                special = SpecialRange(low, high, "lost", candidate.reason)
                self.report.lost.append((candidate.topic, special))
                lost_topic.add_range(special)
        self._bound_unknown(self.found[-1])

    def _first_held(self, topic: TopicState, kept: list[Found]) -> int | None:
        """Return the offset from which on the segments must hold a topic, None if unknown.

        The checkpoint that the state stands on tells, unless segments were freed behind it.
        """
        if self._freed_before == self.state.segment_first:
            return topic.start
        first = self._checkpoint_of(kept[0]) if kept else None
        if first is None:
            return None
        # A topic that it does not know was made behind it: none of its records was freed.
        known = first.topics.get(topic.id)
        return topic.start if known is None else max(topic.start, known.next)

    def _bound_unknown(self, last: Found) -> None:
        """Where a damaged head hid its topic, no topic may use offsets that it may have held.

        Only the last segment needs it: behind any other, a checkpoint tells every topic's head.
        """
        scan = last.scan
        for fault in scan.faults if scan is not None else ():
            later = self._later_topics(scan, fault.end) if scan is not None else set()
            for candidate in _lost_in(self._files.get(last.path), last, fault, later):
                if candidate.topic != TOPIC_UNKNOWN:
                    continue
                for topic in self.state.topics.values():
                    if topic.id in later:
                        continue
                    end = topic.next + candidate.end
                    special = SpecialRange(topic.next, end, "lost", candidate.reason)
                    self.report.lost.append((topic.id, special))
                    topic.add_range(special)


def replay(
    state: JournalState,
    scan: Scan,
    placeholder: Callable[[int], TopicState] | None = None,
    on_fault: Callable[[Control, CorruptionError], None] | None = None,
) -> None:
    """Apply the frames of a scan to the state that stood before them; twice is as good as once."""
    if placeholder is not None:
        for topic_id in scan.places:
            if topic_id not in state.topics and not _defined_in(scan, topic_id):
                placeholder(topic_id)
    for control in scan.controls:
        if control.head.kind != fmt.KIND_CHECKPOINT:
            unknown = control.head.topic not in (TOPIC_UNKNOWN, *state.topics)
            if placeholder is not None and unknown and control.head.kind != fmt.KIND_TOPIC:
                placeholder(control.head.topic)
            try:
                state.apply(control.head, control.payload)
            except CorruptionError as error:
                if on_fault is None:
                    raise
                on_fault(control, error)
    for _position, head, data in scan.runs:
        state.apply_runs(head, fmt.decode_runs(memoryview(data), head.runs))
    for topic_id, places in scan.places.items():
        topic = state.topics.get(topic_id)
        if topic is not None and places.count:
            topic.next = max(topic.next, places.end)
    state.lsn = max(state.lsn, scan.lsn)
    state.time_us = max(state.time_us, scan.time_us)


def _defined_in(scan: Scan, topic_id: int) -> bool:
    return any(c.head.kind == fmt.KIND_TOPIC and c.head.topic == topic_id for c in scan.controls)


def undeclared(ranges: Iterable[SpecialRange], *, first: int, end: int) -> list[tuple[int, int]]:
    """Return what of `[first, end)` no special range covers."""
    left: list[tuple[int, int]] = []
    for special in sorted(ranges):
        if special.end <= first:
            continue
        if special.first >= end:
            break
        if special.first > first:
            left.append((first, special.first))
        first = max(first, special.end)
    if first < end:
        left.append((first, end))
    return left


def _first_frame(file: File, size: int) -> fmt.FrameHead | None:
    """Return the head of the frame behind the segment header if that frame is valid."""
    return _frame_at(file, size, fmt.SEGMENT_HEADER_BYTES)


def _any_frame(file: File, size: int) -> fmt.FrameHead | None:
    """Return the head of the first valid frame of a file whose first bytes are destroyed."""
    start = fmt.SEGMENT_HEADER_BYTES
    while start + fmt.FRAME_HEAD_BYTES <= size:
        window = read_fully(file, start, SEARCH_BYTES)
        for at in range(0, len(window) - fmt.FRAME_HEAD_BYTES + 1, fmt.ALIGNMENT):
            if 0 < window[at + fmt.FRAME_PREFIX_BYTES] <= fmt.KIND_LAST and not fmt.head_fault(
                window[at : at + fmt.FRAME_HEAD_BYTES]
            ):
                head = _frame_at(file, size, start + at)
                if head is not None:
                    return head
        start += SEARCH_BYTES - fmt.FRAME_HEAD_BYTES
    return None


def _frame_at(file: File, size: int, start: int) -> fmt.FrameHead | None:
    data = read_fully(file, start, fmt.FRAME_HEAD_BYTES)
    if len(data) < fmt.FRAME_HEAD_BYTES:
        return None
    head = fmt.read_head(data, 0)
    whole = fmt.FRAME_PREFIX_BYTES + head.length
    if head.length > fmt.BODY_BYTES_MAX or start + whole > size:
        return None
    view = memoryview(read_fully(file, start, whole))
    return None if fmt.frame_fault(view, 0, head) else head


def _holds(scan: Scan, head: fmt.FrameHead) -> bool:
    """Tell whether the frames of a scan have the records of this one."""
    places = scan.places.get(head.topic)
    if places is None or not places.count:
        return False
    return places.offsets[places.find(head.offset)] == head.offset


def _lost_in(file: File, found: Found, fault: Fault, later: set[int]) -> Iterable[Candidate]:
    """Say which offsets the frames in a bad stretch held, as far as their heads can tell.

    A topic that has frames behind the stretch needs no telling: its offsets show the hole. Where
    heads cannot be mended or have come from elsewhere, there is a candidate of topic 0 whose end is
    a bound on the records: so many as the stretch has room for, or as the file has, if frames are
    missing that cannot have stood in the stretch.
    """
    position, end, lsn = fault.position, fault.end, fault.lsn_before
    known = lsn + fault.missing
    while position < end:
        head = fmt.mend_head(read_fully(file, position, fmt.FRAME_HEAD_BYTES))
        if head is None or not _stood_here(head, found.header, fault, lsn=lsn):
            break
        if head.kind in (fmt.KIND_ARROW, fmt.KIND_ROWS) and head.topic not in later:
            yield Candidate(head.topic, head.offset, head.offset + head.records, "damaged")
        position, lsn = position + fmt.FRAME_PREFIX_BYTES + head.length, head.lsn
    room = max(end - position, 0)
    if room < (known - lsn) * fmt.FRAME_HEAD_BYTES:
        room = found.size
    if room:
        yield Candidate(TOPIC_UNKNOWN, 0, room * RECORDS_PER_BYTE_MAX, "may have been lost")


def _stood_here(head: fmt.FrameHead, header: fmt.SegmentHeader, fault: Fault, *, lsn: int) -> bool:
    """Tell whether a head is of this segment and of the batches that are missing behind `lsn`."""
    if (head.salt, head.generation) != (header.salt, header.generation):
        return False
    if fault.lsn_after and head.lsn > fault.lsn_before + fault.missing:
        return False
    return head.lsn >= (lsn if head.kind in UNNUMBERED else lsn + 1)
