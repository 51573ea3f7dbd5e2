"""The schemas of topics, and the calls of `danube_schema.SchemaRegistry`, served on both ports."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import attrs

from frazil.errors import FrazilError, NotFound
from frazil.registry import IncompatibleSchema, NewSchema, SchemaChecks, SchemaStore, parse_key
from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto import danube_schema_pb2 as wire
from frazil.serve.danube.services import RPCS
from frazil.serve.danube.statuses import Refused, Status, record_refused, status, status_of
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Unary, awaited
from frazil.topic import StateTag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.engine import Engine
    from frazil.registry import Planned, Registry, Schema, TopicEntry
    from frazil.serve.danube.admin_calls import Acts
    from frazil.serve.danube.proto.danube_pb2 import SchemaReference
    from frazil.serve.danube.services import WireMessage
    from frazil.serve.danube.topics import Topics
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Handler, Route
    from frazil.topic import States

__all__ = ["RegistryService", "Schemas", "TopicFacts", "registry_routes"]

SECOND_US: Final = 1_000_000
_NO_CONFIG: Final = wire.GetTopicSchemaConfigResponse(validation_policy="warn")
"""Of a topic without a subject, with the policy that its first producer would set."""

_SERVICE: Final = "/danube_schema.SchemaRegistry/"
_ACTS: Final = {
    "RegisterSchema": ("subject", "subject"),
    "DeleteSchemaVersion": ("subject", "subject"),
    "SetCompatibilityMode": ("subject", "subject"),
    "ConfigureTopicSchema": ("topic", "topic_name"),
    "UpdateTopicValidationPolicy": ("topic", "topic_name"),
}
"""The calls that change something: the kind of their target, and the field with its name."""

_Answer = Callable[[bytes], Coroutine[Any, Any, "WireMessage"]]
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
        """Refuse a reference that a producer of a topic, there or not, may not have.

        Raises:
            Refused: if the topic has another subject, or the reference means no schema.
        """
        try:
            _plan_reference(self.store.registry, topic=topic, reference=reference)
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
        parsed = parse_key(key)
        if parsed.kind == "topic" and not topics.parts(parsed.name):
            states.delete(StateTag.SCHEMA, key)


def registry_routes(schemas: Schemas, acts: Acts) -> dict[str, Route]:
    """Return the routes of the registry; the same ones serve both ports."""
    service = RegistryService(schemas)
    answers: dict[str, _Answer] = {
        "RegisterSchema": service.register,
        "GetSchema": service.get,
        "GetLatestSchema": service.get_latest,
        "ListVersions": service.list_versions,
        "CheckCompatibility": service.check_compatibility,
        "DeleteSchemaVersion": service.delete_version,
        "SetCompatibilityMode": service.set_mode,
        "ConfigureTopicSchema": service.configure_topic,
        "UpdateTopicValidationPolicy": service.update_policy,
        "GetTopicSchemaConfig": service.topic_config,
        "ListSubjects": service.list_subjects,
    }
    return {
        f"{_SERVICE}{name}": Unary(_handler(answer, acts if name in _ACTS else None))
        for name, answer in answers.items()
    }


def _handler(answer: _Answer, acts: Acts | None) -> Handler:
    async def run(call: Call, message: bytes) -> bytes:
        if acts is None:
            return await _reply(answer, message)
        names = _names(call.path, message)
        return await acts.do(call, _reply(answer, message), **names)

    return awaited(run)


async def _reply(answer: _Answer, message: bytes) -> bytes:
    try:
        reply = await answer(message)
    except IncompatibleSchema as error:
        # Its text begins as the protocol's does.
        raise Refused(Status(Code.INTERNAL, status_of(error).text)) from error
    except FrazilError as error:
        raise Refused(status_of(error)) from error
    return reply.SerializeToString()


def _names(path: str, message: bytes) -> dict[str, str]:
    """Return the name of an act's target."""
    what, field = _ACTS[path.removeprefix(_SERVICE)]
    return {what: getattr(parse_request(RPCS[path].request, message), field)}


class RegistryService:
    """The eleven calls. All methods belong to the event loop's thread."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._store = schemas.store

    # -- schemas ---------------------------------------------------------------------------------

    async def register(self, message: bytes) -> wire.RegisterSchemaResponse:
        """Answer RegisterSchema when the version is durable; a known definition writes nothing."""
        request = parse_request(wire.RegisterSchemaRequest, message)
        new = NewSchema(
            subject=request.subject,
            type=request.schema_type,
            definition=request.schema_definition,
            now=self._schemas.clock.now_us() // SECOND_US,
            description=request.description,
            created_by=request.created_by,
            tags=tuple(request.tags),
        )
        found = await self._store.register(new)
        return wire.RegisterSchemaResponse(
            schema_id=found.schema_id,
            version=found.version,
            is_new_version=found.is_new_version,
            fingerprint=found.fingerprint,
        )

    async def get(self, message: bytes) -> wire.GetSchemaResponse:
        """Answer GetSchema: a version, or the latest one, of the subject with an id."""
        request = parse_request(wire.GetSchemaRequest, message)
        version = request.version if request.HasField("version") else None
        return _schema(self._store.registry.schema(request.schema_id, version))

    async def get_latest(self, message: bytes) -> wire.GetSchemaResponse:
        """Answer GetLatestSchema."""
        request = parse_request(wire.GetLatestSchemaRequest, message)
        return _schema(self._store.registry.latest_schema(request.subject))

    async def list_versions(self, message: bytes) -> wire.ListVersionsResponse:
        """Answer ListVersions, oldest first."""
        request = parse_request(wire.ListVersionsRequest, message)
        versions = self._store.registry.versions(request.subject)
        return wire.ListVersionsResponse(versions=map(_version_info, versions))

    async def list_subjects(self, message: bytes) -> wire.ListSubjectsResponse:
        """Answer ListSubjects, by name."""
        parse_request(wire.ListSubjectsRequest, message)
        subjects = self._store.registry.subjects()
        return wire.ListSubjectsResponse(subjects=map(_subject_summary, subjects))

    async def check_compatibility(self, message: bytes) -> wire.CheckCompatibilityResponse:
        """Answer CheckCompatibility with all reasons; nothing is registered."""
        request = parse_request(wire.CheckCompatibilityRequest, message)
        mode = request.compatibility_mode if request.HasField("compatibility_mode") else None
        errors = await self._store.check_compatibility(
            request.subject, request.schema_type, request.new_schema_definition, mode
        )
        return wire.CheckCompatibilityResponse(is_compatible=not errors, errors=errors)

    async def delete_version(self, message: bytes) -> wire.DeleteSchemaVersionResponse:
        """Answer DeleteSchemaVersion."""
        request = parse_request(wire.DeleteSchemaVersionRequest, message)
        text = await self._store.change(
            lambda registry: registry.delete_version(request.subject, request.version)
        )
        return wire.DeleteSchemaVersionResponse(success=True, message=text)

    async def set_mode(self, message: bytes) -> wire.SetCompatibilityModeResponse:
        """Answer SetCompatibilityMode."""
        request = parse_request(wire.SetCompatibilityModeRequest, message)
        text = await self._store.change(
            lambda registry: registry.set_mode(request.subject, request.compatibility_mode)
        )
        return wire.SetCompatibilityModeResponse(success=True, message=text)

    # -- topics ----------------------------------------------------------------------------------

    async def configure_topic(self, message: bytes) -> wire.ConfigureTopicSchemaResponse:
        """Answer ConfigureTopicSchema: another subject than the producers' first one, too."""
        request = parse_request(wire.ConfigureTopicSchemaRequest, message)
        text = await self._schemas.configure(
            checked_topic(request.topic_name),
            request.schema_subject,
            request.validation_policy,
            check_payload=request.enable_payload_validation,
        )
        return wire.ConfigureTopicSchemaResponse(success=True, message=text)

    async def update_policy(self, message: bytes) -> wire.UpdateTopicValidationPolicyResponse:
        """Answer UpdateTopicValidationPolicy."""
        request = parse_request(wire.UpdateTopicValidationPolicyRequest, message)
        text = await self._schemas.update_policy(
            checked_topic(request.topic_name),
            request.validation_policy,
            check_payload=request.enable_payload_validation,
        )
        return wire.UpdateTopicValidationPolicyResponse(success=True, message=text)

    async def topic_config(self, message: bytes) -> wire.GetTopicSchemaConfigResponse:
        """Answer GetTopicSchemaConfig; a topic without a subject has an empty one."""
        request = parse_request(wire.GetTopicSchemaConfigRequest, message)
        found = self._schemas.describe(checked_topic(request.topic_name))
        if found is None:
            return _NO_CONFIG
        return wire.GetTopicSchemaConfigResponse(
            schema_subject=found.config.subject,
            validation_policy=found.config.policy,
            enable_payload_validation=found.config.check_payload,
            schema_id=found.latest.subject.schema_id if found.latest else 0,
        )


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
