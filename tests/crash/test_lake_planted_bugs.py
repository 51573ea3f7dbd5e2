"""The world of the commit protocol finds the bugs it is there for: each is planted and found.

The life that finds a bug has no failure without it, so that what is found is the plant.
"""

from __future__ import annotations

import pytest

from tests.crash.lake_plants import PLANTS
from tests.crash.lake_world import World

SEEDS_MAX = 400
EVENTS_A_LIFE = 90


@pytest.mark.timeout(0)
@pytest.mark.parametrize("plant", PLANTS, ids=[plant.__name__ for plant in PLANTS])
def test_a_planted_bug_of_the_protocol_is_found(plant, monkeypatch):
    """With the bug some life breaks a promise; without it the same life does not."""
    with monkeypatch.context() as patch:
        plant(patch)
        found = next((seed for seed in range(SEEDS_MAX) if failure(seed) is not None), None)
        assert found is not None
        print(f"found by seed {found}: {failure(found)}")
    assert failure(found) is None


def failure(seed):
    """Return what the life of a seed breaks, None if it breaks nothing."""
    try:
        World(seed).live(EVENTS_A_LIFE)
    except AssertionError as error:
        return error
    return None
