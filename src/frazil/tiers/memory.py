"""The memory tier of one topic: the newest records, decoded to Arrow chunks on demand.

The journal's thread only appends a tuple for each frame it wrote. Queries, lookups, flushes and the
background worker decode and join them under `lock`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.log import TailEntry
from frazil.log import format as fmt
from frazil.tiers.chunk import (
    Chunk,
    chunk_of_history,
    first_chunk,
    join_chunks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from frazil.clock import Clock
    from frazil.log import Batch, TopicState

ENTRY_BYTES: Final = 280
"""The bytes of an entry without its payload."""
RECORD_BYTES: Final = 300
"""The bytes of a validated record without its values, which take about twice their packed form."""
MERGE_ROWS: Final = 64 << 10
"""Small chunks are joined up to this number of rows."""
FOLD_ROWS: Final = 4096
FOLD_BYTES: Final = 4 << 20
FOLD_AGE_US: Final = 10_000_000
"""A tail that reaches this number of records or bytes, or this age, is decoded at once."""
READ_US: Final = 60_000_000
"""A topic that was read within this time has its records decoded as they arrive."""
JOIN_AT_ONCE_ROWS: Final = 8192
"""New chunks are joined up to this size at once; larger ones in the background."""
JOIN_BYTES_MAX: Final = 4 << 20
"""Chunks of this size are not joined: scans would gain nothing, and every join is a copy."""


_offset = attrgetter("offset")
_end = attrgetter("end")


class Unflushed(NamedTuple):
    """The size and age of a topic's records in memory from an offset on."""

    bytes: int
    records: int
    changes: int
    time_us: int | None
    """The append time of the oldest record; None if there is no record."""


class TopicMemory:
    """The newest records of one topic.

    All records of `[start, visible)` are in `chunks` and, after them, in `tail`. Only the
    journal's thread may call `append`; any thread may call the other methods. `on_evict` is
    called under the lock with the chunks that will be evicted.
    """

    def __init__(
        self,
        state: TopicState,
        *,
        clock: Clock,
        merge_rows: int | None = None,
    ) -> None:
        self.state = state
        self.clock = clock
        self.merge_rows = merge_rows or MERGE_ROWS
        self.lock = threading.RLock()
        self.tail: list[TailEntry] = []
        self.start: int = state.next
        self.on_evict: Callable[[Sequence[Chunk]], None] | None = None
        self.chunks: tuple[Chunk, ...] = ()
        """Oldest first; swapped whole."""
        self._read_us = -READ_US
        self._chunk_bytes: int | None = 0
        # Each counter has one writer, so that no addition is lost: the journal's thread for
        # entries appended, the holder of the lock for entries removed.
        self._payload_in = self._payload_out = 0
        self._records_in = self._records_out = 0
        self._changes_in = self._changes_out = 0

    # -- the journal's side ------------------------------------------------------------------------

    def append(self, entry: TailEntry) -> None:
        """Add written records; readers see them once `visible` has passed them."""
        self._payload_in += entry.size
        if entry.records is not None:
            self._records_in += entry.count
        if entry.flags & 1:  # FLAG_OP
            self._changes_in += entry.count
        self.tail.append(entry)

    # -- size and position -------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """Return the offset below which all records are in chunks."""
        chunks = self.chunks
        return chunks[-1].end if chunks else self.start

    @property
    def tail_bytes(self) -> int:
        """Return the bytes of the entries that are not decoded yet."""
        payload = self._payload_in - self._payload_out
        records = self._records_in - self._records_out
        # Validated records keep their values and their packed form as well as the payload.
        held = 3 * payload + RECORD_BYTES * records if records else payload
        return held + ENTRY_BYTES * len(self.tail)

    @property
    def bytes(self) -> int:
        """Return the bytes of all records in memory."""
        known = self._chunk_bytes
        if known is None:
            known = self._chunk_bytes = sum(chunk.nbytes for chunk in self.chunks)
        return known + self.tail_bytes

    def note_read(self) -> None:
        """Note a scan: for some time the background thread decodes records as they arrive."""
        self._read_us = self.clock.now_us()

    def is_foldable(self) -> bool:
        """Return whether the background thread should decode the tail now or wait for more."""
        tail = self.tail
        if not tail:
            return False
        now_us = self.clock.now_us()
        return (
            now_us - self._read_us < READ_US
            or self.state.durable - tail[0].offset >= FOLD_ROWS
            or self._payload_in - self._payload_out >= FOLD_BYTES
            or now_us - tail[0].time_us >= FOLD_AGE_US
        )

    def recount(self) -> None:
        """Note that deletion vectors or a map of keys have made chunks larger."""
        self._chunk_bytes = None

    def chunk_at(self, offset: int) -> Chunk | None:
        """Return the chunk of an offset, None if there is none."""
        chunks = self.chunks
        number = bisect_right(chunks, offset, key=_offset) - 1
        if number < 0:
            return None
        return chunks[number] if offset < chunks[number].end else None

    def unflushed(self, from_offset: int) -> Unflushed:
        """Return the size and age of the records in memory from an offset on."""
        with self.lock:
            size, changes = self.tail_bytes, self._changes_in - self._changes_out
            records = sum([entry.count for entry in self.tail])
            oldest = self.tail[0].time_us if self.tail else None
            for chunk in reversed(self.chunks):
                if chunk.end <= from_offset:
                    break
                part = chunk.slice(max(0, from_offset - chunk.offset), chunk.count)
                size += part.nbytes
                changes += part.changes
                records += part.count
                oldest = int(part.time_us[0])
            return Unflushed(size, records, changes, oldest)

    # -- tail to chunks ----------------------------------------------------------------------------

    def load(
        self, batches: Iterable[Batch], *, start: int | None = None, version: int | None = None
    ) -> None:
        """Add records that were read back after a restart: in order, before all of the tail.

        `start` is the first offset in memory from now on, if a gap comes first. `version` is the
        version of the batches' columns; None is the current one.
        """
        with self.lock:
            version = self.state.codec.version if version is None else version
            chunks = list(self.chunks)
            for batch in batches:
                chunk = chunk_of_history(batch, version=version)
                assert not chunks or chunks[-1].end <= chunk.offset
                if not chunks:
                    self.start = chunk.offset
                chunks.append(chunk)
                _join_end(chunks, self.merge_rows)
            if start is not None:
                assert start <= self.start or not chunks
                self.start = start
            self._swap(chunks)

    def settle(self, end: int, *, budget_rows: int | None = None) -> None:
        """Convert the tail's entries below `end` to chunks, as far as they are visible.

        With a budget it converts at least one run of entries, and then at most so many rows.

        Raises:
            CorruptionError: if an entry cannot be decoded; the entries before it are converted.
        """
        with self.lock:
            tail, rows = self.tail, 0
            end = min(end, self.state.durable)
            rows_max = JOIN_AT_ONCE_ROWS if budget_rows is None else budget_rows
            while tail and tail[0].offset < end and (budget_rows is None or rows < budget_rows):
                rows += self._settle_some(end, rows_max)

    def snapshot(self, end: int) -> tuple[Chunk, ...]:
        """Return the records of `[start, end)`; a keyed topic's records are folded first.

        Later deletion-vector entries and joins do not change the caller's view at `end`.
        """
        with self.lock:
            self.settle(end)
            chunks = self.chunks[: bisect_left(self.chunks, end, key=_offset)]
            if not chunks or chunks[-1].end <= end:
                return chunks
            return (*chunks[:-1], chunks[-1].slice(0, end - chunks[-1].offset))

    def evict(self, below: int) -> int:
        """Drop the chunks that end at or below an offset; return the bytes freed."""
        with self.lock:
            self.settle(below)
            chunks = self.chunks
            stop = bisect_right(chunks, below, key=_end)
            gone = chunks[:stop]
            first = chunks[stop].offset if stop < len(chunks) else below
            if self.tail:
                first = min(first, self.tail[0].offset)
            if gone and self.on_evict is not None:
                self.on_evict(gone)
            # Look-ups search rows below `start` in files, and files have no row above `below`.
            self.start = max(self.start, min(first, below))
            self._swap(chunks[stop:])
            return sum(chunk.nbytes for chunk in gone)

    def merge_small(self) -> bool:
        """Join one run of small adjacent chunks; return False if no join is worth its cost.

        The chunks are copied without the lock. A row is copied only into a chunk at least twice
        as large, so that it is copied only a few times in all.
        """
        with self.lock:
            run = _run_to_join(self.chunks, self.merge_rows)
        if len(run) < 2:
            return False
        joined = join_chunks(run)
        with self.lock:
            chunks = list(self.chunks)
            first = bisect_left(chunks, joined.offset, key=_offset)
            current = chunks[first : first + len(run)]
            if [id(chunk) for chunk in current] != [id(chunk) for chunk in run]:
                # Some of the chunks were evicted or joined during the copy.
                return True
            joined.take_dead(run)
            chunks[first : first + len(run)] = [joined]
            self._swap(chunks)
        return True

    def _swap(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = tuple(chunks)
        self._chunk_bytes = None

    def _settle_some(self, end: int, rows_max: int) -> int:
        tail = self.tail
        rows_at_once = min(JOIN_AT_ONCE_ROWS, self.merge_rows)
        made, entries = first_chunk(
            self.state,
            tail,
            end=end,
            rows_max=min(rows_max, rows_at_once),
            bytes_max=JOIN_BYTES_MAX,
        )
        chunks = list(self.chunks)
        chunks.append(made)
        _join_end(chunks, rows_at_once)
        self._swap(chunks)
        self._drop(entries)
        return made.count

    def _drop(self, count: int) -> None:
        """Remove the first entries of the tail, which are in chunks now."""
        run = self.tail[:count]
        del self.tail[:count]
        self._payload_out += sum([entry.size for entry in run])
        self._records_out += sum([entry.count for entry in run if entry.records is not None])
        self._changes_out += sum([entry.count for entry in run if entry.flags & fmt.FLAG_OP])


def _joinable(one: Chunk, other: Chunk) -> bool:
    return (
        one.end == other.offset
        and one.version == other.version
        and one.nbytes + other.nbytes <= JOIN_BYTES_MAX
    )


def _join_end(chunks: list[Chunk], rows_max: int) -> None:
    """Join the last chunks while they are small and of similar size."""
    first = len(chunks) - 1
    rows = chunks[first].count
    while first > 0:
        before = chunks[first - 1]
        if before.count > 2 * rows or before.count + rows > rows_max:
            break
        if not _joinable(before, chunks[first]):
            break
        rows += before.count
        first -= 1
    if first < len(chunks) - 1:
        chunks[first:] = [join_chunks(chunks[first:])]


def _run_from(chunks: Sequence[Chunk], first: int, rows_max: int) -> Sequence[Chunk]:
    stop, rows, size = first + 1, chunks[first].count, chunks[first].nbytes
    while stop < len(chunks) and _joinable(chunks[stop - 1], chunks[stop]):
        rows += chunks[stop].count
        size += chunks[stop].nbytes
        if rows > rows_max or size > JOIN_BYTES_MAX:
            break
        stop += 1
    return chunks[first:stop]


def _run_to_join(chunks: Sequence[Chunk], rows_max: int) -> Sequence[Chunk]:
    """Return the first run of adjacent chunks of which none has more than half of the rows."""
    for first in range(len(chunks) - 1):
        run = _run_from(chunks, first, rows_max)
        counts = [chunk.count for chunk in run]
        if len(run) > 1 and 2 * max(counts) <= sum(counts):
            return run
    return ()
