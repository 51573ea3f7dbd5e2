"""Floods by many connections at once: memory and CPU are bounded, and another client goes on."""

from __future__ import annotations

import contextlib
import time

import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.headers import literal
from tests.integration.serve.flood_world import flooded
from tests.integration.serve.grpc_world import RawClient, eventually
from tests.unit.serve.h2.peer import REQUEST, prefixed

pytestmark = pytest.mark.integration

CONNECTIONS = 8
ROUNDS = 3
GROWTH_BYTES_MAX = 64 << 20
"""The floods ask for 16 MB of answers at most; the rest is what an allocator keeps."""


def costly_headers(client):
    """Return calls whose header blocks are short, never the same, and long to read."""
    plain = b"".join(
        literal(name.encode(), b"/t.T/Echo" if name == ":path" else value.encode())
        for name, value in REQUEST
    )
    parts = []
    for sid in range(1, 201, 2):
        block = plain + b"\x90" * 400 + literal(b"n", b"%d" % sid)
        parts.append(f.frame(f.HEADERS, f.END_HEADERS, sid, block))
        parts.append(f.frame(f.DATA, f.END_STREAM, sid, prefixed(b"")))
    return b"".join(parts)


def tiny_windows(client):
    """Return calls with answers that are let through byte by byte."""
    calls = b"".join(client.call(sid, "/t.T/Large", b"20000") for sid in range(1, 201, 2))
    opening = b"".join(f.window_update(sid, 1) for sid in range(1, 201, 2))
    return f.settings({f.INITIAL_WINDOW_SIZE: 0}) + calls + opening * 250


def settings_of_many_streams(client):
    """Return open streams, and settings that change the windows of all of them, often."""
    calls = b"".join(client.call(sid, "/t.T/Hold") for sid in range(1, 2001, 2))
    pairs = b"\0\4\0\0\0\1\0\4\0\0\0\2" * 1000
    return calls + f.frame(f.SETTINGS, 0, 0, pairs) * 10


FLOODS = {
    "reset": lambda client: b"".join(
        client.call(sid, "/t.T/Hold") + f.reset(sid, 8) for sid in range(1, 6_001, 2)
    ),
    "ping": lambda client: f.ping(b"12345678") * 20_000,
    "settings": lambda client: f.settings({}) * 20_000,
    "settings of many streams": settings_of_many_streams,
    "continuation": lambda client: (
        f.frame(f.HEADERS, 0, 1) + f.frame(f.CONTINUATION, 0, 1, b"\0") * 20_000
    ),
    "windows": lambda client: f.window_update(0, 1) * 25_000,
    "tiny windows": tiny_windows,
    "small data": lambda client: (
        client.call(1, "/t.T/Echo")[:-14] + f.frame(f.DATA, 0, 1, b"x") * 20_000
    ),
    "costly headers": costly_headers,
    "garbage": lambda client: bytes(range(256)) * 400,
}


@contextlib.contextmanager
def pouring(world, name):
    """Flood from several connections at once; those that were not cut off stay open meanwhile."""
    clients = [RawClient(world, greet=name != "garbage") for _ in range(CONNECTIONS)]
    # The same bytes for all: each has said as little as the other.
    flood = FLOODS[name](clients[0])
    for client in clients:
        client.socket.settimeout(1.0)
        # A client that is cut off, or no longer read from, cannot send the rest.
        with contextlib.suppress(OSError):
            client.send(flood)
    try:
        yield
    finally:
        for client in clients:
            client.socket.close()


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_is_bounded_and_harms_nobody_else(name):
    """While it lasts another client is answered; nothing is left of it when its sockets close."""
    with flooded() as (world, bystander):
        before = world.resident_bytes()
        # Several times, so that what each round leaves behind adds up.
        for _ in range(ROUNDS):
            with pouring(world, name):
                bystander.wait_for(5)
                assert world.resident_bytes() - before < GROWTH_BYTES_MAX
        assert eventually(lambda: world.facts()["connections"] == 1)
        facts = world.facts()
        assert facts["unanswered"] == 0
        assert facts["held"] < 1000
        assert facts["handler_errors_total"] == 0


def test_clients_that_stop_reading_are_bounded_together():
    """Many consumers that never read hold no more than the server allows; the rest is cut off."""
    limits = {"held_bytes_server_max": 16 << 20}
    wide = {f.INITIAL_WINDOW_SIZE: f.WINDOW_LARGEST}
    with flooded(**limits) as (world, bystander):
        before = world.resident_bytes()
        clients = []
        for _ in range(60):
            client = RawClient(world, settings=wide)
            feeds = b"".join(client.call(sid, "/t.T/Feed") for sid in (1, 3, 5))
            client.send(f.window_update(0, 1 << 30), feeds)
            clients.append(client)
        assert eventually(lambda: world.facts()["connections_cut_total"] > 10)
        bystander.wait_for(20)
        assert world.facts()["held"] <= limits["held_bytes_server_max"]
        assert world.resident_bytes() - before < 3 * limits["held_bytes_server_max"]
        for client in clients:
            client.socket.close()
        assert eventually(lambda: world.facts()["connections"] == 1)
        assert eventually(lambda: world.facts()["held"] < 1000)


def test_answers_without_a_window_are_bounded_together():
    """Clients that ask for much and open no window are cut off when all have too much."""
    limits = {"held_bytes_server_max": 16 << 20}
    with flooded(**limits) as (world, bystander):
        clients = []
        for _ in range(10):
            client = RawClient(world, settings={f.INITIAL_WINDOW_SIZE: 0})
            large = (client.call(sid, "/t.T/Large", b"1000000") for sid in (1, 3, 5, 7))
            client.send(*large)
            clients.append(client)
        assert eventually(lambda: world.facts()["connections_cut_total"] >= 6)
        bystander.wait_for(20)
        assert world.facts()["held"] <= limits["held_bytes_server_max"]
        for client in clients:
            client.socket.close()


def busy_part(world):
    """Return which part of a processor the server uses now."""
    began, used = time.monotonic(), world.cpu_seconds()
    time.sleep(0.5)
    return (world.cpu_seconds() - used) / (time.monotonic() - began)


def test_a_flood_that_is_over_costs_nothing():
    """Streams that wait for a window, and stopped readers, do not keep the server busy."""
    wide = {f.INITIAL_WINDOW_SIZE: f.WINDOW_LARGEST}
    with flooded() as (world, bystander):
        bystander.pause()
        clients = [RawClient(world, settings=wide), RawClient(world), RawClient(world)]
        clients[0].send(f.window_update(0, 1 << 30), clients[0].call(1, "/t.T/Feed"))
        clients[1].send(*(clients[1].call(sid, "/t.T/Feed") for sid in range(1, 201, 2)))
        clients[2].send(costly_headers(clients[2]))
        assert eventually(lambda: world.facts()["calls_total"] >= 201)
        assert eventually(lambda: busy_part(world) < 0.25, seconds=60)
        bystander.go_on()
        for client in clients:
            client.socket.close()
