"""`frazil subscription`: list, create, reset, drop and configure subscriptions.

The commands work on a directory that no process has open, and on one that a broker serves: the
broker then performs them.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from frazil.cli.output import agreed, size_text
from frazil.cli.read import parse_start
from frazil.cli.running_broker import Token, perform
from frazil.cli.session import TopicName, Yes, session_of
from frazil.clock import SystemClock
from frazil.engine import Call
from frazil.errors import InvalidRequest
from frazil.units import format_duration, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = ["app"]

app = typer.Typer(
    help="List, create, reset, drop and configure subscriptions, of a running broker too.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="The subscription.")]
Window = Annotated[
    int | None, typer.Option("--max-unacked", min=1, help="So many may be delivered, not acked.")
]
Kind = Literal["exclusive", "shared", "failover", "key_shared"]
Span = Annotated[str | None, typer.Option(help="A time such as 30s or 500ms.")]


@app.command("list")
def list_subscriptions(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(help="The topic; all without it.")] = None,
    token: Token = None,
) -> None:
    """List subscriptions with their consumers and lags."""
    session = session_of(context)
    found = perform(session, Call("list", topic), token)
    names = (
        *("topic", "name", "type", "consumers", "lag", "lag bytes", "lag time"),
        *("unacked", "state"),
    )
    session.table(found, names, [_row(each) for each in found])


def _row(facts: Mapping[str, Any]) -> tuple[object, ...]:
    age_s, records, size = facts["lag_seconds"], facts["lag_records"], facts["lag_bytes"]
    state = facts["paused"] or ("blocked" if facts["blocked"] else "")
    return (
        facts["topic"],
        facts["name"],
        facts["type"],
        len(facts["consumers"]),
        "" if records is None else f"{records:,}",
        "" if size is None else size_text(size),
        "" if age_s is None else format_duration(float(round(age_s))),
        facts["unacked"],
        state if facts["stored"] else "not stored",
    )


@app.command()
def create(
    context: typer.Context,
    topic: TopicName,
    name: Name,
    kind: Annotated[
        Kind, typer.Option("--type", help="The sharing of records between consumers.")
    ] = "shared",
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, an offset, an ISO 8601 time, or -5m.")
    ] = "latest",
    token: Token = None,
) -> None:
    """Create a subscription; from now on the topic keeps its records for it."""
    session = session_of(context)
    found = perform(session, Call("create", topic, name, kind, _start(start, "--from")), token)
    session.show(found, f"subscription {name} of {found['topic']} is ready")


@app.command()
def reset(
    context: typer.Context,
    topic: TopicName,
    name: Name,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, an offset, an ISO 8601 time, or -5m.")
    ],
    yes: Yes = False,  # noqa: FBT002 - a flag
    token: Token = None,
) -> None:
    """Move a subscription back or ahead; its acks are reset, earlier records count as acked."""
    session = session_of(context)
    call = Call("reset", topic, name, to=_start(to, "--to"))
    _confirm(
        f"records of {topic} will be delivered again to {name}, or never; put it to {to}?",
        "a reset delivers records again, or leaves some out: confirm it with --yes",
        yes=yes,
        subscription=name,
    )
    found = perform(session, call, token)
    places = ", ".join(f"{offset:,} in {each}" for each, offset in found.items())
    value = {"subscription": name, "offsets": found}
    session.show(value, f"subscription {name} continues at offset {places}")


@app.command()
def drop(
    context: typer.Context,
    topic: TopicName,
    name: Name,
    yes: Yes = False,  # noqa: FBT002 - a flag
    token: Token = None,
) -> None:
    """Remove a subscription; its consumers end, and the retention may delete its records."""
    session = session_of(context)
    _confirm(
        f"records of {topic} that {name} has not consumed may be deleted; remove it?",
        "removing a subscription removes its position, confirm it with --yes",
        yes=yes,
        subscription=name,
    )
    found = perform(session, Call("drop", topic, name), token)
    session.show(found, f"subscription {name} of {topic} is removed")


@app.command()
def policy(
    context: typer.Context,
    topic: TopicName,
    name: Name,
    max_redelivery_count: Annotated[
        int | None, typer.Option(min=0, help="Deliveries after the first one.")
    ] = None,
    ack_timeout: Span = None,
    base_delay: Span = None,
    max_delay: Span = None,
    backoff: Annotated[
        Literal["fixed", "exponential"] | None, typer.Option(help="How the delay grows.")
    ] = None,
    poison: Annotated[
        Literal["dead_letter", "block", "drop"] | None,
        typer.Option(help="The handling of a record that failed too often."),
    ] = None,
    dead_letter_topic: Annotated[
        str | None, typer.Option(help="Where records go that failed too often.")
    ] = None,
    max_unacked: Window = None,
    token: Token = None,
) -> None:
    """Show or change the failure policy; settings without an option stay as they are."""
    session = session_of(context)
    given: dict[str, int | str | None] = {
        "max_redelivery_count": max_redelivery_count,
        "ack_timeout_ms": _milliseconds(ack_timeout),
        "base_redelivery_delay_ms": _milliseconds(base_delay),
        "max_redelivery_delay_ms": _milliseconds(max_delay),
        "backoff": backoff,
        "poison": poison,
        "dead_letter_topic": dead_letter_topic,
    }
    changes: dict[str, int | str | None] = {k: v for k, v in given.items() if v is not None}
    found = perform(
        session, Call("policy", topic, name, policy=changes, max_unacked=max_unacked), token
    )
    rows = [(key, value) for key, value in found.items() if value is not None]
    session.table(found, ("", ""), rows)


def _confirm(question: str, refusal: str, *, yes: bool, subscription: str) -> None:
    if not agreed(question, yes=yes):
        raise InvalidRequest(refusal, subscription=subscription)


def _start(text: str, option: str) -> int | str:
    found = parse_start(text, now_us=SystemClock().now_us(), option=option)
    return found.isoformat() if isinstance(found, dt.datetime) else found


def _milliseconds(text: str | None) -> int | None:
    return None if text is None else round(parse_duration_s(text) * 1000)
