"""The guard in front of a real server, asked by a real gRPC client, in plain text and over TLS."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.serve.auth import load_credentials, load_guard
from frazil.serve.danube.proto import danube_pb2 as data
from frazil.serve.grpc.router import Router, Stream, Unary
from frazil.serve.grpc.server import Server
from tests.support.rpcs import RPCS
from tests.unit.serve.auth.world import ACCESS, CONSUMER_ID, ISSUER, KEY, NEEDS, SECRET, token
from tests.unit.serve.h2.peer import prefixed

pytestmark = pytest.mark.integration
CREATE = "/danube.ProducerService/CreateProducer"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"


def settings_of(tmp_path, **overrides):
    """Return settings with authentication on and its files in place."""
    paths = {}
    for name, text in (("access.yaml", ACCESS), ("secrets", SECRET)):
        path = tmp_path / name
        path.touch(0o600)
        path.write_text(text)
        paths[name] = str(path)
    return load_settings(
        environment={},
        overrides={
            "auth.enabled": True,
            "auth.access_file": paths["access.yaml"],
            "auth.jwt_secret_file": paths["secrets"],
            "auth.jwt_issuer": ISSUER,
            **overrides,
        },
    )


class World:
    """A server whose handlers answer everything, so that only the guard can refuse."""

    def __init__(self, settings):
        self.reached = []
        self.guard = load_guard(settings, needs=NEEDS, clock=SystemClock())
        routes = {
            path: (Stream if rpc.is_stream else Unary)(self._answer) for path, rpc in RPCS.items()
        }
        self.server = Server(Router(routes, guard=self.guard))

    def _answer(self, call, message):
        self.reached.append((call.path, self.guard.principal_of(call)))
        if call.head.is_stream:
            call.begin()
            call.write(prefixed(b""))
            call.finish()
        else:
            call.ok(b"")


async def ask(channel, path, message=b"", metadata=(), *, stream=False):
    """Return the status and text that a call ends with; OK and its replies' number if it is well."""
    try:
        if stream:
            call = channel.unary_stream(path)(message, metadata=metadata)
            return grpc.StatusCode.OK, len([each async for each in call])
        await channel.unary_unary(path)(message, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, 1


def serve(settings, check, *, context=None, credentials=None):
    """Run a check against a server that is really listening."""

    async def run():
        world = World(settings)
        _, port = await world.server.start("127.0.0.1", 0, context)
        target = f"localhost:{port}"
        channel = (
            grpc.aio.insecure_channel(target)
            if credentials is None
            else grpc.aio.secure_channel(target, credentials)
        )
        async with channel:
            await asyncio.wait_for(check(world, channel), 30)
        world.server.close()

    asyncio.run(run())


def create(topic="/default/orders"):
    return data.ProducerRequest(topic_name=topic).SerializeToString()


def test_statuses_and_texts_arrive_as_the_protocol_has_them(tmp_path):
    """Missing, bad, denied and good credentials, on a unary call and on a stream."""
    clock = SystemClock()

    async def check(world, channel):
        good = (("authorization", token("writer", clock)),)
        assert await ask(channel, CREATE, create()) == (
            grpc.StatusCode.UNAUTHENTICATED,
            "Authentication credentials are missing",
        )
        assert await ask(channel, CREATE, create(), (("authorization", "Bearer x"),)) == (
            grpc.StatusCode.UNAUTHENTICATED,
            "Invalid token",
        )
        code, text = await ask(channel, CREATE, create("/default/other"), good)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert text == "no binding grants produce on topic /default/other"
        message = data.ReceiveRequest(consumer_id=CONSUMER_ID).SerializeToString()
        code, _ = await ask(channel, RECEIVE, message, good, stream=True)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert world.reached == []
        assert await ask(channel, CREATE, create(), good) == (grpc.StatusCode.OK, 1)
        reader = (("authorization", token("reader", clock)),)
        assert await ask(channel, RECEIVE, message, reader, stream=True) == (grpc.StatusCode.OK, 1)
        key = (("authorization", f"Bearer {KEY.text}"),)
        assert await ask(channel, CREATE, create(), key) == (grpc.StatusCode.OK, 1)
        assert [str(who) for _, who in world.reached] == [
            "user:writer",
            "user:reader",
            "service_account:app",
        ]

    serve(settings_of(tmp_path), check)


def test_random_requests_are_refused_and_never_a_bug(tmp_path):
    """Bytes of any kind behind good credentials get a status of the protocol, never INTERNAL."""
    clock = SystemClock()

    async def check(world, channel):
        header = (("authorization", token("elsewhere", clock)),)
        draw = random.Random(20_261_116)
        for path, rpc in RPCS.items():
            for size in (1, 3, 17, 200):
                code, _ = await ask(
                    channel, path, draw.randbytes(size), header, stream=rpc.is_stream
                )
                assert code in {
                    grpc.StatusCode.OK,
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.NOT_FOUND,
                    grpc.StatusCode.PERMISSION_DENIED,
                }
        assert world.server.counters.handler_errors_total == 0

    serve(settings_of(tmp_path), check)


def test_a_client_above_its_rate_is_told_to_wait(tmp_path):
    """RESOURCE_EXHAUSTED, which the published clients retry."""
    settings = load_settings(environment={}, overrides={"serve.requests_s_max": 5})

    async def check(world, channel):
        codes = [(await ask(channel, CREATE, create()))[0] for _ in range(30)]
        assert codes[:5] == [grpc.StatusCode.OK] * 5
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
        assert len(world.reached) == codes.count(grpc.StatusCode.OK) < 30

    serve(settings, check)


def test_credentials_can_be_replaced_under_way(tmp_path):
    """A key that leaves the file is refused on an open connection with the next call."""
    settings = settings_of(tmp_path)

    async def check(world, channel):
        key = (("authorization", f"Bearer {KEY.text}"),)
        assert (await ask(channel, CREATE, create(), key))[0] is grpc.StatusCode.OK
        (tmp_path / "access.yaml").write_text(ACCESS.partition("keys:")[0])
        world.guard.replace(load_credentials(settings.auth))
        assert (await ask(channel, CREATE, create(), key))[0] is grpc.StatusCode.UNAUTHENTICATED

    serve(settings, check)
