"""A server that goes away lets its calls end, tells its clients, and keeps its deadline."""

from __future__ import annotations

import asyncio
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


def test_streams_are_told_that_the_server_goes():
    """A consumer's stream ends with UNAVAILABLE, so that it looks for another server."""
    with serving() as world, world.channel() as channel:
        stream = channel.unary_stream("/t.T/Feed")(b"", timeout=60)
        next(stream)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        with pytest.raises(grpc.RpcError) as caught:
            for _ in stream:
                pass
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert draining.result(60)
        assert world.handlers.cancelled == [b""]


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


def test_two_goaways_tell_a_client_that_asks_on_where_the_end_is():
    """A call on its way behind the first is answered; the second names the last one taken."""
    with serving(ServerLimits(linger_s=0.1)) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Hold"))
        assert eventually(lambda: len(world.handlers.held) == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        world.run(lambda: world.handlers.held.pop().ok(b""))
        sid, first = 1, None
        for kind, _, _, payload in client.frames():
            if kind == f.GOAWAY:
                first = payload
                break
            if kind == f.HEADERS:
                sid += 2
                client.send(client.call(sid, "/t.T/Echo"))
        assert int.from_bytes(first[:4]) == f.STREAM_LARGEST
        ping = client.wait(f.PING)
        client.send(client.call(sid + 2, "/t.T/Hold"), f.ping(ping, ack=True))
        second = client.wait(f.GOAWAY)
        assert int.from_bytes(second[:4]) == sid + 2
        assert len(world.handlers.held) == 1
        world.run(lambda: [call.ok(b"") for call in world.handlers.held])
        assert draining.result(60)
        assert client.wait_closed() is None


def test_a_client_is_refused_before_it_is_sent_away():
    """Who asks for another stream is refused; who asks again, when all have and the connection ends.

    To clients of Rust's hyper a GOAWAY that meets a call on its way is the end of their consumer.
    """
    # However slow this machine is; and it closes at once, not with a later tick.
    limits = ServerLimits(linger_s=SECONDS_MAX, tick_s=SECONDS_MAX)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Wait"), client.call(3, "/t.T/Wait"))
        assert eventually(lambda: world.server.counters.calls_total == 2)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        ended = []
        for kind, flags, sid, payload in client.frames():
            if kind == f.GOAWAY:
                assert len(ended) == 6
                last = int.from_bytes(payload[:4])
            elif kind == f.HEADERS and flags & f.END_STREAM:
                status = dict(client.decoder.decode(payload))["grpc-status"]
                ended.append((sid, status))
                if sid < 9:
                    time.sleep(5 * limits.quiet_s)
                    client.send(client.call(sid + 4, "/t.T/Wait"))
            elif kind == f.HEADERS:
                client.decoder.decode(payload)
        assert ended == [(sid, "14") for sid in (1, 3, 5, 7, 9, 11)]
        assert last == 11
        assert draining.result(60)


def test_who_is_never_quiet_is_refused_when_its_time_is_over():
    """What was held has its status, and what comes behind it as well."""
    limits = ServerLimits(linger_s=0.2, quiet_s=SECONDS_MAX, tick_s=SECONDS_MAX)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Echo"))
        assert eventually(lambda: world.server.counters.calls_total == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        assert eventually(lambda: world.server._gone is not None)
        client.send(client.call(3, "/t.T/Wait"))
        ended = {}
        for kind, flags, sid, payload in client.frames():
            if kind == f.PING:
                # Its answer is what tells the server that no call is on its way any more.
                ping = payload
                client.send(client.call(5, "/t.T/Wait"))
            elif kind == f.HEADERS:
                fields = dict(client.decoder.decode(payload))
                if flags & f.END_STREAM:
                    ended[sid] = fields["grpc-status"]
                if sid == 5:
                    client.send(f.ping(ping, ack=True))
        assert ended == {1: "0", 3: "14", 5: "14"}
        assert draining.result(60)


def test_open_calls_hold_the_goaway_back():
    """While one waits, others of its connection are answered; then its client has time to ask."""
    limits = ServerLimits(linger_s=0.5, quiet_s=SECONDS_MAX)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Hold"))
        assert eventually(lambda: len(world.handlers.held) == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        time.sleep(2 * limits.linger_s)
        client.send(client.call(3, "/t.T/Echo"))
        assert eventually(lambda: world.server.counters.calls_total == 2)
        world.run(lambda: world.handlers.held[0].ok(b""))
        found = []
        for kind, flags, sid, _ in client.frames():
            found.append((kind, sid))
            if (kind, sid) == (f.HEADERS, 1) and flags & f.END_STREAM:
                # Longer than the server looks away: it would have sent a GOAWAY by now.
                time.sleep(0.05)
                client.send(client.call(5, "/t.T/Echo"))
        assert (f.HEADERS, 3) in found
        assert found.index((f.HEADERS, 5)) < found.index((f.GOAWAY, 0))
        assert draining.result(60)


def test_a_held_call_whose_time_is_over_does_not_hide_one_under_way():
    """The client stays, and is answered, until the call is that it waits for."""
    limits = ServerLimits(linger_s=SECONDS_MAX, tick_s=0.05)
    with serving(limits) as world, RawClient(world) as client:
        client.send(client.call(1, "/t.T/Hold"))
        assert eventually(lambda: len(world.handlers.held) == 1)
        draining = asyncio.run_coroutine_threadsafe(world.server.drain(60), world.loop)
        assert eventually(lambda: world.server._gone is not None)
        client.send(client.call(3, "/t.T/Wait", **{"grpc-timeout": "50m"}))
        ended = client.wait(f.HEADERS)
        assert dict(client.decoder.decode(ended))["grpc-status"] == "4"
        time.sleep(10 * limits.quiet_s)
        client.send(client.call(5, "/t.T/Echo"))
        found = []
        for kind, flags, sid, _ in client.frames():
            found.append((kind, sid))
            if (kind, sid) == (f.HEADERS, 5) and flags & f.END_STREAM:
                world.run(lambda: world.handlers.held[0].ok(b""))
        assert found.index((f.HEADERS, 1)) < found.index((f.GOAWAY, 0))
        assert draining.result(60)


def test_a_client_that_never_answers_the_ping_does_not_hold_the_drain_up():
    """After a second it has had its round trip."""
    with serving() as world, RawClient(world):
        assert eventually(lambda: world.server.counters.connections == 1)
        # It would be over before the time is only because of the client.
        assert world.run(world.server.drain(10 * SECONDS_MAX))
