"""Calls of administration over the HTTP port: JSON in, JSON out, for `frazil subscription`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
from starlette.responses import Response

from frazil.engine import decode_call
from frazil.errors import FrazilError, NotFound, Unavailable, codes_of
from frazil.model import full_topic_name
from frazil.serve.auth import CLUSTER, Action, Need, topic_resource
from frazil.serve.grpc.codec import Code
from frazil.serve.http import read_json, text

if TYPE_CHECKING:
    from starlette.requests import Request

    from frazil.engine import Call
    from frazil.serve.auth import Refusal
    from frazil.serve.broker import Broker

__all__ = ["PATH", "HttpCaller", "answer_call"]

PATH: Final = "/admin/subscriptions"
_STATUSES: Final = {
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
}
_CLUSTER_CALLS: Final = frozenset({"backup", "list_objects", "collect_objects"})
"""The calls that need `admin` on everything; other calls need it on the topic they name."""


@attrs.define
class HttpCaller:
    """A request as the guard sees it."""

    path: str
    peer: str
    metadata: Mapping[str, str]
    message: bytes = b""


async def answer_call(broker: Broker, request: Request) -> Response:
    """Answer one call; the caller is checked before the body is read."""
    if not broker.is_ready:
        return _failed(Unavailable("the broker is not ready"))
    caller = HttpCaller(PATH, request.client.host if request.client else "", request.headers)
    refused = broker.guard.admit(caller)
    if refused is not None:
        return _refused(refused)
    body = await read_json(request)
    if not isinstance(body, bytes):
        return text(*body)
    try:
        call = decode_call(body)
        refused = broker.guard.check(caller, needs_of_call(call))
        if refused is not None:
            return _refused(refused)
        found = await _perform(broker, caller, call)
    except FrazilError as error:
        return _failed(error)
    return _json(200, {"result": found})


def needs_of_call(call: Call) -> list[Need]:
    """Return all that a call needs; each of it must be granted.

    Raises:
        InvalidRequest: if a name is no topic's.
    """
    if call.topic is None or call.call in _CLUSTER_CALLS:
        return [Need(Action.ADMIN, CLUSTER)]
    found = [Need(Action.ADMIN, topic_resource(full_topic_name(call.topic)))]
    dead_letters = call.policy.get("dead_letter_topic")
    if isinstance(dead_letters, str) and dead_letters:
        # As for SetSubscriptionFailurePolicy: the broker writes there in the caller's name.
        found.append(Need(Action.PRODUCE, topic_resource(full_topic_name(dead_letters))))
    return found


async def _perform(broker: Broker, caller: HttpCaller, call: Call) -> Any:
    if call.is_read:
        found = await asyncio.to_thread(call.perform, broker.engine)
        return _with_unstored(broker, call, found) if call.call == "list" else found
    names = {"topic": call.topic, "subscription": call.name or None}
    return await broker.services.acts.do(
        caller,
        _change(broker, call),
        call=call.call,
        **{what: name for what, name in names.items() if name is not None},
    )


def _with_unstored(broker: Broker, call: Call, found: list[dict[str, Any]]) -> Any:
    """Add the subscriptions of topics without storage, which exist while they are connected."""
    unstored = broker.services.unreliable.facts()
    if call.topic is not None:
        unstored = [each for each in unstored if each["topic"] in _topics(broker, call.topic)]
    return sorted([*found, *unstored], key=lambda each: (each["topic"], each["name"]))


async def _change(broker: Broker, call: Call) -> Any:
    if call.call != "drop":
        return await asyncio.to_thread(call.perform, broker.engine)
    services, topics = broker.services, _topics(broker, call.topic or "")
    unstored = [topic for topic in topics if services.unreliable.find(topic, call.name) is not None]
    for topic in unstored:
        services.unreliable.drop(topic, call.name)
        services.consumers.forget_subscription(topic, call.name)
    try:
        found = await asyncio.to_thread(call.perform, broker.engine)
    except NotFound:
        if not unstored:
            raise
        found = {"dropped": call.name}
    for topic in topics:
        # The ids that clients had for it.
        services.consumers.forget_subscription(topic, call.name)
    return found


def _topics(broker: Broker, topic: str) -> list[str]:
    """Return the names of the topics that have a topic's records: its own, or its parts'."""
    _spec, runtimes = broker.engine.whole_topic(full_topic_name(topic))
    return [runtime.name for runtime in runtimes]


def _refused(refusal: Refusal) -> Response:
    code, message = refusal
    return _json(_STATUSES.get(code, 400), {"error": {"code": "", "message": message}})


def _failed(error: FrazilError) -> Response:
    details = {
        name: value if isinstance(value, (int, str, float, bool)) else str(value)
        for name, value in error.details.items()
    }
    answer = {"code": error.code, "message": error.message, "details": details}
    return _json(codes_of(error).http, {"error": answer})


def _json(status: int, value: Any) -> Response:
    return Response(msgspec.json.encode(value) + b"\n", status, media_type="application/json")
