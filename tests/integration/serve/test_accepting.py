"""Connections are counted from their first packet on, also those whose handshake never ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import grpc
import pytest

from frazil.serve.accepting import Acceptor
from frazil.serve.auth.connections import ConnectionCounts
from frazil.serve.grpc.router import Router, Unary
from frazil.serve.grpc.server import Server
from frazil.serve.h2.limits import ServerLimits
from tests.unit.serve.auth.certificates import CERTIFICATE, write_certificate

pytestmark = pytest.mark.integration
SECONDS_MAX = 30


async def eventually(condition):
    """Wait until something is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not condition():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def servers(tmp_path, limits, counts=None, *, number=1):
    """Run TLS servers that count together."""
    certificate, key = write_certificate(tmp_path)
    found = []
    for _ in range(number):
        router = Router({"/t.T/Echo": Unary(lambda call, message: call.ok(message))})
        server = Server(router, limits, connections=counts)
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
    """Silent peers take the places there are, more are closed, and after a time others connect."""

    async def scene():
        limits = ServerLimits(connections_max=3, handshake_s=1.0, tick_s=0.05)
        async with servers(tmp_path, limits) as [(server, port)]:
            silent = [connect(port) for _ in range(3)]
            await eventually(lambda: server.counters.connections == 3)
            with connect(port) as beyond:
                assert await asyncio.to_thread(beyond.recv, 1) == b""
            assert server.counters.connections_refused_total == 1
            await eventually(lambda: server.counters.connections == 0)
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
            await eventually(lambda: server.counters.connections_failed_total == 3)
            assert server.counters.connections == 0
            assert await echo(port) == b"hello"

    asyncio.run(scene())


def test_one_address_has_its_share_of_all_ports(tmp_path):
    """Connections to two servers count together, and a closed one makes room."""

    async def scene():
        counts = ConnectionCounts(client_max=2)
        limits = ServerLimits(handshake_s=60.0)
        async with servers(tmp_path, limits, counts, number=2) as [(one, port), (two, other)]:
            first, second = connect(port), connect(other)
            await eventually(lambda: one.counters.connections == two.counters.connections == 1)
            for each in (port, other):
                with connect(each) as beyond:
                    assert await asyncio.to_thread(beyond.recv, 1) == b""
            assert counts.refusals == 2
            first.close()
            await eventually(lambda: one.counters.connections == 0)
            assert await echo(other) == b"hello"
            second.close()
        assert len(counts) == 0

    asyncio.run(scene())


def test_handshakes_under_way_do_not_hold_up_the_end(tmp_path):
    """A server that drains gives up who is not connected yet."""

    async def scene():
        limits = ServerLimits(handshake_s=60.0)
        async with servers(tmp_path, limits) as [(server, port)]:
            with connect(port) as silent:
                await eventually(lambda: server.counters.connections == 1)
                assert await asyncio.wait_for(server.drain(60.0), SECONDS_MAX)
                assert await asyncio.to_thread(silent.recv, 1) == b""

    asyncio.run(scene())


def test_answers_are_sent_at_once():
    """No accepted connection waits for an acknowledgement before it sends a small answer."""

    async def main():
        found = asyncio.Queue()

        class Looking(asyncio.Protocol):
            def connection_made(self, transport):
                connection = transport.get_extra_info("socket")
                found.put_nowait(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        acceptor = Acceptor(
            listener,
            make=lambda _peer: Looking(),
            failed=lambda _protocol: None,
            ssl_context=None,
            handshake_s=SECONDS_MAX,
        )
        try:
            with connect(port):
                assert await asyncio.wait_for(found.get(), SECONDS_MAX)
        finally:
            acceptor.close()

    asyncio.run(main())
