"""A hundred subscriptions of one topic, and one that stopped: all whole, memory flat."""

from __future__ import annotations

import asyncio

import pytest

from frazil.serve.danube.consumer_stream import GRANT_BYTES_LARGE
from tests.integration.serve.wire_world_load import (
    measured,
    publish,
    read_all,
    readers,
    served,
    stopped,
)
from tests.integration.serve.wire_world_readers import is_whole

pytestmark = pytest.mark.integration

READERS = 100
RECORDS = 240
SIZE_BYTES = 120 << 10
LOOKS_MIN = 100
GROWTH_BYTES_MAX = 8 << 20
"""What is published between the looks, kept once for the one that stopped, is more than twice."""
PEAK_BYTES_MAX = READERS * (GRANT_BYTES_LARGE + SIZE_BYTES) + GROWTH_BYTES_MAX
"""Each reader has a queue, and a record that is written; all of their records are 40 times that."""


@pytest.mark.long
def test_one_stopped_and_a_hundred_fast_subscribers(tmp_path):
    """All fast ones get every record in order beside one that stopped, and memory stays flat."""
    with served(tmp_path) as broker:
        asyncio.run(publish(broker.url, first=0, count=0, size=0))
        with stopped(broker, "stopped") as (methods, stream):
            fast = readers(broker, READERS, RECORDS)
            # Before and after the broker has nothing under way. Meanwhile each reader has a queue,
            # which is bounded, and how full they all are is a matter of who runs when.
            before = broker.memory_bytes()
            assert RECORDS * SIZE_BYTES > 2 * GROWTH_BYTES_MAX
            assert RECORDS * SIZE_BYTES * READERS > 30 * PEAK_BYTES_MAX
            sending = publish(broker.url, first=0, count=RECORDS, size=SIZE_BYTES)
            peak = measured(broker, fast, READERS, sending, looks_min=LOOKS_MIN)
            assert peak - before < PEAK_BYTES_MAX
            assert broker.memory_bytes() - before < GROWTH_BYTES_MAX
            found = read_all(methods, stream, "stopped", RECORDS)
            assert is_whole(found, RECORDS, acks=True)
