"""A broker's admin port over a real server, as its tests see it, and that it serves every call."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import grpc
import pytest

from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.topic import StateTag
from tests.integration.serve.consuming_world import BROKER_ID, Caller, broker, until
from tests.support.rpcs import RPCS

pytestmark = pytest.mark.integration

SECONDS_MAX = 60
RELIABLE = {"dispatch_strategy": 1}


class Admin:
    """A plain gRPC client of a broker's admin port, with the broker's parts at hand."""

    def __init__(self, world, clients):
        self.services, self.engine, self.port = world, world.db, world.port
        self.clients = clients
        self._channel = clients.channel

    async def reading(self, topic="/default/t", subscription="s", name="c", kind=1):
        """Return the id of a consumer that is subscribed, and its stream."""
        made = await self.clients.subscribe(name, topic=topic, subscription=subscription, kind=kind)
        return made.consumer_id, self.clients.receive(made.consumer_id)

    async def publish(self, *payloads, topic="/default/t"):
        """Write records to a topic."""
        await asyncio.to_thread(self.engine.topic(topic).append_many, list(payloads))

    async def ask(self, method, request=None, service="TopicAdmin"):
        """Return the reply to a call."""
        path = f"/danube_admin.{service}/{method}"
        call = self._channel.unary_unary(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=RPCS[path].reply.FromString,
        )
        return await call(wire.Empty() if request is None else request, timeout=SECONDS_MAX)

    async def refused(self, method, request, service="TopicAdmin"):
        """Return the name of the code, and the text, of a call that must fail."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.ask(method, request, service)
        return caught.value.code().name, caught.value.details()

    async def send_raw(self, path, data):
        """Return the code of a call with bytes that may be anything."""
        try:
            await self._channel.unary_unary(path)(data, timeout=SECONDS_MAX)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"


@contextlib.asynccontextmanager
async def serving(path, **settings):
    """Serve a data directory in this process; yields an `Admin`."""
    async with broker(path, **settings) as world, Caller(world.port) as clients:
        yield Admin(world, clients)


def run(path, *scenes, **settings):
    """Play scenes, each with a broker of its own, one after the other; return what the last does."""

    async def play(scene):
        async with serving(path, **settings) as admin:
            return await scene(admin)

    found = None
    for scene in scenes:
        found = asyncio.run(play(scene))
    return found


def test_bytes_that_are_no_request_are_refused_as_such(tmp_path):
    """Garbage, a cut message and text that is no UTF-8 are the caller's fault, for every call."""
    # The first field of these is a number, or there is none: such bytes may be well-formed.
    lenient = {path for path, rpc in RPCS.items() if not has_text_first(rpc.request)}

    async def scene(admin):
        for path in RPCS:
            assert await admin.send_raw(path, b"\xff") == "INVALID_ARGUMENT", path
            for data in (b"\x0a\x05ab", b"\x0a\x02\xff\xfe"):
                code = await admin.send_raw(path, data)
                assert code == "INVALID_ARGUMENT" or path in lenient, path

    run(tmp_path, scene)


def has_text_first(message):
    """Tell whether field 1 of a message is a text."""
    field = message.DESCRIPTOR.fields_by_number.get(1)
    return field is not None and field.type == field.TYPE_STRING


def test_a_busy_journal_does_not_hold_up_the_loop(tmp_path):
    """While calls that change something wait for the journal, others are answered."""

    async def scene(admin):
        for name in ("t", "kept"):
            await admin.ask("CreateTopic", wire.NewTopicRequest(name=f"/default/{name}"))
        release = threading.Event()
        busy = asyncio.create_task(
            asyncio.to_thread(admin.engine.log.queue.call, lambda: release.wait(SECONDS_MAX))
        )
        config = wire.SubscriptionDispatchConfig(max_unacked_messages=3)
        name = {"topic": "/default/kept", "subscription": "s"}
        waiting = [
            asyncio.create_task(each)
            for each in (
                admin.ask("CreateTopic", wire.NewTopicRequest(name="/default/u")),
                admin.ask("DeleteTopic", wire.TopicRequest(name="/default/t")),
                admin.ask("CreateNamespace", wire.NamespaceRequest(name="n"), "NamespaceAdmin"),
                admin.ask(
                    "SetSubscriptionDispatchConfig",
                    wire.SetSubscriptionDispatchConfigRequest(dispatch_config=config, **name),
                ),
            )
        ]
        leader = await admin.ask("GetLeaderBroker", service="BrokerAdmin")
        undone = [not task.done() for task in waiting]
        release.set()
        await busy
        replies = await asyncio.gather(*waiting)
        return leader.leader, undone, [reply.success for reply in replies]

    leader, undone, replies = run(tmp_path, scene)
    assert leader == BROKER_ID
    assert undone == [True] * 4
    assert replies == [True] * 4


def test_what_was_begun_is_finished_when_the_client_has_gone(tmp_path):
    """A call that is cancelled while the journal is busy is carried out all the same."""

    async def scene(admin):
        await admin.ask("CreateTopic", wire.NewTopicRequest(name="/default/t"))
        assert admin.engine.states.items(StateTag.POLICY) != {}
        release = threading.Event()
        busy = asyncio.create_task(
            asyncio.to_thread(admin.engine.log.queue.call, lambda: release.wait(SECONDS_MAX))
        )
        calls = [
            asyncio.create_task(each)
            for each in (
                admin.ask("CreateTopic", wire.NewTopicRequest(name="/default/u", **RELIABLE)),
                admin.ask("DeleteTopic", wire.TopicRequest(name="/default/t")),
            )
        ]
        # Both have reached the broker when a call behind them is answered.
        await admin.ask("GetLeaderBroker", service="BrokerAdmin")
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await admin.ask("GetLeaderBroker", service="BrokerAdmin")
        release.set()
        await busy
        await until(lambda: admin.engine.topics() == ["/default/u"])
        # That it was not stored is the last thing that is forgotten of the other.
        await until(lambda: admin.engine.states.items(StateTag.POLICY) == {})
        return [call.cancelled() for call in calls]

    assert run(tmp_path, scene) == [True, True]
