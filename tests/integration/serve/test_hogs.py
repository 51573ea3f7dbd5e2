"""Clients that hold what a server has room for: the others are served.

The ticks of most servers here are the tests' own, so that no test depends on time.
"""

from __future__ import annotations

import asyncio
import contextlib

import attrs
import grpc
import pytest

from frazil.serve.grpc.calls import TOO_SLOW
from frazil.serve.grpc.codec import Code
from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from tests.integration.serve import rpc_world
from tests.integration.serve.grpc_world import (
    SECONDS_MAX,
    RawClient,
    assert_answers,
    eventually,
    serving,
)
from tests.unit.serve.h2.peer import REQUEST, prefixed

pytestmark = pytest.mark.integration

NEVER = 3_600.0
PIECE = bytes(16_000)
PIECES = 20
HELD = PIECES * len(PIECE)
HOGS = 6
LARGE = 1_000_000
CREATE = "/danube.ProducerService/CreateProducer"
LIST = "/danube_admin.BrokerAdmin/ListBrokers"
ROOM = ServerLimits(tick_s=NEVER, held_bytes_server_max=HOGS * (HELD + 10_000))
"""There is room for what the hogs hold, and not for the request of another client."""
LATE = ServerLimits(tick_s=NEVER, request_s=NEVER)
"""A request has the time of one tick."""


def headers(client, sid, path="/t.T/Echo", **metadata):
    """Return the headers of a call without its body."""
    fields = [(name, path if name == ":path" else value) for name, value in REQUEST]
    block = client.encoder.encode([*fields, *metadata.items()])
    return f.frame(f.HEADERS, f.END_HEADERS, sid, block)


def part(sid, data=PIECE, flags=0):
    return f.frame(f.DATA, flags, sid, data)


def tick(world):
    """Let a tick pass on all connections."""

    def run():
        for shell in tuple(world.server._connections):
            shell.tick(world.server.clock.monotonic())

    world.run(run)


def tables(world):
    return [shell.connection.table for shell in world.server._connections if shell._is_live]


def unfinished(world):
    return world.run(lambda: sum(table.unfinished for table in tables(world)))


@contextlib.contextmanager
def hogging(world, count=HOGS, pieces=PIECES, **metadata):
    """Yield clients with one large request each that never ends."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(world)) for _ in range(count)]
        for client in clients:
            client.send(headers(client, 1, **metadata), *([part(1)] * pieces))
        yield clients


def echo(world, message, metadata=()):
    """Return a call's answer, or its status."""
    with world.channel() as channel:
        call = channel.unary_unary("/t.T/Echo")
        try:
            return call(message, timeout=SECONDS_MAX, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()


def statuses(client, last):
    """Return the statuses of calls and their texts, those that come until one call has its own."""
    found = {}
    for kind, _, sid, payload in client.frames():
        if kind == f.HEADERS:
            fields = dict(client.decoder.decode(payload))
            if "grpc-status" in fields:
                found[sid] = Code(int(fields["grpc-status"])), fields.get("grpc-message", "")
        if last in found:
            break
    return found


def status(client, sid):
    """Return the status of a call and its text; None if the connection ends before."""
    return statuses(client, sid).get(sid)


def test_others_send_large_requests_while_hogs_hold_theirs():
    """Above the cap the connection that was silent longest is closed, not the newest."""
    with serving(ROOM) as world, hogging(world):
        assert eventually(lambda: unfinished(world) == HOGS * HELD)
        for _ in range(5):
            assert echo(world, bytes(LARGE)) == bytes(LARGE)
        assert 0 < world.server.counters.connections_cut_total <= HOGS
        assert world.run(lambda: world.server.held) <= ROOM.held_bytes_server_max


def test_the_broker_keeps_no_request_of_strangers(tmp_path):
    """On both ports a large request without credentials is refused before it is here."""

    async def scene():
        async with rpc_world.serving(tmp_path / "data", **rpc_world.with_access(tmp_path)) as world:
            return await asyncio.to_thread(_ask_both, world)

    def _ask_both(world):
        found = []
        addresses = world.broker.addresses
        for address, path in ((addresses.data, CREATE), (addresses.admin, LIST)):
            with RawClient(address) as client:
                client.send(headers(client, 1, path), part(1))
                found.append(status(client, 1)[0])
        return found

    assert asyncio.run(scene()) == [Code.UNAUTHENTICATED] * 2


@pytest.mark.parametrize("body", [b"", PIECE])
def test_requests_that_never_become_complete_end(body):
    """With and without a part of it, with a status; the connection goes on."""
    with serving(LATE) as world, RawClient(world) as client:
        streams = range(1, 21, 2)
        client.send(client.call(21, "/t.T/Wait"))
        client.send(*(headers(client, sid) for sid in range(23, 43, 2)))
        client.send(*(part(sid, body) for sid in range(23, 43, 2) if body))
        assert eventually(lambda: any(len(table.open) == 11 for table in tables(world)))
        assert eventually(lambda: unfinished(world) == len(streams) * len(body))
        tick(world)
        assert world.run(lambda: len(tables(world)[0].open)) == 11
        tick(world)
        assert status(client, 23) == (Code.DEADLINE_EXCEEDED, TOO_SLOW)
        assert world.run(lambda: len(tables(world)[0].open)) == 1
        client.send(client.call(43, "/t.T/Echo", b"hi"))
        assert status(client, 43) == (Code.OK, "")


def test_a_client_that_is_not_read_from_has_its_time_when_it_is():
    """Ticks in which the server does not read do not count."""
    limits = attrs.evolve(LATE, unanswered_bytes_max=10_000)
    with serving(limits) as world, RawClient(world) as client:
        client.send(headers(client, 1), client.call(3, "/t.T/Hold", bytes(15_000)))
        assert eventually(lambda: world.server.counters.reading_pauses_total)
        for _ in range(4):
            tick(world)
        assert world.run(lambda: list(tables(world)[0].open)) == [1, 3]
        world.run(lambda: world.handlers.held[0].ok(b""))
        client.send(part(1, prefixed(b"late"), f.END_STREAM))
        assert status(client, 1) == (Code.OK, "")


def test_streams_are_bounded_together():
    """Calls beyond the server's limit are refused; others go on when some have ended."""
    with serving(ServerLimits(streams_server_max=100)) as world:
        with RawClient(world) as one, RawClient(world) as other:
            one.send(*(one.call(sid, "/t.T/Hold") for sid in range(1, 202, 2)))
            assert eventually(lambda: len(world.handlers.held) == 101)
            other.send(other.call(1, "/t.T/Echo"))
            other.wait(f.SETTINGS)
            other.send(other.call(3, "/t.T/Echo"))
            assert other.wait(f.RST_STREAM) == f.ErrorCode.REFUSED_STREAM.to_bytes(4)
        assert eventually(lambda: world.run(lambda: world.server.streams) == 0)
        assert echo(world, b"hi") == b"hi"


def test_ten_thousand_consumers_are_not_cut():
    """Neither by the time for a request nor by the cap while others hold too much."""
    count = 10_000
    limits = attrs.evolve(LATE, held_bytes_server_max=1_000_000)
    with serving(limits) as world, RawClient(world) as consumer:
        for first in range(0, count, 100):
            sids = range(2 * first + 1, 2 * (first + 100), 2)
            consumer.send(*(consumer.call(sid, "/t.T/Wait") for sid in sids))
        begun = 0
        for kind, _, _, payload in consumer.frames():
            assert kind not in {f.RST_STREAM, f.GOAWAY}
            if kind == f.HEADERS:
                consumer.decoder.decode(payload)
                begun += 1
            if begun == count:
                break
        with hogging(world, 4):
            counters = world.server.counters
            assert eventually(lambda: counters.connections_cut_total >= 1)
            for _ in range(4):
                tick(world)
        assert world.run(lambda: max(len(table.open) for table in tables(world))) == count
        assert world.handlers.cancelled == []
        last = 2 * count + 1
        consumer.send(consumer.call(last, "/t.T/Echo", b"here"))
        assert status(consumer, last) == (Code.OK, "")
        assert_answers(world)
