"""What simulated crashes found once, each as the shortest story that shows it."""

from __future__ import annotations

import pytest

from frazil.log import Producer, Sent
from frazil.model import Ack
from tests.crash.checker import check_report
from tests.crash.driven_log import DIRECTORY, DrivenLog
from tests.crash.simulation import SETTINGS
from tests.support import (
    SECTOR_BYTES,
    Fault,
    FaultyFileSystem,
    SimulatedClock,
    SimulatedCrash,
    SimulatedFileSystem,
)
from tests.support.log_limits import set_log_limits


def new_disk():
    disk = SimulatedFileSystem(1)
    disk.make_directory("/data")
    disk.sync_directory("/")
    return disk


def open_log(file_system, seed=1):
    return DrivenLog(file_system, clock=SimulatedClock(seed), settings=SETTINGS[1])


def payloads(log):
    content = log.read(1)
    assert not content.gaps
    return [record["payload"] for record in content.records.values()]


def crash_at(disk, event):
    """Let the disk crash at the first sync point whose name starts like this."""

    def on_sync(name):
        if name.startswith(event):
            raise SimulatedCrash

    disk.on_sync = on_sync


@pytest.mark.parametrize("parent", ["/data", DIRECTORY])
def test_names_of_a_killed_process_are_made_durable(parent):
    """Directories that a killed process made hold fsynced records that survive a power loss."""
    disk = new_disk()
    crash_at(disk, f"before sync_directory {parent}")
    with pytest.raises(SimulatedCrash):
        open_log(disk)
    disk = disk.kill_clone()
    log = open_log(disk)
    log.create(1, "/default/a")
    assert isinstance(log.plain(1, b"x"), Ack)
    again = open_log(disk.crash_clone(1, data="nothing", names="nothing"))
    assert payloads(again) == [b"x"]


def test_a_successors_name_does_not_outlive_its_predecessors():
    """A segment whose name only the cache knew is durable before its successor has one."""
    disk = new_disk()
    crash_at(disk, f"before sync_directory {DIRECTORY}")
    with pytest.raises(SimulatedCrash):
        open_log(disk)
    disk = disk.kill_clone()
    crash_at(disk, f"after rename {DIRECTORY}/0000000000000002.seg")
    with pytest.raises(SimulatedCrash):
        open_log(disk)
    for seed in range(40):
        journal = open_log(disk.crash_clone(seed, names="torn")).journal
        check_report(journal.report)
        assert journal.state.lsn == 0


def close_with_failing_sync(payload):
    """Return a disk whose journal was closed, but for the sync of its closing marker."""
    set_log_limits(prefill_bytes=0)
    disk = new_disk()
    log = open_log(disk)
    log.create(1, "/default/a")
    log.plain(1, b"x")
    log.close()
    faulty = FaultyFileSystem(disk)
    log = open_log(faulty)
    assert log.journal.report.resumed
    assert isinstance(log.plain(1, payload), Ack)
    # The next sync is the one of the closing marker.
    faulty.plan(Fault("sync"))
    log.close()
    assert log.journal.failed is not None
    return disk.kill_clone()


def test_a_closing_marker_from_a_failed_sync_leaves_no_hole():
    """A marker that only the cache holds does not become damage when the segment is resumed."""
    # In one of these sizes the marker ends where a sector does: what follows takes nothing along.
    for size in range(0, SECTOR_BYTES, 8):
        disk = close_with_failing_sync(bytes(size))
        log = open_log(disk, seed=2)
        assert log.journal.report.resumed
        log.plain(1, b"z")
        log.plain(1, b"last")
        again = open_log(disk.crash_clone(1, data="nothing", names="nothing"), seed=3)
        check_report(again.journal.report)
        assert payloads(again) == [b"x", bytes(size), b"z", b"last"]


def test_freed_segments_go_when_it_is_durable_that_they_are_free():
    """A kill before the sync of the freeing, then a power loss in recovery, loses nothing."""
    disk = new_disk()
    log = open_log(disk)
    log.create(1, "/default/a")
    log.plain(1, b"x")
    log.journal.rotate()
    crash_at(disk, "before sync ")
    with pytest.raises(SimulatedCrash):
        log.free(2)
    disk = disk.kill_clone()
    crash_at(disk, "before rename ")
    with pytest.raises(SimulatedCrash):
        open_log(disk)
    again = open_log(disk.crash_clone(1, data="nothing", names="everything"))
    check_report(again.journal.report)
    assert payloads(again) == [b"x"]


def test_a_freed_segment_that_is_gone_already_raises_no_alarm():
    """Of freed segments any may be gone after a power loss, in any order."""
    disk = new_disk()
    log = open_log(disk)
    log.create(1, "/default/a")
    for payload in (b"x", b"y", b"z"):
        log.plain(1, payload)
        log.journal.rotate()
    crash_at(disk, "before sync_directory")
    with pytest.raises(SimulatedCrash):
        log.free(4)
    left = set()
    for seed in range(40):
        clone = disk.crash_clone(seed, names="torn")
        left.add(tuple(path[-5] for path in clone.paths()))
        state = open_log(clone).journal.state
        assert state.topics[1].next == 3
        assert state.topics[1].start == 3
    assert ("2", "4") in left


def test_an_old_epoch_does_not_come_back_into_the_window():
    """A frame of an older epoch that replay shows again changes nothing in the window."""
    producer = Producer(1, 1, "p", epoch=1)
    old, new = Sent(7, 1, 0, 1, 10), Sent(0, 1, 1, 2, 11)
    producer.record(old, epoch=1)
    producer.record(new, epoch=2)
    producer.record(old, epoch=1)
    producer.record(new, epoch=2)
    assert list(producer.window) == [new]


def test_a_lost_first_record_of_a_topic_younger_than_the_freeing_is_reported():
    """A flipped bit in a topic's first frame does not make the frame pass for a freed one."""
    disk = SimulatedFileSystem()
    log = DrivenLog(disk)
    log.journal.rotate()
    log.free(2)
    log.create(1, "/default/a")
    log.plain(1, b"first")
    log.plain(1, b"second")
    position = log.journal.active.indexes[1].positions[0] << 3
    disk = disk.kill_clone()
    disk.corrupt(log.journal.active.path, lambda data: data.__setitem__(position + 90, 255))
    content = DrivenLog(disk).read(1)
    assert content.start == 0
    assert content.lost == [(0, 1)]
    assert list(content.records) == [1]


def swap(path, disk, *, one, two):
    """Exchange two sectors of a file."""

    def exchange(data):
        left, right = data[one : one + SECTOR_BYTES], data[two : two + SECTOR_BYTES]
        data[one : one + SECTOR_BYTES], data[two : two + SECTOR_BYTES] = right, left

    disk.corrupt(path, exchange)


@pytest.mark.parametrize("one", [0, SECTOR_BYTES, 6 * SECTOR_BYTES])
def test_the_last_sector_in_front_hides_no_older_record(one):
    """Newer frames that lie in front by mistake do not make older ones pass for torn."""
    disk = SimulatedFileSystem()
    log = DrivenLog(disk)
    for topic in (1, 2, 3):
        log.create(topic, f"/default/{topic}")
    log.journal.rotate()
    written = {1: [b"first"], 2: [], 3: []}
    log.plain(1, b"first")
    for number in range(20):
        payload = b"%d" % number * 150
        log.plain(2, payload)
        written[2].append(payload)
    position = log.journal.active.indexes[2].positions[-1] << 3
    last = (position + 2 * SECTOR_BYTES) // SECTOR_BYTES * SECTOR_BYTES
    # Fill up to the sector that will move, so that the newest records lie in it with whole frames.
    while log.journal.active.body_end < last:
        log.plain(1, b"filler")
        written[1].append(b"filler")
    for payload in (b"x", b"y"):
        log.plain(3, payload)
        written[3].append(payload)
    disk = disk.kill_clone()
    swap(log.journal.active.path, disk, one=one, two=last)
    again = DrivenLog(disk)
    assert again.journal.report.lost
    for topic, payloads_of in written.items():
        content = again.read(topic)
        for offset, payload in enumerate(payloads_of):
            if offset in content.records:
                assert content.records[offset]["payload"] == payload
            else:
                assert content.covered(offset), f"topic {topic}: {offset} is gone without a word"
    assert len(again.read(2).records) >= 15
