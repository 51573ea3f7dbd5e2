"""Uploads in many more lives than `make test` has: `FRAZIL_TEST_CRASH_SEEDS` of them."""

from __future__ import annotations

import os

import pytest

from tests.property.upload_world import command, failure

SEEDS = int(os.environ.get("FRAZIL_TEST_CRASH_SEEDS", "20000"))
BASE = int(os.environ.get("FRAZIL_TEST_UPLOAD_BASE", "100000"))
CHUNKS = 20


@pytest.mark.crash_long
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_many_lives_keep_every_promise(chunk):
    """Registered objects equal what was published, once each, and uploads come to an end."""
    lives = 0
    for seed in range(BASE + chunk, BASE + SEEDS, CHUNKS):
        world, error = failure(seed)
        if error is not None:
            print(*world.history[-40:], sep="\n")
        assert error is None, f"{error!r}; repeat with: {command(seed)}"
        lives += 1
    assert lives == len(range(chunk, SEEDS, CHUNKS))
