"""Topics without storage take no dead letters: those would be gone with their records settled."""

from __future__ import annotations

import asyncio

import pytest

from frazil.errors import InvalidRequest
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.subscribe import is_stored
from frazil.topic import StateTag
from tests.integration.serve.test_admin_world import run

pytestmark = pytest.mark.integration

LETTERS = {"max_redelivery_count": 0, "poison": "dead_letter"}


async def make_topics(admin):
    await admin.services.topics.make("/default/t", is_reliable=True)
    await admin.services.topics.make("/default/kept", is_reliable=True)
    await admin.services.topics.make("/default/passing", is_reliable=False)
    await admin.services.topics.make("/default/wide", is_reliable=False, partitions=2)


def request(target):
    policy = wire.SubscriptionFailurePolicy(
        max_redelivery_count=0,
        ack_timeout_ms=200,
        base_redelivery_delay_ms=50,
        max_redelivery_delay_ms=50,
        poison_policy=0,
        dead_letter_topic=target,
    )
    return wire.SetSubscriptionFailurePolicyRequest(
        topic="/default/t", subscription="s", failure_policy=policy
    )


@pytest.mark.parametrize("target", ["/default/passing", "/default/wide-part-1"])
def test_an_admin_cannot_send_dead_letters_where_nothing_is_stored(tmp_path, target):
    """The policy is refused with the reason, also after a restart, and the one before it stays."""

    async def scene(admin):
        await admin.ask("SetSubscriptionFailurePolicy", request("/default/kept"))
        refused = await admin.refused("SetSubscriptionFailurePolicy", request(target))
        asked = wire.GetSubscriptionFailurePolicyRequest(topic="/default/t", subscription="s")
        found = await admin.ask("GetSubscriptionFailurePolicy", asked)
        assert found.failure_policy.dead_letter_topic == "/default/kept"
        return refused

    code, text = run(tmp_path, make_topics, scene)
    assert code == "INVALID_ARGUMENT"
    assert "stores nothing; name a reliable topic" in text
    assert target in text


@pytest.mark.parametrize("target", ["passing", "wide-part-1"])
def test_a_program_cannot_send_dead_letters_where_nothing_is_stored(tmp_path, target):
    """Both ways of giving a policy refuse the topic; one that is stored is taken."""

    async def scene(admin):
        await make_topics(admin)
        return await asyncio.to_thread(give_policies, admin.engine)

    def give_policies(engine):
        topic = engine.topic("t")
        for give in (topic.set_subscription, topic.subscribe):
            with pytest.raises(InvalidRequest, match="stores nothing"):
                give("s", policy={**LETTERS, "dead_letter_topic": target})
        taken = topic.set_subscription("s", policy={**LETTERS, "dead_letter_topic": "kept"})
        return taken.dead_letter_topic

    assert run(tmp_path, scene) == "/default/kept"


def test_what_is_stored_is_known_while_a_topic_is_made(tmp_path):
    """A topic is said to store nothing from its first moment on, by its name and then by its id."""

    async def scene(admin):
        await make_topics(admin)
        return await asyncio.to_thread(look, admin.engine)

    def look(engine):
        kinds = {each.name: is_stored(engine, each) for each in engine.runtimes}
        # What is there between a topic's making and the note of its id.
        engine.states.put(StateTag.POLICY, "unreliable-making//default/kept", b"1")
        kept = engine.topic_runtime("/default/kept")
        while_made = is_stored(engine, kept)
        engine.states.delete(StateTag.POLICY, "unreliable-making//default/kept")
        return kinds, while_made, is_stored(engine, kept)

    kinds, while_made, after = run(tmp_path, scene)
    assert kinds == {
        "/default/t": True,
        "/default/kept": True,
        "/default/passing": False,
        "/default/wide-part-0": False,
        "/default/wide-part-1": False,
    }
    assert (while_made, after) == (False, True)
