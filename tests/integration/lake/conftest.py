"""The world with real Spark: one JVM for the process, a topic of its own for each test."""

from __future__ import annotations

import pytest

from tests.integration.lake.spark_world import shared_world


@pytest.fixture(scope="session")
def world():
    return shared_world()
