"""`frazil objects` and `frazil backup`: objects of topics, garbage, backups of the metadata."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from frazil.cli.output import note, print_json, print_table, size_text, stamp
from frazil.cli.running_broker import Token, perform
from frazil.cli.session import TopicFilter, session_of
from frazil.engine import Call

__all__ = ["app", "backup"]

app = typer.Typer(
    help="List the objects in the object store, and collect its garbage.", no_args_is_help=True
)


@app.command("ls")
def list_objects(context: typer.Context, topic: TopicFilter = None, token: Token = None) -> None:
    """List what each topic has in the object store, or the objects of one topic."""
    session = session_of(context)
    found = perform(session, Call("list_objects", topic), token)
    if topic is None:
        names: tuple[str, ...] = ("topic", "offsets", "not uploaded", "objects", "size", "state")
        rows = [_topic_row(each) for each in found]
    else:
        names = ("topic", "offsets", "records", "size", "from", "to", "key")
        rows = [_object_row(each) for each in found]
    session.table(found, names, rows)


def _topic_row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["topic"],
        f"{each['start']:,} .. {each['uploaded']:,}",
        f"{each['lag_records']:,}",
        each["objects"],
        size_text(each["bytes"]),
        each["state"],
    )


def _object_row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["topic"],
        f"{each['offset_first']:,} .. {each['offset_last']:,}",
        f"{each['records']:,}",
        size_text(each["bytes"]),
        _time(each["time_first_us"]),
        _time(each["time_last_us"]),
        each["key"],
    )


def _time(time_us: int) -> str:
    return stamp(time_us) if time_us else ""


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
    found = perform(session, Call("collect_objects", dry_run=not yes), token)
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


def backup(
    context: typer.Context,
    flush: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--flush/--no-flush", help="Upload durable records first.")
    ] = True,
    token: Token = None,
) -> None:
    """Upload durable records and back the metadata up to the object store, now."""
    session = session_of(context)
    found = perform(session, Call("backup", flush=flush), token)
    text = (
        f"backup {found['key']} ({size_text(found['bytes'])}) has {found['topics']:,} topics and "
        f"{found['objects']:,} objects"
    )
    session.show(found, text)
