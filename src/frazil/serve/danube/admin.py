"""Topics from the admin's side: made whole or in parts, deleted, unloaded, listed, described.

`CreatePartitionedTopic` makes one partitioned topic of the engine. Its parts have the names that
clients expect, `<topic>-part-<i>`, and to producers, consumers and `TopicPartitions` each is a topic
like any other. But all of them are made, and deleted, by one decision that no crash can cut in
half, and in the lake the whole is one table, where as many topics as parts would be as many tables.
What parts share is their identity, so that one setting of a subscription counts for all of them.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import attrs

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound, Overloaded
from frazil.model import topic_uid
from frazil.serve.danube.admin_calls import admin_act, admin_call, uid_of
from frazil.serve.danube.names import check_namespace, checked_topic, namespace_of, part_of
from frazil.serve.danube.proto.danube_admin_pb2 import (
    BrokerInfo,
    BrokerRequest,
    DescribeTopicRequest,
    DescribeTopicResponse,
    DispatchStrategy,
    Empty,
    GetLeaderBrokerResponse,
    GetNamespacePoliciesResponse,
    GetNamespaceTopicsResponse,
    GetSubscriptionDispatchConfigRequest,
    GetSubscriptionDispatchConfigResponse,
    GetSubscriptionFailurePolicyRequest,
    GetSubscriptionFailurePolicyResponse,
    ListBrokersResponse,
    ListNamespacesResponse,
    NamespaceRequest,
    NamespaceResponse,
    NewTopicRequest,
    PartitionedTopicRequest,
    SetSubscriptionDispatchConfigRequest,
    SetSubscriptionFailurePolicyRequest,
    SubscriptionDispatchConfig,
    SubscriptionFailurePolicy,
    SubscriptionListResponse,
    SubscriptionRequest,
    SubscriptionResponse,
    TopicInfo,
    TopicInfoListResponse,
    TopicRequest,
    TopicResponse,
)
from frazil.serve.danube.proto.danube_pb2 import SchemaReference
from frazil.serve.danube.statuses import Refused, Status, status
from frazil.serve.grpc.codec import Code
from frazil.subscribe import NAME_BYTES_MAX, Backoff, FailurePolicy, Poison, check_dead_letters
from frazil.telemetry import warn
from frazil.topic import PARTITIONS_MAX, StateTag

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.engine import Engine, Topic
    from frazil.serve.danube.admin_calls import Acts, AdminNeeds
    from frazil.serve.grpc.router import Route
    from frazil.subscribe import Stored

__all__ = [
    "NAMESPACES_MAX",
    "BrokerAdmin",
    "BrokerFacts",
    "NamespaceAdmin",
    "Namespaces",
    "SubscriptionAdmin",
    "TopicAdmin",
    "admin_routes",
]

_SERVICE: Final = "/danube_admin.TopicAdmin/"


class SubscriptionAdmin:
    """Answers the calls of `danube_admin.TopicAdmin` that are about subscriptions."""

    def __init__(self, needs: AdminNeeds) -> None:
        self._needs = needs
        self._settings = needs.settings

    def routes(self) -> dict[str, Route]:
        """Return the calls by path."""
        act = partial(admin_act, self._needs.acts, topic="topic", subscription="subscription")
        return {
            f"{_SERVICE}ListSubscriptions": admin_call(TopicRequest, self._list),
            f"{_SERVICE}Unsubscribe": act(SubscriptionRequest, self._unsubscribe),
            f"{_SERVICE}SetSubscriptionFailurePolicy": act(
                SetSubscriptionFailurePolicyRequest, self._set_policy
            ),
            f"{_SERVICE}GetSubscriptionFailurePolicy": admin_call(
                GetSubscriptionFailurePolicyRequest, self._get_policy
            ),
            f"{_SERVICE}SetSubscriptionDispatchConfig": act(
                SetSubscriptionDispatchConfigRequest, self._set_window
            ),
            f"{_SERVICE}GetSubscriptionDispatchConfig": admin_call(
                GetSubscriptionDispatchConfigRequest, self._get_window
            ),
        }

    async def _list(self, request: TopicRequest) -> SubscriptionListResponse:
        topics = self._needs.named(request.name)
        return SubscriptionListResponse(subscriptions=self._needs.subscriptions(topics))

    # -- ended -----------------------------------------------------------------------------------

    async def _unsubscribe(self, request: SubscriptionRequest) -> SubscriptionResponse:
        topics = self._needs.named(request.topic)
        if self._known(topics, request.subscription) is None:
            raise _unknown(request.topic, request.subscription)
        await self._end(topics, request.subscription)
        return SubscriptionResponse(success=True)

    async def _end(self, topics: list[Topic], name: str) -> None:
        before = {uid_of(topic): self._settings.find(uid_of(topic), name) for topic in topics}
        for topic in topics:
            await self._needs.unsubscribe(topic.name, name)
        for uid, stored in before.items():
            if not self._is_left(uid, name):
                await asyncio.to_thread(self._settings.delete, uid, name)
            elif stored is not None:
                await asyncio.to_thread(self._settings.put, uid, name, stored)

    def _is_left(self, uid: str, name: str) -> bool:
        """Tell whether another part of a topic has the subscription, and needs its settings."""
        engine = self._needs.engine
        return any(
            topic_uid(runtime.state.spec) == uid and name in engine.cursors.names(runtime.name)
            for runtime in engine.runtimes
        )

    # -- policies --------------------------------------------------------------------------------

    async def _set_policy(
        self, request: SetSubscriptionFailurePolicyRequest
    ) -> SubscriptionResponse:
        topics = self._needs.named(request.topic)
        if not request.HasField("failure_policy"):
            raise InvalidRequest("the request has no failure_policy")
        policy = _policy_of(request.failure_policy)
        if policy.dead_letter_topic is not None:
            checked_topic(policy.dead_letter_topic)
        runtimes = [topic.runtime for topic in topics]
        check_dead_letters(self._needs.engine, runtimes, policy)
        await self._change(topics, request.subscription, policy=policy)
        return SubscriptionResponse(success=True)

    async def _get_policy(
        self, request: GetSubscriptionFailurePolicyRequest
    ) -> GetSubscriptionFailurePolicyResponse:
        stored = self._stored(request.topic, request.subscription)
        return GetSubscriptionFailurePolicyResponse(
            failure_policy=_wire_policy(stored.policy),
            subscription_type=0 if stored.kind is None else int(stored.kind),
        )

    # -- windows ---------------------------------------------------------------------------------

    async def _set_window(
        self, request: SetSubscriptionDispatchConfigRequest
    ) -> SubscriptionResponse:
        topics = self._needs.named(request.topic)
        if not request.HasField("dispatch_config"):
            raise InvalidRequest("the request has no dispatch_config")
        window = request.dispatch_config.max_unacked_messages
        await self._change(topics, request.subscription, max_unacked_messages=window)
        return SubscriptionResponse(success=True)

    async def _get_window(
        self, request: GetSubscriptionDispatchConfigRequest
    ) -> GetSubscriptionDispatchConfigResponse:
        stored = self._stored(request.topic, request.subscription)
        return GetSubscriptionDispatchConfigResponse(
            dispatch_config=SubscriptionDispatchConfig(
                max_unacked_messages=stored.max_unacked_messages
            )
        )

    # -- both ------------------------------------------------------------------------------------

    async def _change(self, topics: list[Topic], name: str, **changes: Any) -> None:
        """Make a change of settings durable, then let it count."""
        _check_name(name)
        # Settings may be of names that nobody subscribed by, but not of ever more of them.
        most = self._needs.engine.settings.serve.subscriptions_max
        for uid in {uid_of(topic) for topic in topics}:
            await asyncio.to_thread(self._settings.change, uid, name, names_max=most, **changes)
        for topic in topics:
            self._needs.deliveries.configure(topic.name, name)

    def _stored(self, topic: str, name: str) -> Stored:
        topics = self._needs.named(topic)
        stored = self._known(topics, name)
        if stored is None:
            raise _unknown(topic, name)
        return stored

    def _known(self, topics: list[Topic], name: str) -> Stored | None:
        """Return what counts for a subscription that exists or has settings, else None."""
        uids = [uid_of(topic) for topic in topics]
        found = [self._settings.find(uid, name) for uid in uids]
        stored = next((each for each in found if each is not None), None)
        if stored is None and name in self._needs.subscriptions(topics):
            stored = self._settings.get(uids[0], name)
        return stored


def _unknown(topic: str, name: str) -> NotFound:
    return NotFound("unable to find the subscription", topic=topic, subscription=name)


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise InvalidRequest(
            "a subscription's name must be text of 1 to 512 bytes", bytes_max=NAME_BYTES_MAX
        )


def _policy_of(wire: SubscriptionFailurePolicy) -> FailurePolicy:
    """Return a policy as the broker has it.

    Raises:
        InvalidRequest: with the reason, if it is none.
    """
    if wire.backoff_strategy not in set(Backoff):
        raise InvalidRequest(
            "there is no such backoff_strategy", backoff_strategy=wire.backoff_strategy
        )
    if wire.poison_policy not in set(Poison):
        raise InvalidRequest("there is no such poison_policy", poison_policy=wire.poison_policy)
    return FailurePolicy(
        max_redelivery_count=wire.max_redelivery_count,
        ack_timeout_ms=wire.ack_timeout_ms,
        base_redelivery_delay_ms=wire.base_redelivery_delay_ms,
        max_redelivery_delay_ms=wire.max_redelivery_delay_ms,
        backoff=Backoff(wire.backoff_strategy),
        poison=Poison(wire.poison_policy),
        dead_letter_topic=wire.dead_letter_topic or None,
    )


def _wire_policy(policy: FailurePolicy) -> SubscriptionFailurePolicy:
    return SubscriptionFailurePolicy(
        max_redelivery_count=policy.max_redelivery_count,
        ack_timeout_ms=policy.ack_timeout_ms,
        base_redelivery_delay_ms=policy.base_redelivery_delay_ms,
        max_redelivery_delay_ms=policy.max_redelivery_delay_ms,
        backoff_strategy=int(policy.backoff),
        dead_letter_topic=policy.dead_letter_topic,
        poison_policy=int(policy.poison),
    )


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


_ROLE: Final = "Cluster_Leader"
_STATUS: Final = "active"


@attrs.frozen(kw_only=True)
class BrokerFacts:
    """Who this broker is, and where: URLs with their schemes."""

    broker_id: str
    url: str
    admin_url: str
    metrics_url: str


class BrokerAdmin:
    """Answers the calls of `danube_admin.BrokerAdmin`."""

    def __init__(self, facts: BrokerFacts, namespaces: Namespaces) -> None:
        self._facts = facts
        self._namespaces = namespaces

    def routes(self) -> dict[str, Route]:
        """Return the calls by path."""
        return {
            "/danube_admin.BrokerAdmin/ListBrokers": admin_call(Empty, self._brokers),
            "/danube_admin.BrokerAdmin/GetLeaderBroker": admin_call(Empty, self._leader),
            "/danube_admin.BrokerAdmin/ListNamespaces": admin_call(Empty, self._all_namespaces),
        }

    async def _brokers(self, _request: Empty) -> ListBrokersResponse:
        facts = self._facts
        broker = BrokerInfo(
            broker_id=facts.broker_id,
            broker_addr=facts.url,
            broker_role=_ROLE,
            admin_addr=facts.admin_url,
            metrics_addr=facts.metrics_url,
            broker_status=_STATUS,
        )
        return ListBrokersResponse(brokers=[broker])

    async def _leader(self, _request: Empty) -> GetLeaderBrokerResponse:
        return GetLeaderBrokerResponse(leader=self._facts.broker_id)

    async def _all_namespaces(self, _request: Empty) -> ListNamespacesResponse:
        return ListNamespacesResponse(namespaces=await self._namespaces.names())


def admin_routes(needs: AdminNeeds, facts: BrokerFacts) -> dict[str, Route]:
    """Return the routes of TopicAdmin, NamespaceAdmin and BrokerAdmin.

    Everything that is not among them is answered UNIMPLEMENTED. Call it in the loop that serves.
    """
    namespaces = Namespaces(needs.engine)
    return {
        **TopicAdmin(needs, namespaces, broker_id=facts.broker_id).routes(),
        **SubscriptionAdmin(needs).routes(),
        **NamespaceAdmin(namespaces, needs.engine.settings, needs.acts).routes(),
        **BrokerAdmin(facts, namespaces).routes(),
    }


class TopicAdmin:
    """Answers the calls of `danube_admin.TopicAdmin` that are about whole topics."""

    def __init__(self, needs: AdminNeeds, namespaces: Namespaces, *, broker_id: str) -> None:
        self._needs = needs
        self._namespaces = namespaces
        self._broker_id = broker_id

    def routes(self) -> dict[str, Route]:
        """Return the calls by path."""
        acts = self._needs.acts
        return {
            f"{_SERVICE}CreateTopic": admin_act(acts, NewTopicRequest, self._create, topic="name"),
            f"{_SERVICE}CreatePartitionedTopic": admin_act(
                acts, PartitionedTopicRequest, self._create_parts, topic="base_name"
            ),
            f"{_SERVICE}DeleteTopic": admin_act(acts, TopicRequest, self._delete, topic="name"),
            f"{_SERVICE}UnloadTopic": admin_act(acts, TopicRequest, self._unload, topic="name"),
            f"{_SERVICE}DescribeTopic": admin_call(DescribeTopicRequest, self._describe),
            f"{_SERVICE}ListNamespaceTopics": admin_call(NamespaceRequest, self._of_namespace),
            f"{_SERVICE}ListBrokerTopics": admin_call(BrokerRequest, self._of_broker),
        }

    # -- made ------------------------------------------------------------------------------------

    async def _create(self, request: NewTopicRequest) -> TopicResponse:
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        await self._make(request.name, request.dispatch_strategy, subject=subject, partitions=0)
        return TopicResponse(success=True)

    async def _create_parts(self, request: PartitionedTopicRequest) -> TopicResponse:
        if not 1 <= request.partitions <= PARTITIONS_MAX:
            raise InvalidRequest(
                "number of partitions is out of range",
                partitions=request.partitions,
                partitions_max=PARTITIONS_MAX,
            )
        subject = request.schema_subject if request.HasField("schema_subject") else ""
        await self._make(
            request.base_name,
            request.dispatch_strategy,
            subject=subject,
            partitions=request.partitions,
        )
        return TopicResponse(success=True)

    async def _make(self, asked: str, strategy: int, *, subject: str, partitions: int) -> None:
        name = checked_topic(asked)
        if strategy not in DispatchStrategy.values():
            raise InvalidRequest("there is no such dispatch strategy", dispatch_strategy=strategy)
        needs = self._needs
        if subject:
            # Before the topic is there: most refusals then leave nothing to take back.
            needs.schemas.check_reference(name, SchemaReference(subject=subject))
        is_reliable = strategy == DispatchStrategy.Reliable
        try:
            await needs.topics.make(name, is_reliable=is_reliable, partitions=partitions)
        except Conflict as error:
            raise Refused(Status(Code.ALREADY_EXISTS, str(error))) from error
        if subject:
            try:
                await needs.schemas.configure(name, subject, "", check_payload=False)
            except (FrazilError, Refused):
                # A topic that takes everything is not the one that was asked for.
                await self._remove(name)
                raise

    # -- deleted and unloaded --------------------------------------------------------------------

    async def _delete(self, request: TopicRequest) -> TopicResponse:
        name = checked_topic(request.name)
        self._needs.named(name)
        if part_of(name) is not None:
            raise Refused(status("part_not_deletable", topic=name))
        await self._remove(name)
        return TopicResponse(success=True)

    async def _remove(self, name: str) -> None:
        """Delete a topic, or all parts of one, and forget whatever was known of it."""
        needs = self._needs
        gone = needs.named(name)
        parts = [topic.name for topic in gone]
        is_one = gone[0].runtime.state.spec.part_of or parts == [name]
        # Parts that clients made one by one are topics of their own, and are deleted one by one.
        for each in [name] if is_one else parts:
            await asyncio.to_thread(needs.engine.delete_topic, each)
        for part in parts:
            needs.forget(part)
        try:
            for part in parts:
                await needs.schemas.forget_topic(part)
            for uid in {uid_of(topic) for topic in gone}:
                await asyncio.to_thread(needs.settings.forget_topic, uid)
                await needs.topics.forget(uid)
        except FrazilError as error:
            # The topic is gone all the same. The next start finds what is left, and removes it.
            warn("topic_leftovers", topic=name, error=error)

    async def _unload(self, request: TopicRequest) -> TopicResponse:
        for topic in self._needs.named(request.name):
            self._needs.consumers.unload(topic.name)
            self._needs.topics.release(topic.name)
        return TopicResponse(success=True)

    # -- told ------------------------------------------------------------------------------------

    async def _describe(self, request: DescribeTopicRequest) -> DescribeTopicResponse:
        needs = self._needs
        topics = needs.named(request.name)
        reply = DescribeTopicResponse(
            name=checked_topic(request.name),
            subscriptions=needs.subscriptions(topics),
            broker_id=self._broker_id,
            delivery=self._delivery(topics[0]),
        )
        facts = needs.schemas.describe(topics[0].name)
        if facts is not None:
            reply.schema_subject = facts.config.subject
            if facts.latest is not None:
                reply.schema_id = facts.latest.subject.schema_id
                reply.schema_version = facts.latest.version
                reply.schema_type = facts.latest.entry.type
                reply.compatibility_mode = facts.latest.subject.mode.upper()
        return reply

    async def _of_namespace(self, request: NamespaceRequest) -> TopicInfoListResponse:
        name = await self._namespaces.checked(request.name)
        return self._infos(self._namespaces.topics(name))

    async def _of_broker(self, request: BrokerRequest) -> TopicInfoListResponse:
        if request.broker_id != self._broker_id:
            raise NotFound("unable to find the broker", broker_id=request.broker_id)
        return self._infos(sorted(runtime.name for runtime in self._needs.engine.runtimes))

    def _infos(self, names: list[str]) -> TopicInfoListResponse:
        found = [self._needs.topics.find(name) for name in names]
        return TopicInfoListResponse(
            topics=[
                TopicInfo(
                    name=topic.name, broker_id=self._broker_id, delivery=self._delivery(topic)
                )
                for topic in found
                if topic is not None
            ]
        )

    def _delivery(self, topic: Topic) -> str:
        is_reliable = self._needs.topics.is_reliable(topic)
        return DispatchStrategy.Name(int(is_reliable))
