"""A disk that does not answer holds up what must be durable, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time

import grpc
import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.engine import Engine
from frazil.fs import RealFileSystem
from frazil.serve.danube.proto.danube_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    MsgID,
    ProducerRequest,
    ProducerResponse,
    StreamMessage,
    TopicLookupRequest,
)
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import Server
from tests.integration.serve.rpc_world import SETTINGS

pytestmark = pytest.mark.integration

SECONDS_MAX = 60
SLOW_S = 0.1


class StallingFile:
    """A file whose syncs wait while the disk's gate is closed."""

    def __init__(self, file, disk):
        self._file = file
        self._disk = disk

    def __getattr__(self, name):
        return getattr(self._file, name)

    def sync(self):
        self._disk.met.release()
        assert self._disk.gate.wait(SECONDS_MAX)
        self._file.sync()


class StallingFileSystem(RealFileSystem):
    """The real one; `gate` closed is a disk that takes for ever to sync."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.met = threading.Semaphore(0)

    def open(self, path, mode):
        return StallingFile(super().open(path, mode), self)

    def answer_late(self):
        """Close the gate until a sync has waited for a moment; another thread opens it."""
        while self.met.acquire(blocking=False):
            pass
        self.gate.clear()

        def open_again():
            assert self.met.acquire(timeout=SECONDS_MAX)
            time.sleep(SLOW_S)
            self.gate.set()

        threading.Thread(target=open_again).start()


class Calls:
    """The few calls that the test makes."""

    def __init__(self, channel):
        self._channel = channel

    async def create(self):
        request = ProducerRequest(
            topic_name="/default/t", producer_name="p", dispatch_strategy=1
        ).SerializeToString()
        call = self._channel.unary_unary("/danube.ProducerService/CreateProducer")
        return ProducerResponse.FromString(await call(request)).producer_id

    def send(self, producer_id):
        """Return a call under way."""
        message = StreamMessage(
            msg_id=MsgID(producer_id=producer_id, topic_name="/default/t"),
            producer_name="p",
            payload=b"x",
        )
        call = self._channel.unary_unary("/danube.ProducerService/SendMessage")
        return call(message.SerializeToString())

    async def check_life(self, producer_id):
        """Health checks and look-ups are answered."""
        health = self._channel.unary_unary("/danube.HealthCheck/HealthCheck")
        reply = await health(HealthCheckRequest(id=producer_id).SerializeToString(), timeout=30)
        assert HealthCheckResponse.FromString(reply).status == HealthCheckResponse.OK
        look_up = self._channel.unary_unary("/danube.Discovery/TopicLookup")
        assert await look_up(TopicLookupRequest(topic="/default/t").SerializeToString(), timeout=30)


def test_health_checks_are_answered_while_the_disk_does_not_answer(tmp_path):
    """Sends wait for their sync, unanswered; all else goes on, and they are answered behind it.

    The loop itself syncs small groups while syncs are fast, so the first slow one holds it up.
    """
    settings = load_settings(
        environment={}, overrides={**SETTINGS, "data_dir": str(tmp_path / "data")}
    )
    disk = StallingFileSystem()

    async def scene():
        engine = await asyncio.to_thread(Engine, settings, file_system=disk, clock=SystemClock())
        services = Services(engine, addresses=ADDRESSES)
        server = Server(Router(services.data_routes()))
        _, port = await server.start("127.0.0.1", 0)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = Calls(channel)
            producer_id = await calls.create()
            disk.answer_late()
            await calls.send(producer_id)
            disk.gate.clear()
            try:
                sends = [calls.send(producer_id) for _ in range(50)]
                for _ in range(50):
                    await calls.check_life(producer_id)
                assert not any(send.done() for send in sends)
            finally:
                disk.gate.set()
            await asyncio.wait_for(asyncio.gather(*sends), SECONDS_MAX)
        await server.drain(1)
        await services.close()
        await asyncio.to_thread(engine.close)

    asyncio.run(scene())


ADDRESSES = {
    "advertised_url": "http://127.0.0.1:1",
    "admin_url": "http://127.0.0.1:2",
    "http_url": "http://127.0.0.1:3",
}
