"""Consumers that do not keep up, or do not read at all: nobody else pays, nothing is lost."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.integration.serve.wire_world_load import (
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
GROWTH_BYTES_MAX = 24 << 20
"""Less than is published between the two looks at the broker's memory."""


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
            asyncio.run(publish(broker.url, first=first, count=rest, size=SIZE_BYTES))
            answer = json.loads(fast.process.stdout.readline())
            after = broker.memory_bytes()
            fast.close()
            print(answer, before >> 20, after >> 20)
            assert answer["whole"] == 2, answer
            assert after - before < GROWTH_BYTES_MAX
            found = read_all(methods, stream, "stopped", RECORDS)
            assert is_whole(found, RECORDS, acks=True)


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
            asyncio.run(publish(broker.url, first=first, count=first, size=size, reliable=False))
            answer = json.loads(fast.process.stdout.readline())
            after = broker.memory_bytes()
            fast.close()
            print(answer, before >> 20, after >> 20)
            assert answer["whole"] == 2, answer
            assert after - before < GROWTH_BYTES_MAX
