"""The catalog of the disk tier: which files a topic has, in metadata and in its directory.

A picture of a topic's files is immutable and answers by bisection, so that ten thousand files cost
no more than ten. A change makes a new picture and swaps it.
"""

from __future__ import annotations

import posixpath
import re
import threading
from bisect import bisect_left, bisect_right
from contextlib import closing
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from frazil.errors import Closed, CorruptionError
from frazil.fs import write_fully
from frazil.log import forked
from frazil.metadata import TRANSACTION_BYTES_MAX, Transaction, entries
from frazil.offsets import RangeSet
from frazil.struct_types import learnt
from frazil.telemetry import warn
from frazil.tiers.disk.format import (
    KEYS_SUFFIX,
    SUFFIX,
    TEMPORARY_SUFFIX,
    DiskFile,
    keys_name,
    parse_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from frazil.fs import FileSystem
    from frazil.log import SpecialRange
    from frazil.metadata import MetadataStore

PREFIX: Final = "/disk/"
MARKS: Final = "state"
ROWS_MAX: Final = 500
"""One transaction forgets so many files."""
ROWS_BYTES_MAX: Final = TRANSACTION_BYTES_MAX // 2
_TOPIC: Final = re.compile(r"[0-9a-f]{8}\Z")


class TopicMarks(msgspec.Struct, frozen=True, array_like=True):
    """A topic's watermarks in the disk tier.

    Attributes:
        start: below it nothing is held any more.
        flushed: everything below it has been written to files.
        committed: everything below it is safe elsewhere, too.
        changed_us: when `committed` last moved.
        dropped: the topic was deleted and its files are being removed.
    """

    start: int = 0
    flushed: int = 0
    committed: int = 0
    changed_us: int = 0
    dropped: bool = False


class Span(NamedTuple):
    """Files whose sets overlap; they are removed together, so that no set loses a part."""

    first: int
    end: int
    files: tuple[DiskFile, ...]


class TopicFiles:
    """The files of one topic at one moment.

    Attributes:
        files: sorted by their first offset.
        gaps: declared and lost ranges without rows, sorted.
        holes: ranges between `start` and `flushed` that no set covers, sorted.
        size: the bytes they take on disk.
    """

    __slots__ = (
        "_ends",
        "_firsts",
        "_gap_firsts",
        "_times",
        "by_last",
        "by_name",
        "files",
        "gaps",
        "holes",
        "marks",
        "size",
        "spans",
        "topic",
    )

    def __init__(self, topic: int, files: Iterable[DiskFile], marks: TopicMarks) -> None:
        self.topic = topic
        self.marks = marks
        self.files = tuple(sorted(files, key=_by_first))
        self.by_name = {file.name: file for file in self.files}
        self._firsts = [file.offset_first for file in self.files]
        self._ends = list(accumulate((file.offset_last + 1 for file in self.files), max))
        self._times = list(accumulate((file.time_last for file in self.files), max))
        self.by_last = tuple(sorted(self.files, key=lambda file: -file.offset_last))
        self.gaps = tuple(sorted({gap for file in self.files for gap in file.ranges}))
        self._gap_firsts = [gap.first for gap in self.gaps]
        self.spans = tuple(_spans(self.files))
        covered = RangeSet((span.first, span.end) for span in self.spans)
        self.holes = covered.missing(marks.start, marks.flushed)
        self.size = sum(file.size for file in self.files)

    @property
    def start(self) -> int:
        """Return the first offset that is held."""
        return self.marks.start

    @property
    def flushed(self) -> int:
        """Return the offset after the last one that is held."""
        return self.marks.flushed

    def overlapping(self, first: int, end: int) -> list[DiskFile]:
        """Return the files that may have a row in `[first, end)`, in order."""
        low = bisect_right(self._ends, first)
        high = bisect_left(self._firsts, end)
        return [file for file in self.files[low:high] if file.offset_last >= first]

    def since(self, time_us: int) -> Iterator[DiskFile]:
        """Yield the files that may have a row appended at or after a time, in order."""
        for file in self.files[bisect_left(self._times, time_us) :]:
            if file.rows and file.time_last >= time_us:
                yield file

    def gap_at(self, offset: int) -> SpecialRange | None:
        """Return the range without rows that covers an offset."""
        index = bisect_right(self._gap_firsts, offset) - 1
        return self.gaps[index] if index >= 0 and self.gaps[index].end > offset else None

    def gap_behind(self, offset: int) -> int | None:
        """Return the start of the next range without rows after an offset."""
        index = bisect_right(self._gap_firsts, offset)
        return self._gap_firsts[index] if index < len(self.gaps) else None

    def hole_at(self, offset: int) -> tuple[int, int] | None:
        """Return the range that no set covers around an offset."""
        return next((hole for hole in self.holes if hole[0] <= offset < hole[1]), None)


def _by_first(file: DiskFile) -> tuple[int, int, str]:
    return (file.offset_first, file.offset_last, file.name)


def _spans(files: Sequence[DiskFile]) -> Iterator[Span]:
    """Yield the groups of files whose sets overlap; sets that only touch are two groups."""
    ranged = sorted(((file.set_first, file.set_end, file) for file in files), key=_range_key)
    group: list[DiskFile] = []
    group_first = group_end = 0
    for first, end, file in ranged:
        if group and first >= group_end:
            yield Span(group_first, group_end, tuple(group))
            group = []
        if not group:
            group_first, group_end = first, end
        group.append(file)
        group_end = max(group_end, end)
    if group:
        yield Span(group_first, group_end, tuple(group))


def _range_key(ranged: tuple[int, int, DiskFile]) -> tuple[int, int, str]:
    return (ranged[0], ranged[1], ranged[2].name)


class DiskCatalog:
    """The pictures of all topics, and their rows `/disk/<topic>/<name>` in the metadata.

    Attributes:
        changing: the lock under which a picture is read, changed and swapped; never held while
            rows of files are read or written.
        failed: why nothing may be changed any more: the files belong to the parent of a fork.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._pictures: dict[int, TopicFiles] = {}
        self.changing = threading.RLock()
        self.failed: BaseException | None = None
        forked.watch(self)

    def picture(self, topic: int) -> TopicFiles:
        """Return the files of a topic at this moment; none if it is unknown."""
        found = self._pictures.get(topic)
        return found if found is not None else _without_files(topic)

    @property
    def topics(self) -> list[int]:
        """Return the topics that the tier knows."""
        return list(self._pictures)

    def load(self) -> None:
        """Read all topics from the metadata.

        Raises:
            CorruptionError: if a row cannot be decoded.
        """
        files: dict[int, list[DiskFile]] = {}
        marks: dict[int, TopicMarks] = {}
        for entry in entries(self._store, PREFIX):
            topic_text, _, name = entry.key.removeprefix(PREFIX).partition("/")
            try:
                topic = int(topic_text, 16)
                if name == MARKS:
                    marks[topic] = msgspec.msgpack.decode(entry.value, type=learnt(TopicMarks))
                else:
                    file = msgspec.msgpack.decode(entry.value, type=learnt(DiskFile))
                    files.setdefault(topic, []).append(file)
            except (ValueError, msgspec.MsgspecError) as error:
                raise CorruptionError(
                    "metadata of the disk tier is damaged", key=entry.key, reason=error
                ) from error
        self._pictures = {
            topic: TopicFiles(topic, files.get(topic, ()), marks.get(topic, TopicMarks()))
            for topic in files.keys() | marks.keys()
        }

    def change(
        self,
        picture: TopicFiles,
        marks: TopicMarks,
        *,
        add: Sequence[DiskFile] = (),
        remove: Sequence[DiskFile] = (),
    ) -> None:
        """Change a topic's files in one transaction, then in memory; durable on return.

        Raises:
            Closed: in a child of the process that opened the tier; the files are its parent's.
        """
        with self.changing:
            self.check_owner()
            topic = picture.topic
            values = [msgspec.msgpack.encode(file) for file in add]
            if sum(map(len, values)) > ROWS_BYTES_MAX:
                # The footers still have the ranges; only pruning without opening a file is lost.
                slim = [msgspec.structs.replace(file, columns={}) for file in add]
                values = [msgspec.msgpack.encode(file) for file in slim]
            puts = {_key(topic, file.name): value for file, value in zip(add, values, strict=True)}
            puts[_key(topic, MARKS)] = msgspec.msgpack.encode(marks)
            deletes = tuple(_key(topic, file.name) for file in remove)
            self._store.commit(Transaction(puts=puts, deletes=deletes))
            gone = {file.name for file in remove}
            kept = [file for file in picture.files if file.name not in gone]
            self._pictures[topic] = TopicFiles(topic, [*kept, *add], marks)

    def check_owner(self) -> None:
        """Raise `Closed` in a child of the process that opened the tier."""
        if self.failed is not None:
            raise self.failed

    def drop(self, topic: int) -> TopicFiles | None:
        """Mark a topic as dropped, durably, and forget its picture; return it."""
        with self.changing:
            picture = self._pictures.get(topic)
            if picture is not None:
                self.change(picture, msgspec.structs.replace(picture.marks, dropped=True))
                del self._pictures[topic]
            return picture

    def forget(self, picture: TopicFiles) -> None:
        """Delete the rows of a dropped topic, its marks last."""
        self.check_owner()
        keys = [_key(picture.topic, name) for name in (*picture.by_name, MARKS)]
        for first in range(0, len(keys), ROWS_MAX):
            self._store.commit(Transaction(deletes=tuple(keys[first : first + ROWS_MAX])))


def _key(topic: int, name: str) -> str:
    return f"{PREFIX}{topic:08x}/{name}"


@lru_cache(maxsize=16_384)
def _without_files(topic: int) -> TopicFiles:
    """Return the picture of a topic without files."""
    return TopicFiles(topic, (), TopicMarks())


class Scanned(NamedTuple):
    """The contents of a topic's directory: the sizes of files and of their maps of keys."""

    files: dict[str, int]
    keys: dict[str, int]
    leftovers: list[str]
    """Temporary files, and maps of keys without their file."""


class DiskDirectory:
    """Paths and names of the tier's files. Any thread may use it.

    A directory whose sync failed is never synced again: the kernel may have dropped unwritten
    data. Nothing is published any more until the engine is opened again.
    """

    def __init__(self, file_system: FileSystem, root: str, quarantine: str) -> None:
        self.file_system = file_system
        self._root = root
        self._quarantine = quarantine
        self._made: set[int] = set()
        self._failed: OSError | None = None

    def topic_path(self, topic: int) -> str:
        """Return the directory of a topic."""
        return posixpath.join(self._root, f"{topic:08x}")

    def path(self, topic: int, name: str) -> str:
        """Return the path of a file."""
        return posixpath.join(self.topic_path(topic), name)

    def create(self) -> None:
        """Create the tier's directory, durably."""
        self.file_system.make_directory(self._root)
        self.file_system.sync_directory(posixpath.dirname(self._root))

    def topics(self) -> list[int]:
        """Return the topics that have a directory."""
        names = self.file_system.list_directory(self._root)
        return [int(name, 16) for name in names if _TOPIC.match(name)]

    def scan(self, topic: int) -> Scanned:
        """Return the contents of a topic's directory."""
        files: dict[str, int] = {}
        keys: dict[str, int] = {}
        leftovers: list[str] = []
        path = self.topic_path(topic)
        if self.file_system.stat(path) is None:
            return Scanned(files, keys, leftovers)
        self._made.add(topic)
        for name in self.file_system.list_directory(path):
            info = self.file_system.stat(posixpath.join(path, name))
            if name.endswith(TEMPORARY_SUFFIX):
                leftovers.append(name)
            elif info is not None and parse_name(name) is not None:
                files[name] = info.size
            elif info is not None and name.endswith(KEYS_SUFFIX):
                keys[name.removesuffix(KEYS_SUFFIX) + SUFFIX] = info.size
        for name in keys.keys() - files.keys():
            leftovers.append(keys_name(name))
            del keys[name]
        return Scanned(files, keys, leftovers)

    def check(self) -> None:
        """Refuse changes after a directory could not be synced.

        Raises:
            Closed: open the engine again.
        """
        if self._failed is not None:
            raise Closed(
                "a directory of the disk tier could not be synced, open the engine again",
                cause=self._failed,
            )

    def make_topic(self, topic: int) -> None:
        """Create a topic's directory, durably."""
        self.check()
        if topic not in self._made:
            self.file_system.make_directory(self.topic_path(topic))
            self._sync(self._root)
            self._made.add(topic)

    def publish(self, topic: int, names: Sequence[str]) -> None:
        """Give synced temporary files their names; the names are durable on return."""
        self.check()
        for name in names:
            path = self.path(topic, name)
            self.file_system.rename(path + TEMPORARY_SUFFIX, path)
        self._sync(self.topic_path(topic))

    def write_keys(self, topic: int, name: str, data: bytes) -> int:
        """Write a file's map of keys; not synced: it has checksums and is rebuilt if lost."""
        path = self.path(topic, keys_name(name))
        temporary = path + TEMPORARY_SUFFIX
        with closing(self.file_system.open(temporary, "create")) as file:
            write_fully(file, 0, [data])
        self.file_system.rename(temporary, path)
        return len(data)

    def remove(self, topic: int, name: str) -> None:
        """Remove a file and its map of keys, as far as possible."""
        for each in (name, keys_name(name)):
            self.remove_one(topic, each)

    def remove_one(self, topic: int, name: str) -> None:
        """Remove one name of a topic's directory; on an error it stays until the next start."""
        try:
            self.file_system.unlink(self.path(topic, name))
        except FileNotFoundError:
            pass
        except OSError as error:
            warn("disk_file_left", topic=topic, file=name, error=error)

    def put_aside(self, topic: int, name: str, reason: str) -> None:
        """Move a file into quarantine with a note of the reason."""
        files = self.file_system
        source = self.path(topic, name)
        target = posixpath.join(self._quarantine, f"disk-{topic:08x}-{name}")
        try:
            if files.stat(source) is None:
                return
            files.make_directory(self._quarantine)
            if files.stat(f"{target}.reason") is None:
                with closing(files.open(f"{target}.reason", "create")) as note:
                    write_fully(note, 0, [f"{reason}\n".encode()])
                    note.sync()
            files.rename(source, target)
        except OSError as error:
            warn("disk_file_left", topic=topic, file=name, error=error)
            return
        self.remove_one(topic, keys_name(name))
        warn("disk_file_quarantined", topic=topic, file=name, reason=reason)

    def quarantined(self, topic: int) -> list[str]:
        """Return the names of a topic's files in quarantine."""
        if self.file_system.stat(self._quarantine) is None:
            return []
        prefix = f"disk-{topic:08x}-"
        names = self.file_system.list_directory(self._quarantine)
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def _sync(self, path: str) -> None:
        try:
            self.file_system.sync_directory(path)
        except OSError as error:
            self._failed = error
            raise
