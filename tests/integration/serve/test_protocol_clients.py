"""The published client, unchanged, over a `frazil serve` process: the four types, parts, windows.

Each test's docstring begins with the section of the protocol's page that it is about.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import grpc
import pytest
from danube import SubType

from tests.integration.serve.protocol_cast import are_quiet, numbered, offsets, play

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode


# -- 1.4, 1.5: publishing and the four types -------------------------------------------------------


def test_exclusive_gets_all_in_order(protocol_broker):
    """1.5: offsets are dense from 0 on; what was sent before the first Subscribe is never seen."""

    async def scene(cast):
        producer = await cast.producer()
        await producer.send(b"before")
        reader = await cast.reader()
        for payload in numbered(0, 30):
            await producer.send(payload, {"a": "b"})
        found = await reader.take(30)
        assert [bytes(message.payload) for message in found] == numbered(0, 30)
        assert offsets(found) == list(range(1, 31))
        assert {message.msg_id.topic_name for message in found} == {cast.topic}
        assert {(m.producer_name, m.subscription_name, m.attributes["a"]) for m in found} == {
            ("p", "s", "b")
        }
        assert await reader.is_quiet()

    play(protocol_broker, scene)


def test_parts_are_topics_that_clients_make_and_find(protocol_broker):
    """1.4: round robin without a key, one part for a key; msg_id names the part."""

    async def scene(cast):
        producer = await cast.producer(partitions=3)
        reader = await cast.reader()
        for payload in numbered(0, 9):
            await producer.send(payload)
        found = await reader.take(9)
        parts = [f"{cast.topic}-part-{n}" for n in range(3)]
        names = Counter(message.msg_id.topic_name for message in found)
        assert names == dict.fromkeys(parts, 3)
        for part in parts:
            assert offsets([m for m in found if m.msg_id.topic_name == part]) == [0, 1, 2]
        for _ in range(4):
            await producer.send_with_key(b"keyed", None, "key")
        keyed = await reader.take(4)
        assert len({message.msg_id.topic_name for message in keyed}) == 1
        assert {message.routing_key for message in keyed} == {"key"}

    play(protocol_broker, scene)


@pytest.mark.parametrize("is_reliable", [True, False], ids=["reliable", "not stored"])
def test_shared_is_an_exact_round_robin(protocol_broker, is_reliable):
    """1.5, 1.8.4: of 36 records each of three consumers gets 12, and none comes twice."""

    async def scene(cast):
        producer = await cast.producer(is_reliable=is_reliable)
        readers = [await cast.reader(name, kind=SubType.SHARED) for name in "abc"]
        tasks = [asyncio.create_task(reader.payloads(12)) for reader in readers]
        for payload in numbered(0, 36):
            await producer.send(payload)
        found = await asyncio.gather(*tasks)
        assert sorted(itertools.chain(*found)) == sorted(numbered(0, 36))
        assert await are_quiet(*readers)

    play(protocol_broker, scene)


def test_a_burst_reaches_every_subscription_complete(protocol_broker):
    """1.5, 1.8.4: without storage a burst of 50 is delivered whole, with topic_offset 0."""

    async def scene(cast):
        producer = await cast.producer(is_reliable=False)
        readers = [await cast.reader(subscription=name) for name in ("s1", "s2")]
        for payload in numbered(0, 50):
            await producer.send(payload)
        for reader in readers:
            found = await reader.take(50)
            assert [bytes(message.payload) for message in found] == numbered(0, 50)
            assert set(offsets(found)) == {0}

    play(protocol_broker, scene)


def test_keys_stay_with_their_consumers(protocol_broker):
    """1.5, 1.8.3: a key has one consumer and its order, both get some, ten may be unacked."""

    async def scene(cast):
        producer = await cast.producer()
        readers = [await cast.reader(name, kind=SubType.KEY_SHARED) for name in "ab"]
        for number in range(10):
            await producer.send_with_key(b"0", None, f"key-{number}")
        first = [await reader.take(5, ack=False) for reader in readers]
        owners = [{message.routing_key for message in found} for found in first]
        assert owners[0] | owners[1] == {f"key-{number}" for number in range(10)}
        for number in range(10):
            await producer.send_with_key(b"1", None, f"key-{number}")
        # The next record of a key follows the ack of the last one.
        assert await are_quiet(*readers)
        for reader, found in zip(readers, first, strict=True):
            for message in reversed(found):
                await reader.consumer.ack(message)
        for reader, keys in zip(readers, owners, strict=True):
            found = await reader.take(5)
            assert {message.routing_key for message in found} == keys
            assert {bytes(message.payload) for message in found} == {b"1"}

    play(protocol_broker, scene)


def test_filters_choose_keys_and_what_nobody_takes_is_passed_over(protocol_broker):
    """1.5: globs decide who gets a key; one that nobody accepts holds up nothing."""

    async def scene(cast):
        producer = await cast.producer()
        east = await cast.reader("a", kind=SubType.KEY_SHARED, filters=["east-*"])
        west = await cast.reader("b", kind=SubType.KEY_SHARED, filters=["west-?"])
        for key in ("east-1", "north", "west-1", "west-22", "east-2"):
            await producer.send_with_key(key.encode(), None, key)
        assert sorted(await east.payloads(2)) == [b"east-1", b"east-2"]
        assert await west.payloads(1) == [b"west-1"]
        assert await west.is_quiet()
        assert east.queue.empty()

    play(protocol_broker, scene)


def test_the_window_is_ten(protocol_broker):
    """1.5: ten records may be unacked; an ack lets the next one come."""

    async def scene(cast):
        producer = await cast.producer()
        reader = await cast.reader()
        for payload in numbered(0, 12):
            await producer.send(payload)
        found = await reader.take(10, ack=False)
        assert await reader.is_quiet()
        await reader.consumer.ack(found[5])
        assert offsets(await reader.take(1, ack=False)) == [10]
        assert await reader.is_quiet()

    play(protocol_broker, scene)


# -- consumers that come and go --------------------------------------------------------------------


def test_only_the_records_of_the_one_that_dropped_come_again(protocol_broker):
    """1.8.2: Shared, what another consumer has in hand is not doubled."""

    async def scene(cast):
        producer = await cast.producer()
        stays = await cast.reader("a", kind=SubType.SHARED)
        goes = await cast.reader("b", kind=SubType.SHARED)
        for payload in numbered(0, 6):
            await producer.send(payload)
        kept = await stays.payloads(3, ack=False)
        lost = await goes.payloads(3, ack=False)
        await goes.close()
        assert await stays.payloads(3) == sorted(lost)
        assert sorted(kept + lost) == numbered(0, 6)
        assert await stays.is_quiet()

    play(protocol_broker, scene)
