"""The HTTP port: `/healthz`, `/readyz`, `/metrics`, and calls of administration as JSON.

starlette and uvicorn implement the protocol. This module limits clients (connections, bytes, time).
It answers only requests with this machine's host name while the port is on loopback. It accepts
only declared JSON, which a page of another site in a browser cannot send.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import re
from typing import TYPE_CHECKING, Final

import attrs
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, Router
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from frazil.config import is_loopback
from frazil.errors import FrazilError, codes_of
from frazil.serve.auth.guard import client_of
from frazil.serve.listening import BACKLOG, address_of
from frazil.telemetry import warn

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from starlette.requests import Request
    from starlette.types import Message, Receive, Scope, Send

__all__ = [
    "HttpLimits",
    "HttpServer",
    "Refusal",
    "health_route",
    "page_route",
    "read_json",
    "text",
]

Refusal = tuple[int, str]
"""A status and its reason."""
BODY_BYTES_MAX: Final = 64 << 10
_HEADERS: Final = [
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
]
_ONCE: Final = (b"host", b"authorization", b"content-length", b"content-type")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::[0-9]{1,5})?")


@attrs.frozen
class HttpLimits:
    """The limits for clients of the HTTP port."""

    connections_max: int = 64
    client_connections_max: int = 16
    """Per address; a further one replaces its oldest idle connection."""
    head_bytes_max: int = 8 << 10
    request_s: float = 5.0
    """From the connection to the end of the request."""
    answer_s: float = 30.0
    """From there until the client has read the answer."""
    handshake_s: float = 5.0


class Stage(enum.IntEnum):
    """The phase of a connection; at a limit connections in a lower phase are closed first."""

    ASKS = 0
    """Its request is not complete."""
    READS = 1
    """All of the answer has been written."""
    WAITS = 2
    """The answer is being made."""


class HttpServer:
    """Serves routes of starlette on one socket. It belongs to the event loop's thread.

    Args:
        routes: paths and their handlers; a handler raises `FrazilError`s and returns a response.
        limits: the limits for clients.
    """

    def __init__(self, routes: list[Route], limits: HttpLimits | None = None) -> None:
        self.limits = HttpLimits() if limits is None else limits
        self.requests = 0
        self.refusals = 0
        self.cut_off = 0
        self.config = Config(
            self._answer,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            # Its texts may quote a client's input.
            log_level="critical",
            access_log=False,
            h11_max_incomplete_event_size=self.limits.head_bytes_max,
        )
        self.state = ServerState()
        self.state.default_headers = list(_HEADERS)
        self.connections: dict[_Connection, None] = {}
        """The oldest first."""
        self._app = Router(routes)
        self._is_loopback = True
        self._server: asyncio.Server | None = None

    async def start_on(
        self, listener: socket.socket, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Listen on a socket that is bound already; the server owns it from now on."""
        self._is_loopback = is_loopback(address_of(listener).host)
        self.config.load()
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _Connection(self),
            sock=listener,
            ssl=ssl_context,
            ssl_handshake_timeout=None if ssl_context is None else self.limits.handshake_s,
            backlog=BACKLOG,
        )

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.transport.abort()
        for task in list(self.state.tasks):
            task.cancel()
        await asyncio.gather(*self.state.tasks, return_exceptions=True)

    def make_room(self, client: str) -> bool:
        """Return whether another connection of an address may stay; an idle one may make way."""
        rivals = [each for each in self.connections if each.client_key == client]
        if len(rivals) < self.limits.client_connections_max:
            rivals = list(self.connections)
            if len(rivals) < self.limits.connections_max:
                return True
        idlest = min(rivals, key=lambda each: each.stage)
        if idlest.stage is Stage.WAITS:
            self.refusals += 1
            return False
        idlest.cut()
        return True

    # -- requests --------------------------------------------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def counted(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if 400 <= message["status"] < 500:
                    self.refusals += 1
                else:
                    self.requests += 1
            await send(message)

        refusal = self._refusal(scope)
        try:
            if refusal is None:
                async with asyncio.timeout(self.limits.answer_s):
                    await self._app(scope, receive, counted)
                return
        except TimeoutError:
            refusal = 503, "the answer took too long; it may have been done"
        except FrazilError as error:
            # The text may name files; the log has it.
            warn("http_page_failed", path=scope["path"], error=error)
            refusal = (503 if codes_of(error).http == 503 else 500), "not available"
        except Exception as error:  # noqa: BLE001 - a bug: its request gets a status, others go on
            warn("http_request_failed", path=scope["path"], error=type(error).__name__)
            refusal = 500, "internal error"
        if not begun:
            await text(*refusal)(scope, receive, counted)

    def _refusal(self, scope: Scope) -> Refusal | None:
        names = [name for name, _ in scope["headers"]]
        # Two of these could be read differently by a proxy in between.
        if any(names.count(name) > 1 for name in _ONCE):
            return 400, "a field is given twice"
        host = dict(scope["headers"]).get(b"host")
        if (
            self._is_loopback
            and host is not None
            and not _names_this_machine(host.decode("latin-1"))
        ):
            # Otherwise a web page could reach the port under its own host name (DNS rebinding).
            return 421, "the host is not this machine"
        return None


class _Connection(H11Protocol):
    """uvicorn's connection, with a limit on their number and on time."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.config, server.state, {}, asyncio.get_running_loop())
        self.client_key = ""
        self._server = server
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stage(self) -> Stage:
        """The phase of the connection."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.more_body:
            return Stage.ASKS
        return Stage.READS if cycle.response_complete else Stage.WAITS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.client_key = client_of(str(peer[0])) if peer else ""
        if not self._server.make_room(self.client_key):
            transport.abort()
            return
        self._server.connections[self] = None
        limits = self._server.limits
        self._timer = self.loop.call_later(limits.request_s, self._expire, limits.answer_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def cut(self) -> None:
        """Close the connection at once."""
        self._server.cut_off += 1
        self._server.connections.pop(self, None)
        self.transport.abort()

    def _expire(self, answer_s: float) -> None:
        """Close the connection: its request, or later its answer, took too long."""
        if answer_s and self.stage is not Stage.ASKS:
            self._timer = self.loop.call_later(answer_s, self._expire, 0)
        else:
            self.cut()


def text(status: int, line: str) -> PlainTextResponse:
    """Return an answer of one line."""
    return PlainTextResponse(f"{line}\n", status)


def health_route(path: str, problem: Callable[[], str | None]) -> Route:
    """Return a page that is 200 `ok`, or 503 with the problem."""

    async def answer(_request: Request) -> Response:
        found = problem()
        return text(200, "ok") if found is None else text(503, found)

    return Route(path, answer)


def page_route(
    path: str,
    page: Callable[[], tuple[str, str]],
    refusal: Callable[[Request], Refusal | None],
) -> Route:
    """Return a page made in a thread, one at a time, for callers that are not refused."""
    one_at_a_time = asyncio.Lock()

    async def answer(request: Request) -> Response:
        refused = refusal(request)
        if refused is not None:
            return text(*refused)
        async with one_at_a_time:
            body, kind = await asyncio.to_thread(page)
        return Response(body, media_type=kind)

    return Route(path, answer)


async def read_json(request: Request) -> bytes | Refusal:
    """Return the body of a request, or the refusal; its content type must be JSON."""
    if (
        request.headers.get("content-type", "").partition(";")[0].strip().lower()
        != "application/json"
    ):
        return 415, "the body must be JSON, and say so"
    length = request.headers.get("content-length", "")
    if not length.isdigit() or length == "0":
        return 400, "the length of the body is missing"
    if int(length) > BODY_BYTES_MAX:
        return 413, "the body is too large"
    return await request.body()


def _names_this_machine(host: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = found[1].strip("[]").lower().removesuffix(".")
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
