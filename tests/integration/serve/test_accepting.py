"""Connections are counted from their first packet on, also those whose handshake never ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import grpc
import pytest
from hpack import Encoder

from frazil.serve.grpc.router import Router, Unary
from frazil.serve.grpc.server import IDLE_S, ConnectionLimits, Server
from frazil.serve.h2 import frames as f
from frazil.serve.h2.limits import ServerLimits
from tests.integration.serve.consuming_world import until
from tests.unit.serve.auth.certificates import CERTIFICATE, write_certificate

pytestmark = pytest.mark.integration
SECONDS_MAX = 30


@contextlib.asynccontextmanager
async def servers(tmp_path, limits, counts=None, *, number=1):
    """Run TLS servers that count together."""
    certificate, key = write_certificate(tmp_path)
    found = []
    for _ in range(number):
        router = Router({"/t.T/Echo": Unary(lambda call, message: call.ok(message))})
        server = Server(router, limits, shared=counts)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        _, port = await server.start("127.0.0.1", 0, context)
        found.append((server, port))
    try:
        yield found
    finally:
        for server, _ in found:
            await server.drain(0.1)


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=SECONDS_MAX)


async def echo(port):
    """Return what a trusting client is answered."""
    credentials = grpc.ssl_channel_credentials(root_certificates=CERTIFICATE.encode())
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options) as channel:
        return await channel.unary_unary("/t.T/Echo")(b"hello", timeout=SECONDS_MAX)


def test_handshakes_that_never_end_are_counted_and_given_up(tmp_path):
    """Silent peers are bounded, the oldest is closed for a new one, and after a time all are."""

    async def scene():
        limits = ServerLimits(connections_max=3, handshake_s=1.0, tick_s=0.05)
        async with servers(tmp_path, limits) as [(server, port)]:
            silent = [connect(port) for _ in range(3)]
            await until(lambda: server.counters.connections == 3)
            silent.append(connect(port))
            assert await asyncio.to_thread(silent[0].recv, 1) == b""
            assert server.counters.connections_cut_total == 1
            await until(lambda: server.counters.connections == 0)
            assert server.counters.connections_failed_total == 3
            assert await echo(port) == b"hello"
            for each in silent:
                each.close()

    asyncio.run(scene())


def test_what_speaks_no_tls_leaves_nothing_behind(tmp_path):
    """Garbage and half a handshake end their own connection only."""

    async def scene():
        async with servers(tmp_path, ServerLimits(tick_s=0.05)) as [(server, port)]:
            for junk in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"\0" * 100):
                with connect(port) as client:
                    client.sendall(junk)
            await until(lambda: server.counters.connections_failed_total == 3)
            assert server.counters.connections == 0
            assert await echo(port) == b"hello"

    asyncio.run(scene())


def test_one_address_has_its_share_of_all_ports(tmp_path):
    """Connections to two servers count together; one more takes the place of the oldest."""

    async def scene():
        counts = ConnectionLimits(client_max=2, connections_max=99)
        limits = ServerLimits(handshake_s=60.0)
        async with servers(tmp_path, limits, counts, number=2) as [(one, port), (two, other)]:
            first, second = connect(port), connect(other)
            await until(lambda: one.counters.connections == two.counters.connections == 1)
            assert await echo(other) == b"hello"
            assert await asyncio.to_thread(first.recv, 1) == b""
            await until(lambda: two.counters.connections == 1)
            assert one.counters.connections == 0
            first.close()
            assert one.counters.connections_cut_total == 1
            second.close()
            await until(lambda: two.counters.connections == 0)
        assert len(counts) == 0

    asyncio.run(scene())


@contextlib.asynccontextmanager
async def plain_server(limits, counts=None):
    """Run a server without TLS."""
    held = []
    router = Router(
        {
            "/t.T/Echo": Unary(lambda call, message: call.ok(message)),
            "/t.T/Hold": Unary(lambda call, message: held.append(call)),
        }
    )
    server = Server(router, limits, shared=counts)
    _, port = await server.start("127.0.0.1", 0)
    try:
        yield server, port, held
    finally:
        await server.drain(0.1)


def greeted(port, source="127.0.0.1"):
    """Return a connection that has said hello and no more."""
    found = socket.create_connection(("127.0.0.1", port), SECONDS_MAX, source_address=(source, 0))
    found.sendall(f.PREFACE + f.settings({}))
    return found


def channel_to(port):
    return grpc.aio.insecure_channel(
        f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    )


def test_connections_that_are_in_use_are_not_evicted():
    """When every place has a call, or had one lately, the newcomer is refused."""

    async def scene():
        counts = ConnectionLimits(client_max=6, connections_max=2)
        async with (
            plain_server(ServerLimits(tick_s=0.05), counts) as (server, port, held),
            channel_to(port) as one,
            channel_to(port) as two,
        ):
            waiting = one.unary_unary("/t.T/Hold")(b"", timeout=SECONDS_MAX)
            assert await two.unary_unary("/t.T/Echo")(b"x", timeout=SECONDS_MAX) == b"x"
            await until(lambda: len(held) == 1)
            with connect(port) as beyond:
                assert await asyncio.to_thread(beyond.recv, 1) == b""
            assert server.counters.connections_refused_total == 1
            held[0].ok(b"y")
            assert await waiting == b"y"

    asyncio.run(scene())


def test_the_longest_without_a_call_makes_way():
    """Of connections that were used one is closed when it had no call for a minute, by the clock."""

    class Used:
        peer, is_used = "192.0.2.1:1", True

        def __init__(self, idle_s):
            self._idle_s = idle_s

        def idle_s(self):
            return self._idle_s

    class Evicting:
        def __init__(self):
            self.evicted = []

        def evict(self, connection):
            self.evicted.append(connection)
            counts.forget(connection)

    counts, server = ConnectionLimits(client_max=3, connections_max=9), Evicting()
    found = [Used(idle_s) for idle_s in (0.0, IDLE_S + 1, IDLE_S - 1)]
    assert all(counts.admit(each, server) for each in found)
    assert counts.admit(Used(0.0), server)
    assert server.evicted == [found[1]]
    assert not counts.admit(Used(0.0), server)
    assert len(counts) == 3


def test_a_connection_without_an_accepted_call_is_closed_when_it_must_have_one():
    """Refused calls do not help it; one that had a call stays."""

    async def scene():
        limits = ServerLimits(tick_s=0.05, first_call_s=0.3)
        async with plain_server(limits) as (server, port, _), channel_to(port) as channel:
            assert await channel.unary_unary("/t.T/Echo")(b"x", timeout=SECONDS_MAX) == b"x"
            silent, refused = greeted(port), greeted(port)
            fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t.T/Other")]
            block = Encoder().encode([*fields, (b"content-type", b"application/grpc")])
            refused.sendall(f.frame(f.HEADERS, f.END_HEADERS | f.END_STREAM, 1, block))
            for each in (silent, refused):
                while await asyncio.to_thread(each.recv, 1 << 16):
                    pass
                each.close()
            await until(lambda: server.counters.connections == 1)
            assert await channel.unary_unary("/t.T/Echo")(b"y", timeout=SECONDS_MAX) == b"y"
            assert server.counters.connections_total == 3

    asyncio.run(scene())


def test_handshakes_under_way_do_not_hold_up_the_end(tmp_path):
    """A server that drains gives up who is not connected yet."""

    async def scene():
        limits = ServerLimits(handshake_s=60.0)
        async with servers(tmp_path, limits) as [(server, port)]:
            with connect(port) as silent:
                await until(lambda: server.counters.connections == 1)
                assert await asyncio.wait_for(server.drain(60.0), SECONDS_MAX)
                assert await asyncio.to_thread(silent.recv, 1) == b""

    asyncio.run(scene())


def test_answers_are_sent_at_once():
    """No accepted connection waits for an acknowledgement before it sends a small answer."""

    async def scene():
        async with plain_server(ServerLimits()) as (server, port, _):
            with connect(port):
                await until(lambda: any(each.transport for each in server._connections))
                [found] = server._connections
                peer = found.transport.get_extra_info("socket")
                assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    asyncio.run(scene())
