"""The published client, unchanged, consumes from Frazil: all types, acks, nacks, restarts."""

from __future__ import annotations

import asyncio

import pytest
from danube import SubType

from tests.integration.serve.consuming_world import (
    TOPIC,
    broker,
    make_producer,
    make_reader,
    payloads,
    until,
)
from tests.servers.running import free_port

pytestmark = pytest.mark.integration


def numbers(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


def run(scene):
    """Run a scene with a port of its own."""
    return asyncio.run(scene(free_port()))


def test_consumers_without_storage_go_on_after_a_restart(tmp_path):
    """Type, patterns and ids of an unreliable topic's consumers are known to the next broker."""

    async def scene(port):
        async with broker(tmp_path, port):
            producer = await make_producer(port, reliable=False)
            kind = SubType.KEY_SHARED
            readers = [
                await make_reader(port, name=name, kind=kind, filters=[f"{name}-*"])
                for name in ("a", "b")
            ]
        async with broker(tmp_path, port) as world:
            await until(lambda: world.consumers.facts()["streams"] == 2)
            assert world.unreliable.find(TOPIC, "s").kind == kind
            for key in ("b-1", "a-1", "c-1", "a-2"):
                await producer.send_with_key(key.encode(), {}, key)
            found = [
                payloads(await reader.take(count))
                for reader, count in zip(readers, (2, 1), strict=True)
            ]
            for reader in readers:
                await reader.close()
            return found, world.consumers.facts()

    found, facts = run(scene)
    assert found == [[b"a-1", b"a-2"], [b"b-1"]]
    assert facts["unreliable_unheard"] == 1
