"""The single-threaded core: acks, groups, sync modes, rotation, full disks, failures, the end."""

from __future__ import annotations

import errno

import pytest

from frazil.errors import Closed, Conflict, Overloaded, Unavailable
from frazil.log.codec import PLAIN
from frazil.log.journal import SEGMENT_AGE_MAX_S
from frazil.model import Ack
from tests.crash.driven_log import DrivenLog, log_settings
from tests.support import SimulatedFileSystem
from tests.support.faulty_fs import Fault, FaultyFileSystem


@pytest.fixture
def disk():
    return SimulatedFileSystem()


@pytest.fixture
def log(disk):
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    return log


def faulty_log(disk, *faults, **settings):
    """A journal with one topic whose later calls fail as planned; the count starts behind that."""
    file_system = FaultyFileSystem(disk)
    log = DrivenLog(file_system, settings=log_settings(**settings))
    log.create(1, "/default/a")
    file_system.plan(*faults)
    return log


def test_offsets_are_dense_and_acks_name_them(log):
    """Each entry of a group gets the offsets behind the one before it."""
    topic = log.topic(1)
    acks = log.commit(
        (topic, PLAIN, b"a", 0, 1, None, None),
        (topic, PLAIN, (b"b", b"c", b"d"), 3, 3, None, None),
        (topic, PLAIN, b"e", 0, 1, None, None),
    )
    assert [(ack.offset, ack.offset_last) for ack in acks] == [(0, 0), (1, 3), (4, 4)]
    assert [r["payload"] for r in log.read(1).records.values()] == [b"a", b"b", b"c", b"d", b"e"]


def test_a_group_is_synced_once(disk, log):
    """However many topics wait, one sync acks them all."""
    for number in range(2, 12):
        log.create(number, f"/default/t{number}")
    before = disk.sync_count
    acks = log.commit(
        *[(log.topic(n), PLAIN, b"x", 0, 1, None, None) for n in range(1, 12) for _ in range(5)]
    )
    assert all(isinstance(ack, Ack) for ack in acks)
    assert disk.sync_count == before + 1


def test_mode_periodic_acks_before_the_sync(disk, log):
    """Readers see a record when it is synced, at the latest after the interval."""
    log.create(2, "/default/loose", sync="periodic")
    before = disk.sync_count
    for _ in range(10):
        assert isinstance(log.plain(2, b"x"), Ack)
    assert disk.sync_count == before
    assert log.read(2).records == {}
    log.clock.advance(log.settings.sync_interval_s)
    log.journal.tick()
    assert len(log.read(2).records) == 10


def test_a_marker_follows_a_pause_once(disk, log):
    """The last group is proven by a marker after the delay, and an idle log writes no more."""
    log.plain(1, b"x")
    log.clock.advance(1)
    log.journal.tick()
    assert log.journal.marked_lsn == log.journal.synced_lsn
    written = log.journal.active.body_end
    log.clock.advance(1)
    log.journal.tick()
    assert log.journal.active.body_end == written


def test_rotation_by_size_and_by_age(disk):
    """A segment that is full or old is followed by another."""
    log = DrivenLog(disk, settings=log_settings(segment_bytes_max=64 << 10))
    log.create(1, "/default/a")
    for _ in range(3):
        log.plain(1, bytes(40 << 10))
    assert len(log.journal.segments) == 3
    log.clock.advance(SEGMENT_AGE_MAX_S + 1)
    log.journal.tick()
    assert len(log.journal.segments) == 4
    assert len(log.read(1).records) == 3


def test_a_full_disk_refuses_the_group_and_goes_on(disk):
    """Nothing of a refused group is written, and the next one is taken when there is room (F7)."""
    log = faulty_log(disk, Fault("write_at", error=errno.ENOSPC))
    assert isinstance(log.plain(1, b"refused"), Overloaded)
    assert log.plain(1, b"taken").offset == 0
    again = DrivenLog(disk.crash_clone(1))
    assert [r["payload"] for r in again.read(1).records.values()] == [b"taken"]


@pytest.mark.parametrize("verb", ["open", "write_at", "sync", "rename"])
def test_no_room_for_the_next_segment_is_no_failure(disk, verb):
    """When rotation meets a full disk the group is refused, the old segment stays, and later the
    rotation succeeds.
    """
    log = faulty_log(disk, segment_bytes_max=64 << 10)
    assert isinstance(log.plain(1, bytes(60 << 10)), Ack)
    log.journal._file_system.plan(Fault(verb, error=errno.ENOSPC))
    assert isinstance(log.plain(1, bytes(30 << 10)), Overloaded)
    assert log.journal.failed is None
    assert log.plain(1, bytes(30 << 10)).offset == 1
    assert len(log.journal.segments) == 2
    assert log.journal._file_system.sync_retried == 0


def test_rotation_by_age_waits_for_room(disk):
    """The clock's rotation is tried again later when the disk is full."""
    log = faulty_log(disk, Fault("open", error=errno.ENOSPC))
    log.plain(1, b"x")
    log.clock.advance(SEGMENT_AGE_MAX_S + 1)
    assert log.journal.tick() is not None
    assert len(log.journal.segments) == 1
    log.journal.tick()
    assert len(log.journal.segments) == 2


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_failed_sync_stops_the_journal_for_good(disk, error):
    """The waiters get an unknown outcome, later calls are closed, and nothing is synced again."""
    log = faulty_log(disk, Fault("sync", error=error))
    answer = log.plain(1, b"x")
    assert isinstance(answer, Unavailable)
    assert answer.details["outcome"] == "unknown"
    assert isinstance(log.plain(1, b"y"), Closed)
    assert log.journal.tick() is None
    log.close()
    assert log.journal._file_system.sync_retried == 0
    assert log.journal._file_system.writes_after_failed_sync == 0


def test_a_failed_footer_is_not_tried_again(disk):
    """A segment whose footer could not be synced stays readable and is sealed at the next open."""
    log = faulty_log(disk)
    log.plain(1, b"x")
    log.journal.rotate()
    log.journal._file_system.plan(Fault("sync"))
    with pytest.raises(OSError, match="injected"):
        log.journal.seal_one()
    assert not log.journal.seal_one()
    assert len(log.read(1).records) == 1
    assert log.journal._file_system.sync_retried == 0
    again = DrivenLog(disk.crash_clone(5))
    assert len(again.read(1).records) == 1


def test_freeing_while_a_seal_waits(disk, log):
    """A segment that is freed before it is sealed is simply gone."""
    log.plain(1, b"old")
    log.journal.rotate()
    log.plain(1, b"new")
    log.free(2)
    assert not log.journal.seal_one()
    assert list(log.read(1).records) == [1]


def test_a_directory_that_cannot_be_synced_stops_the_journal(disk):
    """After a failed sync of the directory the next rotation must not act as if it held."""
    log = faulty_log(disk, Fault("sync_directory"))
    log.plain(1, b"x")
    with pytest.raises(OSError, match="injected"):
        log.journal.unlink([])
    assert log.journal.failed is not None


def test_opening_on_a_bad_disk_is_unavailable(disk):
    """A call that fails while opening is reported with the path, not as a bare error of the system."""
    for fault in (Fault("list_directory"), Fault("open"), Fault("rename", error=errno.EROFS)):
        with pytest.raises(Unavailable, match="path=/data/journal") as caught:
            DrivenLog(FaultyFileSystem(SimulatedFileSystem(), [fault]))
        assert isinstance(caught.value.__cause__, OSError)


def test_new_parents_of_the_directory_are_durable(disk):
    """A power cut right after the first ack does not lose the directories on the way."""
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.plain(1, b"x")
    for seed in range(10):
        again = DrivenLog(disk.crash_clone(seed))
        assert len(again.read(1).records) == 1


def test_a_repeat_of_a_producer_gets_the_first_ack(disk, log):
    """Also after rotation, freeing of the segment that held it, and a restart."""
    first = log.plain(1, b"x", b"y", producer="p", sequence=0)
    assert log.plain(1, b"x", b"y", producer="p", sequence=0) == first
    log.journal.rotate()
    log.free(2)
    assert log.plain(1, b"x", b"y", producer="p", sequence=0) == first
    log = DrivenLog(disk.kill_clone())
    assert log.plain(1, b"x", b"y", producer="p", sequence=0) == first
    assert log.plain(1, b"z", producer="p", sequence=2).offset == 2
    assert isinstance(log.plain(1, b"z", producer="p", sequence=9), Conflict)


def test_closing_twice_is_fine_and_closed_refuses(log):
    """After close every waiter gets Closed."""
    log.close()
    log.close()
    assert isinstance(log.plain(1, b"x"), Closed)
