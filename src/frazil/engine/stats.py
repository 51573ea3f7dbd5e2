"""Statistics and descriptions of the engine and its topics, as plain values ready for JSON."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from frazil.background import in_slices
from frazil.fs import write_fully
from frazil.log import RANGE_GAP, RANGE_LOST
from frazil.model import topic_uid
from frazil.objects import unreadable
from frazil.schema import key_names, partition_spec_text, type_name
from frazil.telemetry import warn
from frazil.tiers import on_full_of, quota_of
from frazil.topic import first_held, special_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from frazil.config import LogSettings, Settings
    from frazil.engine.engine import Engine
    from frazil.fs import FileSystem
    from frazil.log import Log, Segment, TopicState
    from frazil.model import TopicSpec
    from frazil.topic import TopicRuntime


def _time(us: int) -> str:
    return dt.datetime.fromtimestamp(us / 1e6, dt.UTC).isoformat()


def _definition(spec: TopicSpec, schema: pa.Schema) -> dict[str, Any]:
    """Describe a topic's definition, by its columns' names."""
    return {
        "name": spec.name,
        "id": spec.id,
        "kind": spec.kind,
        "created": _time(spec.created_us),
        "version": spec.version,
        "sync": spec.sync,
        "columns": [
            {"name": field.name, "type": type_name(field.type), "nullable": field.nullable}
            for field in schema
        ],
        "primary_key": key_names(schema, spec.primary_key),
        "partition_by": partition_spec_text(spec.partition_by, schema),
        "sort_by": key_names(schema, spec.sort_by),
        "part_of": spec.part_of or None,
        "part_index": spec.part_index if spec.part_of else None,
        "unknown_key": spec.unknown_key if spec.primary_key else None,
        "signals": dict(spec.signals or {}),
        "lake": spec.lake,
        "topic_id": topic_uid(spec),
    }


def describe(runtime: TopicRuntime, settings: Settings) -> dict[str, Any]:
    """Describe one topic."""
    state = runtime.state
    spec, log = state.spec, settings.log
    ranges: dict[str, list[dict[str, Any]]] = {RANGE_GAP: [], RANGE_LOST: []}
    for each in special_ranges(runtime):
        ranges[each.kind].append({"first": each.first, "end": each.end, "reason": each.reason})
    return {
        **_definition(spec, runtime.codec.schema),
        "schema_version": state.schema_version,
        "retention_age_s": _retention_age_s(runtime, log),
        "retention_bytes": quota_of(spec, log),
        "on_full": on_full_of(spec, log),
        "objects": runtime.objects is not None,
        "holds": dict(sorted(state.holds.items())),
        "oldest_kept_by": _kept_by([runtime]),
        "watermarks": _watermarks(runtime),
        "gaps": ranges[RANGE_GAP],
        "lost": ranges[RANGE_LOST],
        "producers": len(state.producers),
        "refused": None if runtime.refusal is None else str(runtime.refusal()),
    }


def _retention_age_s(runtime: TopicRuntime, log: LogSettings) -> float | None:
    """Return the age up to which a topic's records are kept; None (also for keys) is for ever."""
    spec = runtime.state.spec
    if spec.primary_key and runtime.tiers is not None:
        return None
    return log.retention_age_s if spec.retention_us is None else spec.retention_us / 1e6


def describe_parent(parent: TopicSpec, parts: Sequence[TopicRuntime]) -> dict[str, Any]:
    """Describe a partitioned topic."""
    first = describe(parts[0], parts[0].settings)
    for key in ("watermarks", "holds", "gaps", "lost", "part_of", "part_index", "producers"):
        first.pop(key)
    return {
        **first,
        "name": parent.name,
        "id": parent.id,
        "oldest_kept_by": _kept_by(parts),
        "partitions": parent.partitions,
        "parts": [_part(part) for part in parts],
    }


def _part(runtime: TopicRuntime) -> dict[str, Any]:
    """Describe one part by values that a restart keeps; the contents of tiers are in `stats`."""
    counts = topic_stats(runtime)
    counts.pop("tiers", None)
    return {"name": runtime.name, **counts}


def oldest_kept_by(
    segments: Sequence[Segment], topics: Mapping[int, TopicState]
) -> list[dict[str, Any]]:
    """Return the holds that keep the oldest segment of a journal; the active one needs none.

    Segments are freed oldest first, so these holds keep all later segments of all topics too.
    """
    found: list[dict[str, Any]] = []
    for oldest in segments[:-1][:1]:
        for topic_id in list(oldest.topics):
            summary, topic = oldest.summary(topic_id), topics.get(topic_id)
            if summary is None or topic is None or topic.spec.deleted_us:
                continue
            found += [
                {"topic": topic.spec.name, "hold": name, "offset": offset}
                for name, offset in list(topic.holds.items())
                if offset < summary[1]
            ]
    return sorted(found, key=itemgetter("topic", "hold"))


def _kept_by(runtimes: Sequence[TopicRuntime]) -> list[dict[str, Any]]:
    """Return the holds that keep the oldest records of topics, in files if a topic has any."""
    if any(runtime.tiers is None for runtime in runtimes):
        journal = runtimes[0].log.journal
        return oldest_kept_by(journal.segments, journal.state.topics)
    found = [
        {"topic": runtime.name, "hold": name, "offset": offset}
        for runtime in runtimes
        for name, offset in sorted(runtime.state.holds.items())
        if offset < _oldest_files_end(runtime)
    ]
    return sorted(found, key=itemgetter("topic", "hold"))


def _oldest_files_end(runtime: TopicRuntime) -> int:
    """Return the end of the oldest files; rows of a keyed topic are kept without any hold."""
    if runtime.tiers is None or runtime.state.spec.primary_key:
        return 0
    spans = runtime.tiers.disk.picture(runtime.state.id).spans
    return spans[0].end if spans else 0


def _watermarks(runtime: TopicRuntime) -> dict[str, int]:
    state = runtime.state
    marks = {
        "start": first_held(runtime),
        "floor": state.floor,
        "durable": state.durable,
        "head": state.next,
    }
    if runtime.tiers is not None:
        marks["flushed"] = runtime.tiers.flushed
        if state.spec.lake:
            marks["committed"] = runtime.tiers.disk.committed(state.id)
    if runtime.objects is not None:
        marks["uploaded"] = runtime.objects.reached.get(runtime.part, 0)
    return marks


def topic_stats(runtime: TopicRuntime) -> dict[str, Any]:
    """Return the counts, sizes and watermarks of one topic."""
    state = runtime.state
    start = first_held(runtime)
    ranges = special_ranges(runtime)
    missing = sum(max(0, special.end - max(special.first, start)) for special in ranges)
    stored = state.bytes_local
    own: dict[str, Any] = {}
    if runtime.tiers is not None:
        stored += sum(file.size for file in runtime.tiers.disk.files(state.id))
        own["tiers"] = tiers = runtime.tiers.stats()
        if "routes" in tiers:
            # Changes of rows that only Iceberg has would be queued; that tier does not exist yet.
            tiers["routes"] = {**tiers["routes"], "queued": 0}
    return {
        "message_count": state.durable - start - missing,
        "bytes_stored": stored,
        "gaps": sum(1 for special in ranges if special.kind == "gap"),
        "lost_records": sum(s.end - s.first for s in ranges if s.kind == "lost"),
        **_watermarks(runtime),
        **own,
    }


def engine_stats(engine: Engine, topics: Iterable[TopicRuntime]) -> dict[str, Any]:
    """Return the counts and sizes of the whole engine since it was opened."""
    per_topic = {runtime.name: topic_stats(runtime) for runtime in topics}
    guard = engine.upkeep.space
    return {
        "data_dir": engine.paths.root,
        "health": health(engine),
        "topics": len(per_topic),
        "message_count": sum(each["message_count"] for each in per_topic.values()),
        "bytes_stored": sum(each["bytes_stored"] for each in per_topic.values()),
        "disk": {
            "free_bytes": guard.free_bytes,
            "total_bytes": guard.total_bytes,
            "publishing_stopped": engine.upkeep.publishing_stopped,
        },
        "journal": _journal(engine.log, tiered=engine.has_tiers),
        "warnings": list(engine.warnings),
        "upkeep": {
            "errors": dict(engine.upkeep.errors),
            "damage": dict(engine.upkeep.damage),
            "segments_freed": engine.upkeep.segments_freed,
        },
        "latencies": {
            "ack": _quantiles(list(getattr(engine.log.queue, "seconds", ()))),
            "query": _quantiles(list(engine.query_seconds)),
        },
        "tiers": engine.tiers.stats() if engine.has_tiers else None,
        "metadata": {**engine.stores.facts(), "failing": bool(engine.metadata_failed)},
        "lake": engine.lake.status(),
        "objects": engine.objects.status(),
        "per_topic": per_topic,
    }


def _quantiles(seconds: list[float]) -> dict[str, Any]:
    """Return the median and the 99th percentile of durations, of the last few thousand."""
    if not seconds:
        return {"count": 0, "p50_us": None, "p99_us": None}
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return {
        "count": len(ordered),
        "p50_us": round(ordered[last // 2] * 1e6),
        "p99_us": round(ordered[last * 99 // 100] * 1e6),
    }


def health(engine: Engine) -> str:
    """Return `ok`, `degraded` (publishing continues, an operator should check) or `failed`."""
    if engine.log.journal.failed is not None:
        return "failed"
    upkeep, objects = engine.upkeep, engine.objects
    troubles = (
        upkeep.publishing_stopped,
        engine.metadata_failed,
        upkeep.damage,
        upkeep.errors,
        [each for each in list(engine.lake.topics.values()) if each.state == "stopped"],
        objects.errors,
        unreadable(objects),
        [each for each in objects.all_topics if each.stopped],
        engine.has_tiers and (engine.tiers.errors or engine.tiers.disk.damage.damaged()),
        _has_lost(engine),
    )
    return "degraded" if any(troubles) else "ok"


def _has_lost(engine: Engine) -> bool:
    """Return whether records are lost, also after the opening that found the loss."""
    topics = list(engine.log.journal.state.topics.values())
    ranges = [each for topic in topics if not topic.spec.deleted_us for each in topic.ranges]
    for runtime in engine.runtimes:
        ranges += special_ranges(runtime)
    return any(each.kind == RANGE_LOST for each in ranges)


def _journal(log: Log, *, tiered: bool) -> dict[str, Any]:
    journal = log.journal
    report = journal.report
    return {
        "journal_id": journal.journal_id.hex(),
        "segments": len(journal.segments),
        "segment": journal.active.id,
        "segment_bytes": journal.active.body_end,
        "lsn": journal.state.lsn,
        "syncs": journal.sync_count,
        "groups": journal.group_count,
        "bytes_written": journal.bytes_written,
        "bytes_read": log.source.bytes_read,
        # The log frees records that files have, regardless of holds.
        "oldest_kept_by": [] if tiered else oldest_kept_by(journal.segments, journal.state.topics),
        "queued_records": getattr(log.queue, "queued", (0, 0))[0],
        "recovery": {
            "resumed": report.resumed,
            "frames_scanned": report.frames_scanned,
            "frames_rewritten": report.frames_rewritten,
            "bytes_torn": report.bytes_torn,
            "lost_ranges": len(report.lost),
            "gaps": len(report.gaps),
        },
        "failed": None if journal.failed is None else str(journal.failed),
    }


NAME = "stats.json"


def write_stats_file(engine: Engine) -> None:
    """Replace `run/stats.json`; readers see the old file or the new one. It is not synced."""
    stats = engine_stats(engine, in_slices(engine.runtimes, engine.clock))
    report = {"time_us": engine.clock.now_us(), "pid": os.getpid(), "stats": stats}
    data = msgspec.json.encode(report, enc_hook=str)
    replace_run_file(engine.file_system, engine.paths.run, NAME, data)


def replace_run_file(files: FileSystem, directory: str, name: str, data: bytes) -> None:
    """Replace a small file of the running process atomically. The file is not synced.

    Raises:
        OSError: if the file cannot be written.
    """
    files.make_directory(directory)
    fresh = f"{directory}/{name}.tmp"
    if files.stat(fresh) is not None:
        files.unlink(fresh)
    with contextlib.closing(files.open(fresh, "create")) as file:
        write_fully(file, 0, [data])
    files.rename(fresh, f"{directory}/{name}")


def remove_run_file(engine: Engine, name: str, warning: str) -> None:
    """Remove a small file of the running process; a failure is logged as the event `warning`."""
    path = f"{engine.paths.run}/{name}"
    try:
        if engine.file_system.stat(path) is not None:
            engine.file_system.unlink(path)
    except OSError as error:
        warn(warning, path=path, error=error)


def remove_stats_file(engine: Engine) -> None:
    """Remove the file when the engine ends."""
    remove_run_file(engine, NAME, "stats_file_not_removed")
