"""Read a segment's frames in order, find damaged ones, and continue after them.

Used by recovery and `frazil log verify`; sealed segments are read through their footer instead.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from operator import add, ne
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.fs import read_fully
from frazil.log import format as fmt
from frazil.log.index import FrameIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from frazil.fs import File

WINDOW_BYTES: Final = 8 << 20
_SCAN_HEAD: Final = struct.Struct("<QIIB8sxHII4xQQI4xq8x")
"""A frame's head without the fields that the scan ignores."""
UNNUMBERED: Final = (fmt.KIND_CHECKPOINT, fmt.KIND_MARKER)
"""Kinds of frames that carry the batch sequence of the frame before them."""


class Fault(NamedTuple):
    """A stretch `[position, end)` of the file without a valid frame, and its surroundings."""

    position: int
    end: int
    reason: str
    lsn_before: int
    lsn_after: int
    """The first batch sequence found after it; 0 without a valid frame after it."""
    zero: bool
    """The stretch is all zeroes."""
    missing: int
    """How many batch sequences are missing before the frame after it; -1 without such a frame."""


class Control(NamedTuple):
    """A frame without data: it must be applied to the state."""

    position: int
    head: fmt.FrameHead
    payload: bytes


class Scan:
    """The findings of one pass over a segment."""

    def __init__(self, *, lsn: int) -> None:
        self.indexes: dict[int, FrameIndex] = {}
        self.controls: list[Control] = []
        self.faults: list[Fault] = []
        self.misplaced: list[fmt.FrameHead] = []
        """Heads of misplaced but intact frames of this segment."""
        self.runs: list[tuple[int, fmt.FrameHead, bytes]] = []
        """(position, head, encoded runs) of the data frames of idempotent producers"""
        self.breaks: list[tuple[int, int, int, int]] = []
        """(topic, expected offset, found offset, position) where a topic's offsets break"""
        self.lsns = array("Q")
        self.ends = array("Q")
        """Batch sequence and end of each frame with its own sequence number."""
        self.initial_end = 0
        """The end of the segment's own checkpoint; its expected start if it is damaged."""
        self.lsn = lsn
        # Everything before the segment was synced before the segment was created.
        self.synced = lsn
        self.end = 0
        self.frames = 0
        self.time_us = 0
        self.closed = False
        """The last frame is the marker of a clean close."""
        self.end_closed = 0

    def proven(self) -> tuple[int, int]:
        """Return the end of the data proven to be synced, and the last batch sequence before it.

        Markers after it do not count: they have no sequence of their own as proof.
        """
        number = bisect_right(self.lsns, self.synced)
        end = self.ends[number - 1] if number else self.initial_end
        # A fault kept in the scan is proven damage, so all before it was synced.
        end = max([end, *(fault.end for fault in self.faults)])
        number = bisect_right(self.ends, end)
        return end, self.lsns[number] - 1 if number < len(self.lsns) else self.lsn

    def cut(self, position: int, *, lsn: int) -> None:
        """Forget every frame at and after `position`."""
        self.cut_indexes(position)
        self.breaks = [item for item in self.breaks if item[3] < position]
        self.controls = [item for item in self.controls if item.position < position]
        self.runs = [item for item in self.runs if item[0] < position]
        self.faults = [item for item in self.faults if item.position < position]
        while self.ends and self.ends[-1] > position:
            self.ends.pop()
            self.lsns.pop()
        self.end = position
        self.lsn = lsn
        self.closed = False

    def cut_indexes(self, position: int) -> None:
        """Remove the frames at and after `position` from the indexes."""
        for topic, index in self.indexes.items():
            behind = (item for item in self.breaks if item[0] == topic and item[3] >= position)
            index.cut(position, {found: end for _, end, found, _ in behind})


class Scanner:
    """One pass over `[start, end)` of a segment file.

    Batch sequences never decrease in the written order, and skip only over a stretch with room for
    the skipped frames. An intact frame that breaks this was moved (a misdirected write, exchanged
    blocks): it is damage at its position, but proves which batches were synced before it.
    """

    def __init__(
        self, file: File, *, salt: bytes, generation: int, start: int, end: int, lsn: int
    ) -> None:
        self._file = file
        self._salt = salt
        self._generation = generation
        self._end = end
        self._position = start
        self._pending: dict[int, list[int]] = {}
        """By topic: offset, position, length, time, records of each frame, one after another. A
        flat list of integers: a tuple for each frame would keep the garbage collector busy."""
        self.result = Scan(lsn=lsn)

    def run(self) -> Scan:
        """Scan to the end; list faults and continue with the frames after them."""
        result = self.result
        result.end = result.initial_end = self._position
        window_bytes = WINDOW_BYTES
        while self._position < self._end:
            size = min(window_bytes, self._end - self._position)
            window = read_fully(self._file, self._position, size)
            used, want = self._take(window)
            self._position += used
            window_bytes = WINDOW_BYTES
            rest = self._end - self._position
            if want and rest:
                if want <= rest and (used or want > len(window)):
                    window_bytes = max(want, WINDOW_BYTES)
                    continue
                self._skip_fault()
        # Batch sequences that a moved frame proves to be synced are never reused.
        result.lsn = max(result.lsn, result.synced)
        return result

    def _take(self, window: bytes) -> tuple[int, int]:
        """Parse frames from the window; return the bytes used and the bytes needed to continue.

        A need beyond the file's end is a fault, which the caller handles.
        """
        self._pending = {}
        used, want = self._walk(window)
        for topic, rows in self._pending.items():
            self._extend_index(topic, rows)
        if used < 0:
            self._position -= used + 1
            self._skip_fault()
            return 0, 0
        return used, want

    def _walk(self, window: bytes) -> tuple[int, int]:
        """Parse the window frame by frame; `used` is -1 - position at a bad frame.

        This loop is the speed of recovery: it parses half a million one-record frames a second, so
        data frames in sequence are handled without leaving it.
        """
        unpack, crc32 = _SCAN_HEAD.unpack_from, zlib.crc32
        result, pending = self.result, self._pending
        salt, generation = self._salt, self._generation
        base, limit = self._position, len(window)
        view = memoryview(window)
        ends: list[int] = []
        add_end = ends.append
        lsn, synced = result.lsn, result.synced
        at = 0
        used, want = -1, 0
        topic_last = -1
        nowhere: list[int] = []
        add_row: Callable[[Iterable[int]], None] = nowhere.extend
        while True:
            if at + 80 > limit:
                used, want = at, 80
                break
            (
                offset, length, crc, kind, own, runs, topic, records, own_lsn, own_synced,
                own_generation, time_us,
            ) = unpack(window, at)  # fmt: skip
            if own != salt or own_generation != generation:
                break
            end = at + 16 + length
            if end > limit:
                if fmt.BODY_HEAD_BYTES <= length <= fmt.BODY_BYTES_MAX:
                    used, want = at, end - at
                break
            payload = at + 80 + runs * 24
            found = crc32(window[payload:end] if length < 4096 else view[payload:end])
            if crc32(window[at : at + 12], crc32(window[at + 16 : payload], found)) != crc:
                break
            if 0 < kind <= 2 and own_lsn == lsn + 1:
                lsn = own_lsn
                if topic != topic_last:
                    topic_last, add_row = topic, pending.setdefault(topic, []).extend
                add_row((offset, base + at, length + 16, time_us, records))
                add_end(base + end)
                if own_synced > synced:
                    synced = own_synced
                if runs:
                    self._note_runs(window, at)
            else:
                self._passed_data(ends, lsn=lsn, synced=synced)
                if not self._take_other(window, at):
                    break
                lsn, synced = result.lsn, result.synced
            at = end
        self._passed_data(ends, lsn=lsn, synced=synced)
        if at:
            result.end = base + at
        return (-1 - at, 0) if used < 0 else (used, want)

    def _passed_data(self, ends: list[int], *, lsn: int, synced: int) -> None:
        """Note consecutive data frames; the last one has the sequence `lsn`."""
        result = self.result
        if ends:
            result.lsns.extend(range(lsn - len(ends) + 1, lsn + 1))
            result.ends.extend(ends)
            ends.clear()
            result.lsn = lsn
            result.synced = max(result.synced, synced)

    def _take_other(self, window: bytes, at: int) -> bool:
        """Parse any other valid frame; False if it does not belong here."""
        position = self._position + at
        if at:
            self.result.end = position
        head = fmt.read_head(window, at)
        if not 0 < head.kind <= fmt.KIND_LAST or not self._in_order(head, position):
            return False
        if head.kind > fmt.KIND_ROWS:
            self._control(window, at, head)
            return True
        rows = self._pending.setdefault(head.topic, [])
        rows += (head.offset, position, head.length + 16, head.time, head.records)
        self._passed(head, position)
        if head.runs:
            self._note_runs(window, at)
        return True

    def _note_runs(self, window: bytes, at: int) -> None:
        head = fmt.read_head(window, at)
        runs = window[at + 16 : at + 80 + head.runs * fmt.RUN.size]
        self.result.runs.append((self._position + at, head, runs))

    def _extend_index(self, topic: int, rows: list[int]) -> None:
        """Add a topic's frames of one window to its index, and note where offsets break."""
        result = self.result
        offsets, positions, lengths, times, records = (rows[column::5] for column in range(5))
        index = result.indexes.get(topic)
        if index is None:
            index = result.indexes[topic] = FrameIndex()
            expected = offsets[0]
        else:
            expected = index.end
        ends = [expected, *map(add, offsets, records)]
        if any(map(ne, ends, offsets)):
            result.breaks += [
                (topic, end, offset, position)
                for end, offset, position in zip(ends, offsets, positions, strict=False)
                if end != offset
            ]
        index.extend(offsets, positions, lengths, times, records)
        result.time_us = max(result.time_us, index.time_max)
        result.frames += len(offsets)
        result.closed = result.closed and result.end_closed > positions[-1]

    def _in_order(self, head: fmt.FrameHead, position: int) -> bool:
        """Tell whether an intact frame belongs at a position; note one that does not."""
        result = self.result
        missing = _missing_before(head, result.lsn)
        if 0 <= missing * fmt.FRAME_HEAD_BYTES <= position - result.end:
            return True
        result.misplaced.append(head)
        result.synced = max(result.synced, head.synced)
        return False

    def _passed(self, head: fmt.FrameHead, position: int) -> None:
        result = self.result
        if head.kind not in UNNUMBERED:
            result.lsns.append(head.lsn)
            result.ends.append(position + head.length + fmt.FRAME_PREFIX_BYTES)
        elif head.kind == fmt.KIND_CHECKPOINT:
            result.initial_end = position + head.length + fmt.FRAME_PREFIX_BYTES
        # After a fault a marker may be the first frame to show how far the sequence had come.
        result.lsn = head.lsn
        if head[11] > result.synced:
            result.synced = head[11]

    def _control(self, window: bytes, at: int, head: fmt.FrameHead) -> None:
        result = self.result
        payload = bytes(fmt.payload_of(memoryview(window), at, head))
        position = self._position + at
        self._passed(head, position)
        result.controls.append(Control(position, head, payload))
        result.time_us = max(result.time_us, head.time)
        result.frames += 1
        result.closed = head.kind == fmt.KIND_MARKER and bool(head.flags & fmt.FLAG_CLOSE)
        result.end_closed = position

    def _skip_fault(self) -> None:
        """Note the fault at the current position and find the next valid frame after it."""
        result = self.result
        position = self._position
        found, zero, head = self._search(position)
        reason = self._reason(position)
        if result.faults and result.faults[-1].end == position:
            last = result.faults.pop()
            position, zero, reason = last.position, last.zero and zero, last.reason
        lsn_after, missing = 0, -1
        if head is not None:
            lsn_after, missing = head.lsn, _missing_before(head, result.lsn)
        result.faults.append(Fault(position, found, reason, result.lsn, lsn_after, zero, missing))
        self._position = found

    def _reason(self, position: int) -> str:
        head_bytes = read_fully(
            self._file, position, min(fmt.FRAME_HEAD_BYTES, self._end - position)
        )
        if not any(head_bytes):
            return "zeroes"
        if len(head_bytes) < fmt.FRAME_HEAD_BYTES:
            return "head is cut short"
        head = fmt.read_head(head_bytes, 0)
        if head.salt != self._salt or head.generation != self._generation:
            return "not a frame of this segment"
        if self._valid_at(position) is not None:
            return "frame is out of order"
        return "checksum does not match"

    def _search(self, position: int) -> tuple[int, bool, fmt.FrameHead | None]:
        """Return the next valid frame's start (or the end), if all before is zero, and its head."""
        zero = True
        at = position
        overlap = fmt.SALT_POSITION + len(self._salt)
        while at < self._end:
            window = read_fully(self._file, at, min(WINDOW_BYTES, self._end - at))
            if not window:
                break
            found = window.find(self._salt)
            while found >= 0:
                start = at + found - fmt.SALT_POSITION
                if start > position and start % fmt.ALIGNMENT == 0:
                    head = self._valid_at(start)
                    if head is not None and self._in_order(head, start):
                        zero = zero and not window[: max(start - at, 0)].strip(b"\0")
                        return start, zero, head
                found = window.find(self._salt, found + 1)
            zero = zero and not window.strip(b"\0")
            if at + len(window) >= self._end:
                break
            at += max(len(window) - overlap, 1)
        return self._end, zero, None

    def _valid_at(self, position: int) -> fmt.FrameHead | None:
        head = frame_at(self._file, self._end, position)
        if head is None or head.salt != self._salt or head.generation != self._generation:
            return None
        return head


def frame_at(file: File, end: int, position: int) -> fmt.FrameHead | None:
    """Return the head of the frame at a position if that frame is valid and ends before `end`."""
    data = read_fully(file, position, fmt.FRAME_HEAD_BYTES)
    if len(data) < fmt.FRAME_HEAD_BYTES:
        return None
    head = fmt.read_head(data, 0)
    whole = fmt.FRAME_PREFIX_BYTES + head.length
    if head.length > fmt.BODY_BYTES_MAX or position + whole > end:
        return None
    view = memoryview(read_fully(file, position, whole))
    return None if fmt.frame_fault(view, 0, head) else head


def _missing_before(head: fmt.FrameHead, lsn: int) -> int:
    """Return how many batch sequences are missing between `lsn` and a frame."""
    return head.lsn - lsn - (head.kind not in UNNUMBERED)
