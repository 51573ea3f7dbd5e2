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


@pytest.mark.parametrize("is_made_before", [True, False])
def test_the_parts_of_a_topic_are_consumed_as_one(tmp_path, is_made_before):
    """A consumer of the whole topic gets the records of all parts, each acked in its own.

    So it is with parts that administration made, and with those that a producer made.
    """

    async def scene(port):
        async with broker(tmp_path, port) as world:
            if is_made_before:
                await world.topics.make(TOPIC, is_reliable=True, partitions=3)
            producer = await make_producer(port, partitions=3)
            reader = await make_reader(port)
            for number in numbers(12):
                await producer.send(number)
            found = await reader.take(12)
            await reader.close()
            unacked = [each.status().unacked for each in world.deliveries.subscriptions]
            return found, unacked

    found, unacked = run(scene)
    assert sorted(payloads(found)) == sorted(numbers(12))
    names = {message.msg_id.topic_name for message in found}
    assert names == {f"{TOPIC}-part-{number}" for number in range(3)}
    assert unacked == [0, 0, 0]


def test_a_nacked_record_comes_again(tmp_path):
    """With the same payload and offset, after the delay of its policy, and once more only."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port)
            reader = await make_reader(port)
            for number in numbers(3):
                await producer.send(number)
            first = await reader.next()
            await reader.consumer.nack(first, 10, "not now")
            others = await reader.take(2)
            again = await reader.next()
            await reader.consumer.ack(again)
            subscription = world.deliveries.find(TOPIC, "s")
            return first, others, again, subscription.status().cursor.acked_below

    first, others, again, acked_below = run(scene)
    assert payloads(others) == [b"1", b"2"]
    assert (again.payload, again.msg_id) == (first.payload, first.msg_id)
    assert acked_below == 3


def test_a_consumer_goes_on_after_a_restart_of_the_broker(tmp_path):
    """The client, untouched, gets what was not acked and what comes then; nothing acked again."""

    async def scene(port):
        async with broker(tmp_path, port):
            producer = await make_producer(port)
            reader = await make_reader(port)
            for number in numbers(6):
                await producer.send(number)
            before = await reader.take(3)
            await reader.take(3, ack=False)
        async with broker(tmp_path, port) as world:
            await until(lambda: world.consumers.facts()["streams"] == 1)
            await producer.send(b"6")
            after = await reader.take(4)
            assert reader.queue.empty()
            await reader.close()
        return payloads(before), payloads(after)

    assert run(scene) == (numbers(3), numbers(4, 3))


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
