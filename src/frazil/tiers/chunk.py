"""A chunk: consecutive records of one topic in memory, as one Arrow batch.

A chunk is immutable except for `dead`, the offsets of the changes that supersede its rows, and
values that are computed once on demand. A reader at snapshot S sees a row whose superseding change
is S or later, so later entries in `dead` never change the reader's result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from frazil.errors import CorruptionError
from frazil.log import OFFSET_FIELD, SMALL_RECORDS_MAX, TIME_FIELD, UNDECODABLE, Frame
from frazil.log import format as fmt
from frazil.model import OP_DELETE, OP_UPSERT
from frazil.schema import KeyMap

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.log import Batch, TailEntry, TopicState
    from frazil.schema import KeyShape

    Offsets = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

ALIVE: Final = (1 << 63) - 1
"""The entry of a row in `dead` that no later change supersedes."""
CHUNK_BYTES: Final = 1500
"""The size of a chunk without the buffers of its batch."""
_SYSTEM: Final = ("_op", "_present")
RUN_RECORDS_MAX: Final = 4096
"""The number of records of small frames that are decoded together."""
_new = tuple.__new__
T = TypeVar("T")


class Chunk:
    """Records `[offset, offset + count)` under one schema version.

    `batch` has the topic's columns, followed by `_op` and `_present` if the topic has a key.
    `dead` is None while no row is superseded. `nbytes` grows with values that are computed later.
    """

    __slots__ = (
        "_cache",
        "batch",
        "changes",
        "count",
        "dead",
        "keyed",
        "nbytes",
        "offset",
        "time_counts",
        "time_us",
        "version",
    )

    def __init__(
        self,
        batch: pa.RecordBatch,
        *,
        offset: int,
        version: int,
        time_counts: Offsets,
        time_us: Offsets,
        nbytes: int,
        changes: int,
        dead: Offsets | None = None,
    ) -> None:
        self.batch = batch
        self.offset = offset
        self.count: int = batch.num_rows
        self.version = version
        self.time_counts = time_counts
        self.time_us = time_us
        self.changes = changes
        """The number of records that were published as changes of a key rather than as rows."""
        self.dead = dead
        self.keyed = tuple(batch.schema.names[-2:]) == _SYSTEM
        self.nbytes = nbytes + (0 if dead is None else dead.nbytes)
        self._cache: dict[Any, Any] = {}

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.offset + self.count

    @property
    def width(self) -> int:
        """Return the number of the topic's columns in the batch; system columns follow them."""
        return int(self.batch.num_columns) - (2 if self.keyed else 0)

    @property
    def times(self) -> tuple[tuple[int, int], ...]:
        """Return the append times as runs of (records, microseconds)."""
        return tuple(zip(self.time_counts.tolist(), self.time_us.tolist(), strict=True))

    @property
    def time_bounds(self) -> tuple[int, int]:
        """Return the least and the greatest append time in microseconds."""
        return int(self.time_us.min()), int(self.time_us.max())

    def time_array(self) -> pa.Array:
        """Return the append time of each record."""
        return pa.array(np.repeat(self.time_us, self.time_counts)).view(TIME_FIELD.type)

    def time_at(self, row: int) -> int:
        """Return the append time of one record in microseconds."""
        if len(self.time_us) == 1:
            return int(self.time_us[0])
        ends: Offsets = self.cached("time_ends", lambda: np.cumsum(self.time_counts))
        # numpy's own search releases the GIL, which costs a look-up milliseconds.
        return int(self.time_us[bisect_right(ends, row)])

    def cached(self, name: object, make: Callable[[], T]) -> T:
        """Return the value of `make`, computed once under this name.

        An array that allocates memory is added to `nbytes`.
        """
        found: T | None = self._cache.get(name)
        if found is not None:
            return found
        made = make()
        found = self._cache.setdefault(name, made)
        if found is made and isinstance(made, np.ndarray) and made.flags.owndata:
            self.nbytes += made.nbytes
        return found

    # -- keys and changes ------------------------------------------------------------------------

    @property
    def ops(self) -> npt.NDArray[np.int8]:
        """Return each record's operation."""
        return self.cached(
            "ops", lambda: self.batch.column(self.width).to_numpy(zero_copy_only=False)
        )

    @property
    def unmatched(self) -> Flags | None:
        """Return which records are updates of keys without a row, which change nothing.

        None if there are none. All other updates were completed before they were written.
        """
        present = self.batch.column(self.width + 1)
        if present.null_count == self.count:
            return None
        return self.cached(
            "unmatched", lambda: np.array(present.is_valid().to_numpy(zero_copy_only=False))
        )

    @property
    def _shown(self) -> Flags | None:
        """Return which records are neither deletes nor unmatched updates; None if all are."""
        return self.cached("shown", self._find_shown)[0]

    def _find_shown(self) -> tuple[Flags | None]:
        shown: Flags = self.ops != OP_DELETE
        if self.unmatched is not None:
            shown &= ~self.unmatched
        return (None if shown.all() else shown,)

    def key_map(self, shape: KeyShape) -> KeyMap:
        """Return the rows by the hash of their key, built on first use."""
        found: KeyMap | None = self._cache.get("key_map")
        if found is None:
            found = self._cache["key_map"] = KeyMap.build(shape.hashes(self.batch))
            self.nbytes += found.nbytes
        return found

    def mark(self, rows: Offsets | Sequence[int], by: Offsets | Sequence[int]) -> None:
        """Set the changes that supersede rows; the caller holds the topic's lock."""
        dead = self.dead
        if dead is None:
            dead = np.full(self.count, ALIVE, np.int64)
            dead[rows] = by
            # Published only when it is complete: readers do not take the lock.
            self.dead = dead
            self.nbytes += dead.nbytes
        else:
            dead[rows] = by

    def take_dead(self, parts: Sequence[Chunk]) -> None:
        """Copy the current `dead` of the chunks that were joined into this one."""
        self.nbytes -= 0 if self.dead is None else self.dead.nbytes
        self.dead = _joined_dead(parts)
        self.nbytes += 0 if self.dead is None else self.dead.nbytes

    def live(self, end: int) -> Flags | None:
        """Return which rows are their key's state at snapshot `end`; None if all are."""
        flags = [
            np.arange(self.offset, self.end) < end if self.end > end else None,
            self._shown if self.keyed else None,
            None if self.dead is None else self.dead >= end,
        ]
        given = [each for each in flags if each is not None]
        live: Flags | None = np.logical_and.reduce(given) if given else None
        return None if live is None or live.all() else live

    # -- values ----------------------------------------------------------------------------------

    def row(self, row: int) -> tuple[object, ...]:
        """Return one record's values of the topic's columns."""
        columns = self.cached("columns", lambda: self.batch.columns[: self.width])
        return tuple([column[row].as_py() for column in columns])

    def slice(self, start: int, count: int) -> Chunk:
        """Return part of the chunk; it shares the buffers and the current entries of `dead`.

        Its bytes and changes are a proportional share of the whole chunk's.
        """
        count = min(count, self.count - start)
        if count == self.count:
            return self
        ends = np.clip(np.cumsum(self.time_counts), start, start + count)
        counts = np.diff(ends, prepend=start)
        kept = counts > 0
        return Chunk(
            self.batch.slice(start, count),
            offset=self.offset + start,
            version=self.version,
            time_counts=counts[kept],
            time_us=self.time_us[kept],
            nbytes=self.nbytes * count // self.count,
            changes=self.changes * count // self.count,
            dead=None if self.dead is None else self.dead[start : start + count],
        )


def chunk_of(
    batch: pa.RecordBatch,
    *,
    offset: int,
    version: int,
    times: Iterable[tuple[int, int]],
    nbytes: int,
    changes: int = 0,
) -> Chunk:
    """Return a chunk of a decoded batch and its (records, microseconds) runs."""
    runs = np.array(list(times), np.int64).reshape(-1, 2)
    counts, us = _coalesced(runs[:, 0], runs[:, 1])
    return Chunk(
        batch,
        offset=offset,
        version=version,
        time_counts=counts,
        time_us=us,
        nbytes=max(nbytes, batch.nbytes) + CHUNK_BYTES,
        changes=changes,
    )


def chunk_of_history(batch: Batch, *, version: int) -> Chunk:
    """Return a chunk of a batch that was read back; the fields show which records are changes."""
    chunk = chunk_of(batch.data, offset=batch.offset, version=version, times=batch.times, nbytes=0)
    if chunk.keyed:
        chunk.changes = int((chunk.ops != OP_UPSERT).sum())
    return chunk


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Copy adjacent chunks of one schema version into one."""
    first = chunks[0]
    for one, other in pairwise(chunks):
        assert one.end == other.offset
        assert one.version == other.version
    counts, us = _coalesced(
        np.concatenate([chunk.time_counts for chunk in chunks]),
        np.concatenate([chunk.time_us for chunk in chunks]),
    )
    batch = pa.concat_batches([chunk.batch for chunk in chunks])
    return Chunk(
        batch,
        offset=first.offset,
        version=first.version,
        time_counts=counts,
        time_us=us,
        nbytes=batch.nbytes + CHUNK_BYTES,
        changes=sum(chunk.changes for chunk in chunks),
        dead=_joined_dead(chunks),
    )


def batch_with_system(chunk: Chunk) -> pa.RecordBatch:
    """Return the records as in files: `_offset`, `_time`, [`_op`, `_present`], columns."""
    width, columns, fields = chunk.width, chunk.batch.columns, list(chunk.batch.schema)
    offsets = pa.array(np.arange(chunk.offset, chunk.end, dtype=np.int64))
    return pa.RecordBatch.from_arrays(
        [offsets, chunk.time_array(), *columns[width:], *columns[:width]],
        schema=pa.schema([OFFSET_FIELD, TIME_FIELD, *fields[width:], *fields[:width]]),
    )


def _joined_dead(chunks: Sequence[Chunk]) -> Offsets | None:
    if all(chunk.dead is None for chunk in chunks):
        return None
    return np.concatenate(
        [
            np.full(chunk.count, ALIVE, np.int64) if chunk.dead is None else chunk.dead
            for chunk in chunks
        ]
    )


def _coalesced(counts: Offsets, us: Offsets) -> tuple[Offsets, Offsets]:
    """Join adjacent runs of the same time."""
    if len(us) < 2:
        return counts, us
    starts = np.flatnonzero(np.concatenate(([True], us[1:] != us[:-1])))
    return np.add.reduceat(counts, starts), us[starts]


def first_chunk(
    state: TopicState, tail: Sequence[TailEntry], *, end: int, rows_max: int, bytes_max: int
) -> tuple[Chunk, int]:
    """Return the first tail entries below `end` as a chunk, and their number: at least one.

    The entries are joined here, so that each is copied once.

    Raises:
        CorruptionError: if the first one cannot be decoded.
    """
    batches: list[pa.RecordBatch] = []
    stop = rows = size = version = 0
    while stop < len(tail) and tail[stop].offset < end:
        run = _small_run(tail, stop, end)
        rows += sum([entry.count for entry in run])
        size += sum([entry.size for entry in run])
        if batches and (rows > rows_max or size > bytes_max or not _is_next(tail, stop)):
            break
        try:
            batch, found, entries = _decode(state, run)
        except CorruptionError:
            if not batches:
                raise
            break
        if batches and found != version:
            # The schema changed while the entries were decoded.
            break
        version = found
        batches.append(batch)
        stop += entries
    return _chunk_of_entries(batches, tail[:stop], version), stop


def _is_next(tail: Sequence[TailEntry], number: int) -> bool:
    """Return whether no gap precedes an entry of the tail."""
    before = tail[number - 1]
    return before.offset + before.count == tail[number].offset


def chunk_of_entry(state: TopicState, entry: TailEntry) -> Chunk:
    """Return the chunk of one entry.

    Raises:
        CorruptionError: if it cannot be decoded.
    """
    batch, version = _decode_entry(state, entry)
    return _chunk_of_entries([batch], [entry], version)


def _chunk_of_entries(
    batches: list[pa.RecordBatch], entries: Sequence[TailEntry], version: int
) -> Chunk:
    return chunk_of(
        batches[0] if len(batches) == 1 else pa.concat_batches(batches),
        offset=entries[0].offset,
        version=version,
        times=[(entry.count, entry.time_us) for entry in entries],
        # A batch that was not copied keeps its whole frame alive.
        nbytes=entries[0].size if len(entries) == 1 else 0,
        changes=sum([entry.count for entry in entries if entry.flags & fmt.FLAG_OP]),
    )


def _decode(state: TopicState, run: list[TailEntry]) -> tuple[pa.RecordBatch, int, int]:
    """Return a run's batch, its version and its number of entries: one if it is damaged."""
    if len(run) > 1:
        frames = [_frame(entry) for entry in run]
        # Decoding one by one finds the damaged entry.
        with suppress(*UNDECODABLE):
            batch, version = _decoded(state.codec, partial(state.codec.decode_small, frames))
            if batch is not None:
                return batch, version, len(run)
    return (*_decode_entry(state, run[0]), 1)


def _decode_entry(state: TopicState, entry: TailEntry) -> tuple[pa.RecordBatch, int]:
    try:
        return _decoded(state.codec, partial(state.codec.decode, _frame(entry)))
    except UNDECODABLE as error:
        raise CorruptionError(
            "records in memory cannot be decoded, run `frazil doctor`",
            topic=state.spec.name,
            offset_first=entry.offset,
            offset_next=entry.offset + entry.count,
            lsn=entry.lsn,
            reason=error,
        ) from error


def _decoded(codec: Any, decode: Callable[[], pa.RecordBatch]) -> tuple[pa.RecordBatch, int]:
    """Decode entries, again if the schema changed, and return the batch with its version."""
    version, batch = -1, None
    while version != codec.version:
        version = codec.version
        batch = decode()
    return batch, version


def _frame(entry: TailEntry) -> Frame:
    kind, flags, count, size = entry.kind, entry.flags, entry.count, entry.size
    version, lsn, time_us = entry.version, entry.lsn, entry.time_us
    fields = (
        *(entry.offset, 0, 0, kind, b"", flags, 0, 0),
        *(count, version, lsn, 0, 0, size, time_us, 0, 0),
    )
    # Constructors would dominate the cost of this function; decoders accept any buffer.
    return _new(Frame, (_new(fmt.FrameHead, fields), entry.data, 0))


def _small_run(tail: Sequence[TailEntry], start: int, end: int) -> list[TailEntry]:
    """Return the entries from `start` on to decode together: small, alike and without a gap."""
    first = tail[start]
    if first.kind != fmt.KIND_ROWS:
        return [first]
    count_max = 1 if first.flags & fmt.FLAG_PLAIN else SMALL_RECORDS_MAX
    form = (first.kind, first.flags, first.version)
    run: list[TailEntry] = []
    records, offset = 0, first.offset
    for entry in islice(tail, start, None):
        if entry.offset != offset or entry.count > count_max or offset >= end:
            break
        if (entry.kind, entry.flags, entry.version) != form:
            break
        records += entry.count
        if records > RUN_RECORDS_MAX:
            break
        offset += entry.count
        run.append(entry)
    return run or [first]
