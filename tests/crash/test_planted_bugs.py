"""The checker finds the bugs it is there for: each is planted here and must be found by it.

A plant replaces a part of the product for one test. The same seeds pass without it, so that what
is found is the plant and nothing else.
"""

from __future__ import annotations

import attrs
import pytest

from frazil.errors import CorruptionError, FrazilError
from frazil.log import LENGTH_UNKNOWN, FrameIndex, Group, Journal, Scanner, Survey, opening
from frazil.log import format as fmt
from tests.crash.checker import Violation
from tests.crash.damage import (
    DamagedSimulation,
    LastFrameDamage,
    LengthDamage,
    RewoundSimulation,
)
from tests.crash.simulation import Profile, Simulation
from tests.support import SimulatedFileSystem

SEEDS_MAX = 3000
FAILING_SYNCS = Profile(sync_fault_share=1.0)


def hunt(kind, profile, *, count, found_as):
    """Return the first seed that fails with `found_as`, None if none does.

    A planted bug may also trip the product's own assertions and checks; where the checker is to
    find it, those seeds do not count.
    """
    for seed in range(count):
        try:
            kind(seed, profile).run()
        except found_as:
            return seed
        except (AssertionError, FrazilError):
            continue
    return None


class OtherSync:
    """A file whose sync is somebody else's; everything else is its own."""

    def __init__(self, file, sync):
        self._file = file
        self.sync = sync

    def __getattr__(self, name):
        return getattr(self._file, name)


# -- the plants: each takes monkeypatch and changes one thing -------------------------------------


def ack_before_fsync(monkeypatch):
    honest = Journal._commit_some

    def hasty(self, entries, deliver):
        file = self._file
        due = []
        self._file = OtherSync(file, lambda: due.append(True))
        later = self._file
        honest(self, entries, deliver)
        if self._file is later:
            self._file = file
        if due:
            file.sync()

    monkeypatch.setattr(Journal, "_commit_some", hasty)


def wrong_file_after_rotation(monkeypatch):
    honest = Journal.rotate

    def rotate(self):
        path = self.active.path
        honest(self)
        old = self._file_system.open(path, "write")
        self._file = OtherSync(self._file, old.sync)

    monkeypatch.setattr(Journal, "rotate", rotate)


def no_directory_sync(monkeypatch):
    honest = SimulatedFileSystem.sync_directory

    def sync_directory(self, path):
        # The root is synced by the simulation itself.
        if path == "/":
            honest(self, path)

    monkeypatch.setattr(SimulatedFileSystem, "sync_directory", sync_directory)


def truncation_at_first_bad_frame(monkeypatch):
    def drop_tail(self, found, scan):
        if scan.faults:
            scan.cut(scan.faults[0].position, lsn=scan.faults[0].lsn_before)

    monkeypatch.setattr(Survey, "_drop_tail", drop_tail)


def _take_data(scanner, head, position, length):
    """Take a data frame into the scan, whatever it is."""
    scanner._extend_index(head.topic, [head.offset, position, length, head.time, head.records])
    scanner._passed(head, position)


def crc_without_length(monkeypatch):
    honest = Scanner._skip_fault

    def skip_fault(self):
        data = bytearray(self._file.read_at(self._position, 1 << 20))
        if len(data) >= fmt.FRAME_HEAD_BYTES:
            head = fmt.read_head(data, 0)
            inner = fmt.BODY_HEAD_BYTES + head.runs * fmt.RUN.size + head.size
            length = inner + (-inner & 7)
            right = head._replace(length=length)
            data[8:12] = length.to_bytes(4, "little")
            fits = head.salt == self._salt and head.length != length
            if fits and not fmt.frame_fault(memoryview(data), 0, right):
                # The frame is taken as it is, with the wrong length.
                _take_data(self, right, self._position, length + 16)
                self._position = min(self._position + 16 + head.length, self._end)
                self.result.end = self._position
                return
        honest(self)

    monkeypatch.setattr(Scanner, "_skip_fault", skip_fault)


def zero_frame_accepted(monkeypatch):
    # Recovery meets the frame again when it writes the tail anew, and refuses what does not follow.
    honest = Scanner._skip_fault

    def skip_fault(self):
        head = self._file.read_at(self._position, fmt.FRAME_HEAD_BYTES)
        indexes = self.result.indexes
        if len(head) == fmt.FRAME_HEAD_BYTES and not any(head) and indexes:
            topic, last = next(iter(indexes.items()))
            zero = fmt.read_head(head, 0)
            lsn = self.result.lsn + 1
            taken = zero._replace(
                offset=last.end, topic=topic, records=1, lsn=lsn, synced=lsn, length=72
            )
            _take_data(self, taken, self._position, fmt.FRAME_HEAD_BYTES)
            self._position += fmt.FRAME_HEAD_BYTES
            self.result.end = self._position
        honest(self)

    monkeypatch.setattr(Scanner, "_skip_fault", skip_fault)


def retry_after_failed_fsync(monkeypatch):
    honest = Journal._sync

    def sync(self):
        try:
            return honest(self)
        except OSError:
            return honest(self)

    monkeypatch.setattr(Journal, "_sync", sync)


def metadata_newer_than_log(monkeypatch):
    honest = opening.declare_gaps
    monkeypatch.setattr(opening, "declare_gaps", lambda topics, watermarks: honest(topics, {}))


def no_marker_after_last_group(monkeypatch):
    honest = Journal.write_marker

    def write_marker(self, *, close=False):
        if close:
            honest(self, close=True)
        self.marked_lsn = self.synced_lsn

    monkeypatch.setattr(Journal, "write_marker", write_marker)


def predecessors_cut_ignored(monkeypatch):
    honest = Survey._settle_older

    def settle(self, found, successor):
        header = successor.header._replace(previous_length=LENGTH_UNKNOWN)
        honest(self, found, attrs.evolve(successor, header=header))

    monkeypatch.setattr(Survey, "_settle_older", settle)


def unsynced_records_are_shown(monkeypatch):
    honest = Journal._apply

    def apply(self, group):
        honest(self, group)
        for topic in self._dirty.values():
            topic.durable = topic.next

    monkeypatch.setattr(Journal, "_apply", apply)


# -- what was found once, planted again -----------------------------------------------------------


def repeat_acked_without_its_sync(monkeypatch):
    honest = Group.finish

    def finish(self):
        sync = self.sync
        honest(self)
        self.sync = sync

    monkeypatch.setattr(Group, "finish", finish)


def start_of_before_the_freeing(monkeypatch):
    honest = opening.encode_checkpoint

    def encode(state, *, lsn):
        starts = {topic: topic.start for topic in state.topics.values()}
        for topic in starts:
            topic.start = 0
        data = honest(state, lsn=lsn)
        for topic, start in starts.items():
            topic.start = start
        return data

    monkeypatch.setattr(opening, "encode_checkpoint", encode)


def end_of_cut_frames_is_kept(monkeypatch):
    honest = FrameIndex.cut

    def cut(self, position, holes):
        end = self.end
        honest(self, position, holes)
        self.end = end

    monkeypatch.setattr(FrameIndex, "cut", cut)


PLANTS = (
    (ack_before_fsync, Simulation, Profile()),
    (wrong_file_after_rotation, Simulation, Profile()),
    (no_directory_sync, Simulation, Profile()),
    (truncation_at_first_bad_frame, DamagedSimulation, Profile()),
    (crc_without_length, LengthDamage, Profile()),
    (zero_frame_accepted, Simulation, Profile()),
    (retry_after_failed_fsync, Simulation, FAILING_SYNCS),
    (metadata_newer_than_log, RewoundSimulation, Profile()),
    (no_marker_after_last_group, LastFrameDamage, Profile()),
    (predecessors_cut_ignored, Simulation, Profile()),
    (unsynced_records_are_shown, Simulation, Profile()),
    (repeat_acked_without_its_sync, Simulation, Profile()),
    (start_of_before_the_freeing, Simulation, Profile()),
    (end_of_cut_frames_is_kept, Simulation, Profile()),
)


@pytest.mark.parametrize(
    ("plant", "kind", "profile"),
    PLANTS,
    ids=[plant.__name__ for plant, _, _ in PLANTS],
)
def test_a_planted_bug_is_found(plant, kind, profile, monkeypatch):
    """With the bug some seed breaks a promise; without it none of the same seeds does."""
    with monkeypatch.context() as patch:
        plant(patch)
        found_as = (Violation, CorruptionError) if plant is zero_frame_accepted else Violation
        found = hunt(kind, profile, count=SEEDS_MAX, found_as=found_as)
    assert found is not None
    print(f"found by seed {found}")
    for seed in range(found + 1):
        simulation = kind(seed, profile)
        simulation.run()
        assert simulation.recoveries
