"""What is larger than any message may be is refused for good: clients that retry give it up."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from tests.integration.serve.consuming_world import (
    SECONDS_MAX,
    broker,
    make_producer,
    make_reader,
)
from tests.servers.running import free_port

pytestmark = pytest.mark.integration

REFUSALS = {
    "more than a topic takes": (1 << 20, grpc.StatusCode.INVALID_ARGUMENT, "1048576 bytes"),
    "more than a request may have": (5 << 20, grpc.StatusCode.OUT_OF_RANGE, "4194304 bytes"),
}
"""Sizes, and what they are refused with. No status here is one that clients retry."""


@pytest.mark.parametrize("case", REFUSALS)
def test_a_send_of_something_too_large_fails_and_the_next_one_goes(tmp_path, case):
    """The published client neither hangs nor loses its producer."""
    size, code, limit = REFUSALS[case]

    async def scene(port):
        async with broker(tmp_path, port):
            producer = await make_producer(port)
            reader = await make_reader(port)
            with pytest.raises(grpc.RpcError) as caught:
                await asyncio.wait_for(producer.send(bytes(size)), SECONDS_MAX)
            await producer.send(b"small")
            return caught.value, (await reader.next()).payload

    error, payload = asyncio.run(scene(free_port()))
    assert error.code() is code
    assert limit in error.details()
    assert payload == b"small"
