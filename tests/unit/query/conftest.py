"""Small tiers with a query engine over them."""

from __future__ import annotations

import pytest

from tests.unit.query.small_tiers import SmallTiers


@pytest.fixture
def tiers(tmp_path):
    directory = tmp_path / "tiers"
    directory.mkdir()
    return SmallTiers(directory)


@pytest.fixture
def engine(tiers):
    engine = tiers.engine()
    yield engine
    engine.close()
