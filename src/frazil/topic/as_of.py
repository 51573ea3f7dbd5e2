"""The offset of a snapshot: after offsets that the caller has acks of, or at a past moment."""

from __future__ import annotations

import datetime as dt
import threading
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import InvalidRequest, NotFound, Unavailable
from frazil.model import Ack, full_topic_name
from frazil.topic.runtime import microseconds
from frazil.units import is_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.log import SpecialRange
    from frazil.topic.runtime import TopicRuntime

    Offsets = Iterator[tuple[TopicRuntime, int, int]]


class _Watch(threading.local):
    """The check that this thread calls before each step."""

    check: Callable[[], None] | None = None


_watch = _Watch()


@contextmanager
def watching(check: Callable[[], None]) -> Iterator[None]:
    """Run the block for a query; `check` raises if the query must stop."""
    before, _watch.check = _watch.check, check
    try:
        yield
    finally:
        _watch.check = before


def check_watch() -> None:
    """Raise if this thread runs for a query that must stop; the caller must hold no lock."""
    if _watch.check is not None:
        _watch.check()


WAIT_STEP_S: Final = 0.02
"""The interval at which a query that waits for an offset checks whether it must stop."""


# -- after an ack ----------------------------------------------------------------------------------


def wait_for(runtimes: Sequence[TopicRuntime], wanted: Any, *, timeout_s: float) -> None:
    """Wait until topics have the offsets that a caller must see.

    `wanted` is an offset, an ack or a list of acks of the one topic in `runtimes`, or a mapping of
    these by the topics' names. A topic with parts needs acks, because an ack has its part, or the
    names of its parts.

    Raises:
        InvalidRequest: if the topic or the part of an offset is not given.
        Unavailable: if a topic does not reach its offset in time.
    """
    by_name = {runtime.name: runtime for runtime in runtimes}
    for runtime, offset, _end in _offsets([*by_name.values()], wanted, "min_offset"):
        if runtime.state.durable <= offset and not _came(runtime, offset, timeout_s):
            raise Unavailable(
                "the topic has no such offset yet", topic=runtime.name, min_offset=offset
            )


def _came(runtime: TopicRuntime, offset: int, timeout_s: float) -> bool:
    """Wait for an offset until the query must stop."""
    deadline = runtime.clock.monotonic() + timeout_s
    while True:
        check_watch()
        left = deadline - runtime.clock.monotonic()
        if runtime.wait_visible(offset, timeout_s=min(max(left, 0.0), WAIT_STEP_S)):
            return True
        if left <= 0:
            return False


def _offsets(runtimes: Sequence[TopicRuntime], wanted: Any, option: str) -> Offsets:
    """Yield each topic or part with the offset that an option names, and the end of its snapshot.

    An ack means its last offset, which the snapshot includes. A number is an offset that the
    snapshot excludes.
    """
    if isinstance(wanted, Mapping):
        for name, own in wanted.items():
            full = full_topic_name(name)
            found = [each for each in runtimes if full in {each.name, _topic_name(each)}]
            if not found:
                raise InvalidRequest(f"{option} names a topic that the query does not", topic=full)
            yield from _of_topic(found, own, option)
        return
    names = sorted({_topic_name(runtime) for runtime in runtimes})
    if len(names) != 1:
        raise InvalidRequest(
            f"{option} must say of which topic it is: give {{topic: offset}}",
            topics=", ".join(names) or "none",
        )
    yield from _of_topic(runtimes, wanted, option)


def _of_topic(runtimes: Sequence[TopicRuntime], wanted: Any, option: str) -> Offsets:
    if isinstance(wanted, (list, tuple)):
        for each in wanted:
            yield from _of_topic(runtimes, each, option)
    elif isinstance(wanted, Ack):
        own = [each for each in runtimes if each.part == wanted.part] or runtimes
        # The ack of a call without any write has an `offset_last` below its `offset`.
        if wanted.offset_last >= wanted.offset:
            yield _only_part(own, option), wanted.offset_last, wanted.offset_last + 1
    elif is_whole(wanted) and wanted >= 0:
        yield _only_part(runtimes, option), wanted, wanted
    else:
        raise InvalidRequest("must be an offset from 0 on", name=option, got=wanted)


def _only_part(runtimes: Sequence[TopicRuntime], option: str) -> TopicRuntime:
    if len(runtimes) != 1:
        raise InvalidRequest(
            f"{option} must say of which part it is: give the ack, or {{part: offset}}",
            topic=_topic_name(runtimes[0]),
        )
    return runtimes[0]


def _topic_name(runtime: TopicRuntime) -> str:
    """Return a topic's name; for a part, the name of the partitioned topic."""
    name = runtime.name
    return name.rpartition("-part-")[0] if runtime.state.spec.part_of else name


# -- in the past -----------------------------------------------------------------------------------


def moments_of(runtimes: Sequence[TopicRuntime], wanted: Any) -> dict[str, int]:
    """Return the ends of the visible offsets, by the name of the topic or part.

    `wanted` has the forms of `wait_for`. A number is the first offset that is not visible; an
    ack's records are visible. Of several values for one part the last one counts. Topics that
    `wanted` does not name are not in the result.

    Raises:
        InvalidRequest: if the topic or the part of an offset is not given.
    """
    found: dict[str, int] = {}
    by_name = {runtime.name: runtime for runtime in runtimes}
    for runtime, _offset, end in _offsets([*by_name.values()], wanted, "as_of_offset"):
        found[runtime.name] = max(end, found.get(runtime.name, 0))
    return found


def moment(runtime: TopicRuntime, end: int, offset: int | None, time: Any) -> int:
    """Return the end of a snapshot: the current end, or a past one.

    Raises:
        InvalidRequest: if the moment is wrong, or if its state is not known any more because it
            is between two commits; the error names the nearest offsets that can be queried.
        NotFound: if the records of that moment are no longer kept; the error names the first
            offset that is.
    """
    asked: dict[str, Any]
    if time is not None:
        at, asked = _at_time(runtime, end, time), {"as_of_time": time}
    elif offset is not None:
        at, asked = _at_offset(runtime, end, offset), {"as_of_offset": offset}
    else:
        return end
    start = first_held(runtime)
    # The topic's end at a time before its first kept record is not known.
    if at < start or (time is not None and 0 < at == start):
        raise NotFound(
            "the topic's records of then are no longer held",
            topic=runtime.name,
            **asked,
            offset_first=start,
        )
    _check_boundary(runtime, at, start, asked)
    return at


def first_held(runtime: TopicRuntime) -> int:
    """Return the first offset that a topic still has; the log may free older ones later."""
    topic = runtime.state.id
    first = runtime.history.range(topic).first
    return first if runtime.tiers is None else max(first, runtime.tiers.disk.start(topic))


def _at_time(runtime: TopicRuntime, end: int, time: Any) -> int:
    if not isinstance(time, dt.datetime):
        raise InvalidRequest("as_of_time must be a datetime", got=type(time).__name__)
    # A record appended at exactly that time is included.
    found = runtime.history.offset_at(runtime.state.id, time_us=microseconds(time) + 1)
    return end if found is None else min(found, end)


def _at_offset(runtime: TopicRuntime, end: int, offset: int) -> int:
    if offset > end:
        raise InvalidRequest(
            "as_of_offset must be an offset up to the topic's end",
            topic=runtime.name,
            as_of_offset=offset,
            end=end,
        )
    return offset


def _check_boundary(runtime: TopicRuntime, at: int, start: int, asked: Mapping[str, Any]) -> None:
    """Refuse a moment between two commits: only the last change of a key in between is kept."""
    tiers = runtime.tiers
    if tiers is None or tiers.keyed is None:
        return
    committed = tiers.disk.committed(tiers.id)
    if at >= committed:
        return
    ends = {span.end for span in tiers.disk.picture(tiers.id).spans if span.end <= committed}
    known = sorted({start, committed, *ends})
    if at in known:
        return
    above = bisect_right(known, at)
    raise InvalidRequest(
        "below its committed offset a keyed topic can be queried only at commit boundaries",
        **asked,
        nearest=", ".join(map(str, known[max(above - 1, 0) : above + 1])),
    )


def special_ranges(runtime: TopicRuntime) -> list[SpecialRange]:
    """Return the ranges without records: those of the log, and those recorded only in files."""
    state = runtime.state
    ranges = list(state.ranges)
    if runtime.tiers is not None:
        ranges += [
            gap
            for gap in runtime.tiers.disk.picture(state.id).gaps
            if not any(own.first <= gap.first and gap.end <= own.end for own in state.ranges)
        ]
    return sorted(ranges)
