"""The calls of the admin port: topics, subscriptions, namespaces and the broker.

`CreatePartitionedTopic` creates one partitioned topic of the engine. Its parts have the names that
clients expect, `<topic>-part-<i>`. To producers, consumers and `TopicPartitions` each part is a
topic. But all parts are created and deleted by one atomic change, and the lake has one table for
all of them, where separate topics would have one each. The parts share an identity, so a setting of
a subscription applies to all parts.

No call blocks the loop: waits for the journal happen in a thread.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, TypeVar

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound, Overloaded
from frazil.model import NAMESPACES_AT_BOOT, topic_uid
from frazil.serve.danube.consumers import CONSUMERS_MAX
from frazil.serve.danube.names import check_namespace, checked_topic, namespace_of, part_of
from frazil.serve.danube.producers import PRODUCERS_MAX
from frazil.serve.danube.proto import danube_admin_pb2 as wire
from frazil.serve.danube.proto.danube_pb2 import SchemaReference
from frazil.serve.danube.rpcs import Answer, routes_of
from frazil.serve.danube.statuses import Refused, Status, status, status_of
from frazil.serve.grpc.codec import CallFailed, Code
from frazil.serve.grpc.router import to_its_end
from frazil.subscribe import (
    NAME_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    Backoff,
    FailurePolicy,
    Poison,
    check_dead_letters,
)
from frazil.telemetry import event, warn
from frazil.topic import PARTITIONS_MAX, StateTag

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from frazil.engine import Engine, Topic
    from frazil.serve.auth import Caller
    from frazil.serve.danube.routes import Services
    from frazil.serve.grpc.router import Route
    from frazil.subscribe import Stored

__all__ = ["NAMESPACES_MAX", "Acts", "Admin"]

NAMESPACES_MAX: Final = 10_000

_Result = TypeVar("_Result")


class Acts:
    """Executes and logs changes. All methods belong to the event loop's thread."""

    def __init__(self) -> None:
        self.principal_of: Callable[[Caller], object] = lambda _caller: "anonymous"
        """Returns the caller's name, None if it is no longer known; set with authentication."""

    async def do(
        self, caller: Caller, work: Coroutine[Any, Any, _Result], **names: object
    ) -> _Result:
        """Finish work even if the caller disconnects; `names` are the changed resources."""
        who = {"path": caller.path, "principal": self.principal_of(caller), "peer": caller.peer}
        return await to_its_end(_logged(work, {**who, **names}))


async def _logged(work: Coroutine[Any, Any, _Result], facts: dict[str, Any]) -> _Result:
    status = Code.INTERNAL
    try:
        found = await work
        status = Code.OK
    except (CallFailed, FrazilError) as error:
        status = status_of(error).code
        raise
    finally:
        event("admin_act", **facts, status=status.name)
    return found


def _uid_of(topic: Topic) -> str:
    """Return the identity of a topic, which its parts share."""
    return topic_uid(topic.runtime.state.spec)


class Admin:
    """Answers the calls of `danube_admin`. All methods belong to the event loop's thread."""

    def __init__(self, services: Services, engine: Engine) -> None:
        self._services = services
        self._engine = engine
        self._topics = services.topics
        self._settings = services.subscription_settings
        self._broker_id = services.broker_id
        self._changing_namespaces = asyncio.Lock()

    def routes(self) -> dict[str, Route]:
        """Return the routes of TopicAdmin, NamespaceAdmin and BrokerAdmin.

        Everything that is not among them is answered UNIMPLEMENTED.
        """
        topics: dict[str, Answer] = {
            "CreateTopic": self._create,
            "CreatePartitionedTopic": self._create_parts,
            "DeleteTopic": self._delete,
            "UnloadTopic": self._unload,
            "DescribeTopic": self._describe,
            "ListNamespaceTopics": self._list_namespace_topics,
            "ListBrokerTopics": self._list_broker_topics,
            "ListSubscriptions": self._list_subscriptions,
            "Unsubscribe": self._unsubscribe,
            "SetSubscriptionFailurePolicy": self._set_policy,
            "GetSubscriptionFailurePolicy": self._get_policy,
            "SetSubscriptionDispatchConfig": self._set_window,
            "GetSubscriptionDispatchConfig": self._get_window,
        }
        namespaces: dict[str, Answer] = {
            "GetNamespaceTopics": self._get_namespace_topics,
            "GetNamespacePolicies": self._get_namespace_policies,
            "CreateNamespace": self._create_namespace,
            "DeleteNamespace": self._delete_namespace,
        }
        brokers: dict[str, Answer] = {
            "ListBrokers": self._list_brokers,
            "GetLeaderBroker": self._get_leader,
            "ListNamespaces": self._list_namespaces,
        }
        acts = self._services.acts
        return {
            **routes_of("danube_admin.TopicAdmin", topics, acts),
            **routes_of("danube_admin.NamespaceAdmin", namespaces, acts),
            **routes_of("danube_admin.BrokerAdmin", brokers, acts),
        }

    def _named(self, name: str) -> list[Topic]:
        """Return the topic of a name, or all parts of a partitioned one.

        Raises:
            Refused: if the name is none, or there is no such topic.
        """
        found = [self._topics.find(part) for part in self._topics.parts(checked_topic(name))]
        there = [topic for topic in found if topic is not None]
        if not there:
            raise Refused(status("topic_missing", topic=name))
        return there

    # -- topics ----------------------------------------------------------------------------------

    async def _create(self, request: wire.NewTopicRequest) -> wire.TopicResponse:
        return await self._make(request.name, request, partitions=0)

    async def _create_parts(self, request: wire.PartitionedTopicRequest) -> wire.TopicResponse:
        if not 1 <= request.partitions <= PARTITIONS_MAX:
            raise InvalidRequest(
                "number of partitions is out of range",
                partitions=request.partitions,
                partitions_max=PARTITIONS_MAX,
            )
        return await self._make(request.base_name, request, partitions=request.partitions)

    async def _make(
        self,
        asked: str,
        request: wire.NewTopicRequest | wire.PartitionedTopicRequest,
        *,
        partitions: int,
    ) -> wire.TopicResponse:
        name = checked_topic(asked)
        strategy, subject = request.dispatch_strategy, request.schema_subject
        if strategy not in wire.DispatchStrategy.values():
            raise InvalidRequest("there is no such dispatch strategy", dispatch_strategy=strategy)
        schemas = self._services.schemas
        if subject:
            # Before the topic is there: most refusals then leave nothing to take back.
            schemas.check_reference(name, SchemaReference(subject=subject))
        is_reliable = strategy == wire.DispatchStrategy.Reliable
        try:
            await self._topics.make(name, is_reliable=is_reliable, partitions=partitions)
        except Conflict as error:
            raise Refused(Status(Code.ALREADY_EXISTS, str(error))) from error
        if subject:
            try:
                await schemas.configure(name, subject, "", check_payload=False)
            except (FrazilError, Refused):
                # A topic without a schema is not the requested one.
                await self._remove(name)
                raise
        return wire.TopicResponse(success=True)

    async def _delete(self, request: wire.TopicRequest) -> wire.TopicResponse:
        name = checked_topic(request.name)
        self._named(name)
        whole = part_of(name)
        # A part after a gap is a separate topic: no partitioned topic covers it.
        if whole is not None and name in self._topics.parts(whole[0]):
            raise Refused(status("part_not_deletable", topic=name))
        await self._remove(name)
        return wire.TopicResponse(success=True)

    async def _remove(self, name: str) -> None:
        """Delete a topic, or all its parts, and all state about it."""
        gone = self._named(name)
        parts = [topic.name for topic in gone]
        is_one = gone[0].runtime.state.spec.part_of or parts == [name]
        # Parts that clients created one by one are separate topics and are deleted one by one. The
        # last part is deleted first: after a crash the first part leads to the rest.
        for each in [name] if is_one else reversed(parts):
            await asyncio.to_thread(self._engine.delete_topic, each)
        services = self._services
        for part in parts:
            self._topics.release(part)
            services.deliveries.forget_topic(part)
            services.consumers.forget_topic(part)
        try:
            for part in parts:
                await services.schemas.forget_topic(part)
            for uid in {_uid_of(topic) for topic in gone}:
                await asyncio.to_thread(self._settings.forget_topic, uid)
                await self._topics.forget(uid)
        except FrazilError as error:
            # The topic is deleted all the same. The next start removes the remaining state.
            warn("topic_leftovers", topic=name, error=error)

    async def _unload(self, request: wire.TopicRequest) -> wire.TopicResponse:
        for topic in self._named(request.name):
            self._services.consumers.unload(topic.name)
            self._topics.release(topic.name)
        return wire.TopicResponse(success=True)

    async def _describe(self, request: wire.DescribeTopicRequest) -> wire.DescribeTopicResponse:
        topics = self._named(request.name)
        reply = wire.DescribeTopicResponse(
            name=checked_topic(request.name),
            subscriptions=self._subscriptions(topics),
            broker_id=self._broker_id,
            delivery=self._delivery(topics[0]),
        )
        facts = self._services.schemas.describe(topics[0].name)
        if facts is not None:
            reply.schema_subject = facts.config.subject
            if facts.latest is not None:
                reply.schema_id = facts.latest.subject.schema_id
                reply.schema_version = facts.latest.version
                reply.schema_type = facts.latest.entry.type
                reply.compatibility_mode = facts.latest.subject.mode.upper()
        return reply

    async def _list_namespace_topics(
        self, request: wire.NamespaceRequest
    ) -> wire.TopicInfoListResponse:
        await self._check_namespace(request.name)
        return self._infos(self._topics_in(request.name))

    async def _list_broker_topics(self, request: wire.BrokerRequest) -> wire.TopicInfoListResponse:
        if request.broker_id != self._broker_id:
            raise NotFound("unable to find the broker", broker_id=request.broker_id)
        return self._infos(sorted(runtime.name for runtime in self._engine.runtimes))

    def _infos(self, names: list[str]) -> wire.TopicInfoListResponse:
        found = [self._topics.find(name) for name in names]
        infos = [
            wire.TopicInfo(
                name=topic.name, broker_id=self._broker_id, delivery=self._delivery(topic)
            )
            for topic in found
            if topic is not None
        ]
        return wire.TopicInfoListResponse(topics=infos)

    def _delivery(self, topic: Topic) -> str:
        return wire.DispatchStrategy.Name(int(self._topics.is_reliable(topic)))

    # -- subscriptions ---------------------------------------------------------------------------

    def _subscriptions(self, topics: list[Topic]) -> list[str]:
        """Return the subscriptions of a topic, or of all of its parts, sorted."""
        found: set[str] = set()
        for topic in topics:
            found.update(topic.runtime.state.cursors)
            found.update(self._services.unreliable.names(topic.name))
        return sorted(found)

    async def _list_subscriptions(
        self, request: wire.TopicRequest
    ) -> wire.SubscriptionListResponse:
        topics = self._named(request.name)
        return wire.SubscriptionListResponse(subscriptions=self._subscriptions(topics))

    async def _unsubscribe(self, request: wire.SubscriptionRequest) -> wire.SubscriptionResponse:
        topics, name = self._named(request.topic), request.subscription
        self._stored(request.topic, name)
        services = self._services
        for topic in topics:
            if name in topic.runtime.state.cursors:
                await services.deliveries.drop(topic.name, name)
            services.unreliable.drop(topic.name, name)
            services.consumers.forget_subscription(topic.name, name)
        for uid in {_uid_of(topic) for topic in topics}:
            if not services.deliveries.is_used(uid, name):
                await asyncio.to_thread(self._settings.delete, uid, name)
        return wire.SubscriptionResponse(success=True)

    async def _set_policy(
        self, request: wire.SetSubscriptionFailurePolicyRequest
    ) -> wire.SubscriptionResponse:
        topics = self._named(request.topic)
        if not request.HasField("failure_policy"):
            raise InvalidRequest("the request has no failure_policy")
        policy = _policy_of(request.failure_policy)
        if policy.dead_letter_topic is not None:
            checked_topic(policy.dead_letter_topic)
        check_dead_letters(self._engine, [topic.runtime for topic in topics], policy)
        return await self._change(topics, request.subscription, policy=policy)

    async def _get_policy(
        self, request: wire.GetSubscriptionFailurePolicyRequest
    ) -> wire.GetSubscriptionFailurePolicyResponse:
        stored = self._stored(request.topic, request.subscription)
        policy = stored.policy
        return wire.GetSubscriptionFailurePolicyResponse(
            failure_policy=wire.SubscriptionFailurePolicy(
                backoff_strategy=int(policy.backoff),
                dead_letter_topic=policy.dead_letter_topic,
                poison_policy=int(policy.poison),
                **{name: getattr(policy, name) for name in _SAME},
            ),
            subscription_type=0 if stored.kind is None else int(stored.kind),
        )

    async def _set_window(
        self, request: wire.SetSubscriptionDispatchConfigRequest
    ) -> wire.SubscriptionResponse:
        topics = self._named(request.topic)
        if not request.HasField("dispatch_config"):
            raise InvalidRequest("the request has no dispatch_config")
        window = request.dispatch_config.max_unacked_messages
        return await self._change(topics, request.subscription, max_unacked_messages=window)

    async def _get_window(
        self, request: wire.GetSubscriptionDispatchConfigRequest
    ) -> wire.GetSubscriptionDispatchConfigResponse:
        stored = self._stored(request.topic, request.subscription)
        return wire.GetSubscriptionDispatchConfigResponse(
            dispatch_config=wire.SubscriptionDispatchConfig(
                max_unacked_messages=stored.max_unacked_messages
            )
        )

    async def _change(
        self, topics: list[Topic], name: str, **changes: Any
    ) -> wire.SubscriptionResponse:
        """Make a change of settings durable, then apply it."""
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise InvalidRequest(
                "a subscription's name must be text of 1 to 512 bytes", bytes_max=NAME_BYTES_MAX
            )
        # Settings may precede their subscription, but only a bounded number of them.
        most = SUBSCRIPTIONS_MAX
        for uid in {_uid_of(topic) for topic in topics}:
            await asyncio.to_thread(self._settings.change, uid, name, names_max=most, **changes)
        for topic in topics:
            self._services.deliveries.configure(topic.name, name)
        return wire.SubscriptionResponse(success=True)

    def _stored(self, topic: str, name: str) -> Stored:
        """Return the settings of a subscription that exists or has some."""
        topics = self._named(topic)
        uids = [_uid_of(each) for each in topics]
        found = [self._settings.find(uid, name) for uid in uids]
        stored = next((each for each in found if each is not None), None)
        if stored is None and name in self._subscriptions(topics):
            stored = self._settings.get(uids[0], name)
        if stored is None:
            raise NotFound("unable to find the subscription", topic=topic, subscription=name)
        return stored

    # -- namespaces and the broker ---------------------------------------------------------------

    async def _made(self) -> dict[str, bytes]:
        """Return the namespaces that were made by a call."""
        return await asyncio.to_thread(self._engine.states.items, StateTag.NAMESPACE)

    def _all_topics(self) -> list[str]:
        """Return all topics, also those that could not be opened."""
        return [*(runtime.name for runtime in self._engine.runtimes), *list(self._engine.unusable)]

    async def _names(self) -> list[str]:
        """Return all namespaces, sorted."""
        used = {namespace_of(topic) for topic in self._all_topics()}
        return sorted({*NAMESPACES_AT_BOOT, *await self._made(), *used})

    async def _check_namespace(self, name: str) -> None:
        """Refuse a name that is no namespace's.

        Raises:
            InvalidRequest: if no namespace may have this name.
            NotFound: if there is none.
        """
        check_namespace(name)
        if name not in await self._names():
            raise NotFound("unable to find the namespace", namespace=name)

    def _topics_in(self, namespace: str) -> list[str]:
        """Return the topics of a namespace as clients have them: parts are topics, too."""
        names = (runtime.name for runtime in self._engine.runtimes)
        return sorted(topic for topic in names if namespace_of(topic) == namespace)

    async def _get_namespace_topics(
        self, request: wire.NamespaceRequest
    ) -> wire.GetNamespaceTopicsResponse:
        await self._check_namespace(request.name)
        return wire.GetNamespaceTopicsResponse(topics=self._topics_in(request.name))

    async def _get_namespace_policies(
        self, request: wire.NamespaceRequest
    ) -> wire.GetNamespacePoliciesResponse:
        await self._check_namespace(request.name)
        # The limits are the same for every namespace.
        policies = {
            "max_producers_per_topic": PRODUCERS_MAX,
            "max_subscriptions_per_topic": SUBSCRIPTIONS_MAX,
            "max_consumers_per_subscription": CONSUMERS_MAX,
            "max_message_size": self._engine.settings.topics.message_bytes_max,
        }
        return wire.GetNamespacePoliciesResponse(policies=json.dumps(policies))

    async def _create_namespace(self, request: wire.NamespaceRequest) -> wire.NamespaceResponse:
        name = request.name
        check_namespace(name)
        async with self._changing_namespaces:
            made = await self._made()
            if name in made or name in NAMESPACES_AT_BOOT:
                raise Refused(Status(Code.ALREADY_EXISTS, f"The namespace {name} already exists"))
            if len(made) >= NAMESPACES_MAX:
                raise Overloaded("too many namespaces", namespaces_max=NAMESPACES_MAX)
            await asyncio.to_thread(self._engine.states.put, StateTag.NAMESPACE, name, b"1")
        return wire.NamespaceResponse(success=True)

    async def _delete_namespace(self, request: wire.NamespaceRequest) -> wire.NamespaceResponse:
        name = request.name
        async with self._changing_namespaces:
            await self._check_namespace(name)
            if name in NAMESPACES_AT_BOOT:
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
        return wire.NamespaceResponse(success=True)

    async def _list_namespaces(self, _request: wire.Empty) -> wire.ListNamespacesResponse:
        return wire.ListNamespacesResponse(namespaces=await self._names())

    async def _list_brokers(self, _request: wire.Empty) -> wire.ListBrokersResponse:
        urls = self._services.addresses
        broker = wire.BrokerInfo(
            broker_id=self._broker_id,
            broker_addr=urls["advertised_url"],
            broker_role="Cluster_Leader",
            admin_addr=urls["admin_url"],
            metrics_addr=urls["http_url"],
            broker_status="active",
        )
        return wire.ListBrokersResponse(brokers=[broker])

    async def _get_leader(self, _request: wire.Empty) -> wire.GetLeaderBrokerResponse:
        return wire.GetLeaderBrokerResponse(leader=self._broker_id)


_SAME: Final = (
    "max_redelivery_count",
    "ack_timeout_ms",
    "base_redelivery_delay_ms",
    "max_redelivery_delay_ms",
)
"""The fields of a policy that are numbers on the wire and here."""


def _policy_of(policy: wire.SubscriptionFailurePolicy) -> FailurePolicy:
    """Return a policy as the broker has it.

    Raises:
        InvalidRequest: with the reason, if it is none.
    """
    for name, kind in (("backoff_strategy", Backoff), ("poison_policy", Poison)):
        value = getattr(policy, name)
        if value not in set(kind):
            raise InvalidRequest(f"there is no such {name}", **{name: value})
    return FailurePolicy(
        backoff=Backoff(policy.backoff_strategy),
        poison=Poison(policy.poison_policy),
        dead_letter_topic=policy.dead_letter_topic or None,
        **{name: getattr(policy, name) for name in _SAME},
    )
