"""Write a journal anew from a state and from frames of objects: what restoring leaves on disk.

The first segment is born with the state as its checkpoint. Frames keep their offsets, records and
producers; they get new places in the journal's order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from frazil.errors import CorruptionError
from frazil.fs import write_fully
from frazil.log import birth_frames, encode_checkpoint, give_birth
from frazil.log import format as fmt

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.fs import File, FileSystem
    from frazil.log import JournalState, SpecialRange

__all__ = ["RestoredJournal"]


class RestoredJournal:
    """A new journal in an empty directory. `close` makes it durable; before, nobody opens it."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: str,
        *,
        state: JournalState,
        journal: bytes,
        clock: Clock,
        segment_bytes_max: int,
    ) -> None:
        self._file_system = file_system
        self._directory = directory
        self._state = state
        self._journal = journal
        self._clock = clock
        self._bytes_max = segment_bytes_max
        self.bytes = 0
        """What was written, checkpoints included."""
        self.frames = 0
        state.segment_first = 1
        self._header = self._next_header(segment=0, length=0)
        self._file, self._position = self._born()

    def frame(self, head: fmt.FrameHead, payload: memoryview, runs: bytes) -> None:
        """Add a frame of records; its offsets follow what the journal has of the topic.

        Raises:
            CorruptionError: if they do not: a gap was not declared, or records would be doubled.
        """
        following = self._state.topics[head.topic].next
        if head.offset != following:
            raise CorruptionError(
                "frames of a topic's objects do not follow each other",
                topic_id=head.topic,
                offset=head.offset,
                offset_expected=following,
            )
        self._put(head._replace(lsn=self._state.lsn + 1), payload, runs)

    def gap(self, topic: int, special: SpecialRange) -> None:
        """Declare a range of offsets to hold no record."""
        payload = msgspec.msgpack.encode((special.end, special.kind, special.reason))
        head = fmt.FrameHead(
            offset=special.first, length=0, crc=0, kind=fmt.KIND_GAP, salt=b"", flags=0, runs=0,
            topic=topic, records=0, schema=0, lsn=self._state.lsn + 1, synced=0, generation=0,
            size=len(payload), time=self._header.created_us, head_crc=0, zero=0,
        )  # fmt: skip
        self._put(head, memoryview(payload), b"")

    def close(self) -> None:
        """Write a last marker and make everything durable."""
        try:
            lsn = self._state.lsn
            marker = fmt.frame_buffers(
                fmt.KIND_MARKER,
                b"",
                0,
                offset=0,
                salt=self._header.salt,
                generation=self._header.generation,
                lsn=lsn,
                synced=lsn,
                time_us=max(self._clock.now_us(), self._state.time_us),
            )
            # The marker says that what lies before it is synced: first that, then the marker.
            self._file.sync()
            self._position += write_fully(self._file, self._position, marker[:3])
            self._file.sync()
        finally:
            self._file.close()
        self._file_system.sync_directory(self._directory)

    def _put(self, head: fmt.FrameHead, payload: memoryview, runs: bytes) -> None:
        if self._position > self._bytes_max:
            self._rotate()
        first, data, padding, size = fmt.frame_buffers(
            head.kind,
            payload,
            head.size,
            offset=head.offset,
            salt=self._header.salt,
            generation=self._header.generation,
            lsn=head.lsn,
            synced=self._header.previous_lsn,
            time_us=head.time,
            topic=head.topic,
            count=head.records,
            schema=head.schema,
            flags=head.flags,
            runs=runs,
        )
        write_fully(self._file, self._position, [first, data, padding])
        self._position += size
        self.bytes += size
        self.frames += 1
        decoded = [fmt.Run(*fields) for fields in fmt.RUN.iter_unpack(runs)]
        self._state.apply(head, bytes(payload) if head.kind == fmt.KIND_GAP else b"", decoded)

    def _rotate(self) -> None:
        """Go on in another segment: this one is durable before the next one says where it ends."""
        self._file.sync()
        self._file.close()
        self._header = self._next_header(segment=self._header.segment, length=self._position)
        self._file, self._position = self._born()

    def _next_header(self, *, segment: int, length: int) -> fmt.SegmentHeader:
        return fmt.SegmentHeader(
            journal=self._journal,
            segment=segment + 1,
            salt=self._clock.random_bytes(8),
            generation=segment + 1,
            previous_segment=segment,
            previous_length=length,
            previous_lsn=self._state.lsn,
            created_us=max(self._clock.now_us(), self._state.time_us),
        )

    def _born(self) -> tuple[File, int]:
        lsn = self._state.lsn
        checkpoint = encode_checkpoint(self._state, lsn=lsn)
        buffers = birth_frames(self._header, checkpoint, lsn=lsn, time_us=self._header.created_us)
        file, position = give_birth(self._file_system, self._directory, self._header, buffers)
        self.bytes += position
        return file, position
