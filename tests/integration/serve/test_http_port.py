"""The HTTP port over real sockets: pages, refusals, slow and greedy clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading

import httpx
import pytest
from starlette.responses import Response
from starlette.routing import Route

from frazil.config import ServeSettings
from frazil.errors import Closed
from frazil.serve.auth.files import server_context
from frazil.serve.http import (
    BODY_BYTES_MAX,
    HttpLimits,
    HttpServer,
    Stage,
    health_route,
    page_route,
    read_json,
    text,
)
from frazil.serve.listening import address_of, bind
from tests.integration.serve.consuming_world import until
from tests.unit.serve.auth.certificates import CERTIFICATE, write_certificate

HOST = "127.0.0.1"
SECONDS_MAX = 30
QUICK = HttpLimits(connections_max=4, request_s=0.5, answer_s=1.0)
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /calls HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class World:
    """A server with a few pages, and plain connections to it."""

    def __init__(self, limits=QUICK, refusal=lambda request: None, context=None):
        self.problem = None
        self.threads = []
        self.may_answer = threading.Event()
        self.writers = []
        self.bodies = []
        self.context = context
        pages = {"/metrics": self._metrics, "/large": lambda: (b"x" * (16 << 20), "text/plain")}
        pages |= {"/closed": self._closed, "/held": self._held, "/bug": lambda: 1 / 0}
        self.server = HttpServer(
            [
                health_route("/healthz", lambda: None),
                health_route("/readyz", lambda: self.problem),
                Route("/calls", self._call, methods=["POST"]),
                *(page_route(path, page, refusal) for path, page in pages.items()),
            ],
            limits,
        )

    def _metrics(self):
        self.threads.append(threading.current_thread())
        return "m 1\n", "text/plain"

    def _held(self):
        assert self.may_answer.wait(SECONDS_MAX)
        return "held\n", "text/plain"

    def _closed(self):
        raise Closed("engine is closed", path="/secret/place")

    async def _call(self, request):
        if request.headers.get("authorization") == "Bearer x":
            return text(401, "credentials are not valid")
        body = await read_json(request)
        if not isinstance(body, bytes):
            return text(*body)
        self.bodies.append(body)
        return Response(body)

    async def __aenter__(self):
        listener = bind(HOST, 0, setting="serve.http_port")
        self.port = address_of(listener).port
        await self.server.start_on(listener, self.context)
        return self

    async def __aexit__(self, *_):
        await self.server.close()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def connect(self, source=HOST):
        """Return a plain connection, which is closed at the end."""
        reader, writer = await asyncio.open_connection(HOST, self.port, local_addr=(source, 0))
        self.writers.append(writer)
        return reader, writer

    async def raw(self, data, *, timeout_s=SECONDS_MAX):
        """Send bytes and return all that comes back."""
        reader, writer = await self.connect()
        writer.write(data)
        try:
            return await asyncio.wait_for(reader.read(), timeout_s)
        except ConnectionError:
            return b""

    async def get(self, path, **fields):
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://localhost:{self.port}{path}", headers=fields)


def running(work, *options, **named):
    async def main():
        async with World(*options, **named) as world:
            await work(world)

    asyncio.run(main())


def test_pages_are_served_to_a_real_client():
    """Health, readiness with its problem, and metrics from a thread; an unknown path is 404."""

    async def work(world):
        found = await world.get("/healthz")
        assert found.text == "ok\n"
        assert found.headers["cache-control"] == "no-store"
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["connection"] == "close"
        assert "server" not in found.headers
        assert (await world.get("/readyz")).status_code == 200
        world.problem = "recovering"
        found = await world.get("/readyz")
        assert (found.status_code, found.text) == (503, "recovering\n")
        assert (await world.get("/metrics?x=y")).text == "m 1\n"
        assert world.threads[0] is not threading.current_thread()
        assert (await world.get("/other")).status_code == 404
        assert (world.server.requests, world.server.refusals) == (4, 1)
        assert len((await world.get("/large")).content) == 16 << 20

    running(work, HttpLimits())


def test_a_page_asks_who_comes():
    """Metrics need the header that the refusal accepts; health does not."""

    def refusal(request):
        return None if request.headers.get("authorization") == "Bearer k" else (401, "who are you")

    async def work(world):
        assert (await world.get("/metrics")).status_code == 401
        assert (await world.get("/metrics", Authorization="Bearer x")).status_code == 401
        assert (await world.get("/metrics", Authorization="Bearer k")).status_code == 200
        assert (await world.get("/healthz")).status_code == 200

    running(work, refusal=refusal)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"PUT /calls HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 100_000, b"400"),
        (b"x" * 100_000, b"400"),
        (GET[:-2] + b"Authorization: a\r\nAuthorization: b\r\n\r\n", b"400"),
        (POST + b"\r\n", b"400"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"400"),
        (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", b"400"),
        (POST + b"Content-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1), b"413"),
        (POST.replace(b"application/json", b"text/plain") + b"Content-Length: 2\r\n\r\n{}", b"415"),
        (POST + b"Authorization: Bearer x\r\nContent-Length: 2\r\n\r\n", b"401"),
    ],
)
def test_what_is_refused_gets_its_status(data, status):
    """Wrong, ambiguous and too large requests are answered and the connection is closed."""

    async def work(world):
        found = await world.raw(data)
        assert found.startswith(b"HTTP/1.1 " + status)
        assert world.bodies == []
        assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")

    running(work)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, b"200") for host in ("localhost", "LOCALHOST.:80", "127.0.0.1:9", "[::1]:9")),
        *((host, b"421") for host in ("evil.example", "10.0.0.1", "localhost.evil", "[::2]", "")),
    ],
)
def test_on_loopback_a_request_names_this_machine(host, status):
    """A page in a browser cannot reach the port under a name of its own."""

    async def work(world):
        found = await world.raw(GET.replace(b"localhost", host.encode()))
        assert found.startswith(b"HTTP/1.1 " + status)

    running(work)


@pytest.mark.parametrize("data", [b"", b"GET /hea", POST + b"Content-Length: 9\r\n\r\n{"])
def test_requests_that_never_come_are_closed(data):
    """Half a head, or half a body, does not hold a connection; others are served meanwhile."""

    async def work(world):
        late = asyncio.ensure_future(world.raw(data))
        assert (await world.raw(POST + b"Content-Length: 2\r\n\r\n{}")).endswith(b"{}")
        assert await late == b""
        assert world.server.cut_off == 1

    running(work)


def test_the_oldest_that_has_not_asked_makes_way():
    """Half a request, or none, keeps no client out; the connections stay as many as are allowed."""

    async def work(world):
        held = [await world.connect() for _ in range(4)]
        for _, writer in held:
            writer.write(GET[:20])
        for _ in range(6):
            assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")
            assert len(world.server.connections) <= 4
            await world.connect()
        assert world.server.cut_off >= 4
        assert world.server.refusals == 0

    running(work, HttpLimits(connections_max=4))


def test_one_address_leaves_room_for_others():
    """Its own connections that have not asked are closed, and no other client's."""

    async def work(world):
        reader, writer = await world.connect("127.0.0.2")
        for _ in range(40):
            await world.connect()
        await until(lambda: world.server.cut_off == 37)
        assert len(world.server.connections) == 4
        writer.write(GET)
        answer = await asyncio.wait_for(reader.read(), SECONDS_MAX)
        assert answer.startswith(b"HTTP/1.1 200")

    running(work, HttpLimits(connections_max=20, client_connections_max=3))


def test_a_client_that_is_being_answered_is_not_cut_off():
    """When all wait for their pages one more is refused, and they get them."""

    async def work(world):
        waiting = [await world.connect() for _ in range(2)]
        for _, writer in waiting:
            writer.write(GET.replace(b"healthz", b"held"))
        await until(
            lambda: sum(each.stage is Stage.WAITS for each in world.server.connections) == 2
        )
        assert await world.raw(GET) == b""
        assert world.server.refusals == 1
        world.may_answer.set()
        for reader, _ in waiting:
            assert (await asyncio.wait_for(reader.read(), SECONDS_MAX)).endswith(b"held\n")

    running(work, HttpLimits(connections_max=2))


def test_a_client_that_does_not_read_is_cut_off():
    """A large answer that is not read is given up, and the next client is served."""

    async def work(world):
        _, writer = await world.connect()
        writer.write(GET.replace(b"healthz", b"large"))
        await until(lambda: world.server.cut_off == 1)
        assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")

    running(work)


def test_an_error_of_a_page_does_not_show():
    """An engine that is closed is 503 without its text; a bug is 500."""

    async def work(world):
        found = await world.get("/closed")
        assert found.status_code == 503
        assert "secret" not in found.text
        found = await world.get("/bug")
        assert (found.status_code, found.text) == (500, "internal error\n")
        assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")

    running(work)


def test_an_answer_that_takes_too_long_is_given_up():
    """Its client gets 503, and others are served meanwhile."""

    async def work(world):
        held = asyncio.ensure_future(world.raw(GET.replace(b"healthz", b"held")))
        assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")
        assert (await held).startswith(b"HTTP/1.1 503")
        world.may_answer.set()

    running(work)


def test_the_port_speaks_tls(tmp_path):
    """With a context the same pages come over TLS, and plain text gets nothing."""
    certificate, key = write_certificate(tmp_path)
    settings = ServeSettings(tls_certificate_file=certificate, tls_key_file=key)
    trusted = ssl.create_default_context(cadata=CERTIFICATE)

    async def work(world):
        async with httpx.AsyncClient(verify=trusted, trust_env=False) as client:
            found = await client.get(f"https://localhost:{world.port}/healthz")
        assert found.text == "ok\n"
        assert b"HTTP" not in await world.raw(GET)

    running(work, context=server_context(settings, protocols=["http/1.1"]))


def test_closing_cuts_off_connections():
    """A client in the middle of its request does not hold up the end."""

    async def work(world):
        reader, writer = await world.connect()
        writer.write(b"GET /he")
        await until(lambda: world.server.connections)
        await asyncio.wait_for(world.server.close(), SECONDS_MAX)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        with pytest.raises(OSError, match=r"refused|Connect"):
            await world.connect()

    running(work, HttpLimits())
