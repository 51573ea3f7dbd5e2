"""Subscriptions from the admin's side: listed, ended, their failure policies and windows.

A policy may be set before its subscription exists. Named by the whole of a partitioned topic, what
is said counts for all of its parts.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import InvalidRequest, NotFound
from frazil.model import topic_uid
from frazil.serve.danube.admin_calls import admin_act, admin_call
from frazil.serve.danube.admin_needs import uid_of
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto.danube_admin_pb2 import (
    GetSubscriptionDispatchConfigRequest,
    GetSubscriptionDispatchConfigResponse,
    GetSubscriptionFailurePolicyRequest,
    GetSubscriptionFailurePolicyResponse,
    SetSubscriptionDispatchConfigRequest,
    SetSubscriptionFailurePolicyRequest,
    SubscriptionDispatchConfig,
    SubscriptionFailurePolicy,
    SubscriptionListResponse,
    SubscriptionRequest,
    SubscriptionResponse,
    TopicRequest,
)
from frazil.subscribe import NAME_BYTES_MAX, Backoff, FailurePolicy, Poison, check_dead_letters

if TYPE_CHECKING:
    from frazil.engine import Topic
    from frazil.serve.danube.admin_needs import AdminNeeds
    from frazil.serve.grpc.router import Route
    from frazil.subscribe import Stored

__all__ = ["SubscriptionAdmin"]

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
