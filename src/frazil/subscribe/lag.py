"""The lag of a subscription: in records, in bytes, and the age of its oldest record.

Offsets are dense except for gaps, which have no records and do not count. A crash of a topic that
is not synced with each record leaves a gap of a million offsets.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import FrazilError
from frazil.log import RANGE_GAP
from frazil.model import topic_uid
from frazil.offsets import RangeSet
from frazil.subscribe.policy import SubscriptionType, type_name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from frazil.log import Cursor, CursorState
    from frazil.objects import TopicObjects
    from frazil.subscribe.deliveries import Deliveries
    from frazil.subscribe.subscription import Subscription
    from frazil.topic import Instance, TopicRuntime

__all__ = ["Lags", "subscription_facts"]


class Lags:
    """Computes the lag of cursors at one moment; the gaps of a topic are read once."""

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self._known: dict[int, RangeSet] = {}

    def records(self, runtime: TopicRuntime, cursor: Cursor) -> tuple[int, int]:
        """Return how many records are not acked, and the offset of the oldest."""
        state, gaps = runtime.state, self._gaps(runtime)
        settled = cursor
        if gaps.end > cursor.acked_below:
            settled = cursor.copy()
            for first, end in gaps:
                settled.ack_range(first, end)
        held = runtime.history.range(state.id).first
        below = min(max(settled.acked_below, held), state.durable)
        acked = sum(end - max(first, below) for first, end in settled.ranges() if end > below)
        return state.durable - below - acked, below

    def facts(self, runtime: TopicRuntime, cursor: CursorState) -> dict[str, Any]:
        """Return a lag ready for JSON; it reads the oldest record for its time."""
        records, below = self.records(runtime, cursor)
        return {
            "acked_below": cursor.acked_below,
            "head": runtime.state.durable,
            "lag_records": records,
            "lag_bytes": int(records * self._record_bytes(runtime)),
            "lag_seconds": _age_s(runtime, below) if records else 0.0,
        }

    def _record_bytes(self, runtime: TopicRuntime) -> float:
        """Return the average stored size of a record in the log, else in files, else in objects."""
        state, gaps = runtime.state, self._gaps(runtime)
        files = () if runtime.tiers is None else runtime.tiers.disk.picture(state.id).files
        far = self._objects(runtime)
        objects = () if far is None else far.descriptors
        stored = (
            (state.bytes_local, gaps.missing(state.start, state.durable).size),
            (sum(each.bytes for each in files), sum(each.rows for each in files)),
            (
                sum(each.length for each in objects),
                sum(gaps.missing(each.first, each.end).size for each in objects),
            ),
        )
        return next((size / count for size, count in stored if size and count), 0.0)

    def _objects(self, runtime: TopicRuntime) -> TopicObjects | None:
        objects = self._engine.objects
        return None if objects.source is None else objects.catalog.topic(runtime.state.id)

    def _gaps(self, runtime: TopicRuntime) -> RangeSet:
        """Return the ranges without records: those of the objects, and elsewhere of files and log.

        A log that is older than its objects has a gap where those have records.
        """
        state = runtime.state
        known = self._known.get(state.id)
        if known is not None:
            return known
        special = list(state.ranges)
        if runtime.tiers is not None:
            special += runtime.tiers.disk.picture(state.id).gaps
        gaps, far = _gaps_of(special), self._objects(runtime)
        if far is not None and far.start < far.uploaded:
            inside = _gaps_of([each for one in far.descriptors for each in one.ranges])
            gaps = (gaps - [(far.start, far.uploaded)]) | inside
        self._known[state.id] = gaps
        return gaps


def _gaps_of(ranges: Iterable[Any]) -> RangeSet:
    return RangeSet((each.first, each.end) for each in ranges if each.kind == RANGE_GAP)


def _age_s(runtime: TopicRuntime, offset: int) -> float | None:
    """Return how old a record is, None if it cannot be read."""
    time_us = None
    with suppress(FrazilError):
        time_us = runtime.history.time_at(runtime.state.id, offset=offset)
    return None if time_us is None else round(max(0, runtime.clock.now_us() - time_us) / 1e6, 3)


At = dict[tuple[str, str], dict[str, Any]]
NOT_OPEN: Final[dict[str, Any]] = {
    "consumers": [],
    "active": None,
    "unacked": 0,
    "blocked": 0,
    "paused": None,
    "missed": 0,
}
"""The state of a subscription that was not opened since the engine's start."""


def subscription_facts(engine: Instance, runtimes: Sequence[TopicRuntime]) -> list[dict[str, Any]]:
    """Return all subscriptions of a topic, sorted by name; those of parts are added up.

    It reads the oldest unacked record of each, so it is not for an event loop's thread.
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
                **lags.facts(runtime, cursor),
                **NOT_OPEN,
                **working.get((runtime.name, name), {}),
            }
            by_name.setdefault(name, []).append(facts)
    if len(runtimes) == 1:
        return [facts for (facts,) in by_name.values()]
    whole = engine.whole_name(runtimes[0].state.spec)
    return [_sum(whole, by_name[name]) for name in sorted(by_name)]


async def _working(deliveries: Deliveries, topics: set[str]) -> At:
    """Return the facts of open subscriptions, by topic and name; in the loop."""
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
