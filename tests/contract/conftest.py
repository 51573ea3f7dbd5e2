"""What the suites of contracts share: the catalogs that all obey one."""

from __future__ import annotations

import pytest

from tests.contract.catalogs import EmbeddedCatalog


@pytest.fixture(scope="session", params=["file", "memory"])
def catalog(request, tmp_path_factory):
    """A running catalog; each test makes a namespace of its own in it."""
    home = EmbeddedCatalog(tmp_path_factory.mktemp("catalog"), in_memory=request.param == "memory")
    with home:
        yield home
