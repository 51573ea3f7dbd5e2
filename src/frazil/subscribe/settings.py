"""Settings of subscriptions: type, failure policy and window; durable.

Each is a value of the shared journal (`engine.states`). All of them are in memory, so that delivery
never waits to read one. A policy may be set before its subscription exists. The parts of a
partitioned topic share the identity of the whole, and with it one setting.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from frazil.errors import CorruptionError, InvalidRequest, Overloaded
from frazil.model import full_topic_name, topic_uid
from frazil.struct_types import learnt
from frazil.subscribe.policy import FailurePolicy, Limits, SubscriptionType
from frazil.topic import NotStored, StateTag, has_namespace_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.subscribe.deliveries import Deliveries
    from frazil.topic import Instance, TopicRuntime

__all__ = [
    "DURATION_MS_MAX",
    "UNRELIABLE",
    "UNRELIABLE_MAKING",
    "Stored",
    "SubscriptionSettings",
    "change_settings",
    "check_dead_letter_namespace",
    "check_dead_letters",
    "check_stored",
    "is_stored",
]

UNRELIABLE: Final = "unreliable/"
"""Prefix of a topic's id: the key of the value that marks a topic as unreliable."""
UNRELIABLE_MAKING: Final = "unreliable-making/"
"""Prefix of the name of a topic that is being made unreliable; only a crash leaves it."""

DURATION_MS_MAX: Final = 366 * 24 * 3600 * 1000
"""No time-out and no delay of a policy is longer: a year, which no timer has trouble with."""
_MAX_UNACKED: Final = Limits().max_unacked_messages
_POLICY: Final = FailurePolicy()


@attrs.frozen(kw_only=True)
class Stored:
    """The stored settings of one subscription. Without a `kind` it was never opened.

    Raises:
        InvalidRequest: if the window or a time of the policy is out of range.
    """

    kind: SubscriptionType | None = None
    policy: FailurePolicy = _POLICY
    max_unacked_messages: int = _MAX_UNACKED

    def __attrs_post_init__(self) -> None:
        # The limits of a running subscription check the range of its window.
        Limits(max_unacked_messages=self.max_unacked_messages)
        for name in ("ack_timeout_ms", "base_redelivery_delay_ms", "max_redelivery_delay_ms"):
            if getattr(self.policy, name) > DURATION_MS_MAX:
                raise InvalidRequest(
                    f"{name} is too long", value=getattr(self.policy, name), maximum=DURATION_MS_MAX
                )


DEFAULT: Final = Stored()
"""The settings of a subscription without any stored ones."""


class SubscriptionSettings:
    """The settings of an engine's subscriptions by topic and name. Safe for threads.

    Methods that change something wait for the journal, so they are not for an event loop's thread.
    """

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self._stored: dict[tuple[str, str], Stored] = {}
        self._lock = threading.Lock()
        """Held while a change is written: the next change is based on its result."""

    def load(self) -> None:
        """Read all settings; this waits for the journal. Settings of deleted topics are removed.

        Raises:
            CorruptionError: if one cannot be read.
        """
        found = self._engine.states.items(StateTag.SUBSCRIPTION)
        uids = self._uids()
        stale = [key for key in found if _split(key)[0] not in uids]
        for key in stale:
            del found[key]
        self._stored = {_split(key): _decode(key, value) for key, value in found.items()}
        self._delete(stale)

    def get(self, uid: str, name: str) -> Stored:
        """Return the effective settings of a topic's subscription; never waits."""
        return self._stored.get((uid, name), DEFAULT)

    def find(self, uid: str, name: str) -> Stored | None:
        """Return the stored settings of a subscription, None if it has none; never waits."""
        return self._stored.get((uid, name))

    def names(self, uid: str) -> list[str]:
        """Return the names of a topic's subscriptions that have settings; never waits."""
        return [name for own, name in list(self._stored) if own == uid]

    def change(
        self, uid: str, name: str, *, names_max: int | None = None, **changes: Any
    ) -> Stored:
        """Set some fields of `Stored` and keep the others, also those set by concurrent calls.

        Return the new settings, which are durable.

        Raises:
            InvalidRequest: if a value is out of range, or the name cannot be stored.
            Overloaded: if the name is new, and the topic has `names_max` with settings; if the
                disk is full.
        """
        with self._lock:
            is_new = (uid, name) not in self._stored
            if names_max is not None and is_new and len(self.names(uid)) >= names_max:
                raise Overloaded(
                    "the topic has settings of too many subscriptions, unsubscribe some",
                    subscriptions_max=names_max,
                )
            before = self.get(uid, name)
            stored = attrs.evolve(before, **changes)
            if stored != before or is_new:
                value = msgspec.msgpack.encode(stored)
                self._engine.states.put(StateTag.SUBSCRIPTION, _key(uid, name), value)
                self._stored[uid, name] = stored
            return stored

    def delete(self, uid: str, name: str) -> None:
        """Forget a subscription's settings, if there are any; durable on return."""
        with self._lock:
            if (uid, name) in self._stored:
                self._engine.states.delete(StateTag.SUBSCRIPTION, _key(uid, name))
                # A deletion of the topic forgets them all, without waiting for this lock.
                self._stored.pop((uid, name), None)

    def forget_topic(self, uid: str) -> None:
        """Forget the settings of all subscriptions of a topic that was deleted; durable on return."""
        gone = [key for key in list(self._stored) if key[0] == uid]
        self._delete([_key(*key) for key in gone])
        for key in gone:
            self._stored.pop(key, None)

    def _delete(self, keys: list[str]) -> None:
        states = self._engine.states
        pendings = [states.submit(StateTag.SUBSCRIPTION, key, None) for key in keys]
        for pending in pendings:
            pending.result()

    def _uids(self) -> set[str]:
        """Return the identities of all topics that exist, even of those that cannot be used."""
        main = self._engine.log

        def of_all() -> set[str]:
            specs = [topic.spec for topic in main.journal.state.topics.values()]
            return {topic_uid(spec) for spec in specs if not spec.deleted_us}

        found: set[str] = main.queue.call(of_all)
        return found


def _key(uid: str, name: str) -> str:
    return f"{uid}/{name}"


def _split(key: str) -> tuple[str, str]:
    # The identity of a topic has no slash in it, the name of a subscription may.
    uid, _, name = key.partition("/")
    return uid, name


def _decode(key: str, value: bytes) -> Stored:
    try:
        # The whole policy is stored, with its defaults: a later change of the defaults has no
        # effect.
        return msgspec.msgpack.decode(value, type=learnt(Stored))
    except (msgspec.MsgspecError, InvalidRequest) as error:
        raise CorruptionError(
            "the settings of a subscription cannot be read", key=key, cause=error
        ) from error


def check_dead_letters(
    engine: Instance, runtimes: Sequence[TopicRuntime], policy: FailurePolicy | None
) -> None:
    """Refuse a policy whose dead letters could not be written.

    Raises:
        InvalidRequest: if the topic has rows, or the target is the topic itself, has rows, is
            partitioned, stores nothing, or would be in a namespace that does not exist.
    """
    if policy is None or policy.dead_letter_topic is None:
        return
    target = full_topic_name(policy.dead_letter_topic)
    if any(target in {each.name, engine.whole_name(each.state.spec)} for each in runtimes):
        raise InvalidRequest(
            "a topic cannot take the dead letters of its own subscriptions",
            dead_letter_topic=target,
        )
    if not runtimes[0].is_message:
        raise InvalidRequest(
            "rows have no dead letters, a dead_letter_topic takes messages; block or drop them",
            topic=runtimes[0].name,
        )
    check_dead_letter_namespace(engine, target)
    topics = tuple(engine.log.journal.state.topics.values())
    found = {runtime.name: runtime for runtime in engine.runtimes}.get(target)
    if (
        any(each.spec.name == target and each.spec.partitions for each in topics)
        if found is None
        else not (found.is_message and is_stored(engine, found))
    ):
        raise InvalidRequest(
            "the dead_letter_topic is partitioned, takes rows or stores nothing; name a reliable "
            "topic of messages, or one of its parts",
            dead_letter_topic=target,
        )


def check_dead_letter_namespace(engine: Instance, topic: str) -> None:
    """Refuse a topic of dead letters that could only be made together with a namespace.

    Raises:
        InvalidRequest: if its namespace does not exist.
    """
    if not has_namespace_for(engine, topic):
        raise InvalidRequest(
            "the namespace of the dead_letter_topic does not exist, make it first, or the topic",
            dead_letter_topic=topic,
        )


def check_stored(engine: Instance, runtimes: Sequence[TopicRuntime]) -> None:
    """Refuse durable settings of a topic that stores nothing.

    Raises:
        InvalidRequest: if the topic stores nothing.
    """
    for runtime in runtimes:
        if not is_stored(engine, runtime):
            refusal = NotStored(runtime.name)
            raise refusal()


def is_stored(engine: Instance, runtime: TopicRuntime) -> bool:
    """Return whether a topic stores its records: a broker's topic may only pass them on.

    This never changes for a topic. Any thread may call; it never waits.
    """
    values = engine.log.journal.state.values
    spec = runtime.state.spec
    name = runtime.name.rpartition("-part-")[0] if spec.part_of else runtime.name
    # In this order: the name is removed only after the id is set.
    return (StateTag.POLICY, UNRELIABLE_MAKING + name) not in values and (
        StateTag.POLICY,
        UNRELIABLE + topic_uid(spec),
    ) not in values


async def change_settings(
    deliveries: Deliveries,
    settings: SubscriptionSettings,
    runtimes: Sequence[TopicRuntime],
    name: str,
    changes: Mapping[str, Any],
) -> None:
    """Change the settings of a subscription, for all parts of its topic; durable on return.

    Raises:
        InvalidRequest: if a value is out of range.
    """
    uid = topic_uid(runtimes[0].state.spec)
    await asyncio.to_thread(settings.change, uid, name, **changes)
    for runtime in runtimes:
        deliveries.configure(runtime.name, name)
