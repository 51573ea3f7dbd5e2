"""What a stream may have in flight is never used up for good, whatever the size of records."""

from __future__ import annotations

import asyncio

import pytest

from frazil.serve.danube.consumer_stream import GRANT_BYTES, GRANT_BYTES_LARGE
from tests.integration.serve.consuming_world import (
    broker,
    make_producer,
    make_reader,
    payloads,
    until,
)
from tests.servers.running import free_port

pytestmark = pytest.mark.integration

AT_ONCE = 50
SIZES = {
    "tiny": (3200, 4),
    "small": (3200, 120),
    "as large as the grant": (12, GRANT_BYTES),
    "larger than the grant": (12, 2 * GRANT_BYTES + 1),
    "as large as the larger grant": (12, GRANT_BYTES_LARGE),
    "larger than the larger grant": (6, 2 * GRANT_BYTES_LARGE - 4096),
}


def numbered(count, size):
    return [b"%0*d" % (size, number) for number in range(count)]


async def send_all(producer, values):
    for first in range(0, len(values), AT_ONCE):
        await asyncio.gather(*map(producer.send, values[first : first + AT_ONCE]))


async def take_all(reader, count, *, acks):
    """Return so many messages; their acks are under way together."""
    found, acking = [], []
    for _ in range(count):
        found.append(await reader.next())
        if acks:
            acking.append(asyncio.create_task(reader.consumer.ack(found[-1])))
    await asyncio.gather(*acking)
    return found


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("reliable", [True, False])
def test_a_stream_gets_everything_whatever_the_size_of_records(tmp_path, reliable, size):
    """Records come to the last one: thousands of some bytes each, or some of which none fits."""
    values = numbered(*SIZES[size])

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port, reliable=reliable)
            reader = await make_reader(port)
            await until(lambda: world.consumers.facts()["streams"] == 1)
            sending = asyncio.create_task(send_all(producer, values))
            found = await take_all(reader, len(values), acks=reliable)
            await sending
            await until(lambda: not world.unreliable.bytes_queued)
            return found, world.consumers.facts()

    found, facts = asyncio.run(scene(free_port()))
    assert sorted(payloads(found)) == values
    assert facts["unreliable_dropped"] == 0
