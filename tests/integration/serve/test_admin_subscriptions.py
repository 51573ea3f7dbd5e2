"""Subscriptions over the admin port: listed, ended, with failure policies and windows that count."""

from __future__ import annotations

import asyncio

import pytest

from frazil.schema import Message
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.subscribe import Poison
from frazil.topic import StateTag
from tests.integration.serve.consuming_world import end_of, next_of
from tests.integration.serve.test_admin_topics import PARTS, new, wide
from tests.integration.serve.test_admin_world import run
from tests.support.few import few

pytestmark = pytest.mark.integration

HOW = {
    "max_redelivery_count": 0,
    "ack_timeout_ms": 200,
    "base_redelivery_delay_ms": 50,
    "max_redelivery_delay_ms": 60_000,
}
DROP = wire.SubscriptionFailurePolicy(**HOW, backoff_strategy=1, poison_policy=2)
USUAL = wire.SubscriptionFailurePolicy(
    max_redelivery_count=5,
    ack_timeout_ms=30_000,
    base_redelivery_delay_ms=1_000,
    max_redelivery_delay_ms=60_000,
    backoff_strategy=1,
    poison_policy=1,
)


def named(name="s", topic="/default/t"):
    return {"topic": topic, "subscription": name}


async def set_policy(admin, policy, **name):
    request = wire.SetSubscriptionFailurePolicyRequest(**named(**name), failure_policy=policy)
    return await admin.ask("SetSubscriptionFailurePolicy", request)


async def policy_of(admin, **name):
    request = wire.GetSubscriptionFailurePolicyRequest(**named(**name))
    reply = await admin.ask("GetSubscriptionFailurePolicy", request)
    assert reply.HasField("failure_policy")
    return reply.failure_policy, reply.subscription_type


async def set_window(admin, count, **name):
    config = wire.SubscriptionDispatchConfig(max_unacked_messages=count)
    request = wire.SetSubscriptionDispatchConfigRequest(**named(**name), dispatch_config=config)
    return await admin.ask("SetSubscriptionDispatchConfig", request)


async def window_of(admin, **name):
    request = wire.GetSubscriptionDispatchConfigRequest(**named(**name))
    reply = await admin.ask("GetSubscriptionDispatchConfig", request)
    return reply.dispatch_config.max_unacked_messages


async def listed(admin, topic="/default/t"):
    reply = await admin.ask("ListSubscriptions", wire.TopicRequest(name=topic))
    return list(reply.subscriptions)


def test_a_window_counts_for_a_subscription_at_work(tmp_path):
    """More records come as soon as the window is larger, without a new stream."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await set_window(admin, 2)
        _, stream = await admin.reading()
        await admin.publish(*(b"%d" % number for number in range(5)))
        found = [await next_of(stream) for _ in range(2)]
        window = admin.services.deliveries.find("/default/t", "s").status().unacked
        await set_window(admin, 4)
        found += [await next_of(stream) for _ in range(2)]
        return window, [message.payload for message in found]

    assert run(tmp_path, scene) == (2, [b"0", b"1", b"2", b"3"])


def test_a_policy_counts_for_a_subscription_at_work(tmp_path):
    """With no redelivery and Drop, a nacked record is not delivered again and the next one is."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await set_window(admin, 1)
        _, stream = await admin.reading()
        await admin.publish(b"bad", b"good")
        bad = await next_of(stream)
        await set_policy(admin, DROP)
        await admin.clients.nack(bad.msg_id.topic_offset)
        return [bad.payload, (await next_of(stream)).payload]

    assert run(tmp_path, scene) == [b"bad", b"good"]


def test_the_whole_of_a_topic_stands_for_its_parts(tmp_path):
    """Settings by the name of the whole count for all parts, and an unsubscribe ends all."""

    async def scene(admin):
        await admin.ask("CreatePartitionedTopic", wide())
        whole = {"topic": "/default/wide"}
        await set_policy(admin, DROP, **whole)
        streams = [(await admin.reading(part))[1] for part in PARTS]
        await admin.reading(PARTS[1], "other")
        policies = [await policy_of(admin, topic=part) for part in (*PARTS, "/default/wide")]
        at_work = [admin.services.deliveries.find(part, "s").policy.poison for part in PARTS]
        names = [await listed(admin, name) for name in ("/default/wide", PARTS[0])]
        # One part alone: the others keep what was decided.
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named(topic=PARTS[0])))
        ends = [await end_of(streams[0])]
        kept = await policy_of(admin, topic=PARTS[2]), await listed(admin, PARTS[0])
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named(**whole)))
        ends += [await end_of(stream) for stream in streams[1:]]
        return policies, at_work, names, kept, ends, await listed(admin, "/default/wide")

    policies, at_work, names, kept, ends, left = run(tmp_path, scene)
    assert policies == [(DROP, 1)] * 4
    assert at_work == [Poison.DROP] * 3
    assert names == [["other", "s"], ["s"]]
    assert kept == ((DROP, 1), [])
    assert ends == [("OK", "")] * 3
    assert left == ["other"]


def test_an_unsubscribe_ends_everything_of_a_subscription(tmp_path):
    """Stream, id, settings and progress are gone; a new one of the name starts afresh."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await set_policy(admin, DROP)
        await set_policy(admin, DROP, name="early")
        identity, stream = await admin.reading()
        # One that has no stream goes, too.
        await admin.clients.subscribe("idle", kind=1)
        await admin.publish(b"before")
        await next_of(stream)
        for name in ("s", "early"):
            request = wire.SubscriptionRequest(**named(name))
            assert (await admin.ask("Unsubscribe", request)).success
        ends = [await end_of(stream), await end_of(admin.clients.receive(identity))]
        again = [
            await admin.refused("Unsubscribe", wire.SubscriptionRequest(**named(name)))
            for name in ("s", "early")
        ]
        left = [admin.engine.states.items(tag) for tag in (StateTag.SUBSCRIPTION, StateTag.CLIENT)]
        _, fresh = await admin.reading()
        await admin.publish(b"after")
        payload = (await next_of(fresh)).payload
        return ends, again, left, payload, await policy_of(admin)

    ends, again, left, payload, policy = run(tmp_path, scene)
    assert [code for code, _ in ends] == ["OK", "NOT_FOUND"]
    assert [code for code, _ in again] == ["NOT_FOUND", "NOT_FOUND"]
    assert left == [{}, {}]
    assert payload == b"after"
    assert policy == (USUAL, 1)


def test_a_subscription_without_storage_can_be_ended(tmp_path):
    """Its stream ends and nothing comes to it any more."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t", reliable=False))
        _, stream = await admin.reading()
        await stream.initial_metadata()
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named()))
        end = await end_of(stream)
        admin.services.unreliable.publish(
            admin.services.topics.find("/default/t"), Message(b"lost")
        )
        return end[0], await listed(admin), admin.services.unreliable.unheard

    assert run(tmp_path, scene) == ("OK", [], 1)


TOO_LONG = "x" * 513
POLICY = wire.SetSubscriptionFailurePolicyRequest
WINDOW = wire.SetSubscriptionDispatchConfigRequest


def policy(topic="/default/t", subscription="s", **fields):
    wanted = wire.SubscriptionFailurePolicy(**{**HOW, "poison_policy": 1, **fields})
    return POLICY(topic=topic, subscription=subscription, failure_policy=wanted)


def window(count, subscription="s"):
    config = wire.SubscriptionDispatchConfig(max_unacked_messages=count)
    return WINDOW(**named(subscription), dispatch_config=config)


WRONG = [
    (policy(poison_policy=0), "needs a dead_letter_topic"),
    (policy(poison_policy=0, dead_letter_topic=""), "needs a dead_letter_topic"),
    (policy(poison_policy=0, dead_letter_topic="dead"), "dead has an invalid format"),
    (policy(poison_policy=0, dead_letter_topic="/default/t"), "its own subscriptions"),
    (policy(poison_policy=0, dead_letter_topic="/default/rows"), "takes rows"),
    (policy(poison_policy=3), "there is no such poison_policy (poison_policy=3)"),
    (policy(backoff_strategy=9), "there is no such backoff_strategy (backoff_strategy=9)"),
    (policy(ack_timeout_ms=(1 << 64) - 1), "ack_timeout_ms is too long"),
    (policy(base_redelivery_delay_ms=1 << 63), "base_redelivery_delay_ms is too long"),
    (policy(max_redelivery_delay_ms=1 << 40), "max_redelivery_delay_ms is too long"),
    (policy(subscription=""), "1 to 512 bytes"),
    (policy(subscription=TOO_LONG), "1 to 512 bytes"),
    (policy(topic="t"), "has an invalid format"),
    (POLICY(**named()), "the request has no failure_policy"),
    (window(0), "max_unacked_messages is out of range"),
    (window(10_001), "max_unacked_messages is out of range"),
    (window((1 << 32) - 1), "max_unacked_messages is out of range"),
    (window(5, TOO_LONG), "1 to 512 bytes"),
    (WINDOW(**named()), "the request has no dispatch_config"),
]


def test_settings_that_make_no_sense_are_refused_with_the_reason(tmp_path):
    """Each is INVALID_ARGUMENT, says what is wrong, and nothing is stored."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await asyncio.to_thread(admin.engine.create_topic, "rows", {"id": "long"})
        found = [
            await admin.refused(type(request).__name__.removesuffix("Request"), request)
            for request, _ in WRONG
        ]
        return found, admin.engine.states.items(StateTag.SUBSCRIPTION)

    found, stored = run(tmp_path, scene)
    assert [code for code, _ in found] == ["INVALID_ARGUMENT"] * len(WRONG)
    wanted = [reason for _, reason in WRONG]
    texts = [text for _, text in found]
    assert [text for text, reason in zip(texts, wanted, strict=True) if reason not in text] == []
    assert stored == {}


def test_settings_of_ever_more_names_are_bounded(tmp_path, monkeypatch):
    """A topic takes settings of as many subscriptions as it may have, and no more."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        for name in ("a", "b"):
            await set_window(admin, 5, name=name)
        refusal = await admin.refused("SetSubscriptionDispatchConfig", window(5, "c"))
        await set_window(admin, 6, name="a")
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named("b")))
        await set_window(admin, 7, name="c")
        return refusal[0], await window_of(admin, name="a"), await window_of(admin, name="c")

    few(monkeypatch.setattr, SUBSCRIPTIONS_MAX=2)
    found = run(tmp_path, scene)
    assert found == ("RESOURCE_EXHAUSTED", 6, 7)
