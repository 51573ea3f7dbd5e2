"""What a keyed topic's state must be, by the rules alone, and files that are plain lists."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from frazil.log import Batch
from frazil.model import OP_DELETE, OP_UPDATE
from frazil.tiers.chunk import batch_with_system
from frazil.tiers.keys.deletion_vectors import KeyRows
from frazil.tiers.keys.fold import Found, KeyedState
from frazil.tiers.memory import TopicMemory
from tests.unit.tiers.memory_topic import TableTopic


class Model:
    """All changes in offset order; each is (offset, key, op, named columns, partial)."""

    def __init__(self):
        self.changes = []

    def add(self, offset, key, op, columns, *, partial=False):
        self.changes.append((offset, key, op, columns, partial))

    def states(self, end):
        """Return {key: (offset of the newest change, row)} of the changes below `end`."""
        state = {}
        for offset, key, op, columns, partial in self.changes:
            if offset >= end:
                break
            if op == OP_DELETE:
                state.pop(key, None)
            elif not partial:
                state[key] = (offset, {"id": key, "a": None, "b": None} | columns)
            elif key in state:
                state[key] = (offset, state[key][1] | columns)
            elif op != OP_UPDATE:
                state[key] = (offset, {"id": key, "a": None, "b": None} | columns)
        return state

    def newest(self, key, before):
        """Return (offset, op) of the key's newest change that did something."""
        found, there = None, False
        for offset, other, op, _, partial in self.changes:
            if offset >= before:
                break
            if other == key and not (partial and op == OP_UPDATE and not there):
                found, there = (offset, op), op != OP_DELETE
        return found


class Files:
    """What was evicted from memory: one batch after another, as files would hold them."""

    def __init__(self):
        self.batches = []
        self.asked = 0

    def add(self, state, chunk):
        self.batches.append(batch_with_system(chunk, state.image(chunk)))

    def rows(self):
        for batch in self.batches:
            yield from batch.to_pylist()

    def find_many(self, keys, before):
        self.asked += len(keys)
        wanted, found = set(keys), {}
        for row in self.rows():
            if row["_offset"] < before and row["id"] in wanted:
                found[row["id"]] = Found(row["_offset"], row["_op"])
        return found

    def images(self, offsets):
        assert (np.diff(offsets) > 0).all()
        table = pa.Table.from_batches(self.batches).combine_chunks()
        places = {offset: row for row, offset in enumerate(table["_offset"].to_pylist())}
        taken = table.take([places[offset] for offset in offsets.tolist()])
        return taken.drop_columns(["_offset", "_time", "_op", "_present"]).to_batches()[0]

    def key_rows(self):
        """Return the rows as a rebuild reads them."""
        for batch in self.batches:
            yield KeyRows(
                batch.column("_offset").to_numpy(),
                batch.select(["id"]),
                batch.column("_op").to_numpy(),
                batch.column("_present").is_valid().to_numpy(zero_copy_only=False),
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
        return KeyedState(memory, self.files, index_bytes_max=lambda: self.index_bytes)

    @property
    def end(self):
        return self.topic.state.visible

    def upsert_rows(self, rows):
        """Publish whole rows as (key, a, b)."""
        dicts = [{"id": key, "a": a, "b": b} for key, a, b in rows]
        first = self.topic.rows(dicts)
        for number, row in enumerate(dicts):
            self.model.add(first + number, row["id"], 3, row)

    def change(self, changes):
        """Publish (op, key, named columns) as one frame; a partial one names part of a and b."""

        def make(codec):
            made = []
            for op, key, columns in changes:
                if op == OP_DELETE:
                    made.append(codec.prepare_delete(key))
                elif len(columns) == 2:
                    made.append(codec.prepare(op, key, {"id": key} | columns))
                    if op == OP_UPDATE:
                        made[-1] = codec.whole((key, columns["a"], columns["b"]), op)
                else:
                    made.append(codec.with_op(codec.prepare_update(key, columns), op))
            return made

        first = self.topic.changes(make)
        for number, (op, key, columns) in enumerate(changes):
            partial = op != OP_DELETE and len(columns) < 2
            self.model.add(first + number, key, op, columns, partial=partial)

    def flush(self, below):
        """Evict what lies below an offset, having written it to files."""
        memory = self.topic.memory
        self.state.fold(below)
        memory.settle(below)
        for chunk in memory.chunks:
            if chunk.end <= below:
                self.files.add(self.state, chunk)
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
        self.state.rebuild_disk_dead(self.files.key_rows)

    def visible(self, end):
        """Return {key: (offset, row)} as a query at snapshot `end` would see it."""
        memory, state = self.topic.memory, self.state
        with memory.lock:
            state.fold(end)
            chunks, cut = memory.snapshot(end), memory.start
        rows = []
        for chunk in chunks:
            live = chunk.live(end)
            image = batch_with_system(chunk, state.image(chunk))
            rows += (image if live is None else image.filter(pa.array(live))).to_pylist()
        dead = set(state.disk_dead(end, cut).tolist())
        rows += [
            row
            for row in self.files.rows()
            if row["_offset"] < min(cut, end)
            and row["_op"] != OP_DELETE
            and row["_offset"] not in dead
        ]
        assert len({row["id"] for row in rows}) == len(rows)
        return {
            row["id"]: (row["_offset"], {name: row[name] for name in ("id", "a", "b")})
            for row in rows
        }
