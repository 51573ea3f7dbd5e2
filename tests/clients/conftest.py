"""Suites with clients of other languages are run by `make clients`: compilers take minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1800
"""The first test of a language builds its program, and fetches what that needs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark what is below this folder, before marks decide what is run."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
