"""The memory tier gives back what was written: whole, in order, and no more than is visible."""

from __future__ import annotations

import os

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.tiers import memory as memory_module
from tests.unit.tiers.memory_topic import TableTopic

PLAIN = {"a": "long"}
SINGLE_APPENDS = 1_000_000 if os.environ.get("FRAZIL_TEST_EXHAUSTIVE") else 20_000


def plain_topic(**options):
    return TableTopic(PLAIN, key=(), **options)


def write(topic, count):
    """Write rows whose value is their offset as one frame."""
    first = topic.state.next
    topic.rows([{"a": first + number} for number in range(count)])


def offsets_and_values(chunks):
    found = []
    for chunk in chunks:
        values = chunk.batch.column("a").to_pylist()
        found += list(zip(range(chunk.offset, chunk.end), values, strict=True))
    return found


def test_nothing_beyond_visible_is_seen():
    """Records that are written but not yet visible are in no snapshot; then they are."""
    topic = plain_topic()
    write(topic, 2)
    topic.rows([{"a": 2}], visible=False)
    assert offsets_and_values(topic.memory.snapshot(99)) == [(0, 0), (1, 1)]
    assert len(topic.memory.tail) == 1
    topic.state.durable = 3
    assert offsets_and_values(topic.memory.snapshot(3)) == [(0, 0), (1, 1), (2, 2)]
    assert topic.memory.tail == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 9)),
        st.tuples(st.just("gap"), st.integers(1, 3)),
        st.tuples(st.just("settle"), st.integers(1, 9)),
        st.tuples(st.just("merge"), st.none()),
        st.tuples(st.just("evict"), st.floats(0, 1)),
        st.tuples(st.just("look"), st.floats(0, 1)),
    ),
    min_size=3,
    max_size=30,
)


@settings(max_examples=100, deadline=None)
@given(steps)
def test_chunks_and_tail_are_what_was_written_less_what_was_evicted(actions):
    """However it is settled, joined and evicted, [start, end) is exactly what was written."""
    topic = plain_topic(merge_rows=24, arrow_min=4)
    memory, written = topic.memory, []
    for name, argument in actions:
        if name == "write":
            first = topic.state.next
            write(topic, argument)
            written += range(first, first + argument)
        elif name == "gap":
            topic.skip(argument)
        elif name == "settle":
            memory.settle(topic.state.durable, budget_rows=argument)
        elif name == "merge":
            memory.merge_small()
        elif name == "evict":
            below = int(argument * topic.state.durable)
            start, size, settled = memory.start, memory.bytes, not memory.tail
            freed = memory.evict(below)
            assert start <= memory.start <= max(start, below)
            # What is decoded on the way counts with its size in memory, not that of its frame.
            assert memory.bytes == size - freed or not settled
            written = [offset for offset in written if offset >= memory.start]
        else:
            end = int(argument * topic.state.durable)
            expected = [(offset, offset) for offset in written if offset < end]
            assert offsets_and_values(memory.snapshot(end)) == expected
    expected = [(offset, offset) for offset in written]
    assert offsets_and_values(memory.snapshot(topic.state.durable)) == expected
    assert all(chunk.count <= 24 or chunk.count <= 9 for chunk in memory.chunks)
    for offset in written:
        chunk = memory.chunk_at(offset)
        assert chunk.batch.column("a")[offset - chunk.offset].as_py() == offset
    assert memory.bytes == sum(chunk.nbytes for chunk in memory.chunks)


def test_many_single_appends_end_in_few_chunks():
    """Frames of one record are chunks of at least 4,096 each, and a handful of smaller ones."""
    topic = plain_topic(merge_rows=8192)
    for _ in range(SINGLE_APPENDS // 100):
        for _ in range(100):
            write(topic, 1)
        topic.memory.settle(topic.state.durable)
        topic.memory.merge_small()
    while topic.memory.merge_small():
        pass
    assert len(topic.memory.chunks) <= SINGLE_APPENDS // 4096 + 4
    assert offsets_and_values(topic.memory.chunks) == [(n, n) for n in range(SINGLE_APPENDS)]


def test_an_arrow_frame_is_not_copied():
    """The chunk of a large Arrow frame uses the payload's own memory."""
    topic = plain_topic()
    batch = pa.record_batch([list(range(20_000))], schema=topic.codec.schema)
    topic.arrow(batch)
    data = topic.memory.tail[0].data
    chunk = topic.memory.snapshot(20_000)[0]
    address = chunk.batch.column("a").buffers()[1].address
    assert data.address <= address < data.address + data.size
    assert chunk.nbytes >= data.size


def test_unflushed_counts_what_lies_behind_an_offset():
    """Bytes, records, changes and the oldest time are those of the part that is not flushed."""
    topic = TableTopic()
    memory = topic.memory
    assert memory.unflushed(0) == (0, 0, 0, None)
    topic.rows([{"id": "x", "a": 1}] * 5)
    topic.time_us = 5_000_000
    topic.changes(lambda codec: [codec.prepare_delete("x"), codec.prepare_delete("y")])
    before = memory.unflushed(0)
    assert before[1:] == (7, 2, 1_000_000)
    assert before.bytes == memory.bytes > 0
    memory.settle(5)
    assert memory.unflushed(0)[1:] == (7, 2, 1_000_000)
    memory.settle(7)
    assert memory.unflushed(0)[1:] == (7, 2, 1_000_000)
    assert memory.unflushed(0).bytes == memory.bytes
    assert memory.unflushed(5)[1:] == (2, 2, 5_000_000)
    assert memory.unflushed(6)[1:3] == (1, 1)
    assert memory.unflushed(2)[1:3] == (5, 2)
    assert memory.unflushed(7) == (0, 0, 0, None)


def test_joining_what_is_evicted_meanwhile_brings_nothing_back(monkeypatch):
    """A join whose chunks are gone when it is done is thrown away."""
    topic = plain_topic(merge_rows=64)
    monkeypatch.setattr(memory_module, "JOIN_AT_ONCE_ROWS", 1)
    for _ in range(4):
        write(topic, 3)
        topic.memory.settle(topic.state.durable)
    real = memory_module.join_chunks

    def slow_join(chunks):
        topic.memory.evict(6)
        return real(chunks)

    monkeypatch.setattr(memory_module, "join_chunks", slow_join)
    assert topic.memory.merge_small()
    assert offsets_and_values(topic.memory.chunks) == [(n, n) for n in range(6, 12)]
