"""Acks of clients that outlived the broker: which of them count."""

from __future__ import annotations

import asyncio
import random
import shutil

import pytest

from frazil.log import RANGES_MAX, CursorState
from frazil.subscribe import SubscriptionType
from tests.integration.delivery.delivering import (
    TOPIC,
    Collector,
    opened,
    quiet,
    run,
    uid,
    until,
)

SHARED, BY_KEY = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
WINDOW = 16


async def fill(db, count):
    """Publish so many records, each with a key of its own."""
    topic = db.topic("t")
    await asyncio.to_thread(
        topic.append_many, [{"payload": b"%d" % each, "key": str(each)} for each in range(count)]
    )


async def ack_all(found, offsets):
    """Ack records that no consumer of this life has, and wait for the answers: all are OK."""
    answers = []
    for offset in offsets:
        found.ack(offset, answers.append)
    await until(lambda: answers == [None] * len(offsets))


async def rest_of(deliveries):
    """Return, in order, all records that a new consumer gets, which are acked at once."""
    found = await deliveries.existing(TOPIC, "s")
    consumer = Collector(found)
    await until(lambda: found.status().acked_below == found.feed.head)
    return sorted(consumer.got)


@pytest.mark.parametrize("kind", SubscriptionType)
def test_acks_of_what_an_earlier_life_delivered_count(tmp_path, kind):
    """A client that outlived the broker acks what it has, and nothing else: that is settled.

    The window that was open when it was delivered does not matter.
    """

    async def first(db, deliveries, settings):
        db.create_topic("t")
        settings.change(uid(db), "s", max_unacked_messages=WINDOW)
        await fill(db, 20)
        found = await opened(deliveries, kind=kind)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == WINDOW)
        consumer.ack(2)
        await until(lambda: 16 in consumer.got)
        settings.change(uid(db), "s", max_unacked_messages=3)
        deliveries.configure(TOPIC, "s")

    async def second(_db, deliveries, _settings):
        found = await deliveries.existing(TOPIC, "s")
        await ack_all(found, (0, 1, 6, 15, 17, 19, 25))
        return await rest_of(deliveries)

    run(tmp_path, first)
    assert run(tmp_path, second) == [3, 4, 5, *range(7, 15), *range(16, 20)]


@pytest.mark.parametrize("kind", SubscriptionType)
def test_acks_of_what_no_life_delivered_have_no_effect(tmp_path, kind):
    """Nor do they after a kill: a subscription that gave nothing to anybody has nothing acked."""
    killed = tmp_path / "killed"

    async def first(db, deliveries, _settings):
        db.create_topic("t")
        await opened(deliveries, kind=kind)
        await fill(db, 20)
        shutil.copytree(tmp_path / "first", killed)

    async def second(_db, deliveries, _settings):
        await ack_all(await deliveries.existing(TOPIC, "s"), range(20))
        return await rest_of(deliveries)

    run(tmp_path / "first", first)
    assert run(tmp_path / "first", second) == [*range(20)]
    assert run(killed, second) == [*range(20)]


@pytest.mark.parametrize("kind", SubscriptionType)
def test_after_a_kill_acks_count_for_a_window_at_most_behind_what_was_delivered(tmp_path, kind):
    """Each delivered record can be acked; of the others those that the window had room for."""
    killed, ahead = tmp_path / "killed", 512 if kind is BY_KEY else WINDOW

    async def first(db, deliveries, settings):
        db.create_topic("t")
        settings.change(uid(db), "s", max_unacked_messages=WINDOW)
        await fill(db, 2000)
        found = await opened(deliveries, kind=kind)
        consumer = Collector(found, window=0, acks=False)
        found.ready(consumer, messages=9, size_bytes=1 << 20)
        await until(lambda: len(consumer.got) == 9)
        shutil.copytree(tmp_path / "first", killed)
        return consumer.got

    async def second(_db, deliveries, _settings):
        found = await deliveries.existing(TOPIC, "s")
        await ack_all(found, range(2000))
        return await rest_of(deliveries)

    assert run(tmp_path / "first", first) == [*range(9)]
    assert run(killed, second) == [*range(ahead, 2000)]
    # Who stops in order knows exactly.
    assert run(tmp_path / "first", second) == [*range(9, 2000)]


@pytest.mark.parametrize("kind", SubscriptionType)
def test_nothing_is_delivered_before_it_is_durable_that_it_may_be(tmp_path, kind):
    """Whatever is acked, given back, published and left out: the journal knew of it before."""

    class Watching(Collector):
        """A consumer that compares what it gets with what the journal has."""

        def deliver(self, records, attempts):
            reserved = self.subscription.feed.runtime.state.cursors["s"].reserved
            early.extend(each.offset for each in records if each.offset >= reserved)
            super().deliver(records, attempts)

    early = []

    async def life(db, deliveries, settings):
        chance = random.Random(int(kind))
        db.create_topic("t", exist_ok=True)
        settings.change(uid(db), "s", max_unacked_messages=7)
        found = await opened(deliveries, kind=kind)
        consumer = Watching(found, acks=False)
        for _ in range(60):
            await fill(db, chance.choice((1, 3, 20)))
            held = [each for each in consumer.got if each not in consumer.acked]
            for offset in chance.sample(held, min(len(held), chance.randint(0, 9))):
                consumer.ack(offset)
            if held and chance.random() < 0.3:
                await consumer.nack(chance.choice(held))
            if chance.random() < 0.1:
                settings.change(uid(db), "s", max_unacked_messages=chance.choice((1, 7, 50)))
                deliveries.configure(TOPIC, "s")
            if chance.random() < 0.1:
                await deliveries.reset(TOPIC, "s", chance.randint(0, 5))
                consumer.acked.clear()
            await quiet(1)
        consumer.acks = True
        for offset in consumer.got:
            consumer.ack(offset)
        await until(lambda: found.status().acked_below == found.feed.head)
        return len(consumer.got)

    for _ in range(2):
        assert run(tmp_path, life) > 50
    assert not early


def test_what_is_reserved_costs_no_frame_but_the_first(tmp_path):
    """A consumer that acks what it gets has as many frames as acks, and one before the first."""

    async def scene(db, deliveries, _settings):
        db.create_topic("t")
        frames = []
        apply = db.cursors.apply

        def counting(topic, changes, waiter):
            frames.extend(changes)
            return apply(topic, changes, waiter)

        db.cursors.apply = counting
        consumer = Collector(await opened(deliveries))
        for number in range(50):
            await fill(db, 1)
            await until(lambda number=number: len(consumer.acked) > number)
        return len(frames)

    assert run(tmp_path, scene) == 51


@pytest.mark.parametrize("kind", [SHARED, BY_KEY])
def test_a_cursor_that_does_not_say_is_taken_for_the_largest_window(tmp_path, kind, monkeypatch):
    """Of a subscription from before it was written down, no more can be with clients than that."""

    async def first(db, deliveries, _settings):
        db.create_topic("t")
        with monkeypatch.context() as patch:
            patch.setattr("frazil.subscribe.cursors._place", CursorState)
            await opened(deliveries, kind=kind)
        await fill(db, RANGES_MAX + 10)

    async def second(_db, deliveries, _settings):
        found = await deliveries.existing(TOPIC, "s")
        await ack_all(found, (RANGES_MAX - 1, RANGES_MAX, RANGES_MAX + 9))
        assert found.status().acked_above == 1
        return await rest_of(deliveries)

    async def third(db, deliveries, _settings):
        # From here on it is written down.
        assert db.topic_runtime(TOPIC).state.cursors["s"].reserved == RANGES_MAX + 10
        await fill(db, 5)
        await ack_all(await deliveries.existing(TOPIC, "s"), [RANGES_MAX + 12])
        return await rest_of(deliveries)

    run(tmp_path, first)
    assert len(run(tmp_path, second)) == RANGES_MAX + 9
    assert run(tmp_path, third) == [*range(RANGES_MAX + 10, RANGES_MAX + 15)]
