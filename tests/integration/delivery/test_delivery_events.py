"""What subscriptions say of themselves while something goes on."""

from __future__ import annotations

import asyncio

from frazil.subscribe import DeadLetterPublisher, Limits
from frazil.subscribe import deliveries as module
from tests.integration.delivery.delivering import TOPIC, Collector, opened, run, uid, until
from tests.integration.delivery.test_delivery_faults import letters


def test_a_dead_letter_that_cannot_be_written_is_logged_once(tmp_path, caplog, monkeypatch):
    """However many wait and however often each is tried, the reason is in the log once."""
    tries = []
    publish = DeadLetterPublisher.publish

    async def counted(self, subscription, record, letter):
        tries.append(letter.offset)
        await publish(self, subscription, record, letter)

    monkeypatch.setattr(DeadLetterPublisher, "publish", counted)
    monkeypatch.setattr(module, "Limits", lambda **_given: Limits(retry_ms=20))

    async def work(db, deliveries, settings):
        db.create_topic("dead", {"id": "long"})
        db.create_topic("t").append_many([b"x"] * 5)
        settings.change(uid(db), "s", policy=letters())
        consumer = Collector(await opened(deliveries), acks=False)
        await until(lambda: len(consumer.got) == 5)
        for offset in range(5):
            await consumer.nack(offset)
        await until(lambda: min(tries.count(offset) for offset in range(5)) >= 4)
        logged = [each.facts for each in caplog.records if each.message == "dead_letter_failed"]
        assert [each["subscription"] for each in logged] == ["s"]
        await asyncio.to_thread(db.delete_topic, "dead")
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == 5)

    run(tmp_path, work)
