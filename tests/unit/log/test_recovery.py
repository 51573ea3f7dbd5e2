"""Opening a journal again: what is reported after damage, loss of files, and clean ends."""

from __future__ import annotations

import pytest

from frazil.errors import CorruptionError
from frazil.log import format as fmt
from frazil.model import Ack
from tests.crash.driven_log import DIRECTORY, DrivenLog, read_everything
from tests.crash.reference_log import walk_frames
from tests.support import SimulatedClock, SimulatedFileSystem


def segment_path(number):
    return f"{DIRECTORY}/{number:016x}.seg"


@pytest.fixture
def disk():
    return SimulatedFileSystem()


def three_segments(disk):
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.create(2, "/default/b")
    log.plain(2, b"only in the first segment")
    for number in range(3):
        log.plain(1, b"record %d" % (2 * number), b"record %d" % (2 * number + 1))
        if number < 2:
            log.journal.rotate()
    return log


def test_a_clean_close_is_resumed_in_the_same_segment(disk):
    """A closed journal goes on in its last segment, and nothing is rewritten."""
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.plain(1, b"x")
    log.close()
    names = disk.paths()
    log = DrivenLog(disk)
    assert log.journal.report.resumed
    assert log.plain(1, b"y").offset == 1
    log.close()
    assert disk.paths() == names


def test_a_killed_journal_is_continued_in_a_successor(disk):
    """After a kill the unproven tail is written again into a new segment."""
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.plain(1, b"x")
    log = DrivenLog(disk.kill_clone())
    report = log.journal.report
    assert not report.resumed
    assert report.frames_rewritten >= 1
    assert [s.id for s in log.journal.segments] == [1, 2]
    assert list(log.read(1).records) == [0]


def test_a_lost_front_is_lost_and_not_expired(disk):
    """Records lost from a topic's first segment are refused as lost, now and after a restart."""
    three_segments(disk).close()
    disk.corrupt(segment_path(1), lambda data: data.__delitem__(slice(300, None)))
    for _ in range(2):
        log = DrivenLog(disk)
        with pytest.raises(CorruptionError) as caught:
            log.source.read(1, offset=0, bytes_max=1)
        assert caught.value.details["offset_next"] == 2
        assert log.read(2).lost == [(0, 1)]
        assert log.topic(2).next == 1
        log.close()


def test_freed_segments_leave_no_lost_front(disk):
    """What retention freed after the last checkpoint is not taken for damage."""
    log = three_segments(disk)
    log.free(3)
    log = DrivenLog(disk.kill_clone())
    assert not log.journal.report.lost
    assert log.source.range(1).first == 4
    assert log.read(2).records == {}


@pytest.mark.parametrize("done", ["committed", "unlinked"])
def test_freeing_cut_short_is_finished(disk, done):
    """A crash between the frame that frees and the unlink loses nothing and ends the freeing."""
    log = three_segments(disk)
    control = log.journal.free(2)
    assert isinstance(log.control(control.kind, control.topic, control.payload), Ack)
    if done == "unlinked":
        disk.unlink(segment_path(1))
    again = disk.kill_clone()
    log = DrivenLog(again)
    assert not log.journal.report.lost
    assert segment_path(1) not in again.paths()
    assert list(log.read(1).records) == [2, 3, 4, 5]


def test_a_missing_middle_segment_is_reported(disk):
    """A file that vanished leaves a lost range; what is before and behind it is read (F10)."""
    three_segments(disk).close()
    disk.unlink(segment_path(2))
    log = DrivenLog(disk)
    content = log.read(1)
    assert list(content.records) == [0, 1, 4, 5]
    assert content.lost == [(2, 4)]
    assert any("missing" in warning for warning in log.journal.report.warnings)


def test_a_destroyed_start_of_the_last_segment_keeps_its_records(disk):
    """Header and checkpoint may both be gone: the frames behind them are found all the same."""
    log = three_segments(disk)
    log.close()
    disk.overwrite(segment_path(3), 0, bytes(400))
    log = DrivenLog(disk)
    assert list(log.read(1).records) == [0, 1, 2, 3, 4, 5]
    assert log.plain(1, b"new").offset >= 6
    assert log.journal.report.warnings


def test_damage_below_the_synced_mark_is_quarantined(disk):
    """A bad frame that later frames prove synced is copied aside with its reason (F2)."""
    three_segments(disk).close()
    files = {path: disk.read_bytes(path) for path in disk.paths()}
    frames = [f for f in walk_frames(files)[0] if f.path == segment_path(3) and f.topic == 1]
    disk.flip(segment_path(3), frames[0].end - 4, 0x40)
    log = DrivenLog(disk)
    report = log.journal.report
    assert [(topic, r.first, r.end) for topic, r in report.lost] == [(1, 4, 6)]
    assert len(report.quarantined) == 1
    aside = [path for path in disk.paths() if "/quarantine/" in path]
    assert any(path.endswith(".reason.json") for path in aside)
    assert any(disk.read_bytes(path)[frames[0].end - 4] for path in aside)
    assert log.plain(1, b"new").offset == 6


def test_segments_of_two_journals_are_refused(disk):
    """A foreign segment in the directory stops the start before anything is changed."""
    three_segments(disk).close()
    other = SimulatedFileSystem()
    DrivenLog(other, clock=SimulatedClock(99)).close()
    disk.write_bytes(segment_path(9), other.read_bytes(segment_path(1)))
    before = {path: disk.read_bytes(path) for path in disk.paths()}
    with pytest.raises(CorruptionError, match="different journals"):
        DrivenLog(disk)
    assert {path: disk.read_bytes(path) for path in disk.paths()} == before


def test_recovery_twice_gives_the_same_content(disk):
    """Killed again and again right after opening, the journal holds the same records (F11)."""
    log = three_segments(disk)
    wanted = {topic: c.records for topic, c in read_everything(log).items()}
    for _ in range(5):
        disk = disk.kill_clone()
        log = DrivenLog(disk)
        assert {topic: c.records for topic, c in read_everything(log).items()} == wanted
        assert not log.journal.report.lost


def test_offsets_never_fall_below_what_others_remember(disk):
    """A watermark above the log's end becomes a declared gap."""
    log = three_segments(disk)
    log.close()
    log = DrivenLog(disk, watermarks={1: 20})
    assert log.topic(1).next == 20
    assert [(topic, r.first, r.end, r.kind) for topic, r in log.journal.report.gaps] == [
        (1, 6, 20, "gap")
    ]
    assert log.plain(1, b"new").offset == 20
    assert fmt.KIND_GAP in {f.kind for f in walk_frames(dict_of(disk))[0]}


def dict_of(disk):
    return {path: disk.read_bytes(path) for path in disk.paths()}


@pytest.mark.parametrize("size", [128, 129, 300, 500])
def test_a_last_segment_cut_inside_its_checkpoint_is_survived(disk, size):
    """All that is left of it is the header: the segments before tell the state."""
    three_segments(disk).close()
    disk.corrupt(segment_path(3), lambda data: data.__delitem__(slice(size, None)))
    log = DrivenLog(disk)
    assert list(log.read(1).records) == [0, 1, 2, 3]
    assert isinstance(log.plain(1, b"new"), Ack)


@pytest.mark.parametrize("position", [130, 150, 200, 240])
def test_a_flip_in_the_checkpoint_of_a_fresh_segment_is_reported(disk, position):
    """A damaged checkpoint of a segment that has only its initial frames is damage, not a tail."""
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.journal.rotate()
    after = disk.kill_clone()
    after.flip(log.journal.active.path, position, 4)
    opened = DrivenLog(after).journal
    assert opened.report.warnings
    assert opened.report.quarantined
    assert opened.state.topics[1].next == 0


def three_topics(disk):
    """A killed journal with a record of each of three topics; return its path and their positions."""
    log = DrivenLog(disk)
    for topic in (1, 2, 3):
        log.create(topic, f"/default/{topic}")
    log.journal.rotate()
    for topic in (1, 2, 3):
        log.plain(topic, b"of topic %d" % topic)
    active = log.journal.active
    indexes = [active.indexes[topic] for topic in (1, 2, 3)]
    return active.path, [(p.positions[0] << 3, p.lengths[0]) for p in indexes]


def test_a_frame_in_the_place_of_another_does_not_hide_it(disk):
    """Where batches are missing and no bytes are bad, what may have been lost is reported."""
    path, [_first, (second, size), (third, _size)] = three_topics(disk)
    after = disk.kill_clone()
    after.overwrite(path, second, after.read_bytes(path)[third : third + size])
    after.overwrite(path, third, bytes(size))
    log = DrivenLog(after)
    assert log.read(2).covered(0)
    assert log.plain(2, b"new").offset > 0
    assert list(log.read(1).records) == [0]
    assert log.read(3).covered(0)


def test_a_frame_out_of_order_is_reported_as_lost(disk):
    """Of two frames that contradict each other one is kept, and the records of the other are reported."""
    path, [_first, (second, size), (third, _size)] = three_topics(disk)
    after = disk.kill_clone()
    data = after.read_bytes(path)
    after.overwrite(path, second, data[third : third + size])
    after.overwrite(path, third, data[second : second + size])
    log = DrivenLog(after)
    contents = [log.read(topic) for topic in (2, 3)]
    assert sorted(len(content.records) for content in contents) == [0, 1]
    assert all(content.records or content.covered(0) for content in contents)
    assert all(log.plain(topic, b"new").offset > 0 for topic in (2, 3))


def test_the_last_frame_inside_another_is_reported_as_lost(disk):
    """A frame that has moved into an older one is known to have been written, and is reported."""
    log = DrivenLog(disk)
    for topic in (1, 2, 3):
        log.create(topic, f"/default/{topic}")
    log.journal.rotate()
    log.plain(2, bytes(4000))
    for _each in range(3):
        log.plain(1, b"between")
    log.plain(3, b"last")
    indexes = log.journal.active.indexes
    target = (indexes[2].positions[0] << 3) + 800
    source, size = indexes[3].positions[0] << 3, indexes[3].lengths[0]
    after, path = disk.kill_clone(), log.journal.active.path
    after.overwrite(path, target, after.read_bytes(path)[source : source + size])
    after.overwrite(path, source, bytes(size))
    again = DrivenLog(after)
    assert again.read(2).covered(0)
    contents = {topic: again.read(topic) for topic in (1, 3)}
    wanted = [(1, 0), (1, 1), (1, 2), (3, 0)]
    assert all(o in contents[t].records or contents[t].covered(o) for t, o in wanted)
    assert again.plain(3, b"new").offset == 1
