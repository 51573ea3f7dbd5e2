"""What can be told about topics on their way into tables, as plain values ready for JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, NotFound
from frazil.lake.topics import COUNTS
from frazil.topic import special_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.lake.table import Ends
    from frazil.lake.topics import LakeTopic
    from frazil.lake.worker_client import LakeWorker
    from frazil.tiers import Tiers
    from frazil.topic import TopicRuntime

__all__ = ["topic_facts", "totals"]


def topic_facts(topic: LakeTopic, tiers: Tiers, worker: LakeWorker, now_us: int) -> dict[str, Any]:
    """Describe one topic with a lake: state, how far it is, what waits and why."""
    committed = topic.waits.reached or topic.remembered()
    durable = topic.durable()
    state: str = topic.state if topic.state != "stopped" else f"stopped: {topic.reason}"
    if state == "running" and worker.state != "ready":
        state = "starting"
    return {
        "state": state,
        "why": _why(topic, worker),
        "table": str(topic.table),
        "topic_id": topic.uid,
        "committed": _shown(committed),
        "durable": _shown(durable),
        "lag_records": sum(_records(each, committed.get(each.part, 0)) for each in topic.runtimes),
        **_waiting(topic, tiers, committed, now_us),
        "last_commit_us": topic.last_commit_us,
        "commit_seconds": round(topic.results[-1], 3) if topic.results else None,
        "step": topic.step_name or None,
        "plan": None if topic.plan is None else topic.plan.id,
        "schema_version": topic.table_version,
        **topic.counts,
    }


def totals(topics: Sequence[LakeTopic], facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counters of all topics together, and how far they are behind.

    Counters begin with the engine. `commit_seconds` is of the last hundred commits of each topic.
    """
    waits = [each["lag_seconds"] for each in facts.values() if each["lag_seconds"] is not None]
    return {
        **{name: sum(topic.counts[name] for topic in topics) for name in COUNTS},
        "lag_records": sum(each["lag_records"] for each in facts.values()),
        "lag_bytes": sum(each["lag_bytes"] for each in facts.values()),
        "lag_seconds": max(waits, default=None),
        "commit_seconds": _quantiles([each for topic in topics for each in topic.results]),
        "states": dict(Counter(topic.state for topic in topics)),
    }


def _quantiles(seconds: Sequence[float]) -> dict[str, Any]:
    """Return the middle, the slow end and the slowest of some durations."""
    if not seconds:
        return {"count": 0, "p50": None, "p99": None, "max": None}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    shown = {"p50": ordered[last // 2], "p99": ordered[last * 99 // 100], "max": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 3) for name, value in shown.items()}}


def _why(topic: LakeTopic, worker: LakeWorker) -> str:
    if topic.why:
        return topic.why
    if topic.state in {"starting", "running"} and worker.state != "ready":
        step = worker.step_name
        return worker.why or (step if step != "starting" else "") or "Spark is starting"
    return ""


def _shown(ends: Ends) -> int | dict[str, int]:
    """Return one number for a topic without parts, else one for each part."""
    if set(ends) <= {-1}:
        return ends.get(-1, 0)
    return {str(part): end for part, end in sorted(ends.items())}


def _records(runtime: TopicRuntime, committed: int) -> int:
    behind = max(runtime.state.durable - committed, 0)
    gaps = sum(
        max(0, min(each.end, runtime.state.durable) - max(each.first, committed))
        for each in special_ranges(runtime)
    )
    return max(behind - gaps, 0)


def _waiting(topic: LakeTopic, tiers: Tiers, committed: Ends, now_us: int) -> dict[str, Any]:
    """Return the bytes that wait, how many files they are in, and how old the oldest is."""
    size = files = 0
    oldest: int | None = None
    for runtime in topic.runtimes:
        try:
            own = tiers.topic(runtime.state.id)
        except NotFound:
            continue
        unflushed = own.memory.unflushed(own.flushed)
        times = [unflushed.time_us] if unflushed.time_us else []
        size += unflushed.bytes
        if not own.loaded:
            first = max(own.flushed, committed.get(runtime.part, 0))
            bytes_only, time_us = _only_in_the_log(runtime, first)
            size = size + max(bytes_only - unflushed.bytes, 0)
            times += [time_us] if time_us else []
        for span in own.disk.picture(own.id).spans:
            if span.end > committed.get(runtime.part, 0):
                staged = [file for file in span.files if file.rows]
                size += sum(file.bytes for file in staged)
                files += len(staged)
                times += [file.time_first for file in staged]
        oldest = min([*times, *([] if oldest is None else [oldest])], default=None)
    return {
        "lag_bytes": size,
        "lag_seconds": None if oldest is None else round(max(now_us - oldest, 0) / 1e6, 3),
        "staged_files": files,
    }


def _only_in_the_log(runtime: TopicRuntime, first: int) -> tuple[int, int]:
    """Estimate the bytes of records that were not loaded since the start; tell the first one's time.

    Both are 0 if there are none; the time is 0 if it cannot be read.
    """
    state = runtime.state
    count, kept = state.durable - first, state.durable - state.start
    if count <= 0 or kept <= 0:
        return 0, 0
    size = state.bytes_local * min(count, kept) // kept
    try:
        batches = runtime.log.source.read(state.id, offset=first, bytes_max=1).batches
    except FrazilError:
        return size, 0
    return size, batches[0].time_us if batches else 0
