"""The journal: one ordered file of frames for many topics, written by one owner.

`Journal` is single-threaded: the caller of `commit`, `tick` and `close` owns it (the committer's
thread in production, the test itself in a simulation). Readers use `segments` and the topics'
fields, which are swapped or grow so that a reader never sees a half-made state.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import Closed, FrazilError, Overloaded, Unavailable
from frazil.fs import write_fully
from frazil.log import forked
from frazil.log import format as fmt
from frazil.log.checkpoint import encode_checkpoint
from frazil.log.codec import Control, codec_of, settle_tracked, size_of, waiter_of
from frazil.log.group import Group
from frazil.log.index import FrameIndex
from frazil.log.opening import Opened, initial_frames, open_journal, refresh_topics
from frazil.log.retention import ClockWatch
from frazil.log.segment import (
    NO_DESCRIPTORS,
    OpenFiles,
    Segment,
    create_segment,
    seal,
    segment_name,
)
from frazil.log.state import PRODUCERS_MAX, STATE_FREED, wake
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from typing_extensions import Buffer

    from frazil.clock import Clock
    from frazil.config import LogSettings, ProducerSettings
    from frazil.fs import File, FileSystem
    from frazil.log.codec import Deliver, Entry
    from frazil.log.cursor_state import CursorState
    from frazil.log.recovery import RecoveryReport
    from frazil.log.state import JournalState, TopicState
    from frazil.model import TopicSpec

__all__ = []

GROUP_BYTES_MAX: Final = 64 << 20
"""A larger call is written and synced in several groups."""


def group_end(entries: list[Entry]) -> int:
    """Return how many entries make the next group: up to a barrier, and not too many bytes.

    A barrier is an entry that changes the state for the entries after it.
    """
    has_controls = None in set(map(codec_of, entries))
    if not has_controls and sum(map(size_of, entries)) <= GROUP_BYTES_MAX:
        return len(entries)
    size = 0
    for number, entry in enumerate(entries):
        size += entry[4]
        if number and size > GROUP_BYTES_MAX:
            return number
        if entry[1] is None and entry[2].kind in (fmt.KIND_TOPIC, fmt.KIND_SCHEMA):
            return number + 1
    return len(entries)


def marker_frame(state: JournalState, segment: Segment, *, synced: int, close: bool) -> bytes:
    """Return a marker frame of a segment."""
    head, body, padding, _size = fmt.frame_buffers(
        fmt.KIND_MARKER,
        b"",
        0,
        offset=0,
        salt=segment.salt,
        generation=segment.generation,
        lsn=state.lsn,
        synced=synced,
        time_us=state.time_us,
        flags=fmt.FLAG_CLOSE if close else 0,
    )
    return b"".join((head, body, padding))


def disk_full(directory: str) -> Overloaded:
    """Return the error for a write that met a full disk and was rolled back."""
    return Overloaded(
        "the disk is full, nothing was written; free space, then retry",
        path=directory,
        retry_after_ms=1000,
    )


def _late(results: Sequence[Ack | BaseException]) -> list[Ack | BaseException]:
    """Turn acks into errors: the lease may have run out while the records were written (F19)."""
    unknown = Unavailable(
        "the broker's lease may have run out while the records were written; whether they count "
        "is unknown",
        outcome="unknown",
    )
    return [unknown if isinstance(result, Ack) else result for result in results]


DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
PREFILL_BYTES: Final = 256 << 10
"""The active file is filled with zeroes this far ahead of the data."""
MARKER_DELAY_S: Final = 0.02
"""An idle journal writes a sync marker after this pause."""
SYNC_BYTES_MAX: Final = 10_000_000
"""Topics of mode `periodic` are also synced after this many bytes."""
SEGMENT_AGE_MAX_S: Final = 3600.0
"""A segment with data is rotated at this age."""
OPEN_FILES_MAX: Final = 64
"""The limit of sealed segments kept open for readers."""
RETRY_FULL_S: Final = 1.0
FULL_PAUSE_S: Final = 1.0


class Journal:
    """One journal in one directory. The module's docstring names the threads of each call."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        opened: Opened,
        *,
        clock: Clock,
        settings: LogSettings,
        producers: ProducerSettings,
        files: OpenFiles,
    ) -> None:
        self.directory = directory
        self.state = opened.state
        self.report: RecoveryReport = opened.report
        self.journal_id = opened.header.journal
        self.failed: BaseException | None = None
        self.closed = False
        self.active = opened.active
        self.segments: tuple[Segment, ...] = tuple(opened.segments)
        self.to_seal: list[tuple[Segment, int]] = list(opened.to_seal)
        """Rotated segments without a footer yet, with their frame counts."""
        self.shown = 0
        """Odd while the topics of a group become durable: a reader of several topics retries."""
        self.sync_count = self.group_count = self.bytes_written = self.record_count = 0
        self._sealing = threading.Lock()
        self._clock_watch = ClockWatch(now_us=clock.now_us(), monotonic_s=clock.monotonic())
        forked.watch(self)
        self.delete_grace_us = 24 * 3600 * 1_000_000
        self.synced_lsn = self.state.lsn
        self.marked_lsn = opened.marked_lsn
        self._file_system = file_system
        self._files = files
        self.clock = clock
        self._settings = settings
        self._producers = producers
        self._file = opened.file
        self._position = opened.position
        self._filled = opened.position
        self._frames = opened.frames
        self._zeroes = bytes(PREFILL_BYTES)
        self._dirty: dict[int, TopicState] = {}
        self._dirty_tracked: list[Entry] = []
        self._dirty_bytes, self._dirty_since = 0, 0.0
        self._last_append = clock.monotonic()
        # Called by the journal's thread: after a write met a full disk, and with bytes for memory.
        self.on_disk_full: Callable[[], None] | None = None
        self.on_kept: Callable[[int], None] | None = None
        # Called before a group is written and before it is answered: whether we still own the data.
        self.fence: Callable[[], bool] | None = None
        for topic in self.state.topics.values():
            topic.durable = topic.next
            topic.index = self.active.indexes.get(topic.id)

    @classmethod
    def open(
        cls,
        file_system: FileSystem,
        directory: str,
        *,
        clock: Clock,
        settings: LogSettings,
        producers: ProducerSettings,
        watermarks: Mapping[int, int] | None = None,
        known_topics: Mapping[int, tuple[TopicSpec, Mapping[int, bytes]]] | None = None,
        known_cursors: Mapping[int, Mapping[str, CursorState]] | None = None,
    ) -> Journal:
        """Recover the journal in `directory`, or create a new one.

        On return every record acked as fsynced is readable, everything readable is durable, and
        `report` has what could not be kept. `watermarks` (topic → offset) are ends known to other
        stores; heads never fall below them. Topics and cursors known elsewhere replace lost
        definitions, and nothing else.

        Raises:
            Unavailable: if the disk refuses a call; opening again starts over.
            InvalidRequest: if a newer Frazil wrote the data; nothing was touched.
            CorruptionError: if the directory holds segments of two journals.
        """
        files = OpenFiles(file_system, count_max=OPEN_FILES_MAX)
        try:
            opened = open_journal(
                file_system,
                directory,
                clock=clock,
                settings=settings,
                files=files,
                watermarks=watermarks or {},
                known_topics=known_topics or {},
                known_cursors=known_cursors or {},
            )
        except OSError as error:
            raise Unavailable(
                "the journal cannot be opened; check the disk and the rights on it, then try again",
                path=directory,
                error=error,
            ) from error
        return cls(
            file_system,
            directory,
            opened,
            clock=clock,
            settings=settings,
            producers=producers,
            files=files,
        )

    # -- appending -------------------------------------------------------------------------------

    def commit(self, entries: list[Entry], deliver: Deliver) -> None:
        """Write a group of entries and answer each; an ack follows the durability of its level.

        Never raises for a single entry; only bugs raise. After a storage failure every waiter gets
        `Unavailable(outcome="unknown")` and the journal is failed for good.
        """
        while entries:
            cut = 1 if len(entries) == 1 else group_end(entries)
            self._commit_some(entries[:cut], deliver)
            entries = entries[cut:]

    def has_room(self, entries: list[Entry]) -> bool:
        """Return whether a group fits into the active segment, so that no new one is needed."""
        size: int = sum(map(size_of, entries))
        return self._position + size <= self._settings.segment_bytes_max

    def _commit_some(self, entries: list[Entry], deliver: Deliver, *, again: bool = False) -> None:
        if self.failed is not None or self.closed:
            deliver(list(map(waiter_of, entries)), [self.closed_error()] * len(entries))
            return
        if self.fence is not None and not self.fence():
            settle_tracked(entries, written=False)
            fenced = Unavailable(
                "the broker's lease may have run out, nothing was written; it writes again when "
                "the metadata store answers",
                retry_after_ms=1000,
            )
            deliver(list(map(waiter_of, entries)), [fenced] * len(entries))
            return
        try:
            group, shown = self._write_group(entries)
        except Overloaded as full:
            # There is no room; the group was not written.
            settle_tracked(entries, written=False)
            self._refuse(entries, full, deliver, again=again)
            return
        except OSError as failure:
            self.fail(failure)
            unknown = Unavailable(
                "storage failed, the journal is closed; whether the records are durable is unknown",
                outcome="unknown",
                cause=failure,
            )
            deliver(list(map(waiter_of, entries)), [unknown] * len(entries))
            return
        results = group.results
        if self.fence is not None and not self.fence():
            results = _late(results)
        deliver(group.waiters, results)
        wake(shown)
        if not group.sync and self._sync_due():
            self.sync_now()

    def _write_group(self, entries: list[Entry]) -> tuple[Group, Iterable[TopicState]]:
        """Encode and write entries; return the group, and the topics with durable records.

        Raises:
            Overloaded: there is no room; nothing is written.
        """
        size = sum(map(size_of, entries))
        if self._position + size > self._settings.segment_bytes_max and self._frames > 2:
            self.rotate()
        group = Group(
            self.state,
            self.active,
            synced=self.synced_lsn,
            time_us=max(self.clock.now_us(), self.state.time_us),
            position=self._position,
            bytes_max=self._settings.write_bytes_max,
        )
        group.encode(entries)
        if group.size:
            self._write(group)
        self._apply(group)
        return group, self._sync() if group.sync else ()

    def _refuse(
        self, entries: list[Entry], error: Overloaded, deliver: Deliver, *, again: bool
    ) -> None:
        """Refuse a group without room, except its cursor frames: those may use the ballast.

        The ballast was released for them when the disk was full, so they are tried once more.
        """
        cursors: list[Entry] = []
        others: list[Entry] = []
        for entry in entries:
            is_cursor = entry[1] is None and entry[2].kind == fmt.KIND_CURSOR
            (cursors if is_cursor else others).append(entry)
        deliver(list(map(waiter_of, others)), [error] * len(others))
        if again:
            unavailable = Unavailable(
                "there is no room for the progress of subscriptions, nothing was written; "
                "free space, then retry",
                cause=error.message,
                **error.details,
            )
            deliver(list(map(waiter_of, cursors)), [unavailable] * len(cursors))
        elif cursors:
            self._commit_some(cursors, deliver, again=True)

    def _write(self, group: Group) -> None:
        """Write a group's frames at the end.

        Raises:
            Overloaded: the disk is full; the partial write is rolled back.
        """
        buffers = group.buffers
        end = self._position + group.size
        if end > self._filled and group.size < len(self._zeroes):
            # Now and then a write also fills zeroes ahead, so that most syncs change no file size.
            buffers = [*buffers, self._zeroes]
            self._filled = end + len(self._zeroes)
        try:
            write_fully(self._file, self._position, buffers)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._undo_write()
            self._report_full()
            raise disk_full(self.directory) from error
        self._filled = max(self._filled, end)

    def _report_full(self) -> None:
        if self.on_disk_full is not None:
            with contextlib.suppress(OSError):
                self.on_disk_full()

    def _undo_write(self) -> None:
        """Cut off a half-written group, durably; if that fails the caller fails the journal."""
        self._file.truncate(self._position)
        self._file.sync()
        self._filled = self._position

    def _apply(self, group: Group) -> None:
        """Apply a written group to the state; readers see nothing of it before its sync."""
        state = self.state
        time_us = group.time_us
        self._apply_controls(group)
        indexes = self.active.indexes
        for topic, offset, position, length, count in group.data:
            index = topic.index
            if index is None:
                index = topic.index = indexes.get(topic.id) or FrameIndex()
                indexes[topic.id] = index
            index.append(offset, position, length, time_us, count)
            topic.next = offset + count
            self.record_count += count
            topic.bytes_local += length
            self._dirty[topic.id] = topic
        for memory, kept in group.kept:
            # Before the sync: readers stop at `durable`, and everything below it must be there.
            memory.append(kept)
        for topic, offset, records in group.live:
            # Subscriptions use them once `durable` is past them, after the publishers' answers.
            for follower in topic.followers:
                follower.written(offset, time_us, records)
        if group.kept and self.on_kept is not None:
            self.on_kept(group.size)
        for producer, sent, epoch in group.sent:
            state.record_sent(producer.id, sent, epoch=epoch)
        if len(state.producers) > PRODUCERS_MAX:
            state.forget_producers(count_max=PRODUCERS_MAX, older_than_us=0)
        self._dirty_tracked += group.tracked
        if not self._dirty_bytes:
            self._dirty_since = self.clock.monotonic()
        self._dirty_bytes += group.size
        self._position += group.size
        self._frames += len(group.data) + len(group.controls)
        state.lsn = group.lsn
        state.time_us = time_us
        self.active.body_end = self._position
        self.active.lsn_last = group.lsn
        self.bytes_written += group.size
        self.group_count += 1

    def _apply_controls(self, group: Group) -> None:
        for head, payload in group.controls:
            self.state.apply(head, payload)
            topic = self.state.topics.get(head.topic)
            if topic is not None:
                self._dirty[head.topic] = topic

    def _sync_due(self) -> bool:
        """Tell whether records of periodic topics are old enough or numerous enough to sync."""
        if self._dirty_bytes >= SYNC_BYTES_MAX:
            return True
        age = self.clock.monotonic() - self._dirty_since
        return self._dirty_bytes > 0 and age >= self._settings.sync_interval_s

    def _sync(self) -> Iterable[TopicState]:
        """Make all written data durable and return its topics. An error here is final."""
        self._file.sync()
        self.sync_count += 1
        self.synced_lsn = self.state.lsn
        self._last_append = self.clock.monotonic()
        dirty = self._dirty
        self._dirty = {}
        self._dirty_bytes = 0
        self.shown += 1
        for topic in dirty.values():
            topic.durable = topic.next
        self.shown += 1
        if self._dirty_tracked:
            # After `durable` has grown: memory then has every change that is no longer in flight.
            tracked, self._dirty_tracked = self._dirty_tracked, []
            settle_tracked(tracked, written=True)
        return dirty.values()

    def sync_now(self) -> None:
        """Make all written data durable, on the journal's thread; an error fails the journal."""
        if self._dirty_bytes and self.failed is None:
            try:
                wake(self._sync())
            except OSError as error:
                self.fail(error)

    # -- in the background -----------------------------------------------------------------------

    def tick(self) -> float | None:
        """Do timed work: a periodic sync, a marker, rotation by age.

        Returns the seconds until the next timed work, None without any.
        """
        if self.failed is not None or self.closed:
            return None
        try:
            return self._tick()
        except Overloaded:
            # No room for the next segment: the current one stays active.
            return FULL_PAUSE_S
        except OSError as error:
            self.fail(error)
            return None

    def _tick(self) -> float | None:
        settings = self._settings
        now = self.clock.monotonic()
        due: list[float] = []
        if self._dirty_bytes:
            left = self._dirty_since + settings.sync_interval_s - now
            if left <= 0:
                wake(self._sync())
            else:
                due.append(left)
        if self.marked_lsn < self.synced_lsn:
            left = self._last_append + MARKER_DELAY_S - now
            if left <= 0:
                self.write_marker()
            else:
                due.append(left)
        age_s = (self.clock.now_us() - self.active.created_us) / 1e6
        if self._frames > 2 and self.active.indexes:
            if age_s >= SEGMENT_AGE_MAX_S:
                try:
                    self.rotate()
                except Overloaded:
                    due.append(RETRY_FULL_S)
            else:
                due.append(SEGMENT_AGE_MAX_S - age_s)
        return min(due, default=None)

    def write_marker(self, *, close: bool = False) -> None:
        """Append and sync a frame that proves the last group synced; best effort when full."""
        frame = marker_frame(self.state, self.active, synced=self.synced_lsn, close=close)
        try:
            write_fully(self._file, self._position, [frame])
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            self._undo_write()
            return
        self._position += len(frame)
        self._filled = max(self._filled, self._position)
        self._frames += 1
        self.active.body_end = self._position
        synced = self.synced_lsn
        wake(self._sync())
        self.marked_lsn = synced

    def rotate(self) -> None:
        """Start a new segment; the old one is sealed later by `seal_one`."""
        if self._dirty_bytes:
            wake(self._sync())
        if self.segments[0].id < self.state.segment_first:
            # Freed, but not detached yet: the checkpoint must not say that they hold the start.
            first = self.state.segment_first
            kept = [segment for segment in self.segments if segment.id >= first]
            refresh_topics(self.state.topics.values(), kept)
        old = self.active
        segment = old.id + 1
        lsn = self.state.lsn
        now_us = max(self.clock.now_us(), self.state.time_us)
        header = fmt.SegmentHeader(
            journal=self.journal_id,
            segment=segment,
            salt=self.clock.random_bytes(8),
            generation=old.generation + 1,
            previous_segment=old.id,
            previous_length=self._position,
            previous_lsn=lsn,
            created_us=now_us,
        )
        # Keep the checkpoint small: drop silent producers and topics deleted long ago.
        self.state.forget_old(
            now_us=now_us,
            producers_max=PRODUCERS_MAX,
            producer_age_us=int(self._producers.window_age_s * 1_000_000),
            delete_grace_us=self.delete_grace_us,
            trusted=self._clock_watch.trusted(now_us=now_us, monotonic_s=self.clock.monotonic()),
        )
        frames = initial_frames(
            header, encode_checkpoint(self.state, lsn=lsn), lsn=lsn, time_us=now_us
        )
        file, position = self._create_segment(header, frames)
        path = f"{self.directory}/{segment_name(segment)}"
        fresh = Segment(path, header, self._files)
        fresh.body_end = position
        self.to_seal.append((old, self._frames))
        self._file = file
        self._position = self._filled = position
        self._frames = 2
        self.active = fresh
        self.marked_lsn = lsn
        for topic in self.state.topics.values():
            topic.index = None
        self.segments = (*self.segments, fresh)

    def _create_segment(
        self, header: fmt.SegmentHeader, frames: Sequence[Buffer]
    ) -> tuple[File, int]:
        """Create the next segment; if necessary close readers' descriptors for it (F46).

        Raises:
            Overloaded: there is no room or no descriptor for it.
        """
        for is_last in (False, True):
            try:
                return create_segment(self._file_system, self.directory, header, frames)
            except OSError as error:
                path = f"{self.directory}/{segment_name(header.segment)}"
                if self._file_system.stat(path) is not None:
                    raise
                # Before the rename the new segment does not exist: the old one stays active.
                if error.errno in DISK_FULL:
                    self._report_full()
                    raise disk_full(self.directory) from error
                if error.errno not in NO_DESCRIPTORS:
                    raise
                if is_last:
                    raise Overloaded(
                        "no file descriptors are left for the next segment, raise the limit of "
                        "open files; nothing was written",
                        retry_after_ms=1000,
                    ) from error
                # The readers' files can be reopened: close them and try once more.
                self._files.clear()
        raise AssertionError("the last try returns or raises")

    def seal_one(self) -> bool:
        """Write the footer of one rotated segment; return whether there was one.

        May run together with the owner's other calls: it touches only an inactive segment. After an
        error the segment stays without a footer until the journal is opened again, so that a failed
        sync is never tried a second time.
        """
        with self._sealing:
            if not self.to_seal:
                return False
            segment, frames = self.to_seal.pop(0)
            # A second footer would lack the indexes, which are in the first one.
            if not segment.sealed_us:
                with contextlib.closing(self._file_system.open(segment.path, "write")) as file:
                    footer = seal(file, segment, frames=frames, time_us=self.clock.now_us())
                self._files.drop(segment.path)
                segment.use_footer(footer)
                segment.forget_indexes()
            return True

    def free(self, segment_first: int) -> Control:
        """Return the control frame that frees all segments below `segment_first`.

        Commit it, then `detach_freed` and `unlink`; recovery completes an interrupted free.
        """
        payload = msgspec.msgpack.encode((STATE_FREED, "", segment_first))
        return Control(fmt.KIND_STATE, 0, payload)

    def detach_freed(self) -> list[Segment]:
        """Remove the freed segments from the readers' view."""
        first = self.state.segment_first
        gone = [segment for segment in self.segments if segment.id < first]
        if gone:
            kept = tuple(segment for segment in self.segments if segment.id >= first)
            # The starts rise first: a reader that still finds the segments gets no wrong answer.
            refresh_topics(self.state.topics.values(), kept)
            self.segments = kept
            with self._sealing:
                self.to_seal = [item for item in self.to_seal if item[0].id >= first]
        return gone

    def unlink(self, gone: Iterable[Segment]) -> None:
        """Remove detached segments' files; open readers keep their bytes. Safe for any thread."""
        for segment in gone:
            self._files.drop(segment.path)
            if self._file_system.stat(segment.path) is not None:
                self._file_system.unlink(segment.path)
        try:
            self._file_system.sync_directory(self.directory)
        except OSError as error:
            # The next rotation would sync this directory again, as if the sync had not failed (F6).
            self.fail(error)
            raise

    # -- the end ---------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """Stop for good: never sync again, never write again (F6). A bug elsewhere may call it."""
        if self.failed is None:
            self.failed = error
        wake(list(self.state.topics.values()))

    def closed_error(self) -> FrazilError:
        """Return the error for calls after the end, with the cause of the end."""
        failed = self.failed
        if failed is None:
            return Closed("the engine is closed")
        if isinstance(failed, Closed):
            return Closed(failed.message, **failed.details)
        if isinstance(failed, OSError):
            text = (
                "the journal is closed because storage failed; find the cause, then open it again"
            )
        else:
            text = "the journal is closed because of a bug; please report it, then open it again"
        return Closed(text, cause=failed, directory=self.directory)

    def close(self) -> None:
        """Sync everything and mark the journal as cleanly closed."""
        if self.closed:
            return
        try:
            if self.failed is None:
                if self._dirty_bytes:
                    wake(self._sync())
                self.write_marker(close=True)
                if self._filled > self._position:
                    self._file.truncate(self._position)
                    self._file.sync()
        except OSError as error:
            self.fail(error)
        finally:
            self.closed = True
            try:
                self._file.close()
            except OSError as error:
                self.fail(error)
            self._files.clear()
            wake(self.state.topics.values())
