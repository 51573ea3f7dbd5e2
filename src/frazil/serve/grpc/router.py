"""Routing: from a path to its handler, and the parsing of a request's headers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from frazil.errors import FrazilError
from frazil.serve.danube.statuses import status_of
from frazil.serve.grpc.codec import CallFailed, Code, metadata

if TYPE_CHECKING:
    from frazil.serve.grpc.calls import Call, CallRun
    from frazil.serve.h2.headers import Fields

Handler = Callable[["Call", bytes], None]
"""Answers a call now or later through the call; its exception becomes the call's status."""
RunHandler = Callable[["CallRun"], None]
"""Answers the calls of a run now or later; it raises nothing but bugs."""
Guard = Callable[["Call"], "tuple[Code, str] | None"]
"""Runs before every handler; a status that it returns ends the call without a handler."""
Foresee = Guard
"""Returns from the headers alone how the guard will refuse a request that is not complete yet."""
FreeCalls = Callable[[str, int], int]
"""Counts calls of a peer that need no guard; returns how many of that number may pass."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_CONTENT_TYPE: Final = b"application/grpc"


@attrs.frozen
class Route:
    """One message in, one message out; a stream has any number of messages out.

    `many`, if it is set, gets the calls of a run together. A stopping server refuses calls that are
    `is_fresh`, that is, new work. The HEADERS of a stream's answer are sent when the handler
    begins.
    """

    handler: Handler
    many: RunHandler | None = None
    is_fresh: bool = False
    is_stream: bool = False


Unary = Route


def Stream(handler: Handler) -> Route:  # noqa: N802 - a kind of route
    """Return the route of a stream."""
    return Route(handler, is_fresh=True, is_stream=True)


@attrs.frozen(eq=False)
class CallHead:
    """The parsed headers of a request; created once for all calls with equal headers.

    `plain_status` (of HTTP) or `refusal` is the whole answer, if there is one.
    """

    path: str
    handler: Handler | None
    is_stream: bool = False
    metadata: Mapping[str, str] = _NOTHING
    plain_status: int = 0
    refusal: tuple[Code, str] | None = None
    many: RunHandler | None = None
    is_fresh: bool = False
    """A server that stops refuses it."""


class Router:
    """The routes of a server, and the guard in front of them."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        guard: Guard | None = None,
        free_calls: FreeCalls | None = None,
        foresee: Foresee | None = None,
    ) -> None:
        wrong = [path for path in routes if path.count("/") != 2 or not path.startswith("/")]
        assert not wrong, wrong
        self.routes: Mapping[str, Route] = MappingProxyType(dict(routes))
        self.guard = guard
        self.free_calls = free_calls
        self.foresee = foresee
        self.large = CallHead(
            "", None, refusal=(Code.RESOURCE_EXHAUSTED, "the request's metadata is too large")
        )
        """The head of requests with too large headers."""

    def resolve(self, fields: Fields) -> CallHead:
        """Parse a request's headers; errors in them become its refusal."""
        found = dict(fields)
        path = found[b":path"].decode("latin-1")
        texts = MappingProxyType(metadata(fields))
        if found[b":method"] != b"POST":
            return CallHead(path, None, metadata=texts, plain_status=405)
        if not _is_grpc(found.get(b"content-type", b"")):
            return CallHead(path, None, metadata=texts, plain_status=415)
        route = self.routes.get(path)
        if route is None:
            unknown = (Code.UNIMPLEMENTED, "unknown method")
            return CallHead(path, None, metadata=texts, refusal=unknown)
        return CallHead(
            path,
            route.handler,
            route.is_stream,
            texts,
            many=route.many,
            is_fresh=route.is_fresh,
        )


def _is_grpc(value: bytes) -> bool:
    return value.startswith(_CONTENT_TYPE) and value[len(_CONTENT_TYPE) :][:1] in {b"", b"+", b";"}


_Result = TypeVar("_Result")


# -- coroutines as handlers ----------------------------------------------------------------------

_running: set[asyncio.Future[Any]] = set()
"""References to running tasks, as the loop keeps none."""


def awaited(answer: Callable[[Call, bytes], Awaitable[bytes]]) -> Handler:
    """Return a handler that answers with a coroutine's result, or the status of its exception.

    The coroutine is cancelled when the client cancels the call.
    """

    def handler(call: Call, message: bytes) -> None:
        start(call, answer(call, message))

    return handler


def start(call: Call, work: Awaitable[bytes | None]) -> None:
    """Run the work of a call, until its client cancels it; its exception becomes the status.

    Bytes that it returns are the answer; None means that the work has already answered.
    """
    task = asyncio.ensure_future(work)
    _running.add(task)
    call.on_cancel = task.cancel
    task.add_done_callback(partial(_settle, call))


def _settle(call: Call, task: asyncio.Future[bytes | None]) -> None:
    _running.discard(task)
    if task.cancelled():
        call.fail(Code.CANCELLED, "cancelled")
        return
    error = task.exception()
    if error is None:
        answer = task.result()
        if answer is not None:
            call.ok(answer)
    elif isinstance(error, CallFailed | FrazilError):
        call.fail(*status_of(error))
    else:
        call.break_off(error)


async def to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of a coroutine; it continues when its caller is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await outcome(task)


async def outcome(work: asyncio.Future[_Result]) -> _Result:
    """Return the result of a shared future; it continues when its caller is cancelled."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_take)
        raise


def _take(work: asyncio.Future[Any]) -> None:
    if work.cancelled():
        return
    error = work.exception()
    if error is not None and not isinstance(error, FrazilError | CallFailed):
        work.get_loop().call_exception_handler(
            {"message": "work failed whose caller has gone", "exception": error, "future": work}
        )
