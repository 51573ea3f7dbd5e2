"""The broker: an open engine, and the three ports through which others use it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, Literal

import attrs

from frazil.clock import SystemClock
from frazil.engine.core import open_engine
from frazil.errors import FrazilError
from frazil.serve.auth import announce_exposure, load_certificate, load_credentials, load_guard
from frazil.serve.auth.tls import server_context
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.router import Router
from frazil.serve.grpc.server import Server
from frazil.serve.h2.limits import ServerLimits
from frazil.serve.http import HttpServer, health_page
from frazil.serve.listening import Address, address_of, bind
from frazil.serve.metrics import metrics_page, port_facts
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Mapping

    from frazil.config import ServeSettings, Settings
    from frazil.engine.core import Engine
    from frazil.serve.auth import Guard

__all__ = ["Addresses", "Broker", "server_limits"]

State = Literal["starting", "ready", "stopping"]


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


def server_limits(settings: ServeSettings) -> ServerLimits:
    """Return what one port takes from its peers."""
    usual = ServerLimits()
    return attrs.evolve(
        usual,
        connections_max=settings.connections_max,
        message_bytes_max=settings.request_bytes_max,
        # A request that is allowed must fit, whatever else a connection sends.
        unfinished_bytes_max=max(usual.unfinished_bytes_max, 2 * settings.request_bytes_max),
        streams_max=settings.streams_max,
        header_bytes_max=settings.header_bytes_max,
        handshake_s=settings.handshake_s,
        keepalive_s=settings.keepalive_s,
    )


class Broker:
    """Serves one data directory. All methods belong to the event loop's thread; it starts once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine: Engine
        self.services: Services
        self.guard: Guard
        self.addresses: Addresses
        self.warnings: list[str] = []
        self._state: State = "starting"
        self._clock = SystemClock()
        self._servers: dict[str, Server] = {}
        self._contexts: list[ssl.SSLContext] = []
        self._http = HttpServer(
            {
                "/healthz": health_page(lambda: None),
                "/readyz": health_page(self._problem),
                "/metrics": metrics_page(self._facts),
            },
            allow=self._may_see,
        )

    async def start(self) -> Addresses:
        """Open the engine and serve it; on return clients can connect.

        Raises:
            Conflict: if another process has the directory, with its pid.
            InvalidRequest: if a certificate, key or access file cannot be used.
            Unavailable: if an address cannot be listened on.
        """
        serve = self.settings.serve
        self.warnings = announce_exposure(self.settings)
        h2 = server_context(serve, protocols=["h2"])
        http = server_context(serve, protocols=["http/1.1"])
        self._contexts = [context for context in (h2, http) if context is not None]
        if self.settings.auth.enabled:
            load_credentials(self.settings.auth)
        # The engine says whose directory it is, which is of more use than whose port it is.
        self.engine = await asyncio.to_thread(open_engine, self.settings)
        try:
            await self._listen(h2, http)
        except BaseException:
            await self._close_ports(0)
            await asyncio.to_thread(self.engine.close)
            raise
        self.warnings += self.engine.warnings
        self._state = "ready"
        event("broker_ready", url=self.addresses.url, pid=os.getpid())
        return self.addresses

    async def stop(self) -> None:
        """Tell clients to go, finish what they were promised, sync, and close everything.

        Raises:
            Unavailable: if the last sync failed.
        """
        self._state = "stopping"
        event("broker_stopping")
        self.services.begin_close()
        await self._close_ports(self.settings.serve.drain_s)
        await self.services.close()
        try:
            await asyncio.to_thread(self.engine.close)
        finally:
            await self._http.close()
        event("broker_stopped")

    def reload(self) -> None:
        """Read access file, token secrets and certificate again; what is wrong changes nothing."""
        try:
            if self.guard.enabled:
                self.guard.replace(load_credentials(self.settings.auth))
            for context in self._contexts:
                load_certificate(context, self.settings.serve)
        except FrazilError as error:
            warn("reload_refused", error=error)
        else:
            event("reloaded", credentials=self.guard.enabled, certificate=bool(self._contexts))

    # -- inside ----------------------------------------------------------------------------------

    async def _listen(self, h2: ssl.SSLContext | None, http: ssl.SSLContext | None) -> None:
        serve = self.settings.serve
        with contextlib.ExitStack() as unused:

            def take(host: str, port: int, setting: str) -> socket.socket:
                return unused.enter_context(bind(host, port, setting=f"serve.{setting}"))

            data = take(serve.host, serve.port, "port")
            admin = take(serve.admin_host, serve.admin_port, "admin_port")
            page = take(serve.http_host, serve.http_port, "http_port")
            self.addresses = Addresses(
                address_of(data),
                address_of(admin),
                address_of(page),
                serve.advertised_url or address_of(data).url(tls=serve.tls),
                serve.tls,
            )
            self.services = Services(self.engine, self.settings, url=self.addresses.url)
            self.guard = load_guard(self.settings, owners=self.services, clock=self._clock)
            unused.pop_all()
        routes = {"data": self.services.data_routes(), "admin": self.services.admin_routes()}
        await self._http.start_on(page, http)
        for name, listener in (("data", data), ("admin", admin)):
            server = Server(
                Router(routes[name], guard=self.guard), server_limits(serve), self._clock
            )
            self._servers[name] = server
            await server.start_on(listener, h2)

    async def _close_ports(self, deadline_s: float) -> None:
        drained = await asyncio.gather(
            *(server.drain(deadline_s) for server in self._servers.values())
        )
        if not all(drained):
            warn("calls_cut_off", deadline_s=deadline_s)

    def _problem(self) -> str | None:
        if self._state != "ready":
            return self._state
        # The whole of `stats` would hold up the loop where there are many topics.
        failed = self.engine.main.journal.failed
        return None if failed is None else "the log has failed, start the broker again"

    def _may_see(self, fields: Mapping[str, str]) -> bool:
        return self.guard.knows(fields.get("authorization"))

    def _facts(self) -> dict[str, Any]:
        return {
            "engine": self.engine.stats(),
            "ports": {name: port_facts(each.counters) for name, each in self._servers.items()},
            "guard": self.guard.stats(),
            "http": {
                "requests": self._http.requests,
                "refusals": self._http.refusals,
                "cut_off": self._http.cut_off,
            },
            "subscriptions": self.services.facts(),
        }
