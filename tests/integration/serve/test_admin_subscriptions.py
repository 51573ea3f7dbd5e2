"""Subscriptions over the admin port: listed, ended, with failure policies and windows that count."""

from __future__ import annotations

import asyncio

import pytest

from frazil.engine.states import StateTag
from frazil.errors import NotFound
from frazil.ingest.messages import Message
from frazil.model import topic_uid
from frazil.serve.danube.consumer_ids import ConsumerFacts
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.subscribe import FailurePolicy, Poison, SubscriptionType
from tests.integration.serve.test_admin_topics import PARTS, attached, new, told, wide
from tests.integration.serve.test_admin_world import Reader, run

pytestmark = pytest.mark.integration

HOW = {
    "max_redelivery_count": 0,
    "ack_timeout_ms": 200,
    "base_redelivery_delay_ms": 50,
    "max_redelivery_delay_ms": 60_000,
}
FIXED_TO_DEAD = wire.SubscriptionFailurePolicy(
    **HOW, backoff_strategy=0, poison_policy=0, dead_letter_topic="/default/dead"
)
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


def test_a_policy_set_before_the_subscription_exists_is_read_back_and_counts(tmp_path):
    """It survives a restart, the subscription is opened with it, and its type is told then."""

    async def decide(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        assert (await set_policy(admin, FIXED_TO_DEAD)).success
        assert (await set_window(admin, 10_000)).success
        assert await policy_of(admin) == (FIXED_TO_DEAD, 0)

    async def use(admin):
        before = await policy_of(admin), await window_of(admin), await listed(admin)
        found = await admin.needs.deliveries.open(
            "/default/t", "s", kind=SubscriptionType.KEY_SHARED
        )
        after = await policy_of(admin), await window_of(admin), await listed(admin)
        return before, after, found.policy

    before, after, policy = run(tmp_path, decide, use)
    assert before == ((FIXED_TO_DEAD, 0), 10_000, [])
    assert after == ((FIXED_TO_DEAD, 3), 10_000, ["s"])
    assert policy == FailurePolicy(
        max_redelivery_count=0,
        ack_timeout_ms=200,
        base_redelivery_delay_ms=50,
        max_redelivery_delay_ms=60_000,
        backoff=0,
        poison=Poison.DEAD_LETTER,
        dead_letter_topic="/default/dead",
    )


def test_what_was_not_set_is_told_as_it_counts(tmp_path):
    """A subscription without settings has the defaults; setting one thing leaves the other."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await attached(admin, "/default/t")
        found = [await policy_of(admin), await window_of(admin)]
        await set_window(admin, 1)
        found += [await policy_of(admin), await window_of(admin)]
        await set_policy(admin, DROP)
        return [*found, await policy_of(admin), await window_of(admin)]

    assert run(tmp_path, scene) == [(USUAL, 1), 10, (USUAL, 1), 1, (DROP, 1), 1]


def test_a_window_counts_for_a_subscription_at_work(tmp_path):
    """More records come as soon as the window is larger, without a new stream."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await set_window(admin, 2)
        reader = await attached(admin, "/default/t")
        topic = admin.needs.topics.find("/default/t")
        await asyncio.to_thread(topic.append_many, [b"%d" % number for number in range(5)])
        while len(reader.records) < 2:
            await told(reader)
        before = len(reader.records)
        await set_window(admin, 4)
        while len(reader.records) < 4:
            await told(reader)
        return before, len(reader.records)

    assert run(tmp_path, scene) == (2, 4)


def test_a_policy_counts_for_a_subscription_at_work(tmp_path):
    """With no redelivery and Drop, a nacked record is not delivered again and the next one is."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await set_window(admin, 1)
        reader = await attached(admin, "/default/t")
        topic = admin.needs.topics.find("/default/t")
        await asyncio.to_thread(topic.append_many, [b"bad", b"good"])
        await told(reader)
        await set_policy(admin, DROP)
        nacked = asyncio.get_running_loop().create_future()
        admin.needs.deliveries.find("/default/t", "s").nack(0, nacked.set_result)
        assert await nacked is None
        while len(reader.records) < 2:
            await told(reader)
        return [record.value.payload for record in reader.records]

    assert run(tmp_path, scene) == [b"bad", b"good"]


def test_the_whole_of_a_topic_stands_for_its_parts(tmp_path):
    """Settings by the name of the whole count for all parts, and an unsubscribe ends all."""

    async def scene(admin):
        await admin.ask("CreatePartitionedTopic", wide())
        whole = {"topic": "/default/wide"}
        await set_policy(admin, DROP, **whole)
        readers = [await attached(admin, part) for part in PARTS]
        await attached(admin, PARTS[1], "other")
        policies = [await policy_of(admin, topic=part) for part in (*PARTS, "/default/wide")]
        at_work = [admin.needs.deliveries.find(part, "s").policy.poison for part in PARTS]
        names = [await listed(admin, name) for name in ("/default/wide", PARTS[0])]
        # One part alone: the others keep what was decided.
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named(topic=PARTS[0])))
        await told(readers[0])
        kept = await policy_of(admin, topic=PARTS[2]), await listed(admin, PARTS[0])
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named(**whole)))
        for reader in readers[1:]:
            await told(reader)
        errors = {type(reader.error) for reader in readers}
        return policies, at_work, names, kept, errors, await listed(admin, "/default/wide")

    policies, at_work, names, kept, errors, left = run(tmp_path, scene)
    assert policies == [(DROP, 1)] * 4
    assert at_work == [Poison.DROP] * 3
    assert names == [["other", "s"], ["s"]]
    assert kept == ((DROP, 1), [])
    assert errors == {NotFound}
    assert left == ["other"]


def test_an_unsubscribe_ends_everything_of_a_subscription(tmp_path):
    """Stream, id, settings and progress are gone; a new one of the name starts afresh."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        topic = admin.needs.topics.find("/default/t")
        uid = topic_uid(topic.runtime.state.spec)
        await set_policy(admin, DROP)
        await set_policy(admin, DROP, name="early")
        reader = await attached(admin, "/default/t")
        await admin.needs.consumer_ids.put(ConsumerFacts(uid, "/default/t", "s", "c"))
        await asyncio.to_thread(topic.append, b"before")
        await told(reader)
        for name in ("s", "early"):
            request = wire.SubscriptionRequest(**named(name))
            assert (await admin.ask("Unsubscribe", request)).success
        await told(reader)
        again = [
            await admin.refused("Unsubscribe", wire.SubscriptionRequest(**named(name)))
            for name in ("s", "early")
        ]
        left = [admin.engine.states.items(tag) for tag in (StateTag.SUBSCRIPTION, StateTag.CLIENT)]
        fresh = await attached(admin, "/default/t", reader=Reader())
        await asyncio.to_thread(topic.append, b"after")
        await told(fresh)
        payloads = [record.value.payload for record in fresh.records]
        return type(reader.error), again, left, payloads, await policy_of(admin)

    error, again, left, payloads, policy = run(tmp_path, scene)
    assert error is NotFound
    assert [code for code, _ in again] == ["NOT_FOUND", "NOT_FOUND"]
    assert left == [{}, {}]
    assert payloads == [b"after"]
    assert policy == (USUAL, 1)


def test_a_subscription_without_storage_can_be_ended(tmp_path):
    """Its stream ends and nothing comes to it any more."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t", reliable=False))
        reader = Reader()
        found = admin.needs.unreliable.open("/default/t", "s", kind=SubscriptionType.SHARED)
        found.attach(reader)
        await admin.ask("Unsubscribe", wire.SubscriptionRequest(**named()))
        await told(reader)
        admin.needs.unreliable.publish(admin.needs.topics.find("/default/t"), Message(b"lost"))
        return type(reader.error), await listed(admin), admin.needs.unreliable.counters.unheard

    assert run(tmp_path, scene) == (NotFound, [], 1)


TOO_LONG = "x" * 513
POLICY = wire.SetSubscriptionFailurePolicyRequest
WINDOW = wire.SetSubscriptionDispatchConfigRequest


def policy(topic="/default/t", subscription="s", **fields):
    wanted = wire.SubscriptionFailurePolicy(**{**HOW, "poison_policy": 1, **fields})
    return POLICY(topic=topic, subscription=subscription, failure_policy=wanted)


def window(count, subscription="s"):
    config = wire.SubscriptionDispatchConfig(max_unacked_messages=count)
    return WINDOW(**named(subscription), dispatch_config=config)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
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
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_reason(tmp_path, request_, reason):
    """Each is INVALID_ARGUMENT, says what is wrong, and nothing is stored."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await asyncio.to_thread(admin.engine.create_topic, "rows", {"id": "long"})
        method = type(request_).__name__.removesuffix("Request")
        refusal = await admin.refused(method, request_)
        return refusal, admin.engine.states.items(StateTag.SUBSCRIPTION)

    (code, text), stored = run(tmp_path, scene)
    assert code == "INVALID_ARGUMENT"
    assert reason in text
    assert stored == {}


def test_what_is_not_there_has_no_settings(tmp_path):
    """Unknown topics and subscriptions are NOT_FOUND, for every call that names them."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        missing = named(topic="/default/none")
        config = wire.SubscriptionDispatchConfig(max_unacked_messages=1)
        return [
            await admin.refused(method, request)
            for method, request in (
                ("SetSubscriptionFailurePolicy", POLICY(**missing, failure_policy=DROP)),
                ("SetSubscriptionDispatchConfig", WINDOW(**missing, dispatch_config=config)),
                *(
                    (method, request(**name))
                    for name in (missing, named())
                    for method, request in (
                        (
                            "GetSubscriptionFailurePolicy",
                            wire.GetSubscriptionFailurePolicyRequest,
                        ),
                        (
                            "GetSubscriptionDispatchConfig",
                            wire.GetSubscriptionDispatchConfigRequest,
                        ),
                        ("Unsubscribe", wire.SubscriptionRequest),
                    )
                ),
            )
        ]

    found = run(tmp_path, scene)
    assert [code for code, _ in found] == ["NOT_FOUND"] * 8
    assert {text for _, text in found[:5]} == {"Unable to find the topic: /default/none"}
    assert {text for _, text in found[5:]} == {
        "unable to find the subscription (topic=/default/t subscription=s)"
    }


def test_settings_of_ever_more_names_are_bounded(tmp_path):
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

    found = run(tmp_path, scene, **{"serve.subscriptions_max": 2})
    assert found == ("RESOURCE_EXHAUSTED", 6, 7)
