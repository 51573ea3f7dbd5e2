"""Acks of clients that outlived the broker: which of them count."""

from __future__ import annotations

import asyncio

import pytest

from frazil.errors import Overloaded
from frazil.log import RANGES_MAX
from frazil.subscribe import SubscriptionType
from tests.integration.delivery.delivering import (
    TOPIC,
    Collector,
    opened,
    run,
    uid,
    until,
)

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
    await until(lambda: found.status().cursor.acked_below == found.feed.head)
    return sorted(consumer.got)


@pytest.mark.parametrize("kind", SubscriptionType)
def test_acks_of_what_an_earlier_life_delivered_count(tmp_path, kind):
    """A client that outlived the broker acks what it has: that is settled.

    So is every other record below the head; an ack beyond the head has no effect.
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
    assert run(tmp_path, second) == [3, 4, 5, *range(7, 15), 16, 18]


@pytest.mark.parametrize("kind", SubscriptionType)
def test_acks_that_would_exceed_the_ranges_of_a_cursor_are_refused(tmp_path, kind):
    """Acks of scattered records that nobody delivered are bounded like all others."""

    async def work(db, deliveries, _settings):
        db.create_topic("t")
        await fill(db, 2 * RANGES_MAX + 10)
        found = await opened(deliveries, kind=kind)
        answers = []
        found.ack_with(
            range(1, 2 * RANGES_MAX, 2), "most", lambda _calls, error: answers.append(error)
        )
        await until(lambda: answers)
        found.ack(2 * RANGES_MAX + 5, answers.append)
        await until(lambda: len(answers) == 2)
        assert answers[0] is None
        assert isinstance(answers[1], Overloaded)
        consumer = Collector(found)
        await until(lambda: found.status().cursor.acked_below == found.feed.head)
        assert sorted(consumer.got) == [
            *range(0, 2 * RANGES_MAX, 2),
            *range(2 * RANGES_MAX, 2 * RANGES_MAX + 10),
        ]

    run(tmp_path, work)
