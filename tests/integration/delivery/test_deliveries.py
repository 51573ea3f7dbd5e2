"""Subscriptions of a real engine: what was acked stays acked, what was not comes again."""

from __future__ import annotations

import asyncio
import itertools
import random
import time

import pytest

from frazil.errors import Closed, InvalidRequest, NotFound
from frazil.subscribe import Backoff, FailurePolicy, Limits, Poison, SubscriptionType
from frazil.subscribe import subscription as subscription_module
from tests.integration.delivery.delivering import TOPIC, Collector, opened, quiet, run, uid, until
from tests.integration.engine.opening import rotate, rows_of

SHARED, BY_KEY = SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
AT_ONCE = {"base_redelivery_delay_ms": 0, "backoff": Backoff.FIXED}


class Noting(asyncio.Future):
    """A future that writes down when it gets its result, not a turn of the loop later."""

    def __init__(self, order, *, loop):
        super().__init__(loop=loop)
        self.order = order

    def set_result(self, result):
        self.order.append(("ack", result.offset))
        super().set_result(result)


class Counting(Collector):
    """A consumer that writes down how many records came at a time."""

    def __init__(self, subscription):
        self.hands = []
        super().__init__(subscription)

    def deliver(self, records, attempts):
        self.hands.append(len(records))
        super().deliver(records, attempts)


def payloads(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


def test_history_and_live_records_are_one_stream(tmp_path):
    """Records from before and after the subscription come once, in order, and stay acked."""

    async def work(db, deliveries, _settings):
        topic = db.create_topic("t")
        topic.append_many(payloads(500))
        consumer = Collector(await opened(deliveries))
        for number in range(500, 600):
            await asyncio.to_thread(topic.append, b"%d" % number)
        await until(lambda: len(consumer.acked) == 600)
        assert consumer.got == list(range(600))
        assert consumer.payloads == payloads(600)
        assert set(consumer.attempts) == {1}
        assert db.cursors.load(TOPIC)["s"].acked_below == 600

    run(tmp_path, work)


def test_room_left_after_the_held_records_is_filled(tmp_path):
    """A consumer gets as much as it has room for, also when the held records are fewer."""

    class Fixed(Collector):
        """A consumer with room for so many records, and for no more later."""

        def deliver(self, records, _attempts):
            self.got += [record.offset for record in records]

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(1000))
        subscription = await opened(deliveries)
        subscription.configure(subscription.policy, Limits(max_unacked_messages=1000))
        # One fill brings twelve records more than the consumer takes.
        first = subscription_module.FEED_RECORDS_MAX - 12
        consumer = Fixed(subscription, window=first)
        await until(lambda: len(consumer.got) == first)
        await quiet()
        subscription.ready(consumer, messages=100, size_bytes=1 << 20)
        await until(lambda: len(consumer.got) == first + 100)
        assert consumer.got == list(range(first + 100))

    run(tmp_path, work)


def test_a_lagging_subscription_gets_every_record_in_small_steps(tmp_path):
    """It takes few records per turn until it is near the head, and fewer beside publishes."""

    async def work(db, deliveries, _settings):
        topic = db.create_topic("t")
        topic.append_many(payloads(6000))
        subscription = await opened(deliveries)
        subscription.configure(subscription.policy, Limits(max_unacked_messages=6000))
        db.create_topic("other").append_many(payloads(300))
        consumer = Counting(subscription)
        hands = consumer.hands
        await until(lambda: len(consumer.acked) == 6000)
        assert consumer.got == list(range(6000))
        assert db.cursors.load(TOPIC)["s"].acked_below == 6000
        assert hands[0] <= subscription_module.LAGGING_BUSY_RECORDS_MAX
        # Up to 2,048 records from the head it lags.
        firsts = itertools.accumulate(hands, initial=0)
        lagging = [number for number, first in zip(hands, firsts, strict=False) if first < 3950]
        assert max(lagging) <= subscription_module.LAGGING_RECORDS_MAX < max(hands)

    run(tmp_path, work)


def test_acks_of_one_turn_are_answered_together(tmp_path):
    """Each answer gets its own calls, all that came in a turn at once, when they are durable."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(10))
        subscription = await opened(deliveries)
        consumer = Collector(subscription, acks=False)
        await until(lambda: len(consumer.got) == 10)
        even, odd = [], []

        def note(found):
            def answer(calls, error):
                below = db.cursors.load(TOPIC)["s"].acked_below
                found.append((calls, error, below))

            return answer

        answers = (note(even), note(odd))
        for offset in range(10):
            subscription.ack_with([offset], f"call {offset}", answers[offset % 2])
        await until(lambda: even and odd)
        assert even == [([f"call {each}" for each in range(0, 10, 2)], None, 10)]
        assert odd == [([f"call {each}" for each in range(1, 10, 2)], None, 10)]
        closed = Closed("over")
        subscription.ack_with([7], "repeat", answers[0])
        subscription.end(closed)
        subscription.ack_with([8], "late", answers[0])
        assert even[1:] == [(["repeat"], closed, 10), (["late"], closed, 10)]

    run(tmp_path, work)


def test_the_answer_to_a_publish_comes_before_its_delivery(tmp_path):
    """No consumer on the publisher's own loop sees a record whose ack is still to come."""

    async def work(db, deliveries, _settings):
        topic = db.create_topic("t")
        order = []
        consumer = Collector(await opened(deliveries))
        deliver = consumer.deliver

        def note(records, attempts):
            order.extend(("got", record.offset) for record in records)
            deliver(records, attempts)

        consumer.deliver = note
        runtime = topic.runtime
        for number in range(200):
            answer = Noting(order, loop=asyncio.get_running_loop())
            codec, data, count, size = runtime.prepare(b"%d" % number, {})
            runtime.log.queue.submit((runtime.state, codec, data, count, size, answer, None))
            await answer
        await until(lambda: len(order) == 400)
        places = {what: at for at, what in enumerate(order)}
        assert all(places["ack", n] < places["got", n] for n in range(200))

    run(tmp_path, work)


@pytest.mark.parametrize("acked", [[], [0, 1, 2], [5, 7, 9], [0, 1, 5, 6, 9]])
def test_a_restart_delivers_exactly_what_was_not_acked(tmp_path, acked):
    """After closing and opening again the acked records are gone and all others come in order."""

    async def first(db, deliveries, _settings):
        topic = db.create_topic("t")
        topic.append_many(payloads(10))
        consumer = Collector(await opened(deliveries), acks=False)
        await until(lambda: consumer.got == list(range(10)))
        for offset in acked:
            consumer.ack(offset)
        await until(lambda: sorted(consumer.acked) == acked)

    async def second(_db, deliveries, _settings):
        found = await deliveries.existing(TOPIC, "s")
        assert found.kind is SubscriptionType.EXCLUSIVE
        consumer = Collector(found)
        rest = [offset for offset in range(10) if offset not in acked]
        await until(lambda: len(consumer.acked) == len(rest))
        assert consumer.got == rest

    run(tmp_path, first)
    run(tmp_path, second)


def test_subscriptions_share_what_was_decoded(tmp_path):
    """Ten subscriptions that follow a topic cost one decoding a record."""

    async def work(db, deliveries, _settings):
        topic = db.create_topic("t")
        consumers = [Collector(await opened(deliveries, f"s{n}"), n) for n in range(10)]
        for number in range(50):
            await asyncio.to_thread(topic.append_many, payloads(10, first=number * 10))
        await until(lambda: all(len(each.acked) == 500 for each in consumers))
        assert all(each.got == list(range(500)) for each in consumers)
        assert deliveries.facts()["decoded"] == 500
        facts = deliveries.facts()
        assert facts["types"] == {"exclusive": 10, "shared": 0, "failover": 0, "key_shared": 0}
        assert (facts["delivered"], facts["acked"], facts["lag_records"]) == (5000, 5000, 0)
        assert (facts["consumers"], facts["unacked"], facts["redelivered"]) == (10, 0, 0)
        assert 0 < facts["cache_bytes"] < 1 << 20
        await deliveries.drop(TOPIC, "s0")
        assert deliveries.facts()["delivered"] == 5000

    run(tmp_path, work)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_missed_or_doubled_while_records_move(tmp_path, seed):
    """Flushes, evictions, freed segments and slow consumers change nothing of the stream."""
    chance = random.Random(seed)

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        settings.change(uid(db), "slow", max_unacked_messages=7)
        fast = Collector(await opened(deliveries, "fast"), 1)
        slow = Collector(await opened(deliveries, "slow"), 2, acks=False, window=3)
        expected = []
        for _ in range(40):
            more = [chance.randbytes(chance.randrange(1, 2000)) for _ in range(5)]
            await asyncio.to_thread(topic.append_many, more)
            expected += more
            move = chance.choice([db.tiers.flush, db.tiers.evict, None, None])
            if move is not None:
                await asyncio.to_thread(move, "t")
            if chance.random() < 0.3:
                await asyncio.to_thread(rotate, db)
                await asyncio.to_thread(db.upkeep.run_once)
            for offset in slow.got[len(slow.acked) :][: chance.randrange(8)]:
                slow.ack(offset)
            await quiet(1)
        slow.acks = True
        for offset in [each for each in slow.got if each not in slow.acked]:
            slow.ack(offset)
        await until(lambda: len(fast.acked) == 200 and len(set(slow.acked)) == 200)
        assert fast.payloads == expected
        assert slow.payloads == expected
        assert slow.got == list(range(200))

    run(tmp_path, work, disk={"log_keep_s": 0})


def test_a_delay_outlives_a_restart(tmp_path):
    """What a nack put off comes when its time is over, not when the next life begins."""
    delay_s = 3.0
    put_off = []

    async def first(db, deliveries, settings):
        topic = db.create_topic("t")
        topic.append_many(payloads(3))
        settings.change(uid(db), "s", policy=FailurePolicy(**AT_ONCE))
        consumer = Collector(await opened(deliveries), acks=False)
        await until(lambda: consumer.got == [0, 1, 2])
        put_off.append(time.time())
        await consumer.nack(1, delay_ms=int(delay_s * 1000))

    async def second(_db, deliveries, _settings):
        consumer = Collector(await opened(deliveries))
        await until(lambda: len(consumer.acked) == 3)
        assert time.time() - put_off[0] >= delay_s
        assert consumer.got == [0, 2, 1]
        assert consumer.attempts == [1, 1, 2]

    run(tmp_path, first)
    run(tmp_path, second)


def test_redelivery_reads_what_no_cache_has(tmp_path):
    """A record that went to files and out of memory is delivered again from there, in order."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        big = [random.Random(n).randbytes(30_000) for n in range(40)]
        topic.append_many(big)
        settings.change(uid(db), "s", max_unacked_messages=1000)
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 40)
        await asyncio.to_thread(db.tiers.flush, "t")
        await asyncio.to_thread(db.tiers.evict, "t")
        deliveries._cache.bytes_max = 1
        again = Collector(found, number=2, name=consumer.name)
        assert consumer.is_displaced
        await until(lambda: len(again.acked) == 40)
        assert again.got == list(range(40))
        assert again.payloads == big

    run(tmp_path, work)


def test_a_dead_letter_is_written_before_its_record_is_settled(tmp_path):
    """What failed too often is in the other topic with its story, and is not delivered again."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        topic.append(b"bad", attributes={"a": "b"}, producer_name="p", producer_id=9)
        policy = FailurePolicy(
            max_redelivery_count=1,
            poison=Poison.DEAD_LETTER,
            dead_letter_topic="/default/dead",
            **AT_ONCE,
        )
        settings.change(uid(db), "s", policy=policy)
        consumer = Collector(await opened(deliveries), acks=False)
        for attempt in (1, 2):
            await until(lambda attempt=attempt: consumer.attempts[-1:] == [attempt])
            await consumer.nack(0, reason="cannot parse")
        await until(lambda: db.cursors.load(TOPIC)["s"].acked_below == 1)
        (letter,) = rows_of(db.topic("dead"))
        facts = dict(letter["attributes"])
        assert letter["payload"] == b"bad"
        assert facts["a"] == "b"
        assert facts["x-original-topic"] == TOPIC
        assert facts["x-original-subscription"] == "s"
        assert facts["x-original-topic-offset"] == "0"
        assert facts["x-original-producer-id"] == "9"
        assert facts["x-poison-policy"] == "dead_letter"
        assert facts["x-failure-reason"] == "cannot parse"
        assert consumer.got == [0, 0]
        counts = consumer.subscription.counts
        assert (counts.delivered, counts.redelivered, counts.nacked) == (2, 1, 2)
        assert (counts.dead_letters, counts.acked) == (1, 0)

    run(tmp_path, work)


def test_shared_consumers_take_turns_and_take_over(tmp_path):
    """Thirty-six records go evenly to three; those of one that leaves go to the others."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        settings.change(uid(db), "s", max_unacked_messages=100)
        found = await opened(deliveries, kind=SHARED)
        some = [Collector(found, n, acks=n != 2) for n in range(3)]
        topic.append_many(payloads(36))
        await until(lambda: sum(len(each.got) for each in some) == 36)
        assert [len(each.got) for each in some] == [12, 12, 12]
        left = some[2]
        found.detach(left)
        await until(lambda: len(some[0].acked) + len(some[1].acked) == 36)
        assert sorted(some[0].acked + some[1].acked) == list(range(36))

    run(tmp_path, work)


def test_keys_keep_their_order_and_hold_up_nobody_else(tmp_path):
    """A key's next record waits for the ack of the one before; other keys go on."""

    async def work(db, deliveries, settings):
        topic = db.create_topic("t")
        settings.change(uid(db), "s", max_unacked_messages=100)
        found = await opened(deliveries, kind=BY_KEY)
        consumer = Collector(found, acks=False)
        for number in range(40):
            topic.append(b"%d" % number, key="ab"[number % 2])
        await until(lambda: consumer.got == [0, 1])
        consumer.ack(1)
        await until(lambda: consumer.got == [0, 1, 3])
        consumer.acks = True
        consumer.ack(0)
        consumer.ack(3)
        await until(lambda: len(consumer.acked) == 40)
        assert [each for each in consumer.got if each % 2] == list(range(1, 40, 2))
        assert [each for each in consumer.got if not each % 2] == list(range(0, 40, 2))

    run(tmp_path, work)


def test_a_reset_goes_back_and_ahead_under_a_consumer(tmp_path):
    """After a reset the consumer gets the records from there on, as first deliveries."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(20))
        consumer = Collector(await opened(deliveries))
        await until(lambda: len(consumer.acked) == 20)
        assert await deliveries.reset(TOPIC, "s", 15) == 15
        await until(lambda: len(consumer.acked) == 25)
        assert consumer.got[20:] == [15, 16, 17, 18, 19]
        assert await deliveries.reset(TOPIC, "s", "latest") == 20
        with pytest.raises(InvalidRequest):
            await deliveries.reset(TOPIC, "s", 21)
        with pytest.raises(NotFound):
            await deliveries.reset(TOPIC, "nobody", 0)
        await asyncio.to_thread(db.topic("t").append, b"20")
        await until(lambda: consumer.got[25:] == [20])

    run(tmp_path, work)


def test_acks_before_a_reset_do_not_count_after_it(tmp_path):
    """A reset waits for acks under way, and acks that come while it is made change nothing."""

    async def work(db, deliveries, settings):
        db.create_topic("t").append_many(payloads(20))
        settings.change(uid(db), "s", max_unacked_messages=100)
        consumer = Collector(await opened(deliveries), acks=False)
        await until(lambda: len(consumer.got) == 20)
        for offset in range(10):
            consumer.ack(offset)
        resetting = asyncio.create_task(deliveries.reset(TOPIC, "s", "earliest"))
        for offset in range(10, 20):
            consumer.ack(offset)
        await resetting
        await until(lambda: len(consumer.got) == 40)
        assert consumer.got[20:] == list(range(20))
        await until(lambda: len(consumer.acked) == 20)
        assert not consumer.refused

    run(tmp_path, work)


def test_a_dropped_subscription_ends_its_consumers(tmp_path):
    """Nothing of it stays, its records are let go, and calls in between get a clear error."""

    async def work(db, deliveries, settings):
        db.create_topic("t").append_many(payloads(5))
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 5)
        await deliveries.drop(TOPIC, "s")
        assert isinstance(consumer.end, NotFound)
        consumer.ack(0)
        assert consumer.refused == [0]
        assert not db.topic("t").runtime.state.cursors
        assert settings.find(uid(db), "s") is None
        assert deliveries.find(TOPIC, "s") is None
        assert await deliveries.existing(TOPIC, "s") is None
        with pytest.raises(NotFound):
            await deliveries.drop(TOPIC, "s")

    run(tmp_path, work)


def test_a_deleted_topic_ends_its_subscriptions(tmp_path):
    """The deletion ends the consumers, also without a call of `forget_topic`."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        consumer = Collector(await opened(deliveries))
        await until(lambda: len(consumer.acked) == 5)
        await asyncio.to_thread(db.delete_topic, "t")
        deliveries.forget_topic(TOPIC)
        assert isinstance(consumer.end, NotFound)
        with pytest.raises(NotFound):
            await opened(deliveries)

    run(tmp_path, work)


def test_a_closed_engine_ends_every_stream(tmp_path):
    """Closing first makes the acks durable that came, then ends the consumers."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        consumer = Collector(await opened(deliveries), acks=False)
        await until(lambda: len(consumer.got) == 5)
        consumer.ack(0)
        await deliveries.close()
        assert consumer.acked == [0]
        assert isinstance(consumer.end, Closed)
        assert db.cursors.load(TOPIC)["s"].acked_below == 1
        with pytest.raises(Closed):
            await opened(deliveries)

    run(tmp_path, work)


def test_parts_keep_their_settings_until_the_last_subscription_goes(tmp_path):
    """The parts of a topic share one setting; its type is that of the first, and one goes alone."""

    async def work(db, deliveries, settings):
        db.create_topic("t", partitions=2)
        first, second = f"{TOPIC}-part-0", f"{TOPIC}-part-1"
        await deliveries.open(first, "s", kind=SHARED)
        other = await deliveries.open(second, "s", kind=BY_KEY)
        assert other.kind is SHARED
        await deliveries.drop(first, "s")
        assert settings.get(uid(db, second), "s").kind is SHARED
        assert deliveries.find(second, "s") is other
        await deliveries.drop(second, "s")
        assert settings.find(uid(db, second), "s") is None
        assert (await deliveries.open(first, "s", kind=BY_KEY)).kind is BY_KEY

    run(tmp_path, work)
