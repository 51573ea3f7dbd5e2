"""Callers that go before they are answered: what was begun is finished, and nothing is reported as a bug."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from frazil.serve.danube.proto.danube_pb2 import (
    ConsumerRequest,
    ConsumerResponse,
    ProducerRequest,
    ProducerResponse,
)
from tests.integration.serve.test_admin_topics import new
from tests.integration.serve.test_admin_world import run

pytestmark = pytest.mark.integration


async def ask_and_go(work):
    """Begin a call and give it up before it can be answered."""
    call = asyncio.create_task(work)
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def errors_of(calls):
    """Return the errors that the loop reports until the work of each call has ended."""
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
    before = asyncio.all_tasks()
    for call in calls:
        await ask_and_go(call)
        while left := asyncio.all_tasks() - before:
            await asyncio.wait(left)
    gc.collect()
    await asyncio.sleep(0)
    return errors


def test_a_topic_that_waits_for_its_turn_is_not_made_for_who_has_gone(tmp_path):
    """Calls that are reset before their turn leave no work; the one whose turn it was is ended."""

    async def scene(admin):
        topics, may_end, begun = admin.services.topics, threading.Event(), asyncio.Event()
        loop, create = asyncio.get_running_loop(), admin.engine.create_topic
        made = []

        def slow(name, **options):
            made.append(name)
            loop.call_soon_threadsafe(begun.set)
            assert may_end.wait(60)
            return create(name, **options)

        admin.engine.create_topic = slow
        first = asyncio.create_task(topics.for_producer("/default/first", is_reliable=True))
        await begun.wait()
        before = asyncio.all_tasks()
        for number in range(50):
            await ask_and_go(topics.for_producer(f"/default/t{number}", is_reliable=True))
        left = asyncio.all_tasks() - before
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        may_end.set()
        await topics.for_producer("/default/last", is_reliable=True)
        return left, made, topics.find("/default/first").name

    assert run(tmp_path, scene) == (
        set(),
        ["/default/first", "/default/last"],
        "/default/first",
    )


def test_refusals_without_a_caller_are_not_reported(tmp_path):
    """A missing namespace and a topic that is full, of producers and consumers that are gone."""

    async def scene(admin):
        await admin.ask("CreateTopic", new("/default/t"))
        await admin.clients.subscribe("a")
        consumers, topics = admin.services.consumers, admin.services.topics
        exclusive = ConsumerRequest(
            topic_name="/default/t", subscription="s", consumer_name="b"
        ).SerializeToString()
        found = await errors_of(
            [
                *(topics.for_producer("/nope/x", is_reliable=True) for _ in range(20)),
                *(consumers.subscribe(None, exclusive) for _ in range(20)),
            ]
        )
        # They are refusals, as those hear who wait.
        refused = [
            await admin.clients.refused(
                "/danube.ProducerService/CreateProducer",
                ProducerRequest(topic_name="/nope/x", producer_name="p"),
                ProducerResponse,
            ),
            await admin.clients.refused(
                "/danube.ConsumerService/Subscribe",
                ConsumerRequest.FromString(exclusive),
                ConsumerResponse,
            ),
        ]
        return found, [code for code, _ in refused]

    assert run(tmp_path, scene) == ([], ["UNAVAILABLE", "PERMISSION_DENIED"])
