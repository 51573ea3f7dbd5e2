"""Any call of the file seam may fail: the journal stops cleanly or goes on, and restarts right."""

from __future__ import annotations

import errno
import os

import msgspec
import pytest

from frazil.errors import Closed, FrazilError, Overloaded, Unavailable
from frazil.model import Ack
from tests.crash.driven_log import DrivenLog, log_settings
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.faulty_fs import VERBS, Fault, FaultyFileSystem
from tests.support.log_limits import set_log_limits

EXHAUSTIVE = bool(os.environ.get("FRAZIL_EXHAUSTIVE"))
SAFE, LOOSE = 1, 2
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)
MORE_ERRORS = (errno.EDQUOT, errno.EINTR)
CALLS_MAX = 400
SETTINGS = log_settings(segment_bytes_max=64 << 10)
LIMITS = {"prefill_bytes": 256, "segment_age_max_s": 30.0, "open_files_max": 2}


class History(msgspec.Struct):
    """What the workload sent, and the answers."""

    acked: dict
    refused: set
    unknown: set
    stopped: list
    freed: bool = False

    def note(self, topic, payloads, answer):
        """Take down one answer; anything else than these four is a bug."""
        if isinstance(answer, Ack):
            for number, payload in enumerate(payloads):
                self.acked[topic, answer.offset + number] = payload
        elif isinstance(answer, Overloaded | Closed):
            self.refused.update(payloads)
        else:
            assert isinstance(answer, Unavailable), answer
            assert answer.details["outcome"] == "unknown"
            self.unknown.update(payloads)


class Workload:
    """A script over every part of the journal; a failure ends a step, never the checking."""

    def __init__(self, file_system):
        self.file_system = file_system
        self.history = History({}, set(), set(), [])
        self.clock = SimulatedClock(3)
        self.number = 0
        self.log = None

    def run(self):
        """Run the script twice over the same directory: a first life and a second one."""
        for life in range(2):
            try:
                set_log_limits(**LIMITS)
                self.log = DrivenLog(self.file_system, clock=self.clock, settings=SETTINGS)
            except FrazilError as error:
                self.history.stopped.append(error)
                return
            self._life(life)
            self.log.close()
            if self.log.journal.failed is not None:
                return

    def _life(self, life):
        if not life:
            self.log.create(SAFE, "/default/safe")
            self.log.create(LOOSE, "/default/loose", sync="periodic")
        for step in range(4):
            self._append(SAFE)
            self._append(LOOSE)
            self._append(SAFE, size=3)
            self.clock.advance(0.1)
            self.log.journal.tick()
            self._background()
            if step in (0, 2):
                self._age()
        if life:
            self._free()

    def _append(self, topic, size=1):
        if topic not in self.log.journal.state.topics:
            return
        payloads = [b"%d of %d" % (self.number + i, topic) for i in range(size)]
        self.number += size
        self.history.note(topic, payloads, self.log.plain(topic, *payloads))

    def _age(self):
        self.clock.advance(40)
        self.log.journal.tick()

    def _background(self):
        """Seal as the engine does: an error is kept for the report, and the next turn goes on."""
        try:
            while self.log.journal.failed is None and self.log.journal.seal_one():
                pass
        except OSError as error:
            self.history.stopped.append(error)

    def _free(self):
        try:
            answer = self.log.free(self.log.journal.active.id - 1)
            self.history.freed = self.history.freed or not isinstance(answer, Overloaded)
        except OSError as error:
            self.history.freed = True
            self.history.stopped.append(error)


def check_restart(history, file_system):
    """A restart without faults shows every synced record and nothing that was not sent."""
    log = DrivenLog(file_system, clock=SimulatedClock(9, now_us=1_760_000_000_000_000))
    assert not log.journal.report.lost, log.journal.report
    for topic in log.journal.state.topics:
        content = log.read(topic)
        read = {offset: record["payload"] for offset, record in content.records.items()}
        assert not set(read.values()) & history.refused, "refused, but it is there"
        assert len(set(read.values())) == len(read), "a record is there twice"
        for offset, payload in read.items():
            known = history.acked.get((topic, offset))
            assert known == payload or (known is None and payload in history.unknown)
        acked = {o: p for (t, o), p in history.acked.items() if t == topic}
        if topic == SAFE:
            missing = {o for o in acked if o not in read and o >= content.start}
            assert not missing, f"acked as fsynced and gone: {missing}"
            assert history.freed or content.start == 0
        new = log.plain(topic, b"after the restart", sync=True)
        # Of a topic that is not synced with each group, lost offsets are given again.
        used = acked if topic == SAFE else read
        assert new.offset > max(used, default=-1), "offset used twice"
    if any(topic == SAFE for topic, _ in history.acked):
        assert SAFE in log.journal.state.topics
    log.close()
    assert log.journal.failed is None


def run_with(fault):
    """Run the workload under a fault and check it; return whether the fault fired."""
    disk = SimulatedFileSystem()
    faulty = FaultyFileSystem(disk, [fault])
    workload = Workload(faulty)
    workload.run()
    assert faulty.sync_retried == 0, "a failed sync was tried again"
    assert faulty.writes_after_failed_sync == 0
    check_restart(workload.history, disk.kill_clone())
    check_restart(workload.history, disk.crash_clone(fault.nth))
    return faulty.fired > 0


def sweep(**fields):
    """Fail the first call, the second one and so on, until there are no more."""
    for nth in range(1, CALLS_MAX):
        fault = Fault(nth=nth, **fields)
        try:
            fired = run_with(fault)
        except Exception as error:
            error.add_note(f"fault: {fault}")
            raise
        if not fired:
            return nth - 1
    raise AssertionError("the sweep does not end")


@pytest.mark.parametrize("persistent", [False, True], ids=["once", "for-good"])
@pytest.mark.parametrize("error", ERRORS + (MORE_ERRORS if EXHAUSTIVE else ()))
@pytest.mark.parametrize("verb", VERBS)
def test_a_failing_call_stops_cleanly_or_is_survived(verb, error, persistent):
    """Whichever call fails, acked records are there after a restart and nothing else is."""
    count = sweep(verb=verb, error=error, persistent=persistent)
    used = verb not in ("space", "allocate", "lock")
    assert bool(count) == used, "the workload does not use this verb as it should"


@pytest.mark.parametrize("verb", ["read_at", "write_at"])
@pytest.mark.parametrize("short", ["one", "half"])
def test_a_short_call_is_continued(verb, short):
    """A read or a write that moves fewer bytes than asked for is gone on with."""
    assert sweep(verb=verb, short=short)
    assert sweep(verb=verb, short="half", persistent=True)


def test_without_faults_the_workload_reaches_everything():
    """The script rotates, seals, marks, frees and reopens, and every record is acked."""
    disk = SimulatedFileSystem()
    faulty = FaultyFileSystem(disk)
    workload = Workload(faulty)
    workload.run()
    history = workload.history
    assert (history.refused, history.unknown, history.stopped) == (set(), set(), [])
    assert len(history.acked) == workload.number
    assert history.freed
    verbs = {call.verb for call in faulty.trace}
    assert {"rename", "unlink", "truncate", "sync_directory", "list_directory"} <= verbs
    check_restart(history, disk.kill_clone())
