"""Deliveries in bad hours: reads that take long, records that are gone, letters that do not fit."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import attrs
import pytest

from frazil.errors import InvalidRequest, Unavailable
from frazil.subscribe import Backoff, FailurePolicy, Poison, SubscriptionType, subscription
from frazil.topic import StateTag
from tests.integration.delivery.delivering import (
    TOPIC,
    Collector,
    opened,
    quiet,
    run,
    uid,
    until,
)
from tests.integration.engine.opening import LOG_ALONE, rotate, rows_of

DEAD = "/default/dead"


class AwayHistory:
    """A topic's history that lies in a store out of reach, until it is back."""

    def __init__(self, runtime):
        self._history = runtime.history
        self.is_away = True
        self.asked = 0
        runtime.history = self

    def __getattr__(self, name):
        return getattr(self._history, name)

    def read(self, topic, *, offset, bytes_max):
        """Read, unless the store is away."""
        self.asked += 1
        if self.is_away:
            raise Unavailable("the store does not answer", retry_after_ms=10)
        return self._history.read(topic, offset=offset, bytes_max=bytes_max)


def forget_decoded(found):
    """Let a feed forget all that it decoded."""
    for chunk in list(found.feed._chunks.values()):
        found.feed._cache.drop(chunk)
        found.feed.forget(chunk)


def letters(**more):
    """Return a policy under which the first failure is the last."""
    return FailurePolicy(
        max_redelivery_count=0,
        poison=Poison.DEAD_LETTER,
        dead_letter_topic=DEAD,
        base_redelivery_delay_ms=0,
        backoff=Backoff.FIXED,
        **more,
    )


@pytest.mark.parametrize("poison", [Poison.DROP, Poison.BLOCK])
def test_a_store_that_is_away_uses_no_attempt_up(tmp_path, poison):
    """What is to be delivered again waits for the store, however long, and then comes as it would.

    A record that no consumer got has not failed: it is neither dropped nor blocked.
    """

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        policy = FailurePolicy(
            max_redelivery_count=1,
            ack_timeout_ms=2_000,
            base_redelivery_delay_ms=0,
            backoff=Backoff.FIXED,
            poison=poison,
        )
        settings.change(uid(db), "s", policy=policy, max_unacked_messages=10)
        topic.append_many([b"%d" % number for number in range(5000)])
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 10)
        forget_decoded(found)
        away = AwayHistory(found.feed.runtime)
        for offset in range(10):
            await consumer.nack(offset)
        # Each of them was asked for more often than it may be delivered, and longer than it may
        # be with a consumer.
        await until(lambda: away.asked >= 30)
        assert found.counts.dropped == 0
        assert found.status().blocked == 0
        assert len(consumer.got) == 10
        away.is_away = False
        consumer.acks = True
        await until(lambda: len(consumer.acked) >= 5000)
        assert sorted(consumer.got[10:]) == list(range(5000))
        attempts = dict(zip(consumer.got[10:], consumer.attempts[10:], strict=True))
        assert [attempts[offset] for offset in range(10)] == [2] * 10

    run(tmp_path, work)


def test_stats_report_a_store_that_is_away_once(tmp_path, caplog):
    """However often it is asked: many subscriptions must not fill a log while a store is away."""

    async def work(db, deliveries, _settings):
        topic = db.create_topic("t")
        topic.append_many([b"%d" % number for number in range(5000)])
        away = AwayHistory(db.topic_runtime(TOPIC))
        found = await opened(deliveries)
        consumer = Collector(found)
        for _ in range(2):
            asked, away.is_away = away.asked, True
            await until(lambda asked=asked: away.asked >= asked + 3)
            assert found.status().paused == "cannot read"
            assert len([each for each in caplog.messages if "cannot_read" in each]) == 1
        away.is_away = False
        await until(lambda: len(consumer.acked) == 5000)
        assert found.damage is None
        assert consumer.got == list(range(5000))

    run(tmp_path, work)


def test_what_ends_during_a_reset_belongs_to_the_place_before_it(tmp_path):
    """Nacks and dead letters on their way change nothing of the place that was asked for."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        topic.append_many([b"%d" % number for number in range(8)])
        settings.change(uid(db), "s", policy=letters())
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 8)
        answers = []
        found.nack(3, answers.append, reason="bad")
        await quiet(1)
        resetting = asyncio.create_task(deliveries.reset(TOPIC, "s", "earliest"))
        await asyncio.sleep(0)
        found.nack(5, answers.append)
        await resetting
        await until(lambda: answers == [None, None])
        assert db.cursors.load(TOPIC)["s"].acked_below == 0
        assert not db.cursors.load(TOPIC)["s"].attempts
        assert not list(db.cursors.load(TOPIC)["s"].ranges())
        await until(lambda: consumer.got[8:] == list(range(8)))

    run(tmp_path, work)


def test_records_that_expired_before_another_delivery_are_passed(tmp_path):
    """A consumer that comes back gets what is left; the rest is settled and counted."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t", retention_bytes=60_000, on_full="expire")
        settings.change(uid(db), "s", max_unacked_messages=30)
        for number in range(3):
            topic.append_many([random.Random(number).randbytes(1000)] * 10)
            rotate(db)
        found = await opened(deliveries)
        first = Collector(found, acks=False)
        await until(lambda: len(first.got) == 30)
        for number in range(6):
            topic.append_many([random.Random(number).randbytes(1000)] * 10)
            rotate(db)
        db.upkeep.check_quotas()
        start = topic.describe()["holds"]["subscription:s"]
        assert start >= 30
        await quiet()
        forget_decoded(found)
        again = Collector(found, 2, first.name, window=10)
        await until(lambda: len(again.acked) == 90 - start)
        assert again.got == list(range(start, 90))
        assert found.counts.missed == start
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == 90)
        assert found.status().unacked == 0

    run(tmp_path, work, retention_age_s=0.0, memory=LOG_ALONE)


def test_a_dead_letter_of_the_largest_record_fits(tmp_path):
    """The attributes of the failure come on top of a message's limits."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        size = topic.runtime.limits.message_bytes_max
        topic.append(b"x" * size)
        with pytest.raises(InvalidRequest):
            topic.append(b"x" * (size + 1))
        settings.change(uid(db), "s", policy=letters())
        consumer = Collector(await opened(deliveries), acks=False)
        await until(lambda: consumer.got == [0])
        await consumer.nack(0, reason="too much")
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == 1)
        (letter,) = rows_of(db.topic("dead"))
        assert len(letter["payload"]) == size
        assert dict(letter["attributes"])["x-failure-reason"] == "too much"

    run(tmp_path, work)


def test_a_dead_letter_is_synced_before_its_record_is_settled(tmp_path):
    """Also where the topic of dead letters answers its publishers before it is on the disk."""

    async def work(db, deliveries, settings):
        dead = db.create_topic("dead", sync="periodic")
        db.create_topic("t").append_many([b"0", b"1", b"2"])
        settings.change(uid(db), "s", policy=letters())
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 3)
        for offset in range(3):
            await consumer.nack(offset)
            await until(lambda offset=offset: db.cursors.load(TOPIC)["s"].acked_below > offset)
            assert dead.runtime.state.durable == offset + 1

    run(tmp_path, work)


def test_dead_letters_make_no_namespace(tmp_path):
    """Dead letters wait for a namespace that is gone, and `paused` says so, until it is back."""

    async def work(db, deliveries, settings):
        db.create_topic("t").append(b"x")
        policy = attrs.evolve(letters(), dead_letter_topic="/gone/dead")
        settings.change(uid(db), "s", policy=policy)
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: consumer.got == [0])
        await consumer.nack(0)
        await until(lambda: found.status().paused == "dead letters")
        assert "/gone/dead" not in db.topics()
        assert db.cursors.load(TOPIC)["s"].acked_below == 0
        await asyncio.to_thread(db.states.put, StateTag.NAMESPACE, "gone", b"1")
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == 1)
        assert [row["payload"] for row in rows_of(db.topic("/gone/dead"))] == [b"x"]

    run(tmp_path, work)


@pytest.mark.parametrize("is_blocked", [True, False])
@pytest.mark.parametrize("cache_bytes", [1, 64 << 20])
def test_a_stuck_key_stops_no_other_however_much_waits(
    tmp_path, monkeypatch, is_blocked, cache_bytes
):
    """Beyond a number of bytes, attributes counted, what waits is not kept, and comes all the same."""
    monkeypatch.setattr(subscription, "HELD_BYTES_MAX", 100_000)

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        policy = attrs.evolve(letters(), poison=Poison.BLOCK, dead_letter_topic=None)
        settings.change(uid(db), "s", policy=policy)
        found = await opened(deliveries, kind=SubscriptionType.KEY_SHARED)
        found.feed._cache.bytes_max = cache_bytes
        consumer = Collector(found, acks=False)
        topic.append(b"0", key="same")
        await until(lambda: consumer.got == [0])
        if is_blocked:
            await consumer.nack(0)
            await until(lambda: found.status().blocked == 1)
        for number in range(1, 40):
            topic.append(b"%d" % number, key="same", attributes={"a": str(number) * 5000})
        for number in range(40, 45):
            topic.append(b"%d" % number, key=f"other-{number}")
        await until(lambda: consumer.got == [0, *range(40, 45)])
        assert (found.status().paused, found.status().held) == (None, 39)
        assert 80_000 <= found._dispatch.held_bytes <= 100_000
        consumer.acks = True
        for offset in consumer.got[:]:
            consumer.ack(offset)
        await until(lambda: len(consumer.acked) == 45)
        assert consumer.got == [0, *range(40, 45), *range(1, 40)]
        assert consumer.payloads == [b"%d" % offset for offset in consumer.got]
        assert consumer.attempts == [1] * 45
        assert (found._dispatch.held_bytes, found.counts.missed) == (0, 0)

    run(tmp_path, work)


def test_what_was_not_kept_is_a_dead_letter_with_its_payload(tmp_path, monkeypatch):
    """Each record that fails is read again for its letter, kept or not before its delivery."""
    monkeypatch.setattr(subscription, "HELD_BYTES_MAX", 2)

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        settings.change(uid(db), "s", policy=letters())
        found = await opened(deliveries, kind=SubscriptionType.KEY_SHARED)
        consumer = Collector(found, acks=False)
        for number in range(10):
            topic.append(b"%d" % number, key="same")
        for offset in range(10):
            await until(partial(consumer.got.__contains__, offset))
            await consumer.nack(offset)
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == 10)
        payloads = [row["payload"] for row in rows_of(db.topic(DEAD))]
        assert payloads == [b"%d" % number for number in range(10)]
        assert found.counts.missed == 0

    run(tmp_path, work)


def test_a_feed_goes_with_its_last_subscription(tmp_path):
    """Topics that come and go leave nothing, whether a feed or the deliveries notice the end first."""

    async def work(db, deliveries, _settings):
        for number in range(5):
            name = f"/default/t{number}"
            topic = db.create_topic(name)
            kind = SubscriptionType.SHARED
            found = await deliveries.open(name, "s", kind=kind)
            consumer = Collector(found)
            topic.append(b"x")
            await until(lambda consumer=consumer: consumer.acked == [0])
            await asyncio.to_thread(db.delete_topic, name)
            if number % 2:
                await until(lambda found=found: found.end_error is not None)
                assert deliveries.find(name, "s") is None
            deliveries.forget_topic(name)
        assert not deliveries._feeds
        assert not deliveries.subscriptions
        assert deliveries.facts()["cache_bytes"] == 0

    run(tmp_path, work)


@pytest.mark.parametrize("step", ["ack", "_run"])
def test_a_bug_in_one_subscription_stops_no_acks_of_others(tmp_path, monkeypatch, step):
    """Acks are settled and answered for each subscription by itself, and after the bug again."""

    async def work(db, deliveries, _settings):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        topic = db.create_topic("t")
        topic.append_many([b"%d" % number for number in range(20)])
        first, second = await opened(deliveries, "a"), await opened(deliveries, "b")
        broken, other = Collector(first, acks=False), Collector(second, acks=False)
        await until(lambda: len(broken.got) >= 10 and len(other.got) >= 10)
        owner = first._dispatch if step == "ack" else first
        faults = [True]

        def fail_once(*given, **named):
            if faults:
                faults.pop()
                raise ZeroDivisionError
            return getattr(type(owner), step)(owner, *given, **named)

        monkeypatch.setattr(owner, step, fail_once, raising=False)
        broken.ack(0)
        other.ack(0)
        await until(lambda: 0 in other.acked)
        assert not faults
        broken.ack(1)
        other.ack(1)
        await until(lambda: 1 in broken.acked and 1 in other.acked)

    run(tmp_path, work)


def test_a_creation_with_an_unknown_outcome_keeps_its_type(tmp_path, monkeypatch):
    """The cursor may be durable: opened again, the subscription is of the type that was asked for."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append(b"one")
        create = type(db.cursors).create

        def unknown(self, *given):
            create(self, *given)
            raise Unavailable("the lease may have run out", outcome="unknown")

        with monkeypatch.context() as patch:
            patch.setattr(type(db.cursors), "create", unknown)
            with pytest.raises(Unavailable):
                await opened(deliveries, kind=SubscriptionType.KEY_SHARED)
        found = await opened(deliveries, kind=None)
        assert found.kind is SubscriptionType.KEY_SHARED

    run(tmp_path, work)
