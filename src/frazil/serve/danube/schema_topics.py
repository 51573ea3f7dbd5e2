"""Which schemas topics ask for: given by their first producer, or by an administrator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import attrs

from frazil.errors import FrazilError, NotFound
from frazil.registry import parse_key
from frazil.serve.danube.schema_checks import SchemaChecks
from frazil.serve.danube.schema_store import SchemaStore
from frazil.serve.danube.statuses import Refused, Status, status_of, topic_missing
from frazil.serve.grpc.codec import Code
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.engine import Engine
    from frazil.registry import Planned, Registry, Schema, TopicSchema
    from frazil.serve.danube.proto.danube_pb2 import SchemaReference
    from frazil.serve.danube.topics import Topics
    from frazil.topic import States

__all__ = ["Schemas", "TopicFacts"]

_Reply = TypeVar("_Reply")


class TopicFacts(NamedTuple):
    """What a topic asks for, and the latest schema of its subject if that is there."""

    config: TopicSchema
    latest: Schema | None


class Schemas:
    """The schemas of a broker. All methods belong to the event loop's thread.

    Make it before anything is served: it reads what the log has.
    """

    def __init__(self, engine: Engine, topics: Topics) -> None:
        self._topics = topics
        _drop_missing(engine.states, topics)
        self.clock = engine.clock
        self.store = SchemaStore(engine.states)
        self.checks = SchemaChecks(self.store)

    # -- producers -------------------------------------------------------------------------------

    async def check_reference(self, topic: str, reference: SchemaReference) -> None:
        """Refuse a reference that a producer of a topic, there or not, may not have.

        Raises:
            Refused: if the topic has another subject, or no schema is what the reference means.
        """
        try:
            await self.store.read(partial(_plan_reference, topic=topic, reference=reference))
        except FrazilError as error:
            raise Refused(status_of(error)) from error

    async def take_reference(self, topic: str, reference: SchemaReference) -> None:
        """Give a topic the subject that a producer names, unless it has it already.

        Raises:
            Refused: as `check_reference` does, or if it could not be written.
        """
        try:
            await self.store.change(partial(_plan_reference, topic=topic, reference=reference))
        except FrazilError as error:
            raise Refused(status_of(error)) from error

    # -- administration --------------------------------------------------------------------------

    async def configure(self, topic: str, subject: str, policy: str, *, check_payload: bool) -> str:
        """Set subject and policy of a topic, of all its parts if it has some.

        Raises:
            Refused: if there is no such topic.
            FrazilError: if subject or policy are wrong, or it could not be written.
        """
        return await self._for_parts(
            topic,
            lambda registry, part: registry.configure_topic(
                part, subject, policy, check_payload=check_payload
            ),
        )

    async def update_policy(self, topic: str, policy: str, *, check_payload: bool) -> str:
        """Set the policy of a topic that has a subject, of all its parts if it has some.

        Raises:
            Refused: if there is no such topic, or it has no subject.
            FrazilError: if the policy is wrong, or it could not be written.
        """
        try:
            return await self._for_parts(
                topic,
                lambda registry, part: registry.update_policy(
                    part, policy, check_payload=check_payload
                ),
            )
        except NotFound as error:
            status = Status(Code.FAILED_PRECONDITION, status_of(error).text)
            raise Refused(status) from error

    async def describe(self, topic: str) -> TopicFacts | None:
        """Return what a topic, or the first of its parts, asks for; None if that is nothing.

        Raises:
            Refused: if there is no such topic.
        """
        name = self._parts(topic)[0]
        try:
            return await self.store.read(partial(_facts, topic=name))
        except NotFound:
            return None
        except FrazilError as error:
            raise Refused(status_of(error)) from error

    async def forget_topic(self, topic: str) -> None:
        """Drop what a topic that was deleted asked of its records; durable on return.

        Raises:
            FrazilError: if it could not be written. It is dropped at the next start, then.
        """
        await self.store.change(lambda registry: registry.forget_topic(topic))

    def facts(self) -> dict[str, int]:
        """Return what is counted of schemas and of the records that were looked at."""
        return {**self.store.stats(), **self.checks.stats()}

    async def close(self) -> None:
        """Finish what is under way."""
        await self.store.close()

    # -- inside ----------------------------------------------------------------------------------

    def _parts(self, topic: str) -> list[str]:
        parts = self._topics.parts(topic)
        if not parts:
            raise Refused(topic_missing(topic))
        return parts

    async def _for_parts(self, topic: str, plan: Callable[[Registry, str], Planned[str]]) -> str:
        parts = self._parts(topic)
        return await self.store.change(
            lambda registry: _joined([plan(registry, part) for part in parts])
        )


def _joined(plans: Sequence[Planned[_Reply]]) -> Planned[_Reply]:
    """Return one plan of several that were made of the same state; the reply is the first one's."""
    changes = tuple(change for planned in plans for change in planned.changes)
    return attrs.evolve(plans[0], changes=changes)


def _plan_reference(
    registry: Registry, *, topic: str, reference: SchemaReference
) -> Planned[TopicSchema]:
    kind = reference.WhichOneof("version_ref")
    planned = registry.assign_topic(topic, reference.subject)
    registry.resolve(
        reference.subject,
        pinned_version=reference.pinned_version if kind == "pinned_version" else None,
        min_version=reference.min_version if kind == "min_version" else None,
    )
    return planned


def _facts(registry: Registry, *, topic: str) -> TopicFacts:
    config = registry.topic_schema(topic)
    try:
        return TopicFacts(config, registry.latest_schema(config.subject))
    except NotFound:
        return TopicFacts(config, None)


def _drop_missing(states: States, topics: Topics) -> None:
    """Drop what topics asked for that were deleted while no broker was there to hear of it."""
    for key in states.items(StateTag.SCHEMA):
        parsed = parse_key(key)
        if parsed.kind == "topic" and not topics.parts(parsed.name):
            states.delete(StateTag.SCHEMA, key)
