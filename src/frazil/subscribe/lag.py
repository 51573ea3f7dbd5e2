"""How far a subscription is behind: in records, in bytes, and since when.

Offsets are dense but for gaps, which hold no record: they are no part of a lag. A crash of a topic that
is not synced with each record leaves a gap of a million offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError
from frazil.log import RANGE_GAP
from frazil.model import topic_uid
from frazil.subscribe.policy import SubscriptionType, type_name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from frazil.log import Cursor, CursorState
    from frazil.objects import TopicObjects
    from frazil.subscribe.deliveries import Deliveries
    from frazil.subscribe.subscription import Subscription
    from frazil.topic import Instance, TopicRuntime

__all__ = ["Lag", "Lags", "subscription_facts"]

Ranges = list[tuple[int, int]]


class Lag:
    """What of a topic is not acked: how many records, and from where on."""

    __slots__ = ("below", "gaps", "head", "objects", "records", "runtime")

    def __init__(
        self, runtime: TopicRuntime, objects: TopicObjects | None, gaps: Ranges, cursor: Cursor
    ) -> None:
        self.runtime = runtime
        self.objects = objects
        self.gaps = gaps
        self.head = runtime.state.visible
        settled = cursor
        if gaps and gaps[-1][1] > cursor.acked_below:
            settled = cursor.copy()
            for first, end in gaps:
                settled.ack_range(first, end)
        held = runtime.history.range(runtime.state.id).first
        self.below = min(max(settled.acked_below, held), self.head)
        acked = _within(settled.ranges(), self.below, self.head)
        self.records = self.head - self.below - acked

    @property
    def size_bytes(self) -> int:
        """Estimate the stored bytes of the records: files, log and objects pro rata."""
        if not self.records:
            return 0
        every = self._records_in(self.below, self.head)
        # Those above the oldest that are acked are not behind.
        return self._bytes_behind() * self.records // every

    @property
    def age_s(self) -> float | None:
        """How old the oldest record is, 0.0 if there is none, None if it cannot be read."""
        if not self.records:
            return 0.0
        runtime = self.runtime
        try:
            time_us = runtime.history.time_at(runtime.state.id, offset=self.below)
        except FrazilError:
            return None
        if time_us is None:
            return None
        return round(max(0, runtime.clock.now_us() - time_us) / 1e6, 3)

    def _bytes_behind(self) -> int:
        state, tiers = self.runtime.state, self.runtime.tiers
        size, flushed, held, holes = 0, 0, state.start, tuple[tuple[int, int], ...]()
        if tiers is not None:
            picture = tiers.disk.picture(state.id)
            flushed, holes = picture.flushed, picture.holes
            if picture.start < flushed:
                held = min(held, picture.start)
            for file in picture.files:
                if file.rows:
                    first, end = file.offset_first, file.offset_last + 1
                    size += self._share(file.bytes, (first, end), (first, end))
        log = (state.start, state.visible)
        size += self._share(state.bytes_local, log, (max(flushed, state.start), state.visible))
        for each in () if self.objects is None else self.objects.descriptors:
            # Only of what is nowhere else: the rest is counted where it is nearer.
            for place in ((0, held), *holes):
                size += self._share(each.length, (each.first, each.end), place)
        return size

    def _share(self, size: int, whole: tuple[int, int], part: tuple[int, int]) -> int:
        """Return how many of the bytes of `whole` are behind and within `part`."""
        every = self._records_in(*whole)
        first, end = max(whole[0], part[0], self.below), min(whole[1], part[1])
        return size * self._records_in(first, end) // every if every else 0

    def _records_in(self, first: int, end: int) -> int:
        """Return how many offsets of `[first, end)` are no gap."""
        return end - first - _within(self.gaps, first, end) if first < end else 0


class Lags:
    """How far cursors are behind, at one moment; what topics have is looked up once for each."""

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self._known: dict[int, tuple[TopicObjects | None, Ranges]] = {}

    def of(self, runtime: TopicRuntime, cursor: Cursor) -> Lag:
        """Return how far a cursor is behind; its number of records takes no reading."""
        topic = runtime.state.id
        known = self._known.get(topic)
        if known is None:
            objects = self._engine.objects
            far = objects.catalog.topic(topic) if objects.source is not None else None
            known = self._known[topic] = (far, _gaps(runtime, far))
        return Lag(runtime, *known, cursor)


def _gaps(runtime: TopicRuntime, objects: TopicObjects | None) -> Ranges:
    """Return the ranges without records: as objects know them, and elsewhere as files and log do.

    A log that is older than its objects has a gap where those have records.
    """
    state = runtime.state
    special = list(state.ranges)
    if runtime.tiers is not None:
        special += runtime.tiers.disk.picture(state.id).gaps
    near = [(each.first, each.end) for each in special if each.kind == RANGE_GAP]
    if objects is None or objects.start >= objects.uploaded:
        return _merged(near)
    far = [
        (each.first, each.end)
        for one in objects.descriptors
        for each in one.ranges
        if each.kind == RANGE_GAP
    ]
    around = [(first, min(end, objects.start)) for first, end in near]
    around += [(max(first, objects.uploaded), end) for first, end in near]
    return _merged(far + around)


def _merged(ranges: Ranges) -> Ranges:
    """Return ranges that do not overlap, ascending."""
    found: Ranges = []
    for first, end in sorted(each for each in ranges if each[0] < each[1]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found


def _within(ranges: Iterable[tuple[int, int]], first: int, end: int) -> int:
    """Return how many offsets of `[first, end)` are in ranges that do not overlap."""
    return sum(max(0, min(high, end) - max(low, first)) for low, high in ranges)


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
