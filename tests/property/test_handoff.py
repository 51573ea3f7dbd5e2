"""Readers at random offsets while records are written, moved, uploaded and given up.

`FRAZIL_TEST_HANDOFF_SEEDS` says how many lives are tried.
"""

from __future__ import annotations

import os

import pytest

from frazil.errors import NotFound
from frazil.log import ChainedHistory
from frazil.objects import ObjectsSource
from tests.crash.checker import Violation
from tests.property.handoff_world import failure

SEEDS = int(os.environ.get("FRAZIL_TEST_HANDOFF_SEEDS", "100"))
PARTS = 2
PLANTED_SEEDS_MAX = 20


@pytest.mark.parametrize("part", range(PARTS))
def test_every_reader_sees_each_offset_once_and_in_order(part):
    """Whatever moves meanwhile, no reader meets a gap, a repeat or another record."""
    lives = 0
    for seed in range(part, SEEDS, PARTS):
        world, error = failure(seed)
        if error is not None:
            print(*world.history[-40:], sep="\n")
        assert error is None, f"seed {seed}: {error!r}"
        lives += 1
    assert lives == len(range(part, SEEDS, PARTS))


def test_the_same_seed_is_the_same_life():
    """A seed repeats every step."""
    assert failure(3)[0].history == failure(3)[0].history


def found_by():
    """Return the first error that a few lives meet."""
    errors = (failure(seed)[1] for seed in range(PLANTED_SEEDS_MAX))
    return next((error for error in errors if error is not None), None)


def test_a_reader_that_leaves_out_a_record_is_found(monkeypatch):
    """The checks see a reader of objects that skips a record now and then."""
    whole = ObjectsSource._batches

    def skipping(self, picture, index, offset, bytes_max):
        batches = whole(self, picture, index, offset, bytes_max)
        if offset % 7 == 3 and batches[0].count > 1:
            batches[0] = batches[0].slice(1)
        return batches

    monkeypatch.setattr(ObjectsSource, "_batches", skipping)
    assert isinstance(found_by(), Violation)


def test_a_chain_that_forgets_objects_is_found(monkeypatch):
    """A chain that does not ask the objects is found: the checks see it, or no record is there."""
    whole = ChainedHistory._look

    def forgetting(self, topic, offset, bytes_max):
        near = ChainedHistory(self._sources)
        return whole(near, topic, offset, bytes_max)

    monkeypatch.setattr(ChainedHistory, "_look", forgetting)
    assert isinstance(found_by(), Violation | NotFound)
