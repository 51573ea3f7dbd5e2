"""Format 1 of the log does not drift: what is written today is what was pinned (F47)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from frazil.errors import InvalidRequest
from frazil.log import CursorState, decode_sections, encode_checkpoint, encode_sections
from frazil.log import format as fmt
from frazil.model import OP_UPSERT
from scripts import make_golden
from tests.crash.driven_log import DIRECTORY, DrivenLog, read_everything
from tests.crash.reference_log import walk_frames
from tests.support import SimulatedFileSystem

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "format-1" / "journal"
LAST = f"{DIRECTORY}/{2:016x}.seg"


def pinned():
    return {path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())}


def golden_disk():
    disk = SimulatedFileSystem()
    for name, data in pinned().items():
        disk.write_bytes(f"{DIRECTORY}/{name}", data)
    return disk


def bytes_of(disk):
    return {path: disk.read_bytes(path) for path in disk.paths()}


def test_the_bytes_written_today_are_the_pinned_ones():
    """The same calls give the same bytes as when the format was pinned."""
    disk = SimulatedFileSystem()
    make_golden.write_golden(disk)
    written = {path.rpartition("/")[2]: data for path, data in bytes_of(disk).items()}
    assert written == pinned()


def test_every_kind_of_frame_is_pinned():
    """A kind that is missing from the golden directory could drift unseen."""
    frames, _ends = walk_frames(bytes_of(golden_disk()))
    assert {frame.kind for frame in frames} == set(fmt.KIND_NAMES)


def test_the_pinned_directory_reads_as_it_was_written():
    """Records, gaps, holds, producers, cursors and values come back exactly."""
    log = DrivenLog(golden_disk())
    assert log.journal.report.resumed
    content = read_everything(log)
    payloads = {t: {o: r.get("payload") for o, r in c.records.items()} for t, c in content.items()}
    assert payloads[1] == {0: b"one", 1: b"", 2: b"three", 3: b"idempotent", 9: b"behind the gap"}
    assert content[1].gaps == [(4, 9)]
    assert payloads[4] == {0: b"mail", 1: b"loose"}
    assert content[4].records[0]["attributes"] == [("a", "b")]
    rows = [{k: v for k, v in r.items() if k != "_time"} for r in content[2].records.values()]
    upsert = {"_op": OP_UPSERT, "_present": None}
    assert rows == [{**row, **upsert} for row in make_golden.ROWS]
    rows = [{k: v for k, v in r.items() if k != "_time"} for r in content[3].records.values()]
    assert rows == make_golden.ARROW_ROWS
    assert content[1].records[0]["_time"] == 1_750_000_000_000_000
    state = log.journal.state
    assert state.topics[1].holds == {"lake": 2}
    assert state.topics[2].spec.primary_key == (1,)
    assert state.topics[4].next == 2
    assert state.topics[1].cursors == {"reader": CursorState(2)}
    assert list(state.values.values()) == [b"kept"]
    assert [sent.sequence for sent in state.topics[1].producers["p1"].window] == [0, 1]


def with_header(data, change):
    """Change a segment header and put its checksum right again."""
    header = bytearray(data[: fmt.SEGMENT_HEADER_BYTES - 4])
    change(header)
    return bytes(header) + zlib.crc32(header).to_bytes(4, "little") + data[len(header) + 4 :]


def newer_reader(header):
    struct.pack_into("<H", header, 10, 2)


def newer_magic(header):
    header[:8] = b"FRAZSEG2"


@pytest.mark.parametrize("change", [newer_reader, newer_magic])
@pytest.mark.parametrize("number", [1, 2])
def test_a_newer_format_is_refused_and_left_alone(change, number):
    """Data that needs a newer reader stops the start, and no byte of the directory changes."""
    disk = golden_disk()
    path = f"{DIRECTORY}/{number:016x}.seg"
    disk.write_bytes(path, with_header(disk.read_bytes(path), change))
    before = bytes_of(disk)
    with pytest.raises(InvalidRequest, match="newer Frazil"):
        DrivenLog(disk)
    assert bytes_of(disk) == before


def test_a_newer_writer_that_old_readers_may_read_is_read():
    """A higher format version with a reader version of 1 is read, but never written on."""
    disk = golden_disk()

    def newer_writer(header):
        struct.pack_into("<H", header, 8, 2)

    disk.write_bytes(LAST, with_header(disk.read_bytes(LAST), newer_writer))
    log = DrivenLog(disk)
    assert not log.journal.report.resumed
    assert len(log.read(1).records) == 5


def with_unknown_section(disk, section):
    """Add a section to the checkpoint of the last segment, as a newer version might."""
    data = disk.read_bytes(LAST)
    start = fmt.SEGMENT_HEADER_BYTES
    head = fmt.read_head(data, start)
    payload = bytes(fmt.payload_of(memoryview(data), start, head))
    payload += encode_sections([section])
    frame = fmt.frame_buffers(
        head.kind,
        payload,
        len(payload),
        offset=0,
        salt=head.salt,
        generation=head.generation,
        lsn=head.lsn,
        synced=head.synced,
        time_us=head.time,
    )
    rest = data[start + fmt.FRAME_PREFIX_BYTES + head.length :]
    disk.write_bytes(LAST, data[:start] + b"".join(frame[:3]) + rest)


def test_unknown_sections_of_a_checkpoint_are_copied_on():
    """What a newer version keeps there survives recovery and rotation unchanged."""
    disk = golden_disk()
    section = (999, b"from the future \x00\xff")
    with_unknown_section(disk, section)
    log = DrivenLog(disk)
    log.journal.rotate()
    log = DrivenLog(disk.kill_clone())
    log.journal.rotate()
    log.journal.rotate()
    assert log.journal.state.unknown_sections == [section]
    assert section in decode_sections(encode_checkpoint(log.journal.state, lsn=0))
    assert len(log.read(1).records) == 5
