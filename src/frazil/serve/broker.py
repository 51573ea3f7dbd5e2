"""The broker: an open engine, and the three ports through which others use it.

It starts from the inside out and stops from the outside in. Health is served from the first
moment on: a long recovery is no process that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs
from starlette.routing import Route

from frazil.clock import SystemClock
from frazil.engine import Engine
from frazil.errors import FrazilError, Unavailable
from frazil.fs import RealFileSystem
from frazil.serve.announcing import announce, withdraw
from frazil.serve.auth import (
    ANYTHING,
    Need,
    announce_exposure,
    load_certificate,
    load_credentials,
    load_guard,
    server_context,
)
from frazil.serve.danube.routes import Services
from frazil.serve.danube.rpcs import needs_of
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import ConnectionLimits, Server
from frazil.serve.h2.limits import ServerLimits
from frazil.serve.http import HttpServer, health_route, page_route
from frazil.serve.http_calls import PATH, HttpCaller, answer_call
from frazil.serve.listening import Address, address_of, bind, listen
from frazil.serve.metrics import CONTENT_TYPE, metrics_text, port_facts
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from starlette.requests import Request

    from frazil.config import ServeSettings, Settings
    from frazil.serve.auth import Guard

__all__ = ["Addresses", "Broker", "connection_limits", "server_limits"]

State = Literal["starting", "ready", "stopping"]
FACTS_S: Final = 10.0
"""The time limit for reading the loop's counters."""
DRAIN_S: Final = 10.0
"""The time that running calls get to end when the broker stops."""
REQUEST_BYTES_BESIDE: Final = 3 << 20
"""A request may be so much larger than the largest message: key, attributes, schemas."""
CLIENT_CONNECTIONS_MAX: Final = 500
"""From one address to one port."""
ADMIN_CONNECTIONS_MAX: Final = 100
"""A fifth of all connections, at most so many, is reserved for administration."""
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - not bound, but replaced in URLs


@attrs.frozen
class Addresses:
    """The addresses that a broker listens on."""

    data: Address
    admin: Address
    http: Address
    url: str
    """The URL that lookups return."""
    tls: bool

    def facts(self) -> dict[str, str]:
        """Return them as URLs, for programs."""
        return {
            "url": self.data.url(tls=self.tls),
            "admin_url": self.admin.url(tls=self.tls),
            "http_url": self.http.url(tls=self.tls),
            "advertised_url": self.url,
        }


HANDSHAKE_S: Final = 5.0
"""The time limit for setting up a connection; with authentication, also for its first call."""
KEEPALIVE_S: Final = 20.0
"""The interval of pings to a silent connection."""


def server_limits(settings: Settings) -> ServerLimits:
    """Return the limits of one port for its peers."""
    usual = ServerLimits()
    bytes_max = settings.topics.message_bytes_max + REQUEST_BYTES_BESIDE
    return attrs.evolve(
        usual,
        connections_max=settings.serve.connections_max,
        message_bytes_max=bytes_max,
        # An allowed request must fit, in addition to the connection's other data.
        unfinished_bytes_max=max(usual.unfinished_bytes_max, 2 * bytes_max),
        header_bytes_max=8 << 10,
        handshake_s=HANDSHAKE_S,
        keepalive_s=KEEPALIVE_S,
    )


def connection_limits(settings: ServeSettings) -> tuple[ConnectionLimits, ConnectionLimits]:
    """Return the limits of clients and of administration, each with its own share."""
    total = settings.connections_max
    admin = max(1, min(ADMIN_CONNECTIONS_MAX, total // 5))
    data = max(1, total - admin)
    return (
        ConnectionLimits(client_max=min(CLIENT_CONNECTIONS_MAX, data), connections_max=data),
        ConnectionLimits(client_max=min(CLIENT_CONNECTIONS_MAX, admin), connections_max=admin),
    )


class Broker:
    """Serves one data directory. All methods belong to the event loop's thread; it starts once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.warnings: list[str] = []
        self.engine: Engine
        self.services: Services
        self.guard: Guard
        self.addresses: Addresses
        self._state: State = "starting"
        self._clock = SystemClock()
        self._started_s = self._clock.monotonic()
        self._loop = asyncio.get_running_loop()
        self._servers: dict[str, Server] = {}
        self._contexts: list[ssl.SSLContext] = []
        self._reloading = asyncio.Lock()
        self._http = HttpServer(
            [
                health_route("/healthz", self._failure),
                health_route("/readyz", self._problem),
                page_route(
                    "/metrics",
                    lambda: (metrics_text(self._facts()), CONTENT_TYPE),
                    self._page_refusal,
                ),
                Route(PATH, partial(answer_call, self), methods=["POST"]),
            ]
        )

    async def start(self) -> Addresses:
        """Open the engine and serve it; on return clients are served.

        Raises:
            Conflict: if another process has the directory, with its pid.
            InvalidRequest: if a certificate, key or access file cannot be used.
            Unavailable: if an address cannot be listened on.
        """
        serve = self.settings.serve
        self.warnings = announce_exposure(self.settings)
        h2 = server_context(serve, protocols=["h2"])
        page = server_context(serve, protocols=["http/1.1"])
        self._contexts = [context for context in (h2, page) if context is not None]
        if self.settings.auth.enabled:
            # Before anything is opened: faults in these files are reported at once.
            load_credentials(self.settings.auth)
        async with contextlib.AsyncExitStack() as undo:
            data, admin, http = await self._bind(undo)
            await self._http.start_on(http, page)
            undo.push_async_callback(self._http.close)

            def owned() -> None:
                # Clients queue as soon as the data are this broker's.
                listen(data, setting="serve.port")
                listen(admin, setting="serve.admin_port")

            self.engine = await asyncio.to_thread(self._open, owned)
            undo.push_async_callback(asyncio.to_thread, self.engine.close)
            self.addresses = self._name(data, admin, http)
            await self._serve(data, admin, h2, undo)
            undo.pop_all()
        self.warnings += self.engine.warnings
        self._state = "ready"
        announce(
            self.engine,
            http_url=self.addresses.facts()["http_url"],
            certificate_file=serve.tls_certificate_file,
        )
        event("broker_ready", url=self.addresses.url, pid=os.getpid())
        return self.addresses

    async def stop(self) -> None:
        """Disconnect clients, finish the accepted calls, sync, and close everything.

        Raises:
            Unavailable: if the last sync failed.
        """
        self._state = "stopping"
        event("broker_stopping", drain_s=DRAIN_S)
        withdraw(self.engine)
        for server in self._servers.values():
            server.expect_end()
        self.services.begin_close()
        try:
            drained = await asyncio.gather(
                *(server.drain(DRAIN_S) for server in self._servers.values())
            )
            if not all(drained):
                warn("calls_cut_off", drain_s=DRAIN_S)
            await self.services.close()
        finally:
            try:
                await asyncio.to_thread(self.engine.close)
            finally:
                await self._http.close()
        event("broker_stopped")

    async def reload(self) -> None:
        """Read access file, token secrets and certificate again; a file that is wrong changes nothing.

        Streams that the new rules do not allow end.
        """
        async with self._reloading:
            try:
                if self.guard.enabled:
                    found = await asyncio.to_thread(load_credentials, self.settings.auth)
                    self.guard.replace(found)
                    for server in self._servers.values():
                        server.recheck()
            except FrazilError as error:
                warn("credentials_not_replaced", error=error)
            try:
                for context in self._contexts:
                    load_certificate(context, self.settings.serve)
            except FrazilError as error:
                warn("certificate_not_replaced", error=error)
            else:
                event("certificate_replaced", contexts=len(self._contexts))

    # -- inside ----------------------------------------------------------------------------------

    async def _bind(self, undo: contextlib.AsyncExitStack) -> list[socket.socket]:
        """Return the three bound sockets with their addresses; they do not listen yet.

        Raises:
            Conflict: if an address is in use and another process has the directory: its pid helps
                more than the port.
            Unavailable: if an address cannot be bound.
        """
        serve = self.settings.serve
        try:
            return [
                undo.enter_context(bind(host, port, setting=setting))
                for host, port, setting in (
                    (serve.host, serve.port, "serve.port"),
                    (serve.admin_host, serve.admin_port, "serve.admin_port"),
                    (serve.admin_host, serve.http_port, "serve.http_port"),
                )
            ]
        except Unavailable as error:
            problem = error

        def refuse() -> None:
            raise problem

        await asyncio.to_thread(self._open, refuse)
        raise AssertionError("without addresses no engine opens")

    def _open(self, on_owned: Callable[[], None]) -> Engine:
        """Open the engine; called in a thread."""
        return Engine(
            self.settings, file_system=RealFileSystem(), clock=self._clock, on_owned=on_owned
        )

    async def _serve(
        self,
        data: socket.socket,
        admin: socket.socket,
        context: ssl.SSLContext | None,
        undo: contextlib.AsyncExitStack,
    ) -> None:
        serve = self.settings.serve
        self.services = Services(self.engine, addresses=self.addresses.facts())
        needs = partial(needs_of, services=self.services)
        self.guard = load_guard(self.settings, needs=needs, clock=self._clock)
        if self.guard.enabled:
            self.services.acts.principal_of = self.guard.principal_of
        limits = server_limits(self.settings)
        if self.guard.enabled:
            # A client without credentials does not stay connected.
            limits = attrs.evolve(limits, first_call_s=HANDSHAKE_S)
        foresee = self.guard.foresee if self.guard.enabled else None
        clients, administration = connection_limits(serve)
        for name, listener, routes, counts in (
            ("data", data, self.services.data_routes(), clients),
            ("admin", admin, self.services.admin_routes(), administration),
        ):
            router = Router(routes, self.guard, self.guard.free_calls, foresee)
            self._servers[name] = server = Server(router, limits, self._clock, counts)
            server.check = self.guard.check if self.guard.enabled else None
            undo.callback(server.close)
            await server.start_on(listener, context)

    def _name(self, data: socket.socket, admin: socket.socket, http: socket.socket) -> Addresses:
        serve = self.settings.serve
        address, url = address_of(data), serve.advertised_url
        if not url:
            is_any = address.host in _ANY
            named = address._replace(host=socket.gethostname()) if is_any else address
            url = named.url(tls=serve.tls)
            if is_any:
                self.warnings.append(
                    f"clients connect to {url}; set serve.advertised_url for another address"
                )
        return Addresses(address, address_of(admin), address_of(http), url, serve.tls)

    def _problem(self) -> str | None:
        return self._failure() if self.is_ready else self._state

    def _failure(self) -> str | None:
        """Return the failures that only a restart can repair."""
        # The whole of `stats` would block the loop with many topics.
        failed = self.is_ready and self.engine.has_failed
        return "the log has failed, start the broker again" if failed else None

    @property
    def is_ready(self) -> bool:
        """Whether clients are served."""
        return self._state == "ready"

    def _page_refusal(self, request: Request) -> tuple[int, str] | None:
        """Return why a page that is not open to all is not shown."""
        if self._state == "starting":
            # The access rules are not loaded yet, and there are no facts yet.
            return 503, self._state
        caller = HttpCaller(request.url.path, "", request.headers)
        if self.guard.check(caller, [Need(None, ANYTHING)]) is None:
            return None
        return 401, "credentials are missing or not valid"

    def _facts(self) -> dict[str, Any]:
        """Return all that is counted; called in a thread."""
        if self._state == "starting":
            raise Unavailable("the broker is starting")
        counted = asyncio.run_coroutine_threadsafe(self._counted(), self._loop)
        try:
            found = counted.result(FACTS_S)
        except TimeoutError:
            counted.cancel()
            raise Unavailable("the broker is busy") from None
        return {"engine": self.engine.stats(), "process": self._process(), **found}

    def _process(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "cpu_s": used.ru_utime + used.ru_stime,
            "resident_bytes_max": used.ru_maxrss * 1024,
            "uptime_s": self._clock.monotonic() - self._started_s,
        }

    async def _counted(self) -> dict[str, Any]:
        """Return the facts that belong to the loop's thread."""
        return {
            "ports": {name: port_facts(each.counters) for name, each in self._servers.items()},
            "guard": self.guard.stats(),
            "http": {
                "requests": self._http.requests,
                "refusals": self._http.refusals,
                "cut_off": self._http.cut_off,
            },
            "subscriptions": self.services.facts(),
            "schemas": self.services.schemas.facts(),
        }
