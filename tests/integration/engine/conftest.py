"""Fixtures of the tests of the lake: one engine a module."""

from __future__ import annotations

import pytest

from tests.integration.engine.lake_engine import opened


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One engine for all tests that do not open another."""
    with opened(tmp_path_factory.mktemp("lake")) as found:
        yield found


@pytest.fixture
def db(world):
    """Return the shared engine."""
    return world[0]


@pytest.fixture
def stand_in(world):
    """Return the shared engine's worker, without any fault."""
    yield world[1]
    world[1].die_at, world[1].refuse, world[1].slow_s, world[1].answers = "", None, 0.0, {}
