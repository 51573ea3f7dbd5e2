"""The state of a keyed topic: its changes folded in offset order, across all tiers.

The fold finds for each change the row that it supersedes, and keeps each key's newest change in an
index of bounded size. A key that the index has evicted is looked up in the chunks of the memory
tier by hash, then in the older tiers: a miss never means "absent" unless the index is `complete`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.model import OP_DELETE, OP_UPDATE, OP_UPSERT
from frazil.schema import KeyShape
from frazil.schema.keys import column_id
from frazil.tiers.chunk import Chunk
from frazil.tiers.keys.deletion_vectors import DeletionVectors, fold_rows
from frazil.tiers.keys.index import (
    CODE_SHIFT,
    OP_MASK,
    PARTIAL_BIT,
    UNKNOWN,
    KeyIndex,
    UnflushedKeys,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from frazil.log import TailEntry
    from frazil.schema import Key
    from frazil.tiers.keys.deletion_vectors import KeyRows
    from frazil.tiers.memory import TopicMemory

    Offsets = npt.NDArray[np.int64]
    Hashes = npt.NDArray[np.uint32]

__all__ = ["STEP_ROWS", "Found", "Image", "KeyedState", "OlderTiers", "whole_chunk"]

STEP_ROWS: Final = 8192
"""The fold handles so many changes at a time."""
_KIND_MASK: Final = PARTIAL_BIT | OP_MASK
_PARTIAL_UPDATE: Final = PARTIAL_BIT | OP_UPDATE
_ABSENT: Final = OP_DELETE
"""The code of "no change at all": a delete before the first offset."""

_chunk_offset = attrgetter("offset")
_entry_offset = itemgetter(0)


class Found(NamedTuple):
    """The newest change of a key."""

    offset: int
    op: int


class Image(NamedTuple):
    """A change as memory holds it.

    `values` are the whole row after the change, in the order of the columns of schema `version`.
    `present` is the bitmap of the columns that a partial change named.
    """

    offset: int
    op: int
    time_us: int
    version: int
    values: tuple[Any, ...]
    present: bytes | None = None


class OlderTiers(Protocol):
    """The tiers that hold what memory no longer has."""

    def find_many(self, keys: Sequence[Key], before: int) -> dict[Key, Found]:
        """Return the newest change below offset `before` of each key that has one."""

    def images(self, offsets: Offsets) -> pa.RecordBatch:
        """Return the rows at ascending offsets, as they are after each change, in this order.

        The columns are the topic's, found by their id. A row that is gone is null throughout.
        """


class KeyedState:
    """The fold of one keyed topic. `fold` and `newest` may be called from any thread.

    `complete` says that the index has every key: it evicted none, and everything since the first
    offset was folded. `routes` counts changes by the place of the row they supersede: not yet
    flushed, in files, or none.
    """

    def __init__(
        self, memory: TopicMemory, older: OlderTiers, *, index_bytes_max: Callable[[], int]
    ) -> None:
        self.memory = memory
        self.index = KeyIndex(index_bytes_max)
        self.folded_to = -1
        self.complete = False
        self.flushed = 0
        self.floor = 0
        self.routes = {"memory": 0, "delta": 0, "new": 0}
        self.vectors = DeletionVectors(memory)
        self._older = older
        self._shapes: dict[int, KeyShape] = {}
        self._unflushed = UnflushedKeys(memory, self.shape_of, self._codes_of_entry)
        memory.on_evict = self._evicted

    def shape_of(self, version: int) -> KeyShape:
        """Return the key's shape under one schema version."""
        shape = self._shapes.get(version)
        if shape is None:
            state = self.memory.state
            schema = pa.ipc.read_schema(pa.py_buffer(state.schemas[version]))
            shape = self._shapes[version] = KeyShape(schema, state.spec.primary_key)
        return shape

    @property
    def shape(self) -> KeyShape:
        """Return the key's shape under the current schema version."""
        return self.shape_of(self.memory.state.schema_version)

    # -- fold --------------------------------------------------------------------------------------

    def fold(self, end: int, *, budget_rows: int | None = None) -> None:
        """Fold everything visible below `end` that is not folded yet, in offset order.

        With a budget the fold stops after about so many changes, at least one.
        """
        if 0 <= end <= self.folded_to:
            return
        memory = self.memory
        with memory.lock:
            self._begin()
            end = min(end, memory.state.visible)
            rows = 0
            while self.folded_to < end and (budget_rows is None or rows < budget_rows):
                keys, codes, folded_to = self._next_changes(end)
                if keys:
                    self._apply(keys, codes)
                self.folded_to = folded_to
                rows += len(keys)

    def _begin(self) -> None:
        if self.folded_to < 0:
            self.folded_to = self.memory.start
            self.complete = self.complete or self.memory.start == 0

    def _next_changes(self, end: int) -> tuple[list[Key], list[int], int]:
        """Return the next keys and codes to fold, and the offset after them."""
        memory, first = self.memory, self.folded_to
        if first >= memory.settled:
            # At most as many rows as one step folds, unless a single frame has more.
            memory.settle(end, budget_rows=STEP_ROWS // 2)
        chunks = memory.chunks
        number = max(bisect_right(chunks, first, key=_chunk_offset) - 1, 0)
        if number < len(chunks) and chunks[number].end <= first:
            number += 1
        if number == len(chunks) or chunks[number].offset >= end:
            # The rest is a gap.
            return [], [], end
        chunk = chunks[number]
        start = max(first, chunk.offset)
        stop = min(chunk.end, end, start + STEP_ROWS)
        keys, codes = self._codes_of(chunk, start - chunk.offset, stop - start)
        return keys, codes, stop

    def _codes_of(self, chunk: Chunk, start: int, count: int) -> tuple[list[Key], list[int]]:
        keys = self.shape_of(chunk.version).keys(chunk.batch.slice(start, count))
        offsets = np.arange(chunk.offset + start, chunk.offset + start + count, dtype=np.int64)
        codes = (offsets << CODE_SHIFT) | chunk.ops[start : start + count]
        partial = chunk.partial
        if partial is not None:
            codes |= partial[start : start + count].astype(np.int64) * PARTIAL_BIT
        return keys, codes.tolist()

    def _codes_of_entry(self, entry: TailEntry) -> tuple[list[Key], list[int]]:
        chunk = self.memory.decoded(entry)
        return self._codes_of(chunk, 0, chunk.count)

    def _apply(self, keys: list[Key], codes: list[int]) -> None:
        """Fold changes: each supersedes the newest earlier change of its key."""
        index = self.index
        known = index.codes
        below: dict[Key, int] = {}
        if not self.complete:
            missing = list(dict.fromkeys([key for key in keys if key not in known]))
            found = self._find_many(missing, before=self.folded_to) if missing else {}
            below = {key: one.offset << CODE_SHIFT | one.op for key, one in found.items()}
        newest = dict(zip(keys, codes, strict=True))
        if (
            len(newest) == len(keys)
            and not index.tight(len(keys))
            and not _has_partial_updates(codes)
        ):
            old = list(map(known.get, keys, repeat(_ABSENT)))
            fresh = [key for key, base in zip(keys, old, strict=True) if base == _ABSENT]
            fresh = [key for key in fresh if key not in known]
            if below:
                old = [below.get(key, base) for key, base in zip(keys, old, strict=True)]
            known.update(newest)
        else:
            fresh, old, codes = self._apply_in_order(keys, codes, below)
        index.added(fresh)
        self._supersede(old, codes)
        if index.over:
            # Before keys are evicted: a lock-free look-up that misses one must search for it.
            self.complete = False
            index.shrink()

    def _apply_in_order(
        self, keys: list[Key], codes: list[int], below: dict[Key, int]
    ) -> tuple[list[Key], list[int], list[int]]:
        """Fold one by one; return new keys, superseded codes, and the codes that supersede them."""
        known, take = self.index.codes, self.index.take(len(keys))
        floor = self.floor << CODE_SHIFT
        fresh: list[Key] = []
        old: list[int] = []
        kept: list[int] = []
        idle: list[int] = []
        self.index.moves += 1
        for key, code in zip(keys, codes, strict=True):
            base = take(key, None)
            if base is None:
                base = below.get(key, _ABSENT)
                fresh.append(key)
            if code & _KIND_MASK == _PARTIAL_UPDATE and (
                base & OP_MASK == OP_DELETE or base < floor
            ):
                # It updates an absent key and changes nothing.
                idle.append(code >> CODE_SHIFT)
                known[key] = base
                continue
            old.append(base)
            kept.append(code)
            known[key] = code
        self.index.moves += 1
        if idle:
            offsets = np.array(idle, np.int64)
            self.vectors.mark(offsets, offsets)
        return fresh, old, kept

    def _supersede(self, old: list[int], codes: list[int]) -> None:
        """Mark the rows that changes supersede, and count the changes by the place of those."""
        bases, changes = np.array(old, np.int64), np.array(codes, np.int64)
        offsets = bases >> CODE_SHIFT
        alive = (bases & OP_MASK) != OP_DELETE
        if self.floor:
            alive &= offsets >= self.floor
        if not alive.all():
            offsets, changes = offsets[alive], changes[alive]
        partial = (changes & PARTIAL_BIT) != 0
        changes >>= CODE_SHIFT
        if partial.any():
            self.vectors.set_bases(changes[partial], offsets[partial])
        in_files = int((offsets < self.flushed).sum()) if self.flushed else 0
        self.routes["delta"] += in_files
        self.routes["memory"] += len(offsets) - in_files
        self.routes["new"] += len(codes) - len(offsets)
        self.vectors.mark(offsets, changes)

    def _evicted(self, chunks: Sequence[Chunk]) -> None:
        self.fold(chunks[-1].end)
        self.vectors.evicted(chunks)

    # -- lookups -----------------------------------------------------------------------------------

    def newest(self, key: Key, before: int | None = None) -> Found | None:
        """Return the newest effective change of a key, of those below `before` and folded."""
        # Read before the index: its entry is then at least as new. Without the lock, an entry of
        # a fold under way does not count, nor does a miss while keys move; and keys are evicted
        # only once the index is no longer complete.
        index = self.index
        moves = index.moves
        folded_to = self.folded_to
        code = index.codes.get(key)
        complete = self.complete and folded_to >= 0 and not moves & 1 and index.moves == moves
        if not complete if code is None else code >> CODE_SHIFT >= folded_to:
            with self.memory.lock:
                self._begin()
                code = index.codes.get(key)
                complete, folded_to = self.complete, self.folded_to
        before = folded_to if before is None else min(before, folded_to)
        if (code is None and complete) or code == _ABSENT:
            return None
        if code is not None and code >> CODE_SHIFT < before:
            found: Found | None = Found(code >> CODE_SHIFT, code & OP_MASK)
        else:
            found = self._find(key, before=before)
        return None if found is None or found.offset < self.floor else found

    def latest(self, key: Key, end: int) -> tuple[bool, Found | None]:
        """Return whether the answer needs no fold, and the newest change of a key below `end`.

        All below `end` is visible; the part that is not folded yet is searched by its keys.
        """
        folded_to = self.folded_to
        if folded_to < end:
            if folded_to < 0:
                return False, None
            code = self._unflushed.newest(key, folded_to=folded_to, end=end)
            if code == UNKNOWN:
                return False, None
            if code is not None:
                found = Found(code >> CODE_SHIFT, code & OP_MASK)
                return True, None if found.offset < self.floor else found
        return True, self.newest(key, end)

    def image_at(self, offset: int) -> Image | None:
        """Return the row after the change at an offset, None if memory does not hold it."""
        memory = self.memory
        chunk = memory.chunk_at(offset)
        if chunk is None:
            image = self._tail_image(offset)
            if image is not None:
                return image
            with memory.lock:
                memory.settle(offset + 1)
                chunk = memory.chunk_at(offset)
        if chunk is None:
            return None
        row = offset - chunk.offset
        op, time_us = int(chunk.ops[row]), chunk.time_at(row)
        if chunk.partial is None or not chunk.partial[row]:
            return Image(offset, op, time_us, chunk.version, chunk.row(row))
        self.fold(offset + 1)
        values = tuple([column[row].as_py() for column in self.image(chunk).columns])
        return Image(offset, op, time_us, chunk.version, values, chunk.present_at(row))

    def _tail_image(self, offset: int) -> Image | None:
        """Return the row at an offset if the tail has it whole; works on a copy, without the lock."""
        tail = self.memory.tail.copy()
        number = bisect_right(tail, offset, key=_entry_offset) - 1
        entry = tail[number] if number >= 0 else None
        if entry is None or entry.records is None or offset >= entry.offset + entry.count:
            return None
        record = entry.records[offset - entry.offset]
        if type(record) is tuple:
            return Image(offset, OP_UPSERT, entry.time_us, entry.version, record[0])
        if record.present is not None:
            return None
        return Image(offset, record.op, entry.time_us, entry.version, record.values)

    # -- search: chunks by hash, then the older tiers ----------------------------------------------

    def _find(self, key: Key, *, before: int) -> Found | None:
        """Return the newest effective change of a key below an offset; all of those are folded."""
        chunks, start = self._held(before)
        if before > start:
            hashed = self.shape.hash_of(key)
            for chunk in reversed(chunks):
                if chunk.offset < before:
                    found = self._in_chunk(chunk, key, hashed, before)
                    if found is not None:
                        return found
        return self._find_older([key], before=min(before, start)).get(key)

    def _find_many(self, keys: Sequence[Key], *, before: int) -> dict[Key, Found]:
        """Return the newest effective change below an offset of each key that has one."""
        chunks, start = self._held(before)
        found: dict[Key, Found] = {}
        left = list(keys)
        if before > start:
            hashes = self.shape.hashes_of(left)
            for chunk in reversed(chunks):
                if chunk.offset < before and left:
                    fresh = self._many_in_chunk(chunk, left, hashes, before)
                    if fresh:
                        found.update(fresh)
                        kept = [place for place, key in enumerate(left) if key not in fresh]
                        left, hashes = [left[place] for place in kept], hashes[kept]
        if left:
            found.update(self._find_older(left, before=min(before, start)))
        return found

    def _held(self, before: int) -> tuple[tuple[Chunk, ...], int]:
        """Return the chunks and their first offset.

        The chunks are read first: a chunk that is evicted in between is then found in both tiers.
        """
        memory = self.memory
        memory.settle(before)
        # The search may build key maps of chunks.
        memory.recount()
        return memory.chunks, memory.start

    def _in_chunk(self, chunk: Chunk, key: Key, hashed: int, before: int) -> Found | None:
        shape = self.shape_of(chunk.version)
        for row in chunk.key_map(shape).newest(hashed):
            offset = chunk.offset + row
            if offset < before and shape.key_at(chunk.batch, row) == key and not _idle(chunk, row):
                return Found(offset, int(chunk.ops[row]))
        return None

    def _many_in_chunk(
        self, chunk: Chunk, keys: list[Key], hashes: Hashes, before: int
    ) -> dict[Key, Found]:
        shape = self.shape_of(chunk.version)
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

    def _find_older(self, keys: list[Key], *, before: int) -> dict[Key, Found]:
        if before <= 0:
            return {}
        found = self._older.find_many(keys, before)
        idle = self.vectors.files.idle
        if idle:
            for key, one in list(found.items()):
                if one.op == OP_UPDATE and one.offset in idle:
                    del found[key]
                    found.update(self._find_older([key], before=one.offset))
        return found

    # -- images: whole rows of partial changes -----------------------------------------------------

    def image(self, chunk: Chunk) -> pa.RecordBatch:
        """Return the topic's columns as they are after each change of a folded chunk.

        A partial change builds on the row that it supersedes, which may be partial itself. All
        changes of a chunk are completed together, column by column: each row points at the row
        that has its value, and the pointers are followed to their ends.
        """
        if chunk.bases is None:
            return chunk.cached("columns_batch", lambda: _columns(chunk))
        # The oldest first: the rows that each one builds on are then complete.
        chunks = self.memory.chunks
        for other in chunks:
            if other.offset < chunk.offset and other.bases is not None:
                self._complete(other, chunks)
        return self._complete(chunk, chunks)

    def _complete(self, chunk: Chunk, chunks: Sequence[Chunk]) -> pa.RecordBatch:
        self.memory.recount()
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
        """Return the rows at ascending offsets: those of older tiers, then those of chunks."""
        first = chunks[0].offset if chunks else int(offsets[-1]) + 1
        older = offsets[offsets < first]
        pieces = [self._older.images(older)] if len(older) else []
        rest = offsets[len(older) :]
        while len(rest):
            chunk = chunks[bisect_right(chunks, int(rest[0]), key=_chunk_offset) - 1]
            here = rest[rest < chunk.end]
            image = self.image(chunk) if chunk.bases is None else self._complete(chunk, chunks)
            pieces.append(image.take(pa.array(here - chunk.offset)))
            rest = rest[len(here) :]
        assert sum(piece.num_rows for piece in pieces) == len(offsets)
        return pieces

    # -- rows in files -----------------------------------------------------------------------------

    def disk_dead(self, end: int, cut: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order.

        Everything below `end` must be folded. The array is never written to again.
        """
        with self.memory.lock:
            return self.vectors.below(cut=cut, end=end)

    def rebuild_disk_dead(self, rows: Callable[[], Iterable[KeyRows]]) -> None:
        """Compute the deletion vector of all rows in files, and index their newest changes.

        Each call of `rows` gives every row in files, in any order: `fold_rows` goes over them
        several times, which bounds memory.
        """
        shape = self.shape
        fits = True
        for folded in fold_rows(rows, shape, below=self.memory.start):
            codes = (folded.newest << CODE_SHIFT) | folded.newest_ops
            keys = shape.keys(folded.newest_keys)
            with self.memory.lock:
                self.vectors.files.add(folded.offsets, folded.by)
                fits = fits and self._fill(keys, codes.tolist())
        with self.memory.lock:
            # The rows in files and everything folded since make up every key.
            self.complete = self.complete or (fits and not self.index.evictions)

    def _fill(self, keys: list[Key], codes: list[int]) -> bool:
        """Add older changes to the index while there is room; False if some do not fit."""
        known = self.index.codes
        for start in range(0, len(keys), STEP_ROWS):
            part = slice(start, start + STEP_ROWS)
            pairs = zip(keys[part], codes[part], strict=True)
            fresh = {key: code for key, code in pairs if key not in known}
            if not self.index.fits(fresh):
                return False
            known.update(fresh)
            self.index.added(fresh)
        return True

    def on_flushed(self, to: int) -> None:
        """Take note that everything below an offset is in files."""
        self.flushed = max(self.flushed, to)

    def expire(self, below: int) -> None:
        """Forget everything below an offset: no tier holds it any more."""
        with self.memory.lock:
            self.floor = max(self.floor, below)
            self.vectors.files.forget(below)


def whole_chunk(chunk: Chunk, keyed: KeyedState | None) -> Chunk:
    """Return a folded chunk with the rows that its partial changes made; under the topic's lock.

    The sequencer writes whole rows; partial ones come from a log that was written without tiers.
    A partial change without a base stays: an upsert is a row with nulls, an update does nothing.
    """
    if keyed is None or chunk.bases is None or not (chunk.bases >= 0).any():
        return chunk
    width = chunk.width
    op, present = chunk.batch.columns[width:]
    based = pa.array(chunk.bases >= 0)
    bitmaps = pc.if_else(based, pa.scalar(None, present.type), present)
    columns = [*keyed.image(chunk).columns[:width], op, bitmaps]
    return Chunk(
        pa.RecordBatch.from_arrays(columns, schema=chunk.batch.schema),
        offset=chunk.offset,
        version=chunk.version,
        time_counts=chunk.time_counts,
        time_us=chunk.time_us,
        nbytes=chunk.nbytes,
        changes=chunk.changes,
        dead=chunk.dead,
    )


def _has_partial_updates(codes: list[int]) -> bool:
    kinds = np.array(codes, np.int64) & _KIND_MASK
    return bool((kinds == _PARTIAL_UPDATE).any())


def _idle(chunk: Chunk, row: int) -> bool:
    """Tell whether a change did nothing: it supersedes itself."""
    return chunk.dead is not None and int(chunk.dead[row]) == chunk.offset + row


def _columns(chunk: Chunk) -> pa.RecordBatch:
    return chunk.batch.select(range(chunk.width))


def _named(chunk: Chunk, rows: Offsets) -> npt.NDArray[np.bool_]:
    """Return for each row which columns its change named."""
    bitmaps = chunk.batch.column(chunk.width + 1).take(pa.array(rows)).to_pylist()
    joined = np.frombuffer(b"".join(bitmaps), np.uint8).reshape(len(rows), -1)
    bits = np.unpackbits(joined, axis=1, bitorder="little")
    return bits[:, : chunk.width].astype(np.bool_)


def _column_of(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    """Return the column with the id of `field`; nulls if the rows have no such column."""
    wanted = column_id(field)
    for number, other in enumerate(batch.schema):
        if column_id(other) == wanted:
            column = batch.column(number)
            return column if column.type == field.type else column.cast(field.type)
    return pa.nulls(batch.num_rows, field.type)


def _followed(pointers: Offsets) -> Offsets:
    """Follow pointers to their ends, in a number of steps logarithmic in the longest way."""
    while True:
        further = pointers[pointers]
        if np.array_equal(further, pointers):
            return pointers
        pointers = further
