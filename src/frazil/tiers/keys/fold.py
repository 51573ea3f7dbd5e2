"""The state of a keyed topic: its changes folded in offset order, across all tiers.

The fold finds for each change the row that it supersedes, and keeps each key's newest change in an
index of bounded size. A key that the index has evicted is looked up in the chunks of the memory
tier by hash, then in files: a miss never means "absent" unless the index is `complete`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.model import OP_DELETE, OP_UPSERT
from frazil.schema import KeyShape
from frazil.tiers.chunk import chunk_of_entry
from frazil.tiers.keys.deletion_vectors import DeletionVectors, fold_rows
from frazil.tiers.keys.index import (
    CODE_SHIFT,
    OP_MASK,
    UNKNOWN,
    Found,
    KeyIndex,
    UnflushedKeys,
    entry_offset,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from frazil.log import TailEntry
    from frazil.schema import Key
    from frazil.tiers.chunk import Chunk
    from frazil.tiers.keys.deletion_vectors import KeyRows
    from frazil.tiers.memory import TopicMemory

    Hashes = npt.NDArray[np.uint32]
    FindInFiles = Callable[[Sequence[Key], KeyShape, int], dict[Key, Found]]
    """Returns the newest change below an offset of each key that has one, of rows in files."""

STEP_ROWS: Final = 8192
"""The fold handles so many changes at a time."""
_ABSENT: Final = (-1 << CODE_SHIFT) | OP_DELETE
"""The code of a key without a change: a delete before the first offset."""

_chunk_offset = attrgetter("offset")


class Image(NamedTuple):
    """A row as memory holds it, with its values in the order of the columns of schema `version`."""

    offset: int
    time_us: int
    version: int
    values: tuple[Any, ...]


class KeyedState:
    """The fold of one keyed topic. `fold` and `newest` may be called from any thread.

    `complete` says that the index has every key: it evicted none, and everything since the first
    offset was folded. `routes` counts changes by the tier of the row that they supersede: not yet
    flushed, in files, or none.
    """

    def __init__(
        self,
        memory: TopicMemory,
        find_in_files: FindInFiles,
        *,
        index_bytes_max: Callable[[], int],
    ) -> None:
        self.memory = memory
        self.index = KeyIndex(index_bytes_max)
        self.folded_to = -1
        self.complete = False
        self.flushed = 0
        """Everything below it is in files."""
        self.routes = {"memory": 0, "delta": 0, "new": 0}
        self.vectors = DeletionVectors(memory)
        self._find_in_files = find_in_files
        self._shapes: dict[int, KeyShape] = {}
        self._unflushed = UnflushedKeys(memory, self._codes_of_entry)
        memory.on_evict = self._evicted

    def shape_of(self, version: int) -> KeyShape:
        """Return the key's shape under one schema version."""
        if version not in self._shapes:
            state = self.memory.state
            schema = pa.ipc.read_schema(pa.py_buffer(state.schemas[version]))
            self._shapes[version] = KeyShape(schema, state.spec.primary_key)
        return self._shapes[version]

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
            end = min(end, memory.state.durable)
            rows = 0
            while self.folded_to < end and (budget_rows is None or rows < budget_rows):
                before = self.folded_to
                keys, codes, folded_to = self._next_changes(end)
                if keys:
                    self._apply(keys, codes)
                self.folded_to = folded_to
                rows += folded_to - before

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
        """Return keys and codes of the changes among some records, without unmatched updates."""
        batch = chunk.batch.slice(start, count)
        offsets = np.arange(chunk.offset + start, chunk.offset + start + count, dtype=np.int64)
        codes = (offsets << CODE_SHIFT) | chunk.ops[start : start + count]
        if chunk.unmatched is not None:
            matched = ~chunk.unmatched[start : start + count]
            batch, codes = batch.filter(pa.array(matched)), codes[matched]
        return self.shape_of(chunk.version).keys(batch), codes.tolist()

    def _codes_of_entry(
        self, entry: TailEntry, start: int, stop: int
    ) -> tuple[list[Key], list[int]]:
        """Return the same of records of the tail; decodes an entry without validated records."""
        if entry.records is None:
            return self._codes_of(chunk_of_entry(self.memory.state, entry), start, stop - start)
        row_key = self.shape_of(entry.version).row_key
        keys: list[Key] = []
        codes: list[int] = []
        for offset, record in enumerate(entry.records[start:stop], entry.offset + start):
            if type(record) is tuple:
                keys.append(row_key(record[0]))
                codes.append(offset << CODE_SHIFT | OP_UPSERT)
            elif record.present is None:
                keys.append(record.key)
                codes.append(offset << CODE_SHIFT | record.op)
        return keys, codes

    def _apply(self, keys: list[Key], codes: list[int]) -> None:
        """Fold changes: each supersedes the newest earlier change of its key."""
        index = self.index
        below = {} if self.complete else self._codes_below(keys)
        ample = not index.tight(len(keys)) and len(set(keys)) == len(keys)
        fold = self._apply_at_once if ample else self._apply_in_order
        fresh, old = fold(keys, codes, below)
        index.added(fresh)
        self._supersede(old, codes)
        if index.over:
            # Before keys are evicted: a lock-free look-up that misses one must search for it.
            self.complete = False
            index.shrink()

    def _codes_below(self, keys: list[Key]) -> dict[Key, int]:
        """Return the newest codes of keys that the index lacks, from the tiers below."""
        known = self.index.codes
        missing = list(dict.fromkeys([key for key in keys if key not in known]))
        found = self._find_many(missing, before=self.folded_to) if missing else {}
        return {key: one.offset << CODE_SHIFT | one.op for key, one in found.items()}

    def _apply_at_once(
        self, keys: list[Key], codes: list[int], below: dict[Key, int]
    ) -> tuple[list[Key], list[int]]:
        """Fold different keys, each in its old position in the order of writes: it is cheaper."""
        known = self.index.codes
        old = list(map(known.get, keys, repeat(_ABSENT)))
        fresh = [key for key, code in zip(keys, old, strict=True) if code == _ABSENT]
        if below:
            old = [below.get(key, code) for key, code in zip(keys, old, strict=True)]
        known.update(zip(keys, codes, strict=True))
        return fresh, old

    def _apply_in_order(
        self, keys: list[Key], codes: list[int], below: dict[Key, int]
    ) -> tuple[list[Key], list[int]]:
        """Fold one by one, each key to the end of the index; return new keys, superseded codes."""
        known = self.index.codes
        fresh: list[Key] = []
        old: list[int] = []
        self.index.moves += 1
        for key, code in zip(keys, codes, strict=True):
            before = known.pop(key, None)
            if before is None:
                before = below.get(key, _ABSENT)
                fresh.append(key)
            old.append(before)
            known[key] = code
        self.index.moves += 1
        return fresh, old

    def _supersede(self, old: list[int], codes: list[int]) -> None:
        """Mark the rows that changes supersede, and count the changes by the tier of those."""
        before, changes = np.array(old, np.int64), np.array(codes, np.int64)
        alive = (before & OP_MASK) != OP_DELETE
        offsets, changes = before[alive] >> CODE_SHIFT, changes[alive] >> CODE_SHIFT
        in_files = int((offsets < self.flushed).sum())
        self.routes["delta"] += in_files
        self.routes["memory"] += len(offsets) - in_files
        self.routes["new"] += len(codes) - len(offsets)
        self.vectors.mark(offsets, changes)

    def _evicted(self, chunks: Sequence[Chunk]) -> None:
        self.fold(chunks[-1].end)
        self.vectors.evicted(chunks)

    # -- look-ups ----------------------------------------------------------------------------------

    def newest(self, key: Key, before: int | None = None) -> Found | None:
        """Return the newest change of a key, of those below `before` and folded."""
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
        if code is None and complete:
            return None
        if code is not None and code >> CODE_SHIFT < before:
            return Found(code >> CODE_SHIFT, code & OP_MASK)
        return self._find_many([key], before=before).get(key)

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
                return True, Found(code >> CODE_SHIFT, code & OP_MASK)
        return True, self.newest(key, end)

    def image_at(self, offset: int) -> Image | None:
        """Return the row at an offset, None if memory does not hold it."""
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
        return Image(offset, chunk.time_at(row), chunk.version, chunk.row(row))

    def _tail_image(self, offset: int) -> Image | None:
        """Return the row at an offset if the tail has it; works on a copy, without the lock."""
        tail = self.memory.tail.copy()
        number = bisect_right(tail, offset, key=entry_offset) - 1
        entry = tail[number] if number >= 0 else None
        if entry is None or entry.records is None or offset >= entry.offset + entry.count:
            return None
        record = entry.records[offset - entry.offset]
        values = record[0] if type(record) is tuple else record.values
        return Image(offset, entry.time_us, entry.version, values)

    # -- search: chunks by hash, then files --------------------------------------------------------

    def _find_many(self, keys: Sequence[Key], *, before: int) -> dict[Key, Found]:
        """Return the newest change below an offset of each key that has one; all are folded."""
        memory = self.memory
        memory.settle(before)
        # The search may build key maps of chunks.
        memory.recount()
        # The chunks are read first: one that is evicted in between is then found in both tiers.
        chunks, start = memory.chunks, memory.start
        found: dict[Key, Found] = {}
        left = list(keys)
        if before > start:
            hashes = self.shape.hashes_of(left)
            for chunk in reversed(chunks):
                if chunk.offset < before and left:
                    fresh = self._find_in_chunk(chunk, left, hashes, before)
                    if fresh:
                        found.update(fresh)
                        kept = [number for number, key in enumerate(left) if key not in fresh]
                        left, hashes = [left[number] for number in kept], hashes[kept]
        if left and min(before, start) > 0:
            found.update(self._find_in_files(left, self.shape, min(before, start)))
        return found

    def _find_in_chunk(
        self, chunk: Chunk, keys: list[Key], hashes: Hashes, before: int
    ) -> dict[Key, Found]:
        shape = self.shape_of(chunk.version)
        queries, rows = chunk.key_map(shape).find_many(hashes)
        inside = rows < before - chunk.offset
        if chunk.unmatched is not None:
            inside &= ~chunk.unmatched[rows]
        queries, rows = queries[inside], rows[inside]
        if not len(rows):
            return {}
        real = shape.keys(chunk.batch.select(list(shape.names)).take(pa.array(rows)))
        ops = chunk.ops[rows].tolist()
        found: dict[Key, Found] = {}
        # Rows of one key come in ascending order: the last one stays.
        for query, row, other, op in zip(queries.tolist(), rows.tolist(), real, ops, strict=True):
            if other == keys[query]:
                found[other] = Found(chunk.offset + row, op)
        return found

    # -- rows in files -----------------------------------------------------------------------------

    def rebuild_disk_dead(self, rows: Callable[[], Iterable[KeyRows]], *, count: int) -> None:
        """Compute the deletion vector of all rows in files, and index their newest changes.

        Each call of `rows` gives every one of the `count` rows in files, in any order: `fold_rows`
        goes over them several times, which bounds memory.
        """
        shape = self.shape
        fits = True
        for folded in fold_rows(rows, shape, count=count, below=self.memory.start):
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
        """Note that everything below an offset is in files."""
        self.flushed = max(self.flushed, to)
