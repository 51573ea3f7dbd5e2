"""Subscriptions' policies and windows in a `frazil serve` process: set, read back, and at work."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from danube import SubType

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from tests.integration.serve.protocol_cast import offsets, play
from tests.integration.serve.protocol_world import KEY_SHARED, Fails, Gives, Row, Scene
from tests.integration.serve.test_protocol_admin import (
    DONE,
    UNKNOWN_TOPIC,
    after,
    named,
    topic_call,
)

pytestmark = pytest.mark.integration

CODES = grpc.StatusCode
UNKNOWN_SUBSCRIPTION = Fails(CODES.NOT_FOUND, "unable to find the subscription…")


def subscription(scene, kind=admin.SubscriptionRequest, name="s", **more):
    return kind(topic=scene.topic, subscription=name, **more)


POLICY = {
    "max_redelivery_count": 2,
    "ack_timeout_ms": 200,
    "base_redelivery_delay_ms": 50,
    "max_redelivery_delay_ms": 400,
    "backoff_strategy": 0,
    "dead_letter_topic": "/default/dead",
    "poison_policy": 0,
}
DEFAULT = {
    "max_redelivery_count": 5,
    "ack_timeout_ms": 30_000,
    "base_redelivery_delay_ms": 1_000,
    "max_redelivery_delay_ms": 60_000,
    "backoff_strategy": 1,
    "poison_policy": 1,
}


def policy(scene, **changes):
    wanted = admin.SubscriptionFailurePolicy(**{**POLICY, **changes})
    return subscription(scene, admin.SetSubscriptionFailurePolicyRequest, failure_policy=wanted)


def window(scene, count):
    wanted = admin.SubscriptionDispatchConfig(max_unacked_messages=count)
    return subscription(scene, admin.SetSubscriptionDispatchConfigRequest, dispatch_config=wanted)


GET_POLICY, SET_POLICY = (topic_call(f"{verb}SubscriptionFailurePolicy") for verb in ("Get", "Set"))
GET_WINDOW, SET_WINDOW = (
    topic_call(f"{verb}SubscriptionDispatchConfig") for verb in ("Get", "Set")
)


def get_policy(scene):
    return subscription(scene, admin.GetSubscriptionFailurePolicyRequest)


def get_window(scene):
    return subscription(scene, admin.GetSubscriptionDispatchConfigRequest)


def is_policy(**wanted):
    return lambda _scene, found: found == admin.SubscriptionFailurePolicy(**wanted)


def is_window(count):
    return Gives(
        dispatch_config=lambda _scene, found: (
            found == admin.SubscriptionDispatchConfig(max_unacked_messages=count)
        )
    )


SUBSCRIPTIONS = [
    Row(
        "TopicAdmin",
        topic_call("ListSubscriptions"),
        "two",
        lambda s: after(
            s.has_consumer(subscription="b"), s.has_consumer(subscription="a"), named(s)
        ),
        Gives(subscriptions=["a", "b"]),
    ),
    Row(
        "TopicAdmin",
        topic_call("ListSubscriptions"),
        "none",
        lambda s: named(s, s.made()),
        Gives(subscriptions=[]),
    ),
    Row("TopicAdmin", topic_call("ListSubscriptions"), "unknown topic", named, UNKNOWN_TOPIC),
    Row(
        "TopicAdmin",
        topic_call("Unsubscribe"),
        "known",
        lambda s: after(s.has_consumer(), subscription(s)),
        DONE,
    ),
    Row(
        "TopicAdmin",
        topic_call("Unsubscribe"),
        "unknown",
        lambda s: after(s.made(), subscription(s)),
        UNKNOWN_SUBSCRIPTION,
    ),
    Row("TopicAdmin", topic_call("Unsubscribe"), "unknown topic", subscription, UNKNOWN_TOPIC),
    Row(
        "1.5",
        SET_POLICY,
        "before the subscription exists",
        lambda s: after(s.made(), policy(s)),
        DONE,
    ),
    Row("1.5", SET_POLICY, "at work", lambda s: after(s.has_consumer(), policy(s)), DONE),
    Row("TopicAdmin", SET_POLICY, "unknown topic", policy, UNKNOWN_TOPIC),
    Row(
        "1.5",
        SET_POLICY,
        "DeadLetter needs dead_letter_topic",
        lambda s: after(s.made(), policy(s, dead_letter_topic=None)),
        Fails(CODES.INVALID_ARGUMENT, "the policy dead letter needs a dead_letter_topic"),
    ),
    Row(
        "TopicAdmin",
        SET_POLICY,
        "no policy",
        lambda s: after(s.made(), subscription(s, admin.SetSubscriptionFailurePolicyRequest)),
        Fails(CODES.INVALID_ARGUMENT, "the request has no failure_policy"),
    ),
    Row(
        "1.5",
        GET_POLICY,
        "defaults",
        lambda s: after(s.has_consumer(kind=KEY_SHARED), get_policy(s)),
        Gives(failure_policy=is_policy(**DEFAULT), subscription_type=KEY_SHARED),
    ),
    Row(
        "1.8.5",
        GET_POLICY,
        "read back as it was set",
        lambda s: after(s.made(), s.ask(SET_POLICY, policy(s)), get_policy(s)),
        Gives(failure_policy=is_policy(**POLICY), subscription_type=0),
    ),
    Row(
        "TopicAdmin",
        GET_POLICY,
        "unknown subscription",
        lambda s: after(s.made(), get_policy(s)),
        UNKNOWN_SUBSCRIPTION,
    ),
    *(
        Row("1.5", SET_WINDOW, f"{n}", lambda s, n=n: after(s.made(), window(s, n)), DONE)
        for n in (1, 10_000)
    ),
    *(
        Row(
            "1.5",
            SET_WINDOW,
            f"{n} is out of range",
            lambda s, n=n: after(s.made(), window(s, n)),
            Fails(CODES.INVALID_ARGUMENT, "max_unacked_messages…"),
        )
        for n in (0, 10_001)
    ),
    Row("TopicAdmin", SET_WINDOW, "unknown topic", lambda s: window(s, 5), UNKNOWN_TOPIC),
    Row(
        "1.5",
        GET_WINDOW,
        "default",
        lambda s: after(s.has_consumer(), get_window(s)),
        is_window(10),
    ),
    Row(
        "1.5",
        GET_WINDOW,
        "read back as it was set",
        lambda s: after(s.made(), s.ask(SET_WINDOW, window(s, 3)), get_window(s)),
        is_window(3),
    ),
    Row(
        "TopicAdmin",
        GET_WINDOW,
        "unknown subscription",
        lambda s: after(s.made(), get_window(s)),
        UNKNOWN_SUBSCRIPTION,
    ),
]


ROWS = SUBSCRIPTIONS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_the_answer_is_the_pages(protocol_broker, row):
    """Code and text, or every field of the reply, are what the page says."""
    Scene(protocol_broker).check(row)
    assert protocol_broker.process.process.poll() is None


# -- 1.5, 1.8.5: failure policies ------------------------------------------------------------------


async def delivered(cast, payload, attributes=None, **policy):
    """Deliver a record under a policy; return its producer, its reader and its message."""
    producer = await cast.producer()
    await cast.policy(**policy)
    reader = await cast.reader()
    await producer.send(payload, attributes)
    (message,) = await reader.take(ack=False)
    return producer, reader, message


def test_a_nacked_record_comes_again_as_it_was(protocol_broker):
    """1.8.5: same payload, same topic_offset; a policy that was set before counts."""

    async def scene(cast):
        _, reader, message = await delivered(cast, b"x")
        for _ in range(3):
            assert (message.payload, message.msg_id.topic_offset) == (b"x", 0)
            await reader.consumer.nack(message)
            (message,) = await reader.take(ack=False)
        await reader.consumer.ack(message)
        assert await reader.is_quiet()

    play(protocol_broker, scene)


def test_an_ack_that_comes_late_counts(protocol_broker):
    """Behaviour: behind its time-out an ack cancels the redelivery that waits for its delay."""

    async def scene(cast):
        delays = {"base_redelivery_delay_ms": 3_000, "max_redelivery_delay_ms": 3_000}
        producer, reader, message = await delivered(cast, b"late", ack_timeout_ms=200, **delays)
        # The time is over, which is looked at every 500 ms, and the record waits for its delay.
        await asyncio.sleep(0.8)
        await reader.consumer.ack(message)
        await producer.send(b"next")
        assert await reader.payloads(1) == [b"next"]
        await asyncio.sleep(3.2)
        assert reader.queue.empty()

    play(protocol_broker, scene)


def test_a_record_that_is_not_acked_in_time_comes_again(protocol_broker):
    """1.8.5: an ack time-out of 200 ms is used."""

    async def scene(cast):
        _, reader, message = await delivered(cast, b"x", ack_timeout_ms=200)
        assert offsets([message, *await reader.take()]) == [0, 0]

    play(protocol_broker, scene)


def test_dead_letters_carry_where_they_came_from(protocol_broker):
    """1.5, 1.8.5: the first nack exhausts a count of 0; the letter has payload, reason and origin."""

    async def scene(cast):
        dead = cast.topic + "-dead"
        await cast.producer(topic=dead)
        letters = await cast.reader(topic=dead)
        to_dead = {"max_redelivery_count": 0, "poison_policy": 0, "dead_letter_topic": dead}
        producer, reader, message = await delivered(cast, b"poison", {"own": "kept"}, **to_dead)
        await reader.consumer.nack(message, reason="cannot be read")
        (letter,) = await letters.take()
        assert (letter.payload, letter.msg_id.topic_name) == (b"poison", dead)
        attributes = dict(letter.attributes)
        assert attributes.pop("x-original-broker-addr")
        assert attributes == {
            "own": "kept",
            "x-original-topic": cast.topic,
            "x-original-subscription": "s",
            "x-original-topic-offset": "0",
            "x-original-producer-id": str(message.msg_id.producer_id),
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "1",
            "x-failure-reason": "cannot be read",
        }
        assert letter.producer_name.startswith("broker-replicator-")
        await producer.send(b"good")
        assert await reader.payloads(1) == [b"good"]

    play(protocol_broker, scene)


@pytest.mark.parametrize("poison", [1, 2], ids=["Block", "Drop"])
def test_a_record_that_fails_too_often_blocks_or_is_dropped(protocol_broker, poison):
    """1.5: Block stops the whole Exclusive subscription, Drop lets the next record come."""

    async def scene(cast):
        once = {"max_redelivery_count": 0, "poison_policy": poison}
        producer, reader, message = await delivered(cast, b"poison", **once)
        await reader.consumer.nack(message)
        await producer.send(b"next")
        if poison == 1:
            assert await reader.is_quiet()
            await reader.consumer.ack(message)
        assert await reader.payloads(1) == [b"next"]
        assert await reader.is_quiet()

    play(protocol_broker, scene)


def test_block_stops_only_the_key(protocol_broker):
    """1.8.5: on KeyShared others go on."""

    async def scene(cast):
        producer = await cast.producer()
        await cast.policy(max_redelivery_count=0, poison_policy=1)
        reader = await cast.reader(kind=SubType.KEY_SHARED)
        await producer.send_with_key(b"poison", None, "a")
        (message,) = await reader.take(ack=False)
        await reader.consumer.nack(message)
        await producer.send_with_key(b"behind", None, "a")
        await producer.send_with_key(b"other", None, "b")
        assert await reader.payloads(1) == [b"other"]
        assert await reader.is_quiet()

    play(protocol_broker, scene)
