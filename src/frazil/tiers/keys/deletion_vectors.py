"""Deletion vectors: which rows of a keyed topic later changes supersede.

An entry is a pair (offset of the row, offset of the superseding change). The entries of rows in
memory are an array of their chunk; those of rows in files are a `DeletionVector`. A partial update
of an absent key changes nothing: it supersedes itself. After a start `fold_rows` computes the
entries from the files alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.model import OP_DELETE, OP_UPDATE
from frazil.tiers.chunk import ALIVE, Chunk

if TYPE_CHECKING:
    import numpy.typing as npt

    from frazil.schema import KeyShape
    from frazil.tiers.memory import TopicMemory

    Offsets = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

__all__ = ["DeletionVector", "DeletionVectors", "FoldedRows", "KeyRows", "fold_rows"]

PENDING_MAX: Final = 1 << 16
PENDING_SHIFT: Final = 4
"""Entries are merged in when so many are pending, or a sixteenth of all."""
PASS_ROWS: Final = 4 << 20
"""`fold_rows` folds about so many rows at a time."""
NO_OFFSETS: Final[Offsets] = np.empty(0, np.int64)


class DeletionVector:
    """A growing set of entries, sorted by the row's offset; the caller holds the topic's lock.

    Arrays that it returns are never written to again.
    """

    def __init__(self) -> None:
        self._offsets = self._by = NO_OFFSETS
        self._by_max = -1
        self._pending: list[tuple[Offsets, Offsets]] = []
        self._pending_count = 0
        self.idle: set[int] = set()
        """Offsets of changes that supersede themselves."""

    def __len__(self) -> int:
        self._merge()
        return len(self._offsets)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all entries; any thread may ask."""
        return 16 * (len(self._offsets) + self._pending_count) + 100 * len(self.idle)

    def add(self, offsets: Offsets, by: Offsets) -> None:
        """Add entries; a row that has one keeps it."""
        if not len(offsets):
            return
        self._pending.append((offsets, by))
        self._pending_count += len(offsets)
        self.idle.update(offsets[offsets == by].tolist())
        if self._pending_count > max(PENDING_MAX, len(self._offsets) >> PENDING_SHIFT):
            self._merge()

    def below(self, *, cut: int, end: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order."""
        self._merge()
        stop = int(np.searchsorted(self._offsets, cut))
        offsets = self._offsets[:stop]
        return offsets if self._by_max < end else offsets[self._by[:stop] < end]

    def forget(self, below: int) -> None:
        """Drop the entries of rows below an offset."""
        self._merge()
        start = int(np.searchsorted(self._offsets, below))
        self._offsets, self._by = self._offsets[start:].copy(), self._by[start:].copy()
        self.idle = {offset for offset in self.idle if offset >= below}

    def _merge(self) -> None:
        if not self._pending:
            return
        offsets = np.concatenate([pair[0] for pair in self._pending])
        by = np.concatenate([pair[1] for pair in self._pending])
        # Of two entries of one row the first one stays.
        offsets, first = np.unique(offsets, return_index=True)
        by = by[first]
        self._by_max = max(self._by_max, int(by.max()))
        places = np.searchsorted(self._offsets, offsets)
        if len(self._offsets):
            known = self._offsets[np.minimum(places, len(self._offsets) - 1)] == offsets
            offsets, by, places = offsets[~known], by[~known], places[~known]
        self._offsets = np.insert(self._offsets, places, offsets)
        self._by = np.insert(self._by, places, by)
        self._pending, self._pending_count = [], 0


class DeletionVectors:
    """All entries of one topic: in its chunks, and `files` for rows that are in files alone.

    All methods are called with the topic's lock, about rows that are in chunks or in files.
    """

    def __init__(self, memory: TopicMemory) -> None:
        self._memory = memory
        self.files = DeletionVector()

    def mark(self, offsets: Offsets, by: Offsets) -> None:
        """Note which changes supersede rows."""
        in_files = offsets < self._memory.start
        if in_files.any():
            self.files.add(offsets[in_files], by[in_files])
            offsets, by = offsets[~in_files], by[~in_files]
        self._spread(offsets, by, Chunk.mark)

    def set_bases(self, offsets: Offsets, bases: Offsets) -> None:
        """Note which row each partial change builds on."""
        self._spread(offsets, bases, Chunk.set_bases)

    def evicted(self, chunks: Sequence[Chunk]) -> None:
        """Keep the entries of chunks whose rows are in files alone from now on."""
        for chunk in chunks:
            if chunk.dead is not None:
                rows = np.flatnonzero(chunk.dead != ALIVE)
                self.files.add(rows + chunk.offset, chunk.dead[rows])

    def below(self, *, cut: int, end: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order."""
        found = [self.files.below(cut=min(cut, self._memory.start), end=end)]
        for chunk in self._memory.chunks:
            if chunk.offset >= cut:
                break
            if chunk.dead is not None:
                found.append(np.flatnonzero(chunk.dead[: cut - chunk.offset] < end) + chunk.offset)
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _spread(
        self, offsets: Offsets, values: Offsets, put: Callable[[Chunk, Offsets, Offsets], None]
    ) -> None:
        """Give each chunk the values of its rows."""
        order = np.argsort(offsets, kind="stable")
        offsets, values = offsets[order], values[order]
        first = 0
        while first < len(offsets):
            chunk = self._memory.chunk_at(int(offsets[first]))
            assert chunk is not None
            stop = int(np.searchsorted(offsets, chunk.end))
            put(chunk, offsets[first:stop] - chunk.offset, values[first:stop])
            first = stop
        self._memory.recount()


class KeyRows(NamedTuple):
    """Rows of a file: offsets, key columns in key order, operations, and which are partial."""

    offsets: Offsets
    keys: pa.RecordBatch
    ops: npt.NDArray[np.int8]
    partial: Flags | None = None


class FoldedRows(NamedTuple):
    """Folded rows: their deletion vector's entries, and the newest change of each key."""

    offsets: Offsets
    by: Offsets
    newest: Offsets
    newest_ops: npt.NDArray[np.int8]
    newest_keys: pa.RecordBatch


def fold_rows(
    rows: Callable[[], Iterable[KeyRows]], shape: KeyShape, *, below: int
) -> Iterator[FoldedRows]:
    """Fold all rows below an offset, a share of the keys at a time.

    `rows` is called once to count and once for each share, which bounds memory. Rows may come in
    any order.
    """
    total = sum(len(part.offsets) for part in rows())
    shares = max(1, -(-total // PASS_ROWS))
    for share in range(shares):
        parts = [_share(part, shape, share=share, shares=shares, below=below) for part in rows()]
        parts = [part for part in parts if len(part.offsets)]
        if parts:
            yield _fold(parts, shape)


def _share(part: KeyRows, shape: KeyShape, *, share: int, shares: int, below: int) -> KeyRows:
    keys = part.keys.rename_columns(list(shape.names))
    chosen = part.offsets < below
    if shares > 1:
        chosen &= shape.hashes(keys) % np.uint32(shares) == share
    partial = np.zeros(len(part.offsets), np.bool_) if part.partial is None else part.partial
    if chosen.all():
        return KeyRows(part.offsets, keys, part.ops, partial)
    kept = keys.filter(pa.array(chosen))
    return KeyRows(part.offsets[chosen], kept, part.ops[chosen], partial[chosen])


def _fold(parts: list[KeyRows], shape: KeyShape) -> FoldedRows:
    offsets = np.concatenate([part.offsets for part in parts])
    ops = np.concatenate([part.ops for part in parts])
    partial = np.concatenate([part.partial for part in parts if part.partial is not None])
    # The key columns without metadata, so that versions of a schema fit together.
    fields = [pa.field(name, kind) for name, kind in zip(shape.names, shape.types, strict=True)]
    schema = pa.schema(fields)
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(part.keys.columns, schema=schema) for part in parts]
    )
    numbers = _key_numbers(table)
    order = np.lexsort((offsets, numbers))
    idle = _idle(numbers[order], ops[order], partial[order])
    own = offsets[order[idle]]
    order = order[~idle]
    numbers, offsets, ops = numbers[order], offsets[order], ops[order]
    last = np.concatenate((numbers[1:] != numbers[:-1], [True]))[: len(numbers)]
    # A delete shows no row, so nothing needs to supersede it.
    marked = np.flatnonzero(~last & (ops != OP_DELETE))
    newest = table.take(pa.array(order[last])).combine_chunks()
    batches = newest.to_batches()
    return FoldedRows(
        np.concatenate((offsets[marked], own)),
        np.concatenate((offsets[marked + 1], own)),
        offsets[last],
        ops[last],
        batches[0] if batches else pa.RecordBatch.from_pylist([], schema=newest.schema),
    )


def _key_numbers(table: pa.Table) -> Offsets:
    """Number the keys of a table: equal keys have equal numbers."""
    numbers: Offsets | None = None
    for column in table.columns:
        coded = column.combine_chunks().dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if numbers is not None:
            paired = pa.array(numbers * len(coded.dictionary) + codes).dictionary_encode()
            codes = paired.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        numbers = codes
    assert numbers is not None
    return numbers


def _idle(numbers: Offsets, ops: npt.NDArray[np.int8], partial: Flags) -> Flags:
    """Return which changes, sorted by key and offset, update an absent key."""
    updates: Flags = partial & (ops == OP_UPDATE)
    if not updates.any():
        return updates
    places = np.arange(len(numbers))
    setter = np.maximum.accumulate(np.where(updates, -1, places))
    known: Flags = (setter >= 0) & (numbers[setter] == numbers) & (ops[setter] != OP_DELETE)
    return updates & ~known
