"""The subscriptions of an engine: subscribe, create, list, reset, drop, configure."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.model import full_topic_name, topic_uid
from frazil.subscribe.lag import subscription_facts
from frazil.subscribe.policy import FailurePolicy, kind_of, policy_of
from frazil.subscribe.settings import (
    Stored,
    change_settings,
    check_dead_letters,
    check_stored,
)
from frazil.subscribe.stream import Request, Stream, checked_wait
from frazil.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from frazil.subscribe.cursors import Cursors
    from frazil.subscribe.runtime import Subscribing
    from frazil.topic import Instance, Start, TopicRuntime

__all__ = ["PREFETCH", "PREFETCH_BYTES", "Subscriptions"]

T = TypeVar("T")
PREFETCH: Final = 100
PREFETCH_BYTES: Final = 4 << 20


class Subscriptions:
    """The subscriptions of all topics of one engine. Safe for threads; its calls wait."""

    def __init__(self, engine: Instance, cursors: Cursors, runtime: Subscribing) -> None:
        self._engine = engine
        self._cursors = cursors
        self.runtime = runtime
        """The event loop of deliveries."""

    def subscribe(
        self, topic: str, name: str, *, timeout_s: float | None = None, **options: Any
    ) -> Stream:
        """Consume a topic as one consumer of a subscription; options as of `Topic.subscribe`."""
        runtimes, request = self.request(topic, name, **options)
        wait_s = checked_wait(timeout_s)
        return Stream(self.runtime, runtimes, request, timeout_s=wait_s)

    def request(
        self,
        topic: str,
        name: str,
        *,
        type: str = "shared",  # noqa: A002 - the field's word
        start: Start = "latest",
        consumer: str | None = None,
        key_filters: Iterable[str] = (),
        max_unacked: int | None = None,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        prefetch: int = PREFETCH,
        prefetch_bytes: int | str = PREFETCH_BYTES,
    ) -> tuple[list[TopicRuntime], Request]:
        """Check the options of a consumer; return its topic or parts, and its request.

        Raises:
            InvalidRequest: if an option cannot be used.
            Overloaded: if the topic has too many subscriptions.
        """
        runtimes = self._runtimes(topic)
        check_stored(self._engine, runtimes)
        _check_start(runtimes, start)
        filters = tuple(key_filters)
        named: Any = consumer
        if isinstance(key_filters, str) or not all(isinstance(each, str) for each in filters):
            raise InvalidRequest("key_filters must be patterns of keys, as texts")
        if named is not None and (not isinstance(named, str) or not named):
            raise InvalidRequest("consumer must be a name", got=named)
        size = parse_bytes(prefetch_bytes)
        if size < 1:
            raise InvalidRequest("prefetch_bytes must be at least 1", prefetch_bytes=size)
        fresh = None if policy is None else policy_of(policy)
        unacked = None if max_unacked is None else _whole_number(max_unacked, "max_unacked")
        # Refuse settings that cannot be stored before anything is created.
        Stored(policy=fresh or FailurePolicy(), max_unacked_messages=unacked or 1)
        check_dead_letters(self._engine, runtimes, fresh)
        for runtime in runtimes:
            self._cursors.check_new(runtime, name)
        return runtimes, Request(
            name=name,
            kind=kind_of(type),
            start=start,
            consumer=named or f"embedded-{self._engine.clock.random_bytes(6).hex()}",
            key_filters=filters,
            max_unacked=unacked,
            policy=fresh,
            prefetch=_whole_number(prefetch, "prefetch"),
            prefetch_bytes=size,
        )

    def describe(self, topic: str) -> list[dict[str, Any]]:
        """Return a topic's subscriptions, ready for JSON: their consumers, positions and lag.

        `lag_records`, `lag_bytes` (an estimate) and `lag_seconds` are the number, the size and the
        highest age of the unacked records. `paused` is the reason if nothing is delivered. For a
        partitioned topic the values are sums over all parts, and `parts` has each part.

        Raises:
            NotFound: if there is no such topic.
        """
        return subscription_facts(self._engine, self._runtimes(topic))

    def create(
        self,
        topic: str,
        name: str,
        *,
        type: str = "shared",  # noqa: A002 - the field's word
        start: Start = "latest",
    ) -> None:
        """Create a subscription without a consumer; durable on return. The topic keeps its records.

        Raises:
            Conflict: if the subscription exists.
            NotFound: if there is no such topic.
            InvalidRequest: if the name, the type or the start cannot be used, or the topic stores
                nothing.
        """
        runtimes = self._runtimes(topic)
        check_stored(self._engine, runtimes)
        kind = kind_of(type)
        _check_start(runtimes, start)
        if any(name in runtime.state.cursors for runtime in runtimes):
            raise Conflict("subscription exists", topic=full_topic_name(topic), subscription=name)
        for runtime in runtimes:
            self._cursors.check_new(runtime, name)
        self.runtime.call(
            lambda all_: _of_each(partial(all_.open, kind=kind, start=start), runtimes, name)
        )

    def drop(self, topic: str, name: str) -> None:
        """Remove a subscription; durable on return. Its consumers end, its records may go.

        Raises:
            NotFound: if there is no such topic or subscription.
        """
        runtimes = self._having(topic, name)
        self.runtime.call(lambda all_: _of_each(all_.drop, runtimes, name))

    def reset(self, topic: str, name: str, to: Start) -> dict[str, int]:
        """Move a subscription back or ahead; durable on return. Return the offset by topic.

        `to` is an offset, `"earliest"`, `"latest"` or a datetime. Records before it count as acked,
        later ones as not delivered yet. An offset is an offset of one part.

        Raises:
            NotFound: if there is no such topic or subscription.
            InvalidRequest: if the topic has no such offset or time, or it stores nothing.
        """
        check_stored(self._engine, self._runtimes(topic))
        runtimes = self._having(topic, name)
        _check_start(runtimes, to)
        return self.runtime.call(lambda all_: _of_each(all_.reset, runtimes, name, to))

    def policy(self, topic: str, name: str) -> FailurePolicy:
        """Return the failure policy of a subscription.

        Raises:
            NotFound: if there is no such topic.
        """
        uid = topic_uid(self._runtimes(topic)[0].state.spec)
        return self.runtime.settings.get(uid, name).policy

    def window(self, topic: str, name: str) -> int:
        """Return how many records of a subscription may be delivered and not acked.

        Raises:
            NotFound: if there is no such topic.
        """
        uid = topic_uid(self._runtimes(topic)[0].state.spec)
        return self.runtime.settings.get(uid, name).max_unacked_messages

    def alter(
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
        runtimes = self._runtimes(topic)
        settings = self.runtime.settings
        changes: dict[str, Any] = {}
        if policy is not None:
            before = settings.get(topic_uid(runtimes[0].state.spec), name).policy
            fresh = changes["policy"] = policy_of(policy, before=before)
            check_dead_letters(self._engine, runtimes, fresh)
        if max_unacked is not None:
            changes["max_unacked_messages"] = _whole_number(max_unacked, "max_unacked")
        if changes:
            check_stored(self._engine, runtimes)
            self.runtime.call(lambda all_: change_settings(all_, settings, runtimes, name, changes))
        return self.policy(topic, name)

    def _runtimes(self, topic: str) -> list[TopicRuntime]:
        return self._engine.parts_of(topic)

    def _having(self, topic: str, name: str) -> list[TopicRuntime]:
        found = [each for each in self._runtimes(topic) if name in each.state.cursors]
        if not found:
            raise NotFound("no such subscription", topic=full_topic_name(topic), subscription=name)
        return found


async def _of_each(
    work: Callable[..., Awaitable[T]], runtimes: Sequence[TopicRuntime], *given: Any
) -> dict[str, T]:
    """Do something to the subscription of each part; return the results by the part's name."""
    return {runtime.name: await work(runtime.name, *given) for runtime in runtimes}


def _check_start(runtimes: Sequence[TopicRuntime], start: Start) -> None:
    if len(runtimes) > 1 and isinstance(start, int):
        raise InvalidRequest(
            "offsets are those of one part: name the part, or a time, earliest or latest",
            part=runtimes[0].name,
        )


def _whole_number(given: object, name: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise InvalidRequest(f"{name} must be a number from 1 on", got=given)
    return given
