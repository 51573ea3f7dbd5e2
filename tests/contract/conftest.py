"""What the suites of contracts share: the catalogs that all obey one."""

from __future__ import annotations

import pytest

from tests.contract.catalogs import EmbeddedCatalog


@pytest.fixture(scope="session")
def catalog(tmp_path_factory):
    """A running catalog; each test makes a namespace of its own in it."""
    with EmbeddedCatalog(tmp_path_factory.mktemp("catalog")) as home:
        yield home
