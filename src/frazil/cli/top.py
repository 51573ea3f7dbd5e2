"""`frazil top`: a live view of the engine that has the directory open.

A running engine writes its statistics to a small file once a second; this command reads it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from frazil.cli.output import UNKNOWN, console, note, size_text, stamp, to_json, write_out
from frazil.cli.session import Session, session_of
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
"""The pause of `--once` before the second sample: rates need two."""
STATS_FILE: Final = "stats.json"
STATS_BYTES_MAX: Final = 64 << 20
FRESH_S: Final = 10.0
"""An engine writes once a second; on a busy machine it may be late."""
TOPICS_MAX: Final = 50
HIDDEN: Final = ("topics", "per_topic", "warnings", "commit_queue", "data_dir", "health")
"""Statistics that `render` shows in another table, or that only `--output json` has."""
WATERMARKS: Final = ("start", "committed", "uploaded", "flushed", "memory_start", "durable", "head")


class Sample(msgspec.Struct, frozen=True):
    """The statistics of an engine at one time."""

    time_us: int
    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 31)]
    stats: dict[str, Any]


_decode = msgspec.json.Decoder(Sample).decode


class RunningEngine:
    """The statistics file of an engine in another process."""

    def __init__(self, file_system: FileSystem, directory: str, *, clock: Clock) -> None:
        self._file_system = file_system
        self._path = f"{directory}/{STATS_FILE}"
        self._clock = clock

    def sample(self) -> Sample:
        """Return the newest sample.

        Raises:
            NotFound: if no engine runs.
        """
        found = self.find()
        if found is None:
            raise NotFound(
                "no engine runs on this directory, start one or see frazil topic describe",
                path=self._path,
            )
        return found

    def find(self) -> Sample | None:
        """Return the newest sample; None if no process lives that renews the file."""
        try:
            info = self._file_system.stat(self._path)
            if info is None or info.size > STATS_BYTES_MAX:
                return None
            with contextlib.closing(self._file_system.open(self._path, "read")) as file:
                found = _decode(read_fully(file, 0, file.size()))
        except (OSError, msgspec.MsgspecError):
            return None
        # A file of this process was left by an engine that it closed.
        if found.pid == os.getpid() or not _is_alive(found.pid):
            return None
        age_s = (self._clock.now_us() - found.time_us) / 1e6
        return found if abs(age_s) <= FRESH_S else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        # The process of another user exists.
        return isinstance(error, PermissionError)
    return True


def top(
    context: typer.Context,
    interval: Annotated[str, typer.Option("--interval", "-i", help="Time between samples.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Watch tiers, watermarks, zones, signals, rates and latencies of a running engine.

    With --output json each sample is a line of JSON.
    """
    session = session_of(context)
    interval_s = parse_duration_s(interval)
    if interval_s < INTERVAL_S_MIN:
        raise InvalidRequest("--interval is too short", got=interval, seconds_min=INTERVAL_S_MIN)
    source = RunningEngine(RealFileSystem(), session.paths().run, clock=SystemClock())
    before = source.sample()
    with _display(session, once=once) as show:
        time.sleep(max(interval_s, SECOND_SAMPLE_S) if once else interval_s)
        while sample := source.find():
            show(sample, before)
            if once:
                return
            before = sample
            time.sleep(interval_s)
    note("the engine has ended")


@contextlib.contextmanager
def _display(session: Session, *, once: bool) -> Iterator[Callable[[Sample, Sample], None]]:
    """Yield a function that prints a sample with its rates; on a terminal over the one before."""
    screen = console()
    if session.as_json:
        yield _print_document
    elif once or not (screen.is_terminal and sys.stdin.isatty()):
        yield lambda sample, before: screen.print(render(sample, before))
    else:
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            yield lambda sample, before: live.update(render(sample, before), refresh=True)


def _print_document(sample: Sample, before: Sample) -> None:
    write_out(to_json(_document(sample, before)) + "\n")


def _document(sample: Sample, before: Sample) -> dict[str, Any]:
    rates = rates_of(sample, before)
    return {"time": stamp(sample.time_us), "pid": sample.pid, "rates": rates, "stats": sample.stats}


def rates_of(sample: Sample, before: Sample) -> dict[str, float | None]:
    """Return rates per second between two samples, of the engine and of each topic by name.

    A rate is None without time between the samples, and after a restart, which resets counters.
    """
    seconds = (sample.time_us - before.time_us) / 1e6 if sample.pid == before.pid else 0.0
    past = _counters(before)
    return {
        name: (now - past[name]) / seconds
        if seconds > 0 and now >= past.get(name, now + 1)
        else None
        for name, now in _counters(sample).items()
    }


def _counters(sample: Sample) -> dict[str, int]:
    topics, journal = sample.stats["per_topic"], sample.stats["journal"]
    heads = {name: each["head"] for name, each in topics.items()}
    tiers = [each.get("tiers", {}) for each in topics.values()]
    return {
        "records": sum(heads.values()),
        "log_bytes": journal["bytes_written"],
        "syncs": journal["syncs"],
        "flushed_bytes": sum(each.get("flushed_bytes", 0) for each in tiers),
        **heads,
    }


def render(sample: Sample, before: Sample) -> Group:
    """Return a sample and its rates as tables for a terminal."""
    stats, rates = sample.stats, rates_of(sample, before)
    health = stats["health"]
    heading = Text.assemble(
        f"frazil top  {stats['data_dir']}  pid {sample.pid}  {stamp(sample.time_us)}  ",
        (health, "green" if health == "ok" else "red"),
        f"\n{_shown('', rates['records'])} records/s  {_shown('bytes', rates['log_bytes'])}/s to the "
        f"log  {_shown('', rates['syncs'])} syncs/s  "
        f"{_shown('bytes', rates['flushed_bytes'])}/s flushed",
    )
    facts = Table("", "", show_header=False)
    tiers = {f"tiers.{name}": found for name, found in (stats["tiers"] or {}).items()}
    for name, found in {**stats, "tiers": None, **tiers}.items():
        is_unused = name in {"lake", "objects"} and not found["topics"]
        if isinstance(found, Mapping) and name not in HIDDEN and not is_unused:
            facts.add_row(name, Text(_shown(name, found), style="red" * name.endswith("errors")))
    return Group(heading, facts, _topic_table(stats["per_topic"], rates))


def _topic_table(topics: Mapping[str, Any], rates: Mapping[str, float | None]) -> Table:
    table = Table("topic", *WATERMARKS, "records/s", "memory", "flushes", "last signal", "keys")
    for name, each in sorted(topics.items())[:TOPICS_MAX]:
        tiers = each.get("tiers", {})
        table.add_row(
            Text(name),
            *(_shown(mark, each.get(mark, tiers.get(mark))) for mark in WATERMARKS),
            _shown("", rates[name]),
            _shown("bytes", tiers.get("memory_bytes")),
            _shown("", tiers.get("flushes")),
            _shown("", tiers.get("signal_last")),
            _shown("", tiers.get("index", {}).get("keys")),
        )
    if len(topics) > TOPICS_MAX:
        table.caption = f"{len(topics) - TOPICS_MAX} more topics, --output json has all of them"
    return table


def _shown(name: str, value: object) -> str:
    """Return a formatted figure; its name determines whether it is a size or a time."""
    if value is None:
        return UNKNOWN
    if isinstance(value, Mapping):
        parts = [f"{k} {_shown(k, v)}" for k, v in value.items() if v and k not in HIDDEN]
        return ", ".join(parts) or UNKNOWN
    return _number(name, value) if type(value) in {int, float} else str(value)


def _number(name: str, value: Any) -> str:
    if name.endswith("_us"):
        return f"{value / 1e3:.2f} ms"
    if "bytes" in name:
        return size_text(value)
    return f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"
