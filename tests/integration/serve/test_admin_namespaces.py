"""Namespaces and brokers over the admin port."""

from __future__ import annotations

import asyncio

import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as wire
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
    """A namespace with a program's topic takes topics of clients."""

    async def scene(admin):
        before = await admin.refused("CreateTopic", new("/own/t"))
        await asyncio.to_thread(admin.engine.create_topic, "/own/rows", {"id": "long"})
        await admin.ask("CreateTopic", new("/own/t"))
        await admin.clients.create(topic="/own/u")
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
