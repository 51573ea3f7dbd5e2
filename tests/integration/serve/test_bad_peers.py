"""Garbage, half-open connections and a flood of them on every port of a whole broker."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

import grpc
import pytest

from frazil.serve.h2 import frames as f
from tests.integration.serve.consuming_world import until
from tests.integration.serve.rpc_world import serving
from tests.support.few import few

pytestmark = pytest.mark.integration

WAIT_S = 60
ELSEWHERE = "127.0.0.2"
"""Another address of this machine, for other clients."""
TLS_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(range(189))
GARBAGE = {
    "nothing": b"",
    "zeros": bytes(5_000),
    "noise": bytes(number * 37 % 256 for number in range(20_000)),
    "http/1": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": TLS_HELLO,
    "half a greeting": f.PREFACE[:12],
    "a greeting and noise": f.PREFACE + f.settings({}) + bytes(range(256)) * 20,
    "a post that never ends": b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + bytes(100),
}


def ports_of(world):
    addresses = world.broker.addresses
    return {
        "data": addresses.data.port,
        "admin": addresses.admin.port,
        "http": addresses.http.port,
    }


async def connect(port):
    """Return a connection from elsewhere."""
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(ELSEWHERE, 0))


async def closed_by_server(reader):
    """Read until the end, which a reset is as well."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(1 << 16), WAIT_S):
            pass
    return True


def connections(world):
    return sum(server.counters.connections for server in world.broker._servers.values())


def turned_away(world):
    """Return how many connections were refused, or made way for another."""
    counted = [server.counters for server in world.broker._servers.values()]
    return sum(each.connections_refused_total + each.connections_cut_total for each in counted)


def test_garbage_on_every_port_ends_its_own_connection(tmp_path):
    """Each is closed by the broker, at once or when its time is over; the client goes on."""

    async def scene():
        async with serving(tmp_path) as world:
            opened = []
            for port in ports_of(world).values():
                for junk in GARBAGE.values():
                    reader, writer = await connect(port)
                    writer.write(junk)
                    opened.append((reader, writer))
            await world.check_published_client("/default/real")
            ends = await asyncio.gather(*(closed_by_server(reader) for reader, _ in opened))
            assert all(ends)
            for _, writer in opened:
                writer.close()
            await world.check_published_client("/default/real")
            await until(lambda: connections(world) <= 2)
            world.check_unharmed()

    asyncio.run(scene())


def test_a_flood_of_connections_from_one_address_leaves_room_for_others(tmp_path, monkeypatch):
    """One address has its limit on each port; descriptors do not leak."""
    few(monkeypatch.setattr, CLIENT_CONNECTIONS_MAX=50)

    async def scene():
        async with serving(tmp_path) as world:
            await world.check_published_client("/default/real")
            before = len(os.listdir("/proc/self/fd"))
            for rounds in (1, 2, 3):
                sockets = []
                for number in range(300):
                    port = list(ports_of(world).values())[number % 2]
                    sockets.append(
                        socket.create_connection(
                            ("127.0.0.1", port), WAIT_S, source_address=(ELSEWHERE, 0)
                        )
                    )
                    # The broker is in this loop.
                    await asyncio.sleep(0)
                await until(lambda: turned_away(world) >= 200 * rounds)  # noqa: B023 - asked at once
                await world.check_published_client("/default/real")
                for each in sockets:
                    each.close()
                await until(lambda: connections(world) <= 2)
            await until(lambda: len(os.listdir("/proc/self/fd")) < before + 50)
            world.check_unharmed()

    asyncio.run(scene())


def test_idle_connections_lock_nobody_out(tmp_path, monkeypatch):
    """All places taken from two addresses, by who never calls: clients and administrators get in."""
    few(monkeypatch.setattr, CLIENT_CONNECTIONS_MAX=10)

    async def scene():
        async with serving(tmp_path, **{"serve.connections_max": 20}) as world:
            sockets = []
            for number in range(60):
                source = (f"127.0.0.{2 + number % 2}", 0)
                port = world.broker.addresses.data.port
                each = socket.create_connection(("127.0.0.1", port), WAIT_S, source_address=source)
                each.sendall(f.PREFACE + f.settings({}))
                sockets.append(each)
                await asyncio.sleep(0)
            await until(lambda: turned_away(world) >= 44)
            assert connections(world) == 16
            await world.check_published_client("/default/real")
            admin = f"127.0.0.1:{world.broker.addresses.admin.port}"
            async with grpc.aio.insecure_channel(admin) as channel:
                call = channel.unary_unary("/danube_admin.BrokerAdmin/GetLeaderBroker")
                assert await call(b"", timeout=WAIT_S)
            for each in sockets:
                each.close()
            world.check_unharmed()

    asyncio.run(scene())
