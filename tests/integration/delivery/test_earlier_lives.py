"""Acks of clients that outlived the broker: which of them count."""

from __future__ import annotations

import pytest

from frazil.log.cursor import RANGES_MAX
from frazil.subscribe import SubscriptionType
from tests.integration.delivery.delivering import TOPIC, Collector, opened, run, uid, until

SHARED, BY_KEY = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


@pytest.mark.parametrize("kind", SubscriptionType)
def test_acks_of_what_an_earlier_life_delivered_count(tmp_path, kind):
    """A client that outlived the broker acks what it has: that is not delivered again.

    The window that was open when it was delivered does not matter.
    """

    async def first(db, deliveries, settings):
        topic = db.create_topic("t")
        settings.change(uid(db), "s", max_unacked_messages=16)
        for number in range(20):
            topic.append(b"%d" % number, key=str(number))
        found = await opened(deliveries, kind=kind)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 16)
        consumer.ack(2)
        await until(lambda: 16 in consumer.got)
        settings.change(uid(db), "s", max_unacked_messages=3)
        deliveries.configure(TOPIC, "s")

    async def second(_db, deliveries, _settings):
        found = await deliveries.existing(TOPIC, "s")
        answers = []
        for offset in (0, 1, 6, 15, 25):
            found.ack(offset, answers.append)
        await until(lambda: answers == [None] * 5)
        consumer = Collector(found, window=20)
        await until(lambda: len(consumer.acked) == 15)
        assert sorted(consumer.got) == [3, 4, 5, *range(7, 15), *range(16, 20)]

    run(tmp_path, first)
    run(tmp_path, second)


@pytest.mark.parametrize("kind", [SHARED, BY_KEY])
def test_acks_of_what_no_life_can_have_delivered_have_no_effect(tmp_path, kind):
    """No more records than the largest window may be with clients since an earlier life."""

    async def first(db, deliveries, _settings):
        topic = db.create_topic("t")
        await opened(deliveries, kind=kind)
        topic.append_many([b"x"] * (RANGES_MAX + 10))

    async def second(_db, deliveries, _settings):
        found = await deliveries.existing(TOPIC, "s")
        answers = []
        for offset in (RANGES_MAX - 1, RANGES_MAX, RANGES_MAX + 9):
            found.ack(offset, answers.append)
        await until(lambda: answers == [None] * 3)
        assert found.status().acked_above == 1

    run(tmp_path, first)
    run(tmp_path, second)
