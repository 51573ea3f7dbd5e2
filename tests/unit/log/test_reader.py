"""Reading a journal by topic and offset: pieces, gaps, damage, times, pins."""

from __future__ import annotations

from contextlib import closing

import pytest

from frazil.errors import Closed, CorruptionError, NotFound
from frazil.log import format as fmt
from frazil.log.codec import Payload
from tests.crash.driven_log import DIRECTORY, DrivenLog
from tests.crash.reference_log import walk_frames
from tests.support import SimulatedFileSystem

SEGMENT = f"{DIRECTORY}/{1:016x}.seg"


@pytest.fixture
def disk():
    return SimulatedFileSystem()


@pytest.fixture
def log(disk):
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.create(2, "/default/b")
    return log


def data_frames(disk, topic):
    files = {path: disk.read_bytes(path) for path in disk.paths()}
    frames, _ends = walk_frames(files)
    return [f for f in frames if f.topic == topic and f.kind <= fmt.KIND_ROWS]


def damage(disk, frame):
    """Flip a bit in the last bytes of a frame's payload."""
    disk.flip(frame.path, frame.end - 8)


def payloads(log, topic, **options):
    return [record["payload"] for record in log.read(topic, **options).records.values()]


@pytest.mark.parametrize("bytes_max", [1, 200, 1 << 20])
def test_pieces_of_any_size_give_the_same_records(log, bytes_max):
    """The limit on bytes changes how many reads it takes, never what they give."""
    for number in range(30):
        log.plain(1, b"%d" % number)
        log.plain(2, b"other", b"topic")
    assert payloads(log, 1, bytes_max=bytes_max) == [b"%d" % n for n in range(30)]


def test_a_read_may_start_inside_a_frame(log):
    """The records before the offset are sliced off."""
    log.plain(1, *[b"%d" % n for n in range(10)])
    piece = log.source.read(1, offset=7, bytes_max=100)
    assert piece.batches[0].offset == 7
    assert piece.batches[0].data["payload"].to_pylist() == [b"7", b"8", b"9"]
    assert piece.offset_next == 10


def test_reading_at_the_end_gives_an_empty_piece(log):
    """Nothing is there yet, and that is no error."""
    log.plain(1, b"x")
    piece = log.source.read(1, offset=1, bytes_max=100)
    assert (piece.batches, piece.offset_next, piece.gaps) == ([], 1, ())


def test_unknown_topics_and_freed_offsets_are_not_found(log):
    """A topic that is not here and an offset that retention freed are no damage."""
    with pytest.raises(NotFound, match="no such topic"):
        log.source.read(9, offset=0, bytes_max=1)
    log.plain(1, b"old")
    log.journal.rotate()
    log.plain(1, b"new")
    log.free(2)
    with pytest.raises(NotFound, match="offset_first=1"):
        log.source.read(1, offset=0, bytes_max=1)
    assert payloads(log, 1) == [b"new"]


def test_records_before_damage_are_read(disk, log):
    """Damage further on in a piece does not hide the good records before it."""
    for number in range(5):
        log.plain(1, b"record %d" % number)
    damage(disk, data_frames(disk, 1)[3])
    piece = log.source.read(1, offset=0, bytes_max=1 << 20)
    assert piece.offset_next == 3
    with pytest.raises(CorruptionError) as caught:
        log.source.read(1, offset=3, bytes_max=1 << 20)
    assert (caught.value.details["offset_first"], caught.value.details["offset_next"]) == (3, 4)
    content = log.read(1)
    assert sorted(content.records) == [0, 1, 2, 4]
    assert content.lost == [(3, 4)]


def test_a_gap_before_a_lost_range_is_reported_first(disk):
    """A reader that meets a gap and then a lost range learns of both."""
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.plain(1, b"before")
    again, gap_end = disk.kill_clone(), 10
    log = DrivenLog(again, watermarks={1: gap_end})
    log.plain(1, b"damaged")
    log.plain(1, b"behind")
    log.close()
    damage(again, data_frames(again, 1)[1])
    log = DrivenLog(again)
    piece = log.source.read(1, offset=1, bytes_max=1 << 20)
    assert (piece.batches, piece.offset_next) == ([], gap_end)
    assert [(gap.first, gap.end) for gap in piece.gaps] == [(1, gap_end)]
    with pytest.raises(CorruptionError, match="lost to damage"):
        log.source.read(1, offset=gap_end, bytes_max=1 << 20)


def test_a_damaged_index_is_rebuilt_from_the_frames(disk, log):
    """The index in a footer is a copy of what the frames say: without it they are read all the
    same.
    """
    log.plain(1, b"one", b"two")
    log.plain(2, b"three")
    log.journal.rotate()
    assert log.journal.seal_one()
    body_end = log.journal.segments[0].body_end
    log.close()
    disk.flip(SEGMENT, body_end + 3, 0x10)
    log = DrivenLog(disk)
    assert payloads(log, 1) == [b"one", b"two"]
    assert payloads(log, 2) == [b"three"]


def test_a_damaged_index_over_damaged_frames_names_the_range(disk, log):
    """When index and frames are both damaged the segment's whole range of the topic is refused."""
    log.plain(1, b"one", b"two")
    log.plain(1, b"three")
    log.journal.rotate()
    log.plain(1, b"four")
    assert log.journal.seal_one()
    body_end = log.journal.segments[0].body_end
    log.close()
    damage(disk, data_frames(disk, 1)[1])
    disk.flip(SEGMENT, body_end + 3, 0x10)
    content = DrivenLog(disk).read(1)
    assert content.lost == [(0, 3)]
    assert [record["payload"] for record in content.records.values()] == [b"four"]


def test_a_frame_put_where_another_was_is_refused(disk, log):
    """A whole frame of the same topic at a wrong place is not taken for the one that was there."""
    log.plain(1, b"aaaa")
    log.plain(1, b"bbbb")
    one, two = data_frames(disk, 1)
    disk.overwrite(SEGMENT, one.position, disk.read_bytes(SEGMENT)[two.position : two.end])
    content = log.read(1)
    assert content.lost == [(0, 1)]
    assert [record["payload"] for record in content.records.values()] == [b"bbbb"]


def test_offset_at_finds_the_first_record_at_or_after_a_time(log):
    """Times lead to offsets over sealed and open segments."""
    times = []
    for number in range(9):
        times.append(log.clock.now_us())
        log.plain(1, b"%d" % number)
        log.clock.advance(1)
        if number in (2, 5):
            log.journal.rotate()
            log.journal.seal_one()
    for number, time_us in enumerate(times):
        assert log.source.offset_at(1, time_us=time_us) == number
    assert log.source.offset_at(1, time_us=0) == 0
    assert log.source.offset_at(1, time_us=log.clock.now_us()) is None


def test_pins_are_counted_until_closed(log):
    """The lowest open pin of a topic is what retention must keep."""
    with closing(log.source.pin(1, offset=5)) as low, closing(log.source.pin(1, offset=9)):
        assert log.source.pinned(1) == 5
        assert log.source.pinned(2) is None
        low.advance(12)
        low.advance(3)
        assert log.source.pinned(1) == 9
    assert log.source.pinned(1) is None


def test_after_a_failure_only_what_is_durable_is_read(disk, log):
    """Reading goes on below the durable end; at it the reader learns that the journal failed."""
    log.plain(1, b"durable")
    log.journal.fail(OSError("disk"))
    assert log.source.read(1, offset=0, bytes_max=10).offset_next == 1
    with pytest.raises(Closed, match="storage failed"):
        log.source.read(1, offset=1, bytes_max=10)


def test_a_payload_that_does_not_decode_names_its_range(disk, log):
    """Bytes that are whole but not what their frame says are damage with a range, and what lies
    before and behind them is read.
    """

    class Liar:
        solo = True
        tracked = False
        readable = False
        version = 0

        def encode(self, records):
            return Payload(fmt.KIND_ARROW, 0, b"no Arrow batch", 14)

    log.plain(1, b"before")
    log.commit((log.topic(1), Liar(), (b"x", b"y"), 2, 9, None, None))
    log.plain(1, b"behind")
    content = log.read(1)
    assert content.lost == [(1, 3)]
    assert [r["payload"] for r in content.records.values()] == [b"before", b"behind"]
