"""Which objects make up a topic again, when only the store and perhaps an old backup are left. Pure.

Registered objects lie one behind another and never across each other. What a store has besides are
objects that were replaced, were written by an owner of the past, or were just not registered yet:
of two that overlap the one with the higher epoch counts, then the one that reaches further.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from frazil.objects.format import Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from frazil.objects.descriptor import Descriptor

__all__ = ["Chain", "chained"]

LOST: Final = "an object that had them is missing or damaged"


class Chain(NamedTuple):
    """A topic's objects in order, each beginning where the one before it ends."""

    descriptors: tuple[Descriptor, ...]
    lost: tuple[tuple[int, int], ...]
    """Offsets between objects that no object has; the descriptor behind tells of them."""

    @property
    def start(self) -> int:
        """Return the first offset, 0 if there is none."""
        return self.descriptors[0].first if self.descriptors else 0

    @property
    def end(self) -> int:
        """Return the offset behind the last one, 0 if there is none."""
        return self.descriptors[-1].end if self.descriptors else 0


def chained(candidates: Iterable[Descriptor], *, start: int = 0) -> Chain:
    """Choose the objects that hold a topic's records from `start` on, or from where there are any.

    Args:
        candidates: what could be objects of the topic; the same may be given twice.
        start: below it nothing is wanted: it expired.
    """
    usable = _uncrossed([found for found in candidates if found.end > start])
    waiting = sorted(usable, key=lambda found: found.first, reverse=True)
    having: list[tuple[tuple[int, int, int], Descriptor]] = []
    chosen: list[Descriptor] = []
    lost: list[tuple[int, int]] = []
    at = start
    while waiting or having:
        while waiting and waiting[-1].first <= at:
            found = waiting.pop()
            heapq.heappush(having, (_rank(found, len(waiting)), found))
        while having and having[0][1].end <= at:
            heapq.heappop(having)
        if having:
            best = having[0][1]
            chosen.append(_from(best, at))
            at = best.end
        elif waiting:
            following = waiting[-1].first
            if chosen:
                lost.append((at, following))
            at = following
    return Chain(_joined(chosen), tuple(lost))


def _uncrossed(candidates: Sequence[Descriptor]) -> list[Descriptor]:
    """Leave out what has the beginning or end of an object of a higher epoch inside.

    An owner begins where registered objects end, and rewrites whole ones: an object across such a
    place was written by one who was not the owner any more, or was replaced.
    """
    firsts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    kept: list[Descriptor] = []
    for found in sorted(candidates, key=lambda found: (-found.epoch, found.first)):
        first, end, epoch = found.first, found.end, found.epoch
        crossed = any(_between(firsts[e], first, end) for e in firsts if e > epoch) or any(
            _between(ends[e], first + 1, end) for e in ends if e > epoch
        )
        if not crossed:
            firsts.setdefault(epoch, []).append(first)
            insort(ends.setdefault(epoch, []), end)
            kept.append(found)
    return kept


def _between(places: Sequence[int], low: int, high: int) -> bool:
    """Tell whether one of the sorted places lies in `[low, high)`."""
    number = bisect_left(places, low)
    return number < len(places) and places[number] < high


def _rank(found: Descriptor, number: int) -> tuple[int, int, int]:
    """Rank the best one first; the number tells equals apart."""
    return -found.epoch, -found.end, number


def _from(found: Descriptor, first: int) -> Descriptor:
    """Return the part of an object from an offset on; its frames may begin below."""
    if found.first == first:
        return found
    ranges = tuple(
        Range(max(each.first, first), each.end, each.kind, each.reason)
        for each in found.ranges
        if each.end > first
    )
    return msgspec.structs.replace(found, first=first, ranges=ranges)


def _joined(chosen: Sequence[Descriptor]) -> tuple[Descriptor, ...]:
    """Let each object begin where the one before it ends: what lies between is told as lost."""
    found: list[Descriptor] = []
    for each in chosen:
        if found and found[-1].end < each.first:
            hole = Range(found[-1].end, each.first, "lost", LOST)
            found.append(
                msgspec.structs.replace(each, first=hole.first, ranges=(hole, *each.ranges))
            )
        else:
            found.append(each)
    return tuple(found)
