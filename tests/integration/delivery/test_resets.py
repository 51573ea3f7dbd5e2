"""Subscriptions that are put somewhere else while consumers are at work."""

from __future__ import annotations

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
        await until(lambda: found.status().acked_below == 5)
        await deliveries.reset(TOPIC, "s", "earliest")
        assert found.status().active_id == 3
        await until(lambda: again.got[-5:] == list(range(5)))
        assert standby.got == []

    run(tmp_path, work)


def test_one_that_takes_an_id_over_comes_last(tmp_path):
    """A consumer of another name under the id of an attached one has no place of it to keep."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        found = await opened(deliveries, kind=FAILOVER)
        first = Collector(found, 1, "a")
        standby = Collector(found, 2, "b")
        other = Collector(found, 1, "c")
        assert first.is_displaced
        assert [each.name for each in found.consumers] == ["b", "c"]
        await deliveries.reset(TOPIC, "s", "earliest")
        await until(lambda: standby.got[-5:] == list(range(5)))
        assert found.status().active_id == 2
        assert other.got == []

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


def test_by_the_wire_an_ack_counts_for_what_was_delivered_since(tmp_path):
    """It names an offset alone: before the record came again it changes nothing, after that it does."""

    async def work(db, deliveries, _settings):
        db.create_topic("t").append_many(payloads(5))
        found = await opened(deliveries)
        consumer = Collector(found, acks=False)
        await until(lambda: len(consumer.got) == 5)
        consumer.window = 0
        consumer.want()
        await deliveries.reset(TOPIC, "s", "earliest")
        for offset in range(5):
            consumer.ack(offset)
        await until(lambda: len(consumer.acked) == 5)
        assert found.counts.acked == 5
        assert db.cursors.load(TOPIC)["s"].acked_below == 0
        consumer.window = 100
        consumer.want()
        await until(lambda: consumer.got[5:] == list(range(5)))
        consumer.ack(0)
        await until(lambda: len(consumer.acked) == 6)
        assert db.cursors.load(TOPIC)["s"].acked_below == 1

    run(tmp_path, work)
