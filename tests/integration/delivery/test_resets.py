"""Subscriptions that are put somewhere else while consumers are at work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from frazil.errors import Closed
from frazil.subscribe import SubscriptionType
from tests.integration.delivery.delivering import TOPIC, Collector, opened, quiet, run, uid, until

FAILOVER = SubscriptionType.FAILOVER
BY_KEY = SubscriptionType.KEY_SHARED


def payloads(count):
    return [b"%d" % number for number in range(count)]


def test_a_reset_leaves_the_active_consumer_at_work(tmp_path):
    """One that came back under its name keeps its place before the others over a reset."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        found = await opened(deliveries, kind=FAILOVER)
        first = Collector(found, 1, "a")
        standby = Collector(found, 2, "b")
        again = Collector(found, 3, "a")
        assert first.is_displaced
        assert found.status().active_id == 3
        await until(lambda: found.status().cursor.acked_below == 5)
        await deliveries.reset(TOPIC, "s", "earliest")
        assert found.status().active_id == 3
        await until(lambda: again.got[-5:] == list(range(5)))
        assert standby.got == []

    run(tmp_path, work)


def test_keys_stay_with_their_consumers_over_a_reset(tmp_path):
    """What each of three KeyShared consumers got comes to the same one again."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        settings.change(uid(db), "s", max_unacked_messages=100)
        found = await opened(deliveries, kind=BY_KEY)
        # One after the other, so that the first keys are not dealt as a new dispatch would.
        some = [Collector(found, 1)]
        for number in range(6):
            topic.append(b"early", key=f"k{number}")
        await until(lambda: len(some[0].acked) == 6)
        some += [Collector(found, 2), Collector(found, 3)]
        for number in range(12):
            topic.append(b"late", key=f"k{number}")
        await until(lambda: sum(len(each.acked) for each in some) == 18)
        before = [sorted(each.got) for each in some]
        for each in some:
            each.got.clear()
        await deliveries.reset(TOPIC, "s", "earliest")
        await until(lambda: sum(len(each.acked) for each in some) == 36)
        await quiet()
        assert [sorted(each.got) for each in some] == before

    run(tmp_path, work)


def test_by_the_wire_an_ack_counts_whenever_it_comes(tmp_path):
    """It names an offset alone: after a reset it settles the record, delivered anew or not."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 5)
        consumer.window = 0
        consumer.want()
        await deliveries.reset(TOPIC, "s", "earliest")
        for offset in (0, 3):
            consumer.ack(offset)
        await until(lambda: len(consumer.acked) == 2)
        assert db.cursors.load(TOPIC)["s"].acked_below == 1
        consumer.window = 100
        consumer.want()
        await until(lambda: consumer.got[5:] == [1, 2, 4])
        consumer.ack(1)
        await until(lambda: len(consumer.acked) == 3)
        assert db.cursors.load(TOPIC)["s"].acked_below == 2

    run(tmp_path, work)


class Hindered:
    """A function that waits in its thread until it may go on."""

    def __init__(self, function):
        self.function = function
        self.is_begun = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self, *args, **kwargs):
        """Wait, then do it."""
        self.is_begun.set()
        assert self.may_go_on.wait(60)
        return self.function(*args, **kwargs)


async def two_opened(db, deliveries, monkeypatch, **hindered):
    """Return a consumer that has acked all, another subscription, and what is hindered."""
    db.create_topic("t").append_many(payloads(5))
    found, other = await opened(deliveries), await opened(deliveries, "other")
    consumer = Collector(found)
    await until(lambda: len(consumer.acked) == 5)
    ((name, owner),) = hindered.items()
    step = Hindered(getattr(owner, name))
    monkeypatch.setattr(owner, name, step)
    return consumer, other, step


def test_a_reset_that_ends_while_the_broker_stops_delivers_nothing(tmp_path, monkeypatch):
    """Its place is durable; its consumer gets nothing from it while others are waited for."""

    async def work(db, deliveries, _settings):
        hindered = {"_place": deliveries}
        consumer, other, step = await two_opened(db, deliveries, monkeypatch, **hindered)
        reset = asyncio.ensure_future(deliveries.reset(TOPIC, "s", "earliest"))
        await until(step.is_begun.is_set)
        # The end has to wait for an ack of the other one.
        other._under_way += 1
        end = asyncio.ensure_future(deliveries.close())
        await quiet()
        step.may_go_on.set()
        assert await reset == 0
        await asyncio.to_thread(db.topic("t").append, b"late")
        await quiet()
        assert consumer.got == [*range(5)]
        other._under_way -= 1
        await end
        assert isinstance(consumer.end, Closed)

    run(tmp_path, work)

    async def next_life(_db, deliveries, _settings):
        consumer = Collector(await deliveries.existing(TOPIC, "s"))
        await until(lambda: consumer.got == [*range(6)])

    run(tmp_path, next_life)


@pytest.mark.parametrize("how", ["reset", "drop"])
def test_a_change_that_would_begin_while_the_broker_stops_is_refused(tmp_path, how):
    """It had to wait for an ack, and the end came first: it is `Closed` and nothing was changed."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        found = await opened(deliveries)
        consumer = Collector(found)
        await until(lambda: len(consumer.acked) == 5)
        found._under_way += 1
        call = (
            deliveries.reset(TOPIC, "s", "earliest")
            if how == "reset"
            else deliveries.drop(TOPIC, "s")
        )
        change = asyncio.ensure_future(call)
        await quiet()
        end = asyncio.ensure_future(deliveries.close())
        await quiet()
        found._under_way -= 1
        with pytest.raises(Closed):
            await change
        await end
        assert db.cursors.load(TOPIC)["s"].acked_below == 5

    run(tmp_path, work)


def test_a_subscription_may_be_removed_while_the_broker_stops(tmp_path, monkeypatch):
    """What had begun before the end is done, and the end is in order."""

    async def work(db, deliveries, _settings):
        hindered = {"drop": db.cursors}
        _consumer, _other, step = await two_opened(db, deliveries, monkeypatch, **hindered)
        drop = asyncio.ensure_future(deliveries.drop(TOPIC, "s"))
        await until(step.is_begun.is_set)
        await deliveries.close()
        step.may_go_on.set()
        await drop
        assert list(db.cursors.load(TOPIC)) == ["other"]

    run(tmp_path, work)
