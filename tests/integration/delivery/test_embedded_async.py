"""Subscriptions of a program under asyncio."""

from __future__ import annotations

import asyncio
import gc

import pytest

import frazil
from frazil.engine import AsyncEngine
from frazil.errors import Closed, Conflict, InvalidRequest, NotFound
from tests.integration.delivery.delivering import until
from tests.integration.engine.opening import open_small

WAIT_S = 60


def run(path, work):
    """Open a directory for asyncio, run `work(db, topic)` with a topic of ten records."""

    async def main():
        async with AsyncEngine(open_small(path)) as db:
            topic = await db.create_topic("t")
            await topic.append_many([b"%d" % number for number in range(10)])
            return await work(db, topic)

    return asyncio.run(main())


async def taken(stream, count):
    found = []
    for _ in range(count):
        one = await stream.receive(WAIT_S)
        assert one is not None, f"only {len(found)} of {count} came"
        found.append(one)
    return found


def offsets(deliveries):
    return [each.offset for each in deliveries]


def test_records_are_iterated_over_and_acked(tmp_path):
    """They come in order, and what was acked is not delivered to the next stream."""

    async def work(_db, topic):
        found = []
        async for each in topic.subscribe("s", start="earliest"):
            assert isinstance(each, frazil.Delivery)
            await each.ack()
            found.append(each.value.payload)
            if len(found) == 6:
                break
        assert found == [b"%d" % number for number in range(6)]
        async with topic.subscribe("s") as stream:
            assert sorted(offsets(await taken(stream, 4))) == [6, 7, 8, 9]
            assert stream.type == "shared"

    run(tmp_path, work)


def test_nothing_happens_before_it_is_entered(tmp_path):
    """A stream that is never used makes no subscription, and may be closed."""

    async def work(_db, topic):
        stream = topic.subscribe("s")
        await stream.close()
        assert [each async for each in stream] == []
        assert await topic.subscriptions() == []

    run(tmp_path, work)


def test_given_back_records_come_again(tmp_path):
    """A nack counts as a failed delivery; several acks are one call."""

    async def work(_db, topic):
        policy = {"base_redelivery_delay_ms": 0, "max_redelivery_delay_ms": 0}
        async with topic.subscribe("s", start="earliest", policy=policy) as stream:
            first, *rest = await taken(stream, 10)
            with pytest.raises(InvalidRequest, match="delay_s"):
                await first.nack(delay_s=-1)
            await first.nack(reason="later")
            (again,) = await taken(stream, 1)
            assert (again.offset, again.attempt) == (0, 2)
            await stream.ack([again, *rest])
        assert (await topic.subscriptions())[0]["acked_below"] == 10

    run(tmp_path, work)


def test_a_stream_is_entered_by_many_at_once_but_begins_once(tmp_path):
    """Tasks that share a stream get each record once, and it has one consumer."""

    async def work(_db, topic):
        stream = topic.subscribe("s", type="exclusive", start="earliest")
        some = await asyncio.gather(*(stream.receive(WAIT_S) for _ in range(10)))
        assert sorted(offsets(some)) == list(range(10))
        assert (await topic.subscriptions())[0]["consumers"] == [stream.consumer]
        with pytest.raises(Conflict, match="another consumer"):
            async with topic.subscribe("s"):
                pass
        await stream.close()
        async with topic.subscribe("s") as other:
            assert offsets(await taken(other, 1)) == [0]

    run(tmp_path, work)


def test_a_cancelled_wait_loses_no_record(tmp_path):
    """What comes while nobody waits is there for the next who does."""

    async def work(_db, topic):
        async with topic.subscribe("s") as stream:
            for number in range(20):
                waiting = asyncio.create_task(stream.receive())
                await asyncio.sleep(0)
                sending = asyncio.create_task(topic.append(b"live"))
                await asyncio.sleep(0.001 * (number % 3))
                came = waiting.cancel() is False
                await sending
                if came or (waiting.done() and not waiting.cancelled()):
                    delivery = waiting.result()
                else:
                    (delivery,) = await taken(stream, 1)
                assert delivery.offset == 10 + number
                await delivery.ack()

    run(tmp_path, work)


@pytest.mark.parametrize("how", ["delete", "remove", "close", "leave"])
def test_a_waiting_consumer_gets_the_error_that_ended_it(tmp_path, how):
    """The end of the topic, the subscription or the engine is an error; closing is none."""

    async def work(db, topic):
        stream = topic.subscribe("s")
        waiting = asyncio.create_task(stream.receive())
        await until(lambda: bool(stream.consumer))
        if how == "delete":
            await db.delete_topic("t")
        elif how == "remove":
            await db.subscriptions.drop("t", "s")
        elif how == "close":
            await db.close()
        else:
            await stream.close()
            assert await waiting is None
            return
        with pytest.raises(Closed if how == "close" else NotFound):
            await waiting
        await stream.close()

    run(tmp_path, work)


def test_a_forgotten_stream_gives_its_records_back(tmp_path):
    """Breaking out of a loop frees the consumer, as closing does."""

    async def work(_db, topic):
        async for each in topic.subscribe("s", type="exclusive", start="earliest"):
            assert each.offset == 0
            break
        del each
        gc.collect()

        async def consumers():
            return (await topic.subscriptions())[0]["consumers"]

        async with asyncio.timeout(WAIT_S):
            while await consumers():  # noqa: ASYNC110 - it is not an event of this loop
                await asyncio.sleep(0.005)
        async with topic.subscribe("s") as stream:
            assert offsets(await taken(stream, 1)) == [0]

    run(tmp_path, work)


def test_calls_of_the_engine_have_their_like(tmp_path):
    """Making, configuring and resetting a subscription do not hold up the loop."""

    async def work(db, topic):
        await db.subscriptions.create("t", "s", type="failover", start="earliest")
        found = await db.subscriptions.alter("t", "s", policy={"poison": "drop"}, max_unacked=4)
        assert found == await topic.subscription_policy("s")
        assert found == await db.subscriptions.policy("t", "s")
        assert await topic.set_subscription("s", max_unacked=5) == found
        assert await db.subscriptions.reset("t", "s", 9) == {"/default/t": 9}
        (facts,) = await db.subscriptions.describe("t")
        assert (facts["type"], facts["max_unacked"], facts["lag_records"]) == ("failover", 5, 1)
        await topic.unsubscribe("s")
        assert await topic.subscriptions() == []

    run(tmp_path, work)
