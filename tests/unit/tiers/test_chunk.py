"""Chunks: times, marks, values and the form that files have."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.log import Batch
from frazil.model import OP_DELETE, OP_UPDATE, OP_UPSERT
from frazil.schema import KeyShape
from frazil.tiers.chunk import (
    ALIVE,
    batch_with_system,
    chunk_of,
    chunk_of_history,
    join_chunks,
)

FIELDS = [
    pa.field("id", pa.int64(), nullable=False, metadata={"frazil.id": "1"}),
    pa.field("v", pa.string(), metadata={"frazil.id": "2"}),
]
SYSTEM = [pa.field("_op", pa.int8(), nullable=False), pa.field("_present", pa.binary())]


def plain(ids, *, offset=0, times=None, version=1):
    """A chunk of a topic without a key."""
    batch = pa.record_batch([ids, [f"v{i}" for i in ids]], schema=pa.schema(FIELDS))
    runs = times or [(len(ids), 7)]
    return chunk_of(batch, offset=offset, version=version, times=runs, nbytes=0)


def keyed(ids, ops=None, present=None, *, offset=0, times=None, version=1):
    """A chunk of a keyed topic."""
    count = len(ids)
    columns = [ids, [f"v{i}" for i in ids], ops or [OP_UPSERT] * count, present or [None] * count]
    batch = pa.record_batch(columns, schema=pa.schema(FIELDS + SYSTEM))
    runs = times or [(count, 7)]
    return chunk_of(batch, offset=offset, version=version, times=runs, nbytes=0)


run_lists = st.lists(st.tuples(st.integers(1, 4), st.integers(5, 7)), min_size=1, max_size=8)


@given(run_lists, st.data())
def test_a_slice_keeps_each_record_s_time(runs, data):
    """Times by run, by row, and of any slice are those that the frames had."""
    flat = [us for count, us in runs for _ in range(count)]
    chunk = plain(list(range(len(flat))), offset=50, times=runs)
    stamps = chunk.time_array().cast(pa.int64()).to_pylist()
    assert stamps == flat
    assert [chunk.time_at(row) for row in range(len(flat))] == flat
    assert chunk.time_bounds == (min(flat), max(flat))
    assert all(one[1] != other[1] for one, other in zip(chunk.times, chunk.times[1:], strict=False))
    start = data.draw(st.integers(0, len(flat) - 1))
    count = data.draw(st.integers(1, len(flat) - start))
    part = chunk.slice(start, count)
    assert part.time_array().cast(pa.int64()).to_pylist() == flat[start : start + count]
    assert (part.offset, part.count) == (50 + start, count)
    assert part.batch.column("id").to_pylist() == list(range(start, start + count))


def test_a_row_lives_until_the_offset_of_its_mark():
    """A snapshot at the mark still sees the row; one behind it does not; deletes never show."""
    chunk = keyed([1, 2, 3], [OP_UPSERT, OP_DELETE, OP_UPDATE], offset=10)
    assert chunk.live(13).tolist() == [True, False, True]
    chunk.mark([0], [20])
    assert chunk.live(20).tolist() == [True, False, True]
    assert chunk.live(21).tolist() == [False, False, True]
    assert chunk.live(11).tolist() == [True, False, False]
    assert keyed([1, 2]).live(2) is None


def test_joined_chunks_have_all_rows_marks_and_times():
    """Joining copies the rows and carries marks over, of chunks with and without."""
    one, other = keyed([1, 2], offset=4), keyed([3], [OP_UPDATE], offset=6)
    one.mark([1], [30])
    joined = join_chunks([one, other])
    assert joined.batch.column("id").to_pylist() == [1, 2, 3]
    assert joined.dead.tolist() == [ALIVE, 30, ALIVE]
    assert joined.times == ((3, 7),)
    one.mark([0], [31])
    joined.take_dead([one, other])
    assert joined.dead.tolist() == [31, 30, ALIVE]
    with pytest.raises(AssertionError):
        join_chunks([one, keyed([9], offset=9)])
    with pytest.raises(AssertionError):
        join_chunks([one, keyed([9], offset=6, version=2)])


def test_the_form_of_files_has_the_system_columns_first():
    """Offsets, times and operations come before the topic's columns, which keep their ids."""
    chunk = keyed([1, 2], [OP_UPSERT, OP_UPDATE], [None, b"\x03"], offset=5)
    batch = batch_with_system(chunk)
    assert batch.schema.names == ["_offset", "_time", "_op", "_present", "id", "v"]
    assert batch.schema.field("v").metadata == {b"frazil.id": b"2"}
    assert batch.to_pylist()[1] == {
        "_offset": 6,
        "_time": dt.datetime(1970, 1, 1, 0, 0, 0, 7, dt.UTC),
        "_op": OP_UPDATE,
        "_present": b"\x03",
        "id": 2,
        "v": "v2",
    }
    assert batch_with_system(plain([1])).schema.names == ["_offset", "_time", "id", "v"]


def test_what_was_read_back_counts_explicit_changes_only():
    """Upserts of whole rows may have been plain rows; anything else was a change."""
    chunk = keyed([1, 2, 3], [OP_UPSERT, OP_DELETE, OP_UPDATE])
    batch = Batch(chunk.batch, offset=3, times=((3, 9),))
    again = chunk_of_history(batch, version=1)
    assert again.changes == 2
    assert (again.offset, again.end, again.time_us[0]) == (3, 6, 9)
    assert np.array_equal(again.ops, chunk.ops)


def test_the_bytes_of_a_chunk_grow_with_what_is_made_for_it():
    """Marks, key maps and arrays made on demand count, once; views of the batch do not."""
    count = 1000
    present = [b"\x01" if row % 2 else None for row in range(count)]
    times = [(1, 5 + row % 2) for row in range(count)]
    chunk = keyed(list(range(count)), present=present, times=times)
    before = chunk.nbytes
    assert before >= chunk.batch.nbytes
    chunk.mark([3], [20_000])
    for _ in range(2):
        assert chunk.key_map(KeyShape(chunk.batch.schema, (1,))).nbytes == 8 * count
        assert len(chunk.ops) == count
        assert int(chunk.unmatched.sum()) == count // 2
        assert chunk.time_at(3) == 6
        assert chunk.nbytes == before + (8 + 8 + 1 + 8) * count
