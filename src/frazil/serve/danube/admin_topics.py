"""Topics from the admin's side: made whole or in parts, deleted, unloaded, listed, described.

`CreatePartitionedTopic` makes one partitioned topic of the engine. Its parts have the names that
clients expect, `<topic>-part-<i>`, and to producers, consumers and `TopicPartitions` each is a topic
like any other. But all of them are made, and deleted, by one decision that no crash can cut in
half, and in the lake the whole is one table, where as many topics as parts would be as many tables.
What parts share is their identity, so that one setting of a subscription counts for all of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound
from frazil.serve.danube.admin_calls import admin_act, admin_call
from frazil.serve.danube.admin_needs import uid_of
from frazil.serve.danube.names import checked_topic, part_of
from frazil.serve.danube.proto.danube_admin_pb2 import (
    BrokerRequest,
    DescribeTopicRequest,
    DescribeTopicResponse,
    DispatchStrategy,
    NamespaceRequest,
    NewTopicRequest,
    PartitionedTopicRequest,
    TopicInfo,
    TopicInfoListResponse,
    TopicRequest,
    TopicResponse,
)
from frazil.serve.danube.proto.danube_pb2 import SchemaReference
from frazil.serve.danube.statuses import Refused, Status, part_not_deletable
from frazil.serve.grpc.codec import Code
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.engine import Topic
    from frazil.serve.danube.admin_namespaces import Namespaces
    from frazil.serve.danube.admin_needs import AdminNeeds
    from frazil.serve.grpc.router import Route

__all__ = ["TopicAdmin"]

_SERVICE: Final = "/danube_admin.TopicAdmin/"


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
        most = self._needs.engine.settings.topics.partitions_max
        if not 1 <= request.partitions <= most:
            raise InvalidRequest(
                "number of partitions is out of range",
                partitions=request.partitions,
                partitions_max=most,
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
            raise Refused(part_not_deletable(name))
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
