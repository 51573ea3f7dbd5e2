"""The model of the tiers finds the bugs it is there for: each is planted and must be found.

The life that finds a bug has no failure without it, so that what is found is the plant.
"""

from __future__ import annotations

import pytest

from tests.crash.engine_world import many_lives
from tests.crash.tiers_plants import PLANTS
from tests.property.tiers_steps import failure

SEEDS_MAX = 60
STEPS = 36


@pytest.mark.timeout(0)
@pytest.mark.parametrize(("plant", "first"), PLANTS.items(), ids=[p.__name__ for p in PLANTS])
def test_a_planted_bug_of_the_tiers_is_found(plant, first, monkeypatch):
    """With the bug some life breaks a promise; without it the same life does not."""
    with many_lives():
        with monkeypatch.context() as patch:
            plant(patch)
            found = hunt(range(first, first + SEEDS_MAX))
        assert found is not None
        print(f"found by seed {found}")
        life, error = failure(found, steps=STEPS)
    assert error is None
    assert life.queries


def hunt(seeds):
    """Return the first seed whose life fails, None if none does."""
    for seed in seeds:
        if failure(seed, steps=STEPS)[1] is not None:
            return seed
    return None
