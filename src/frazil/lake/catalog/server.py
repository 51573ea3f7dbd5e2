"""The catalog's process: `python -m frazil.lake.catalog OPTIONS`, `CatalogOptions` as JSON.

It listens on the loopback, writes its address to the address file and to stdout, and ends when its
parent's process id changes.
"""

from __future__ import annotations

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
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from frazil.clock import SystemClock
from frazil.errors import FrazilError, InvalidRequest, Unavailable, codes_of
from frazil.fs import RealFileSystem, read_file, write_fully
from frazil.lake.catalog.address import CatalogAddress, remove_address, write_address
from frazil.lake.catalog.files import local_path
from frazil.lake.catalog.process import READY, CatalogOptions
from frazil.lake.catalog.refusals import OutcomeUnknown, Refusal, bad_request
from frazil.lake.catalog.routes import ROUTES, Answer, Call
from frazil.lake.catalog.service import Catalog
from frazil.lake.catalog.store import Store
from frazil.lake.worker_client import step_back
from frazil.struct_types import learnt
from frazil.telemetry import LOGGER, TextFormatter, configure, event, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from frazil.lake.catalog.routes import Route

__all__ = [
    "BODY_BYTES_MAX",
    "main",
    "make_app",
    "serve",
    "token_of",
]

PORTS_TRIED: Final = 64
PARENT_SECONDS: Final = 1.0
LOG_BYTES_MAX: Final = 10 << 20
TOKEN_CHARACTERS_MAX: Final = 4096
DRAIN_SECONDS: Final = 5


def listen(port: int) -> socket.socket:
    """Return a socket that listens on loopback at `port`, or at the next free one if it is taken.

    Raises:
        Unavailable: none of the next ports is free.
    """
    last: OSError | None = None
    for number in range(port, min(port + PORTS_TRIED, 65_536)) if port else (0,):
        # With the protocol named, asyncio switches off the delay of small packets: 40 ms each.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            # Two servers must not share a port, but one that died must not block its successor.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", number))
            listener.listen(128)
        except OSError as error:
            listener.close()
            last = error
        else:
            return listener
    raise Unavailable("no port is free for the catalog", port=port, reason=last)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to `serve`.

    The original raises the signal again at its end: the address file would not be removed.
    """

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(options: CatalogOptions, *, listening: Callable[[CatalogAddress], None]) -> None:
    """Serve a catalog until a signal, the end of the parent or a failure of storage.

    Args:
        options: how.
        listening: called with the address once the server listens.

    Raises:
        Unavailable: the file, the warehouse or the port cannot be used, or storage failed.
    """
    file_system, clock = RealFileSystem(), SystemClock()
    with ExitStack() as stack:
        warehouse = _location(options.warehouse)
        store = Store(options.db, catalog="frazil", file_system=file_system)
        stack.callback(store.close)
        file_system.make_directory(local_path(warehouse))
        catalog = Catalog(store, file_system=file_system, clock=clock, warehouse=warehouse)
        listener = stack.enter_context(listen(options.port))
        address = CatalogAddress(
            uri=f"http://127.0.0.1:{listener.getsockname()[1]}",
            token=token_of(f"{options.run_directory}/catalog.token"),
            pid=os.getpid(),
            warehouse=warehouse,
        )
        broken = threading.Event()

        def leave(*_signal: object) -> None:
            server.should_exit = True

        def failed() -> None:
            broken.set()
            leave()

        app = make_app(catalog, token=address.token, failed=failed)
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
            timeout_keep_alive=60,
        )
        server = _Server(config)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)
        if options.parent:
            watch = partial(_watch_parent, options.parent, leave)
            threading.Thread(target=watch, name="catalog-parent", daemon=True).start()
        stack.callback(
            remove_address, options.run_directory, pid=address.pid, file_system=file_system
        )
        write_address(options.run_directory, address, file_system=file_system, clock=clock)
        event("catalog_started", uri=address.uri, warehouse=address.warehouse, db=options.db)
        # The socket already listens: early connections are answered when the server runs.
        listening(address)
        asyncio.run(server.serve(sockets=[listener]))
        event("catalog_stopped", uri=address.uri)
        if broken.is_set():
            raise Unavailable("storage of the catalog failed, see its log", db=options.db)


def _location(warehouse: str) -> str:
    return (warehouse if ":" in warehouse else os.path.abspath(warehouse)).rstrip("/")


def _watch_parent(parent: int, leave: Callable[[], None]) -> None:
    """End the server when its parent has ended, that is, when the parent process changes."""
    pause = threading.Event()
    while os.getppid() == parent:
        pause.wait(PARENT_SECONDS)
    leave()


def token_of(path: str) -> str:
    """Return the token of a file; create the file if it is missing.

    Raises:
        InvalidRequest: the file's content cannot be a token.
    """
    file_system, clock = RealFileSystem(), SystemClock()
    if file_system.stat(path) is None:
        file_system.make_directory(os.path.dirname(os.path.abspath(path)))
        with contextlib.closing(file_system.open(path, "create")) as file:
            write_fully(file, 0, [clock.random_bytes(32).hex().encode()])
            file.sync()
    token = read_file(path, TOKEN_CHARACTERS_MAX).decode("ascii", "replace").strip()
    if not token or not token.isprintable() or " " in token:
        raise InvalidRequest("token file has no token of printable characters", path=path)
    return token


def main(text: str) -> int:
    """Run the process with options as JSON; return its exit code."""
    options = msgspec.json.decode(text, type=learnt(CatalogOptions))
    if options.parent:
        # Started by an engine: readers of the catalog take no core from publishers.
        step_back()
    configure(sys.stderr, log_level="info", log_format="text")
    if options.log_path:
        RealFileSystem().make_directory(os.path.dirname(os.path.abspath(options.log_path)))
        handler = logging.handlers.RotatingFileHandler(
            options.log_path, maxBytes=LOG_BYTES_MAX, backupCount=3, encoding="utf-8"
        )
        handler.setFormatter(TextFormatter())
        LOGGER.handlers[:] = [handler]
        logging.getLogger("uvicorn").addHandler(handler)

    def listening(address: CatalogAddress) -> None:
        sys.stdout.write(f"{READY}{msgspec.json.encode(address).decode()}\n")
        sys.stdout.flush()

    try:
        serve(options, listening=listening)
    except (FrazilError, OSError) as error:
        sys.stderr.write(f"frazil catalog: {error}\n")
        return codes_of(error).exit
    return 0


BODY_BYTES_MAX: Final = 64 << 20
CONTENT_TYPE: Final = "application/json"


def make_app(catalog: Catalog, *, token: str, failed: Callable[[], None]) -> Starlette:
    """Return the application.

    Args:
        catalog: the catalog to serve.
        token: the bearer token that every request needs.
        failed: called after a storage failure: the file is in an unknown state.
    """
    expected = f"Bearer {token}".encode()

    def endpoint(handles: dict[str, Route]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            try:
                _authorise(request, expected)
                call = Call(
                    catalog=catalog,
                    path=dict(request.path_params),
                    query=dict(request.query_params),
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
        # Starlette routes HEAD like GET: the endpoint checks the method again.
        StarletteRoute(path, endpoint(handles), methods=list(handles))
        for path, handles in by_path.items()
    ]
    routes.append(StarletteRoute("/health", _health, methods=["GET"]))
    return Starlette(
        routes=routes, exception_handlers={HTTPException: _http_failure, Exception: _bug}
    )


def _authorise(request: Request, expected: bytes) -> None:
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
    too_large = Refusal(
        413, "BadRequestException", "request body is too large", bytes_max=BODY_BYTES_MAX
    )
    if int(request.headers.get("content-length", "0")) > BODY_BYTES_MAX:
        raise too_large
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise too_large
    return bytes(body)


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
    headers = {"www-authenticate": "Bearer"} if answer.status == 401 else {}
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
    """Answer an unknown path, or a method that the path does not have."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    text = f"{request.method} {request.url.path} is not offered by this catalog"
    kind = "UnsupportedOperationException" if status == 405 else "NotFoundException"
    return _response(_error(status, kind, text), request)


async def _bug(request: Request, error: Exception) -> Response:
    warn("catalog_bug", method=request.method, path=request.url.path, reason=repr(error))
    text = f"unexpected failure, the commit's state is unknown: {type(error).__name__}"
    return _response(_error(500, "InternalServerError", text), request)
