"""The calls of `danube_schema.SchemaRegistry`, served on both ports."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import FrazilError
from frazil.registry import IncompatibleSchema
from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto import danube_schema_pb2 as wire
from frazil.serve.danube.services import RPCS
from frazil.serve.danube.statuses import Refused, Status, status_of
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Unary, awaited

if TYPE_CHECKING:
    from frazil.registry import Planned, Registered, Registry, Schema
    from frazil.serve.danube.admin_acts import Acts
    from frazil.serve.danube.schema_topics import Schemas
    from frazil.serve.danube.services import WireMessage
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Handler, Route

__all__ = ["RegistryService", "registry_routes"]

SECOND_US: Final = 1_000_000
_NO_CONFIG: Final = wire.GetTopicSchemaConfigResponse(validation_policy="warn")
"""What is told of a topic without a subject: the policy that its first producer would give it."""

_SERVICE: Final = "/danube_schema.SchemaRegistry/"
_ACTS: Final = {
    "RegisterSchema": ("subject", "subject"),
    "DeleteSchemaVersion": ("subject", "subject"),
    "SetCompatibilityMode": ("subject", "subject"),
    "ConfigureTopicSchema": ("topic", "topic_name"),
    "UpdateTopicValidationPolicy": ("topic", "topic_name"),
}
"""The calls that change something: what they change, and the field that names it."""

_Answer = Callable[[bytes], Coroutine[Any, Any, "WireMessage"]]


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
    """Return the name of what an act is done to."""
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
        now = self._schemas.clock.now_us() // SECOND_US
        found = await self._store.change(partial(_plan_version, request=request, now=now))
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
        found = await self._store.read(lambda registry: registry.schema(request.schema_id, version))
        return _schema(found)

    async def get_latest(self, message: bytes) -> wire.GetSchemaResponse:
        """Answer GetLatestSchema."""
        request = parse_request(wire.GetLatestSchemaRequest, message)
        found = await self._store.read(lambda registry: registry.latest_schema(request.subject))
        return _schema(found)

    async def list_versions(self, message: bytes) -> wire.ListVersionsResponse:
        """Answer ListVersions, oldest first."""
        request = parse_request(wire.ListVersionsRequest, message)
        return await self._store.read(partial(_versions, subject=request.subject))

    async def list_subjects(self, message: bytes) -> wire.ListSubjectsResponse:
        """Answer ListSubjects, by name."""
        parse_request(wire.ListSubjectsRequest, message)
        return await self._store.read(_subjects)

    async def check_compatibility(self, message: bytes) -> wire.CheckCompatibilityResponse:
        """Answer CheckCompatibility with all reasons; nothing is registered."""
        request = parse_request(wire.CheckCompatibilityRequest, message)
        mode = request.compatibility_mode if request.HasField("compatibility_mode") else None
        found = await self._store.read(
            lambda registry: registry.check_compatibility(
                request.subject, request.schema_type, request.new_schema_definition, mode
            )
        )
        return wire.CheckCompatibilityResponse(
            is_compatible=found.is_compatible, errors=found.errors
        )

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
        found = await self._schemas.describe(checked_topic(request.topic_name))
        if found is None:
            return _NO_CONFIG
        return wire.GetTopicSchemaConfigResponse(
            schema_subject=found.config.subject,
            validation_policy=found.config.policy,
            enable_payload_validation=found.config.check_payload,
            schema_id=found.config.schema_id,
        )


def _plan_version(
    registry: Registry, *, request: wire.RegisterSchemaRequest, now: int
) -> Planned[Registered]:
    return registry.register(
        request.subject,
        request.schema_type,
        request.schema_definition,
        now=now,
        description=request.description,
        created_by=request.created_by,
        tags=tuple(request.tags),
    )


def _schema(found: Schema) -> wire.GetSchemaResponse:
    """Return a schema as clients get it: the definition is what was registered."""
    return wire.GetSchemaResponse(
        schema_id=found.schema_id,
        version=found.version,
        subject=found.subject,
        schema_type=found.type,
        schema_definition=found.definition,
        description=found.description,
        created_at=found.created_at,
        created_by=found.created_by,
        tags=found.tags,
        fingerprint=found.fingerprint,
        compatibility_mode=found.compatibility_mode,
    )


def _versions(registry: Registry, *, subject: str) -> wire.ListVersionsResponse:
    return wire.ListVersionsResponse(
        versions=[
            wire.SchemaVersionInfo(
                version=each.version,
                created_at=each.created_at,
                created_by=each.created_by,
                description=each.description,
                fingerprint=each.fingerprint,
                schema_id=each.schema_id,
            )
            for each in registry.versions(subject)
        ]
    )


def _subjects(registry: Registry) -> wire.ListSubjectsResponse:
    return wire.ListSubjectsResponse(
        subjects=[
            wire.SubjectSummary(
                subject=each.subject,
                schema_type=each.type,
                latest_version=each.latest_version,
                compatibility_mode=each.compatibility_mode,
                schema_id=each.schema_id,
                tags=each.tags,
            )
            for each in registry.subjects()
        ]
    )
