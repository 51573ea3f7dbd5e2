"""`frazil rejects`: records that a topic's table could not take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from frazil.cli.output import note, print_json, print_table, stamp
from frazil.cli.session import TopicName, session_of
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.lake.rejects import Reject, RejectKey, Settled

__all__ = ["app"]

app = typer.Typer(
    help="Look at the records that a table could not take; publish them again or drop them.",
    no_args_is_help=True,
)

Part = Annotated[int | None, typer.Option("--part", min=0, help="One part of the topic.")]
Offsets = Annotated[list[int] | None, typer.Argument(help="Offsets of rejects.")]
Every = Annotated[bool, typer.Option("--all", help="All that are not settled.")]


@app.command("list")
def list_rejects(
    context: typer.Context,
    topic: TopicName,
    settled: Annotated[bool, typer.Option("--all", help="Settled ones as well.")] = False,  # noqa: FBT002 - a flag
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")] = 1000,
) -> None:
    """List rejects: where, when and why; those that are settled with --all only."""
    session = session_of(context)
    with session.engine() as engine:
        found = engine.lake.rejects(topic).rows(settled=settled)
    shown = found[:limit]
    if session.as_json:
        print_json([_facts(each) for each in shown])
    elif not found:
        typer.echo(f"{topic}: no rejects" + ("" if settled else " that are not settled"))
    else:
        names = ("offset", "part", "time", "state", "column", "reason", "schema")
        print_table(names, [_row(each) for each in shown])
    if len(shown) < len(found):
        note(f"{len(found) - len(shown):,} more; --limit shows them")


@app.command()
def show(
    context: typer.Context,
    topic: TopicName,
    offset: Annotated[int, typer.Argument(help="The reject's offset.")],
    part: Part = None,
) -> None:
    """Show one reject with the whole record, as JSON."""
    with session_of(context).engine() as engine:
        print_json(engine.lake.rejects(topic).show(offset, part=part))


@app.command()
def replay(
    context: typer.Context,
    topic: TopicName,
    offsets: Offsets = None,
    every: Every = False,  # noqa: FBT002 - a flag
    part: Part = None,
) -> None:
    """Publish rejected records again as new ones; doing it twice does nothing."""
    session = session_of(context)
    chosen = _chosen(offsets, every=every)
    with session.engine() as engine:
        done = engine.lake.rejects(topic).replay(chosen, part=part)
    value = _result(done) | {"offsets": [ack.offset for ack in done.acks]}
    session.show(value, f"{topic}: {_counts(done, 'replayed')}")


@app.command()
def drop(
    context: typer.Context,
    topic: TopicName,
    offsets: Offsets = None,
    every: Every = False,  # noqa: FBT002 - a flag
    part: Part = None,
) -> None:
    """Mark rejects as settled: `list` hides them, their rows stay in the side table."""
    session = session_of(context)
    chosen = _chosen(offsets, every=every)
    with session.engine() as engine:
        done = engine.lake.rejects(topic).drop(chosen, part=part)
    session.show(_result(done), f"{topic}: {_counts(done, 'dropped')}")


def _chosen(offsets: list[int] | None, *, every: bool) -> list[int] | Literal["all"]:
    if bool(offsets) == every:
        raise InvalidRequest("name offsets, or all of them with --all")
    return offsets or "all"


def _facts(reject: Reject) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.structs.asdict(reject)
    return {**_where(facts.pop("key")), **facts}


def _where(key: RejectKey) -> dict[str, int]:
    return {"offset": key.offset, "part": key.part}


def _row(reject: Reject) -> tuple[object, ...]:
    return (
        f"{reject.key.offset:,}",
        "" if reject.key.part < 0 else reject.key.part,
        stamp(reject.time_us),
        reject.state,
        reject.field,
        reject.reason,
        reject.schema_version,
    )


def _result(done: Settled) -> dict[str, Any]:
    return {
        "done": [_where(key) for key in done.done],
        "settled_before": [_where(key) for key in done.settled_before],
    }


def _counts(done: Settled, word: str) -> str:
    before = len(done.settled_before)
    return f"{len(done.done):,} {word}" + (f", {before:,} were settled before" if before else "")
