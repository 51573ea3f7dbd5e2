"""What was written becomes chunks in one go: joined across kinds of frames, and copied once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import CorruptionError
from frazil.log import KIND_ROWS, Payload
from frazil.tiers import memory as memory_module
from frazil.tiers.chunk import first_chunk
from tests.unit.tiers.memory_topic import TableTopic


def topic_of(*frames):
    """Return a topic with frames of so many rows each: packed, or as Arrow where negative."""
    topic = TableTopic({"a": "long"}, key=())
    for count in frames:
        first = topic.state.next
        values = list(range(first, first + abs(count)))
        topic.time_us += 1
        if count > 0:
            topic.rows([{"a": value} for value in values])
        else:
            topic.arrow(pa.record_batch([pa.array(values)], schema=topic.codec.schema))
    return topic


def first(topic, **limits):
    given = {"end": topic.state.durable, "rows_max": 1000, "bytes_max": 1 << 20, **limits}
    return first_chunk(topic.state, topic.memory.tail, **given)


def test_frames_of_both_kinds_become_one_chunk():
    """Packed rows and Arrow batches lie in one chunk, in order, each with its own time."""
    topic = topic_of(1, 2, -40, 1, -3, -3)
    chunk, entries = first(topic)
    assert entries == 6
    assert (chunk.offset, chunk.batch.column("a").to_pylist()) == (0, list(range(50)))
    assert [count for count, _us in chunk.times] == [1, 2, 40, 1, 3, 3]


def test_a_chunk_ends_at_its_limits_at_a_gap_and_below_the_end():
    """More rows or bytes than allowed, a gap, or what is not visible begin no part of it."""
    topic = topic_of(-40, -40, -40)
    assert first(topic, rows_max=80)[1] == 2
    assert first(topic, rows_max=1)[1] == 1
    assert first(topic, bytes_max=topic.memory.tail[0].size)[1] == 1
    assert first(topic, end=41)[1] == 2
    gapped = topic_of(-40)
    gapped.skip(1)
    gapped.arrow(pa.record_batch([pa.array([41])], schema=gapped.codec.schema))
    assert first(gapped)[1] == 1


def test_what_lies_before_damage_is_a_chunk():
    """Damage is an error when it comes first; the records before it are given first."""
    topic = topic_of(-40, -40)
    topic.write(Payload(KIND_ROWS, 0, b"\xc1junk", 5), 1, version=1)
    chunk, entries = first(topic)
    assert (chunk.count, entries) == (80, 2)
    del topic.memory.tail[:2]
    with pytest.raises(CorruptionError, match="offset_first=80"):
        first(topic)


def test_settling_copies_a_row_once(monkeypatch):
    """A long tail is joined by one copy of each of its rows."""
    copied = []
    whole = pa.concat_batches

    def concat(batches):
        copied.append(sum(batch.num_rows for batch in batches))
        return whole(batches)

    monkeypatch.setattr(pa, "concat_batches", concat)
    topic = topic_of(*[-40] * 50)
    topic.memory.settle(topic.state.durable)
    assert copied == [2000]
    assert [chunk.count for chunk in topic.memory.chunks] == [2000]


def test_a_tail_is_folded_when_it_is_long_old_or_read(monkeypatch):
    """The background leaves a short, young tail alone, unless queries come often."""
    topic = topic_of(-40)
    memory = topic.memory
    assert not topic_of().memory.is_foldable()
    assert memory.is_foldable()
    memory.tail[0].time_us = memory.clock.now_us() + 3600 * 1_000_000
    assert not memory.is_foldable()
    monkeypatch.setattr(memory_module, "FOLD_ROWS", 40)
    assert memory.is_foldable()
    monkeypatch.setattr(memory_module, "FOLD_ROWS", 41)
    assert not memory.is_foldable()
    memory.note_read()
    assert memory.is_foldable()
