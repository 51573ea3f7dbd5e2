"""The table of calls: the request type, the permission, and whether the call changes something.

A call that is not in the table is not served. If a request names a producer or consumer by its id,
the topic is that of the id, never a name in the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from frazil.errors import InvalidRequest
from frazil.registry import check_subject
from frazil.serve.auth import ANYTHING, CLUSTER, Action, Need, Resource, topic_resource
from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.names import check_namespace, checked_topic
from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as data
from frazil.serve.danube.proto import danube_schema_pb2 as schema
from frazil.serve.danube.statuses import Refused, status, status_of
from frazil.serve.grpc.router import Unary, awaited

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.serve.danube.admin import Acts
    from frazil.serve.danube.routes import Services
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Route

__all__ = ["RPCS", "Answer", "Rpc", "Target", "needs_of", "routes_of"]

Answer = Callable[[Any], Awaitable[Any]]
"""Takes the parsed request of a call and returns its reply."""
Scope = Literal[
    "topic",
    "topic_if_set",
    "namespace",
    "subject",
    "producer",
    "consumer",
    "client",
    "cluster",
    "anything",
]
"""The kinds of name that a field of a request can have."""


class Target(NamedTuple):
    """An action on the resource that a field names; None is any of the three actions."""

    action: Action | None
    scope: Scope
    field: str = ""


class Rpc(NamedTuple):
    """One call: its request type, the permissions it needs, and whether it is logged."""

    request: type[Any]
    targets: tuple[Target, ...]
    is_act: bool


_PRODUCE: Final = Action.PRODUCE
_CONSUME: Final = Action.CONSUME
_ADMIN: Final = Action.ADMIN


def _rpc(
    request: type[Any], action: Action | None, scope: Scope, field: str = "", *also: Target
) -> Rpc:
    return Rpc(request, (Target(action, scope, field), *also), is_act=False)


def _act(request: type[Any], action: Action | None, scope: Scope, field: str, *also: Target) -> Rpc:
    return Rpc(request, (Target(action, scope, field), *also), is_act=True)


RPCS: Final[Mapping[str, Rpc]] = MappingProxyType(
    {
        f"/{service}/{method}": rpc
        for service, methods in {
            "danube.ProducerService": {
                "CreateProducer": _rpc(data.ProducerRequest, _PRODUCE, "topic", "topic_name"),
                "SendMessage": _rpc(data.StreamMessage, _PRODUCE, "producer", "msg_id.producer_id"),
            },
            "danube.ConsumerService": {
                "Subscribe": _rpc(data.ConsumerRequest, _CONSUME, "topic", "topic_name"),
                "ReceiveMessages": _rpc(data.ReceiveRequest, _CONSUME, "consumer", "consumer_id"),
                "Ack": _rpc(data.AckRequest, _CONSUME, "topic", "msg_id.topic_name"),
                "Nack": _rpc(data.NackRequest, _CONSUME, "topic", "msg_id.topic_name"),
            },
            "danube.Discovery": {
                "TopicLookup": _rpc(data.TopicLookupRequest, None, "topic", "topic"),
                "TopicPartitions": _rpc(data.TopicLookupRequest, None, "topic", "topic"),
            },
            "danube.HealthCheck": {
                "HealthCheck": _rpc(data.HealthCheckRequest, None, "client", "id"),
            },
            "danube.StorageService": {
                "ListSegmentDescriptors": _rpc(
                    data.ListSegmentDescriptorsRequest, _CONSUME, "topic", "topic"
                ),
            },
            "danube_schema.SchemaRegistry": {
                "RegisterSchema": _act(
                    schema.RegisterSchemaRequest, _PRODUCE, "subject", "subject"
                ),
                # A consumer has only the id of a schema, so any grant is enough to read schemas;
                # docs/security.md says so.
                "GetSchema": _rpc(schema.GetSchemaRequest, None, "anything"),
                "GetLatestSchema": _rpc(schema.GetLatestSchemaRequest, None, "anything"),
                "ListVersions": _rpc(schema.ListVersionsRequest, None, "anything"),
                "CheckCompatibility": _rpc(schema.CheckCompatibilityRequest, None, "anything"),
                "ListSubjects": _rpc(schema.ListSubjectsRequest, None, "anything"),
                "DeleteSchemaVersion": _act(
                    schema.DeleteSchemaVersionRequest, _ADMIN, "subject", "subject"
                ),
                "SetCompatibilityMode": _act(
                    schema.SetCompatibilityModeRequest, _ADMIN, "subject", "subject"
                ),
                "ConfigureTopicSchema": _act(
                    schema.ConfigureTopicSchemaRequest, _ADMIN, "topic", "topic_name"
                ),
                "UpdateTopicValidationPolicy": _act(
                    schema.UpdateTopicValidationPolicyRequest, _ADMIN, "topic", "topic_name"
                ),
                "GetTopicSchemaConfig": _rpc(
                    schema.GetTopicSchemaConfigRequest, None, "topic", "topic_name"
                ),
            },
            "danube_admin.TopicAdmin": {
                "CreateTopic": _act(admin.NewTopicRequest, _ADMIN, "topic", "name"),
                "CreatePartitionedTopic": _act(
                    admin.PartitionedTopicRequest, _ADMIN, "topic", "base_name"
                ),
                "DeleteTopic": _act(admin.TopicRequest, _ADMIN, "topic", "name"),
                "UnloadTopic": _act(admin.TopicRequest, _ADMIN, "topic", "name"),
                "ListSubscriptions": _rpc(admin.TopicRequest, _ADMIN, "topic", "name"),
                "Unsubscribe": _act(admin.SubscriptionRequest, _ADMIN, "topic", "topic"),
                # The broker writes dead letters in the caller's name, so the caller must be
                # allowed to produce there.
                "SetSubscriptionFailurePolicy": _act(
                    admin.SetSubscriptionFailurePolicyRequest,
                    _ADMIN,
                    "topic",
                    "topic",
                    Target(_PRODUCE, "topic_if_set", "failure_policy.dead_letter_topic"),
                ),
                "GetSubscriptionFailurePolicy": _rpc(
                    admin.GetSubscriptionFailurePolicyRequest, _ADMIN, "topic", "topic"
                ),
                "SetSubscriptionDispatchConfig": _act(
                    admin.SetSubscriptionDispatchConfigRequest, _ADMIN, "topic", "topic"
                ),
                "GetSubscriptionDispatchConfig": _rpc(
                    admin.GetSubscriptionDispatchConfigRequest, _ADMIN, "topic", "topic"
                ),
                "DescribeTopic": _rpc(admin.DescribeTopicRequest, _ADMIN, "topic", "name"),
                "ListNamespaceTopics": _rpc(admin.NamespaceRequest, _ADMIN, "namespace", "name"),
                "ListBrokerTopics": _rpc(admin.BrokerRequest, _ADMIN, "cluster"),
            },
            "danube_admin.NamespaceAdmin": {
                "GetNamespaceTopics": _rpc(admin.NamespaceRequest, _ADMIN, "namespace", "name"),
                "GetNamespacePolicies": _rpc(admin.NamespaceRequest, _ADMIN, "namespace", "name"),
                "CreateNamespace": _act(admin.NamespaceRequest, _ADMIN, "namespace", "name"),
                "DeleteNamespace": _act(admin.NamespaceRequest, _ADMIN, "namespace", "name"),
            },
            "danube_admin.BrokerAdmin": {
                "ListBrokers": _rpc(admin.Empty, _ADMIN, "cluster"),
                "GetLeaderBroker": _rpc(admin.Empty, _ADMIN, "cluster"),
                "ListNamespaces": _rpc(admin.Empty, _ADMIN, "cluster"),
            },
        }.items()
        for method, rpc in methods.items()
    }
)
"""Every call that is served, by its path."""


def needs_of(path: str, message: bytes, services: Services) -> list[Need] | None:
    """Return all permissions that a request needs; None if there is no such call.

    It runs in the event loop and must not block.

    Raises:
        Refused: if the bytes are not a message of this call, a topic, subject or namespace name is
            invalid, or the id is unknown.
    """
    rpc = RPCS.get(path)
    if rpc is None:
        return None
    request = parse_request(rpc.request, message)
    found = ((target, _resource(target, request, services)) for target in rpc.targets)
    return [Need(target.action, resource) for target, resource in found if resource is not None]


def _resource(target: Target, request: Any, services: Services) -> Resource | None:
    """Return the resource that a target names in a request, None if it needs no permission."""
    if target.field.startswith("msg_id.") and not request.HasField("msg_id"):
        raise Refused(status("message_id_missing"))
    if target.scope in _FIXED:
        return _FIXED[target.scope]
    return _RESOURCES[target.scope](services, attrgetter(target.field)(request), request)


def _of_producer(services: Services, identity: int, request: Any) -> Resource:
    producers = services.producers
    topic = producers.producer_topic(identity) or producers.recognise(
        identity, topic=request.msg_id.topic_name, producer=request.producer_name
    )
    if topic is None:
        raise Refused(status("producer_unknown", producer_id=identity))
    return _topic(topic)


def _of_consumer(services: Services, identity: int, _request: Any) -> Resource:
    topic = services.consumers.consumer_topic(identity)
    # The handler answers that there is no such consumer, after a pause, because some clients retry
    # at once.
    return ANYTHING if topic is None else _topic(topic)


def _of_client(services: Services, identity: int, request: Any) -> Resource | None:
    topic = (
        services.producers.producer_topic(identity)
        if request.client == data.HealthCheckRequest.Producer
        else services.consumers.consumer_topic(identity)
    )
    # Without a topic the handler answers that there is no such client.
    return None if topic is None else _topic(topic)


def _of_namespace(_services: Services, name: str, _request: Any) -> Resource:
    _check(check_namespace, name)
    return Resource("namespace", namespace=name)


def _of_subject(_services: Services, name: str, _request: Any) -> Resource:
    _check(check_subject, name)
    return Resource("subject", name=name)


def _check(check: Callable[[str], None], name: str) -> None:
    """Refuse an invalid name before the pattern match: it may be as long as a request."""
    try:
        check(name)
    except InvalidRequest as error:
        raise Refused(status_of(error)) from error


@lru_cache(maxsize=4096)
def _topic(name: str) -> Resource:
    """Return the topic as the engine names it: two spellings of one name are one topic."""
    return topic_resource(checked_topic(name))


def _of_topic(_services: Services, name: str, _request: Any) -> Resource:
    return _topic(name)


def _of_topic_if_set(_services: Services, name: str, _request: Any) -> Resource | None:
    return _topic(name) if name else None


_FIXED: Final[Mapping[Scope, Resource]] = MappingProxyType(
    {"cluster": CLUSTER, "anything": ANYTHING}
)
_RESOURCES: Final[Mapping[Scope, Callable[[Services, Any, Any], Resource | None]]] = (
    MappingProxyType(
        {
            "producer": _of_producer,
            "consumer": _of_consumer,
            "client": _of_client,
            "topic": _of_topic,
            "topic_if_set": _of_topic_if_set,
            "namespace": _of_namespace,
            "subject": _of_subject,
        }
    )
)
"""Functions of the services, the value of a target's field, and the request."""


# -- calls of administration ---------------------------------------------------------------------


def routes_of(service: str, answers: Mapping[str, Answer], acts: Acts) -> dict[str, Route]:
    """Return the routes of a service, from the answers by the names of their calls.

    A change is finished even if its caller disconnects, and logged.
    """
    return {
        path: Unary(awaited(_handler(RPCS[path], answer, acts)))
        for path, answer in ((f"/{service}/{name}", answer) for name, answer in answers.items())
    }


def _handler(rpc: Rpc, answer: Answer, acts: Acts) -> Callable[[Call, bytes], Awaitable[bytes]]:
    async def reply(request: Any) -> bytes:
        found: bytes = (await answer(request)).SerializeToString()
        return found

    async def run(call: Call, message: bytes) -> bytes:
        request = parse_request(rpc.request, message)
        if not rpc.is_act:
            return await reply(request)
        target = rpc.targets[0]
        names: dict[str, str] = {target.scope: getattr(request, target.field)}
        if hasattr(request, "subscription"):
            names["subscription"] = request.subscription
        return await acts.do(call, reply(request), **names)

    return run
