"""A disk that does not answer holds up what must be durable, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.engine import Engine
from frazil.fs import RealFileSystem
from frazil.serve.danube.proto.danube_pb2 import (
    HealthCheckRequest,
    TopicLookupRequest,
    TopicLookupResponse,
)
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import Server
from tests.integration.serve.consuming_world import SECONDS_MAX, TOPIC, Caller
from tests.integration.serve.rpc_world import SETTINGS

pytestmark = pytest.mark.integration

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


async def check_life(caller, producer_id):
    """Health checks and look-ups are answered."""
    assert await caller.ping(producer_id, HealthCheckRequest.Producer)
    request = TopicLookupRequest(topic=TOPIC)
    assert await caller.ask("/danube.Discovery/TopicLookup", request, TopicLookupResponse)


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
        async with Caller(port) as caller:
            producer_id = await caller.create()
            disk.answer_late()
            await caller.send(producer_id)
            disk.gate.clear()
            try:
                sends = [asyncio.create_task(caller.send(producer_id)) for _ in range(50)]
                for _ in range(50):
                    await check_life(caller, producer_id)
                assert not any(send.done() for send in sends)
            finally:
                disk.gate.set()
            await asyncio.gather(*sends)
        await server.drain(1)
        await services.close()
        await asyncio.to_thread(engine.close)

    asyncio.run(scene())


ADDRESSES = {
    "advertised_url": "http://127.0.0.1:1",
    "admin_url": "http://127.0.0.1:2",
    "http_url": "http://127.0.0.1:3",
}
