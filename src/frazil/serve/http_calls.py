"""Calls of administration over the HTTP port: JSON in, JSON out, for `frazil subscription`.

`auth.permissions.HTTP_CALLS` says what each call needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
from starlette.responses import Response

from frazil.engine import Engine, decode_call
from frazil.errors import FrazilError, NotFound, Unavailable, codes_of
from frazil.model import full_topic_name
from frazil.serve.auth import Guard
from frazil.serve.auth.permissions import needs_of_call
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.codec import Code
from frazil.serve.http import read_json, text

if TYPE_CHECKING:
    from starlette.requests import Request

    from frazil.engine import Call
    from frazil.serve.auth.guard import Refusal

__all__ = ["PATH", "AdminCalls", "Serving"]

PATH: Final = "/admin/subscriptions"
_STATUSES: Final = {
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
}


@attrs.frozen
class Serving:
    """The parts of a broker that is ready."""

    engine: Engine
    services: Services
    guard: Guard


@attrs.define
class _Caller:
    """A call as the guard sees it."""

    path: str
    peer: str
    metadata: Mapping[str, str]
    message: bytes = b""


class AdminCalls:
    """Answers the calls. It belongs to the event loop's thread.

    Args:
        serving: returns the broker's parts, None while it is not ready.
    """

    def __init__(self, serving: Callable[[], Serving | None]) -> None:
        self._serving = serving

    async def answer(self, request: Request) -> Response:
        """Answer one call; the caller is checked before the body is read."""
        serving = self._serving()
        if serving is None:
            return _failed(Unavailable("the broker is not ready"))
        caller = _Caller(PATH, request.client.host if request.client else "", request.headers)
        refused = serving.guard.admit(caller)
        if refused is not None:
            return _refused(refused)
        body = await read_json(request)
        if not isinstance(body, bytes):
            return text(*body)
        try:
            call = decode_call(body)
            refused = serving.guard.authorize(caller, needs_of_call(call))
            if refused is not None:
                return _refused(refused)
            found = await self._perform(serving, caller, call)
        except FrazilError as error:
            return _failed(error)
        return _json(200, {"result": found})

    async def _perform(self, serving: Serving, caller: _Caller, call: Call) -> Any:
        if call.is_read:
            found = await asyncio.to_thread(call.perform, serving.engine)
            return _with_unstored(serving, call, found) if call.call == "list" else found
        names = {"topic": call.topic, "subscription": call.name or None}
        return await serving.services.acts.do(
            caller,
            _change(serving, call),
            call=call.call,
            **{what: name for what, name in names.items() if name is not None},
        )


def _with_unstored(serving: Serving, call: Call, found: list[dict[str, Any]]) -> Any:
    """Add the subscriptions of topics without storage, which exist while they are connected."""
    unstored = serving.services.unreliable.facts()
    if call.topic is not None:
        unstored = [each for each in unstored if each["topic"] in _topics(serving, call.topic)]
    return sorted([*found, *unstored], key=lambda each: (each["topic"], each["name"]))


async def _change(serving: Serving, call: Call) -> Any:
    if call.call != "drop":
        return await asyncio.to_thread(call.perform, serving.engine)
    services, topics = serving.services, _topics(serving, call.topic or "")
    unstored = [topic for topic in topics if services.unreliable.find(topic, call.name) is not None]
    for topic in unstored:
        services.unreliable.drop(topic, call.name)
        services.consumers.forget_subscription(topic, call.name)
    try:
        found = await asyncio.to_thread(call.perform, serving.engine)
    except NotFound:
        if not unstored:
            raise
        found = {"dropped": call.name}
    for topic in topics:
        # The ids that clients had for it.
        services.consumer_ids.forget_subscription(topic, call.name)
    return found


def _topics(serving: Serving, topic: str) -> list[str]:
    """Return the names of the topics that hold a topic's records: its own, or those of its parts."""
    _spec, runtimes = serving.engine.whole_topic(full_topic_name(topic))
    return [runtime.name for runtime in runtimes]


def _refused(refusal: Refusal) -> Response:
    code, message = refusal
    return _json(_STATUSES.get(code, 400), {"error": {"code": "", "message": message}})


def _failed(error: FrazilError) -> Response:
    details = {
        name: value if isinstance(value, (int, str, float, bool)) else str(value)
        for name, value in error.details.items()
    }
    told = {"code": error.code, "message": error.message, "details": details}
    return _json(codes_of(error).http, {"error": told})


def _json(status: int, value: Any) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", status, media_type="application/json")
