"""`frazil top`: a live view of the engine that has the directory open.

A running engine writes its statistics to a small file once a second; this command reads it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from frazil.cli.output import console, note, print_json, size_text, stamp, to_json, write_out
from frazil.cli.session import session_of
from frazil.clock import SystemClock
from frazil.errors import InvalidRequest, NotFound
from frazil.fs import RealFileSystem, read_fully
from frazil.units import parse_duration_s

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.fs import FileSystem

__all__ = ["RunningEngine", "Sample", "rates_of", "render", "top"]

INTERVAL_S_MIN: Final = 0.1
SECOND_SAMPLE_S: Final = 2.5
"""How long `--once` waits for a second sample: rates need two."""
POLL_S: Final = 0.05
STATS_FILE: Final = "stats.json"
STATS_BYTES_MAX: Final = 64 << 20
FRESH_S: Final = 10.0
"""An engine writes once a second; on a busy machine it may be late."""
ZONE_STYLES: Final = {"green": "bold green", "yellow": "bold yellow", "red": "bold red"}
UNKNOWN: Final = "-"
TOPICS_MAX: Final = 50
WORKER: Final = ("state", "restarts")
WATERMARKS: Final = ("start", "committed", "uploaded", "flushed", "memory_start", "durable", "head")


class Sample(msgspec.Struct, frozen=True):
    """The statistics of an engine at one time."""

    time_us: int
    pid: int
    stats: dict[str, Any]


_decode = msgspec.json.Decoder(Sample).decode


class RunningEngine:
    """The statistics file of an engine in another process."""

    def __init__(self, file_system: FileSystem, directory: str, *, clock: Clock) -> None:
        self._file_system = file_system
        self._path = f"{directory}/{STATS_FILE}"
        self._clock = clock

    def is_there(self) -> bool:
        """Return whether an engine runs: its process is alive and its file is fresh."""
        return self._read() is not None

    def sample(self) -> Sample:
        """Return the newest sample.

        Raises:
            NotFound: if no engine runs.
        """
        found = self._read()
        if found is None:
            raise NotFound(
                "no engine runs on this directory, start one or see frazil topic describe",
                path=self._path,
            )
        return found

    def _read(self) -> Sample | None:
        try:
            info = self._file_system.stat(self._path)
            if info is None or info.size > STATS_BYTES_MAX:
                return None
            file = self._file_system.open(self._path, "read")
            try:
                found = _decode(read_fully(file, 0, file.size()))
            finally:
                file.close()
        except (OSError, msgspec.MsgspecError):
            return None
        # A file of this process was left by an engine that it closed.
        if found.pid == os.getpid() or not _is_alive(found.pid):
            return None
        age_s = (self._clock.now_us() - found.time_us) / 1e6
        return found if abs(age_s) <= FRESH_S else None


def _is_alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # the process exists and belongs to another user
    except (OSError, OverflowError):
        return False
    return True


def top(
    context: typer.Context,
    interval: Annotated[str, typer.Option("--interval", "-i", help="Time between looks.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,  # noqa: FBT002 - a flag
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a look.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Watch tiers, watermarks, zones, signals, rates and latencies of a running engine."""
    session = session_of(context)
    as_json = as_json or session.as_json
    interval_s = parse_duration_s(interval)
    if interval_s < INTERVAL_S_MIN:
        raise InvalidRequest("--interval is too short", got=interval, seconds_min=INTERVAL_S_MIN)
    source = RunningEngine(RealFileSystem(), session.paths().run, clock=SystemClock())
    if not once:
        _watch(source, interval_s, as_json=as_json)
        return
    before = source.sample()
    sample = _second(source, before, interval_s)
    if as_json:
        print_json(_document(sample, before))
    else:
        console().print(render(sample, before))


def _second(source: RunningEngine, before: Sample, interval_s: float) -> Sample:
    """Return a sample of a later time than the first; the first if none comes."""
    deadline = time.monotonic() + max(interval_s, SECOND_SAMPLE_S)
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        sample = source.sample()
        if sample.time_us > before.time_us:
            return sample
    return before


def _watch(source: RunningEngine, interval_s: float, *, as_json: bool) -> None:
    """Show samples until Ctrl-C or until the engine ends."""
    screen = console()
    with contextlib.ExitStack() as stack:
        live = None
        before = source.sample()
        if not as_json and screen.is_terminal and sys.stdin.isatty():
            live = stack.enter_context(Live(console=screen, screen=True, auto_refresh=False))
        sample = before
        while True:
            if as_json:
                write_out(to_json(_document(sample, before)) + "\n")
            elif live is not None:
                live.update(render(sample, before), refresh=True)
            else:
                screen.print(render(sample, before))
            before = sample if sample.time_us > before.time_us else before
            time.sleep(interval_s)
            try:
                sample = source.sample()
            except NotFound:
                break
    note("the engine has ended")


def _document(sample: Sample, before: Sample) -> dict[str, Any]:
    rates = rates_of(sample, before)
    return {"time": stamp(sample.time_us), "pid": sample.pid, "rates": rates, "stats": sample.stats}


def rates_of(sample: Sample, before: Sample) -> dict[str, Any]:
    """Return rates per second between two samples; null if both are one.

    An engine that was opened again counts from zero, so a negative difference is no rate.
    """
    seconds = (sample.time_us - before.time_us) / 1e6 if sample.pid == before.pid else 0.0

    def rate(now: int, past: int) -> float | None:
        return (now - past) / seconds if seconds > 0 and now >= past else None

    now, past = _topics(sample), _topics(before)
    totals = [
        {
            "records": sum(each["head"] for each in topics.values()),
            "log_bytes": journal.get("bytes_written", 0),
            "syncs": journal.get("syncs", 0),
            "flushed_bytes": sum(_tiers(each).get("flushed_bytes", 0) for each in topics.values()),
        }
        for topics, journal in (
            (now, sample.stats.get("journal") or {}),
            (past, before.stats.get("journal") or {}),
        )
    ]
    topics = {
        name: rate(each["head"], past[name]["head"]) if name in past else None
        for name, each in now.items()
    }
    return {name: rate(totals[0][name], totals[1][name]) for name in totals[0]} | {"topics": topics}


def _topics(sample: Sample) -> Mapping[str, Any]:
    return sample.stats.get("per_topic") or {}


def _tiers(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return found.get("tiers") or {}


def render(sample: Sample, before: Sample) -> RenderableType:
    """Return one look as tables for a terminal."""
    stats, rates = sample.stats, rates_of(sample, before)
    tiers = _tiers(stats)
    parts: list[RenderableType] = [_heading(sample, rates), *_memory_and_disk(tiers)]
    if latencies := stats.get("latencies"):
        parts.append(_latencies(latencies))
    for what in ("lake", "objects"):
        found = stats.get(what) or {}
        if found.get("topics"):
            parts.append(_totals(what, found))
    parts.append(_topic_table(_topics(sample), rates["topics"]))
    errors = tiers.get("errors") or {}
    parts += [Text(f"error in {task}: {text}", style="red") for task, text in errors.items()]
    return Group(*parts)


def _heading(sample: Sample, rates: Mapping[str, Any]) -> Text:
    health = sample.stats.get("health", "")
    directory = sample.stats.get("data_dir", "")
    return Text.assemble(
        f"frazil top  {directory}  pid {sample.pid}  {stamp(sample.time_us)}  ",
        (health, "green" if health == "ok" else "red"),
        f"\n{_number(rates['records'])} records/s  {_size(rates['log_bytes'])}/s to the log  "
        f"{_number(rates['syncs'])} syncs/s  {_size(rates['flushed_bytes'])}/s flushed",
    )


def _memory_and_disk(tiers: Mapping[str, Any]) -> tuple[Table, Table]:
    pressure, disk = tiers.get("pressure") or {}, tiers.get("disk") or {}
    zone = pressure.get("zone") or UNKNOWN
    memory = Table("zone", "memory", "of budget", "resident", "sources", "entered", "held back")
    memory.add_row(
        Text(zone, style=ZONE_STYLES.get(zone, "")),
        _size(pressure.get("used_bytes")),
        f"{pressure.get('percent', 0.0):.0f} % of {_size(pressure.get('budget_bytes'))}",
        _size(pressure.get("rss_bytes")),
        _sizes(pressure.get("sources")),
        _listed(pressure.get("entries")),
        f"{pressure.get('delays', 0):,} delayed, {pressure.get('refusals', 0):,} refused",
    )
    files = Table("files", "on disk", "cap", "by purpose", "signals fired", "commits due")
    files.add_row(
        _number(disk.get("files")),
        _size(disk.get("bytes")),
        _size(disk.get("bytes_max")),
        _sizes(disk.get("purposes")),
        _listed(tiers.get("signals_fired")),
        str(len(tiers.get("commit_queue") or ())),
    )
    return memory, files


def _latencies(latencies: Mapping[str, Mapping[str, float]]) -> Table:
    measures = sorted({measure for each in latencies.values() for measure in each})
    table = Table("latency", *measures)
    for name, each in latencies.items():
        table.add_row(name, *(_latency(measure, each.get(measure)) for measure in measures))
    return table


def _latency(measure: str, value: float | None) -> str:
    if value is not None and measure.endswith("_us"):
        return f"{value / 1e3:.2f} ms"
    return _number(value)


def _totals(what: str, found: Mapping[str, Any]) -> Table:
    """Return the lake or the object store as one row: the sums over all topics."""
    totals = found.get("totals") or {}
    stopped = (totals.get("states") or {}).get("stopped", 0)
    cells = {what.upper(): str(found.get("root") or found["state"])}
    if "worker" in found:
        cells |= {name: str(value) for name, value in found["worker"].items() if name in WORKER}
    for name, value in totals.items():
        if isinstance(value, Mapping):
            cells |= {
                f"{name} {part}": f"{value[part]:.2f}" for part in ("p50", "p99") if part in value
            }
        elif isinstance(value, float):
            cells[name] = f"{value:,.1f}"
        else:
            cells[name] = _size(value) if "bytes" in name else _number(value)
    table = Table(*cells, "stopped")
    table.add_row(*map(Text, cells.values()), Text(str(stopped), style="red" if stopped else ""))
    return table


def _topic_table(topics: Mapping[str, Any], rates: Mapping[str, float | None]) -> Table:
    table = Table("topic", *WATERMARKS, "records/s", "memory", "flushes", "last signal", "keys")
    for name, each in sorted(topics.items())[:TOPICS_MAX]:
        tiers = _tiers(each)
        table.add_row(
            Text(name),
            *(_number(each.get(mark, tiers.get(mark))) for mark in WATERMARKS),
            _number(rates[name]),
            _size(tiers.get("memory_bytes")),
            _number(tiers.get("flushes")),
            Text(tiers.get("signal_last") or UNKNOWN),
            _number((tiers.get("index") or {}).get("keys")),
        )
    if len(topics) > TOPICS_MAX:
        table.caption = f"{len(topics) - TOPICS_MAX} more topics, --json has all of them"
    return table


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}"


def _size(value: float | None) -> str:
    return UNKNOWN if value is None else size_text(value)


def _sizes(values: Mapping[str, float] | None) -> Text:
    return _listed({name: size_text(size) for name, size in (values or {}).items()})


def _listed(values: Mapping[str, object] | None) -> Text:
    return Text(", ".join(f"{name} {value}" for name, value in (values or {}).items()) or UNKNOWN)
