"""The broker: an open engine, and the three ports through which others use it.

It starts from the inside out and stops from the outside in. Health is told from the first moment
on, so that whoever watches can tell a long recovery from a process that hangs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from frazil.clock import SystemClock
from frazil.engine import Engine
from frazil.errors import FrazilError, Unavailable
from frazil.fs import RealFileSystem
from frazil.serve.announcing import announce, withdraw
from frazil.serve.auth import (
    announce_exposure,
    load_certificate,
    load_credentials,
    load_guard,
    server_context,
)
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import ConnectionLimits, Server
from frazil.serve.h2.limits import ServerLimits
from frazil.serve.http import HttpServer, call_route, health_route, page_route
from frazil.serve.http_calls import PATH, AdminCalls, Serving
from frazil.serve.listening import Address, address_of, bind, listen
from frazil.serve.metrics import CONTENT_TYPE, metrics_text, port_facts
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from frazil.config import ServeSettings, Settings
    from frazil.serve.auth import Guard

__all__ = ["Addresses", "Broker", "connection_limits", "server_limits"]

State = Literal["starting", "ready", "stopping"]
FACTS_S: Final = 10.0
"""How long the loop has to answer what it counts."""
ADMIN_CONNECTIONS_MAX: Final = 100
"""A fifth of all connections, at most so many, is reserved for administration."""
_ANY: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - what is told in place of it


@attrs.frozen
class Addresses:
    """Where a broker listens."""

    data: Address
    admin: Address
    http: Address
    url: str
    """What lookups answer."""
    tls: bool

    def facts(self) -> dict[str, str]:
        """Return them as URLs, for programs."""
        return {
            "url": self.data.url(tls=self.tls),
            "admin_url": self.admin.url(tls=self.tls),
            "http_url": self.http.url(tls=self.tls),
            "advertised_url": self.url,
        }


@attrs.frozen
class _Listeners:
    """The three sockets, which have their addresses."""

    data: socket.socket
    admin: socket.socket
    http: socket.socket

    def listen(self) -> None:
        """Let clients queue; health needs no queue, it is told already."""
        listen(self.data, setting="serve.port")
        listen(self.admin, setting="serve.admin_port")

    def close(self) -> None:
        for each in (self.data, self.admin, self.http):
            each.close()


HANDSHAKE_S: Final = 5.0
"""A connection that is not set up by then is closed; with authentication, one without a call, too."""
KEEPALIVE_S: Final = 20.0
"""A silent connection is asked for a sign of life so often."""


def server_limits(settings: ServeSettings) -> ServerLimits:
    """Return what one port takes from its peers."""
    usual = ServerLimits()
    return attrs.evolve(
        usual,
        connections_max=settings.connections_max,
        message_bytes_max=settings.request_bytes_max,
        # A request that is allowed must fit, whatever else a connection sends.
        unfinished_bytes_max=max(usual.unfinished_bytes_max, 2 * settings.request_bytes_max),
        header_bytes_max=8 << 10,
        handshake_s=HANDSHAKE_S,
        keepalive_s=KEEPALIVE_S,
    )


def connection_limits(settings: ServeSettings) -> tuple[ConnectionLimits, ConnectionLimits]:
    """Return the limits of clients and of administration, whose share clients cannot take."""
    total = settings.connections_max
    admin = max(1, min(ADMIN_CONNECTIONS_MAX, total // 5))
    data = max(1, total - admin)
    return (
        ConnectionLimits(
            client_max=min(settings.connections_client_max, data), connections_max=data
        ),
        ConnectionLimits(
            client_max=min(settings.connections_client_max, admin), connections_max=admin
        ),
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
        self._born = self._clock.monotonic()
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
                call_route(PATH, AdminCalls(self._ready).answer),
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
            # Before anything is opened: what is wrong with them is told at once.
            load_credentials(self.settings.auth)
        taken = self._bind()
        if isinstance(taken, _Listeners):
            await self._http.start_on(taken.http, page)
        try:
            self.engine = await asyncio.to_thread(self._open, taken)
            try:
                assert isinstance(taken, _Listeners), "without addresses no engine opens"
                await self._serve(taken, h2)
            except BaseException:
                for server in self._servers.values():
                    server.close()
                await asyncio.to_thread(self.engine.close)
                raise
        except BaseException:
            await self._http.close()
            if isinstance(taken, _Listeners):
                taken.close()
            raise
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
        """Tell clients to go, finish what they were promised, sync, and close everything.

        Raises:
            Unavailable: if the last sync failed.
        """
        deadline_s = self.settings.serve.drain_s
        self._state = "stopping"
        event("broker_stopping", drain_s=deadline_s)
        withdraw(self.engine)
        for server in self._servers.values():
            server.expect_end()
        self.services.begin_close()
        try:
            drained = await asyncio.gather(
                *(server.drain(deadline_s) for server in self._servers.values())
            )
            if not all(drained):
                warn("calls_cut_off", drain_s=deadline_s)
            await self.services.close()
        finally:
            try:
                await asyncio.to_thread(self.engine.close)
            finally:
                await self._http.close()
        event("broker_stopped")

    async def reload(self) -> None:
        """Read access file, token secrets and certificate again; a file that is wrong changes nothing.

        Streams that may not go on by the new rules end.
        """
        async with self._reloading:
            try:
                if self.guard.enabled:
                    found = await asyncio.to_thread(load_credentials, self.settings.auth)
                    self.guard.replace(found)
                    for server in self._servers.values():
                        server.recheck(self.guard.check)
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

    def _bind(self) -> _Listeners | Unavailable:
        """Take the three addresses, or return why not."""
        serve = self.settings.serve
        with contextlib.ExitStack() as undo:
            taken = []
            for host, port, setting in (
                (serve.host, serve.port, "serve.port"),
                (serve.admin_host, serve.admin_port, "serve.admin_port"),
                (serve.http_host, serve.http_port, "serve.http_port"),
            ):
                try:
                    taken.append(undo.enter_context(bind(host, port, setting=setting)))
                except Unavailable as error:
                    return error
            undo.pop_all()
        return _Listeners(*taken)

    def _open(self, taken: _Listeners | Unavailable) -> Engine:
        """Open the engine; clients queue as soon as the data are this broker's. Called in a thread.

        Why an address could not be had is raised then, and not before: that the directory is in
        use, with the pid, is of more help than that its ports are.
        """

        def owned() -> None:
            if isinstance(taken, Unavailable):
                raise taken
            taken.listen()

        return Engine(
            self.settings, file_system=RealFileSystem(), clock=self._clock, on_owned=owned
        )

    async def _serve(self, listeners: _Listeners, context: ssl.SSLContext | None) -> None:
        serve = self.settings.serve
        self.addresses = self._named(listeners)
        self.services = Services(self.engine, self.settings, addresses=self.addresses.facts())
        self.guard = load_guard(self.settings, owners=self.services, clock=self._clock)
        # Tokens end while streams go on.
        self.services.consumers.check = self.guard.check if self.guard.enabled else None
        if self.guard.enabled:
            self.services.acts.principal_of = self.guard.principal_of
        limits = server_limits(serve)
        if self.guard.enabled:
            # A client without credentials does not stay connected.
            limits = attrs.evolve(limits, first_call_s=HANDSHAKE_S)
        foresee = self.guard.foresee if self.guard.enabled else None
        data, admin = connection_limits(serve)
        for name, listener, routes, counts in (
            ("data", listeners.data, self.services.data_routes(), data),
            ("admin", listeners.admin, self.services.admin_routes(), admin),
        ):
            router = Router(routes, self.guard, self.guard.free_calls, foresee)
            server = Server(router, limits, self._clock, counts)
            await server.start_on(listener, context)
            self._servers[name] = server

    def _named(self, listeners: _Listeners) -> Addresses:
        serve = self.settings.serve
        data = address_of(listeners.data)
        url = serve.advertised_url
        if not url:
            told = data._replace(host=socket.gethostname()) if data.host in _ANY else data
            url = told.url(tls=serve.tls)
            if told is not data:
                self.warnings.append(
                    f"clients are told to connect to {url}, or serve.advertised_url"
                )
        return Addresses(
            data, address_of(listeners.admin), address_of(listeners.http), url, serve.tls
        )

    def _problem(self) -> str | None:
        return self._failure() if self._state == "ready" else self._state

    def _failure(self) -> str | None:
        """Return what only another start can mend."""
        # The whole of `stats` would hold up the loop where there are many topics.
        failed = self._state == "ready" and self.engine.has_failed
        return "the log has failed, start the broker again" if failed else None

    def _ready(self) -> Serving | None:
        if self._state != "ready":
            return None
        return Serving(self.engine, self.services, self.guard)

    def _page_refusal(self, fields: Mapping[str, str]) -> tuple[int, str] | None:
        """Return why a page that is not open to all is not shown."""
        if self._state == "starting":
            # Who may see it is not known yet, and there is nothing to see.
            return 503, self._state
        if self.guard.knows(fields.get("authorization")):
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
            "uptime_s": self._clock.monotonic() - self._born,
        }

    async def _counted(self) -> dict[str, Any]:
        """Return what belongs to the loop's thread."""
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
