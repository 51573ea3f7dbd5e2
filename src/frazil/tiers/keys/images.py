"""Whole rows of partial changes: each column is that of the newest change that named it.

A partial change stands on the row that it supersedes, which may be partial itself. All changes of a
chunk are completed together, column by column: each row points at the row its value comes from, and
the pointers are followed until they end.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from frazil.schema.keys import column_id

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from frazil.tiers.chunk import Chunk
    from frazil.tiers.keys.key_search import Below
    from frazil.tiers.memory import TopicMemory

    Offsets = npt.NDArray[np.int64]
    Flags = npt.NDArray[np.bool_]

__all__ = ["Images"]

_chunk_offset = attrgetter("offset")


class Images:
    """Completes the changes of one topic's chunks. May be called from any thread."""

    def __init__(self, memory: TopicMemory, below: Below) -> None:
        self._memory = memory
        self._below = below

    def of(self, chunk: Chunk) -> pa.RecordBatch:
        """Return the topic's columns as they are after each change of a chunk that is folded."""
        if chunk.bases is None:
            return chunk.cached("columns_batch", lambda: _columns(chunk))
        # The oldest first: each one then finds what it stands on complete.
        chunks = self._memory.chunks
        for other in chunks:
            if other.offset < chunk.offset and other.bases is not None:
                self._complete(other, chunks)
        return self._complete(chunk, chunks)

    def _complete(self, chunk: Chunk, chunks: Sequence[Chunk]) -> pa.RecordBatch:
        self._memory.recount()
        return chunk.image(lambda: self._completed(chunk, chunks))

    def _completed(self, chunk: Chunk, chunks: Sequence[Chunk]) -> pa.RecordBatch:
        assert chunk.bases is not None
        plain = _columns(chunk)
        rows = np.flatnonzero(chunk.bases >= 0)
        if not len(rows):
            return plain
        bases = chunk.bases[rows]
        inside = bases >= chunk.offset
        outer = np.unique(bases[~inside])
        start = np.where(inside, bases - chunk.offset, chunk.count + np.searchsorted(outer, bases))
        named = _named(chunk, rows)
        pieces = self._rows_at(outer, chunks) if len(outer) else []
        columns = []
        for number, field in enumerate(plain.schema):
            lacking = ~named[:, number]
            column = plain.column(number)
            if lacking.any():
                parts = [column, *(_column_of(piece, field) for piece in pieces)]
                column = pa.concat_arrays(parts)
                pointers = np.arange(len(column))
                pointers[rows[lacking]] = start[lacking]
                column = column.take(pa.array(_followed(pointers)[: chunk.count]))
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=plain.schema)

    def _rows_at(self, offsets: Offsets, chunks: Sequence[Chunk]) -> list[pa.RecordBatch]:
        """Return the rows at ascending offsets, some from below, then some from chunks."""
        first = chunks[0].offset if chunks else int(offsets[-1]) + 1
        below = offsets[offsets < first]
        pieces = [self._below.images(below)] if len(below) else []
        rest = offsets[len(below) :]
        while len(rest):
            chunk = chunks[bisect_right(chunks, int(rest[0]), key=_chunk_offset) - 1]
            here = rest[rest < chunk.end]
            image = self.of(chunk) if chunk.bases is None else self._complete(chunk, chunks)
            pieces.append(image.take(pa.array(here - chunk.offset)))
            rest = rest[len(here) :]
        assert sum(piece.num_rows for piece in pieces) == len(offsets)
        return pieces


def _columns(chunk: Chunk) -> pa.RecordBatch:
    return chunk.batch.select(range(chunk.width))


def _named(chunk: Chunk, rows: Offsets) -> Flags:
    """Tell for each row which columns its change named."""
    bitmaps = chunk.batch.column(chunk.width + 1).take(pa.array(rows)).to_pylist()
    joined = np.frombuffer(b"".join(bitmaps), np.uint8).reshape(len(rows), -1)
    bits = np.unpackbits(joined, axis=1, bitorder="little")
    return bits[:, : chunk.width].astype(np.bool_)


def _column_of(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return the column with the id of `field`; a column that the rows never had is null."""
    wanted = column_id(field)
    for number, other in enumerate(batch.schema):
        if column_id(other) == wanted:
            column = batch.column(number)
            return column if column.type == field.type else column.cast(field.type)
    return pa.nulls(batch.num_rows, field.type)


def _followed(pointers: Offsets) -> Offsets:
    """Follow pointers to their ends; the number of steps grows with the logarithm of the way."""
    while True:
        further = pointers[pointers]
        if np.array_equal(further, pointers):
            return pointers
        pointers = further
