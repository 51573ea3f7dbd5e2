"""`frazil objects`: what lies in the object store, and what of it may go."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.output import note, print_json, print_table, size_text
from frazil.cli.session import session_of
from frazil.engine.topic import Topic
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.engine import Engine
    from frazil.tiers.objects.collect import Collected
    from frazil.tiers.objects.descriptor import Descriptor

__all__ = ["app"]

app = typer.Typer(
    help="Look at what lies in the object store, and collect its garbage.", no_args_is_help=True
)

TopicName = Annotated[str | None, typer.Argument(help="One topic; all topics without it.")]


@app.command("ls")
def list_objects(context: typer.Context, topic: TopicName = None) -> None:
    """List what each topic has in the object store, or the objects of one topic."""
    session = session_of(context)
    with session.engine() as engine:
        _check_store(engine)
        found = _topics(engine) if topic is None else _objects(engine, topic)
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
        names = ("topic", "offsets", "records", "size", "from", "to", "shared", "key")
        print_table(names, [_object_row(each) for each in found])


def _topics(engine: Engine) -> list[dict[str, Any]]:
    return [{"topic": name, **each} for name, each in sorted(_status(engine).items())]


def _status(engine: Engine) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = engine.objects.status()["topics"]
    return found


def _objects(engine: Engine, topic: str) -> list[dict[str, Any]]:
    handle = engine.topic(topic)
    parts = [handle] if isinstance(handle, Topic) else handle.parts
    return [
        _described(part.name, descriptor)
        for part in parts
        for descriptor in engine.objects.catalog.topic(part.runtime.state.id).descriptors
    ]


def _described(name: str, found: Descriptor) -> dict[str, Any]:
    return {
        "topic": name,
        "key": found.key,
        "offset_first": found.first,
        "offset_last": found.end - 1,
        "records": found.records,
        "bytes": found.length,
        "object_bytes": found.size,
        "time_first_us": found.time_first_us,
        "time_last_us": found.time_last_us,
        "created_us": found.created_us,
        "epoch": found.epoch,
        "etag": found.etag,
        "shared": found.shared,
        "gaps": [[each.first, each.end, each.kind, each.reason] for each in found.ranges],
    }


def _object_row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["topic"],
        f"{each['offset_first']:,} .. {each['offset_last']:,}",
        f"{each['records']:,}",
        size_text(each["bytes"]),
        _time_text(each["time_first_us"]),
        _time_text(each["time_last_us"]),
        "yes" if each["shared"] else "",
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
        bool, typer.Option("--yes", help="Do it; without this, only tell what would be done.")
    ] = False,
) -> None:
    """Delete objects that nothing needs any more: expired, replaced, or never registered.

    An object is condemned first, and deleted by a later run. One that nothing registered must be
    older than `objects.collect_grace_s`. Without --yes nothing is changed.
    """
    session = session_of(context)
    with session.engine() as engine:
        _check_store(engine)
        found = engine.objects.upkeep.collector.cycle(dry_run=not yes)
    if session.as_json:
        print_json(_collected(found, dry_run=not yes))
        return
    print_table(("key", "what", "why"), _collected_rows(found, dry_run=not yes))
    if found.suspended:
        note(f"nothing more was looked at: {found.suspended}")
    if found.spared:
        note(f"{found.spared:,} objects that nothing registered are too young to be judged")
    if not yes and (found.deleted or found.condemned):
        note("nothing was changed; --yes does it")


def _collected(found: Collected, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "deleted": [{"key": row.key, "why": row.why} for row in found.deleted],
        "condemned": [{"key": meta.key, "bytes": meta.size} for meta in found.condemned],
        "spared": found.spared,
        "suspended": found.suspended,
    }


def _collected_rows(found: Collected, *, dry_run: bool) -> list[tuple[str, str, str]]:
    deleted, condemned = ("delete", "condemn") if dry_run else ("deleted", "condemned")
    return [
        *((row.key, deleted, row.why) for row in found.deleted),
        *((meta.key, condemned, "nothing registered it") for meta in found.condemned),
    ]


def _check_store(engine: Engine) -> None:
    if engine.objects.store is None:
        raise InvalidRequest("no object store is set, see objects.store and objects.root")
