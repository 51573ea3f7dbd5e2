"""The catalog's process: `python -m frazil.lake.catalog`.

It listens on the loopback, says where in the address file and in one line on stdout, and ends with
its parent: when its standard input ends (`--parent`), or the parent's process id changes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import logging
import logging.handlers
import os
import os.path
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from frazil.clock import SystemClock
from frazil.errors import FrazilError, InvalidRequest, Unavailable, codes_of
from frazil.fs import RealFileSystem, read_fully, write_fully
from frazil.lake.catalog.address import CatalogAddress, remove_address, write_address
from frazil.lake.catalog.files import Warehouse, local_path
from frazil.lake.catalog.refusals import OutcomeUnknown, Refusal, bad_request
from frazil.lake.catalog.routes import ROUTES, Answer, Call
from frazil.lake.catalog.service import Catalog
from frazil.lake.catalog.store import Store
from frazil.lake.worker_client import step_back
from frazil.telemetry import LOGGER, TextFormatter, configure, event, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request

    from frazil.lake.catalog.routes import Route

__all__ = [
    "BODY_BYTES_MAX",
    "PORT_DEFAULT",
    "READY",
    "ServerOptions",
    "main",
    "make_app",
    "serve",
    "token_of",
]

PORT_DEFAULT: Final = 8181
PORTS_TRIED: Final = 64
READY: Final = "frazil-catalog-ready "
"""What the line on stdout starts with that says the server listens; the address follows."""
PARENT_SECONDS: Final = 1.0
LOG_BYTES_MAX: Final = 10 << 20
TOKEN_CHARACTERS_MAX: Final = 4096
DRAIN_SECONDS: Final = 5
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@attrs.frozen(kw_only=True)
class ServerOptions:
    """How a catalog is served.

    `db` None is a catalog in memory with a temporary warehouse. `port` 0 takes any. `token` None
    lets everybody on this machine in.
    """

    db: str | None
    warehouse: str | None = None
    catalog: str = "frazil"
    host: str = "127.0.0.1"
    port: int = PORT_DEFAULT
    token: str | None = None
    run_directory: str | None = None
    parent: int | None = None


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket at `port`, or at the next free one if it is taken.

    Raises:
        Unavailable: none of the next ports is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    last: OSError | None = None
    for number in range(port, min(port + PORTS_TRIED, 65_536)) if port else (0,):
        # With the protocol named, asyncio switches off the delay of small packets: 40 ms each.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            # Two servers must not share a port, but one that died must not block its successor.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            last = error
            continue
        return listener
    raise Unavailable("no port is free for the catalog", host=host, port=port, reason=last)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it listens, and handles signals without ending."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The original raises the signal again at its end, and the process would end before the
        # address file is removed.
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def leave(number: int, frame: object) -> None:
            del number, frame
            self.should_exit = True

        before = {number: signal.signal(number, leave) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()


def serve(options: ServerOptions, *, listening: Callable[[CatalogAddress], None]) -> None:
    """Serve a catalog until a signal, the end of the parent or a failure of storage.

    Args:
        options: how.
        listening: called with the address once the server listens.

    Raises:
        Unavailable: the file, the warehouse or the port cannot be used, or storage failed.
    """
    file_system, clock = RealFileSystem(), SystemClock()
    with ExitStack() as stack:
        warehouse = _warehouse(options, stack)
        store = Store(options.db, catalog=options.catalog, file_system=file_system)
        stack.callback(store.close)
        file_system.make_directory(local_path(warehouse.location))
        catalog = Catalog(store, file_system=file_system, clock=clock, warehouse=warehouse)
        listener = stack.enter_context(listen(options.host, options.port))
        address = _address(options, warehouse, listener)
        if options.run_directory is not None:
            stack.callback(
                remove_address, options.run_directory, pid=address.pid, file_system=file_system
            )

        def started() -> None:
            if options.run_directory is not None:
                write_address(options.run_directory, address, file_system=file_system, clock=clock)
            event("catalog_started", uri=address.uri, warehouse=address.warehouse, db=options.db)
            listening(address)

        broken = threading.Event()

        def failed() -> None:
            broken.set()
            server.should_exit = True

        app = make_app(catalog, name=options.catalog, token=options.token, failed=failed)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            timeout_keep_alive=60,
        )
        server = _Server(config, started)
        if options.parent is not None:
            _watch_parent(options.parent, server)
        asyncio.run(server.serve(sockets=[listener]))
        event("catalog_stopped", uri=address.uri)
        if broken.is_set():
            raise Unavailable("storage of the catalog failed, see its log", db=options.db)


def _warehouse(options: ServerOptions, stack: ExitStack) -> Warehouse:
    location = options.warehouse
    if location is None:
        if options.db is not None:
            raise InvalidRequest("catalog in a file needs a warehouse")
        location = stack.enter_context(tempfile.TemporaryDirectory(prefix="frazil-warehouse-"))
    elif ":" not in location:
        location = os.path.abspath(location)
    return Warehouse(location.rstrip("/"))


def _address(
    options: ServerOptions, warehouse: Warehouse, listener: socket.socket
) -> CatalogAddress:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return CatalogAddress(
        uri=f"http://{shown}:{port}",
        token=options.token,
        pid=os.getpid(),
        catalog=options.catalog,
        warehouse=warehouse.location,
        db=options.db,
    )


def _watch_parent(parent: int, server: uvicorn.Server) -> None:
    """End the server when the parent is gone: its end of the pipe closes, or its id changes."""
    gone = threading.Event()

    def read() -> None:
        while os.read(0, 4096):
            pass
        gone.set()

    def watch() -> None:
        while not gone.wait(PARENT_SECONDS) and os.getppid() == parent:
            pass
        server.should_exit = True

    for target in (read, watch):
        threading.Thread(target=target, name=f"catalog-{target.__name__}", daemon=True).start()


def token_of(path: str) -> str:
    """Return the token of a file, which is made if it is missing.

    Raises:
        InvalidRequest: what is in the file cannot be a token.
    """
    file_system, clock = RealFileSystem(), SystemClock()
    if file_system.stat(path) is None:
        file_system.make_directory(os.path.dirname(os.path.abspath(path)))
        file = file_system.open(path, "create")
        try:
            write_fully(file, 0, [clock.random_bytes(32).hex().encode()])
            file.sync()
        finally:
            file.close()
    file = file_system.open(path, "read")
    try:
        token = read_fully(file, 0, TOKEN_CHARACTERS_MAX).decode("ascii", "replace").strip()
    finally:
        file.close()
    if not token or not token.isprintable() or " " in token:
        raise InvalidRequest("token file has no token of printable characters", path=path)
    return token


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m frazil.lake.catalog", description=__doc__)
    parser.add_argument("--db", help="the SQLite file")
    parser.add_argument("--memory", action="store_true", help="keep everything in memory")
    parser.add_argument("--warehouse", help="the directory of the tables")
    parser.add_argument("--catalog", default="frazil", help="the catalog's name in the rows")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=PORT_DEFAULT, help="0 takes any free one")
    parser.add_argument("--token-file", help="made if it is missing; without it no token is asked")
    parser.add_argument("--run", help="directory of the address file")
    parser.add_argument("--parent", type=int, help="end with this process and with stdin")
    parser.add_argument("--log", help="file for events; stderr without it")
    given = parser.parse_args(arguments)
    if bool(given.db) == given.memory:
        parser.error("give either --db or --memory")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process and return its exit code."""
    given = _parsed(arguments)
    if given.parent:
        # Started by an engine: readers of the catalog take no core from publishers.
        step_back()
    configure(sys.stderr, log_level="info", log_format="text")
    if given.log:
        RealFileSystem().make_directory(os.path.dirname(os.path.abspath(given.log)))
        handler = logging.handlers.RotatingFileHandler(
            given.log, maxBytes=LOG_BYTES_MAX, backupCount=3, encoding="utf-8"
        )
        handler.setFormatter(TextFormatter())
        LOGGER.handlers[:] = [handler]
        logging.getLogger("uvicorn").addHandler(handler)

    def listening(address: CatalogAddress) -> None:
        sys.stdout.write(f"{READY}{msgspec.json.encode(address).decode()}\n")
        sys.stdout.flush()

    try:
        options = ServerOptions(
            db=os.path.abspath(given.db) if given.db else None,
            warehouse=given.warehouse,
            catalog=given.catalog,
            host=given.host,
            port=given.port,
            token=token_of(given.token_file) if given.token_file else None,
            run_directory=given.run,
            parent=given.parent,
        )
        serve(options, listening=listening)
    except (FrazilError, OSError) as error:
        sys.stderr.write(f"frazil catalog: {error}\n")
        return codes_of(error).exit
    return 0


BODY_BYTES_MAX: Final = 64 << 20
CONTENT_TYPE: Final = "application/json"


def make_app(
    catalog: Catalog, *, name: str, token: str | None, failed: Callable[[], None]
) -> Starlette:
    """Return the application.

    Args:
        catalog: what answers.
        name: the catalog's name.
        token: what a request must bring, None if any may come.
        failed: called when storage failed: the file is in an unknown state.
    """
    expected = None if token is None else f"Bearer {token}".encode()

    def endpoint(handles: dict[str, Route]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                _authorise(request, expected)
                call = Call(
                    catalog=catalog,
                    name=name,
                    path=dict(request.path_params),
                    query=dict(request.query_params),
                    headers=dict(request.headers),
                    body=await _body(request),
                )
                found = await run_in_threadpool(handles[request.method].handle, call)
            except FrazilError as error:
                if isinstance(error, OutcomeUnknown):
                    failed()
                return _response(_failure(error), request)
            return _response(found, request)

        return answer

    by_path: dict[str, dict[str, Route]] = {}
    for route in ROUTES:
        by_path.setdefault(route.path, {})[route.method] = route
    routes = [
        # Starlette answers HEAD wherever there is GET: the endpoint looks the method up again.
        StarletteRoute(path, endpoint(handles), methods=list(handles))
        for path, handles in by_path.items()
    ]
    routes.append(StarletteRoute("/health", _health, methods=["GET"]))
    return Starlette(
        routes=routes, exception_handlers={HTTPException: _http_failure, Exception: _bug}
    )


def _authorise(request: Request, expected: bytes | None) -> None:
    if expected is None:
        # A page in the user's browser can reach this machine, too; clients of Iceberg are no pages.
        if "origin" in request.headers:
            raise Refusal(403, "ForbiddenException", "browsers need the catalog's token")
        return
    given = request.headers.get("authorization", "").encode("utf-8", "surrogateescape")
    if not hmac.compare_digest(given, expected):
        raise Refusal(
            401,
            "NotAuthorizedException",
            "token is missing or wrong, the address file of the catalog has it",
        )


async def _body(request: Request) -> bytes:
    """Read the body; a larger one than allowed is not read to its end."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise bad_request("request body must not be compressed")
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:18]) > BODY_BYTES_MAX:
        raise _too_large()
    pieces: list[bytes] = []
    size = 0
    async for piece in request.stream():
        size += len(piece)
        if size > BODY_BYTES_MAX:
            raise _too_large()
        pieces.append(piece)
    return b"".join(pieces)


def _too_large() -> Refusal:
    return Refusal(
        413, "BadRequestException", "request body is too large", bytes_max=BODY_BYTES_MAX
    )


def _failure(error: FrazilError) -> Answer:
    if isinstance(error, Refusal):
        return _error(error.status, error.kind, str(error))
    warn("catalog_request_failed", reason=error)
    if isinstance(error, OutcomeUnknown):
        return _error(500, "CommitStateUnknownException", str(error))
    status = codes_of(error).http
    kind = "ServiceUnavailableException" if status == 503 else "InternalServerError"
    return _error(status, kind, str(error))


def _error(status: int, kind: str, message: str) -> Answer:
    body = {"error": {"message": message, "type": kind, "code": status}}
    return Answer(status, msgspec.json.encode(body))


def _response(answer: Answer, request: Request) -> Response:
    headers = dict(answer.headers)
    if answer.status == 401:
        headers["www-authenticate"] = "Bearer"
    has_body = answer.body and request.method != "HEAD"
    return Response(
        answer.body if has_body else b"",
        status_code=answer.status,
        headers=headers,
        media_type=CONTENT_TYPE if has_body else None,
    )


async def _health(request: Request) -> Response:
    del request
    return Response(b'{"status":"ok"}', media_type=CONTENT_TYPE)


async def _http_failure(request: Request, error: Exception) -> Response:
    """Answer what no route takes: an unknown path or a method it does not have."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = f"{request.method} {request.url.path} is not offered by this catalog"
    kind = "UnsupportedOperationException" if status == 405 else "NotFoundException"
    return _response(_error(status, kind, text), request)


async def _bug(request: Request, error: Exception) -> Response:
    warn("catalog_bug", method=request.method, path=request.url.path, reason=repr(error))
    text = f"unexpected failure, the commit's state is unknown: {type(error).__name__}"
    return _response(_error(500, "InternalServerError", text), request)
