"""A chunk: consecutive records of one topic in memory, as one Arrow batch.

Everything but two things in a chunk is fixed when it is made: the marks of rows that later changes
of their keys supersede, and what is computed once on demand. A row's mark is the offset of the
change that supersedes it. A reader at snapshot S sees a row whose mark is S or later, so that marks
set behind its back never change what it sees.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.log import OFFSET_FIELD, TIME_FIELD
from frazil.model import OP_DELETE, OP_UPSERT
from frazil.schema import KeyMap

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.log import Batch
    from frazil.schema import KeyShape

    Offsets = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

__all__ = [
    "ALIVE",
    "CHUNK_BYTES",
    "Chunk",
    "batch_with_system",
    "chunk_of",
    "chunk_of_history",
    "join_chunks",
]

ALIVE: Final = (1 << 63) - 1
"""The mark of a row that no later change supersedes."""
CHUNK_BYTES: Final = 1500
"""What a chunk takes beside the buffers of its batch."""
_SYSTEM: Final = ("_op", "_present")


class Chunk:
    """Records `[offset, offset + count)` under one schema version.

    `batch` has the topic's columns, followed by `_op` and `_present` if the topic has a key.
    `dead` is None while no row is superseded. `nbytes` grows with what is made later.
    """

    __slots__ = (
        "_cache",
        "bases",
        "batch",
        "changes",
        "count",
        "dead",
        "keyed",
        "nbytes",
        "offset",
        "stood",
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
        bases: Offsets | None = None,
    ) -> None:
        self.batch = batch
        self.offset = offset
        self.count: int = batch.num_rows
        self.version = version
        self.time_counts = time_counts
        self.time_us = time_us
        self.changes = changes
        """How many of the records came as changes of a key rather than as rows."""
        self.dead = dead
        self.bases = bases
        """The offset of the row that each partial change stands on, -1 for none; None if all are."""
        self.stood = 0
        """How often `bases` changed."""
        self.keyed = tuple(batch.schema.names[-2:]) == _SYSTEM
        self.nbytes = nbytes + sum(marks.nbytes for marks in (dead, bases) if marks is not None)
        self._cache: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Chunk(offset={self.offset}, count={self.count}, version={self.version})"

    @property
    def end(self) -> int:
        """Return the offset behind the last record."""
        return self.offset + self.count

    @property
    def width(self) -> int:
        """Return how many columns of the topic the batch has; the system's follow them."""
        return int(self.batch.num_columns) - (2 if self.keyed else 0)

    @property
    def times(self) -> tuple[tuple[int, int], ...]:
        """Return the append times as runs of (records, microseconds)."""
        return tuple(zip(self.time_counts.tolist(), self.time_us.tolist(), strict=True))

    @property
    def time_first(self) -> int:
        """Return the append time of the first record in microseconds."""
        return int(self.time_us[0])

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
        # numpy's own search lets other threads run first, which takes a look-up milliseconds.
        return int(self.time_us[bisect_right(ends, row)])

    def cached(self, name: object, make: Callable[[], Any]) -> Any:
        """Return what `make` gave when it was first asked for under this name.

        An array that has memory of its own counts from then on.
        """
        found = self._cache.get(name)
        if found is None:
            made = make()
            found = self._cache.setdefault(name, made)
            if found is made and isinstance(made, np.ndarray) and made.flags.owndata:
                self.nbytes += made.nbytes
        return found

    def image(self, make: Callable[[], pa.RecordBatch]) -> pa.RecordBatch:
        """Return what `make` gave since `bases` changed last."""
        stood = self.stood
        known: tuple[int, pa.RecordBatch] | None = self._cache.get("image")
        if known is None or known[0] != stood:
            # What is told while it is made is about rows that nobody looks at yet.
            made = make()
            self.nbytes += made.nbytes - (0 if known is None else known[1].nbytes)
            known = self._cache["image"] = (stood, made)
        return known[1]

    # -- keys and changes ------------------------------------------------------------------------

    @property
    def ops(self) -> npt.NDArray[np.int8]:
        """Return each record's operation."""
        found: npt.NDArray[np.int8] = self.cached(
            "ops", lambda: self.batch.column(self.width).to_numpy(zero_copy_only=False)
        )
        return found

    @property
    def partial(self) -> Flags | None:
        """Tell which records name some columns only; None if all are whole."""
        present = self.batch.column(self.width + 1)
        if present.null_count == self.count:
            return None
        found: Flags = self.cached(
            "partial", lambda: np.array(present.is_valid().to_numpy(zero_copy_only=False))
        )
        return found

    @property
    def deletes(self) -> int:
        """Return how many records are deletes."""
        return int(self.cached("deletes", lambda: (int((self.ops == OP_DELETE).sum()),))[0])

    def key_map(self, shape: KeyShape) -> KeyMap:
        """Return the rows by the hash of their key, built when first asked for."""
        found: KeyMap | None = self._cache.get("key_map")
        if found is None:
            found = self._cache["key_map"] = KeyMap.build(shape.hashes(self.batch))
            self.nbytes += found.nbytes
        return found

    def mark(self, rows: Offsets | Sequence[int], by: Offsets | Sequence[int]) -> None:
        """Say which changes supersede rows; the caller holds the topic's lock."""
        dead = self.dead
        if dead is None:
            dead = np.full(self.count, ALIVE, np.int64)
            dead[rows] = by
            # Readers look without the lock: they get the array when it is complete.
            self.dead = dead
            self.nbytes += dead.nbytes
        else:
            dead[rows] = by

    def stand(self, rows: Offsets | Sequence[int], bases: Offsets | Sequence[int]) -> None:
        """Say which rows partial changes stand on; the caller holds the topic's lock."""
        if self.bases is None:
            self.bases = np.full(self.count, -1, np.int64)
            self.nbytes += self.bases.nbytes
        self.bases[rows] = bases
        self.stood += 1

    def take_marks(self, parts: Sequence[Chunk]) -> None:
        """Take over the marks of the chunks that were joined into this one, as they are now."""
        for marks in (self.dead, self.bases):
            self.nbytes -= 0 if marks is None else marks.nbytes
        self.dead, self.bases = _joined_dead(parts), _joined_bases(parts)
        for marks in (self.dead, self.bases):
            self.nbytes += 0 if marks is None else marks.nbytes

    def live(self, end: int) -> Flags | None:
        """Tell which rows are their key's state at snapshot `end`; None if all are."""
        flags: Flags | None = None
        if self.end > end:
            flags = np.arange(self.offset, self.end) < end
        if self.keyed and self.deletes:
            alive = self.ops != OP_DELETE
            flags = alive if flags is None else flags & alive
        dead = self.dead
        if dead is not None:
            alive = dead >= end
            flags = alive if flags is None else flags & alive
        return None if flags is None or flags.all() else flags

    # -- values ----------------------------------------------------------------------------------

    def row(self, row: int) -> tuple[object, ...]:
        """Return one record's values of the topic's columns."""
        columns = self.cached("columns", lambda: self.batch.columns[: self.width])
        return tuple([column[row].as_py() for column in columns])

    def present_at(self, row: int) -> bytes | None:
        """Return the bitmap of the columns that a record names; None if it is whole."""
        found: bytes | None = self.batch.column(self.width + 1)[row].as_py()
        return found

    def bounds(self, name: str) -> tuple[Any, Any]:
        """Return least and greatest value of a column, both None if it has none."""

        def make() -> tuple[Any, Any]:
            found = pc.min_max(self.batch.column(name))
            return found["min"].as_py(), found["max"].as_py()

        pair: tuple[Any, Any] = self.cached(("bounds", name), make)
        return pair

    def slice(self, start: int, count: int) -> Chunk:
        """Return part of the chunk; it shares the buffers and the marks set so far.

        Its bytes and changes are a share of the whole's.
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
            bases=None if self.bases is None else self.bases[start : start + count],
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
    """Make a chunk of a decoded batch and its (records, microseconds) runs."""
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
    """Make a chunk of a batch that was read back; what came as a change is judged by its fields."""
    chunk = chunk_of(batch.data, offset=batch.offset, version=version, times=batch.times, nbytes=0)
    if chunk.keyed:
        told = chunk.ops != OP_UPSERT
        partial = chunk.partial
        chunk.changes = int((told if partial is None else told | partial).sum())
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
        bases=_joined_bases(chunks),
    )


def batch_with_system(chunk: Chunk, image: pa.RecordBatch | None = None) -> pa.RecordBatch:
    """Return the records as files hold them: `_offset`, `_time`, [`_op`, `_present`], columns.

    `image` has the topic's columns as they are after each change, where changes may be partial.
    """
    width = chunk.width
    source = chunk.batch if image is None else image
    system, fields = chunk.batch.columns[width:], list(chunk.batch.schema)
    offsets = pa.array(np.arange(chunk.offset, chunk.end, dtype=np.int64))
    return pa.RecordBatch.from_arrays(
        [offsets, chunk.time_array(), *system, *source.columns[:width]],
        schema=pa.schema([OFFSET_FIELD, TIME_FIELD, *fields[width:], *fields[:width]]),
    )


def _joined_dead(chunks: Sequence[Chunk]) -> Offsets | None:
    if all(chunk.dead is None for chunk in chunks):
        return None
    return np.concatenate([_filled(chunk.dead, chunk.count, ALIVE) for chunk in chunks])


def _joined_bases(chunks: Sequence[Chunk]) -> Offsets | None:
    if all(chunk.bases is None for chunk in chunks):
        return None
    return np.concatenate([_filled(chunk.bases, chunk.count, -1) for chunk in chunks])


def _filled(marks: Offsets | None, count: int, value: int) -> Offsets:
    return np.full(count, value, np.int64) if marks is None else marks


def _coalesced(counts: Offsets, us: Offsets) -> tuple[Offsets, Offsets]:
    """Join neighbouring runs of one time."""
    if len(us) < 2:
        return counts, us
    starts = np.flatnonzero(np.concatenate(([True], us[1:] != us[:-1])))
    return np.add.reduceat(counts, starts), us[starts]
