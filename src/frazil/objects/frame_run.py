"""A run of frames on its way into an object: what gives it, and what is gathered of it."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import attrs

from frazil.log import format as fmt
from frazil.model import TopicSpec
from frazil.objects.format import INDEX_ENTRIES_MAX, IndexEntry, Range, pack_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

    from frazil.objects.descriptor import Hint

__all__ = [
    "CountedRun",
    "FrameRun",
    "FrameSource",
    "Heads",
    "HeadsHash",
    "PrecededRun",
    "Tally",
    "Topic",
    "count",
    "verify_frame",
]

_PACK: Final = fmt.FRAME_HEAD.pack


@attrs.frozen
class Topic:
    """What an object says of a topic besides its frames."""

    spec: TopicSpec
    schemas: Mapping[int, bytes]
    producers: Mapping[int, str]
    """Names of producers by id."""


class FrameRun(Protocol):
    """The frames of one topic's offsets `[first, end)`, in order; those of `ranges` have none.

    The first frame may begin below `first`, never does the last one end behind `end`.
    """

    @property
    def topic(self) -> Topic:
        """The topic they belong to."""

    @property
    def first(self) -> int:
        """The first offset."""

    @property
    def end(self) -> int:
        """The offset behind the last one."""

    @property
    def size(self) -> int:
        """Bytes of all frames."""

    @property
    def ranges(self) -> tuple[Range, ...]:
        """Gaps and lost ranges inside."""

    @property
    def hint(self) -> Hint:
        """Where the journal goes on."""

    def pieces(self, tally: Tally | None = None) -> Iterator[Buffer]:
        """Yield all frames one behind another, in pieces of at most `PIECE_BYTES_MAX` bytes.

        The bytes are the same each time. With a tally each frame is verified and counted in it; a
        frame that is larger than a piece is known to be whole when its last piece is given.

        Raises:
            CorruptionError: a frame is damaged; `offset_first` and `offset_next` name what is lost.
            NotFound: frames are gone meanwhile; ask for the run again.
        """


@runtime_checkable
class CountedRun(Protocol):
    """A run whose frames can be counted without reading all of them."""

    def count(self, tally: Tally) -> None:
        """Count all frames by their heads; whether they are whole is not looked at.

        Raises:
            CorruptionError: a head is damaged.
            NotFound: frames are gone meanwhile; ask for the run again.
        """


class FrameSource(Protocol):
    """Gives frames of topics to upload. Any thread may call."""

    def available(self, topic_id: int) -> tuple[int, int]:
        """Return the first offset that can be had and the end of what is durable."""

    def frames(
        self, topic_id: int, first: int, *, bytes_max: int, end: int | None = None
    ) -> FrameRun:
        """Return frames from `first` on: of about `bytes_max` at most, but at least one.

        A run ends at or below `end` if that is given; it is empty (`end` equals `first`) when no
        whole frame or gap lies there.

        Raises:
            NotFound: `first` is no longer there (`offset_first` says what is), or no such topic.
        """


class Heads:
    """The fixed fields of many frames, encoded, and by column: work for each frame is done in C."""

    __slots__ = ("columns", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.columns: list[tuple[Any, ...]] = list(
            zip(*fmt.FRAME_HEAD.iter_unpack(data), strict=True)
        )


class Tally:
    """What a footer says of a topic's frames, gathered as they go by."""

    __slots__ = (
        "_digest",
        "_first",
        "_interval",
        "_next",
        "entries",
        "frames",
        "lsn_first",
        "lsn_last",
        "position",
        "producers",
        "records",
        "schemas",
        "time_first_us",
        "time_last_us",
    )

    def __init__(
        self, *, first: int, position: int, index_bytes: int, digest: hashlib._Hash | None = None
    ) -> None:
        """Begin at `position` of the object; the records of the topic are those from `first`.

        The heads go into `digest`, behind what other topics have put there.
        """
        self._digest = digest if digest is not None else hashlib.sha256()
        self._first = first
        self._interval = index_bytes
        self._next = position
        self.position = position
        self.frames = 0
        self.records = 0
        self.time_first_us = 0
        self.time_last_us = 0
        self.lsn_first = 0
        self.lsn_last = 0
        self.schemas: set[int] = set()
        self.producers: set[int] = set()
        self.entries: list[IndexEntry] = []

    def add(self, head: tuple[Any, ...], runs: Buffer, length: int) -> None:
        """Count a verified frame: its fixed fields, its encoded runs, its bytes in all."""
        self._digest.update(_PACK(*head))
        offset, records, lsn, time_us = head[0], head[8], head[10], head[14]
        if offset < self._first:
            records -= self._first - offset
        if not self.frames:
            self.time_first_us = time_us
        if self.position >= self._next:
            self._index(IndexEntry(offset, self.position, time_us))
        self.frames += 1
        self.records += records
        self.time_last_us = max(self.time_last_us, time_us)
        if lsn:
            self.lsn_first = min(self.lsn_first or lsn, lsn)
            self.lsn_last = max(self.lsn_last, lsn)
        self.schemas.add(head[9])
        if head[6]:
            self.producers.update([run[0] for run in fmt.RUN.iter_unpack(runs)])
        self.position += length

    def add_all(self, heads: Heads, runs: bytes, lengths: Sequence[int]) -> None:
        """Count many verified frames at once; the same as `add` of each."""
        columns = heads.columns
        self._digest.update(heads.data)
        if not self.frames:
            self.time_first_us = columns[14][0]
        self.frames += len(lengths)
        self.records += sum(columns[8]) - max(self._first - columns[0][0], 0)
        self.time_last_us = max(self.time_last_us, *columns[14])
        known = [lsn for lsn in (self.lsn_first, min(columns[10])) if lsn]
        if known:
            self.lsn_first = min(known)
            self.lsn_last = max(self.lsn_last, *columns[10])
        self.schemas.update(columns[9])
        if runs:
            self.producers.update([run[0] for run in fmt.RUN.iter_unpack(runs)])
        positions = list(accumulate(lengths, initial=self.position))
        self.position = positions.pop()
        number = bisect_left(positions, self._next)
        while number < len(positions):
            self._index(IndexEntry(columns[0][number], positions[number], columns[14][number]))
            number = bisect_left(positions, self._next, number + 1)

    def _index(self, entry: IndexEntry) -> None:
        if len(self.entries) == INDEX_ENTRIES_MAX:
            # A very large object: every other entry is enough.
            del self.entries[1::2]
            apart = (self.entries[-1].position - self.entries[0].position) // len(self.entries)
            self._interval = max(2 * self._interval, apart)
        self.entries.append(entry)
        self._next = entry.position + self._interval

    @property
    def index(self) -> bytes:
        """Return the packed index."""
        return pack_index(self.entries)


class HeadsHash(Tally):
    """Gathers the hash of the heads and nothing else, for frames that were counted before."""

    __slots__ = ()

    def __init__(self, digest: hashlib._Hash) -> None:
        super().__init__(first=0, position=0, index_bytes=1, digest=digest)

    def add(self, head: tuple[Any, ...], runs: Buffer, length: int) -> None:
        del runs, length
        self._digest.update(_PACK(*head))

    def add_all(self, heads: Heads, runs: bytes, lengths: Sequence[int]) -> None:
        del runs, lengths
        self._digest.update(heads.data)


@attrs.frozen
class PrecededRun:
    """A run behind offsets that nobody has any more: they are told as a gap."""

    run: FrameRun
    first: int
    reason: str

    @property
    def topic(self) -> Topic:
        return self.run.topic

    @property
    def end(self) -> int:
        return self.run.end

    @property
    def size(self) -> int:
        return self.run.size

    @property
    def ranges(self) -> tuple[Range, ...]:
        return (Range(self.first, self.run.first, "gap", self.reason), *self.run.ranges)

    @property
    def hint(self) -> Hint:
        return self.run.hint

    def pieces(self, tally: Tally | None = None) -> Iterator[Buffer]:
        return self.run.pieces(tally)

    def count(self, tally: Tally) -> None:
        count(self.run, tally)


def count(run: FrameRun, tally: Tally) -> None:
    """Count the frames of a run, by their heads alone where that can be done."""
    if isinstance(run, CountedRun):
        run.count(tally)
        return
    for _ in run.pieces(tally):
        pass


def verify_frame(data: memoryview, at: int, *, topic: int) -> tuple[fmt.FrameHead | None, str]:
    """Return the head of the data frame of a topic at a position, or what is wrong with it."""
    if at + fmt.FRAME_HEAD_BYTES > len(data):
        return None, "frame ends behind the bytes"
    head = fmt.read_head(data, at)
    fault = fmt.frame_fault(data, at, head)
    if not fault and (head.kind > fmt.KIND_ROWS or head.topic != topic):
        fault = "frame is of another kind or topic"
    return (None, fault) if fault else (head, "")
