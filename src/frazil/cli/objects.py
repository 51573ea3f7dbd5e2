"""`frazil objects`: list the objects of topics, and collect garbage."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import typer

from frazil.cli.backup import Token, perform
from frazil.cli.output import note, print_json, print_table, size_text
from frazil.cli.session import session_of
from frazil.engine import CollectObjects, ListObjects

__all__ = ["app"]

app = typer.Typer(
    help="List the objects in the object store, and collect its garbage.", no_args_is_help=True
)

TopicName = Annotated[str | None, typer.Argument(help="One topic; all topics without it.")]


@app.command("ls")
def list_objects(context: typer.Context, topic: TopicName = None, token: Token = None) -> None:
    """List what each topic has in the object store, or the objects of one topic."""
    session = session_of(context)
    found = perform(session, ListObjects(topic), token)
    if session.as_json:
        print_json(found)
    elif topic is None:
        print_table(
            ("topic", "offsets", "not uploaded", "objects", "size", "state"),
            [
                (
                    each["topic"],
                    f"{each['start']:,} .. {each['uploaded']:,}",
                    f"{each['lag_records']:,}",
                    each["objects"],
                    size_text(each["bytes"]),
                    each["state"],
                )
                for each in found
            ],
        )
    else:
        names = ("topic", "offsets", "records", "size", "from", "to", "key")
        print_table(names, [_object_row(each) for each in found])


def _object_row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["topic"],
        f"{each['offset_first']:,} .. {each['offset_last']:,}",
        f"{each['records']:,}",
        size_text(each["bytes"]),
        _time_text(each["time_first_us"]),
        _time_text(each["time_last_us"]),
        each["key"],
    )


def _time_text(time_us: int) -> str:
    if not time_us:
        return ""
    moment = dt.datetime.fromtimestamp(time_us / 1e6, dt.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


@app.command()
def collect(
    context: typer.Context,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do it; without this, only show what would be done.")
    ] = False,
    token: Token = None,
) -> None:
    """Delete objects that nothing needs any more: expired, replaced, or never registered.

    An object is condemned first, and deleted by a later run. One that nothing registered must be
    older than a week. Without --yes nothing is changed.
    """
    session = session_of(context)
    found = perform(session, CollectObjects(dry_run=not yes), token)
    if session.as_json:
        print_json(found)
        return
    print_table(("key", "what", "why"), _collected_rows(found))
    if found["suspended"]:
        note(f"nothing more was looked at: {found['suspended']}")
    if found["spared"]:
        note(f"{found['spared']:,} objects that nothing registered are too young to be judged")
    if not yes and (found["deleted"] or found["condemned"]):
        note("nothing was changed; --yes does it")


def _collected_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    deleted, condemned = ("delete", "condemn") if found["dry_run"] else ("deleted", "condemned")
    return [
        *((row["key"], deleted, row["why"]) for row in found["deleted"]),
        *((row["key"], condemned, "nothing registered it") for row in found["condemned"]),
    ]
