"""Segment files: creation, sealing, and their read-side view."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from frazil.errors import CorruptionError
from frazil.fs import read_fully, write_fully
from frazil.log import format as fmt
from frazil.log.index import Footer, FrameIndex, TopicEntry, decode_footer, decode_index, footer_of
from frazil.log.scan import Scanner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from frazil.fs import File, FileSystem

NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
HASH_WINDOW_BYTES: Final = 4 << 20
SUFFIX: Final = ".seg"
SUFFIX_TEMP: Final = ".new"


def segment_name(segment: int) -> str:
    """Return the file name of a segment."""
    return f"{segment:016x}{SUFFIX}"


def segment_number(name: str) -> int | None:
    """Return the id in a segment's file name, None for any other name."""
    stem = name.removesuffix(SUFFIX)
    if stem == name or len(stem) != 16:
        return None
    try:
        return int(stem, 16)
    except ValueError:
        return None


class Segment:
    """One segment as readers see it: its topics and the positions of their frames.

    `body_end` is the end of its valid frames. The active segment's indexes grow during reads; those
    of a sealed segment are loaded from its footer on first use.
    """

    __slots__ = (
        "_entries",
        "_files",
        "base_lsn",
        "body_end",
        "created_us",
        "generation",
        "id",
        "indexes",
        "lsn_last",
        "path",
        "salt",
        "sealed_us",
    )

    def __init__(self, path: str, header: fmt.SegmentHeader, files: OpenFiles) -> None:
        self.path = path
        self.id = header.segment
        self.salt = header.salt
        self.generation = header.generation
        self.base_lsn = header.previous_lsn
        self.created_us = header.created_us
        self.body_end = 0
        self.lsn_last = header.previous_lsn
        self.sealed_us = 0
        self._files = files
        self.indexes: dict[int, FrameIndex] = {}
        """By topic: found by a scan, kept by the writer, or loaded from the footer."""
        self._entries: dict[int, TopicEntry] = {}

    @property
    def topics(self) -> set[int]:
        """Return the ids of the topics that have frames here."""
        return {t for t, p in list(self.indexes.items()) if p.count} | set(self._entries)

    def use_footer(self, footer: Footer) -> None:
        """Use the footer of a sealed segment; indexes are loaded on demand."""
        self.body_end = footer.body_end
        self.lsn_last = footer.lsn_last
        self.sealed_us = footer.time_us
        self._entries = {entry.topic: entry for entry in footer.topics}

    def summary(self, topic: int) -> tuple[int, int, int, int, int] | None:
        """Return first and end offset, bytes, first and last time of a topic here."""
        index = self.indexes.get(topic)
        if index is not None and index.count:
            return index.first, index.end, index.bytes, index.times[0], index.time_max
        entry = self._entries.get(topic)
        if entry is None:
            return None
        return entry.first, entry.end, entry.bytes, entry.time_min, entry.time_max

    def summaries(self) -> dict[int, tuple[int, int, int, int, int]]:
        """Return the summary of each topic here."""
        found = {topic: self.summary(topic) for topic in self.topics}
        return {topic: each for topic, each in found.items() if each is not None}

    def index(self, topic: int) -> FrameIndex | None:
        """Return the frame index of a topic; the first call reads it from the footer."""
        index = self.indexes.get(topic)
        if index is not None:
            return index
        entry = self._entries.get(topic)
        if entry is None:
            return None
        file = self.file()
        blob = read_fully(file, entry.index_position, entry.index_length)
        try:
            index = decode_index(blob, entry)
        except CorruptionError as error:
            index = self._index_by_scan(entry, error)
        self.indexes = {**self.indexes, topic: index}
        return index

    def _index_by_scan(self, entry: TopicEntry, error: CorruptionError) -> FrameIndex:
        """Rebuild a damaged index of a topic from the frames themselves."""
        scan = Scanner(
            self.file(),
            salt=self.salt,
            generation=self.generation,
            start=fmt.SEGMENT_HEADER_BYTES,
            end=self.body_end,
            lsn=self.base_lsn,
        ).run()
        index = scan.indexes.get(entry.topic)
        if index is not None and (index.count, index.end) == (entry.frames, entry.end):
            return index
        raise CorruptionError(
            "index and frames of a segment are damaged, run `frazil doctor`; "
            "reading may go on at offset_next",
            topic_id=entry.topic,
            offset_first=entry.first,
            offset_next=entry.end,
            segment=self.id,
            reason=error.message,
        ) from error

    def forget_indexes(self) -> None:
        """Free the memory of indexes that can be reloaded from the footer."""
        if self._entries:
            self.indexes = {}

    def file(self) -> File:
        """Return an open file to read from."""
        return self._files.get(self.path)


class OpenFiles:
    """Files opened for reading; above a limit the least recently used ones are dropped.

    A file that a reader still uses stays open until that reader drops it.
    """

    def __init__(self, file_system: FileSystem, *, count_max: int) -> None:
        self._file_system = file_system
        self._count_max = count_max
        self._files: OrderedDict[str, File] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str) -> File:
        """Return the open file of `path`."""
        with self._lock:
            file = self._files.get(path)
            if file is not None:
                self._files.move_to_end(path)
                return file
        file = self._open(path)
        with self._lock:
            while len(self._files) >= self._count_max:
                self._files.popitem(last=False)
            self._files[path] = file
        return file

    def _open(self, path: str) -> File:
        try:
            return self._file_system.open(path, "read")
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS:
                raise
            # Close ours and try once more.
            self.clear()
            return self._file_system.open(path, "read")

    def drop(self, path: str) -> None:
        """Drop a file that was removed or replaced."""
        with self._lock:
            self._files.pop(path, None)

    def clear(self) -> None:
        """Drop all files."""
        with self._lock:
            self._files.clear()


def create_segment(
    file_system: FileSystem,
    directory: str,
    header: fmt.SegmentHeader,
    frames: Sequence[Buffer],
) -> tuple[File, int]:
    """Create a segment whose header and first frames are durable, and return it open.

    It is written under a temporary name, synced, then renamed and the directory synced: a segment
    with its final name is always whole. Returns the file and the position after the frames.
    """
    path = f"{directory}/{segment_name(header.segment)}"
    temporary = path.removesuffix(SUFFIX) + SUFFIX_TEMP
    if file_system.stat(temporary) is not None:
        file_system.unlink(temporary)
    file = file_system.open(temporary, "create")
    try:
        initial = fmt.SEGMENT_HEADER_BYTES + sum(memoryview(frame).nbytes for frame in frames)
        first = fmt.encode_segment_header(header._replace(initial_length=initial))
        size = write_fully(file, 0, [first, *frames])
        file.sync()
        file_system.rename(temporary, path)
        file_system.sync_directory(directory)
    except OSError:
        file.close()
        raise
    return file, size


def seal(file: File, segment: Segment, *, frames: int, time_us: int) -> Footer:
    """Cut the file at the segment's valid end, write its footer and make both durable."""
    digest = body_hash(file, segment.body_end)
    blobs, footer = footer_of(
        segment.indexes,
        segment=segment.id,
        generation=segment.generation,
        body_end=segment.body_end,
        frames=frames,
        lsn_last=segment.lsn_last,
        time_us=time_us,
        sha256=digest,
    )
    trailer = fmt.encode_trailer(footer, index_position=segment.body_end)
    file.truncate(segment.body_end)
    write_fully(file, segment.body_end, [blobs, footer, trailer])
    file.sync()
    return decode_footer(footer)


def body_hash(file: File, body_end: int) -> bytes:
    """Return the SHA-256 of a segment's bytes before its footer."""
    digest = hashlib.sha256()
    position = 0
    while position < body_end:
        data = file.read_at(position, min(HASH_WINDOW_BYTES, body_end - position))
        if not data:
            raise CorruptionError("segment is shorter than its body", position=position)
        digest.update(data)
        position += len(data)
    return digest.digest()


def read_footer(file: File) -> Footer | None:
    """Return the verified footer of a sealed segment, None if it is absent or damaged."""
    size = file.size()
    if size < fmt.SEGMENT_HEADER_BYTES + fmt.TRAILER.size:
        return None
    found = fmt.decode_trailer(read_fully(file, size - fmt.TRAILER.size, fmt.TRAILER.size))
    if found is None:
        return None
    index_position, length, crc = found
    position = size - fmt.TRAILER.size - length
    if not fmt.SEGMENT_HEADER_BYTES <= index_position <= position:
        return None
    data = read_fully(file, position, length)
    if not fmt.footer_matches(data, index_position=index_position, crc=crc):
        return None
    try:
        footer = decode_footer(data)
    except CorruptionError:
        return None
    return footer if footer.body_end == index_position else None
