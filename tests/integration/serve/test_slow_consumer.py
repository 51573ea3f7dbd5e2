"""Consumers that do not keep up, or do not read at all: nobody else pays, nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from frazil.subscribe import CACHE_BYTES
from tests.integration.serve.wire_world_load import (
    measured,
    publish,
    read_all,
    readers,
    served,
    stopped,
    subscribed,
)
from tests.integration.serve.wire_world_readers import is_whole

pytestmark = pytest.mark.integration

RECORDS = 1000
SIZE_BYTES = 48 << 10
GROWTH_BYTES_MAX = 12 << 20
"""Less than half of what is published while the broker's memory is looked at."""
ROOM_BYTES = 40 << 20
"""What a broker with the default budget makes room for besides when it first works."""
LOOKS_MIN = 20


def test_a_consumer_that_stopped_costs_no_memory_and_loses_nothing(tmp_path):
    """Records go on to others while it does not read; when it reads, it has all of them."""
    first = RECORDS // 4
    with served(tmp_path) as broker:
        asyncio.run(publish(broker.url, first=0, count=0, size=0))
        subscribed(broker, "never opened")
        with stopped(broker, "stopped") as (methods, stream):
            fast = readers(broker, 2, RECORDS)
            asyncio.run(publish(broker.url, first=0, count=first, size=SIZE_BYTES))
            before = broker.memory_bytes()
            rest = RECORDS - first
            assert rest * SIZE_BYTES > 2 * GROWTH_BYTES_MAX
            sending = publish(broker.url, first=first, count=rest, size=SIZE_BYTES)
            peak = measured(broker, fast, 2, sending, looks_min=LOOKS_MIN)
            assert peak - before < GROWTH_BYTES_MAX
            found = read_all(methods, stream, "stopped", RECORDS)
            assert is_whole(found, RECORDS, acks=True)


def test_with_the_default_budget_a_stopped_consumer_keeps_no_copy(tmp_path):
    """Memory grows by what its tier keeps and by the cache of what was decoded, and by little else."""
    count = 2 * RECORDS
    published = count * SIZE_BYTES
    assert published // 2 > ROOM_BYTES
    with served(tmp_path, is_small=False) as broker:
        asyncio.run(publish(broker.url, first=0, count=0, size=0))
        with stopped(broker, "stopped"):
            fast = readers(broker, 2, count)
            before = broker.memory_bytes()
            sending = publish(broker.url, first=0, count=count, size=SIZE_BYTES)
            peak = measured(broker, fast, 2, sending, looks_min=LOOKS_MIN)
            assert peak - before < published + CACHE_BYTES + ROOM_BYTES


def test_without_storage_a_consumer_that_stopped_has_a_bounded_queue(tmp_path):
    """Others get every record of a topic that is not reliable, and memory has an end."""
    count, size = 3600, 16 << 10
    first = count // 2
    with served(tmp_path) as broker:
        asyncio.run(publish(broker.url, first=0, count=0, size=0, reliable=False))
        with stopped(broker, "stopped"):
            fast = readers(broker, 2, count, acks=False)
            asyncio.run(publish(broker.url, first=0, count=first, size=size, reliable=False))
            before = broker.memory_bytes()
            assert first * size > 2 * GROWTH_BYTES_MAX
            sending = publish(broker.url, first=first, count=first, size=size, reliable=False)
            peak = measured(broker, fast, 2, sending, looks_min=LOOKS_MIN)
            assert peak - before < GROWTH_BYTES_MAX
