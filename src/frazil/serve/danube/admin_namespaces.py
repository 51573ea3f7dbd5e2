"""Namespaces: made and deleted by name, durable; they hold topics and have the broker's policies.

Those at boot are always there. A namespace also exists while a topic is in it, however that came to
be: programs that embed the engine make topics without asking for a namespace first.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

from frazil.errors import Conflict, NotFound, Overloaded
from frazil.serve.danube.admin_calls import admin_act, admin_call
from frazil.serve.danube.names import check_namespace, namespace_of
from frazil.serve.danube.proto.danube_admin_pb2 import (
    GetNamespacePoliciesResponse,
    GetNamespaceTopicsResponse,
    NamespaceRequest,
    NamespaceResponse,
)
from frazil.serve.danube.statuses import Refused, Status
from frazil.serve.grpc.codec import Code
from frazil.topic import StateTag

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.engine import Engine
    from frazil.serve.danube.admin_acts import Acts
    from frazil.serve.grpc.router import Route

__all__ = ["NAMESPACES_MAX", "NamespaceAdmin", "Namespaces"]

NAMESPACES_MAX: Final = 10_000


class Namespaces:
    """The namespaces of an engine. All methods belong to the event loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._at_boot = engine.settings.serve.namespaces_at_boot
        self._changing = asyncio.Lock()

    async def names(self) -> list[str]:
        """Return all of them, sorted."""
        used = {namespace_of(topic) for topic in self._all_topics()}
        return sorted({*self._at_boot, *await self._made(), *used})

    async def checked(self, name: str) -> str:
        """Return the name of a namespace that exists.

        Raises:
            InvalidRequest: if no namespace may have this name.
            NotFound: if there is none.
        """
        check_namespace(name)
        if name not in await self.names():
            raise NotFound("unable to find the namespace", namespace=name)
        return name

    def topics(self, name: str) -> list[str]:
        """Return the topics of a namespace as clients have them: parts are topics, too."""
        prefix = f"/{name}/"
        names = (runtime.name for runtime in self._engine.runtimes)
        return sorted(topic for topic in names if topic.startswith(prefix))

    async def make(self, name: str) -> None:
        """Make a namespace; durable on return.

        Raises:
            Refused: if there is one.
            Overloaded: if there are too many.
        """
        check_namespace(name)
        async with self._changing:
            made = await self._made()
            if name in made or name in self._at_boot:
                text = f"The namespace {name} already exists"
                raise Refused(Status(Code.ALREADY_EXISTS, text))
            if len(made) >= NAMESPACES_MAX:
                raise Overloaded("too many namespaces", namespaces_max=NAMESPACES_MAX)
            await asyncio.to_thread(self._engine.states.put, StateTag.NAMESPACE, name, b"1")

    async def delete(self, name: str) -> None:
        """Delete a namespace that is empty; durable on return.

        Raises:
            NotFound: if there is none.
            Conflict: if there are topics in it, or it is one of those that are always there.
        """
        async with self._changing:
            await self.checked(name)
            if name in self._at_boot:
                raise Conflict("this namespace is always there", namespace=name)
            inside = [topic for topic in self._all_topics() if namespace_of(topic) == name]
            if inside:
                raise Conflict(
                    "the namespace has topics, delete them first",
                    namespace=name,
                    topics=len(inside),
                    one=inside[0],
                )
            await asyncio.to_thread(self._engine.states.delete, StateTag.NAMESPACE, name)

    async def _made(self) -> dict[str, bytes]:
        return await asyncio.to_thread(self._engine.states.items, StateTag.NAMESPACE)

    def _all_topics(self) -> list[str]:
        """Return all topics, also those that could not be opened."""
        return [*(runtime.name for runtime in self._engine.runtimes), *list(self._engine.unusable)]


class NamespaceAdmin:
    """Answers the calls of `danube_admin.NamespaceAdmin`."""

    def __init__(self, namespaces: Namespaces, settings: Settings, acts: Acts) -> None:
        self._namespaces = namespaces
        self._acts = acts
        serve = settings.serve
        policies = {
            "max_producers_per_topic": serve.producers_max,
            "max_subscriptions_per_topic": serve.subscriptions_max,
            "max_consumers_per_subscription": serve.consumers_max,
            "max_message_size": settings.topics.message_bytes_max,
        }
        self._policies = json.dumps(policies)
        """The limits of the settings, which are those of every namespace."""

    def routes(self) -> dict[str, Route]:
        """Return the calls by path."""
        service = "/danube_admin.NamespaceAdmin/"
        return {
            f"{service}GetNamespaceTopics": admin_call(NamespaceRequest, self._topics),
            f"{service}GetNamespacePolicies": admin_call(NamespaceRequest, self._policies_of),
            f"{service}CreateNamespace": admin_act(
                self._acts, NamespaceRequest, self._create, namespace="name"
            ),
            f"{service}DeleteNamespace": admin_act(
                self._acts, NamespaceRequest, self._delete, namespace="name"
            ),
        }

    async def _topics(self, request: NamespaceRequest) -> GetNamespaceTopicsResponse:
        name = await self._namespaces.checked(request.name)
        return GetNamespaceTopicsResponse(topics=self._namespaces.topics(name))

    async def _policies_of(self, request: NamespaceRequest) -> GetNamespacePoliciesResponse:
        await self._namespaces.checked(request.name)
        return GetNamespacePoliciesResponse(policies=self._policies)

    async def _create(self, request: NamespaceRequest) -> NamespaceResponse:
        await self._namespaces.make(request.name)
        return NamespaceResponse(success=True)

    async def _delete(self, request: NamespaceRequest) -> NamespaceResponse:
        await self._namespaces.delete(request.name)
        return NamespaceResponse(success=True)
