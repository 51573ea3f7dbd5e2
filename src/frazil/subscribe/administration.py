"""Failure policies and windows of subscriptions, as programs and commands give them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from frazil.errors import InvalidRequest
from frazil.model import full_topic_name, topic_uid
from frazil.subscribe.policy import Backoff, FailurePolicy, Poison, SubscriptionType
from frazil.topic import NotStored, StateTag, has_namespace_for

if TYPE_CHECKING:
    from enum import IntEnum

    from frazil.subscribe.deliveries import Deliveries
    from frazil.subscribe.settings import SubscriptionSettings
    from frazil.topic import Instance, TopicRuntime

__all__ = [
    "UNRELIABLE",
    "UNRELIABLE_MAKING",
    "change_settings",
    "check_dead_letter_namespace",
    "check_dead_letters",
    "check_stored",
    "is_stored",
    "kind_of",
    "policy_facts",
    "policy_of",
    "type_name_of",
]

E = TypeVar("E", bound="IntEnum")
UNRELIABLE: Final = "unreliable/"
"""Before a topic's own id, the key of the value that says so; one without it is reliable."""
UNRELIABLE_MAKING: Final = "unreliable-making/"
"""Before the name of a topic that is about to be made unreliable; left behind only by a crash."""
_NAMES: Final = tuple(each.name for each in attrs.fields(FailurePolicy))


def kind_of(given: object) -> SubscriptionType:
    """Return a type of subscription by its name: exclusive, shared, failover or key_shared.

    Raises:
        InvalidRequest: if there is no such type.
    """
    return _named(SubscriptionType, given, "type")


def type_name_of(kind: SubscriptionType) -> str:
    """Return the name of a type."""
    return kind.name.lower()


def policy_of(
    given: FailurePolicy | Mapping[str, Any], *, before: FailurePolicy | None = None
) -> FailurePolicy:
    """Return a policy; of a mapping, `before` with the named fields changed.

    Its dead-letter topic has its full name.

    Raises:
        InvalidRequest: if a field is unknown or its value cannot be used.
    """
    if isinstance(given, FailurePolicy):
        return attrs.evolve(given, **{name: _value(name, getattr(given, name)) for name in _NAMES})
    if not isinstance(given, Mapping):
        raise InvalidRequest("a policy is a FailurePolicy or a mapping", got=type(given).__name__)
    unknown = sorted(set(given) - set(_NAMES), key=str)
    if unknown:
        raise InvalidRequest("unknown field of a policy", field=unknown[0], known=", ".join(_NAMES))
    return attrs.evolve(
        FailurePolicy() if before is None else before,
        **{name: _value(name, value) for name, value in given.items()},
    )


def _value(name: str, value: Any) -> Any:
    if name == "backoff":
        return _named(Backoff, value, name)
    if name == "poison":
        return _named(Poison, value, name)
    if name == "dead_letter_topic":
        if value is not None and not isinstance(value, str):
            raise InvalidRequest("dead_letter_topic must be a topic's name")
        return full_topic_name(value) if value else None
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRequest("a policy has whole numbers", field=name, got=value)
    return value


def _named(cls: type[E], given: object, what: str) -> E:
    if isinstance(given, cls):
        return given
    found = cls.__members__.get(given.upper().replace("-", "_")) if type(given) is str else None
    if found is None:
        names = ", ".join(each.lower() for each in cls.__members__)
        raise InvalidRequest(f"{what} must be one of {names}", got=given)
    return found


def policy_facts(policy: FailurePolicy) -> dict[str, Any]:
    """Return a policy ready for JSON, as `policy_of` takes it."""
    found = attrs.asdict(policy)
    return {
        **found,
        "backoff": policy.backoff.name.lower(),
        "poison": policy.poison.name.lower(),
    }


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
    own = {runtime.name for runtime in runtimes}
    if target in own or any(each.removesuffix(f"-part-{at}") == target for at, each in _parts(own)):
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
    if any(
        topic.spec.name == target and topic.spec.partitions and not topic.spec.deleted_us
        for topic in tuple(engine.log.journal.state.topics.values())
    ):
        raise InvalidRequest(
            "the dead_letter_topic is partitioned, name one of its parts or another topic",
            dead_letter_topic=target,
        )
    found = {runtime.name: runtime for runtime in engine.runtimes}.get(target)
    if found is not None and not found.is_message:
        raise InvalidRequest(
            "the dead_letter_topic takes rows, not messages", dead_letter_topic=target
        )
    if found is not None and not is_stored(engine, found):
        raise InvalidRequest(
            "the dead_letter_topic stores nothing, name one that is reliable",
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
    """Refuse what would be kept about a topic that stores nothing.

    Raises:
        InvalidRequest: if it is one.
    """
    for runtime in runtimes:
        if not is_stored(engine, runtime):
            refusal = NotStored(runtime.name)
            raise refusal()


def is_stored(engine: Instance, runtime: TopicRuntime) -> bool:
    """Tell whether a topic's records are kept: a broker's topic may only pass them on.

    That never changes in a topic's life. For any thread; it never waits.
    """
    values = engine.log.journal.state.values
    spec = runtime.state.spec
    name = runtime.name.rpartition("-part-")[0] if spec.part_of else runtime.name
    # In this order: the name goes only after the id has come.
    return (StateTag.POLICY, UNRELIABLE_MAKING + name) not in values and (
        StateTag.POLICY,
        UNRELIABLE + topic_uid(spec),
    ) not in values


def _parts(names: set[str]) -> list[tuple[str, str]]:
    return [(name.rpartition("-part-")[2], name) for name in names]


async def change_settings(
    deliveries: Deliveries,
    settings: SubscriptionSettings,
    runtimes: Sequence[TopicRuntime],
    name: str,
    changes: Mapping[str, Any],
) -> None:
    """Change what counts for a subscription of a topic, all of its parts; durable on return.

    Raises:
        InvalidRequest: if a value is out of range.
    """
    uid = topic_uid(runtimes[0].state.spec)
    await asyncio.to_thread(settings.change, uid, name, **changes)
    for runtime in runtimes:
        deliveries.configure(runtime.name, name)
