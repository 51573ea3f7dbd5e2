"""A whole broker in this process, asked with bytes on both of its ports."""

from __future__ import annotations

import asyncio
import contextlib

import grpc

from frazil.config import load_settings
from frazil.serve.broker import Broker
from tests.integration.serve.consuming_world import make_producer, make_reader, payloads
from tests.integration.serve.rpc_inputs import good
from tests.support.rpcs import RPCS, Port
from tests.unit.serve.auth.world import ISSUER, SECRET

SECONDS_MAX = 60
AT_ONCE = 32
STREAM_OPEN_S = 0.3
"""How long a stream that was not refused is left open; nothing is expected of it."""
SETTINGS = {
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
    "serve.port": 0,
    "serve.admin_port": 0,
    "serve.http_port": 0,
}
NEVER = {grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS, grpc.StatusCode.CANCELLED}
INTERNAL_TEXTS = {
    "Ack": "Error acknowledging message: ",
    "Nack": "Error negatively acknowledging message: ",
    "RegisterSchema": "Failed to register schema: ",
}
"""Where the protocol itself has INTERNAL, and how its text begins."""
SET_UP = (
    "/danube_schema.SchemaRegistry/RegisterSchema",
    "/danube_admin.TopicAdmin/CreateTopic",
    "/danube.ProducerService/CreateProducer",
    "/danube.ConsumerService/Subscribe",
    "/danube_admin.BrokerAdmin/ListBrokers",
)


ACCESS = """
roles:
  all: [{actions: [produce, consume, admin], namespace: "*", topics: ["*"], subjects: ["*"]}]
principals:
  user:all: [all]
  user:nothing: []
"""


def with_access(tmp_path, access=ACCESS):
    """Return the settings of a broker with authentication."""
    paths = {}
    for name, text in (("access.yaml", access), ("secrets", SECRET)):
        path = tmp_path / name
        path.touch(0o600)
        path.write_text(text)
        paths[name] = str(path)
    return {
        "auth.enabled": True,
        "auth.access_file": paths["access.yaml"],
        "auth.jwt_secret_file": paths["secrets"],
        "auth.jwt_issuer": ISSUER,
    }


class World:
    """A broker, a channel to each of its ports, and what went wrong in its loop.

    `known` has the ids of the producer, the consumer and the broker, for good requests.
    """

    def __init__(self, broker, channels):
        self.broker = broker
        self.channels = channels
        self.errors = []
        self.known = {}

    async def ask(self, rpc, port, data, metadata=(), learn=None):
        """Return the code and the text that a call ends with; a stream that stays open is OK.

        `learn` is given the reply.
        """
        channel = self.channels[port]
        try:
            async with asyncio.timeout(SECONDS_MAX):
                if rpc.is_stream:
                    call = channel.unary_stream(rpc.path)(data, metadata=metadata)
                    return await self._until_open(call)
                reply = await channel.unary_unary(rpc.path)(data, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details()
        found = rpc.reply.FromString(reply)
        if learn is not None:
            learn(found)
        return grpc.StatusCode.OK, ""

    async def _until_open(self, call):
        try:
            async with asyncio.timeout(STREAM_OPEN_S):
                async for _ in call:
                    pass
        except TimeoutError:
            # To stop reading has cancelled the call.
            return grpc.StatusCode.OK, ""
        return await call.code(), await call.details()

    async def ask_all(self, rpc, port, requests):
        """Ask with every request, some at a time; return what is not an answer of the protocol."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(data):
            async with turn:
                try:
                    code, text = await self.ask(rpc, port, data)
                except TimeoutError:
                    return rpc.path, "no answer", "", data[:300].hex()
            expected = INTERNAL_TEXTS.get(rpc.name)
            is_named = expected is not None and (text or "").startswith(expected)
            if code in NEVER or (code is grpc.StatusCode.INTERNAL and not is_named):
                return rpc.path, code.name, text, data[:300].hex()
            return None

        found = await asyncio.gather(*(one(data) for data in requests))
        return [each for each in found if each is not None]

    async def prepare(self, metadata=()):
        """Make the things that good requests name."""
        for path in SET_UP:
            rpc = RPCS[path]
            request = good(rpc.request)
            if "schema_ref" in request.DESCRIPTOR.fields_by_name:
                request.ClearField("schema_ref")
            call = self.channels[min(rpc.ports)].unary_unary(path)
            reply = rpc.reply.FromString(await call(request.SerializeToString(), metadata=metadata))
            self._learn(reply)

    def _learn(self, reply):
        for name in ("producer_id", "consumer_id"):
            if name in reply.DESCRIPTOR.fields_by_name:
                self.known[name] = getattr(reply, name)
        if "brokers" in reply.DESCRIPTOR.fields_by_name:
            [broker] = reply.brokers
            self.known["broker_id"] = broker.broker_id
        self.known["id"] = self.known.get("producer_id", 0)

    def check_unharmed(self):
        """Nothing failed inside: no handler, no task, no callback."""
        assert self.errors == []
        for server in self.broker._servers.values():
            assert server.counters.handler_errors_total == 0

    async def check_published_client(self, topic):
        """The published client, unchanged, sends, receives and acks."""
        port = self.broker.addresses.data.port
        producer = await make_producer(port, topic=topic, name="real")
        reader = await make_reader(port, topic=topic, name="real", subscription="real")
        await producer.send(b"still here")
        assert payloads(await reader.take(1)) == [b"still here"]
        await reader.close()
        await producer.close()


@contextlib.asynccontextmanager
async def serving(path, **settings):
    """Serve a directory in this process until the end."""
    overrides = {**SETTINGS, "data_dir": str(path), **settings}
    broker = Broker(load_settings(environment={}, overrides=overrides))
    addresses = await broker.start()
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    ports = {Port.DATA: addresses.data.port, Port.ADMIN: addresses.admin.port}
    channels = {
        port: grpc.aio.insecure_channel(f"127.0.0.1:{number}", options)
        for port, number in ports.items()
    }
    world = World(broker, channels)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: world.errors.append(context))
    try:
        yield world
    finally:
        for channel in channels.values():
            await channel.close()
        await broker.stop()
