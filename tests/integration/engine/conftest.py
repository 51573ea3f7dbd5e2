"""Engines of the tests: a small one each, of the lake one a module, of the tiers worlds on disks."""

from __future__ import annotations

import contextlib

import pytest

from tests.crash.engine_world import many_lives
from tests.integration.engine.lake_engine import opened as lake_opened
from tests.integration.engine.opening import open_small
from tests.integration.engine.tier_world import World
from tests.support import SimulatedCrash


@pytest.fixture
def engine(tmp_path):
    """Return a new engine with small limits."""
    with open_small(tmp_path) as found:
        yield found


@pytest.fixture
def topic(engine):
    """Return a message topic of the new engine."""
    return engine.create_topic("t")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """One engine for all tests that do not open another."""
    with lake_opened(tmp_path_factory.mktemp("lake")) as found:
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


@pytest.fixture
def opened():
    """Return a function that makes a world with tiers; all of them are closed in the end."""
    worlds = []

    def make(**settings):
        worlds.append(World(**settings))
        return worlds[-1]

    with many_lives():
        yield make
        for each in worlds:
            with contextlib.suppress(SimulatedCrash):
                each.db.close()
