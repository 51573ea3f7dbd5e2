"""`frazil top`: a live view of an engine, of another process or of this one."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Annotated, Final, Protocol

import typer
from rich.live import Live

from frazil.cli.output import console, note, print_json, to_json, write_out
from frazil.cli.session import Session, session_of
from frazil.cli.top_figures import Sample, figures
from frazil.cli.top_source import OwnEngine, RunningEngine
from frazil.cli.top_view import render
from frazil.clock import SystemClock
from frazil.errors import InvalidRequest, NotFound
from frazil.fs import RealFileSystem
from frazil.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["top"]

INTERVAL_S_MIN: Final = 0.1
SECOND_SAMPLE_S: Final = 2.5
"""A running engine tells about itself once a second; so long `--once` waits for the next time."""
POLL_S: Final = 0.05


class Source(Protocol):
    """Where samples come from."""

    kind: str

    def sample(self) -> Sample:
        """Return the newest sample."""


def top(
    context: typer.Context,
    interval: Annotated[str, typer.Option("--interval", "-i", help="Look so often: 1s.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,  # noqa: FBT002 - a flag
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a look.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Watch tiers, watermarks, zones, signals, rates and latencies of an engine that runs.

    If none runs on the directory, it is opened here and shown as it lies.
    """
    session = session_of(context)
    interval_s = parse_duration_s(interval)
    if interval_s < INTERVAL_S_MIN:
        raise InvalidRequest("--interval is too short", got=interval, seconds_min=INTERVAL_S_MIN)
    with _source(session) as source:
        if once:
            before = source.sample()
            sample = _second(source, before, interval_s)
            _show(source, sample, before, as_json=as_json or session.as_json)
        else:
            _watch(source, interval_s, as_json=as_json or session.as_json)


@contextlib.contextmanager
def _source(session: Session) -> Iterator[Source]:
    paths = session.paths()
    running = RunningEngine(RealFileSystem(), paths.run, clock=SystemClock())
    if running.is_there():
        yield running
        return
    with session.engine() as engine:
        note(
            "no engine runs on this directory: it is opened here, no other process can write to it"
        )
        yield OwnEngine(engine, clock=SystemClock())


def _second(source: Source, before: Sample, interval_s: float) -> Sample:
    """Return a sample of another time than the first, for rates; the first if none comes."""
    if source.kind == "opened":
        return before
    deadline = time.monotonic() + max(interval_s, SECOND_SAMPLE_S)
    while time.monotonic() < deadline:
        time.sleep(POLL_S)
        sample = source.sample()
        if sample.time_us > before.time_us:
            return sample
    return before


def _show(source: Source, sample: Sample, before: Sample, *, as_json: bool) -> None:
    found = figures(sample, before)
    if as_json:
        print_json({"source": source.kind, **found, "stats": sample.stats})
    else:
        console().print(render(found, kind=source.kind))


def _watch(source: Source, interval_s: float, *, as_json: bool) -> None:
    """Show it again and again until Ctrl-C, or until the engine that is watched ends."""
    screen = console()
    with contextlib.ExitStack() as stack:
        show: Callable[[Sample, Sample], None]
        if as_json:
            show = lambda sample, before: write_out(  # noqa: E731 - one of three ways to show
                to_json({"source": source.kind, **figures(sample, before), "stats": sample.stats})
                + "\n"
            )
        elif screen.is_terminal and sys.stdin.isatty():
            live = stack.enter_context(Live(console=screen, screen=True, auto_refresh=False))
            show = lambda sample, before: live.update(  # noqa: E731 - one of three ways to show
                render(figures(sample, before), kind=source.kind), refresh=True
            )
        else:
            show = lambda sample, before: screen.print(  # noqa: E731 - one of three ways to show
                render(figures(sample, before), kind=source.kind)
            )
        before = source.sample()
        show(before, before)
        while True:
            time.sleep(interval_s)
            try:
                sample = source.sample()
            except NotFound:
                break
            show(sample, before)
            if sample.time_us > before.time_us:
                before = sample
    note("the engine has ended")
