"""How `frazil top` looks: the figures of one look as tables for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from frazil.cli.output import size_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["render"]

ZONE_STYLES: Final = {"green": "bold green", "yellow": "bold yellow", "red": "bold red"}
UNKNOWN: Final = "-"
TOPICS_MAX: Final = 50


def render(figures: Mapping[str, Any], *, kind: str) -> RenderableType:
    """Return the whole view."""
    parts: list[RenderableType] = [_heading(figures, kind), _memory(figures), _disk(figures)]
    if figures["latencies"]:
        parts.append(_latencies(figures["latencies"]))
    if figures["lake"].get("topics"):
        parts.append(_lake(figures["lake"]))
    if figures["objects"].get("topics"):
        parts.append(_objects(figures["objects"]))
    parts.append(_topics(figures["topics"]))
    parts += [
        Text(f"error in {task}: {text}", style="red") for task, text in figures["errors"].items()
    ]
    return Group(*parts)


def _heading(figures: Mapping[str, Any], kind: str) -> Text:
    rates = figures["rates"]
    who = f"pid {figures['pid']}" if kind == "running" else "opened by this command"
    return Text.assemble(
        f"frazil top  {figures['data_dir']}  {who}  {figures['time']}  ",
        (figures["health"], "green" if figures["health"] == "ok" else "red"),
        f"\n{_number(rates['records'])} records/s  {_size(rates['log_bytes'])}/s to the log  "
        f"{_number(rates['syncs'])} syncs/s  {_size(rates['flushed_bytes'])}/s flushed",
    )


def _memory(figures: Mapping[str, Any]) -> Table:
    memory = figures["memory"]
    table = Table("zone", "memory", "of budget", "resident", "sources", "entered", "held back")
    zone = figures["zone"]
    table.add_row(
        Text(zone or UNKNOWN, style=ZONE_STYLES.get(zone or "", "")),
        size_text(memory["used_bytes"]),
        f"{memory['percent']:.0f} % of {size_text(memory['budget_bytes'])}",
        size_text(memory["rss_bytes"]),
        _listed({name: size_text(size) for name, size in memory["sources"].items()}),
        _listed(memory["entries"]),
        f"{memory['delays']:,} delayed, {memory['refusals']:,} refused",
    )
    return table


def _disk(figures: Mapping[str, Any]) -> Table:
    disk = figures["disk"]
    table = Table("files", "on disk", "cap", "by purpose", "signals fired", "commits due")
    table.add_row(
        _number(disk.get("files")),
        _size(disk.get("bytes")),
        _size(disk.get("bytes_max")),
        _listed({name: size_text(size) for name, size in (disk.get("purposes") or {}).items()}),
        _listed(figures["signals_fired"]),
        str(len(figures["commit_queue"])),
    )
    return table


def _latencies(latencies: Mapping[str, Mapping[str, float]]) -> Table:
    measures = sorted({measure for each in latencies.values() for measure in each})
    table = Table("latency", *measures)
    for name, each in latencies.items():
        table.add_row(name, *(_latency(measure, each.get(measure)) for measure in measures))
    return table


def _latency(measure: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value / 1e3:.2f} ms" if measure.endswith("_us") else f"{value:,.0f}"


def _lake(lake: Mapping[str, Any]) -> Table:
    """Return the lake as one row: all topics together."""
    names = (
        "worker",
        "restarts",
        "commits",
        "rows",
        "rejected",
        "behind",
        "for",
        "commit p50, p99",
    )
    table = Table("lake", *names, "stopped")
    totals = lake.get("totals") or {}
    took = totals.get("commit_seconds") or {}
    waits = totals.get("lag_seconds")
    stopped = (totals.get("states") or {}).get("stopped", 0)
    table.add_row(
        lake["state"],
        lake["worker"]["state"],
        _number(lake["worker"].get("restarts")),
        _number(totals.get("commits")),
        f"{_number(totals.get('rows'))} in {_size(totals.get('bytes'))}",
        _number(totals.get("rejected")),
        f"{_number(totals.get('lag_records'))} in {_size(totals.get('lag_bytes'))}",
        UNKNOWN if waits is None else f"{waits:,.1f} s",
        f"{_seconds(took.get('p50'))}, {_seconds(took.get('p99'))}",
        Text(str(stopped), style="red" if stopped else ""),
    )
    return table


def _objects(objects: Mapping[str, Any]) -> Table:
    """Return the object store as one row: all topics together."""
    names = ("uploaded", "stored", "behind", "for", "failures", "stopped")
    table = Table("objects", *names)
    totals = objects.get("totals") or {}
    waits = totals.get("lag_seconds")
    stopped = (totals.get("states") or {}).get("stopped", 0)
    table.add_row(
        Text(f"{objects['store']} {objects['root']}"),
        f"{_number(totals.get('objects_uploaded'))} in {_size(totals.get('bytes_uploaded'))}",
        f"{_number(totals.get('objects'))} with {_size(totals.get('bytes'))}",
        f"{_number(totals.get('lag_records'))} in {_size(totals.get('lag_bytes'))}",
        UNKNOWN if waits is None else f"{waits:,.1f} s",
        _number(totals.get("failures")),
        Text(str(stopped), style="red" if stopped else ""),
    )
    return table


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f} s"


def _topics(topics: list[dict[str, Any]]) -> Table:
    marks = ("start", "committed", "uploaded", "flushed", "in memory from", "durable", "head")
    names = (*marks, "records/s")
    table = Table("topic", *names, "memory", "flushes", "last signal", "keys")
    for each in topics[:TOPICS_MAX]:
        table.add_row(
            Text(each["topic"]),
            _number(each["start"]),
            _number(each.get("committed")),
            _number(each.get("uploaded")),
            _number(each["flushed"]),
            _number(each["memory_start"]),
            _number(each["durable"]),
            _number(each["head"]),
            _number(each["records_rate"]),
            size_text(each["memory_bytes"]),
            _number(each["flushes"]),
            Text(each["signal_last"] or UNKNOWN),
            _number(each["index_keys"]),
        )
    if len(topics) > TOPICS_MAX:
        table.caption = f"{len(topics) - TOPICS_MAX} more topics, --json has all of them"
    return table


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _size(value: float | None) -> str:
    return UNKNOWN if value is None else size_text(value)


def _listed(values: Mapping[str, object]) -> Text:
    return Text(", ".join(f"{name} {value}" for name, value in values.items()) or UNKNOWN)
