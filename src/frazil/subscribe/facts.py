"""What is told about subscriptions: who consumes, how far behind they are, what holds them up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.model import topic_uid
from frazil.subscribe.administration import type_name_of
from frazil.subscribe.lag import Lags
from frazil.subscribe.policy import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.log import CursorState
    from frazil.subscribe.deliveries import Deliveries
    from frazil.subscribe.lag import Lag
    from frazil.subscribe.subscription import Subscription
    from frazil.topic import Instance, TopicRuntime

__all__ = ["subscription_facts"]

At = dict[tuple[str, str], dict[str, Any]]


def subscription_facts(engine: Instance, runtimes: Sequence[TopicRuntime]) -> list[dict[str, Any]]:
    """Return all subscriptions of a topic, sorted by name; those of parts are added up.

    It reads the oldest record of each that is behind, so it is not for an event loop's thread.
    """
    subscribing = engine.subscribing
    working: At = {}
    if subscribing.is_running:
        names = {runtime.name for runtime in runtimes}
        working = subscribing.call(lambda all_: _working(all_, names))
    by_name: dict[str, list[dict[str, Any]]] = {}
    lags = Lags(engine)
    for runtime in runtimes:
        uid = topic_uid(runtime.state.spec)
        for name, cursor in sorted(engine.cursors.load(runtime.name).items()):
            stored = subscribing.settings.get(uid, name)
            kind = SubscriptionType.EXCLUSIVE if stored.kind is None else stored.kind
            facts = {
                "name": name,
                "topic": runtime.name,
                "type": type_name_of(kind),
                "stored": True,
                "max_unacked": stored.max_unacked_messages,
                **_lag(lags.of(runtime, cursor), cursor),
                **(working.get((runtime.name, name)) or _resting(cursor)),
            }
            by_name.setdefault(name, []).append(facts)
    if len(runtimes) == 1:
        return [facts for (facts,) in by_name.values()]
    whole = engine.whole_name(runtimes[0].state.spec)
    return [_sum(whole, by_name[name]) for name in sorted(by_name)]


async def _working(deliveries: Deliveries, topics: set[str]) -> At:
    """Return what open subscriptions do, by topic and name; in the loop."""
    return {
        (each.topic, each.name): _doing(each)
        for each in deliveries.subscriptions
        if each.topic in topics
    }


def _doing(found: Subscription) -> dict[str, Any]:
    status = found.status()
    damage = found.damage
    active = [each.name for each in found.consumers if each.consumer_id == status.active_id]
    return {
        "consumers": sorted(each.name for each in found.consumers),
        "active": active[0] if active else None,
        "unacked": status.unacked,
        "blocked": status.blocked,
        "paused": status.paused if damage is None else f"a record cannot be read: {damage}",
        "missed": found.counts.missed,
    }


def _resting(_cursor: CursorState) -> dict[str, Any]:
    """Return what a subscription does that nobody opened since the engine was."""
    none: list[str] = []
    return {
        "consumers": none,
        "active": None,
        "unacked": 0,
        "blocked": 0,
        "paused": None,
        "missed": 0,
    }


def _lag(lag: Lag, cursor: CursorState) -> dict[str, Any]:
    return {
        "acked_below": cursor.acked_below,
        "head": lag.head,
        "lag_records": lag.records,
        "lag_bytes": lag.size_bytes,
        "lag_seconds": lag.age_s,
    }


def _sum(topic: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the subscription of a partitioned topic, with that of each part in `parts`."""
    ages = [each["lag_seconds"] for each in parts if each["lag_seconds"] is not None]
    first: Mapping[str, Any] = parts[0]
    return {
        "name": first["name"],
        "topic": topic,
        "type": first["type"],
        "stored": True,
        "max_unacked": first["max_unacked"],
        "lag_seconds": max(ages, default=None),
        "consumers": sorted({name for each in parts for name in each["consumers"]}),
        "paused": next((each["paused"] for each in parts if each["paused"]), None),
        **{
            key: sum(each[key] for each in parts)
            for key in ("lag_records", "lag_bytes", "unacked", "blocked", "missed")
        },
        "parts": parts,
    }
