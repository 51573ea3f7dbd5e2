"""How far a subscription is behind: in records, in bytes, and since when.

Offsets are dense but for gaps, which hold no record: they are no part of a lag. A crash of a topic that
is not synced with each record leaves a gap of a million offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import FrazilError
from frazil.log import RANGE_GAP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from frazil.log import Cursor
    from frazil.objects import TopicObjects
    from frazil.topic import Instance, TopicRuntime

__all__ = ["Lag", "Lags"]

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
