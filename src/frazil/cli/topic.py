"""`frazil topic`: create, list, describe, alter and delete topics, and their holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.output import agreed, naming_the_option, print_json, print_table, size_text
from frazil.cli.session import TopicName, session_of
from frazil.engine import Topic
from frazil.errors import InvalidRequest
from frazil.model import OnFull, SyncMode, UnknownKey
from frazil.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.engine import Engine

__all__ = ["app", "pairs"]

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True)

HoldName = Annotated[str, typer.Argument(help="The name of the hold.")]
Sync = Annotated[SyncMode | None, typer.Option("--sync", help="When publishes are synced.")]
Age = Annotated[str | None, typer.Option("--retention-age", help="Keep records for so long: 48h.")]
Size = Annotated[str | None, typer.Option("--retention-bytes", help="Keep so much: 20GiB.")]
Full = Annotated[
    OnFull | None, typer.Option("--on-full", help="At the quota: block, or expire the oldest.")
]
Unknown = Annotated[
    UnknownKey | None,
    typer.Option("--unknown-key", help="What an update or delete of a key without a row means."),
]
LakeSwitch = Annotated[
    bool | None,
    typer.Option("--lake/--no-lake", help="Move its records into an Iceberg table, or not."),
]
ObjectsSwitch = Annotated[
    bool | None,
    typer.Option("--objects/--no-objects", help="Upload its records to the store, or not."),
]
ObjectsAge = Annotated[
    str | None, typer.Option("--objects-retention-age", help="Keep objects for so long: 365d.")
]
ObjectsSize = Annotated[
    str | None, typer.Option("--objects-retention-bytes", help="Keep objects up to: 1TiB.")
]
DropTable = Annotated[bool, typer.Option("--drop-table", help="Its Iceberg table as well.")]
Signals = Annotated[
    list[str] | None,
    typer.Option("--signal", help="A limit of this topic, e.g. flush_age_s=10s; may be repeated."),
]


def pairs(texts: Sequence[str] | None, *, sign: str, option: str) -> dict[str, str]:
    """Split the texts of a repeated option at the first sign; names must be unique."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, between, value = text.partition(sign)
        if not between or not name.strip() or not value.strip():
            raise InvalidRequest(f"{option} takes name{sign}value", got=text)
        if name.strip() in found:
            raise InvalidRequest("name comes twice", option=option, name=name.strip())
        found[name.strip()] = value.strip()
    return found


@app.command()
def create(
    context: typer.Context,
    name: TopicName,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help='A column as name:type, e.g. "id:long not null".'),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A primary key column; may be repeated.")
    ] = None,
    partition_by: Annotated[
        list[str] | None, typer.Option("--partition-by", help='E.g. "day(ts)", "bucket[16](id)".')
    ] = None,
    sort_by: Annotated[
        list[str] | None,
        typer.Option("--sort-by", help="A column that its Iceberg table is sorted by."),
    ] = None,
    partitions: Annotated[int, typer.Option("--partitions", help="Split it into N parts.")] = 0,
    sync: Sync = None,
    retention_age: Age = None,
    retention_bytes: Size = None,
    on_full: Full = None,
    unknown_key: Unknown = None,
    signals: Signals = None,
    lake: LakeSwitch = None,
    objects: ObjectsSwitch = None,
    objects_retention_age: ObjectsAge = None,
    objects_retention_bytes: ObjectsSize = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Fine if it exists.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Create a topic: a table topic with --column, a message topic without."""
    session = session_of(context)
    declared = pairs(columns, sign=":", option="--column") or None
    with session.engine(create=True) as engine:
        topic = engine.create_topic(
            name,
            declared,
            primary_key=tuple(key or ()),
            partition_by=tuple(partition_by or ()),
            sort_by=tuple(sort_by or ()),
            partitions=partitions,
            exist_ok=exist_ok,
            sync=sync,
            retention_age=retention_age,
            retention_bytes=retention_bytes,
            on_full=on_full,
            unknown_key=unknown_key,
            signals=pairs(signals, sign="=", option="--signal") or None,
            lake=lake,
            objects=objects,
            objects_retention_age=objects_retention_age,
            objects_retention_bytes=objects_retention_bytes,
        )
        session.show(engine.describe(topic.name), f"topic {topic.name} is ready")


@app.command("list")
def list_topics(
    context: typer.Context,
    namespace: Annotated[str | None, typer.Option("--namespace", help="Only this one.")] = None,
) -> None:
    """List all topics with their sizes."""
    session = session_of(context)
    with session.engine() as engine:
        found = [_summary(engine, name) for name in engine.topics(namespace)]
    names = ("name", "kind", "partitions", "records", "stored", "lost")
    rows = [{**each, "bytes_stored": size_text(each["bytes_stored"])}.values() for each in found]
    session.table(found, names, [list(row) for row in rows])


def _summary(engine: Engine, name: str) -> dict[str, Any]:
    described = engine.describe(name)
    names = [part["name"] for part in described.get("parts", ())] or [name]
    stats = [engine.topic_stats(each) for each in names]
    return {
        "name": name,
        "kind": described["kind"],
        "partitions": described.get("partitions", 0),
        **{
            key: sum(each[key] for each in stats)
            for key in ("message_count", "bytes_stored", "lost_records")
        },
    }


@app.command()
def describe(context: typer.Context, name: TopicName) -> None:
    """Show all facts about a topic."""
    session = session_of(context)
    with session.engine() as engine:
        found = engine.describe(name)
    if session.as_json:
        print_json(found)
        return
    columns = found.pop("columns")
    age_s = found["retention_age_s"]
    kept = [f"{each['hold']} of {each['topic']}" for each in found["oldest_kept_by"]]
    shown = {
        **found,
        "oldest_kept_by": ", ".join(kept) or None,
        "retention_age_s": "for ever" if age_s is None else format_duration(age_s),
        "retention_bytes": format_bytes(found["retention_bytes"]),
    }
    print_table(("", ""), [(key, value) for key, value in shown.items() if value is not None])
    print_table(
        ("column", "type", "nullable"),
        [(each["name"], each["type"], each["nullable"]) for each in columns],
    )


@app.command()
def alter(
    context: typer.Context,
    name: TopicName,
    add: Annotated[list[str] | None, typer.Option("--add", help="name:type")] = None,
    drop: Annotated[list[str] | None, typer.Option("--drop", help="A column.")] = None,
    rename: Annotated[list[str] | None, typer.Option("--rename", help="old=new")] = None,
    widen: Annotated[list[str] | None, typer.Option("--widen", help="name:type")] = None,
    sync: Sync = None,
    retention_age: Age = None,
    retention_bytes: Size = None,
    on_full: Full = None,
    unknown_key: Unknown = None,
    signals: Signals = None,
    lake: LakeSwitch = None,
    objects: ObjectsSwitch = None,
    objects_retention_age: ObjectsAge = None,
    objects_retention_bytes: ObjectsSize = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --no-lake.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Change a live topic: columns, syncing, retention, signals. Old records read under the new columns."""
    session = session_of(context)
    changes: Mapping[str, Any] = {
        "add": pairs(add, sign=":", option="--add"),
        "drop": tuple(drop or ()),
        "rename": pairs(rename, sign="=", option="--rename"),
        "widen": pairs(widen, sign=":", option="--widen"),
        "sync": sync,
        "retention_age": retention_age,
        "retention_bytes": retention_bytes,
        "on_full": on_full,
        "unknown_key": unknown_key,
        "signals": pairs(signals, sign="=", option="--signal") or None,
        "lake": lake,
        "objects": objects,
        "objects_retention_age": objects_retention_age,
        "objects_retention_bytes": objects_retention_bytes,
    }
    if all(value in (None, {}, ()) for value in changes.values()):
        raise InvalidRequest("nothing to change, give an option such as --add", topic=name)
    confirm = lake is False and agreed(
        f"records of {name} that its table does not have yet may go with its retention; switch "
        "its lake off?",
        yes=yes,
    )
    with session.engine() as engine:
        try:
            topic = engine.alter_topic(name, confirm=confirm, **changes)
        except InvalidRequest as error:
            raise naming_the_option(error) from None
        session.show(engine.describe(topic.name), f"topic {topic.name} is changed")


@app.command()
def delete(
    context: typer.Context,
    name: TopicName,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,  # noqa: FBT002 - a flag
    drop_table: DropTable = False,  # noqa: FBT002 - a flag
) -> None:
    """Delete a topic and its records; its Iceberg table stays unless --drop-table."""
    session = session_of(context)
    if not yes:
        raise InvalidRequest("deleting takes the records too, confirm it with --yes", topic=name)
    with session.engine() as engine:
        full = engine.topic(name).name
        engine.delete_topic(full, drop_table=drop_table)
    session.show({"deleted": full, "table_dropped": drop_table}, f"topic {full} is deleted")


@app.command()
def hold(
    context: typer.Context,
    name: TopicName,
    hold_name: HoldName,
    offset: Annotated[int, typer.Argument(help="The first offset to keep.")],
) -> None:
    """Keep a topic's records from an offset on, whatever its retention is."""
    _change_holds(context, name, lambda topic: topic.hold(hold_name, offset))


@app.command()
def advance(
    context: typer.Context,
    name: TopicName,
    hold_name: HoldName,
    offset: Annotated[int, typer.Argument(help="The new first offset to keep.")],
) -> None:
    """Move a hold forwards."""
    _change_holds(context, name, lambda topic: topic.advance(hold_name, offset))


@app.command("drop-hold")
def drop_hold(context: typer.Context, name: TopicName, hold_name: HoldName) -> None:
    """Remove a hold."""
    _change_holds(context, name, lambda topic: topic.drop(hold_name))


def _change_holds(context: typer.Context, name: str, change: Callable[[Topic], None]) -> None:
    session = session_of(context)
    with session.engine() as engine:
        change(Topic(engine, engine.topic_runtime(name)))
        holds = engine.describe(name)["holds"]
    listed = ", ".join(f"{each}={at}" for each, at in holds.items()) or "none"
    session.show({"topic": name, "holds": holds}, f"holds of {name}: {listed}")
