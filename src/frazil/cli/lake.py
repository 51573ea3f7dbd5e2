"""`frazil lake`: show the state of the tables, and control their commits."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.status import Status

from frazil.cli.lake_setup import lake_app
from frazil.cli.output import (
    UNKNOWN,
    agreed,
    console,
    naming_the_option,
    print_json,
    print_table,
    size_text,
    stamp,
)
from frazil.cli.session import TopicName, Yes, session_of
from frazil.cli.top import RunningEngine
from frazil.clock import SystemClock
from frazil.errors import InvalidRequest
from frazil.fs import RealFileSystem
from frazil.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.cli.session import Session
    from frazil.engine import Engine

__all__ = ["lake_app"]

Topic = Annotated[str | None, typer.Argument(help="One topic; all with a lake without it.")]
Replay = Annotated[
    bool, typer.Option("--replay", help="The table was rolled back: move its rows again.")
]
Accept = Annotated[bool, typer.Option("--accept", help="Rows are missing: continue without them.")]
Rejects = Annotated[bool, typer.Option("--rejects", help="Let a batch with many rejects through.")]
RESTING: Final = "at rest"
RESTING_WHY: Final = "no program has the directory open; frazil lake flush commits them"


@lake_app.command()
def status(context: typer.Context) -> None:
    """Show each topic's table: state, how far it is, what waits and why.

    Works while an engine runs, which reports about once a second.
    """
    session = session_of(context)
    running = RunningEngine(RealFileSystem(), session.paths().run, clock=SystemClock()).find()
    if running is not None:
        _show(session, running.stats["lake"], who=f"engine of pid {running.pid}")
        return
    with session.engine() as engine:
        _show(session, _at_rest(engine.lake.status()), who="no engine runs here")


def _at_rest(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status with `starting` as `at rest`: no engine runs, so nothing starts."""
    topics = dict(found["topics"])
    for name, each in topics.items():
        if each["state"] == "starting":
            why = RESTING_WHY if each["lag_records"] else ""
            topics[name] = {**each, "state": RESTING, "why": why}
    state = RESTING if found["state"] == "starting" else found["state"]
    return {**found, "state": state, "topics": topics}


def _show(session: Session, found: Mapping[str, Any], *, who: str) -> None:
    if session.as_json:
        print_json(found)
        return
    topics = found["topics"]
    if not topics:
        typer.echo("no topic has a lake; frazil topic alter NAME --lake gives it one")
        return
    worker, catalog = found["worker"], found["catalog"]
    pid = f", pid {worker['pid']}" if worker["pid"] else ""
    uri = catalog["uri"] or "not running"
    typer.echo(f"lake: {found['state']} ({who}); worker {worker['state']}{pid}; catalog {uri}")
    names = (
        "topic",
        "state",
        "committed",
        "lag",
        "lag bytes",
        "lag time",
        "last commit",
        "files",
        "why",
    )
    print_table(names, [_row(name, each) for name, each in sorted(topics.items())])


def _row(name: str, each: Mapping[str, Any]) -> tuple[object, ...]:
    shown = f"{each['committed']:,}"
    if isinstance(each["committed"], dict):
        shown = ", ".join([f"{part}: {end:,}" for part, end in each["committed"].items()])
    seconds, last = each["lag_seconds"], each["last_commit_us"]
    return (
        name,
        each["state"],
        shown,
        f"{each['lag_records']:,}",
        size_text(each["lag_bytes"]),
        UNKNOWN if seconds is None else format_duration(float(round(seconds))),
        UNKNOWN if last is None else stamp(last),
        f"{each['files']:,}" if each["commits"] else UNKNOWN,
        each["why"] or UNKNOWN,
    )


@lake_app.command()
def flush(
    context: typer.Context,
    topic: Topic = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Wait so many seconds.")
    ] = 300.0,
) -> None:
    """Commit everything that is durable; on return it is in the tables."""
    session = session_of(context)
    with session.engine() as engine:
        engine.lake.start()
        screen = console(stderr=True)
        status = Status("lake: committing; Spark starts with the first commit", console=screen)
        with status if screen.is_terminal else contextlib.nullcontext():
            ends = engine.lake.flush(topic, timeout_s=timeout)
    rows = [(name, ", ".join(f"{n:,}" for n in each.values())) for name, each in ends.items()]
    session.table(ends, ("topic", "committed"), rows)


@lake_app.command()
def pause(context: typer.Context, topic: Topic = None) -> None:
    """Stop commits; records wait on disk, over restarts too, until `frazil lake resume`."""
    session = session_of(context)
    with session.engine() as engine:
        engine.lake.pause(topic)
        session.show(_states(engine), f"{topic or 'all topics'}: paused")


@lake_app.command()
def resume(
    context: typer.Context,
    topic: Topic = None,
    replay: Replay = False,  # noqa: FBT002 - a flag
    accept: Accept = False,  # noqa: FBT002 - a flag
    rejects: Rejects = False,  # noqa: FBT002 - a flag
) -> None:
    """Continue after a pause or a stop; choose how to handle a changed table."""
    session = session_of(context)
    with session.engine() as engine:
        engine.lake.resume(topic, replay=replay, accept=accept, rejects=rejects)
        session.show(_states(engine), f"{topic or 'all topics'}: continues with the next start")


@lake_app.command()
def adopt(
    context: typer.Context,
    topic: TopicName,
    yes: Yes = False,  # noqa: FBT002 - a flag
) -> None:
    """Continue after the end of a table that this topic did not fill.

    The topic's next offset becomes the table's end. Taking over another topic's table, or leaving
    own records out of the table, needs a confirmation.
    """
    session = session_of(context)
    with session.engine() as engine:
        engine.lake.start()
        try:
            done = engine.lake.adopt(topic, confirm=yes)
        except InvalidRequest as error:
            if "ours" not in error.details:
                raise
            if not agreed(f"{error}; continue?", yes=yes):
                raise naming_the_option(error) from None
            done = engine.lake.adopt(topic, confirm=True)
    ends = ", ".join(f"{end:,}" for end in done["ends"].values()) or "0"
    session.show(done, f"{topic} continues at {ends} of table {done['table']}")


def _states(engine: Engine) -> dict[str, str]:
    return {name: each["state"] for name, each in engine.lake.status()["topics"].items()}
