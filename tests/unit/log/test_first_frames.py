"""Bytes that a segment was born with are never taken for a torn tail."""

from __future__ import annotations

import msgspec
import pytest

from frazil.config import Settings
from frazil.log import format as fmt
from frazil.log.codec import Control
from frazil.log.journal import Journal
from frazil.model import TopicSpec
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_fs import SimulatedFileSystem

SETTINGS = Settings()


def _open(file_system: SimulatedFileSystem) -> Journal:
    return Journal.open(
        file_system,
        "/data/journal",
        clock=SimulatedClock(1),
        settings=SETTINGS.log,
        producers=SETTINGS.producers,
    )


@pytest.mark.parametrize("position", [130, 150, 200, 240])
def test_a_flip_in_the_checkpoint_of_a_fresh_segment_is_reported(position: int) -> None:
    """A damaged checkpoint of a segment that has only its initial frames is damage, not a tail."""
    file_system = SimulatedFileSystem()
    journal = _open(file_system)
    spec = TopicSpec(id=1, name="/default/a", kind="message", created_us=1)
    control = Control(fmt.KIND_TOPIC, 1, msgspec.msgpack.encode(spec))
    journal.commit([(None, None, control, 0, 0, None, None)], lambda _waiters, _results: None)
    journal.rotate()
    path = journal.active.path
    after = file_system.kill_clone()

    def flip(data: bytearray) -> None:
        data[position] ^= 4

    after.corrupt(path, flip)
    opened = _open(after)
    assert opened.report.warnings
    assert opened.report.quarantined
    assert 1 in opened.state.topics
    assert opened.state.topics[1].next == 0
