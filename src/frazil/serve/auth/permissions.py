"""The permission that each RPC and each HTTP call needs: the tables of the guard.

A call that is not in a table is not served. Where a request names a producer or consumer by its id,
the topic is that of the id, never a name that the caller sent with it.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from frazil.errors import InvalidRequest
from frazil.model import full_topic_name
from frazil.registry import check_subject
from frazil.serve.auth.roles import (
    ANYTHING,
    CLUSTER,
    Action,
    Resource,
    ResourceKind,
    topic_resource,
)
from frazil.serve.danube.messages import check_attributes, parse_request
from frazil.serve.danube.names import check_namespace, checked_topic
from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as data
from frazil.serve.danube.proto import danube_schema_pb2 as schema
from frazil.serve.danube.statuses import Refused, status, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from frazil.engine import Call

__all__ = [
    "HTTP_CALLS",
    "RPCS",
    "Need",
    "Owners",
    "Rpc",
    "Scope",
    "needs",
    "needs_of_call",
]


class Scope(enum.Enum):
    """What a field of a request names."""

    TOPIC = "topic"
    TOPIC_IF_SET = "topic_if_set"
    NAMESPACE = "namespace"
    SUBJECT = "subject"
    PRODUCER = "producer"
    CONSUMER = "consumer"
    CLIENT = "client"
    CLUSTER = "cluster"
    TOPIC_OR_CLUSTER = "topic_or_cluster"
    ANYTHING = "anything"


class Owners(Protocol):
    """Whose topic an id of a producer or consumer is. Called in the loop, so it must not wait."""

    @property
    def attributes_max(self) -> int:
        """How many attributes a message may have: one with many more is not even parsed."""

    def producer_topic(self, producer_id: int) -> str | None:
        """Return the full name of the producer's topic, None if there is no such producer."""

    def recognise(self, producer_id: int, *, topic: str, producer: str) -> str | None:
        """Return the full name of `topic` if the producer of that name has this id, else None.

        Producers of an earlier life of the broker come without creating themselves again.
        """

    def consumer_topic(self, consumer_id: int) -> str | None:
        """Return the full name of the consumer's topic, None if there is no such consumer."""


class Target(NamedTuple):
    """An action on what a field names; no action is any of the three."""

    action: Action | None
    scope: Scope
    field: str
    value_of: Callable[[Any], Any]


class Rpc(NamedTuple):
    """One call: the message it takes, and what it needs."""

    request: type[Any]
    targets: tuple[Target, ...]


class Need(NamedTuple):
    """An action on a resource that a request needs."""

    action: Action | None
    resource: Resource


_PRODUCE: Final = Action.PRODUCE
_CONSUME: Final = Action.CONSUME
_ADMIN: Final = Action.ADMIN


def _target(action: Action | None, scope: Scope, field: str = "") -> Target:
    return Target(action, scope, field, attrgetter(field) if field else lambda _: None)


def _rpc(
    request: type[Any], action: Action | None, scope: Scope, field: str = "", *also: Target
) -> Rpc:
    return Rpc(request, (_target(action, scope, field), *also))


RPCS: Final[Mapping[str, Rpc]] = MappingProxyType(
    {
        f"/{service}/{method}": rpc
        for service, methods in {
            "danube.ProducerService": {
                "CreateProducer": _rpc(data.ProducerRequest, _PRODUCE, Scope.TOPIC, "topic_name"),
                "SendMessage": _rpc(
                    data.StreamMessage, _PRODUCE, Scope.PRODUCER, "msg_id.producer_id"
                ),
            },
            "danube.ConsumerService": {
                "Subscribe": _rpc(data.ConsumerRequest, _CONSUME, Scope.TOPIC, "topic_name"),
                "ReceiveMessages": _rpc(
                    data.ReceiveRequest, _CONSUME, Scope.CONSUMER, "consumer_id"
                ),
                "Ack": _rpc(data.AckRequest, _CONSUME, Scope.TOPIC, "msg_id.topic_name"),
                "Nack": _rpc(data.NackRequest, _CONSUME, Scope.TOPIC, "msg_id.topic_name"),
            },
            "danube.Discovery": {
                "TopicLookup": _rpc(data.TopicLookupRequest, None, Scope.TOPIC, "topic"),
                "TopicPartitions": _rpc(data.TopicLookupRequest, None, Scope.TOPIC, "topic"),
            },
            "danube.HealthCheck": {
                "HealthCheck": _rpc(data.HealthCheckRequest, None, Scope.CLIENT, "id"),
            },
            "danube.StorageService": {
                "ListSegmentDescriptors": _rpc(
                    data.ListSegmentDescriptorsRequest, _CONSUME, Scope.TOPIC, "topic"
                ),
            },
            "danube_schema.SchemaRegistry": {
                "RegisterSchema": _rpc(
                    schema.RegisterSchemaRequest, _PRODUCE, Scope.SUBJECT, "subject"
                ),
                # A consumer has only the id of a schema, so schemas can be read by whoever has
                # anything granted; docs/security.md says so.
                "GetSchema": _rpc(schema.GetSchemaRequest, None, Scope.ANYTHING),
                "GetLatestSchema": _rpc(schema.GetLatestSchemaRequest, None, Scope.ANYTHING),
                "ListVersions": _rpc(schema.ListVersionsRequest, None, Scope.ANYTHING),
                "CheckCompatibility": _rpc(schema.CheckCompatibilityRequest, None, Scope.ANYTHING),
                "ListSubjects": _rpc(schema.ListSubjectsRequest, None, Scope.ANYTHING),
                "DeleteSchemaVersion": _rpc(
                    schema.DeleteSchemaVersionRequest, _ADMIN, Scope.SUBJECT, "subject"
                ),
                "SetCompatibilityMode": _rpc(
                    schema.SetCompatibilityModeRequest, _ADMIN, Scope.SUBJECT, "subject"
                ),
                "ConfigureTopicSchema": _rpc(
                    schema.ConfigureTopicSchemaRequest, _ADMIN, Scope.TOPIC, "topic_name"
                ),
                "UpdateTopicValidationPolicy": _rpc(
                    schema.UpdateTopicValidationPolicyRequest, _ADMIN, Scope.TOPIC, "topic_name"
                ),
                "GetTopicSchemaConfig": _rpc(
                    schema.GetTopicSchemaConfigRequest, None, Scope.TOPIC, "topic_name"
                ),
            },
            "danube_admin.TopicAdmin": {
                "CreateTopic": _rpc(admin.NewTopicRequest, _ADMIN, Scope.TOPIC, "name"),
                "CreatePartitionedTopic": _rpc(
                    admin.PartitionedTopicRequest, _ADMIN, Scope.TOPIC, "base_name"
                ),
                "DeleteTopic": _rpc(admin.TopicRequest, _ADMIN, Scope.TOPIC, "name"),
                "UnloadTopic": _rpc(admin.TopicRequest, _ADMIN, Scope.TOPIC, "name"),
                "ListSubscriptions": _rpc(admin.TopicRequest, _ADMIN, Scope.TOPIC, "name"),
                "Unsubscribe": _rpc(admin.SubscriptionRequest, _ADMIN, Scope.TOPIC, "topic"),
                # The broker writes dead letters in the caller's name, so the caller must be
                # allowed to produce there.
                "SetSubscriptionFailurePolicy": _rpc(
                    admin.SetSubscriptionFailurePolicyRequest,
                    _ADMIN,
                    Scope.TOPIC,
                    "topic",
                    _target(_PRODUCE, Scope.TOPIC_IF_SET, "failure_policy.dead_letter_topic"),
                ),
                "GetSubscriptionFailurePolicy": _rpc(
                    admin.GetSubscriptionFailurePolicyRequest, _ADMIN, Scope.TOPIC, "topic"
                ),
                "SetSubscriptionDispatchConfig": _rpc(
                    admin.SetSubscriptionDispatchConfigRequest, _ADMIN, Scope.TOPIC, "topic"
                ),
                "GetSubscriptionDispatchConfig": _rpc(
                    admin.GetSubscriptionDispatchConfigRequest, _ADMIN, Scope.TOPIC, "topic"
                ),
                "DescribeTopic": _rpc(admin.DescribeTopicRequest, _ADMIN, Scope.TOPIC, "name"),
                "ListNamespaceTopics": _rpc(
                    admin.NamespaceRequest, _ADMIN, Scope.NAMESPACE, "name"
                ),
                "ListBrokerTopics": _rpc(admin.BrokerRequest, _ADMIN, Scope.CLUSTER),
            },
            "danube_admin.NamespaceAdmin": {
                "GetNamespaceTopics": _rpc(admin.NamespaceRequest, _ADMIN, Scope.NAMESPACE, "name"),
                "GetNamespacePolicies": _rpc(
                    admin.NamespaceRequest, _ADMIN, Scope.NAMESPACE, "name"
                ),
                "CreateNamespace": _rpc(admin.NamespaceRequest, _ADMIN, Scope.NAMESPACE, "name"),
                "DeleteNamespace": _rpc(admin.NamespaceRequest, _ADMIN, Scope.NAMESPACE, "name"),
            },
            "danube_admin.BrokerAdmin": {
                "ListBrokers": _rpc(admin.Empty, _ADMIN, Scope.CLUSTER),
                "GetLeaderBroker": _rpc(admin.Empty, _ADMIN, Scope.CLUSTER),
                "ListNamespaces": _rpc(admin.Empty, _ADMIN, Scope.CLUSTER),
            },
        }.items()
        for method, rpc in methods.items()
    }
)
"""Every call that is served, by its path."""


HTTP_CALLS: Final[Mapping[str, Scope]] = MappingProxyType(
    {
        "list": Scope.TOPIC_OR_CLUSTER,
        **dict.fromkeys(("create", "reset", "drop", "policy"), Scope.TOPIC),
        **dict.fromkeys(("backup", "list_objects", "collect_objects"), Scope.CLUSTER),
    }
)
"""What each call of the HTTP port needs `admin` on, by its tag."""


def needs_of_call(call: Call) -> list[Need]:
    """Return all that a call of the HTTP port needs; each of it must be granted.

    Raises:
        InvalidRequest: if a name is no topic's.
    """
    scope = HTTP_CALLS[call.call]
    if scope is Scope.CLUSTER or (scope is Scope.TOPIC_OR_CLUSTER and call.topic is None):
        return [Need(_ADMIN, CLUSTER)]
    found = [Need(_ADMIN, topic_resource(full_topic_name(call.topic or "")))]
    letters = call.policy.get("dead_letter_topic")
    if isinstance(letters, str) and letters:
        # As for SetSubscriptionFailurePolicy.
        found.append(Need(_PRODUCE, topic_resource(full_topic_name(letters))))
    return found


def needs(rpc: Rpc, message: bytes, owners: Owners) -> list[Need]:
    """Return all that a request needs; each of it must be granted.

    Raises:
        Refused: with the protocol's status, if the bytes are no message of this call, a name is
            no topic's, subject's or namespace's, or nobody has the id.
    """
    if rpc.request is data.StreamMessage:
        check_attributes(message, owners.attributes_max)
    request = parse_request(rpc.request, message)
    found = []
    for target in rpc.targets:
        resource = _resource(target, request, owners)
        if resource is not None:
            found.append(Need(target.action, resource))
    return found


def _resource(target: Target, request: Any, owners: Owners) -> Resource | None:
    """Return what a target stands for in a request, None if nothing has to be asked for."""
    if target.field.startswith("msg_id.") and not request.HasField("msg_id"):
        raise Refused(status("message_id_missing"))
    value = target.value_of(request)
    match target.scope:
        case Scope.PRODUCER:
            topic = owners.producer_topic(value)
            if topic is None:
                topic = owners.recognise(
                    value, topic=request.msg_id.topic_name, producer=request.producer_name
                )
            if topic is None:
                raise Refused(status("producer_unknown", producer_id=value))
            return _named(topic)
        case Scope.CONSUMER:
            topic = owners.consumer_topic(value)
            # Whoever may consume at all hears from the handler that there is none: it takes its
            # time, because some clients ask again at once.
            return ANYTHING if topic is None else _named(topic)
        case Scope.TOPIC:
            return _named(value)
        case Scope.TOPIC_IF_SET:
            return _named(value) if value else None
        case Scope.NAMESPACE:
            _check(check_namespace, value)
            return Resource(ResourceKind.NAMESPACE, namespace=value)
        case Scope.SUBJECT:
            _check(check_subject, value)
            return Resource(ResourceKind.SUBJECT, name=value)
        case Scope.CLIENT:
            return _client(request, owners)
        case Scope.CLUSTER | Scope.TOPIC_OR_CLUSTER:
            return CLUSTER
        case Scope.ANYTHING:
            return ANYTHING


def _check(check: Callable[[str], None], name: str) -> None:
    """Refuse what is no name before it is compared with patterns: it may be as long as a request."""
    try:
        check(name)
    except InvalidRequest as error:
        raise Refused(status_of(error)) from error


@lru_cache(maxsize=4096)
def _named(topic: str) -> Resource:
    """Return the topic as the engine names it: two writings of one name are one topic."""
    return topic_resource(checked_topic(topic))


def _client(request: data.HealthCheckRequest, owners: Owners) -> Resource | None:
    """Return the topic of a health check's client; None lets the broker say that there is none."""
    is_producer = request.client == data.HealthCheckRequest.Producer
    topic = owners.producer_topic(request.id) if is_producer else owners.consumer_topic(request.id)
    return None if topic is None else _named(topic)
