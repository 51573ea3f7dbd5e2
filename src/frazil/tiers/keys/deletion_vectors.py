"""Deletion vectors: which rows of a keyed topic later changes supersede.

An entry is a pair (offset of the row, offset of the superseding change). The entries of rows in
memory are an array of their chunk; those of rows in files are a `DeletionVector`. After a start
`fold_rows` computes the entries from the files alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.model import OP_DELETE
from frazil.tiers.chunk import ALIVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    from frazil.schema import KeyShape
    from frazil.tiers.chunk import Chunk, Offsets
    from frazil.tiers.memory import TopicMemory


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

    @property
    def nbytes(self) -> int:
        """Return the bytes of all entries; any thread may ask."""
        return 16 * (len(self._offsets) + self._pending_count)

    def add(self, offsets: Offsets, by: Offsets) -> None:
        """Add entries; a row that has one keeps it."""
        if not len(offsets):
            return
        self._pending.append((offsets, by))
        self._pending_count += len(offsets)
        if self._pending_count > max(PENDING_MAX, len(self._offsets) >> PENDING_SHIFT):
            self._merge()

    def below(self, *, cut: int, end: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order."""
        self._merge()
        stop = int(np.searchsorted(self._offsets, cut))
        offsets = self._offsets[:stop]
        return offsets if self._by_max < end else offsets[self._by[:stop] < end]

    def _merge(self) -> None:
        if not self._pending:
            return
        offsets = np.concatenate([pair[0] for pair in self._pending])
        by = np.concatenate([pair[1] for pair in self._pending])
        # Of two entries of one row the first one stays.
        offsets, first = np.unique(offsets, return_index=True)
        by = by[first]
        self._by_max = max(self._by_max, int(by.max()))
        positions = np.searchsorted(self._offsets, offsets)
        if len(self._offsets):
            known = self._offsets[np.minimum(positions, len(self._offsets) - 1)] == offsets
            offsets, by, positions = offsets[~known], by[~known], positions[~known]
        self._offsets = np.insert(self._offsets, positions, offsets)
        self._by = np.insert(self._by, positions, by)
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
        order = np.argsort(offsets, kind="stable")
        offsets, by = offsets[order], by[order]
        first = 0
        while first < len(offsets):
            chunk = self._memory.chunk_at(int(offsets[first]))
            assert chunk is not None
            stop = int(np.searchsorted(offsets, chunk.end))
            chunk.mark(offsets[first:stop] - chunk.offset, by[first:stop])
            first = stop
        self._memory.recount()

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


class KeyRows(NamedTuple):
    """Rows of a file, without unmatched updates: offsets, key columns in key order, operations."""

    offsets: Offsets
    keys: pa.RecordBatch
    ops: npt.NDArray[np.int8]


class FoldedRows(NamedTuple):
    """Folded rows: their deletion vector's entries, and the newest change of each key."""

    offsets: Offsets
    by: Offsets
    newest: Offsets
    newest_ops: npt.NDArray[np.int8]
    newest_keys: pa.RecordBatch


def fold_rows(
    rows: Callable[[], Iterable[KeyRows]], shape: KeyShape, *, count: int, below: int
) -> Iterator[FoldedRows]:
    """Fold all rows below an offset, a share of the keys at a time.

    `rows` is called once for each share of the `count` rows, which bounds memory. Rows may come in
    any order.
    """
    shares = max(1, -(-count // PASS_ROWS))
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
    return KeyRows(part.offsets[chosen], keys.filter(pa.array(chosen)), part.ops[chosen])


def _fold(parts: list[KeyRows], shape: KeyShape) -> FoldedRows:
    offsets = np.concatenate([part.offsets for part in parts])
    ops = np.concatenate([part.ops for part in parts])
    # The key columns without metadata, so that versions of a schema fit together.
    fields = [pa.field(name, kind) for name, kind in zip(shape.names, shape.types, strict=True)]
    schema = pa.schema(fields)
    table = pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(part.keys.columns, schema=schema) for part in parts]
    )
    numbers = _key_numbers(table)
    order = np.lexsort((offsets, numbers))
    numbers, offsets, ops = numbers[order], offsets[order], ops[order]
    last = np.concatenate((numbers[1:] != numbers[:-1], [True]))
    # A delete shows no row, so nothing needs to supersede it.
    marked = np.flatnonzero(~last & (ops != OP_DELETE))
    return FoldedRows(
        offsets[marked],
        offsets[marked + 1],
        offsets[last],
        ops[last],
        table.take(pa.array(order[last])).combine_chunks().to_batches()[0],
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
