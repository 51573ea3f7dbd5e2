"""What a hostile reading of the journal found, each as a short story."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

import frazil
from frazil.errors import Closed, InvalidRequest, NotFound, Overloaded, Unavailable
from frazil.log import format as fmt
from frazil.log.codec import PLAIN, Control, PlainCodec
from frazil.log.space import SpaceGuard
from tests.crash.driven_log import DrivenLog, log_settings
from tests.support.faulty_fs import Fault, FaultyFileSystem
from tests.support.simulated_fs import SimulatedFileSystem


def payloads(log):
    """Return the payloads of topic 1 in order."""
    piece = log.source.read(1, offset=0, bytes_max=1 << 20)
    found = [value for batch in piece.batches for value in batch.data.column("payload").to_pylist()]
    if piece.offset_next < log.topic(1).durable:
        piece = log.source.read(1, offset=piece.offset_next, bytes_max=1 << 20)
        found += [v for batch in piece.batches for v in batch.data.column("payload").to_pylist()]
    return found


def test_a_control_frame_that_cannot_be_applied_is_refused_before_it_is_written():
    """A frame that no later opening could apply never reaches the disk."""
    disk = SimulatedFileSystem()
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    bad = msgspec.msgpack.encode((2, b"not a text", (1, 0)))
    answer = log.commit((None, None, Control(fmt.KIND_STATE, 1, bad), 0, 0, None, None))[0]
    assert isinstance(answer, InvalidRequest)
    assert isinstance(log.commit((log.topic(1), PLAIN, b"x", 0, 1, None, None))[0], frazil.Ack)
    log.close()
    assert DrivenLog(disk).topic(1).next == 1


def test_a_record_that_cannot_be_encoded_is_refused_alone():
    """A codec that fails in an unexpected way costs its own entry, not the journal."""

    class Broken(PlainCodec):
        def encode(self, records):
            raise TypeError(records)

    log = DrivenLog(SimulatedFileSystem())
    log.create(1, "/default/a")
    topic = log.topic(1)
    answers = log.commit(
        (topic, PLAIN, b"good", 0, 4, None, None),
        (topic, Broken(), b"bad", 0, 3, None, None),
        (topic, PLAIN, b"good", 0, 4, None, None),
    )
    assert [type(answer) for answer in answers] == [frazil.Ack, InvalidRequest, frazil.Ack]
    assert log.journal.failed is None


def test_an_offset_that_was_freed_meanwhile_is_never_skipped():
    """A reader that finds a later frame than it asked for gets an error, not the later frame."""
    log = DrivenLog(SimulatedFileSystem())
    log.create(1, "/default/a")
    log.plain(1, b"first")
    log.journal.rotate()
    log.plain(1, b"second")
    # The moment between two steps of freeing: the segment is out of sight, the start not raised.
    log.journal.segments = log.journal.segments[1:]
    with pytest.raises(frazil.errors.CorruptionError):
        log.source.read(1, offset=0, bytes_max=1 << 20)
    log.topic(1).start = 1
    with pytest.raises(NotFound):
        log.source.read(1, offset=0, bytes_max=1 << 20)


def test_sealing_twice_keeps_the_index():
    """A segment that is sealed already keeps the footer it has."""
    log = DrivenLog(SimulatedFileSystem())
    log.create(1, "/default/a")
    log.plain(1, b"x")
    log.journal.rotate()
    again = list(log.journal.to_seal)
    assert log.journal.seal_one()
    log.journal.to_seal = again
    assert log.journal.seal_one()
    assert payloads(log) == [b"x"]


def test_no_descriptors_at_rotation_is_no_failure():
    """Without descriptors the group is refused, the old segment stays, and later it goes on."""
    disk = SimulatedFileSystem()
    faulty = FaultyFileSystem(disk)
    log = DrivenLog(faulty, settings=log_settings())
    log.create(1, "/default/a")
    log.plain(1, b"x")
    faulty.plan(Fault("open", error=errno.EMFILE, persistent=True, path_part=".new"))
    with pytest.raises(Overloaded):
        log.journal.rotate()
    assert log.journal.failed is None
    faulty.plan()
    log.journal.rotate()
    log.plain(1, b"y")
    assert payloads(log) == [b"x", b"y"]


def test_what_was_never_synced_is_not_read_after_a_failure():
    """After a failed sync readers see the durable records only."""
    disk = SimulatedFileSystem()
    faulty = FaultyFileSystem(disk)
    log = DrivenLog(faulty)
    log.create(1, "/default/a", sync="periodic")
    log.plain(1, b"durable", sync=True)
    log.plain(1, b"not synced")
    faulty.plan(Fault("sync", persistent=True))
    answer = log.plain(1, b"asks", sync=True)
    assert isinstance(answer, Unavailable)
    assert log.topic(1).durable == 1


def test_a_journal_without_segments_keeps_what_others_remember():
    """When all files are gone, known topics come back with a lost range; no offset is used again."""
    disk = SimulatedFileSystem()
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    for _each in range(3):
        log.plain(1, b"x")
    spec = log.topic(1).spec
    log.close()
    for path in disk.paths():
        if path.endswith(".seg"):
            disk.unlink(path)
    again = DrivenLog(disk, watermarks={1: 3}, known_topics={1: (spec, {})})
    assert again.topic(1).next == 3
    assert again.journal.report.lost
    assert again.plain(1, b"y").offset == 3


def test_a_ballast_that_cannot_be_kept_stops_nothing():
    """Trouble with the ballast neither blocks publishing nor hides that the disk is full."""
    disk = SimulatedFileSystem(capacity_bytes=1 << 30)
    disk.make_directory("/data")
    faulty = FaultyFileSystem(disk, [Fault("allocate", persistent=True)])
    settings = log_settings().model_copy(
        update={"ballast_bytes": 1 << 20, "free_bytes_min": 1 << 20, "free_ratio_min": 0.0}
    )
    guard = SpaceGuard(faulty, "/data", settings)
    assert guard.check() is False
    assert guard.blocked is False


def test_a_forked_child_leaves_the_files_to_its_parent(tmp_path):
    """Every call of a child on its parent's engine is refused, and closing it changes nothing."""
    with frazil.open(tmp_path / "data") as db:
        topic = db.create_topic("t")
        topic.append(b"before")
        child = os.fork()
        if child == 0:
            status = 1
            try:
                topic.append(b"from the child")
            except Closed:
                db.close()
                status = 0
            finally:
                os._exit(status)
        _pid, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        for number in range(50):
            topic.append(b"%d" % number)
        assert topic.stats()["message_count"] == 51
    with frazil.open(tmp_path / "data") as db:
        assert sum(batch.count for batch in db.topic("t").read()) == 51
        assert db.stats()["health"] == "ok"


def test_a_marker_behind_lost_frames_tells_the_sequence():
    """Frames lost before a marker, then frames nobody proves: the successor's sequence fits them."""
    disk = SimulatedFileSystem()
    log = DrivenLog(disk)
    log.create(1, "/default/a")
    log.plain(1, b"lost")
    log.journal.write_marker()
    log.plain(1, b"unproven")
    after = disk.kill_clone()
    index = log.journal.active.indexes[1]
    path = log.journal.active.path
    after.overwrite(path, index.positions[0] << 3, bytes(index.lengths[0]))
    again = DrivenLog(after)
    assert again.journal.report.lost
    assert again.topic(1).next == 2
    once_more = DrivenLog(after.kill_clone())
    assert not once_more.journal.report.lost
    assert once_more.topic(1).next == 2
