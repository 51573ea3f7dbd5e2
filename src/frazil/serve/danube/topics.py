"""The engine's topics as the protocol has them: found, made for a producer, reliable or not."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any

from frazil.engine import Topic
from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound, Unavailable
from frazil.model import part_name, topic_uid
from frazil.serve.danube.names import namespace_of, part_of
from frazil.serve.danube.statuses import CREATING_PRODUCER, Refused, Status, status, status_of
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import to_its_end
from frazil.subscribe import UNRELIABLE, UNRELIABLE_MAKING, is_stored
from frazil.telemetry import warn
from frazil.topic import StateTag, has_namespace_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.engine import Engine

__all__ = ["Topics"]


class Topics:
    """The topics of a broker. All methods belong to the event loop's thread.

    Create it before anything is served: it completes unreliable topics that a crash left half made.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._making = asyncio.Lock()
        self._complete()
        self.on_released: Callable[[str], None] | None = None
        """Called with the name of a topic whose producers have to reconnect."""

    def _complete(self) -> None:
        states = self._engine.states
        for key in states.items(StateTag.POLICY):
            if not key.startswith(UNRELIABLE_MAKING):
                continue
            try:
                uid = self._uid_of(key.removeprefix(UNRELIABLE_MAKING))
            except FrazilError:
                # It is there and cannot be used this time; the next start completes it.
                continue
            if uid is not None:
                states.put(StateTag.POLICY, UNRELIABLE + uid, b"1")
            states.delete(StateTag.POLICY, key)

    def find(self, name: str) -> Topic | None:
        """Return a topic that publishes messages, or None if there is no such topic.

        Raises:
            Refused: if it is there and could not be opened.
        """
        try:
            found = self._engine.topic(name)
        except NotFound:
            return None
        except FrazilError as error:
            raise Refused(status_of(error)) from error
        return found if isinstance(found, Topic) else None

    def is_current(self, topic: Topic) -> bool:
        """Return whether a topic is still there, and not another one of its name."""
        found = self.find(topic.name)
        return found is not None and found.runtime is topic.runtime

    def parts(self, name: str) -> list[str]:
        """Return the names to publish to and to read from for a topic's name; none if unknown.

        Raises:
            Refused: if it is there and could not be opened.
        """
        try:
            found = self._engine.topic(name)
        except NotFound:
            return self._loose_parts(name)
        except FrazilError as error:
            raise Refused(status_of(error)) from error
        return [name] if isinstance(found, Topic) else [part.name for part in found.parts]

    def _loose_parts(self, name: str) -> list[str]:
        """Return the parts that clients made one by one, from the first one on without a gap."""
        return list(takewhile(self._is_there, (part_name(name, index) for index in count())))

    def _is_there(self, name: str) -> bool:
        """Return whether a topic exists, though it could not be opened."""
        try:
            with suppress(Unavailable):
                self._engine.topic(name)
        except NotFound:
            return False
        return True

    def is_reliable(self, topic: Topic) -> bool:
        """Return whether a topic's records are stored; it never waits."""
        return is_stored(self._engine, topic.runtime)

    async def for_producer(self, name: str, *, is_reliable: bool) -> Topic:
        """Return the topic of a new producer; create it if it is missing and may be created.

        Raises:
            Refused: if topic or namespace are missing, or the topic is of another kind.
        """
        topic = self.find(name)
        if topic is None:
            if not self._engine.settings.topics.auto_create and not self._is_there(name):
                raise Refused(status("topic_missing", topic=name))
            try:
                # Another call or thread of this process may have created it since.
                with suppress(Conflict):
                    await self.make(name, is_reliable=is_reliable)
            except FrazilError as error:
                raise Refused(status_of(error, CREATING_PRODUCER)) from error
            topic = self.find(name)
        if topic is None:
            raise Refused(status("name_clash", topic=name, other=name))
        if not topic.runtime.is_message:
            raise Refused(
                Status(Code.FAILED_PRECONDITION, f"The topic: {name} takes rows, not messages")
            )
        if self.is_reliable(topic) is not is_reliable:
            raise Refused(status("strategy_differs"))
        return topic

    async def make(self, name: str, *, is_reliable: bool, partitions: int = 0) -> None:
        """Create a topic of messages, with or without parts; durable on return.

        Raises:
            Refused: if the namespace is missing, or a topic excludes one of this name.
            Conflict: if the topic exists.
            FrazilError: if the engine cannot make it.
        """
        # A caller that disconnects during this wait has started nothing.
        await self._making.acquire()
        await to_its_end(self._make_alone(name, is_reliable=is_reliable, partitions=partitions))

    async def _make_alone(self, name: str, *, is_reliable: bool, partitions: int) -> None:
        """Make a topic while the lock is held, which is released at the end."""
        try:
            await self._check_place(name, part_name(name, 0) if partitions else name)
            await asyncio.to_thread(
                self._make, name, is_reliable=is_reliable, partitions=partitions
            )
        finally:
            self._making.release()

    async def _check_place(self, name: str, first: str) -> None:
        """Check whether a topic may be created; its only or first part has the name `first`."""
        namespace = namespace_of(name)
        # In a thread: this may have to check all topics.
        if not await asyncio.to_thread(has_namespace_for, self._engine, name):
            raise Refused(status("namespace_missing", namespace=namespace))
        whole = part_of(first)
        if whole is not None and self._is_there(whole[0]):
            parts = self.parts(whole[0])
            if parts == [whole[0]]:
                raise Refused(status("name_clash", topic=first, other=whole[0]))
            raise Refused(status("parts_fixed", topic=first, whole=whole[0], parts=len(parts)))
        part = part_name(name, 0)
        if self._is_there(part):
            raise Refused(status("name_clash", topic=name, other=part))

    def _make(self, name: str, *, is_reliable: bool, partitions: int) -> None:
        """Create a topic in a worker thread. After a crash `_complete` does the other steps."""
        states = self._engine.states
        if self._uid_of(name) is not None:
            raise Conflict("topic exists", topic=name)
        if not is_reliable:
            states.put(StateTag.POLICY, UNRELIABLE_MAKING + name, b"1")
        try:
            # A topic without storage has nothing for a table.
            self._create(name, partitions, **({} if is_reliable else {"lake": False}))
            if not is_reliable:
                uid = self._uid_of(name)
                assert uid is not None
                states.put(StateTag.POLICY, UNRELIABLE + uid, b"1")
        finally:
            if not is_reliable:
                states.delete(StateTag.POLICY, UNRELIABLE_MAKING + name)

    def _create(self, name: str, partitions: int, **options: Any) -> None:
        if part_of(name) is not None and not partitions:
            # Clients make each part for itself, by a producer, without the whole topic.
            options["loose_part"] = True
        try:
            self._engine.create_topic(name, partitions=partitions, **options)
        except InvalidRequest as error:
            if not self._engine.settings.lake.default or "lake" in options:
                raise
            # Clients know nothing of tables: an impossible table is no reason to refuse the topic.
            self._engine.create_topic(name, partitions=partitions, lake=False, **options)
            warn("topic_without_table", topic=name, error=error)

    def release(self, name: str) -> None:
        """Forget a topic that was deleted or unloaded: its producers have to reconnect."""
        if self.on_released is not None:
            self.on_released(name)

    async def forget(self, uid: str) -> None:
        """Remove the stored state of a deleted topic."""
        if (StateTag.POLICY, UNRELIABLE + uid) in self._engine.log.journal.state.values:
            await asyncio.to_thread(self._engine.states.delete, StateTag.POLICY, UNRELIABLE + uid)

    def _uid_of(self, name: str) -> str | None:
        try:
            found = self._engine.topic(name)
        except NotFound:
            return None
        whole = found if isinstance(found, Topic) else found.parts[0]
        return topic_uid(whole.runtime.state.spec)
