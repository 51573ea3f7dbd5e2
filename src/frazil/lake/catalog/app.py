"""The HTTP side of the catalog: a Starlette application around `routes`.

It checks the token, reads the body up to its limit, answers in a thread of its own, and turns what
goes wrong into the specification's body. The status of a failed commit tells a client whether it
may clean up: 409 is certain, 500 means that nobody knows.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from frazil.errors import FrazilError, codes_of
from frazil.lake.catalog.refusals import OutcomeUnknown, Refusal, bad_request
from frazil.lake.catalog.routes import ROUTES, Answer, Call
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from frazil.lake.catalog.routes import Route
    from frazil.lake.catalog.service import Catalog

__all__ = ["BODY_BYTES_MAX", "make_app"]

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
        failed: called when storage failed, so that nobody builds on a file in an unknown state.
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
