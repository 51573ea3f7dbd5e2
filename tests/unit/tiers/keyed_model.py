"""What a keyed topic's state must be, by the rules alone, and files that are plain lists."""

from __future__ import annotations

import pyarrow as pa

from frazil.log import Batch
from frazil.model import OP_DELETE
from frazil.tiers.chunk import batch_with_system
from frazil.tiers.keys.deletion_vectors import KeyRows
from frazil.tiers.keys.fold import KeyedState
from frazil.tiers.keys.index import Found
from frazil.tiers.memory import TopicMemory
from tests.unit.tiers.memory_topic import TableTopic


class Model:
    """All changes in offset order; each is (offset, key, op, row), without unmatched updates."""

    def __init__(self):
        self.changes = []

    def add(self, offset, key, op, row):
        self.changes.append((offset, key, op, row))

    def states(self, end):
        """Return {key: (offset of the newest change, row)} of the changes below `end`."""
        state = {}
        for offset, key, op, row in self.changes:
            if offset >= end:
                break
            if op == OP_DELETE:
                state.pop(key, None)
            else:
                state[key] = (offset, row)
        return state

    def newest(self, key, before):
        """Return (offset, op) of the key's newest change."""
        found = None
        for offset, other, op, _ in self.changes:
            if offset >= before:
                break
            if other == key:
                found = (offset, op)
        return found


class Files:
    """What was evicted from memory: one batch after another, as files would hold them."""

    def __init__(self):
        self.batches = []
        self.asked = 0

    def add(self, chunk):
        self.batches.append(batch_with_system(chunk))

    def rows(self):
        for batch in self.batches:
            yield from batch.to_pylist()

    def find_many(self, keys, shape, before):
        del shape
        self.asked += len(keys)
        wanted, found = set(keys), {}
        for row in self.rows():
            if row["_offset"] < before and row["id"] in wanted and row["_present"] is None:
                found[row["id"]] = Found(row["_offset"], row["_op"])
        return found

    def key_rows(self):
        """Return the rows as a rebuild reads them."""
        for each in self.batches:
            batch = each.filter(each.column("_present").is_null())
            yield KeyRows(
                batch.column("_offset").to_numpy(),
                batch.select(["id"]),
                batch.column("_op").to_numpy(),
            )


class KeyedTopic:
    """A keyed topic, its fold, its files, and the model that they are compared with."""

    def __init__(self, *, index_bytes=1 << 30, merge_rows=16, arrow_min=4):
        self.topic = TableTopic(merge_rows=merge_rows, arrow_min=arrow_min)
        self.index_bytes = index_bytes
        self.files = Files()
        self.model = Model()
        self.state = self._fold_of(self.topic.memory)

    def _fold_of(self, memory):
        return KeyedState(memory, self.files.find_many, index_bytes_max=lambda: self.index_bytes)

    @property
    def end(self):
        return self.topic.state.durable

    def upsert_rows(self, rows):
        """Publish whole rows as (key, a, b)."""
        dicts = [{"id": key, "a": a, "b": b} for key, a, b in rows]
        first = self.topic.rows(dicts)
        for number, row in enumerate(dicts):
            self.model.add(first + number, row["id"], 3, row)

    def change(self, changes):
        """Publish (op, key, named columns) as one frame, completed as the sequencer does it."""
        codec = self.topic.codec.columns.keyed.changes
        first = self.topic.state.next
        made = []
        for number, (op, key, columns) in enumerate(changes):
            offset = first + number
            known = self.model.states(offset).get(key)
            if op == OP_DELETE:
                made.append(codec.prepare_delete(key))
                self.model.add(offset, key, op, None)
            elif len(columns) < 2 and known is None:
                # An unmatched update, which changes nothing.
                made.append(codec.prepare_update(key, columns))
            else:
                row = {"id": key, **({} if known is None else known[1]), **columns}
                made.append(codec.whole((key, row["a"], row["b"]), op))
                self.model.add(offset, key, op, row)
        self.topic.changes(lambda _codec: made)

    def flush(self, below):
        """Evict what lies below an offset, having written it to files."""
        memory = self.topic.memory
        self.state.fold(below)
        memory.settle(below)
        for chunk in memory.chunks:
            if chunk.end <= below:
                self.files.add(chunk)
        memory.evict(below)
        self.state.on_flushed(memory.start)

    def row(self, key, before=None):
        """Return the newest image of a key; a `Found` if only files have it, None if it is absent."""
        found = self.state.newest(key, before)
        if found is None or found.op == OP_DELETE:
            return None
        return self.state.image_at(found.offset) or found

    def restart(self):
        """Lose memory; load what is not in files, and compute the deletion vector of files."""
        old = self.topic.memory
        start = old.start
        batches = [
            Batch(chunk.batch, offset=chunk.offset, times=chunk.times)
            for chunk in old.snapshot(self.end)
        ]
        memory = TopicMemory(old.state, clock=old.clock, merge_rows=old.merge_rows)
        memory.load(batches, start=start)
        self.topic.memory = memory
        self.state = self._fold_of(memory)
        self.state.on_flushed(start)
        self.state.rebuild_disk_dead(self.files.key_rows, count=sum(1 for _ in self.files.rows()))

    def visible(self, end):
        """Return {key: (offset, row)} as a query at snapshot `end` would see it."""
        memory, state = self.topic.memory, self.state
        with memory.lock:
            state.fold(end)
            chunks, cut = memory.snapshot(end), memory.start
        rows = []
        for chunk in chunks:
            live = chunk.live(end)
            batch = batch_with_system(chunk)
            rows += (batch if live is None else batch.filter(pa.array(live))).to_pylist()
        dead = set(state.vectors.below(cut=cut, end=end).tolist())
        rows += [
            row
            for row in self.files.rows()
            if row["_offset"] < min(cut, end)
            and row["_op"] != OP_DELETE
            and row["_present"] is None
            and row["_offset"] not in dead
        ]
        assert len({row["id"] for row in rows}) == len(rows)
        return {
            row["id"]: (row["_offset"], {name: row[name] for name in ("id", "a", "b")})
            for row in rows
        }
