"""Records that cannot be read for a while: none is lost, passed over, counted or out of order."""

from __future__ import annotations

import asyncio
import threading

import pytest

from frazil.errors import InvalidRequest, NotFound, Unavailable
from frazil.subscribe import (
    Backoff,
    FailurePolicy,
    Poison,
    SubscriptionType,
    feed,
    subscription,
)
from tests.integration.delivery.delivering import (
    TOPIC,
    Collector,
    opened,
    run,
    uid,
    until,
)
from tests.integration.engine.opening import rows_of

DEAD = "/default/dead"
RECORDS = 3000
"""More than are read on the loop."""


class Obstructed:
    """A topic's history in whose way something can be put."""

    def __init__(self, runtime):
        self._history = runtime.history
        self.error = None
        self.error_at = None
        self.asked = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        runtime.history = self

    def __getattr__(self, name):
        return getattr(self._history, name)

    def read(self, topic, *, offset, bytes_max):
        """Read, unless something is in the way."""
        self.asked += 1
        assert self.may_go_on.wait(60)
        if self.error is not None and self.error_at in {None, offset}:
            raise self.error
        return self._history.read(topic, offset=offset, bytes_max=bytes_max)


def no_longer_held(first=RECORDS - 100):
    """Return what a history says of records that no source has."""
    return NotFound("offset is no longer held anywhere", offset_first=first)


def policy_of(poison=Poison.DROP, **more):
    """Return a policy under which every failure but the first costs the record."""
    given = {"max_redelivery_count": 1, "ack_timeout_ms": 0, "base_redelivery_delay_ms": 0}
    letters = DEAD if poison is Poison.DEAD_LETTER else None
    return FailurePolicy(
        **{**given, **more}, backoff=Backoff.FIXED, poison=poison, dead_letter_topic=letters
    )


def forget_decoded(found):
    """Let a feed forget all that it decoded."""
    for chunk in list(found.feed._chunks.values()):
        found.feed._cache.drop(chunk)
        found.feed.forget(chunk)


@pytest.mark.parametrize("size", [100, 20_000])
def test_every_dead_letter_is_written_whatever_else_is_read(tmp_path, monkeypatch, size):
    """What is read for a letter is used although the next read takes its room at once."""
    count = 30
    monkeypatch.setattr(feed, "READ_BYTES", 1000)
    monkeypatch.setattr(feed, "LIVE_RECORDS_MAX", 0)

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        for number in range(count):
            topic.append(b"%d:" % number + b"x" * size)
        limits = {"max_unacked_messages": count}
        settings.change(
            uid(db), "s", policy=policy_of(Poison.DEAD_LETTER, max_redelivery_count=0), **limits
        )
        found = await opened(deliveries, kind=SubscriptionType.SHARED)
        found.feed._cache.bytes_max = 1
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == count)
        answers = []
        for offset in range(count):
            found.nack(offset, answers.append)
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == count)
        assert answers == [None] * count
        letters = [row["payload"] for row in rows_of(db.topic("dead"))]
        numbers = sorted(int(payload.partition(b":")[0]) for payload in letters)
        assert numbers == list(range(count))
        assert found.counts.missed == 0

    run(tmp_path, work)


def test_what_nobody_gave_up_is_not_passed_over(tmp_path):
    """Records that are held and not found stop the subscription; found again, all of them come."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many([b"%d" % number for number in range(RECORDS)])
        history = Obstructed(db.topic_runtime(TOPIC))
        history.error = no_longer_held()
        found = await opened(deliveries)
        consumer = Collector(found)
        await until(lambda: history.asked >= 2)
        assert found.status().paused == "cannot read"
        assert "check the settings" in found.damage.message
        assert consumer.got == []
        assert db.cursors.load(TOPIC)["s"].acked_below == 0
        history.error = None
        await until(lambda: len(consumer.acked) == RECORDS)
        assert consumer.got == list(range(RECORDS))
        assert found.counts.missed == 0
        assert found.damage is None

    run(tmp_path, work)


def test_the_time_for_an_ack_begins_when_a_record_is_sent(tmp_path):
    """A read that takes longer than an ack may is no failure of the consumer."""

    async def work(db, deliveries, settings):
        db.create_topic("t").append_many([b"%d" % number for number in range(RECORDS)])
        policy = policy_of(ack_timeout_ms=100, max_redelivery_count=1)
        settings.change(uid(db), "s", policy=policy, max_unacked_messages=1)
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: consumer.got == [0])
        forget_decoded(found)
        history = Obstructed(found.feed.runtime)
        history.may_go_on.clear()
        await consumer.nack(0)
        await until(lambda: history.asked >= 1)
        now_ms = found._now_ms()
        await until(lambda: found._now_ms() > now_ms + 500)
        assert found.counts.dropped == 0
        consumer.acks = True
        history.may_go_on.set()
        await until(lambda: 0 in consumer.acked)
        assert consumer.got[:2] == [0, 0]
        assert consumer.attempts[1] == 2

    run(tmp_path, work)


def test_what_was_not_kept_and_cannot_be_read_stops_its_key_alone(tmp_path, monkeypatch):
    """It has not failed, nothing of its key goes before it, and other keys go on meanwhile."""
    monkeypatch.setattr(feed, "LIVE_RECORDS_MAX", 0)
    monkeypatch.setattr(subscription, "HELD_BYTES_MAX", 0)

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        for number in range(6):
            topic.append(b"%d" % number, key="same" if number < 3 else "other")
        settings.change(uid(db), "s", policy=policy_of(max_redelivery_count=0))
        found = await opened(deliveries, kind=SubscriptionType.KEY_SHARED)
        consumer = Collector(found, acks=False)
        await until(lambda: (consumer.got, found.status().held) == ([0, 3], 4))
        assert found._dispatch.held_bytes == 0
        forget_decoded(found)
        history = Obstructed(found.feed.runtime)
        history.error, history.error_at = Unavailable("the store does not answer"), 1
        consumer.acks = True
        consumer.ack(0)
        await until(lambda: found.status().paused == "cannot read")
        consumer.ack(3)
        topic.append(b"6", key="third")
        await until(lambda: sorted(consumer.acked) == [0, 3, 4, 5, 6])
        history.error = None
        await until(lambda: len(consumer.acked) == 7)
        assert consumer.got[-2:] == [1, 2]
        assert consumer.payloads == [b"%d" % offset for offset in consumer.got]
        assert consumer.attempts == [1] * 7
        assert found.counts.dropped == found.counts.missed == 0
        assert found.damage is None

    run(tmp_path, work)


def test_a_policy_whose_letters_could_not_be_written_is_refused(tmp_path):
    """A partitioned topic takes no dead letters by its own name."""

    async def work(db, _deliveries, _settings):
        db.create_topic("dead", partitions=2)
        topic = db.create_topic("t")
        letters = {"poison": "dead_letter", "dead_letter_topic": "dead"}
        with pytest.raises(InvalidRequest, match="partitioned"):
            await asyncio.to_thread(topic.set_subscription, "s", policy=letters)
        letters["dead_letter_topic"] = "dead-part-0"
        await asyncio.to_thread(topic.set_subscription, "s", policy=letters)

    run(tmp_path, work)
