"""What tests of the broker's process share."""

from __future__ import annotations

import pytest

from tests.integration.serve.protocol_world import LIMITS, Wire, serving


@pytest.fixture(scope="session")
def protocol_broker(tmp_path_factory):
    """A `frazil serve` process with small limits; each row and scene has a topic of its own."""
    with serving(tmp_path_factory.mktemp("broker"), **LIMITS) as process:
        connection = Wire(process)
        yield connection
        connection.close()
