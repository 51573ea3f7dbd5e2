"""The policy of a subscription: its type, the handling of failed deliveries, its limits."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import attrs

from frazil.errors import InvalidRequest
from frazil.log import RANGES_MAX
from frazil.model import full_topic_name

__all__ = [
    "Backoff",
    "FailurePolicy",
    "Limits",
    "Poison",
    "SubscriptionType",
    "kind_of",
    "policy_facts",
    "policy_of",
    "type_name_of",
]

E = TypeVar("E", bound=enum.IntEnum)
_DOUBLINGS_MAX: Final = 63


class SubscriptionType(enum.IntEnum):
    """The types of subscription; the numbers are those of the wire."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class Backoff(enum.IntEnum):
    """The growth of the delay before a redelivery; the numbers are those of the wire."""

    FIXED = 0
    EXPONENTIAL = 1


class Poison(enum.IntEnum):
    """The handling of a record that failed too often; the numbers are those of the wire."""

    DEAD_LETTER = 0
    BLOCK = 1
    DROP = 2


@attrs.frozen(kw_only=True)
class FailurePolicy:
    """The failure policy: failed deliveries, the delay of the next one, and their number.

    A delivery fails by a nack, without an ack within `ack_timeout_ms` (0: no time limit), or when
    the consumer's stream ends. A record is delivered `1 + max_redelivery_count` times; when the
    last delivery fails, `poison` applies. The end of a stream is never the last failure: the last
    delivery is then repeated.
    """

    max_redelivery_count: int = 5
    ack_timeout_ms: int = 30_000
    base_redelivery_delay_ms: int = 1_000
    max_redelivery_delay_ms: int = 60_000
    backoff: Backoff = Backoff.EXPONENTIAL
    poison: Poison = Poison.BLOCK
    dead_letter_topic: str | None = None

    def __attrs_post_init__(self) -> None:
        for name in (
            "max_redelivery_count",
            "ack_timeout_ms",
            "base_redelivery_delay_ms",
            "max_redelivery_delay_ms",
        ):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} must not be negative", value=getattr(self, name))
        if self.poison is Poison.DEAD_LETTER and not self.dead_letter_topic:
            raise InvalidRequest("the policy dead letter needs a dead_letter_topic")

    @property
    def attempts_max(self) -> int:
        """The maximum number of deliveries of a record."""
        return self.max_redelivery_count + 1

    def delay_ms(self, attempt: int, asked_ms: int = 0) -> int:
        """Return how long the next delivery waits after `attempt` failed."""
        delay_ms = self.base_redelivery_delay_ms
        if self.backoff is Backoff.EXPONENTIAL:
            delay_ms <<= min(attempt - 1, _DOUBLINGS_MAX)
        return min(max(delay_ms, asked_ms), self.max_redelivery_delay_ms)


@attrs.frozen(kw_only=True)
class Limits:
    """The limits of records in flight and in memory of a subscription.

    `max_unacked_*` bound the delivered records without a durable ack; `held_max` bounds those that
    were read and not yet delivered. The record that crosses a byte limit is still delivered, so a
    record larger than the limit is delivered alone. Keys that no consumer's filter matches are
    skipped `skip_grace_ms` after the last consumer attached or left.
    """

    max_unacked_messages: int = 10
    max_unacked_bytes: int = 64 << 20
    held_max: int = RANGES_MAX
    keys_max: int = 100_000
    skip_grace_ms: int = 10_000
    retry_ms: int = 1_000

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.max_unacked_messages <= RANGES_MAX:
            raise InvalidRequest(
                "max_unacked_messages is out of range",
                value=self.max_unacked_messages,
                minimum=1,
                maximum=RANGES_MAX,
            )


_ENUMS: Final[Mapping[str, type[enum.IntEnum]]] = {"backoff": Backoff, "poison": Poison}
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
    if name in _ENUMS:
        return _named(_ENUMS[name], value, name)
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
