"""What an engine and a topic can do with subscriptions: subscribe, list, reset, remove, configure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from frazil.engine.lake_calls import LakeCalls
from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.model import full_topic_name, topic_uid
from frazil.subscribe import (
    Request,
    Stored,
    Stream,
    change_settings,
    check_dead_letters,
    check_stored,
    checked_wait,
    kind_of,
    policy_of,
    subscription_facts,
)
from frazil.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from frazil.engine.engine import Engine
    from frazil.subscribe import Deliveries, FailurePolicy
    from frazil.topic import Start, TopicRuntime

__all__ = ["PREFETCH", "PREFETCH_BYTES", "SubscribeCalls", "SubscriptionCalls", "request_of"]

PREFETCH: Final = 100
PREFETCH_BYTES: Final = 4 << 20


class SubscriptionCalls(LakeCalls):
    """The calls of an engine about the subscriptions of its topics."""

    def subscriptions(self, topic: str) -> list[dict[str, Any]]:
        """Return a topic's subscriptions, ready for JSON: who consumes, and how far they are.

        `lag_records`, `lag_bytes` (an estimate) and `lag_seconds` say what is not acked: how many,
        how large, and how old the oldest is. `paused` says why nothing is delivered, if so. Of a
        partitioned topic all parts are added up, with each in `parts`.

        Raises:
            NotFound: if there is no such topic.
        """
        return subscription_facts(self, self._subscribed(topic))

    def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        type: str = "shared",  # noqa: A002 - the word that everybody looks for
        start: Start = "latest",
    ) -> None:
        """Make a subscription that nobody consumes yet; durable on return. It keeps its records.

        Raises:
            Conflict: if there is one of this name.
            NotFound: if there is no such topic.
            InvalidRequest: if the name, the type or the start cannot be used, or the topic stores
                nothing.
        """
        runtimes = self._subscribed(topic)
        check_stored(self, runtimes)
        kind = kind_of(type)
        _check_start(runtimes, start)
        if any(name in runtime.state.cursors for runtime in runtimes):
            raise Conflict("subscription exists", topic=full_topic_name(topic), subscription=name)
        for runtime in runtimes:
            self.cursors.check_room(runtime, name)

        async def make(deliveries: Deliveries) -> None:
            for runtime in runtimes:
                await deliveries.open(runtime.name, name, kind=kind, start=start)

        self.subscribing.call(make)

    def unsubscribe(self, topic: str, name: str) -> None:
        """Remove a subscription; durable on return. Its consumers end, its records may go.

        Raises:
            NotFound: if there is no such topic or subscription.
        """
        runtimes = self._having(topic, name)

        async def end(deliveries: Deliveries) -> None:
            for runtime in runtimes:
                await deliveries.drop(runtime.name, name)

        self.subscribing.call(end)

    def reset_subscription(self, topic: str, name: str, to: Start) -> dict[str, int]:
        """Put a subscription back or ahead; durable on return, which has the offset by topic.

        `to` is an offset, `"earliest"`, `"latest"` or a datetime. Records before it count as acked,
        those from it on as not delivered yet. Offsets are those of one part.

        Raises:
            NotFound: if there is no such topic or subscription.
            InvalidRequest: if the place is not among the topic's records, or it stores nothing.
        """
        check_stored(self, self._subscribed(topic))
        runtimes = self._having(topic, name)
        _check_start(runtimes, to)

        async def put(deliveries: Deliveries) -> dict[str, int]:
            found: dict[str, int] = {}
            for runtime in runtimes:
                found[runtime.name] = await deliveries.reset(runtime.name, name, to)
            return found

        return self.subscribing.call(put)

    def subscription_policy(self, topic: str, name: str) -> FailurePolicy:
        """Return what happens to failed deliveries of a subscription.

        Raises:
            NotFound: if there is no such topic.
        """
        uid = topic_uid(self._subscribed(topic)[0].state.spec)
        return self.subscribing.settings.get(uid, name).policy

    def subscription_window(self, topic: str, name: str) -> int:
        """Return how many records of a subscription may be delivered and not acked.

        Raises:
            NotFound: if there is no such topic.
        """
        uid = topic_uid(self._subscribed(topic)[0].state.spec)
        return self.subscribing.settings.get(uid, name).max_unacked_messages

    def set_subscription(
        self,
        topic: str,
        name: str,
        *,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        max_unacked: int | None = None,
    ) -> FailurePolicy:
        """Change a subscription's failure policy or window; durable on return, and in use.

        A mapping changes the fields it names. It may be set before the subscription exists.

        Raises:
            NotFound: if there is no such topic.
            InvalidRequest: if a value cannot be used, or the topic stores nothing.
        """
        runtimes = self._subscribed(topic)
        settings = self.subscribing.settings
        changes: dict[str, Any] = {}
        if policy is not None:
            before = settings.get(topic_uid(runtimes[0].state.spec), name).policy
            fresh = changes["policy"] = policy_of(policy, before=before)
            check_dead_letters(self, runtimes, fresh)
        if max_unacked is not None:
            changes["max_unacked_messages"] = _whole_number(max_unacked, "max_unacked")
        if changes:
            check_stored(self, runtimes)
            self.subscribing.call(
                lambda all_: change_settings(all_, settings, runtimes, name, changes)
            )
        return self.subscription_policy(topic, name)

    def whole_name(self, runtime: TopicRuntime) -> str:
        """Return a topic's name; of a part, that of the partitioned topic."""
        return self._whole_name(runtime.state.spec)

    # -- inside ----------------------------------------------------------------------------------

    def _subscribed(self, topic: str) -> list[TopicRuntime]:
        self._check_open()
        return self._runtimes(full_topic_name(topic))

    def _having(self, topic: str, name: str) -> list[TopicRuntime]:
        found = [each for each in self._subscribed(topic) if name in each.state.cursors]
        if not found:
            raise NotFound("no such subscription", topic=full_topic_name(topic), subscription=name)
        return found

    def subscribe_request(
        self, runtimes: Sequence[TopicRuntime], name: str, options: Mapping[str, Any]
    ) -> Request:
        """Check what somebody who subscribes asks for; see `Topic.subscribe`.

        Raises:
            InvalidRequest: if an option cannot be used.
            Overloaded: if the topic has too many subscriptions.
        """
        check_stored(self, runtimes)
        policy = options["policy"]
        filters = options["key_filters"]
        _check_start(runtimes, options["start"])
        if isinstance(filters, str) or not all(isinstance(each, str) for each in filters):
            raise InvalidRequest("key_filters must be patterns of keys, as texts")
        consumer = options["consumer"]
        if consumer is not None and (not isinstance(consumer, str) or not consumer):
            raise InvalidRequest("consumer must be a name", got=consumer)
        unacked = options["max_unacked"]
        size = parse_bytes(options["prefetch_bytes"])
        if size < 1:
            raise InvalidRequest("prefetch_bytes must be at least 1", prefetch_bytes=size)
        fresh = None if policy is None else policy_of(policy)
        unacked = None if unacked is None else _whole_number(unacked, "max_unacked")
        _check_stored(fresh, unacked)
        check_dead_letters(self, runtimes, fresh)
        for runtime in runtimes:
            self.cursors.check_room(runtime, name)
        return Request(
            name=name,
            kind=kind_of(options["type"]),
            start=options["start"],
            consumer=consumer or f"embedded-{self.clock.random_bytes(6).hex()}",
            key_filters=tuple(filters),
            max_unacked=unacked,
            policy=fresh,
            prefetch=_whole_number(options["prefetch"], "prefetch"),
            prefetch_bytes=size,
        )


class SubscribeCalls:
    """The calls of a topic, partitioned or not, about its subscriptions."""

    _engine: Engine

    @property
    def name(self) -> str:
        """Return the full name, `/namespace/name`."""
        raise NotImplementedError

    @property
    def engine(self) -> Engine:
        """Return the engine of the topic."""
        return self._engine

    def subscribe(
        self,
        name: str,
        *,
        type: str = "shared",  # noqa: A002 - the word that everybody looks for
        start: Start = "latest",
        consumer: str | None = None,
        key_filters: Iterable[str] = (),
        max_unacked: int | None = None,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        prefetch: int = PREFETCH,
        prefetch_bytes: int | str = PREFETCH_BYTES,
        timeout_s: float | None = None,
    ) -> Stream:
        """Consume the topic's records as one consumer of a subscription; iterate over the result.

        A subscription that does not exist is made, durably, of the `type` (`exclusive`, `shared`,
        `failover` or `key_shared`), and begins at `start`; one that exists keeps its type and goes
        on where it is. What is not acked is delivered again, to this consumer or another.

        `key_filters` are patterns of keys (`*`, `?`) for `key_shared`. `max_unacked` is how many
        records of the subscription may be delivered and not acked, `policy` what happens to those
        that fail; both are kept with the subscription. `prefetch` and `prefetch_bytes` bound what
        waits in memory here. A `consumer` of the same name is displaced. Iteration waits for
        records; it ends after `timeout_s` without any.

        Raises:
            Conflict: if the subscription is exclusive and somebody else consumes it.
            NotFound: if the topic was deleted.
            InvalidRequest: if an option cannot be used.
            Closed: if the engine is closed.
        """
        engine = self._engine
        options = request_of(
            type=type,
            start=start,
            consumer=consumer,
            key_filters=key_filters,
            max_unacked=max_unacked,
            policy=policy,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
        )
        _spec, runtimes = engine.whole_topic(self.name)
        request = engine.subscribe_request(runtimes, name, options)
        wait_s = checked_wait(timeout_s)
        return Stream(engine.subscribing, runtimes, request, timeout_s=wait_s)

    def subscriptions(self) -> list[dict[str, Any]]:
        """Return the topic's subscriptions, ready for JSON; see `Engine.subscriptions`."""
        return self._engine.subscriptions(self.name)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; durable on return. Its consumers end, its records may go."""
        self._engine.unsubscribe(self.name, name)

    def reset_subscription(self, name: str, to: Start) -> dict[str, int]:
        """Put a subscription back or ahead; durable on return. See `Engine.reset_subscription`."""
        return self._engine.reset_subscription(self.name, name, to)

    def subscription_policy(self, name: str) -> FailurePolicy:
        """Return what happens to failed deliveries of a subscription."""
        return self._engine.subscription_policy(self.name, name)

    def set_subscription(
        self,
        name: str,
        *,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        max_unacked: int | None = None,
    ) -> FailurePolicy:
        """Change a subscription's failure policy or window; see `Engine.set_subscription`."""
        return self._engine.set_subscription(
            self.name, name, policy=policy, max_unacked=max_unacked
        )


def request_of(**options: Any) -> dict[str, Any]:
    """Return the options of a `subscribe`, with what can be read only once read."""
    filters = options["key_filters"]
    return {**options, "key_filters": filters if isinstance(filters, str) else tuple(filters)}


def _check_start(runtimes: Sequence[TopicRuntime], start: Start) -> None:
    if len(runtimes) > 1 and isinstance(start, int):
        raise InvalidRequest(
            "offsets are those of one part: name the part, or a time, earliest or latest",
            part=runtimes[0].name,
        )


def _check_stored(policy: FailurePolicy | None, max_unacked: int | None) -> None:
    """Refuse what could not be kept, before anything is made."""
    if policy is not None:
        Stored(policy=policy)
    if max_unacked is not None:
        Stored(max_unacked_messages=max_unacked)


def _whole_number(given: object, name: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidRequest(f"{name} must be a number from 1 on", got=given)
    return given
