"""The log's encodings round-trip, notice every flipped bit, and agree with plain models."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import CorruptionError, NotFound
from frazil.log import (
    Batch,
    ChainedHistory,
    CursorState,
    FrameIndex,
    JournalState,
    Piece,
    Sent,
    SpecialRange,
    decode_checkpoint,
    decode_footer,
    decode_index,
    decode_sections,
    encode_checkpoint,
    encode_sections,
    footer_of,
)
from frazil.log import format as fmt
from frazil.model import OffsetRange, TopicSpec

U8 = st.integers(0, 2**8 - 1)
U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
RUNS = st.lists(st.builds(fmt.Run, U64, U32, U64, U32), max_size=4)


@st.composite
def frames(draw):
    """One encoded frame and what went into it."""
    fields = {
        "offset": draw(U64),
        "salt": draw(st.binary(min_size=8, max_size=8)),
        "generation": draw(U32),
        "lsn": draw(U64),
        "synced": draw(U64),
        "time_us": draw(I64),
        "topic": draw(U32),
        "count": draw(U32),
        "schema": draw(U32),
        "flags": draw(U8),
    }
    kind = draw(st.integers(1, fmt.KIND_LAST))
    payload = draw(st.binary(max_size=200))
    runs = draw(RUNS)
    encoded = fmt.encode_runs(runs)
    parts = fmt.frame_buffers(kind, payload, len(payload), runs=encoded, **fields)
    data = b"".join(parts[:3])
    assert len(data) == parts[3]
    return kind, payload, runs, fields, data


def fault_of(data):
    view = memoryview(data)
    return fmt.frame_fault(view, 0, fmt.read_head(view, 0))


def flipped(data, bit):
    changed = bytearray(data)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


@given(frames())
def test_frames_round_trip(frame):
    """Every field, the runs and the payload come back, and the frame fills whole words."""
    kind, payload, runs, fields, data = frame
    assert len(data) % fmt.ALIGNMENT == 0
    assert not fault_of(data)
    assert not fmt.head_fault(data[: fmt.FRAME_HEAD_BYTES])
    head = fmt.read_head(data, 0)
    names = {"time_us": "time", "count": "records"}
    wanted = {names.get(name, name): value for name, value in fields.items()}
    assert head._asdict() == {**head._asdict(), **wanted, "kind": kind}
    view = memoryview(data)
    assert bytes(fmt.payload_of(view, 0, head)) == payload
    assert fmt.decode_runs(view[fmt.FRAME_PREFIX_BYTES :], head.runs) == runs


@given(frames(), st.data())
def test_a_flipped_bit_in_a_frame_is_noticed(frame, data):
    """No single bit of a frame can change without its checksum telling."""
    encoded = frame[-1]
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    assert fault_of(flipped(encoded, bit))


@given(frames(), frames())
def test_head_and_payload_of_two_frames_do_not_combine(one, two):
    """The head of one frame over the body of another is never a frame, at whatever seam."""
    left, right = one[-1], two[-1]
    size = min(len(left), len(right))
    for seam in {16, fmt.HEAD_CRC_POSITION, fmt.FRAME_HEAD_BYTES, fmt.FRAME_HEAD_BYTES + 8}:
        if seam < size:
            mixed = left[:seam] + right[seam:]
            if not mixed.startswith((left, right)):
                assert fault_of(mixed)


@given(
    st.builds(
        fmt.SegmentHeader,
        journal=st.binary(min_size=16, max_size=16),
        segment=U64,
        salt=st.binary(min_size=8, max_size=8),
        generation=U32,
        previous_segment=U64,
        previous_length=U64,
        previous_lsn=U64,
        created_us=I64,
        initial_length=U64,
        format_version=st.integers(1, 2**16 - 1),
        reader_version_min=st.just(1),
    ),
    st.integers(0, fmt.SEGMENT_HEADER_BYTES * 8 - 1),
)
def test_segment_headers_round_trip_and_notice_a_flipped_bit(header, bit):
    """A header comes back as it was, or not at all."""
    data = fmt.encode_segment_header(header)
    assert len(data) == fmt.SEGMENT_HEADER_BYTES
    assert fmt.decode_segment_header(data) == header
    with pytest.raises(CorruptionError):
        fmt.decode_segment_header(flipped(data, bit))


@st.composite
def frame_lists(draw):
    """Frames of one topic in order: (offset, position, length, time, records)."""
    offset, position, time_us = draw(st.integers(0, 10)), 128, draw(st.integers(0, 50))
    found = []
    for _ in range(draw(st.integers(0, 12))):
        length, records = draw(st.integers(1, 9)) * 8, draw(st.integers(1, 5))
        found.append((offset, position, length, time_us, records))
        offset += records + draw(st.integers(0, 3))
        position += length + draw(st.integers(0, 4)) * 8
        time_us += draw(st.integers(0, 3))
    return found


def indexed(found):
    index = FrameIndex()
    for frame in found:
        index.append(*frame)
    return index


def facts(index):
    n = index.count
    return (
        list(index.offsets[:n]),
        list(index.positions[:n]),
        list(index.lengths[:n]),
        list(index.times[:n]),
        index.end,
        index.records,
        index.bytes,
        index.time_max,
    )


@given(frame_lists(), st.integers(-1, 80), st.integers(-1, 100))
def test_indexes_find_like_a_list(found, offset, time_us):
    """Looking up an offset or a time equals a search through a list."""
    index = indexed(found)
    before = [n for n, frame in enumerate(found) if frame[0] <= offset]
    later = [n for n, frame in enumerate(found) if frame[3] >= time_us]
    assert not found or index.find(offset) == len(before or [0]) - 1
    assert index.find_time(time_us) == (later or [len(found)])[0]


@given(frame_lists(), st.data())
def test_indexes_cut_like_a_list(found, data):
    """Cutting at a frame leaves what a list of the frames before it would be."""
    index = indexed(found)
    positions = [frame[1] for frame in found]
    position = data.draw(st.sampled_from([*positions, 0, 1 << 20]))
    holes = {
        frame[0]: before[0] + before[4]
        for before, frame in pairwise(found)
        if frame[0] != before[0] + before[4] and frame[1] >= position
    }
    index.cut(position, holes)
    kept = indexed([frame for frame in found if frame[1] < position])
    left, right = facts(index), facts(kept)
    if kept.count:
        assert left == right
    else:
        assert index.count == 0
        assert (left[:4], left[5:]) == (right[:4], right[5:])


@given(st.dictionaries(st.integers(1, 5), frame_lists(), max_size=4), U64, st.data())
def test_footers_and_indexes_round_trip(topics, lsn, data):
    """The footer gives back each topic's facts and index; a flipped bit in an index is noticed."""
    indexes = {topic: indexed(found) for topic, found in topics.items()}
    blobs, encoded = footer_of(
        indexes,
        segment=3,
        generation=4,
        body_end=4096,
        frames=9,
        lsn_last=lsn,
        time_us=5,
        sha256=bytes(32),
    )
    footer = decode_footer(encoded)
    assert (footer.segment, footer.generation, footer.body_end) == (3, 4, 4096)
    assert (footer.frames, footer.lsn_last) == (9, lsn)
    assert [entry.topic for entry in footer.topics] == sorted(t for t, f in topics.items() if f)
    for entry in footer.topics:
        start = entry.index_position - footer.body_end
        blob = blobs[start : start + entry.index_length]
        assert facts(decode_index(blob, entry)) == facts(indexes[entry.topic])
        bit = data.draw(st.integers(0, len(blob) * 8 - 1))
        with pytest.raises(CorruptionError):
            decode_index(flipped(blob, bit), entry)
    trailer = fmt.encode_trailer(encoded, index_position=4096)
    position, length, crc = fmt.decode_trailer(trailer)
    assert (position, length) == (4096, len(encoded))
    assert fmt.footer_matches(encoded, index_position=position, crc=crc)
    bit = data.draw(st.integers(0, len(encoded) * 8 - 1))
    assert not fmt.footer_matches(flipped(encoded, bit), index_position=position, crc=crc)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
OFFSETS = st.integers(0, 2**62)


@st.composite
def cursors(draw):
    """A subscription's progress with holes and repeated deliveries."""
    ranges = draw(st.lists(st.tuples(OFFSETS, st.integers(1, 99)), max_size=4))
    attempts = draw(st.lists(st.tuples(OFFSETS, st.integers(2, 99)), max_size=3))
    return CursorState(draw(OFFSETS), [(at, at + size) for at, size in ranges], attempts)


@st.composite
def states(draw):
    """A journal's state with some of everything that checkpoints carry."""
    state = JournalState()
    state.lsn, state.time_us = draw(OFFSETS), draw(OFFSETS)
    state.segment_first = draw(st.integers(0, 1000))
    for topic_id in draw(st.sets(st.integers(1, 9), max_size=3)):
        sync = draw(st.sampled_from(["periodic", "commit"]))
        spec = TopicSpec(
            id=topic_id, name=draw(NAMES), kind="message", created_us=draw(OFFSETS), sync=sync
        )
        topic = state.define_topic(spec)
        topic.start, topic.next = sorted((draw(OFFSETS), draw(OFFSETS)))
        topic.schemas = draw(st.dictionaries(st.integers(1, 5), st.binary(max_size=9), max_size=2))
        topic.schema_version = max(topic.schemas, default=0)
        topic.holds = draw(st.dictionaries(NAMES, OFFSETS, max_size=2))
        if draw(st.booleans()):
            low, high = sorted((draw(st.integers(0, 99)), draw(st.integers(100, 200))))
            topic.ranges = [SpecialRange(low, high, "gap", "why")]
            topic.next = max(topic.next, high)
        topic.cursors = draw(st.dictionaries(NAMES, cursors(), max_size=2))
        for name in draw(st.sets(NAMES, max_size=2)):
            producer = state.add_producer(
                state.producer_id_last + 1, topic=topic_id, name=name, epoch=draw(U32)
            )
            for _ in range(draw(st.integers(0, 3))):
                producer.window.append(Sent(*[draw(OFFSETS) for _ in range(5)]))
    state.values[16, draw(NAMES)] = draw(st.binary(max_size=9))
    unknown = st.tuples(st.integers(9, 2**16 - 1), st.binary(max_size=20))
    state.unknown_sections = draw(st.lists(unknown, max_size=2))
    return state


def facts_of_state(state):
    topics = {
        t.id: (t.spec, t.next, t.start, t.schemas, t.schema_version, t.holds, t.ranges)
        for t in state.topics.values()
    }
    cursors = {t.id: dict(t.cursors) for t in state.topics.values()}
    producers = [(p.id, p.topic, p.name, p.epoch, list(p.window)) for p in state.producers.values()]
    rest = (state.time_us, state.producer_id_last, state.segment_first, state.unknown_sections)
    return topics, producers, cursors, state.values, rest


@given(states(), OFFSETS)
def test_checkpoints_round_trip(state, lsn):
    """A checkpoint gives the whole state back, unknown sections included."""
    decoded = decode_checkpoint(encode_checkpoint(state, lsn=lsn))
    assert decoded.lsn == lsn
    assert facts_of_state(decoded) == facts_of_state(state)


@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.binary(max_size=30)), max_size=5), U8)
def test_sections_round_trip_and_notice_a_cut(sections, cut):
    """Sections come back in order; cut short they are refused or fewer."""
    data = encode_sections(sections)
    assert decode_sections(data) == sections
    try:
        fewer = decode_sections(data[:cut])
    except CorruptionError:
        return
    assert fewer == sections[: len(fewer)]


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_plain_payloads_are_an_arrow_array(payloads):
    """The ends and bytes of payload-only records are the buffers of a binary array."""
    data = pa.py_buffer(fmt.plain_payload(payloads))
    ends = data.slice(0, 4 * (len(payloads) + 1))
    array = pa.BinaryArray.from_buffers(
        pa.binary(), len(payloads), [None, ends, data.slice(4 * (len(payloads) + 1))]
    )
    array.validate(full=True)
    assert array.to_pylist() == payloads


class ListSource:
    """A history source over a list: it holds `[first, end)` and may lose its oldest records."""

    def __init__(self, records, first, end, per_read):
        self.records = records
        self.first = first
        self.end = end
        self.per_read = per_read
        self.pins = []

    def range(self, topic):
        return OffsetRange(self.first, max(self.first, self.end))

    def read(self, topic, *, offset, bytes_max):
        if offset < self.first:
            raise NotFound("gone", offset=offset)
        end = min(self.end, offset + self.per_read)
        if end <= offset:
            return Piece([], offset)
        data = pa.record_batch({"v": self.records[offset:end]})
        times = tuple((1, n) for n in range(offset, end))
        return Piece([Batch(data, offset=offset, times=times)], end)

    def offset_at(self, topic, *, time_us):
        found = max(self.first, time_us)
        return found if found < self.end else None

    def pin(self, topic, *, offset):
        raise NotImplementedError


@st.composite
def chains(draw):
    """Overlapping sources that together cover `[low, high)`, oldest first."""
    high = draw(st.integers(1, 40))
    records = list(range(1000, 1000 + high))
    low = draw(st.integers(0, high))
    sources, covered = [], low
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(min(low, covered), covered))
        end = draw(st.integers(covered, high))
        sources.append(ListSource(records, first, end, draw(st.integers(1, 5))))
        covered = end
    sources[-1].end = high
    return records, sources


@given(chains(), st.data())
def test_chained_history_equals_a_list(chain, data):
    """Reading over sources that overlap and lose their oldest records gives each record once, in
    order, and says so when an offset is gone from all of them.
    """
    records, sources = chain
    history = ChainedHistory(sources)
    offset = data.draw(st.integers(0, len(records)))
    seen = []
    for _ in range(300):
        held = [s for s in sources if s.first < s.end]
        has = any(s.first <= offset < s.end for s in held)
        try:
            piece = history.read(7, offset=offset, bytes_max=1)
        except NotFound as error:
            assert not has
            lowest = min([s.first for s in held] or [sources[-1].first])
            assert error.details["offset_first"] >= lowest
            offset = error.details["offset_first"]
            seen = []
            continue
        if not piece.batches:
            assert not has
            break
        for batch in piece.batches:
            assert batch.offset == offset
            assert batch.data["v"].to_pylist() == records[offset : batch.offset_next]
            seen += batch.data["v"].to_pylist()
            offset = batch.offset_next
        source = data.draw(st.sampled_from(sources))
        source.first = min(source.first + data.draw(st.integers(0, 2)), source.end)
    assert seen == records[offset - len(seen) : offset]
    end = max((s.end for s in sources if s.end > s.first), default=sources[-1].end)
    assert offset >= end
