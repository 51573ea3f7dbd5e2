"""How the calls of the admin port are answered: parsed, awaited, and their errors put as statuses.

None of them is in a hurry. They wait for the journal in threads and never hold up the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from frazil.engine import Engine
from frazil.errors import FrazilError
from frazil.model import topic_uid
from frazil.serve.danube.consumers import Consumers
from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.registry_service import Schemas
from frazil.serve.danube.statuses import Refused, status, status_of
from frazil.serve.danube.topics import Topics
from frazil.serve.danube.unreliable import Unreliable
from frazil.serve.grpc.codec import CallFailed, Code
from frazil.serve.grpc.router import Unary, awaited, to_its_end
from frazil.subscribe import Deliveries, SubscriptionSettings
from frazil.telemetry import event

if TYPE_CHECKING:
    from frazil.engine import Topic
    from frazil.serve.auth.guard import Caller
    from frazil.serve.danube.services import WireMessage
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Route

__all__ = [
    "Acts",
    "AdminNeeds",
    "admin_act",
    "admin_call",
    "uid_of",
]

_Result = TypeVar("_Result")


def _anybody(_caller: Caller) -> object:
    return "anonymous"


class Acts:
    """Does acts and tells them. All methods belong to the event loop's thread."""

    def __init__(self) -> None:
        self.principal_of: Callable[[Caller], object] = _anybody
        """Names whoever calls, None if that is no longer known; set where callers are known."""

    async def do(
        self, caller: Caller, work: Coroutine[Any, Any, _Result], **names: object
    ) -> _Result:
        """Do what changes something; `names` are of what it changes."""
        who = {"path": caller.path, "principal": self.principal_of(caller), "peer": caller.peer}
        return await to_its_end(_told(work, {**who, **names}))


async def _told(work: Coroutine[Any, Any, _Result], facts: dict[str, Any]) -> _Result:
    status = Code.INTERNAL
    try:
        found = await work
        status = Code.OK
    except CallFailed as error:
        status = error.code
        raise
    except FrazilError as error:
        status = status_of(error).code
        raise
    finally:
        event("admin_act", **facts, status=status.name)
    return found


def uid_of(topic: Topic) -> str:
    """Return the identity of a topic, which the parts of one share."""
    return topic_uid(topic.runtime.state.spec)


@attrs.frozen(kw_only=True)
class AdminNeeds:
    """What the admin services are given. All methods belong to the event loop's thread.

    `settings` are loaded, and those of `deliveries`.
    """

    engine: Engine
    topics: Topics
    settings: SubscriptionSettings
    deliveries: Deliveries
    unreliable: Unreliable
    consumers: Consumers
    schemas: Schemas
    acts: Acts

    def named(self, name: str) -> list[Topic]:
        """Return the topic of a name, or all parts of a partitioned one.

        Raises:
            Refused: if the name is none, or there is no such topic.
        """
        found = [self.topics.find(part) for part in self.topics.parts(checked_topic(name))]
        there = [topic for topic in found if topic is not None]
        if not there:
            raise Refused(status("topic_missing", topic=name))
        return there

    def subscriptions(self, topics: list[Topic]) -> list[str]:
        """Return the subscriptions of a topic, or of all of its parts, sorted."""
        found: set[str] = set()
        for topic in topics:
            found.update(self.engine.cursors.names(topic.name))
            found.update(self.unreliable.names(topic.name))
        return sorted(found)

    async def unsubscribe(self, topic: str, name: str) -> None:
        """End one topic's subscription, the streams and the ids of its consumers; durable."""
        if name in self.engine.cursors.names(topic):
            await self.deliveries.drop(topic, name)
        self.unreliable.drop(topic, name)
        self.consumers.forget_subscription(topic, name)

    def forget(self, topic: str) -> None:
        """End whatever publishes to and consumes a topic that was deleted."""
        self.topics.release(topic)
        self.deliveries.forget_topic(topic)
        self.consumers.forget_topic(topic)


_Request = TypeVar("_Request", bound="WireMessage")
_Answer = Callable[[_Request], Coroutine[Any, Any, "WireMessage"]]


def admin_call(kind: type[_Request], answer: _Answer[_Request]) -> Route:
    """Return the route of a call that changes nothing and takes a request of this kind."""

    async def run(_call: Call, message: bytes) -> bytes:
        return await _reply(answer, parse_request(kind, message))

    return Unary(awaited(run))


def admin_act(acts: Acts, kind: type[_Request], answer: _Answer[_Request], **fields: str) -> Route:
    """Return the route of a call that changes something: it is done to its end, and told.

    `fields` are those of the request that name what is changed, by what they name.
    """

    async def run(call: Call, message: bytes) -> bytes:
        request = parse_request(kind, message)
        names = {name: getattr(request, field) for name, field in fields.items()}
        return await acts.do(call, _reply(answer, request), **names)

    return Unary(awaited(run))


async def _reply(answer: _Answer[_Request], request: _Request) -> bytes:
    try:
        return (await answer(request)).SerializeToString()
    except FrazilError as error:
        raise Refused(status_of(error)) from error
