"""The schemas of topics, and the calls of `danube_schema.SchemaRegistry`, served on both ports."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import attrs

from frazil.errors import NotFound
from frazil.registry import NewSchema, SchemaChecks, SchemaStore, parse_key
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto import danube_schema_pb2 as wire
from frazil.serve.danube.rpcs import Answer, routes_of
from frazil.serve.danube.statuses import Refused, Status, record_refused, status, status_of
from frazil.serve.grpc.codec import Code
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.engine import Engine
    from frazil.registry import Planned, Registry, Schema, TopicEntry
    from frazil.serve.danube.admin import Acts
    from frazil.serve.danube.proto.danube_pb2 import SchemaReference
    from frazil.serve.danube.topics import Topics
    from frazil.serve.grpc.router import Route
    from frazil.topic import States

__all__ = ["Schemas", "TopicFacts"]

SECOND_US: Final = 1_000_000
_NO_CONFIG: Final = wire.GetTopicSchemaConfigResponse(validation_policy="warn")
"""Of a topic without a subject, with the policy that its first producer would set."""

_Reply = TypeVar("_Reply")


class TopicFacts(NamedTuple):
    """The schema settings of a topic, and the latest schema of its subject if there is one."""

    config: TopicEntry
    latest: Schema | None


class Schemas:
    """The schemas of a broker's topics. All methods belong to the event loop's thread.

    Create it before anything is served: it reads the entries of the log.
    """

    def __init__(self, engine: Engine, topics: Topics) -> None:
        self._topics = topics
        _drop_missing(engine.states, topics)
        self.clock = engine.clock
        self.store = SchemaStore(engine.states)
        self.checks = SchemaChecks(self.store, lambda reason: Refused(record_refused(reason)))

    # -- producers -------------------------------------------------------------------------------

    def check_reference(self, topic: str, reference: SchemaReference) -> None:
        """Refuse a schema reference that a producer of the topic may not have.

        The topic need not exist.

        Raises:
            FrazilError: if the topic has another subject, or the schema does not exist.
        """
        _plan_reference(self.store.registry, topic=topic, reference=reference)

    async def take_reference(self, topic: str, reference: SchemaReference) -> None:
        """Assign a topic the subject that a producer names, unless it has it already.

        Raises:
            FrazilError: as `check_reference` does, or if it could not be written.
        """
        await self.store.change(partial(_plan_reference, topic=topic, reference=reference))

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

    def describe(self, topic: str) -> TopicFacts | None:
        """Return the schema settings of a topic, or of its first part; None if there are none.

        Raises:
            Refused: if there is no such topic.
        """
        name, registry = self._parts(topic)[0], self.store.registry
        config = registry.topics.get(name)
        if config is None:
            return None
        found = registry.find(config.subject)
        return TopicFacts(config, None if found is None else found.schema())

    async def forget_topic(self, topic: str) -> None:
        """Drop the schema settings of a deleted topic; durable on return.

        Raises:
            FrazilError: if it could not be written. They are dropped at the next start then.
        """
        await self.store.change(lambda registry: registry.forget_topic(topic))

    def facts(self) -> dict[str, int]:
        """Return the counts of schemas and of the records that were checked."""
        return {**self.store.stats(), **self.checks.stats()}

    async def close(self) -> None:
        """Finish the changes that are being written; records that wait are refused."""
        await self.store.close()

    def routes(self, acts: Acts) -> dict[str, Route]:
        """Return the routes of the registry; the same ones serve both ports."""
        answers: dict[str, Answer] = {
            "RegisterSchema": self._register,
            "GetSchema": self._get,
            "GetLatestSchema": self._get_latest,
            "ListVersions": self._list_versions,
            "CheckCompatibility": self._check_compatibility,
            "DeleteSchemaVersion": self._delete_version,
            "SetCompatibilityMode": self._set_mode,
            "ConfigureTopicSchema": self._configure_topic,
            "UpdateTopicValidationPolicy": self._update_policy,
            "GetTopicSchemaConfig": self._topic_config,
            "ListSubjects": self._list_subjects,
        }
        return routes_of("danube_schema.SchemaRegistry", answers, acts)

    # -- schemas ---------------------------------------------------------------------------------

    async def _register(self, request: wire.RegisterSchemaRequest) -> wire.RegisterSchemaResponse:
        """Answer RegisterSchema when the version is durable; a known definition writes nothing."""
        new = NewSchema(
            subject=request.subject,
            type=request.schema_type,
            definition=request.schema_definition,
            now=self.clock.now_us() // SECOND_US,
            description=request.description,
            created_by=request.created_by,
            tags=tuple(request.tags),
        )
        found = await self.store.register(new)
        return wire.RegisterSchemaResponse(
            schema_id=found.schema_id,
            version=found.version,
            is_new_version=found.is_new_version,
            fingerprint=found.fingerprint,
        )

    async def _get(self, request: wire.GetSchemaRequest) -> wire.GetSchemaResponse:
        """Answer GetSchema: a version, or the latest one, of the subject with an id."""
        version = request.version if request.HasField("version") else None
        return _schema(self.store.registry.schema(request.schema_id, version))

    async def _get_latest(self, request: wire.GetLatestSchemaRequest) -> wire.GetSchemaResponse:
        """Answer GetLatestSchema."""
        return _schema(self.store.registry.latest_schema(request.subject))

    async def _list_versions(self, request: wire.ListVersionsRequest) -> wire.ListVersionsResponse:
        """Answer ListVersions, oldest first."""
        versions = self.store.registry.versions(request.subject)
        return wire.ListVersionsResponse(versions=map(_version_info, versions))

    async def _list_subjects(self, _request: wire.ListSubjectsRequest) -> wire.ListSubjectsResponse:
        """Answer ListSubjects, by name."""
        subjects = self.store.registry.subjects()
        return wire.ListSubjectsResponse(subjects=map(_subject_summary, subjects))

    async def _check_compatibility(
        self, request: wire.CheckCompatibilityRequest
    ) -> wire.CheckCompatibilityResponse:
        """Answer CheckCompatibility with all reasons; nothing is registered."""
        mode = request.compatibility_mode if request.HasField("compatibility_mode") else None
        errors = await self.store.check_compatibility(
            request.subject, request.schema_type, request.new_schema_definition, mode
        )
        return wire.CheckCompatibilityResponse(is_compatible=not errors, errors=errors)

    async def _delete_version(
        self, request: wire.DeleteSchemaVersionRequest
    ) -> wire.DeleteSchemaVersionResponse:
        """Answer DeleteSchemaVersion."""
        text = await self.store.change(
            lambda registry: registry.delete_version(request.subject, request.version)
        )
        return wire.DeleteSchemaVersionResponse(success=True, message=text)

    async def _set_mode(
        self, request: wire.SetCompatibilityModeRequest
    ) -> wire.SetCompatibilityModeResponse:
        """Answer SetCompatibilityMode."""
        text = await self.store.change(
            lambda registry: registry.set_mode(request.subject, request.compatibility_mode)
        )
        return wire.SetCompatibilityModeResponse(success=True, message=text)

    # -- topics ----------------------------------------------------------------------------------

    async def _configure_topic(
        self, request: wire.ConfigureTopicSchemaRequest
    ) -> wire.ConfigureTopicSchemaResponse:
        """Answer ConfigureTopicSchema: another subject than the producers' first one, too."""
        text = await self.configure(
            checked_topic(request.topic_name),
            request.schema_subject,
            request.validation_policy,
            check_payload=request.enable_payload_validation,
        )
        return wire.ConfigureTopicSchemaResponse(success=True, message=text)

    async def _update_policy(
        self, request: wire.UpdateTopicValidationPolicyRequest
    ) -> wire.UpdateTopicValidationPolicyResponse:
        """Answer UpdateTopicValidationPolicy."""
        try:
            text = await self._for_parts(
                checked_topic(request.topic_name),
                lambda registry, part: registry.update_policy(
                    part,
                    request.validation_policy,
                    check_payload=request.enable_payload_validation,
                ),
            )
        except NotFound as error:
            raise Refused(Status(Code.FAILED_PRECONDITION, status_of(error).text)) from error
        return wire.UpdateTopicValidationPolicyResponse(success=True, message=text)

    async def _topic_config(
        self, request: wire.GetTopicSchemaConfigRequest
    ) -> wire.GetTopicSchemaConfigResponse:
        """Answer GetTopicSchemaConfig; a topic without a subject has an empty one."""
        found = self.describe(checked_topic(request.topic_name))
        if found is None:
            return _NO_CONFIG
        return wire.GetTopicSchemaConfigResponse(
            schema_subject=found.config.subject,
            validation_policy=found.config.policy,
            enable_payload_validation=found.config.check_payload,
            schema_id=found.latest.subject.schema_id if found.latest else 0,
        )

    # -- inside ----------------------------------------------------------------------------------

    def _parts(self, topic: str) -> list[str]:
        parts = self._topics.parts(topic)
        if not parts:
            raise Refused(status("topic_missing", topic=topic))
        return parts

    async def _for_parts(self, topic: str, plan: Callable[[Registry, str], Planned[str]]) -> str:
        parts = self._parts(topic)
        return await self.store.change(
            lambda registry: _joined([plan(registry, part) for part in parts])
        )


def _joined(plans: Sequence[Planned[_Reply]]) -> Planned[_Reply]:
    """Return one plan of several on the same state, with the first one's reply."""
    changes = tuple(change for planned in plans for change in planned.changes)
    return attrs.evolve(plans[0], changes=changes)


def _plan_reference(registry: Registry, *, topic: str, reference: SchemaReference) -> Planned[None]:
    kind = reference.WhichOneof("version_ref")
    planned = registry.assign_topic(topic, reference.subject)
    registry.resolve(
        reference.subject,
        pinned_version=reference.pinned_version if kind == "pinned_version" else None,
        min_version=reference.min_version if kind == "min_version" else None,
    )
    return planned


def _drop_missing(states: States, topics: Topics) -> None:
    """Drop the settings of topics that were deleted while no broker ran."""
    for key in states.items(StateTag.SCHEMA):
        kind, name, _version = parse_key(key)
        if kind == "topic" and not topics.parts(name):
            states.delete(StateTag.SCHEMA, key)


def _schema(found: Schema) -> wire.GetSchemaResponse:
    """Return a schema as clients get it: with the definition as it was registered."""
    subject, entry = found.subject, found.entry
    return wire.GetSchemaResponse(
        schema_id=subject.schema_id,
        version=found.version,
        subject=subject.name,
        schema_type=entry.type,
        schema_definition=found.definition,
        description=entry.description,
        created_at=entry.created_at,
        created_by=entry.created_by,
        tags=entry.tags,
        fingerprint=entry.fingerprint,
        compatibility_mode=subject.mode,
    )


def _version_info(found: Schema) -> wire.SchemaVersionInfo:
    return wire.SchemaVersionInfo(
        version=found.version,
        created_at=found.entry.created_at,
        created_by=found.entry.created_by,
        description=found.entry.description,
        fingerprint=found.entry.fingerprint,
        schema_id=found.subject.schema_id,
    )


def _subject_summary(latest: Schema) -> wire.SubjectSummary:
    return wire.SubjectSummary(
        subject=latest.subject.name,
        schema_type=latest.entry.type,
        latest_version=latest.version,
        compatibility_mode=latest.subject.mode,
        schema_id=latest.subject.schema_id,
        tags=latest.entry.tags,
    )
