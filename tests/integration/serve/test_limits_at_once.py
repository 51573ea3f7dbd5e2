"""Limits of the broker hold though many calls come at once, before any of them is answered."""

from __future__ import annotations

import asyncio
from collections import Counter

import grpc
import pytest

from frazil.serve.danube import admin as admin_namespaces
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from tests.integration.serve.test_admin_subscriptions import listed, set_window
from tests.integration.serve.test_admin_topics import new
from tests.integration.serve.test_admin_world import run
from tests.support.few import few

pytestmark = pytest.mark.integration

CALLS = 100
MOST = 5
SHARED = 1
SOME = {"OK": MOST, "RESOURCE_EXHAUSTED": CALLS - MOST}


async def at_once(*calls):
    """Return how many calls have each status."""
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, grpc.aio.AioRpcError) for each in found if _is_error(each)), found
    return Counter(each.code().name if _is_error(each) else "OK" for each in found)


def _is_error(found):
    return isinstance(found, BaseException)


@pytest.mark.parametrize("strategy", [0, 1])
def test_subscriptions_that_come_at_once_are_counted(tmp_path, strategy, monkeypatch):
    """Of many new subscriptions of a topic as many are made as it may have, stored or not."""

    async def scene(admin):
        await admin.ask(
            "CreateTopic", wire.NewTopicRequest(name="/default/t", dispatch_strategy=strategy)
        )
        names = [f"s{number}" for number in range(CALLS)]
        found = await at_once(*(admin.clients.subscribe(subscription=name) for name in names))
        assert await at_once(admin.clients.subscribe(subscription="one-more")) == {
            "RESOURCE_EXHAUSTED": 1
        }
        kept = await listed(admin)
        assert await at_once(*(admin.clients.subscribe(subscription=name) for name in kept)) == {
            "OK": MOST
        }
        return found, len(kept), len(admin.services.subscription_settings.names(_uid(admin)))

    few(monkeypatch.setattr, SUBSCRIPTIONS_MAX=MOST)
    found, kept, settings = run(tmp_path, scene)
    assert (found, kept) == (SOME, MOST)
    # What was decided about a subscription that was refused is gone with it.
    assert settings == (MOST if strategy else 0)


def test_settings_that_come_at_once_are_counted(tmp_path, monkeypatch):
    """Of settings for many names that nobody subscribed by as many are taken as may be."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        names = [f"s{number}" for number in range(CALLS)]
        found = await at_once(*(set_window(admin, 5, name=name) for name in names))
        return found, len(admin.services.subscription_settings.names(_uid(admin)))

    few(monkeypatch.setattr, SUBSCRIPTIONS_MAX=MOST)
    assert run(tmp_path, scene) == (SOME, MOST)


def test_consumers_that_come_at_once_are_counted(tmp_path, monkeypatch):
    """Of many consumers of a subscription as many get a place as it may have."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        subscribe = admin.clients.subscribe
        return await at_once(*(subscribe(f"c{number}", kind=SHARED) for number in range(CALLS)))

    few(monkeypatch.setattr, CONSUMERS_MAX=MOST)
    assert run(tmp_path, scene) == SOME


def test_producers_that_come_at_once_are_counted(tmp_path, monkeypatch):
    """Of many producers of a topic that is not there yet as many get an id as it may have."""

    async def scene(admin):
        return await at_once(*(admin.clients.create(f"p{number}") for number in range(CALLS)))

    few(monkeypatch.setattr, PRODUCERS_MAX=MOST)
    assert run(tmp_path, scene) == SOME


def test_topics_that_come_at_once_are_counted(tmp_path):
    """Of many topics, made by producers and by the admin's calls, as many are made as may be."""

    async def scene(admin):
        half = range(CALLS // 2)
        makes = [admin.clients.create("p", f"/default/a{number}") for number in half]
        makes += [admin.ask("CreateTopic", new(f"/default/b{number}")) for number in half]
        return await at_once(*makes), len(admin.engine.topics())

    assert run(tmp_path, scene, **{"topics.topics_max": MOST}) == (SOME, MOST)


def test_namespaces_that_come_at_once_are_counted(tmp_path, monkeypatch):
    """Of many namespaces as many are made as may be."""
    monkeypatch.setattr(admin_namespaces, "NAMESPACES_MAX", MOST)

    async def scene(admin):
        make = [
            admin.ask("CreateNamespace", wire.NamespaceRequest(name=f"n{number}"), "NamespaceAdmin")
            for number in range(CALLS)
        ]
        return await at_once(*make)

    assert run(tmp_path, scene) == SOME


def _uid(admin):
    return admin.services.topics.find("/default/t").runtime.state.spec.uid
