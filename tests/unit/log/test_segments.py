"""Segment files and their parts: names, creation, seals, footers, scans, chained sources."""

from __future__ import annotations

import hashlib
import zlib

import pyarrow as pa
import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import format as fmt
from frazil.log.history import Batch
from frazil.log.index import TopicEntry, decode_footer, decode_index
from frazil.log.scan import Scanner
from frazil.log.segment import (
    OpenFiles,
    body_hash,
    create_segment,
    read_footer,
    segment_name,
    segment_number,
)
from tests.crash.driven_log import DIRECTORY, DrivenLog
from tests.support import SimulatedFileSystem

SALT = b"saltsalt"
HEADER = fmt.SegmentHeader(bytes(16), 1, SALT, 1, 0, 0, 0, created_us=1)


def frame(kind, payload=b"", *, salt=SALT, generation=1, **fields):
    given = {"offset": 0, "lsn": 1, "synced": 0, "time_us": 1, **fields}
    parts = fmt.frame_buffers(
        kind, payload, len(payload), salt=salt, generation=generation, **given
    )
    return b"".join(parts[:3])


def scan(disk, body, *, lsn=0):
    path = "/s/x.seg"
    disk.write_bytes(path, bytes(fmt.SEGMENT_HEADER_BYTES) + body)
    file = disk.open(path, "read")
    start, end = fmt.SEGMENT_HEADER_BYTES, file.size()
    return Scanner(file, salt=SALT, generation=1, start=start, end=end, lsn=lsn).run()


@pytest.fixture
def disk():
    return SimulatedFileSystem()


def data_frames(count):
    return [
        frame(fmt.KIND_ROWS, b"payload %d" % n, topic=1, offset=n, count=1, lsn=n + 1, synced=n)
        for n in range(count)
    ]


def test_segment_names_lead_back_to_numbers():
    """Names that are not ours give none."""
    assert segment_number(segment_name(0xABC)) == 0xABC
    for name in ("x.seg", "0.seg", "zzzzzzzzzzzzzzzz.seg", segment_name(1) + ".damaged", "LOCK"):
        assert segment_number(name) is None


def test_headers_of_strangers_and_of_newer_versions_differ():
    """Another file is damage; a newer version is a request to upgrade."""
    with pytest.raises(CorruptionError, match="cut short"):
        fmt.decode_segment_header(b"FRAZSEG1")
    with pytest.raises(CorruptionError, match="checksum"):
        fmt.decode_segment_header(bytes(127) + b"\1")
    newer = HEADER._replace(reader_version_min=2)
    with pytest.raises(InvalidRequest, match="newer"):
        fmt.decode_segment_header(fmt.encode_segment_header(newer))


def test_zeroes_are_the_end_and_no_frame(disk):
    """An all-zero tail is the end of the log, and a zero head is never a frame (F5)."""
    found = scan(disk, b"".join(data_frames(2)) + bytes(4096))
    assert found.frames == 2
    assert [(fault.zero, fault.lsn_after) for fault in found.faults] == [(True, 0)]
    zeroes = bytes(fmt.FRAME_HEAD_BYTES)
    assert fmt.frame_fault(memoryview(zeroes), 0, fmt.read_head(zeroes, 0))


def test_frames_of_another_segment_or_generation_are_not_taken(disk):
    """A recycled or misdirected frame is no frame here, whole as it is."""
    foreign = frame(fmt.KIND_ROWS, b"x", salt=b"foreign!", topic=1, count=1)
    older = frame(fmt.KIND_ROWS, b"x", generation=7, topic=1, count=1)
    for other in (foreign, older):
        found = scan(disk, other)
        assert (found.frames, len(found.faults)) == (0, 1)


def test_a_scan_goes_on_behind_a_bad_frame(disk):
    """One damaged frame is one fault, with the sequence numbers around it."""
    frames = data_frames(4)
    bad = bytearray(frames[1])
    bad[-1] ^= 1
    found = scan(disk, frames[0] + bytes(bad) + frames[2] + frames[3])
    assert found.frames == 3
    [fault] = found.faults
    assert (fault.lsn_before, fault.lsn_after) == (1, 3)
    assert fault.end - fault.position == len(frames[1])
    assert [item[:3] for item in found.breaks] == [(1, 1, 2)]


def test_a_missing_frame_between_whole_ones_is_a_fault(disk):
    """Sequence numbers that jump show that something is gone, even without bad bytes."""
    frames = data_frames(3)
    found = scan(disk, frames[0] + frames[2])
    assert [(fault.reason, fault.lsn_after) for fault in found.faults] == [
        ("frame is out of order", 0)
    ]


def test_a_frame_from_the_end_does_not_hide_what_it_lies_before(disk):
    """A frame in the wrong place is damage there; all that lies in order is taken."""
    frames = data_frames(8)
    found = scan(disk, frames[7] + b"".join(frames[1:7]) + bytes(4096))
    assert list(found.lsns) == [2, 3, 4, 5, 6, 7]
    assert list(found.indexes[1].offsets) == [1, 2, 3, 4, 5, 6]
    assert [(f.reason, f.lsn_after) for f in found.faults] == [
        ("frame is out of order", 2),
        ("zeroes", 0),
    ]
    assert found.faults[0].lsn_before == 0


def test_a_frame_in_the_wrong_place_still_proves_what_was_synced(disk):
    """The last frame lies in front and the one it proves is gone: both are known to be missing."""
    frames = data_frames(8)
    found = scan(disk, frames[7] + b"".join(frames[1:6]))
    assert found.synced == found.lsn == 7
    assert [head.lsn for head in found.misplaced[:1]] == [8]


def test_a_second_copy_of_a_frame_is_damage_where_it_lies(disk):
    """A sector that was written twice leaves each frame once in the scan."""
    frames = data_frames(6)
    found = scan(disk, b"".join([*frames[:4], frames[1], frames[5]]))
    assert list(found.lsns) == [1, 2, 3, 4, 6]
    [fault] = found.faults
    assert (fault.lsn_before, fault.lsn_after) == (4, 6)
    assert fault.end - fault.position == len(frames[1])


def test_a_copy_of_the_log_in_a_record_is_no_frame(disk):
    """Frames inside the payload of a frame stay a payload, even where the order is broken."""
    frames = data_frames(9)
    inner = b"".join(frames[2:6])
    outer = frame(fmt.KIND_ROWS, inner, topic=1, offset=6, count=1, lsn=7, synced=6)
    found = scan(disk, frames[8] + b"".join([*frames[:6], outer, frames[7]]))
    assert list(found.lsns) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found.indexes[1].count == 8


def test_a_frame_does_not_lie_where_others_have_no_room(disk):
    """Of two copies of a frame the one is taken that leaves room for the frame missing before."""
    frames = data_frames(5)
    spoiled = bytes([*frames[3][:-1], 1])
    found = scan(disk, b"".join([*frames[:3], frames[4], spoiled, frames[4]]))
    assert list(found.lsns) == [1, 2, 3, 5]
    [fault] = found.faults
    assert (fault.lsn_before, fault.lsn_after, fault.missing) == (3, 5, 1)
    assert fault.end - fault.position == len(frames[4]) + len(spoiled)


def test_a_marker_in_the_wrong_place_costs_no_record(disk):
    """Where a copied marker and a record contradict each other, the record is kept."""
    frames = data_frames(3)
    marker = frame(fmt.KIND_MARKER, lsn=2, synced=2)
    found = scan(disk, b"".join([*frames[:2], marker, frames[2], marker]))
    assert list(found.lsns) == [1, 2, 3]
    assert [fault.lsn_before for fault in found.faults] == [3]


def test_a_frame_longer_than_the_file_is_a_fault(disk):
    """A length that leads behind the end is not read."""
    found = scan(disk, data_frames(1)[0] + data_frames(2)[1][:-8])
    assert found.frames == 1
    assert len(found.faults) == 1


def test_a_new_segment_is_durable_or_has_no_name(disk):
    """Whenever the power fails while one is created, the segment is whole or not there."""
    disk.make_directory("/s")
    disk.sync_directory("/")
    for point in range(1, 10):
        child = disk.kill_clone()
        child.sync_directory("/")
        child.crash_at = child.sync_points + point
        try:
            create_segment(child, "/s", HEADER, data_frames(3))
        except BaseException as crash:  # noqa: BLE001 - a simulated crash is no Exception
            assert type(crash).__name__ == "SimulatedCrash"
        else:
            child.crash()
        for seed in range(5):
            after = child.crash_clone(seed)
            path = f"/s/{segment_name(1)}"
            if path in after.paths():
                data = after.read_bytes(path)
                assert fmt.decode_segment_header(data)[:8] == HEADER[:8]
                assert data[fmt.SEGMENT_HEADER_BYTES :] == b"".join(data_frames(3))


def test_a_seal_pins_the_body(disk):
    """The footer holds the hash of the body, and a changed body does not match it."""
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.plain(1, b"x", b"y")
    log.journal.rotate()
    assert log.journal.seal_one()
    path = f"{DIRECTORY}/{segment_name(1)}"
    footer = read_footer(disk.open(path, "read"))
    body = disk.read_bytes(path)[: footer.body_end]
    assert footer.sha256 == hashlib.sha256(body).digest()
    assert body_hash(disk.open(path, "read"), footer.body_end) == footer.sha256
    assert [(e.topic, e.first, e.end, e.records) for e in footer.topics] == [(1, 0, 2, 2)]
    with pytest.raises(CorruptionError, match="shorter"):
        body_hash(disk.open(path, "read"), 1 << 20)


@pytest.mark.parametrize("size", [0, 10, 151, 152, 400])
def test_files_without_a_footer_have_none(disk, size):
    """Short or unsealed files give no footer and no error."""
    disk.write_bytes("/s/x", bytes(size))
    assert read_footer(disk.open("/s/x", "read")) is None


def test_an_index_of_the_wrong_size_is_corruption():
    """Numbers of frames that do not fit the blob are refused, also behind a bomb of zeroes."""
    for blob in (b"\x01" + bytes(23), b"\x02junk"):
        entry = TopicEntry(1, 0, 1, 1, 1, 1, 0, 0, 0, len(blob), zlib.crc32(blob))
        with pytest.raises(CorruptionError):
            decode_index(blob, entry)
    with pytest.raises(CorruptionError):
        decode_footer(b"\xc1")


def test_open_files_are_bounded(disk):
    """The least used file is let go, and what a reader holds still works."""
    for name in "abc":
        disk.write_bytes(f"/s/{name}", name.encode())
    files = OpenFiles(disk, count_max=2)
    first = files.get("/s/a")
    files.get("/s/b")
    files.get("/s/c")
    assert len(files._files) == 2
    assert first.read_at(0, 1) == b"a"
    assert files.get("/s/a").read_at(0, 1) == b"a"


def test_slices_of_a_batch_keep_offsets_and_times():
    """Part of a batch has the offsets and the times of its records."""
    batch = Batch(pa.record_batch({"v": [1, 2, 3, 4]}), offset=10, times=((1, 100), (3, 200)))
    part = batch.slice(1, 2)
    assert (part.offset, part.offset_next, part.time_us) == (11, 13, 200)
    rows = batch.slice(0, 2).to_arrow().to_pydict()
    assert rows["_offset"] == [10, 11]
    assert [int(t.timestamp() * 1e6) for t in rows["_time"]] == [100, 200]
