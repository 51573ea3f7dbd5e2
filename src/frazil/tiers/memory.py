"""The memory tier of one topic: what was written, at once; as Arrow chunks, when somebody looks.

The journal's thread only appends a tuple for each frame it wrote. Decoding, joining and everything
else is done under `lock` by whoever needs it: a query, a lookup, a flush, the background worker.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.log import TailEntry
from frazil.log import format as fmt
from frazil.tiers.chunk import Chunk, chunk_of_history, join_chunks
from frazil.tiers.tail_chunks import chunk_of_entry, first_chunk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from frazil.clock import Clock
    from frazil.log import Batch, TopicState

__all__ = ["TailEntry", "TopicMemory", "Unflushed"]

ENTRY_BYTES: Final = 280
"""What an entry takes beside its payload."""
RECORD_BYTES: Final = 300
"""What a validated record takes beside its values, which take about twice their packed form."""
FOLD_ROWS: Final = 4096
FOLD_BYTES: Final = 4 << 20
FOLD_AGE_US: Final = 10_000_000
"""A tail with so many records or bytes, or so old, does not wait for more."""
READ_US: Final = 60_000_000
"""So long after somebody looked at a topic the next one may come."""
JOIN_AT_ONCE_ROWS: Final = 8192
"""Chunks are joined while they are made up to this size; larger ones in the background."""
JOIN_BYTES_MAX: Final = 4 << 20
"""Chunks of so many bytes are not joined any more: scans gain nothing, and every join is a copy."""

_offset_of = itemgetter(0)


class Unflushed(NamedTuple):
    """What lies in memory from an offset on."""

    bytes: int
    records: int
    changes: int
    time_us: int | None
    """When the oldest of it was appended; None if there is nothing."""


class _Held(NamedTuple):
    """The chunks and their first offsets, swapped as one."""

    chunks: tuple[Chunk, ...]
    starts: list[int]


class TopicMemory:
    """The newest records of one topic.

    Everything in `[start, visible)` is in `chunks` and, behind them, in `tail`, gaps apart.
    `append` is for the journal's thread alone; all else may be called from any thread.
    `on_settled` and `on_evict` are called under the lock: when entries of the tail have become
    chunks, and with the chunks that are about to go.
    """

    def __init__(
        self,
        state: TopicState,
        *,
        clock: Clock,
        merge_rows: int,
        index_bytes_max: Callable[[], int] | None = None,
    ) -> None:
        self.state = state
        self.clock = clock
        self.merge_rows = merge_rows
        self.index_bytes_max = index_bytes_max
        self.lock = threading.RLock()
        self.tail: list[TailEntry] = []
        self.start: int = state.next
        self.on_settled: Callable[[], None] | None = None
        self.on_evict: Callable[[Sequence[Chunk]], None] | None = None
        self._held = _Held((), [])
        self._told = -1
        """How far `on_settled` knows what has become chunks."""
        self._read_us = -READ_US
        self._chunk_bytes: int | None = 0
        # Each counter has one writer, so that no addition is lost: the journal's thread for what
        # came in, the holder of the lock for what went on.
        self._payload_in = self._payload_out = 0
        self._records_in = self._records_out = 0
        self._changes_in = self._changes_out = 0

    # -- the journal's side ------------------------------------------------------------------------

    def append(self, entry: TailEntry) -> None:
        """Take written records; nobody looks at them before `visible` passes them."""
        self._payload_in += entry[7]
        if entry[9] is not None:
            self._records_in += entry[1]
        if entry[5] & 1:  # FLAG_OP
            self._changes_in += entry[1]
        self.tail.append(entry)

    # -- what is there -----------------------------------------------------------------------------

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """Return the chunks, oldest first; the tuple never changes."""
        return self._held.chunks

    @property
    def settled(self) -> int:
        """Return the offset below which everything is in chunks."""
        chunks = self._held.chunks
        return chunks[-1].end if chunks else self.start

    @property
    def tail_bytes(self) -> int:
        """Return the bytes of what is not decoded yet."""
        payload = self._payload_in - self._payload_out
        records = self._records_in - self._records_out
        # Validated records hold their values and their packed form beside the frame's payload.
        held = 3 * payload + RECORD_BYTES * records if records else payload
        return held + ENTRY_BYTES * len(self.tail)

    @property
    def bytes(self) -> int:
        """Return the bytes of all that is held."""
        known = self._chunk_bytes
        if known is None:
            known = self._chunk_bytes = sum(chunk.nbytes for chunk in self._held.chunks)
        return known + self.tail_bytes

    def note_read(self) -> None:
        """Take note that somebody looks at all of it: from now on it is folded as it comes."""
        self._read_us = self.clock.now_us()

    def is_foldable(self) -> bool:
        """Tell whether the background should fold the tail, or wait for more of it."""
        tail = self.tail
        if not tail:
            return False
        now_us = self.clock.now_us()
        return (
            now_us - self._read_us < READ_US
            or self.state.visible - tail[0].offset >= FOLD_ROWS
            or self._payload_in - self._payload_out >= FOLD_BYTES
            or now_us - tail[0].time_us >= FOLD_AGE_US
        )

    def recount(self) -> None:
        """Take note that chunks have grown: by marks, or by a map of their keys."""
        self._chunk_bytes = None

    def chunk_at(self, offset: int) -> Chunk | None:
        """Return the chunk that holds an offset, None if none does."""
        held = self._held
        number = bisect_right(held.starts, offset) - 1
        if number < 0:
            return None
        chunk = held.chunks[number]
        return chunk if offset < chunk.end else None

    def unflushed(self, from_offset: int) -> Unflushed:
        """Say how much lies in memory from an offset on, and how old it is."""
        with self.lock:
            size, changes = self.tail_bytes, self._changes_in - self._changes_out
            records = sum([entry[1] for entry in self.tail])
            oldest = self.tail[0].time_us if self.tail else None
            for chunk in reversed(self._held.chunks):
                if chunk.end <= from_offset:
                    break
                part = chunk.slice(max(0, from_offset - chunk.offset), chunk.count)
                size += part.nbytes
                changes += part.changes
                records += part.count
                oldest = part.time_first
            return Unflushed(size, records, changes, oldest)

    def older_than(self, age_us: int) -> int:
        """Return the offset below which all records in chunks were appended so long ago."""
        limit = self.clock.now_us() - age_us
        end = self.start
        for chunk in self._held.chunks:
            if chunk.time_bounds[1] > limit:
                break
            end = chunk.end
        return end

    # -- tail to chunks ----------------------------------------------------------------------------

    def load(
        self, batches: Iterable[Batch], *, start: int | None = None, version: int | None = None
    ) -> None:
        """Take records that were read back after a restart: in order, before all of the tail.

        `start` is the first offset that is held from now on, where a gap comes first. `version` is
        that of the columns the batches have, the current one where it is None.
        """
        with self.lock:
            version = self.state.codec.version if version is None else version
            chunks = list(self._held.chunks)
            first, rows = len(chunks), 0
            for batch in batches:
                chunk = chunk_of_history(batch, version=version)
                assert not chunks or chunks[-1].end <= chunk.offset
                if not chunks:
                    self.start = chunk.offset
                chunks.append(chunk)
                rows += chunk.count
                if rows >= self.merge_rows:
                    chunks[first:] = _joined_runs(chunks[first:], self.merge_rows)
                    first, rows = len(chunks), 0
            chunks[first:] = _joined_runs(chunks[first:], self.merge_rows)
            if start is not None:
                assert start <= self.start or not chunks
                self.start = start
            self._swap(chunks)

    def settle(self, end: int, *, budget_rows: int | None = None) -> None:
        """Make chunks of the tail's entries below `end`, as far as they are visible.

        With a budget at least one run of entries is done, then no more than so many rows.

        Raises:
            CorruptionError: if an entry cannot be decoded; what lies before it is settled.
        """
        with self.lock:
            tail, rows = self.tail, 0
            end = min(end, self.state.visible)
            rows_max = JOIN_AT_ONCE_ROWS if budget_rows is None else budget_rows
            try:
                while tail and tail[0].offset < end and (budget_rows is None or rows < budget_rows):
                    rows += self._settle_some(end, rows_max)
            finally:
                settled = self.settled
                if self.on_settled is not None and self._told != settled:
                    self.on_settled()
                    self._told = settled

    def snapshot(self, end: int) -> tuple[Chunk, ...]:
        """Return the records of `[start, end)`; those of a keyed topic are folded before.

        What is set or joined later does not change what the caller sees at `end`.
        """
        with self.lock:
            self.settle(end)
            held = self._held
            number = bisect_left(held.starts, end)
            if not number or held.chunks[number - 1].end <= end:
                return held.chunks[:number]
            last = held.chunks[number - 1]
            return (*held.chunks[: number - 1], last.slice(0, end - last.offset))

    def evict(self, below: int) -> int:
        """Drop the chunks that lie below an offset as a whole; return the bytes that became free."""
        with self.lock:
            self.settle(below)
            chunks = self._held.chunks
            stop = 0
            while stop < len(chunks) and chunks[stop].end <= below:
                stop += 1
            gone = chunks[:stop]
            first = chunks[stop].offset if stop < len(chunks) else below
            if self.tail:
                first = min(first, self.tail[0].offset)
            if gone and self.on_evict is not None:
                self.on_evict(gone)
            # Rows below the new start are looked for elsewhere, but not above what was asked for.
            start, held = max(self.start, min(first, below)), _held(chunks[stop:])
            # Nothing is called in between, so that nothing comes between.
            self.start = start
            self._held = held
            self._chunk_bytes = None
            return sum(chunk.nbytes for chunk in gone)

    def merge_small(self) -> bool:
        """Join one run of small neighbouring chunks; False if there is none worth it.

        The copying is done without the lock. A row is copied only into a chunk at least twice as
        large, so that it is copied a few times in all.
        """
        with self.lock:
            run = _run_to_join(self._held.chunks, self.merge_rows)
        if len(run) < 2:
            return False
        joined = join_chunks(run)
        with self.lock:
            chunks = list(self._held.chunks)
            first = bisect_left(self._held.starts, joined.offset)
            current = chunks[first : first + len(run)]
            if [id(chunk) for chunk in current] != [id(chunk) for chunk in run]:
                # Some of it was evicted or joined meanwhile.
                return True
            joined.take_marks(run)
            chunks[first : first + len(run)] = [joined]
            self._swap(chunks)
        return True

    def _swap(self, chunks: Sequence[Chunk]) -> None:
        self._held = _held(chunks)
        self._chunk_bytes = None

    def _settle_some(self, end: int, rows_max: int) -> int:
        tail = self.tail
        if self._held.chunks and tail[0].offset < self.settled:
            # Somebody was interrupted between the chunk and here.
            self._drop(bisect_left(tail, self.settled, key=_offset_of))
            return 0
        rows_at_once = min(JOIN_AT_ONCE_ROWS, self.merge_rows)
        made, entries = first_chunk(
            self.state,
            tail,
            end=end,
            rows_max=min(rows_max, rows_at_once),
            bytes_max=JOIN_BYTES_MAX,
        )
        chunks = list(self._held.chunks)
        chunks.append(made)
        _join_end(chunks, rows_at_once)
        self._swap(chunks)
        self._drop(entries)
        return made.count

    def _drop(self, count: int) -> None:
        """Let the first entries of the tail go, which are chunks by now."""
        run = self.tail[:count]
        payload = sum([entry[7] for entry in run])
        records = sum([entry[1] for entry in run if entry[9] is not None])
        changes = sum([entry[1] for entry in run if entry[5] & fmt.FLAG_OP])
        # Nothing is called from here on, so that nothing comes between.
        del self.tail[:count]
        self._payload_out += payload
        self._records_out += records
        self._changes_out += changes

    def decoded(self, entry: TailEntry) -> Chunk:
        """Return the chunk of one entry of the tail, which stays as it is; needs no lock.

        Raises:
            CorruptionError: if it cannot be decoded.
        """
        return chunk_of_entry(self.state, entry)


def _held(chunks: Sequence[Chunk]) -> _Held:
    return _Held(tuple(chunks), [chunk.offset for chunk in chunks])


def _joinable(one: Chunk, other: Chunk) -> bool:
    return (
        one.end == other.offset
        and one.version == other.version
        and one.nbytes + other.nbytes <= JOIN_BYTES_MAX
    )


def _join_end(chunks: list[Chunk], rows_max: int) -> None:
    """Join the last chunks while they are small and of about one size."""
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


def _joined_runs(chunks: Sequence[Chunk], rows_max: int) -> list[Chunk]:
    """Join neighbours greedily up to so many rows each."""
    joined: list[Chunk] = []
    first = 0
    while first < len(chunks):
        run = _run_from(chunks, first, rows_max)
        joined.append(join_chunks(run) if len(run) > 1 else run[0])
        first += len(run)
    return joined


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
    """Return the first run of neighbours of which none makes up more than half."""
    first = 0
    while first < len(chunks) - 1:
        run = _run_from(chunks, first, rows_max)
        rows = sum(chunk.count for chunk in run)
        if len(run) > 1 and 2 * max(chunk.count for chunk in run) <= rows:
            return run
        first += 1
    return ()
