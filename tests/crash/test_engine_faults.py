"""Each call of the file seam fails once under a whole engine: metadata, upkeep and all."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from frazil.config import Settings
from frazil.engine import Engine
from frazil.errors import FrazilError
from tests.support.faulty_fs import Fault, FaultyFileSystem
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_fs import SimulatedFileSystem

VERBS = (
    "open",
    "read_at",
    "write_at",
    "sync",
    "truncate",
    "rename",
    "unlink",
    "make_directory",
    "list_directory",
    "sync_directory",
    "stat",
    "space",
    "allocate",
    "lock",
)
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EMFILE)
CALLS_MAX = 400
STEP_DENSE = 12
"""Every n-th call up to here is failed, beyond it one in seven: recovery repeats itself."""
SETTINGS = Settings(
    data_dir="/data",
    log={
        "segment_bytes_max": 2 << 20,
        "write_bytes_max": 32 << 10,
        "free_bytes_min": 0,
        "free_ratio_min": 0.0,
        "ballast_bytes": 4096,
    },
    topics={"message_bytes_max": 16 << 10},
)


def _engine(file_system):
    return Engine(SETTINGS, file_system=file_system, clock=SimulatedClock(3), threads=False)


def _rotate(journal):
    """Rotate as a full segment does: an error of the disk ends the journal."""
    try:
        journal.rotate()
    except OSError as error:
        journal.fail(error)


def _work(file_system, acked):
    """Do a little of everything; note what was acked as fsynced, by topic."""
    engine = _engine(file_system)
    try:
        for name in ("a", "b"):
            engine.create_topic(name, exist_ok=True)
        engine.create_topic("rows", {"id": "long"}, exist_ok=True)
        for number in range(3):
            for name in ("a", "b"):
                payload = b"%s-%d" % (name.encode(), number)
                ack = engine.topic(name).append(payload)
                acked.setdefault(name, {})[ack.offset] = payload
            ack = engine.topic("rows").append(id=number)
            acked.setdefault("rows", {})[ack.offset] = number
        _rotate(engine.log.journal)
        engine.upkeep.run_once()
        if "h" not in engine.describe("a")["holds"]:
            engine.topic("a").hold("h", engine.topic_stats("a")["durable"])
    finally:
        engine.close()


def _held(engine, name):
    column = "id" if name == "rows" else "payload"
    return {
        record["_offset"]: record[column]
        for batch in engine.topic(name).read()
        for record in batch.records()
    }


def _check(disk, acked):
    """Without faults the directory opens, and every acked record is at its offset."""
    engine = _engine(disk)
    try:
        for name, records in acked.items():
            held = _held(engine, name)
            assert {offset: held.get(offset) for offset in records} == records, name
    finally:
        engine.close()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("verb", VERBS)
def test_an_engine_stops_cleanly_or_goes_on(verb, error):
    """Whichever call fails, only errors of ours come out, and acked records are there again."""
    fired = 0
    nth = 1
    while nth < CALLS_MAX:
        disk = SimulatedFileSystem()
        acked = {}
        _work(disk, acked)
        faulty = FaultyFileSystem(disk, [Fault(verb, nth=nth, error=error)])
        with suppress(FrazilError, OSError) if verb == "space" else suppress(FrazilError):
            _work(faulty, acked)
        assert not faulty.sync_retried, nth
        if not faulty.fired:
            break
        fired += 1
        _check(disk.crash_clone(nth), acked)
        _check(disk.kill_clone(), acked)
        nth += 1 if nth < STEP_DENSE else 7
    assert fired or verb in {"allocate", "make_directory", "rename", "unlink", "truncate"}
