"""The published client, unchanged, consumes from Frazil: all types, acks, nacks, restarts."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from danube import SubType

from tests.integration.serve.consuming_world import (
    TOPIC,
    broker,
    make_producer,
    make_reader,
    offsets,
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


def test_an_exclusive_consumer_gets_all_in_order(tmp_path):
    """What was published before the subscription is not seen; the rest comes once, in order."""

    async def scene(port):
        async with broker(tmp_path, port):
            producer = await make_producer(port)
            await producer.send(b"before")
            reader = await make_reader(port)
            for number in numbers(30):
                await producer.send(number, {"n": number.decode()})
            await producer.send_with_key(b"last", {}, "the key")
            found = await reader.take(31)
            await reader.close()
            return found

    found = run(scene)
    assert payloads(found) == [*numbers(30), b"last"]
    assert offsets(found) == list(range(1, 32))
    message = found[29]
    assert dict(message.attributes) == {"n": "29"}
    assert message.msg_id.topic_name == TOPIC
    assert message.producer_name == "p"
    assert message.subscription_name == "s"
    assert message.msg_id.broker_addr.startswith("http://127.0.0.1:")
    assert message.publish_time > 0
    assert found[30].routing_key == "the key"


@pytest.mark.parametrize("reliable", [True, False])
def test_shared_consumers_divide_the_records(tmp_path, reliable):
    """36 records to three consumers are twelve each, none twice."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port, reliable=reliable)
            readers = [
                await make_reader(port, name=f"c{number}", kind=SubType.SHARED)
                for number in range(3)
            ]
            await until(lambda: world.consumers.facts()["streams"] == 3)
            for number in numbers(36):
                await producer.send(number)
            found = await asyncio.gather(*(reader.take(12) for reader in readers))
            assert all(reader.queue.empty() for reader in readers)
            return [payloads(messages) for messages in found]

    assert sorted(itertools.chain(*run(scene))) == sorted(numbers(36))


@pytest.mark.parametrize("reliable", [True, False])
def test_a_burst_reaches_every_subscription_complete(tmp_path, reliable):
    """Fan-out: 50 records back to back come to three Exclusive subscriptions, all of them."""

    async def scene(port):
        async with broker(tmp_path, port):
            producer = await make_producer(port, reliable=reliable)
            readers = [await make_reader(port, subscription=f"s{number}") for number in range(3)]
            await asyncio.gather(*(producer.send(number) for number in numbers(50)))
            return [await reader.take(50) for reader in readers]

    for found in run(scene):
        assert sorted(payloads(found)) == sorted(numbers(50))
        expected = list(range(50)) if reliable else [0] * 50
        assert offsets(found) == expected


def test_a_failover_consumer_takes_over_when_the_active_one_goes(tmp_path):
    """The standby gets nothing until the active consumer's stream ends, then what was unacked."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port)
            active = await make_reader(port, name="a", kind=SubType.FAILOVER)
            await until(lambda: world.consumers.facts()["streams"] == 1)
            standby = await make_reader(port, name="b", kind=SubType.FAILOVER)
            await until(lambda: world.consumers.facts()["streams"] == 2)
            for number in numbers(5):
                await producer.send(number)
            first = await active.take(2)
            await active.take(3, ack=False)
            assert standby.queue.empty()
            await active.close()
            return payloads(first), payloads(await standby.take(3))

    assert run(scene) == ([b"0", b"1"], [b"2", b"3", b"4"])


def test_a_key_stays_with_its_consumer_and_in_order(tmp_path):
    """KeyShared: both consumers have keys, and those of a key come in order to one of them."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port)
            readers = [await make_reader(port, name=name, kind=SubType.KEY_SHARED) for name in "ab"]
            await until(lambda: world.consumers.facts()["streams"] == 2)
            for number in range(5):
                for key in ("red", "green", "blue", "black"):
                    await producer.send_with_key(b"%s %d" % (key.encode(), number), {}, key)
            return [payloads(await reader.take(10)) for reader in readers]

    for found in run(scene):
        keys = {payload.split()[0] for payload in found}
        assert len(keys) == 2
        for key in keys:
            own = [payload for payload in found if payload.startswith(key)]
            assert own == [b"%s %d" % (key, number) for number in range(5)]


@pytest.mark.parametrize("reliable", [True, False])
def test_key_filters_choose_what_a_consumer_gets(tmp_path, reliable):
    """Each consumer has the keys of its patterns alone."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port, reliable=reliable)
            kind = SubType.KEY_SHARED
            europe = await make_reader(port, name="eu", kind=kind, filters=["eu-*"])
            america = await make_reader(port, name="us", kind=kind, filters=["us-?", "ca"])
            await until(lambda: world.consumers.facts()["streams"] == 2)
            for key in ("eu-west", "us-1", "ca", "eu-", "us-2"):
                await producer.send_with_key(key.encode(), {}, key)
            return payloads(await europe.take(2)), payloads(await america.take(3))

    assert run(scene) == ([b"eu-west", b"eu-"], [b"us-1", b"ca", b"us-2"])


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


def test_the_window_holds_back_what_is_not_acked(tmp_path):
    """Ten records are out at most; the next comes with an ack."""

    async def scene(port):
        async with broker(tmp_path, port):
            producer = await make_producer(port)
            reader = await make_reader(port)
            for number in numbers(15):
                await producer.send(number)
            first = await reader.take(10, ack=False)
            assert reader.queue.empty()
            await reader.consumer.ack(first[4])
            return payloads(first), payloads(await reader.take(1))

    assert run(scene) == (numbers(10), [b"10"])


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


def test_what_a_lost_consumer_had_goes_to_another_once(tmp_path):
    """Shared: a consumer that drops gives its own records back, nobody else's are doubled."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port)
            readers = [
                await make_reader(port, name=name, kind=SubType.SHARED)
                for name in ("stays", "goes")
            ]
            await until(lambda: world.consumers.facts()["streams"] == 2)
            for number in numbers(8):
                await producer.send(number)
            mine = await readers[0].take(4, ack=False)
            theirs = await readers[1].take(4, ack=False)
            await readers[1].close()
            given = await readers[0].take(4)
            for message in mine:
                await readers[0].consumer.ack(message)
            assert readers[0].queue.empty()
            return payloads(theirs), payloads(given), world.deliveries.find(TOPIC, "s").status()

    theirs, given, status = run(scene)
    assert given == theirs
    assert (status.cursor.acked_below, status.unacked) == (8, 0)


def test_the_same_consumer_comes_again_with_the_oldest_record_first(tmp_path):
    """Who subscribes again by the same name gets what was not acked, in order, then the rest."""

    async def scene(port):
        async with broker(tmp_path, port) as world:
            producer = await make_producer(port)
            reader = await make_reader(port)
            for number in numbers(6):
                await producer.send(number)
            await reader.take(1)
            await reader.take(4, ack=False)
            await reader.close()
            await until(lambda: world.consumers.facts()["streams"] == 0)
            again = await make_reader(port)
            return payloads(await again.take(5))

    assert run(scene) == numbers(5, 1)
