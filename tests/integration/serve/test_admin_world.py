"""A broker's admin port over a real server, as its tests see it, and that it serves every call."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import grpc
import pytest

import frazil
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import Server
from frazil.topic import StateTag
from tests.integration.serve.consuming_world import Caller, until
from tests.servers.running import free_port
from tests.support.rpcs import RPCS

pytestmark = pytest.mark.integration

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
SECONDS_MAX = 60
BROKER_ID = "17"
RELIABLE = {"dispatch_strategy": 1}


class Admin:
    """A plain gRPC client of a broker's admin port, with the broker's parts at hand."""

    def __init__(self, engine, services, port, clients):
        self.services = services
        self.engine = engine
        self.port = port
        self.clients = clients
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

    async def close(self):
        await self._channel.close()

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
    with frazil.open(path, **{**SETTINGS, **settings}) as engine:
        port = free_port()
        addresses = {
            "advertised_url": f"http://127.0.0.1:{port}",
            "admin_url": "http://127.0.0.1:50051",
            "http_url": "http://127.0.0.1:9040",
        }
        services = Services(engine, addresses=addresses)
        services.broker_id = BROKER_ID
        server = Server(Router({**services.data_routes(), **services.admin_routes()}))
        await server.start("127.0.0.1", port)
        async with Caller(port) as clients:
            admin = Admin(engine, services, port, clients)
            try:
                yield admin
            finally:
                await admin.close()
                services.begin_close()
                await server.drain(0.5)
                await services.close()


def run(path, *scenes, **settings):
    """Play scenes, each with a broker of its own, one after the other; return what the last does."""

    async def play(scene):
        async with serving(path, **settings) as admin:
            return await scene(admin)

    found = None
    for scene in scenes:
        found = asyncio.run(play(scene))
    return found


def test_every_call_of_the_admin_services_is_served_and_no_other(tmp_path):
    """What the protocol lists is answered; its services without calls, and wrong names, are not."""

    async def scene(admin):
        listed = [path for path in RPCS if path.startswith("/danube_admin.")]
        codes = {path: await admin.send_raw(path, b"") for path in listed}
        others = [
            await admin.send_raw(path, b"")
            for path in (
                "/danube_admin.ClusterAdmin/ClusterStatus",
                "/danube_admin.SecurityAdmin/CreateRole",
                "/danube_admin.TopicAdmin/NoSuchCall",
                "/danube_admin.BrokerAdmin/UnloadBroker",
            )
        ]
        return codes, others

    codes, others = run(tmp_path, scene)
    assert len(codes) == 20
    assert set(codes.values()) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND"}
    assert others == ["UNIMPLEMENTED"] * 4


def test_bytes_that_are_no_request_are_refused_as_such(tmp_path):
    """Garbage, a cut message and text that is no UTF-8 are the caller's fault, for every call."""

    async def scene(admin):
        listed = [path for path in RPCS if path.startswith("/danube_admin.")]
        wrong = (b"\xff", b"\x0a\x05ab", b"\x0a\x02\xff\xfe")
        return [{path: await admin.send_raw(path, data) for path in listed} for data in wrong]

    found = run(tmp_path, scene)
    # A message without fields takes whatever is well-formed as fields that it does not know.
    empty = {path for path in found[0] if RPCS[path].request is wire.Empty}
    for codes in found:
        assert {codes[path] for path in codes if path not in empty} == {"INVALID_ARGUMENT"}
        assert {codes[path] for path in empty} <= {"INVALID_ARGUMENT", "OK"}


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
