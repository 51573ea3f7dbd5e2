"""Find the newest change of a key that the index does not have: in chunks by hash, then below."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from frazil.model import OP_UPDATE
from frazil.tiers.keys.key_index import CODE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from frazil.schema import Key, KeyShape
    from frazil.tiers.chunk import Chunk
    from frazil.tiers.keys.dead_marks import DeadMarks
    from frazil.tiers.memory import TopicMemory

    Hashes = npt.NDArray[np.uint32]

__all__ = ["Below", "Found", "KeySearch"]


class Found(NamedTuple):
    """The newest change of a key."""

    offset: int
    op: int


class Below(Protocol):
    """What lies below the memory tier."""

    def find_many(self, keys: Sequence[Key], hashes: Hashes, before: int) -> dict[Key, Found]:
        """Return the newest change below offset `before` of each key that has one."""

    def images(self, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
        """Return the rows at ascending offsets, as they are after each change, in this order.

        The columns are the topic's, found by their id. A row that is gone is null throughout.
        """


class KeySearch:
    """Looks for keys where their changes lie; passes over changes that did nothing.

    Everything below the offset that is asked for must be folded. May be called from any thread.
    """

    def __init__(
        self,
        memory: TopicMemory,
        below: Below,
        marks: DeadMarks,
        shape_of: Callable[[int], KeyShape],
    ) -> None:
        self._memory = memory
        self._below = below
        self._marks = marks
        self._shape_of = shape_of

    def find(self, key: Key, *, before: int) -> Found | None:
        """Return the newest change of a key below an offset."""
        chunks, start = self._held(before)
        if before > start:
            hashed = self._shape_of(self._memory.state.schema_version).hash_of(key)
            for chunk in reversed(chunks):
                if chunk.offset < before:
                    found = self._in_chunk(chunk, key, hashed, before)
                    if found is not None:
                        return found
        return self._find_below([key], before=min(before, start)).get(key)

    def find_many(self, keys: Sequence[Key], *, before: int) -> dict[Key, Found]:
        """Return the newest change below an offset of each key that has one."""
        chunks, start = self._held(before)
        found: dict[Key, Found] = {}
        left = list(keys)
        if left and before > start:
            shape = self._shape_of(self._memory.state.schema_version)
            hashes = shape.hashes_of(left)
            for chunk in reversed(chunks):
                if chunk.offset < before and left:
                    fresh = self._many_in_chunk(chunk, left, hashes, before)
                    if fresh:
                        found.update(fresh)
                        kept = [place for place, key in enumerate(left) if key not in fresh]
                        left, hashes = [left[place] for place in kept], hashes[kept]
        if left:
            found.update(self._find_below(left, before=min(before, start)))
        return found

    def _held(self, before: int) -> tuple[tuple[Chunk, ...], int]:
        """Return the chunks and where they start.

        The chunks are taken first: what is evicted in between is then found in both places.
        """
        memory = self._memory
        memory.settle(before)
        # The search may give chunks a map of their keys.
        memory.recount()
        return memory.chunks, memory.start

    def _in_chunk(self, chunk: Chunk, key: Key, hashed: int, before: int) -> Found | None:
        shape = self._shape_of(chunk.version)
        for row in chunk.key_map(shape).newest(hashed):
            offset = chunk.offset + row
            if offset < before and shape.key_at(chunk.batch, row) == key and not _idle(chunk, row):
                return Found(offset, int(chunk.ops[row]))
        return None

    def _many_in_chunk(
        self, chunk: Chunk, keys: list[Key], hashes: Hashes, before: int
    ) -> dict[Key, Found]:
        shape = self._shape_of(chunk.version)
        queries, rows = chunk.key_map(shape).find_many(hashes)
        inside = rows < before - chunk.offset
        queries, rows = queries[inside], rows[inside]
        if not len(rows):
            return {}
        real = shape.keys(chunk.batch.select(list(shape.names)).take(pa.array(rows)))
        ops = chunk.ops[rows].tolist()
        found: dict[Key, Found] = {}
        # Rows of one key come in ascending order: the last one that counts stays.
        for query, row, other, op in zip(queries.tolist(), rows.tolist(), real, ops, strict=True):
            if other == keys[query] and not _idle(chunk, row):
                found[other] = Found(chunk.offset + row, op)
        return found

    def _find_below(self, keys: list[Key], *, before: int) -> dict[Key, Found]:
        if before <= 0:
            return {}
        hashes = self._shape_of(self._memory.state.schema_version).hashes_of(keys)
        found = self._below.find_many(keys, hashes, before)
        idle = self._marks.idle
        if idle:
            for key, one in list(found.items()):
                if one.op == OP_UPDATE and one.offset in idle:
                    del found[key]
                    found.update(self._find_below([key], before=one.offset))
        return found


def code_of(found: Found) -> int:
    """Return a change as the index has it."""
    return found.offset << CODE_SHIFT | found.op


def _idle(chunk: Chunk, row: int) -> bool:
    """Tell whether a change did nothing: it is marked by itself."""
    return chunk.dead is not None and int(chunk.dead[row]) == chunk.offset + row
