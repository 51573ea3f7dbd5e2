"""Frames that are made again from rows: the same records, times and runs, whatever they are."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from frazil.log import format as fmt
from frazil.objects import Reframer, Runs
from frazil.objects import reframe as objects_reframe
from frazil.tiers import SentRun, StoredRows

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
TIME = pa.timestamp("us", tz="UTC")


class Rows:
    """Some rows from an offset on, the frames that they once were, and how they are read."""

    def __init__(self, first, batches, pieces):
        self.first = first
        self.frames = []
        self.rows = []
        offset = first
        for time_us, version, parts in batches:
            begin = offset
            for count, producer, text in parts:
                run = SentRun(offset, count, producer, 1, 100 + offset) if producer else None
                self.frames.append((offset, count, run))
                self.rows += [(offset + n, time_us, version, text) for n in range(count)]
                offset += count
            assert offset > begin
        self.end = offset
        self.cuts = sorted({first, *(first + each % (offset - first) for each in pieces), offset})

    @property
    def runs(self):
        return [run for _offset, _count, run in self.frames if run is not None]

    def pieces(self):
        """Yield the rows as reads of files give them: of one version each."""
        for low, high in zip(self.cuts, self.cuts[1:], strict=False):
            rows = [row for row in self.rows if low <= row[0] < high]
            while rows:
                same = [row for row in rows if row[2] == rows[0][2]]
                same = rows[: len(same)] if rows[: len(same)] == same else rows[:1]
                batch = pa.RecordBatch.from_arrays(
                    [
                        pa.array([row[0] for row in same], pa.int64()),
                        pa.array([row[1] for row in same], TIME),
                        pa.array([row[0] for row in same], pa.int64()),
                        pa.array([row[3] for row in same], pa.string()),
                    ],
                    names=["_offset", "_time", "id", "text"],
                )
                yield StoredRows(batch, same[0][0], same[0][2], None)
                rows = rows[len(same) :]


PARTS = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 2), st.text("ab", max_size=40)),
    min_size=1,
    max_size=4,
)
BATCHES = st.lists(st.tuples(st.integers(5, 8), st.integers(1, 2), PARTS), min_size=1, max_size=8)
CUTS = st.lists(st.integers(0, 10_000), max_size=10)


def decoded(frame):
    """Return what a frame says: its rows with time and version, and its runs."""
    view = memoryview(frame.buffer)
    head = fmt.read_head(view, 0)
    assert fmt.frame_fault(view, 0, head) == ""
    assert (head, head.topic) == (frame.head, 7)
    assert frame.start == fmt.FRAME_HEAD_BYTES + head.runs * fmt.RUN.size
    assert len(frame.buffer) % 8 == 0
    batch = pa.ipc.read_record_batch(pa.py_buffer(fmt.payload_of(view, 0, head)), SCHEMA)
    rows = [
        (head.offset + n, head.time, head.schema, text)
        for n, text in enumerate(batch.column("text").to_pylist())
    ]
    assert batch.column("id").to_pylist() == [row[0] for row in rows]
    runs, offset = [], head.offset
    for run in fmt.decode_runs(view[16:], head.runs):
        if run.producer:
            runs.append(SentRun(offset, run.records, run.producer, run.epoch, run.sequence))
        offset += run.records
    assert not head.runs or offset == head.offset + head.records
    return rows, runs


@given(st.integers(0, 50), BATCHES, CUTS, st.integers(1, 2_000))
def test_nothing_changes_but_how_records_are_put_together(first, batches, cuts, frame_bytes):
    """Rows, times, versions and runs come back, however files are read and frames are cut."""
    given_rows = Rows(first, batches, cuts)
    before, objects_reframe.FRAME_BYTES = objects_reframe.FRAME_BYTES, frame_bytes
    try:
        reframer = Reframer(Runs(given_rows.runs), topic=7, keyed=False)
        made = list(reframer.frames(given_rows.pieces()))
    finally:
        objects_reframe.FRAME_BYTES = before
    rows, runs = [], []
    for frame in made:
        own_rows, own_runs = decoded(frame)
        rows += own_rows
        runs += own_runs
    assert rows == given_rows.rows
    assert runs == given_rows.runs
