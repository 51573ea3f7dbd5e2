"""A server that goes away lets its calls end, tells its clients, and keeps its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import grpc
import pytest

from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from tests.integration.serve.grpc_world import SECONDS_MAX, RawClient, eventually, serving

pytestmark = pytest.mark.integration


def test_open_calls_are_answered_and_new_clients_refused():
    """Calls of before the drain get their answers; the port is closed from its start on."""
    with serving() as world, world.channel() as channel:
        call = channel.unary_unary("/t.T/Hold").future(b"open", timeout=60)
        assert eventually(lambda: len(world.handlers.held) == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        time.sleep(0.2)
        with world.channel() as late, pytest.raises(grpc.RpcError) as caught:
            late.unary_unary("/t.T/Echo")(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((world.host, world.port), timeout=60).close()
        assert not draining.done()
        world.run(lambda: world.handlers.held[0].ok(b"answered"))
        assert call.result() == b"answered"
        assert draining.result(60)


def test_the_deadline_ends_what_is_left():
    """A call that never ends gets UNAVAILABLE, and the drain says that it was not clean."""
    with serving() as world, world.channel() as channel:
        call = channel.unary_unary("/t.T/Hold").future(b"stuck", timeout=60)
        assert eventually(lambda: len(world.handlers.held) == 1)
        assert not world.run(world.server.drain(0.3))
        # In these words: a connection that only closes has the code as well.
        found = call.exception().code(), call.exception().details()
        assert found == (grpc.StatusCode.UNAVAILABLE, "server is shutting down")
        assert world.handlers.cancelled == [b"stuck"]


def ends(client):
    """Yield (stream, status) of calls as they end, and ("goaway", last stream)."""
    for kind, flags, sid, payload in client.frames():
        if kind == f.GOAWAY:
            yield "goaway", int.from_bytes(payload[:4])
        elif kind == f.HEADERS:
            fields = dict(client.decoder.decode(payload))
            if flags & f.END_STREAM:
                yield sid, fields["grpc-status"]


def test_a_client_is_refused_before_it_is_sent_away():
    """A stream that is opened again is refused with a status; the GOAWAY comes when all is quiet.

    To clients of Rust's hyper a GOAWAY that meets a call on its way is the end of their consumer.
    """
    limits = ServerLimits(linger_s=SECONDS_MAX, quiet_s=0.5)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Wait"), client.call(3, "/t.T/Wait"))
        assert eventually(lambda: world.server.counters.calls_total == 2)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        found = []
        for sid, status in ends(client):
            found.append((sid, status))
            if sid in {1, 3}:
                client.send(client.call(sid + 4, "/t.T/Wait"))
        assert found == [*((sid, "14") for sid in (1, 3, 5, 7)), ("goaway", 7)]
        assert draining.result(60)


def test_a_client_that_is_never_quiet_gets_a_goaway():
    """Its calls are refused until then, and its connection closes."""
    limits = ServerLimits(linger_s=0.2, quiet_s=SECONDS_MAX)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Wait"))
        assert eventually(lambda: world.server.counters.calls_total == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        sid, found = 1, []
        for at, status in ends(client):
            found.append((at, status))
            if at == sid:
                sid += 2
                with contextlib.suppress(OSError):
                    client.send(client.call(sid, "/t.T/Wait"))
        assert {status for at, status in found if at != "goaway"} == {"14"}
        assert found[-1][0] == "goaway"
        assert draining.result(60)


def test_open_calls_hold_the_goaway_back():
    """While a call waits, others of its connection are answered."""
    limits = ServerLimits(linger_s=SECONDS_MAX, quiet_s=0.1)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Hold"))
        assert eventually(lambda: len(world.handlers.held) == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        time.sleep(5 * limits.quiet_s)
        client.send(client.call(3, "/t.T/Echo"))
        assert eventually(lambda: world.server.counters.calls_total == 2)
        world.run(lambda: world.handlers.held[0].ok(b""))
        assert list(ends(client)) == [(3, "0"), (1, "0"), ("goaway", 3)]
        assert draining.result(60)
