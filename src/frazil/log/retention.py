"""Choose the segments to free: only holds and retention free data. Pure functions.

Segments are freed oldest first, so that a journal is always one unbroken chain. A topic with a
stuck hold keeps its segments until its data is `released`, that is, held by the next tier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from frazil.log.segment import Segment
    from frazil.log.state import TopicState

CLOCK_JUMP_US: Final = 3600 * 1_000_000
"""A larger jump of the clock pauses decisions by time."""


@attrs.frozen
class Policy:
    """The age and size up to which a topic is kept once no hold needs it."""

    age_us: int
    bytes_max: int


@attrs.frozen
class RetentionView:
    """The input of a decision, read once."""

    now_us: int
    time_trusted: bool
    delete_grace_us: int
    policies: Mapping[int, Policy]
    released: Mapping[int, int]
    """Offsets below which the next tier holds a topic's data, regardless of its holds."""
    pinned: Mapping[int, int]
    """The lowest offset that an open reader of a topic still needs."""
    journal_bytes_max: int = 1 << 62
    """Above this size the oldest segments are freed even against a topic's retention."""


def segments_to_free(
    segments: Sequence[Segment], topics: Mapping[int, TopicState], view: RetentionView
) -> int:
    """Return how many of the oldest segments can be freed; the active one never is."""
    later = _bytes_by_topic(segments)
    excess = sum(segment.body_end for segment in segments) - view.journal_bytes_max
    count = 0
    for segment in segments[:-1]:
        for topic_id, summary in segment.summaries().items():
            later[topic_id] -= summary[2]
            topic = topics.get(topic_id)
            if topic is None:
                continue
            if not _may_go(topic, summary, later[topic_id], view, early=excess > 0):
                return count
        excess -= segment.body_end
        count += 1
    return count


def _bytes_by_topic(segments: Iterable[Segment]) -> Counter[int]:
    sizes: Counter[int] = Counter()
    for segment in segments:
        for topic_id, summary in segment.summaries().items():
            sizes[topic_id] += summary[2]
    return sizes


def _may_go(
    topic: TopicState,
    summary: tuple[int, int, int, int, int],
    later: int,
    view: RetentionView,
    *,
    early: bool,
) -> bool:
    """Tell whether a topic allows freeing a segment; `early` if the journal is too large."""
    _first, end, _size, _time_min, time_max = summary
    if end > view.pinned.get(topic.id, end):
        return False
    if topic.spec.deleted_us:
        return view.time_trusted and topic.spec.deleted_us + view.delete_grace_us <= view.now_us
    if end <= view.released.get(topic.id, 0):
        return True
    if end > topic.floor:
        return False
    policy = view.policies[topic.id]
    if early or later >= policy.bytes_max:
        return True
    return view.time_trusted and time_max + policy.age_us <= view.now_us


def held_bytes(topic: TopicState, segments: Sequence[Segment], released: int) -> tuple[int, int]:
    """Return the bytes that a topic's holds keep here, and the time of the oldest of them.

    A segment counts in full while one of its records is needed.
    """
    floor = max(topic.floor, released)
    size = oldest = 0
    for segment in segments:
        summary = segment.summary(topic.id)
        if summary is not None and summary[1] > floor:
            size += summary[2]
            oldest = oldest or summary[3]
    return size, oldest


class ClockWatch:
    """Detects when the wall clock and the monotonic clock diverge (F13)."""

    def __init__(self, *, now_us: int, monotonic_s: float) -> None:
        self._now_us = now_us
        self._monotonic_s = monotonic_s
        self._trusted_from_s = monotonic_s

    def trusted(self, *, now_us: int, monotonic_s: float) -> bool:
        """Tell whether the wall clock has run evenly for as long as a jump matters."""
        drift_us = (now_us - self._now_us) - int((monotonic_s - self._monotonic_s) * 1e6)
        self._now_us, self._monotonic_s = now_us, monotonic_s
        if abs(drift_us) > CLOCK_JUMP_US:
            self._trusted_from_s = monotonic_s + CLOCK_JUMP_US / 1e6
        return monotonic_s >= self._trusted_from_s
