"""A real catalog for the tests of binding, looking and evolving: one process for all of them."""

from __future__ import annotations

import itertools

import pytest

from frazil.clock import SystemClock
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
from frazil.lake.connection import CatalogAddress, connect

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The address of a running catalog, and where its tables lie."""
    root = tmp_path_factory.mktemp("catalog")
    options = CatalogOptions(
        run_directory=str(root / "run"),
        db=str(root / "catalog.db"),
        warehouse=str(root / "warehouse"),
        port=0,
    )
    process = CatalogProcess(options, clock=SystemClock())
    try:
        yield process.start()
    finally:
        process.stop()


@pytest.fixture
def address(served):
    return CatalogAddress(uri=served.uri, token=served.token or "")


@pytest.fixture
def catalog(address):
    return connect(address)


@pytest.fixture
def topic():
    """A name that no other test uses."""
    return f"/bound/topic{next(_numbers)}"
