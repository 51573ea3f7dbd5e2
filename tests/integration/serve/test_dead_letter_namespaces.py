"""Dead letters go to topics in namespaces that exist: a policy for another one is refused."""

from __future__ import annotations

import asyncio

import pytest

from frazil.errors import InvalidRequest
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.serve.danube.statuses import Refused
from tests.integration.serve.consuming_world import next_of, until
from tests.integration.serve.test_admin_topics import new
from tests.integration.serve.test_admin_world import run
from tests.integration.serve.test_unreliable_dead_letters import LETTERS, request

pytestmark = pytest.mark.integration

TARGET = "/nope/x"
REASON = "the namespace of the dead_letter_topic does not exist"


def test_a_namespace_that_does_not_exist_is_refused_until_it_is_made(tmp_path):
    """An admin and both ways of a program hear the reason; a topic in the namespace is enough."""

    async def scene(admin):
        await admin.services.topics.make("/default/t", is_reliable=True)
        await admin.ask("CreateNamespace", wire.NamespaceRequest(name="made"), "NamespaceAdmin")
        for target in ("/system/x", "/made/x"):
            await admin.ask("SetSubscriptionFailurePolicy", request(target))
        refused = await admin.refused("SetSubscriptionFailurePolicy", request(TARGET))
        await asyncio.to_thread(give_policies, admin.engine)
        await admin.ask("SetSubscriptionFailurePolicy", request(TARGET))
        return refused

    def give_policies(engine):
        topic = engine.topic("t")
        given = {**LETTERS, "dead_letter_topic": TARGET}
        for give in (topic.set_subscription, topic.subscribe):
            with pytest.raises(InvalidRequest, match=REASON):
                give("s", policy=given)
        engine.create_topic("/nope/other")
        assert topic.set_subscription("s", policy=given).dead_letter_topic == TARGET

    code, text = run(tmp_path, scene)
    assert code == "INVALID_ARGUMENT"
    assert REASON in text
    assert TARGET in text


def test_the_topic_that_a_policy_names_is_made_where_producers_make_none(tmp_path):
    """Who set the policy asked for it; a producer is still refused a topic of its own."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await admin.ask("SetSubscriptionFailurePolicy", request("/default/dead"))
        _, stream = await admin.reading()
        await admin.publish(b"bad")
        message = await next_of(stream)
        await admin.clients.nack(message.msg_id.topic_offset)
        await until(lambda: "/default/dead" in admin.engine.topics())
        with pytest.raises(Refused, match="Unable to find the topic"):
            await admin.services.topics.for_producer("/default/other", is_reliable=True)
        stream.cancel()
        return sorted(admin.engine.topics())

    found = run(tmp_path, scene, **{"topics.auto_create": False})
    assert found == ["/default/dead", "/default/t"]
