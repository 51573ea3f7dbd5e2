"""Which files a topic has: an immutable picture that readers use, and its rows in the metadata.

A picture answers by bisection, so that ten thousand files cost no more than ten. Whoever changes
the files makes a new picture and swaps it; nobody ever edits one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from frazil.errors import CorruptionError
from frazil.log import forked
from frazil.metadata import TRANSACTION_BYTES_MAX, Transaction, entries
from frazil.struct_types import learnt
from frazil.tiers.disk.file import DiskFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from frazil.log import SpecialRange
    from frazil.metadata import MetadataStore

__all__ = ["DiskRows", "TopicFiles", "TopicMarks"]

PREFIX: Final = "/disk/"
MARKS: Final = "state"
ROWS_BYTES_MAX: Final = TRANSACTION_BYTES_MAX // 2


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
    """Files whose sets hang together: they go together, so that no set loses a part."""

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
        "_hole_firsts",
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
        self.holes = tuple(_holes(self.spans, marks))
        self._hole_firsts = [first for first, _ in self.holes]
        self.size = sum(file.size for file in self.files)

    @property
    def start(self) -> int:
        """Return the first offset that is held."""
        return self.marks.start

    @property
    def flushed(self) -> int:
        """Return the offset behind the last one that is held."""
        return self.marks.flushed

    def changed(
        self,
        *,
        add: Iterable[DiskFile] = (),
        remove: Iterable[DiskFile] = (),
        marks: TopicMarks | None = None,
    ) -> TopicFiles:
        """Return a picture with files added, removed or both."""
        gone = {file.name for file in remove}
        kept = [file for file in self.files if file.name not in gone]
        return TopicFiles(self.topic, [*kept, *add], marks or self.marks)

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
        if index >= 0 and self.gaps[index].end > offset:
            return self.gaps[index]
        return None

    def gap_behind(self, offset: int) -> int | None:
        """Return where the next range without rows starts behind an offset."""
        index = bisect_right(self._gap_firsts, offset)
        return self._gap_firsts[index] if index < len(self.gaps) else None

    def hole_at(self, offset: int) -> tuple[int, int] | None:
        """Return the range that no set covers around an offset."""
        index = bisect_right(self._hole_firsts, offset) - 1
        if index >= 0 and self.holes[index][1] > offset:
            return self.holes[index]
        return None


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


def _holes(spans: Sequence[Span], marks: TopicMarks) -> Iterator[tuple[int, int]]:
    reached = marks.start
    for span in spans:
        if span.first > reached:
            yield (reached, span.first)
        reached = max(reached, span.end)
    if reached < marks.flushed:
        yield (reached, marks.flushed)


class DiskRows:
    """The tier's rows in the metadata: `/disk/<topic>/<name>` and `/disk/<topic>/state`."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.failed: BaseException | None = None
        """Why nothing may be changed any more: the files belong to the process that was forked."""
        forked.watch(self)

    def load(self) -> dict[int, TopicFiles]:
        """Return all topics as the metadata knows them.

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
        return {
            topic: TopicFiles(topic, files.get(topic, ()), marks.get(topic, TopicMarks()))
            for topic in files.keys() | marks.keys()
        }

    def change(
        self,
        topic: int,
        marks: TopicMarks,
        *,
        add: Sequence[DiskFile] = (),
        remove: Iterable[str] = (),
    ) -> None:
        """Put and delete rows in one transaction; durable on return.

        Raises:
            Closed: in a child of the process that opened the tier; the files are its parent's.
        """
        self.check_owner()
        values = [msgspec.msgpack.encode(file) for file in add]
        if sum(map(len, values)) > ROWS_BYTES_MAX:
            # The footers still have the ranges; only pruning without opening a file is lost.
            values = [
                msgspec.msgpack.encode(msgspec.structs.replace(file, columns={})) for file in add
            ]
        puts = {_key(topic, file.name): value for file, value in zip(add, values, strict=True)}
        puts[_key(topic, MARKS)] = msgspec.msgpack.encode(marks)
        deletes = tuple(_key(topic, name) for name in remove)
        self._store.commit(Transaction(puts=puts, deletes=deletes))

    def check_owner(self) -> None:
        """Raise `Closed` in a child of the process that opened the tier."""
        if self.failed is not None:
            raise self.failed

    def forget(self, topic: int, names: Sequence[str], *, count: int = 500) -> None:
        """Delete the rows of a dropped topic, its marks last."""
        self.check_owner()
        keys = [_key(topic, name) for name in (*names, MARKS)]
        for first in range(0, len(keys), count):
            self._store.commit(Transaction(deletes=tuple(keys[first : first + count])))


def _key(topic: int, name: str) -> str:
    return f"{PREFIX}{topic:08x}/{name}"
