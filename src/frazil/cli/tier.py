"""`frazil tier`: list the records in memory and in files; flush and evict them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from frazil.cli.output import size_text
from frazil.cli.session import TopicFilter, session_of

if TYPE_CHECKING:
    from frazil.engine import Engine

__all__ = ["app"]

app = typer.Typer(help="Look at the memory and disk tiers, flush and evict.", no_args_is_help=True)


@app.command("ls")
def list_tiers(context: typer.Context, topic: TopicFilter = None) -> None:
    """List what each topic has in memory and in files, or the files of one topic."""
    session = session_of(context)
    with session.engine() as engine:
        found = _summaries(engine) if topic is None else engine.tiers.describe_files(topic)
    if topic is None:
        names: tuple[str, ...] = (
            *("topic", "offsets", "flushed", "not flushed", "files", "rows", "size"),
        )
        rows = [_topic_row(each) for each in found]
    else:
        names = ("topic", "file", "offsets", "rows", "size", "partition", "schema", "purpose")
        rows = [_file_row(each) for each in found]
    session.table(found, names, rows)


def _topic_row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["topic"],
        f"{each['start']:,} .. {each['head']:,}",
        f"{each['flushed']:,}",
        f"{each['unflushed']:,}",
        each["files"],
        f"{each['file_rows']:,}",
        size_text(each["file_bytes"]),
    )


def _file_row(each: dict[str, Any]) -> tuple[object, ...]:
    return (
        each["topic"],
        each["file"],
        f"{each['offset_first']:,} .. {each['offset_last']:,}",
        f"{each['rows']:,}",
        size_text(each["bytes"]),
        each["partition"],
        each["schema"],
        each["purpose"],
    )


def _summaries(engine: Engine) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name, stats in sorted(engine.stats()["per_topic"].items()):
        # Refused without a memory tier, and then there are no figures of it either.
        files = engine.tiers.describe_files(name)
        tiers = stats["tiers"]
        found.append(
            {
                "topic": name,
                "start": stats["start"],
                "head": stats["head"],
                "flushed": tiers["flushed"],
                "unflushed": max(stats["head"] - max(tiers["flushed"], stats["start"]), 0),
                "memory_start": tiers["memory_start"],
                "memory_bytes": tiers["memory_bytes"],
                "files": len(files),
                "file_rows": sum(each["rows"] for each in files),
                "file_bytes": sum(each["bytes"] for each in files),
            }
        )
    return found


@app.command()
def flush(context: typer.Context, topic: TopicFilter = None) -> None:
    """Write the memory tier to files; on return they are synced and registered."""
    session = session_of(context)
    with session.engine() as engine:
        found = engine.tiers.flush(topic)
    rows = [(name, f"{end:,}") for name, end in found.items()]
    session.table(found, ("topic", "flushed up to"), rows)


@app.command()
def evict(context: typer.Context, topic: TopicFilter = None) -> None:
    """Free flushed records in memory and committed files on disk."""
    session = session_of(context)
    with session.engine() as engine:
        found = engine.tiers.evict(topic)
    rows = [(name, size_text(size)) for name, size in found.items()]
    session.table(found, ("topic", "freed"), rows)
