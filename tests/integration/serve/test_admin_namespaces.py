"""Namespaces and brokers over the admin port."""

from __future__ import annotations

import asyncio
import json

import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.serve.danube.proto.danube_pb2 import ProducerRequest, ProducerResponse
from frazil.topic import StateTag
from tests.integration.serve.test_admin_topics import new, wide
from tests.integration.serve.test_admin_world import run

pytestmark = pytest.mark.integration

NAMESPACES = "NamespaceAdmin"
BROKERS = "BrokerAdmin"


def space(name):
    return wire.NamespaceRequest(name=name)


async def names_of(admin):
    reply = await admin.ask("ListNamespaces", service=BROKERS)
    return list(reply.namespaces)


async def topics_of(admin, name):
    reply = await admin.ask("GetNamespaceTopics", space(name), NAMESPACES)
    return list(reply.topics)


def test_a_namespace_is_there_until_it_is_deleted(tmp_path):
    """Topics can be made in it at once and after a restart; a deleted one is gone after a restart."""

    async def make(admin):
        for name in ("shop", "gone", "späti"):
            assert (await admin.ask("CreateNamespace", space(name), NAMESPACES)).success
        await admin.ask("CreateTopic", new("/shop/orders"))
        await admin.ask("DeleteNamespace", space("gone"), NAMESPACES)
        assert await names_of(admin) == ["default", "shop", "späti", "system"]

    async def look(admin):
        await admin.ask("CreatePartitionedTopic", wide("/shop/wide", 2))
        refusal = await admin.refused("CreateTopic", new("/gone/t"))
        spaces = await names_of(admin)
        return refusal, spaces, await topics_of(admin, "shop"), await topics_of(admin, "späti")

    refusal, spaces, shop, empty = run(tmp_path, make, look)
    assert refusal[0] == "UNAVAILABLE"
    assert refusal[1].startswith("Unable to find the namespace gone")
    assert spaces == ["default", "shop", "späti", "system"]
    assert shop == ["/shop/orders", "/shop/wide-part-0", "/shop/wide-part-1"]
    assert empty == []


def test_what_cannot_be_done_to_a_namespace_has_its_status(tmp_path):
    """Existing, unknown, used and built-in namespaces, and what is no name, are refused as such."""

    async def scene(admin):
        await admin.ask("CreateNamespace", space("shop"), NAMESPACES)
        await admin.ask("CreateTopic", new("/shop/orders"))
        calls = [
            ("CreateNamespace", "shop"),
            ("CreateNamespace", "default"),
            ("DeleteNamespace", "shop"),
            ("DeleteNamespace", "system"),
            ("DeleteNamespace", "none"),
            ("GetNamespaceTopics", "none"),
            ("GetNamespacePolicies", "none"),
            *(
                (call, name)
                for call in ("CreateNamespace", "DeleteNamespace", "GetNamespaceTopics")
                for name in ("", "a/b", "a.b", "x" * 300, "a b")
            ),
        ]
        return [await admin.refused(call, space(name), NAMESPACES) for call, name in calls]

    found = run(tmp_path, scene)
    codes = [code for code, _ in found]
    assert codes[:2] == ["ALREADY_EXISTS"] * 2
    assert codes[2:4] == ["FAILED_PRECONDITION"] * 2
    assert "topics=1 one=/shop/orders" in found[2][1]
    assert codes[4:7] == ["NOT_FOUND"] * 3
    assert codes[7:] == ["INVALID_ARGUMENT"] * 15


def test_namespaces_of_topics_that_nobody_asked_for_exist(tmp_path):
    """A topic that a program made is found by its namespace, which may be made, but not deleted."""

    async def scene(admin):
        await asyncio.to_thread(admin.engine.create_topic, "/own/rows", {"id": "long"})
        spaces, topics = await names_of(admin), await topics_of(admin, "own")
        refusals = [await admin.refused("DeleteNamespace", space("own"), NAMESPACES)]
        # A topic that could not be opened exists, too.
        await admin.ask("CreateNamespace", space("broken"), NAMESPACES)
        admin.engine.unusable["/broken/t"] = "its files are gone"
        refusals.append(await admin.refused("DeleteNamespace", space("broken"), NAMESPACES))
        await admin.ask("CreateNamespace", space("own"), NAMESPACES)
        await admin.ask("CreateTopic", new("/own/t"))
        made = sorted(admin.engine.states.items(StateTag.NAMESPACE))
        return spaces, topics, [code for code, _ in refusals], made

    assert run(tmp_path, scene) == (
        ["default", "own", "system"],
        ["/own/rows"],
        ["FAILED_PRECONDITION"] * 2,
        ["broken", "own"],
    )


def test_topics_are_made_where_one_is(tmp_path):
    """What is told to exist exists: a namespace with a program's topic takes those of clients."""

    async def scene(admin):
        before = await admin.refused("CreateTopic", new("/own/t"))
        await asyncio.to_thread(admin.engine.create_topic, "/own/rows", {"id": "long"})
        await admin.ask("CreateTopic", new("/own/t"))
        request = ProducerRequest(topic_name="/own/u", producer_name="p", dispatch_strategy=1)
        path = "/danube.ProducerService/CreateProducer"
        await admin.clients.ask(path, request, ProducerResponse)
        return before, await topics_of(admin, "own")

    before, topics = run(tmp_path, scene)
    assert before[0] == "UNAVAILABLE"
    assert topics == ["/own/rows", "/own/t", "/own/u"]


def test_calls_that_come_together_make_a_namespace_once(tmp_path):
    """One of them made it, and all others hear that it exists."""

    async def scene(admin):
        calls = [admin.ask("CreateNamespace", space("shop"), NAMESPACES) for _ in range(5)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        return sorted("made" if hasattr(each, "success") else each.code().name for each in found)

    assert run(tmp_path, scene) == ["ALREADY_EXISTS"] * 4 + ["made"]


def test_the_policies_of_a_namespace_are_the_limits_that_count(tmp_path):
    """They are JSON, with the numbers of the settings."""

    async def scene(admin):
        return await admin.ask("GetNamespacePolicies", space("default"), NAMESPACES)

    policies = json.loads(run(tmp_path, scene).policies)
    assert policies == {
        "max_producers_per_topic": 1_000,
        "max_consumers_per_subscription": 1_000,
        "max_subscriptions_per_topic": 1_000,
        "max_message_size": 1 << 20,
    }


def test_the_one_broker_leads_and_says_where_it_is(tmp_path):
    """It is listed once, with its addresses, and is its own leader."""

    async def scene(admin):
        found = await admin.ask("ListBrokers", service=BROKERS)
        leader = await admin.ask("GetLeaderBroker", service=BROKERS)
        return found, leader, f"http://127.0.0.1:{admin.port}"

    brokers, leader, url = run(tmp_path, scene)
    assert brokers == wire.ListBrokersResponse(
        brokers=[
            wire.BrokerInfo(
                broker_id="17",
                broker_addr=url,
                broker_role="Cluster_Leader",
                admin_addr="http://127.0.0.1:50051",
                metrics_addr="http://127.0.0.1:9040",
                broker_status="active",
            )
        ]
    )
    assert leader.leader == "17"
