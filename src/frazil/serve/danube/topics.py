"""The engine's topics as the protocol has them: found, made for a producer, reliable or not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from frazil.engine.states import StateTag
from frazil.engine.topic import Topic
from frazil.errors import Conflict, FrazilError, NotFound
from frazil.model import topic_uid
from frazil.serve.danube.names import (
    NAMESPACES_AT_BOOT,
    namespace_of,
    opposite_names,
    parts_among,
)
from frazil.serve.danube.statuses import (
    CREATING_PRODUCER,
    Refused,
    Status,
    name_clash,
    namespace_missing,
    status_of,
    strategy_differs,
)
from frazil.serve.grpc.codec import Code

if TYPE_CHECKING:
    from frazil.engine.core import Engine

__all__ = ["Topics"]

_UNRELIABLE: Final = "unreliable/"
"""Before the topic's own id, the key of the value that says so; a topic without one is reliable."""


class Topics:
    """The topics of a broker. All methods belong to the event loop's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._handles: dict[str, Topic] = {}
        self._making = asyncio.Lock()

    def find(self, name: str) -> Topic | None:
        """Return a topic that publishes messages, or None if there is no such topic."""
        try:
            found = self._engine.topic(name)
        except NotFound:
            self._handles.pop(name, None)
            return None
        if not isinstance(found, Topic):
            return None
        known = self._handles.get(name)
        if known is None or known.runtime is not found.runtime:
            self._handles[name] = known = found
        return known

    def is_current(self, topic: Topic) -> bool:
        """Tell whether a topic is still there, and not another one of its name."""
        return self.find(topic.name) is topic

    def parts(self, name: str) -> list[str]:
        """Return the names to publish to and to read from for a topic's name; none if unknown."""
        try:
            found = self._engine.topic(name)
        except NotFound:
            return parts_among(name, self._engine.topics())
        return [name] if isinstance(found, Topic) else [part.name for part in found.parts]

    def is_reliable(self, topic: Topic) -> bool:
        """Tell whether a topic's records are stored."""
        key = _UNRELIABLE + topic_uid(topic.runtime.state.spec)
        return self._engine.states.get(StateTag.POLICY, key) is None

    async def for_producer(self, name: str, *, is_reliable: bool) -> Topic:
        """Return the topic of a new producer; it is made if it is not there.

        Raises:
            Refused: if the namespace is missing, or what is there is of another kind.
        """
        async with self._making:
            topic = self.find(name)
            if topic is None:
                topic = await self._make(name, is_reliable=is_reliable)
        if not topic.runtime.is_message:
            raise Refused(
                Status(Code.FAILED_PRECONDITION, f"The topic: {name} takes rows, not messages")
            )
        if self.is_reliable(topic) is not is_reliable:
            raise Refused(strategy_differs())
        return topic

    async def _make(self, name: str, *, is_reliable: bool) -> Topic:
        engine = self._engine
        namespace = namespace_of(name)
        if namespace not in NAMESPACES_AT_BOOT and (
            engine.states.get(StateTag.NAMESPACE, namespace) is None
        ):
            raise Refused(namespace_missing(namespace))
        others = opposite_names(name, engine.topics())
        if others:
            raise Refused(name_clash(name, others[0]))
        try:
            made = await asyncio.to_thread(engine.create_topic, name)
            if not is_reliable:
                key = _UNRELIABLE + topic_uid(made.runtime.state.spec)
                await asyncio.to_thread(engine.states.put, StateTag.POLICY, key, b"1")
        except Conflict:
            # Made meanwhile by another thread of this process.
            pass
        except FrazilError as error:
            raise Refused(status_of(error, CREATING_PRODUCER)) from error
        topic = self.find(name)
        assert topic is not None
        return topic
