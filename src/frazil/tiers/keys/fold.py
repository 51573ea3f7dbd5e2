"""The state of a keyed topic: its changes folded in offset order, wherever they lie.

Folding says for each change which row it supersedes, and remembers each key's newest change in an
index of bounded size. A key that the index has forgotten is looked for in the chunks of the memory
tier by hash, then below it; so a miss means "look below", never "absent", unless the index is
`complete`.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from frazil.model import OP_DELETE, OP_UPDATE, OP_UPSERT
from frazil.schema import KeyShape
from frazil.tiers.keys.dead_marks import KeyRows, fold_rows
from frazil.tiers.keys.images import Images
from frazil.tiers.keys.key_filter import KeyFilter
from frazil.tiers.keys.key_index import CODE_SHIFT, OP_MASK, PARTIAL_BIT, KeyIndex
from frazil.tiers.keys.key_search import Below, Found, KeySearch, code_of
from frazil.tiers.keys.superseded import Superseded
from frazil.tiers.keys.tail_keys import UNKNOWN, TailKeys, add_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from frazil.log import TailEntry
    from frazil.schema import Key
    from frazil.tiers.chunk import Chunk
    from frazil.tiers.memory import TopicMemory

    Offsets = npt.NDArray[np.int64]

__all__ = ["Below", "Found", "Image", "KeyRows", "KeyedState"]

STEP_ROWS: Final = 8192
"""So many changes are folded at a time."""
_KIND_MASK: Final = PARTIAL_BIT | OP_MASK
_PARTIAL_UPDATE: Final = PARTIAL_BIT | OP_UPDATE
_ABSENT: Final = OP_DELETE
"""The code that stands for no change at all: a delete before the first offset."""

_chunk_offset = attrgetter("offset")
_entry_offset = itemgetter(0)


class Image(NamedTuple):
    """A change as memory holds it; `values` is None if it lies below, to be read there by offset.

    `values` are the whole row after the change, in the order of the columns of schema `version`.
    `present` is the bitmap of the columns that a partial change named.
    """

    offset: int
    op: int
    time_us: int = 0
    version: int = 0
    values: tuple[Any, ...] | None = None
    present: bytes | None = None


class KeyedState:
    """The fold of one keyed topic. `fold` and `newest` may be called from any thread.

    `complete` says that the index has every key: nothing was forgotten, and everything since the
    first offset was folded. `routes` counts changes by where the row they supersede lay: not yet
    flushed, in files, or nowhere.
    """

    def __init__(
        self,
        memory: TopicMemory,
        below: Below,
        *,
        index_bytes_max: Callable[[], int] | None = None,
    ) -> None:
        bytes_max = index_bytes_max or memory.index_bytes_max
        assert bytes_max is not None
        self.memory = memory
        self._filter: KeyFilter | None = None
        self._bytes_max = bytes_max
        self.index = KeyIndex(lambda: bytes_max() - self._filter_bytes)
        self.folded_to = -1
        self.complete = False
        self.flushed = 0
        self.floor = 0
        self.routes = {"memory": 0, "delta": 0, "new": 0}
        self._superseded = Superseded(memory)
        self._search = KeySearch(memory, below, self._superseded.files, self.shape_of)
        self._images = Images(memory, below)
        self._shapes: dict[int, KeyShape] = {}
        self._tail_keys = TailKeys(memory, self.shape_of, self._of_arrow)
        self._torn = False
        """A step is under way, or was left half-way, as by Ctrl-C in the thread that folded."""
        memory.on_settled = self._settled
        memory.on_evict = self._evicted

    # -- facts -------------------------------------------------------------------------------------

    @property
    def index_bytes(self) -> int:
        """Return the bytes of the index, and of the filter that stands beside it when it is full."""
        return self.index.bytes + self._filter_bytes

    @property
    def _filter_bytes(self) -> int:
        return 0 if self._filter is None else self._filter.nbytes

    @property
    def dead_bytes(self) -> int:
        """Return the bytes of the marks of rows in files."""
        return self._superseded.files.nbytes

    @property
    def index_keys(self) -> int:
        """Return how many keys the index has."""
        return len(self.index)

    @property
    def evictions(self) -> int:
        """Return how many keys the index had to forget."""
        return self.index.evictions

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
        """Fold everything below `end` that is visible and not folded yet, in offset order.

        With a budget, no more than about so many changes at least one at a time.
        """
        if 0 <= end <= self.folded_to and not self._torn:
            return
        memory = self.memory
        with memory.lock:
            self._begin()
            end = min(end, memory.state.visible)
            rows = 0
            while self.folded_to < end and (budget_rows is None or rows < budget_rows):
                keys, codes, folded_to = self._gather(end)
                if keys:
                    self._apply(keys, codes)
                # Nothing is called from here on, so that nothing comes between.
                self.folded_to = folded_to
                self._torn = False
                rows += len(keys)

    def _begin(self) -> None:
        if self._torn:
            self._fold_again()
        if self.folded_to < 0:
            self.folded_to = self.memory.start
            self.complete = self.complete or self.memory.start == 0

    def _fold_again(self) -> None:
        """Fold all that is in memory again: what supersedes what is marked as it was before."""
        index, end = self.index, self.folded_to
        index.moves += 1 - (index.moves & 1)
        self._filter = None
        index.forget_all()
        self.complete = self.memory.start == 0
        self.folded_to = self.memory.start
        self._torn = False
        index.moves += 1
        self.fold(end)

    def _settled(self) -> None:
        torn, self._torn = self._torn, True
        self._superseded.settled()
        self._torn = torn

    def _gather(self, end: int) -> tuple[list[Key], list[int], int]:
        """Return the next keys and codes to fold, and how far they go."""
        memory, first = self.memory, self.folded_to
        if first < memory.settled:
            number = bisect_right(memory.chunks, first, key=_chunk_offset) - 1
            chunk = memory.chunks[max(number, 0)]
            if chunk.end <= first:
                chunk = memory.chunks[number + 1]
            start = max(first, chunk.offset)
            stop = min(chunk.end, end, start + STEP_ROWS)
            if start >= stop:
                return [], [], end
            keys, codes = self._of_chunk(chunk, start - chunk.offset, stop - start)
            return keys, codes, stop
        return self._of_tail(first, end)

    def _of_chunk(self, chunk: Chunk, start: int, count: int) -> tuple[list[Key], list[int]]:
        keys = self.shape_of(chunk.version).keys(chunk.batch.slice(start, count))
        offsets = np.arange(chunk.offset + start, chunk.offset + start + count, dtype=np.int64)
        codes = (offsets << CODE_SHIFT) | chunk.ops[start : start + count]
        partial = chunk.partial
        if partial is not None:
            codes |= partial[start : start + count].astype(np.int64) * PARTIAL_BIT
        return keys, codes.tolist()

    def _of_arrow(self, entry: TailEntry) -> tuple[list[Key], list[int]]:
        chunk = self.memory.decoded(entry)
        return self._of_chunk(chunk, 0, chunk.count)

    def _of_tail(self, first: int, end: int) -> tuple[list[Key], list[int], int]:
        tail = self.memory.tail
        keys: list[Key] = []
        codes: list[int] = []
        number = max(bisect_right(tail, first, key=_entry_offset) - 1, 0)
        entries = tail[number : number + STEP_ROWS]
        whole = number + len(entries) == len(tail)
        for entry in entries:
            offset, records = entry[0], entry[9]
            if offset >= end:
                return keys, codes, end
            if records is None:
                if keys:
                    return keys, codes, offset
                # Only decoding tells its keys.
                self.memory.settle(offset + 1)
                return [], [], max(first, offset)
            if offset + entry[1] > end:
                records = records[: end - offset]
            if offset < first:
                records = records[first - offset :]
                offset = min(first, offset + entry[1])
            add_codes(records, offset, self.shape_of(entry[6]), keys, codes)
            first = max(first, offset + len(records))
            if len(keys) >= STEP_ROWS:
                return keys, codes, first
        # Behind the last entry there can only be a gap.
        return keys, codes, end if whole else first

    def _apply(self, keys: list[Key], codes: list[int]) -> None:
        """Fold changes: each supersedes what the index, or what lies below, has of its key."""
        index = self.index
        below = {} if self.complete else self._look_below(keys)
        self._torn = True
        newest = dict(zip(keys, codes, strict=True))
        if (
            len(newest) == len(keys)
            and not index.tight(len(keys))
            and not _has_partial_updates(codes)
        ):
            known = index.codes
            old = list(map(known.get, keys, repeat(_ABSENT)))
            fresh = [key for key, base in zip(keys, old, strict=True) if base == _ABSENT]
            fresh = [key for key in fresh if key not in known]
            if below:
                old = [below.get(key, base) for key, base in zip(keys, old, strict=True)]
            known.update(newest)
        else:
            fresh, old, codes = self._apply_in_order(keys, codes, below)
        index.added(fresh)
        if self.complete:
            self._fill_filter(fresh)
        self._supersede(old, codes)
        if index.over:
            # Whoever misses a key from now on must look below, also while they are forgotten.
            self.complete = False
            index.shrink()

    def _apply_in_order(
        self, keys: list[Key], codes: list[int], below: dict[Key, int]
    ) -> tuple[list[Key], list[int], list[int]]:
        """Fold one by one; return the new keys, and what each change that counts supersedes."""
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
                # It updates a key that is not there, and changes nothing.
                idle.append(code >> CODE_SHIFT)
                known[key] = base
                continue
            old.append(base)
            kept.append(code)
            known[key] = code
        self.index.moves += 1
        if idle:
            offsets = np.array(idle, np.int64)
            self._superseded.mark(offsets, offsets)
        return fresh, old, kept

    def _look_below(self, keys: list[Key]) -> dict[Key, int]:
        known = self.index.codes
        missing = list(dict.fromkeys([key for key in keys if key not in known]))
        found = self._find_below(missing) if missing else {}
        return {key: code_of(one) for key, one in found.items()}

    def _find_below(self, missing: list[Key]) -> dict[Key, Found]:
        known = self._filter
        if known is None:
            return self._search.find_many(missing, before=self.folded_to)
        hashes_of = self.shape.hashes_of
        hashes = hashes_of(missing)
        if known.ready:
            there = np.flatnonzero(known.maybe(hashes)).tolist()
            looked_for = [missing[number] for number in there]
        else:
            looked_for = missing
            known.seed(len(missing), hashes_of)
        known.add(hashes)
        return self._search.find_many(looked_for, before=self.folded_to) if looked_for else {}

    def _fill_filter(self, fresh: list[Key]) -> None:
        """Begin to remember which keys there were before the index must forget some of them."""
        known = self._filter
        if known is not None:
            known.add(self.shape.hashes_of(fresh))
        elif self.index.tight(len(fresh)):
            known = self._filter = KeyFilter.beside(self._bytes_max(), self.index.codes)
        if known is not None and not known.ready:
            known.seed(len(fresh), self.shape.hashes_of)

    def _never_was(self, key: Key) -> bool:
        """Tell whether no change of a key was ever folded; False if that is not known."""
        known = self._filter
        return known is not None and known.ready and not known.has(self.shape.hash_of(key))

    def _supersede(self, old: list[int], codes: list[int]) -> None:
        """Mark the rows that changes supersede, and count the changes by where those lay."""
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
            self._superseded.stand(changes[partial], offsets[partial])
        delta = int((offsets < self.flushed).sum()) if self.flushed else 0
        self.routes["delta"] += delta
        self.routes["memory"] += len(offsets) - delta
        self.routes["new"] += len(codes) - len(offsets)
        self._superseded.mark(offsets, changes)

    # -- lookups -----------------------------------------------------------------------------------

    def newest(self, key: Key, before: int | None = None) -> Found | None:
        """Return the newest change of a key that did something, of those below `before`.

        A key whose newest change is a delete is absent. What lies at or above the offset that
        everything is folded to is not seen.
        """
        # Before the index: what it has is then at least as new. Without the lock a fold under way
        # tells nothing, nor does a miss while keys are moved; and keys are forgotten only once the
        # index is no longer complete.
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
        elif code is None and self._never_was(key):
            return None
        else:
            found = self._search.find(key, before=before)
        return None if found is None or found.offset < self.floor else found

    def latest(self, key: Key, end: int) -> tuple[bool, Found | None]:
        """Return whether it is known without a fold, and the newest change of a key below `end`.

        All below `end` is visible; what of it is not folded yet is looked for in the tail's keys.
        """
        folded_to = self.folded_to
        if folded_to < end:
            if folded_to < 0:
                return False, None
            code = self._tail_keys.newest(key, folded_to=folded_to, end=end)
            if code == UNKNOWN:
                return False, None
            if code is not None:
                found = Found(code >> CODE_SHIFT, code & OP_MASK)
                return True, None if found.offset < self.floor else found
        return True, self.newest(key, end)

    def row(self, key: Key, before: int | None = None) -> Image | None:
        """Return the newest image of a key, None if it is absent.

        Its values are None if it lies below memory, where the caller reads it by its offset.
        """
        found = self.newest(key, before)
        if found is None or found.op == OP_DELETE:
            return None
        return self.image_at(found.offset) or Image(found.offset, found.op)

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
        """Return the row at an offset if the tail has it whole; without the lock, in a copy."""
        tail = self.memory.tail.copy()
        number = bisect_right(tail, offset, key=_entry_offset) - 1
        entry = tail[number] if number >= 0 else None
        if entry is None or entry.records is None or offset >= entry.offset + entry.count:
            return None
        image = _entry_image(entry, offset)
        return image if image.present is None else None

    def image(self, chunk: Chunk) -> pa.RecordBatch:
        """Return the topic's columns as they are after each change of a chunk that is folded."""
        return self._images.of(chunk)

    # -- rows in files -----------------------------------------------------------------------------

    def _evicted(self, chunks: Sequence[Chunk]) -> None:
        self.fold(chunks[-1].end)
        self._superseded.evicted(chunks)

    def disk_dead(self, end: int, cut: int) -> Offsets:
        """Return the rows below `cut` that changes below `end` supersede, in order.

        Everything below `end` is to be folded before. The array is never written to again.
        """
        with self.memory.lock:
            return self._superseded.below(cut=cut, end=end)

    def deltas_between(self, first: int, end: int) -> Offsets:
        """Return the changes of `[first, end)` that supersede a row below `first`, in order."""
        with self.memory.lock:
            self.fold(end)
            return self._superseded.superseding(first=first, end=end)

    def load_disk_dead(self, offsets: Offsets, by: Offsets) -> None:
        """Take marks back that were exported before a restart."""
        with self.memory.lock:
            self._superseded.files.add(offsets.astype(np.int64), by.astype(np.int64))

    def export_disk_dead(self) -> tuple[Offsets, Offsets]:
        """Return the marks of rows in files alone: their offsets in order, and the changes'."""
        with self.memory.lock:
            return self._superseded.files.export()

    def rebuild_disk_dead(self, rows: Callable[[], Iterable[KeyRows]]) -> None:
        """Compute the marks of all rows in files anew, and fill the index with their newest changes.

        `rows` gives every row that lies in files, in any order, each time it is called: memory is
        bounded by going over them several times, each time for a share of the keys.
        """
        shape = self.shape
        fits = True
        known = KeyFilter.beside(self._bytes_max())
        for folded in fold_rows(rows, shape, below=self.memory.start):
            codes = (folded.newest << CODE_SHIFT) | folded.newest_ops
            keys = shape.keys(folded.newest_keys)
            if known is not None:
                known.add(shape.hashes(folded.newest_keys))
            with self.memory.lock:
                self._superseded.files.add(folded.offsets, folded.by)
                fits = fits and self._fill(keys, codes.tolist())
        with self.memory.lock:
            # Every row that lies in files, and everything since that was folded, is every key.
            self.complete = self.complete or (fits and not self.evictions)
            if not self.complete and self.folded_to <= self.memory.start:
                # What is folded from now on is taken in, too.
                self._filter = known

    def _fill(self, keys: list[Key], codes: list[int]) -> bool:
        """Add older changes to the index while there is room; tell whether all of them fit."""
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
        """Take note that everything below an offset lies in files."""
        self.flushed = max(self.flushed, to)

    def expire(self, below: int) -> None:
        """Forget what lies below an offset: it is no longer held anywhere."""
        with self.memory.lock:
            self.floor = max(self.floor, below)
            self._superseded.files.forget(below)


def _has_partial_updates(codes: list[int]) -> bool:
    kinds = np.array(codes, np.int64) & _KIND_MASK
    return bool((kinds == _PARTIAL_UPDATE).any())


def _entry_image(entry: TailEntry, offset: int) -> Image:
    assert entry.records is not None
    record = entry.records[offset - entry.offset]
    if type(record) is tuple:
        return Image(offset, OP_UPSERT, entry.time_us, entry.version, record[0])
    values, present = record.values, record.present
    return Image(offset, record.op, entry.time_us, entry.version, values, present)
