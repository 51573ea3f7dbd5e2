"""What `frazil top` shows, worked out of two samples of an engine's `stats`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from frazil.cli.output import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Sample", "figures"]


class Sample(NamedTuple):
    """What an engine told about itself at one time."""

    time_us: int
    pid: int
    stats: dict[str, Any]


def figures(sample: Sample, before: Sample) -> dict[str, Any]:
    """Return the figures of one look, ready for JSON; rates are null if both samples are one.

    Rates are a second, over the time between the samples. Counters of an engine that was opened
    again meanwhile begin anew, so that a negative difference is no rate either.
    """
    stats, past = sample.stats, before.stats
    seconds = (sample.time_us - before.time_us) / 1e6 if sample.pid == before.pid else 0.0
    tiers = stats.get("tiers") or {}
    pressure = tiers.get("pressure") or {}
    return {
        "time": stamp(sample.time_us),
        "pid": sample.pid,
        "data_dir": stats.get("data_dir", ""),
        "health": stats.get("health", ""),
        "zone": pressure.get("zone"),
        "memory": {
            "percent": pressure.get("percent", 0.0),
            "used_bytes": pressure.get("used_bytes", 0),
            "budget_bytes": pressure.get("budget_bytes", 0),
            "rss_bytes": pressure.get("rss_bytes", 0),
            "sources": dict(pressure.get("sources") or {}),
            "entries": dict(pressure.get("entries") or {}),
            "delay_ms": pressure.get("delay_ms", 0.0),
            "delays": pressure.get("delays", 0),
            "refusals": pressure.get("refusals", 0),
        },
        "disk": dict(tiers.get("disk") or {}),
        "commit_queue": list(tiers.get("commit_queue") or ()),
        "signals_fired": dict(tiers.get("signals_fired") or {}),
        "errors": dict(tiers.get("errors") or {}),
        "lake": dict(stats.get("lake") or {}),
        "objects": dict(stats.get("objects") or {}),
        "latencies": dict(stats.get("latencies") or {}),
        "rates": {
            "records": _rate(_heads(stats), _heads(past), seconds),
            "log_bytes": _rate(_written(stats), _written(past), seconds),
            "syncs": _rate(_journals(stats, "syncs"), _journals(past, "syncs"), seconds),
            "flushed_bytes": _rate(_flushed(stats), _flushed(past), seconds),
        },
        "topics": [
            _topic(name, found, (past.get("per_topic") or {}).get(name), seconds)
            for name, found in sorted((stats.get("per_topic") or {}).items())
        ],
    }


def _topic(
    name: str, found: Mapping[str, Any], past: Mapping[str, Any] | None, seconds: float
) -> dict[str, Any]:
    tiers = found.get("tiers") or {}
    return {
        "topic": name,
        "start": found["start"],
        "committed": found.get("committed"),
        "uploaded": found.get("uploaded"),
        "flushed": tiers.get("flushed", 0),
        "memory_start": tiers.get("memory_start", 0),
        "durable": found["durable"],
        "head": found["head"],
        "records_rate": None if past is None else _rate(found["head"], past["head"], seconds),
        "log_bytes": found["bytes_stored"],
        "memory_bytes": tiers.get("memory_bytes", 0),
        "flushes": tiers.get("flushes", 0),
        "flushed_bytes": tiers.get("flushed_bytes", 0),
        "signal_last": tiers.get("signal_last", ""),
        "signals_fired": dict(tiers.get("signals_fired") or {}),
        "index_keys": (tiers.get("index") or {}).get("keys"),
        "routes": dict(tiers.get("routes") or {}),
    }


def _rate(now: int, past: int, seconds: float) -> float | None:
    return (now - past) / seconds if seconds > 0 and now >= past else None


def _heads(stats: Mapping[str, Any]) -> int:
    return sum(each["head"] for each in (stats.get("per_topic") or {}).values())


def _flushed(stats: Mapping[str, Any]) -> int:
    topics = (stats.get("per_topic") or {}).values()
    return sum((each.get("tiers") or {}).get("flushed_bytes", 0) for each in topics)


def _journals(stats: Mapping[str, Any], what: str) -> int:
    return int((stats.get("journal") or {}).get(what, 0))


def _written(stats: Mapping[str, Any]) -> int:
    return _journals(stats, "bytes_written")
