"""State frames of tags that format 1 leaves free: kept by key, carried on, removed."""

from __future__ import annotations

import msgspec
import pytest

from frazil.errors import InvalidRequest
from frazil.log import format as fmt
from frazil.log.state import STATE_FIRST_FREE
from frazil.model import Ack
from tests.crash.driven_log import DrivenLog
from tests.support import SimulatedFileSystem

TAG = STATE_FIRST_FREE + 1


def put(log, key, value, tag=TAG):
    return log.control(fmt.KIND_STATE, 0, msgspec.msgpack.encode((tag, key, value)))


@pytest.fixture
def disk():
    return SimulatedFileSystem()


@pytest.fixture
def log(disk):
    return DrivenLog(disk)


def test_the_last_value_of_a_key_counts(log):
    """A key is set, changed and removed; tags do not mix."""
    put(log, "a", b"1")
    put(log, "a", b"2")
    put(log, "b", b"3")
    put(log, "a", b"other", tag=TAG + 1)
    assert log.journal.state.values == {
        (TAG, "a"): b"2",
        (TAG, "b"): b"3",
        (TAG + 1, "a"): b"other",
    }
    put(log, "a", None)
    put(log, "never", None)
    assert log.journal.state.values == {(TAG, "b"): b"3", (TAG + 1, "a"): b"other"}


def test_values_survive_rotation_freeing_and_power_loss(disk, log):
    """Nothing but the newest checkpoint and the frames behind it is needed."""
    put(log, "kept", b"1")
    put(log, "removed", b"2")
    log.journal.rotate()
    put(log, "removed", None)
    log.journal.rotate()
    log.free(log.journal.active.id)
    put(log, "late", b"3")
    expected = {(TAG, "kept"): b"1", (TAG, "late"): b"3"}
    assert len(log.journal.segments) == 1
    for clone in (disk.kill_clone(), disk.crash_clone(5)):
        assert DrivenLog(clone).journal.state.values == expected


def test_a_frame_that_is_no_state_is_refused(log):
    """A payload of another shape is not written, and the log goes on."""
    lsn = log.journal.state.lsn
    assert isinstance(log.control(fmt.KIND_STATE, 0, b"\xff"), InvalidRequest)
    assert isinstance(
        log.control(fmt.KIND_STATE, 0, msgspec.msgpack.encode((TAG, 5, b""))), InvalidRequest
    )
    assert log.journal.state.lsn == lsn
    assert isinstance(put(log, "a", b"1"), Ack)


def test_an_empty_value_is_not_a_removal(disk, log):
    """Only nil removes a key."""
    put(log, "a", b"")
    assert DrivenLog(disk.crash_clone(1)).journal.state.values == {(TAG, "a"): b""}
