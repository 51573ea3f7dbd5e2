"""Calls about subscriptions over the HTTP port: JSON in, JSON out, for `frazil subscription`.

A call needs what the same call needs on the admin port; the guard is asked with that call. JSON
must be declared as such, which a page of another site in a browser cannot do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import msgspec

from frazil.engine import (
    Call,
    CollectObjects,
    Create,
    Drop,
    Engine,
    List,
    ListObjects,
    MakeBackup,
    Policy,
    Reset,
    decode_call,
)
from frazil.errors import FrazilError, NotFound, Unavailable, codes_of
from frazil.model import full_topic_name
from frazil.serve.auth import Guard, Refusal
from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.routes import Services
from frazil.serve.grpc.codec import Code
from frazil.serve.http_request import Reply

__all__ = ["PATH", "Serving", "SubscriptionPost"]

PATH: Final = "/admin/subscriptions"
_TOPIC_ADMIN: Final = "/danube_admin.TopicAdmin/"
_STATUSES: Final = {
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
}


@attrs.frozen
class Serving:
    """What answers: the parts of a broker that is ready."""

    engine: Engine
    services: Services
    guard: Guard


@attrs.define
class _Caller:
    """A call of the admin port, as the guard sees it."""

    path: str
    peer: str
    metadata: Mapping[str, str]
    message: bytes


class SubscriptionPost:
    """Answers the calls. It belongs to the event loop's thread.

    Args:
        serving: returns what answers, None while the broker is not ready.
    """

    def __init__(self, serving: Callable[[], Serving | None]) -> None:
        self._serving = serving

    def refusal(self, fields: Mapping[str, str], peer: str) -> Reply | None:
        """Return why a caller is sent away, None if the call may be read: it counts from here on."""
        serving = self._serving()
        if serving is None:
            return _failed(_not_ready())
        refused = serving.guard.admit(_Caller(PATH, peer, fields, b""))
        return None if refused is None else _refused(refused)

    async def answer(self, fields: Mapping[str, str], body: bytes, peer: str) -> Reply:
        """Return the answer to one call whose caller was let in."""
        try:
            serving = self._serving()
            if serving is None:
                raise _not_ready()
            caller = _Caller(PATH, peer, fields, b"")
            call = decode_call(body)
            caller.path, caller.message = _like(call)
            refused = serving.guard.check(caller)
            if refused is not None:
                return _refused(refused)
            if _is_read(call):
                found = await asyncio.to_thread(call.perform, serving.engine)
                if isinstance(call, List):
                    found = _with_live(serving, call, found)
            else:
                caller.path = PATH
                names = {"topic": call.topic, "subscription": getattr(call, "name", None)}
                found = await serving.services.acts.do(
                    caller,
                    _act(serving, call),
                    call=call.__struct_config__.tag,
                    **{what: name for what, name in names.items() if name is not None},
                )
        except FrazilError as error:
            return _failed(error)
        return _json(200, {"result": found})


def _not_ready() -> Unavailable:
    return Unavailable("the broker is not ready")


def _is_read(call: Call) -> bool:
    """Tell whether a call changes nothing."""
    match call:
        case Policy():
            return not call.policy and call.max_unacked is None
        case CollectObjects():
            return call.dry_run
        case _:
            return isinstance(call, (List, ListObjects))


def _with_live(serving: Serving, call: List, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return subscriptions with those of topics that are not stored, as long as these are there."""
    live = serving.services.unreliable.facts()
    if call.topic is not None:
        live = [each for each in live if each["topic"] in _names(serving, call.topic)]
    return sorted([*found, *live], key=lambda each: (each["topic"], each["name"]))


def _drop_live(serving: Serving, call: Drop) -> bool:
    """End a subscription of a topic that is not stored; False if there is none."""
    services = serving.services
    dropped = False
    for topic in _names(serving, call.topic):
        if services.unreliable.find(topic, call.name) is not None:
            services.unreliable.drop(topic, call.name)
            services.consumers.forget_subscription(topic, call.name)
            dropped = True
    return dropped


def _names(serving: Serving, topic: str) -> list[str]:
    """Return the names of the topics that a topic's records go to: its own, or those of its parts."""
    _spec, runtimes = serving.engine.whole_topic(full_topic_name(topic))
    return [runtime.name for runtime in runtimes]


async def _act(serving: Serving, call: Call) -> Any:
    is_dropped = isinstance(call, Drop) and _drop_live(serving, call)
    try:
        found = await asyncio.to_thread(call.perform, serving.engine)
    except NotFound:
        if not is_dropped:
            raise
        found = {"dropped": getattr(call, "name", "")}
    if isinstance(call, Drop):
        _forget(serving, call)
    return found


def _like(call: Call) -> tuple[str, bytes]:
    """Return the call of the admin port that needs what this one does, with its message.

    Raises:
        InvalidRequest: if a name is no topic's.
    """
    is_of_all = isinstance(call, (MakeBackup, ListObjects, CollectObjects))
    if is_of_all or (isinstance(call, List) and call.topic is None):
        return f"{_TOPIC_ADMIN}ListBrokerTopics", b""
    topic = full_topic_name(call.topic or "")
    message: Any
    if isinstance(call, List):
        method, message = "ListSubscriptions", admin.TopicRequest(name=topic)
    elif isinstance(call, Policy) and call.policy:
        letters = call.policy.get("dead_letter_topic")
        method = "SetSubscriptionFailurePolicy"
        message = admin.SetSubscriptionFailurePolicyRequest(topic=topic)
        if isinstance(letters, str) and letters:
            message.failure_policy.dead_letter_topic = full_topic_name(letters)
    else:
        assert isinstance(call, (Create, Reset, Drop, Policy))
        method, message = "Unsubscribe", admin.SubscriptionRequest(topic=topic)
    return _TOPIC_ADMIN + method, message.SerializeToString()


def _failed(error: FrazilError) -> Reply:
    return _json(codes_of(error).http, {"error": _told(error)})


def _refused(refusal: Refusal) -> Reply:
    code, text = refusal
    return _json(_STATUSES.get(code, 400), {"error": {"code": "", "message": text}})


def _forget(serving: Serving, call: Drop) -> None:
    """Forget the ids that clients had for a subscription that is gone."""
    for topic in _names(serving, call.topic):
        serving.services.consumer_ids.forget_subscription(topic, call.name)


def _told(error: FrazilError) -> dict[str, Any]:
    details = {
        name: value if isinstance(value, (int, str, float, bool)) else str(value)
        for name, value in error.details.items()
    }
    return {"code": error.code, "message": error.message, "details": details}


def _json(status: int, value: Any) -> Reply:
    return Reply(status, msgspec.json.encode(value) + b"\n", "application/json")
