"""The HTTP port over real sockets: pages, refusals, slow and greedy clients."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading

import httpx
import pytest

from frazil.config import ServeSettings
from frazil.errors import Closed
from frazil.serve.auth.tls import server_context
from frazil.serve.http import HttpLimits, HttpServer, Page, health_page
from frazil.serve.http_request import Reply, text_reply
from tests.unit.serve.auth.certificates import CERTIFICATE, write_certificate

HOST = "127.0.0.1"
QUICK = HttpLimits(connections_max=4, head_s=0.3, answer_s=1.0, linger_s=0.2)
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


SECONDS_MAX = 30


async def wait_until(check):
    """Wait until something is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not check():  # noqa: ASYNC110 - nobody tells when
            await asyncio.sleep(0.01)


class World:
    """A server with a few pages, and plain connections to it."""

    def __init__(self, limits=QUICK, refusal=None):
        self.problem = None
        self.threads = []
        self.may_answer = threading.Event()
        self.writers = []
        pages = {
            "/healthz": health_page(lambda: None),
            "/readyz": health_page(lambda: self.problem),
            "/metrics": Page(self._metrics, threaded=True),
            "/large": Page(lambda: Reply(200, b"x" * (16 << 20)), is_open=True),
            "/closed": Page(self._closed, is_open=True),
            "/held": Page(self._held, threaded=True, is_open=True),
            "/bug": Page(lambda: text_reply(999, "no such status"), is_open=True),
        }
        self.server = HttpServer(pages, limits=limits, refusal=refusal)

    def _metrics(self):
        self.threads.append(threading.current_thread())
        return Reply(200, b"m 1\n")

    def _held(self):
        assert self.may_answer.wait(SECONDS_MAX)
        return text_reply(200, "held")

    def _closed(self):
        raise Closed("engine is closed", path="/secret/place")

    async def __aenter__(self):
        _, self.port = await self.server.start(HOST, 0)
        return self

    async def __aexit__(self, *_):
        await self.server.close()
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def connect(self):
        """Return a plain connection, which is closed at the end."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        self.writers.append(writer)
        return reader, writer

    async def raw(self, data, *, timeout_s=5.0):
        """Send bytes and return all that comes back."""
        reader, writer = await self.connect()
        writer.write(data)
        return await asyncio.wait_for(reader.read(), timeout_s)

    async def get(self, path, **fields):
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.get(f"http://localhost:{self.port}{path}", headers=fields)


def test_pages_are_served_to_a_real_client():
    """Health, readiness with its problem, and metrics from a thread; an unknown path is 404."""

    async def run():
        async with World() as world:
            assert (await world.get("/healthz")).text == "ok\n"
            assert (await world.get("/readyz")).status_code == 200
            world.problem = "recovering"
            found = await world.get("/readyz")
            assert (found.status_code, found.text) == (503, "recovering\n")
            assert (await world.get("/metrics?x=y")).text == "m 1\n"
            assert world.threads[0] is not threading.current_thread()
            assert (await world.get("/other")).status_code == 404
            assert (await world.get("/../healthz")).status_code in {200, 404}
            assert world.server.requests == 5

    asyncio.run(run())


def test_a_page_that_is_not_open_asks_who_comes():
    """Metrics need the header that nothing speaks against; health does not."""

    def refusal(fields):
        return None if fields.get("authorization") == "Bearer k" else (401, "who are you")

    async def run():
        async with World(refusal=refusal) as world:
            assert (await world.get("/metrics")).status_code == 401
            assert (await world.get("/metrics", Authorization="Bearer x")).status_code == 401
            assert (await world.get("/metrics", Authorization="Bearer k")).status_code == 200
            assert (await world.get("/healthz")).status_code == 200

    asyncio.run(run())


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"POST /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", b"405"),
        (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\n\r\n", b"421"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 9000 + b"\r\nHost: localhost\r\n\r\n", b"431"),
        (b"x" * 100_000, b"431"),
        (b"GET /hea", b"408"),
        (b"", b"408"),
    ],
)
def test_what_is_refused_gets_its_status(data, status):
    """Wrong, foreign, too large and too slow requests are answered and the connection is closed."""

    async def run():
        async with World() as world:
            found = await world.raw(data)
            assert found.startswith(b"HTTP/1.1 " + status)
            assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")

    asyncio.run(run())


def test_bytes_that_trickle_in_do_not_hold_a_connection():
    """A client that sends a byte now and then is answered 408 when the time for the head is over."""

    async def run():
        async with World() as world:
            reader, writer = await world.connect()
            answer = asyncio.ensure_future(reader.read())
            # A byte that gave the head more time would go on for ever: too few for another limit.
            for _ in range(HttpLimits().head_bytes_max // 2):
                writer.write(b"G")
                await asyncio.wait([answer], timeout=0.02)
                if answer.done():
                    break
            assert answer.done()
            assert answer.result().startswith(b"HTTP/1.1 408")

    asyncio.run(run())


def test_the_oldest_that_has_not_asked_makes_way():
    """Half a request, or none, keeps nobody out; the connections stay as many as are allowed."""

    async def run():
        async with World(HttpLimits(connections_max=4)) as world:
            held = [await world.connect() for _ in range(4)]
            for _, writer in held:
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            await asyncio.sleep(0.05)
            for _ in range(6):
                assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")
                assert len(world.server._visits) <= 4
                await world.connect()
            assert world.server.cut_off >= 4
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(held[0][0].read(), SECONDS_MAX) == b""
            assert world.server.refusals == 0

    asyncio.run(run())


def test_one_address_leaves_room_for_others():
    """It cuts off its own that have not asked, however many there are, and nobody else's."""

    async def run():
        limits = HttpLimits(connections_max=20, client_connections_max=3)
        async with World(limits) as world:
            other = await asyncio.open_connection(HOST, world.port, local_addr=("127.0.0.2", 0))
            world.writers.append(other[1])
            for _ in range(40):
                _, writer = await world.connect()
                writer.write(b"GET ")
            await wait_until(lambda: world.server.cut_off == 37)
            assert len(world.server._visits) == 4
            other[1].write(GET)
            assert (await asyncio.wait_for(other[0].read(), SECONDS_MAX)).startswith(
                b"HTTP/1.1 200"
            )

    asyncio.run(run())


def test_who_is_being_answered_is_not_cut_off():
    """When all wait for their pages one more is refused, and they get them."""

    async def run():
        async with World(HttpLimits(connections_max=2)) as world:
            waiting = [await world.connect() for _ in range(2)]
            for _, writer in waiting:
                writer.write(b"GET /held HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await wait_until(lambda: world.server.requests == 2)
            with contextlib.suppress(ConnectionError):
                assert await world.raw(GET) == b""
            assert world.server.refusals == 1
            world.may_answer.set()
            for reader, _ in waiting:
                data = await asyncio.wait_for(reader.read(), SECONDS_MAX)
                assert data.endswith(b"held\n")

    asyncio.run(run())


def test_handshakes_that_never_end_make_way(tmp_path):
    """Over TLS, too: who connects and says nothing is cut off for whoever comes."""
    certificate, key = write_certificate(tmp_path)
    settings = ServeSettings(tls_certificate_file=certificate, tls_key_file=key)

    async def run():
        world = World(HttpLimits(connections_max=3, handshake_s=60.0))
        context = server_context(settings, protocols=["http/1.1"])
        _, world.port = await world.server.start(HOST, 0, context)
        silent = [await world.connect() for _ in range(3)]
        client_context = ssl.create_default_context(cadata=CERTIFICATE)
        async with httpx.AsyncClient(verify=client_context, trust_env=False) as client:
            found = await client.get(f"https://localhost:{world.port}/healthz")
        assert found.text == "ok\n"
        assert world.server.cut_off == 1
        with contextlib.suppress(ConnectionError):
            assert await asyncio.wait_for(silent[0][0].read(), SECONDS_MAX) == b""
        await world.__aexit__()

    asyncio.run(run())


def test_a_client_that_does_not_read_is_cut_off():
    """A large answer that nobody takes is given up, and the next client is served."""

    async def run():
        async with World() as world:
            reader, writer = await world.connect()
            writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(QUICK.answer_s + 0.5)
            assert world.server.cut_off == 1
            assert not world.server._tasks
            assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")
            assert not reader.at_eof()

    asyncio.run(run())


def test_a_large_answer_arrives_whole():
    """Sixteen megabytes come complete to a client that reads."""

    async def run():
        async with World(HttpLimits()) as world:
            assert len((await world.get("/large")).content) == 16 << 20

    asyncio.run(run())


def test_a_slow_reader_gets_its_answer():
    """Who begins to read late, but in time, gets all of it: the short wait is for after the end."""
    limits = HttpLimits(answer_s=10.0, linger_s=0.1)

    async def run():
        async with World(limits) as world:
            reader, writer = await world.connect()
            writer.write(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0.6)
            data = await asyncio.wait_for(reader.read(), 10)
            assert len(data.partition(b"\r\n\r\n")[2]) == 16 << 20

    asyncio.run(run())


def test_an_error_behind_a_page_does_not_show():
    """An engine that is closed is 503 without its text; a bug cuts that connection alone."""

    async def run():
        async with World() as world:
            found = await world.get("/closed")
            assert found.status_code == 503
            assert "secret" not in found.text
            data = await world.raw(b"GET /bug HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert data == b""
            assert world.server.cut_off == 1
            assert (await world.raw(GET)).startswith(b"HTTP/1.1 200")

    asyncio.run(run())


def test_the_port_speaks_tls(tmp_path):
    """With a context the same pages come over TLS, and plain text gets nothing."""
    certificate, key = write_certificate(tmp_path)
    settings = ServeSettings(tls_certificate_file=certificate, tls_key_file=key)

    async def run():
        world = World()
        context = server_context(settings, protocols=["http/1.1"])
        _, world.port = await world.server.start(HOST, 0, context)
        client_context = ssl.create_default_context(cadata=CERTIFICATE)
        async with httpx.AsyncClient(verify=client_context, trust_env=False) as client:
            found = await client.get(f"https://localhost:{world.port}/healthz")
        assert found.text == "ok\n"
        try:
            data = await world.raw(GET)
        except ConnectionError:
            data = b""
        assert b"HTTP" not in data
        await world.__aexit__()

    asyncio.run(run())


def test_closing_cuts_off_who_is_connected():
    """A client in the middle of its request does not hold up the end."""

    async def run():
        world = World(HttpLimits())
        await world.__aenter__()
        reader, writer = await world.connect()
        writer.write(b"GET /he")
        await asyncio.sleep(0.05)
        await asyncio.wait_for(world.server.close(), 2)
        with pytest.raises(ConnectionError):
            assert await reader.read() == b""
            raise ConnectionResetError
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection(HOST, world.port)
        await world.__aexit__()

    asyncio.run(run())
