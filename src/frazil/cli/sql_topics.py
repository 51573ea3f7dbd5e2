r"""What `\d` prints: the topics, or the columns of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.cli.output import print_json, print_table, size_text, to_json, write_out
from frazil.cli.sql_words import table_name
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.cli.sql_output import SqlFormat
    from frazil.cli.sql_text import Meta
    from frazil.engine import Engine

__all__ = ["SYSTEM_COLUMNS", "print_meta", "topic_of"]

SYSTEM_COLUMNS: Final = ("_offset", "_time")
_TOPICS: Final = ("topic", "kind", "key", "records", "in memory")
_COLUMNS: Final = ("column", "type", "nullable", "key")


def print_meta(engine: Engine, meta: Meta, file_format: SqlFormat) -> None:
    r"""Print what `\d` asks for, as JSON if that is the format.

    Raises:
        InvalidRequest: if it is another command.
        NotFound: if there is no such topic.
    """
    if meta.name != "d":
        raise InvalidRequest("only \\d and \\d TOPIC are known outside of the shell", got=meta.name)
    if meta.argument:
        name = topic_of(meta.argument)
        _print(_COLUMNS, _columns(engine, name), file_format, title=name)
    else:
        _print(_TOPICS, _topics(engine), file_format)


def topic_of(text: str) -> str:
    """Return the topic that a name in SQL or a full name means."""
    if text.startswith("/"):
        return text
    parts = [part.strip().strip('"') for part in text.split(".")]
    return parts[0] if len(parts) == 1 else "/" + "/".join(parts)


def _print(
    names: tuple[str, ...],
    rows: list[tuple[object, ...]],
    file_format: SqlFormat,
    *,
    title: str | None = None,
) -> None:
    if file_format == "json":
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif file_format == "ndjson":
        write_out("".join([to_json(dict(zip(names, row, strict=True))) + "\n" for row in rows]))
    else:
        print_table(names, rows, title=title)


def _topics(engine: Engine) -> list[tuple[object, ...]]:
    stats = engine.stats()["per_topic"]
    rows: list[tuple[object, ...]] = []
    for name in engine.topics():
        found = engine.describe(name)
        parts = [stats[part["name"]] for part in found.get("parts", ())] or [stats[name]]
        rows.append(
            (
                table_name(name),
                found["kind"],
                ", ".join(found["primary_key"]),
                f"{sum(part['message_count'] for part in parts):,}",
                size_text(sum(part["tiers"]["memory_bytes"] for part in parts)),
            )
        )
    return rows


def _columns(engine: Engine, name: str) -> list[tuple[object, ...]]:
    found = engine.describe(name)
    key = found["primary_key"]
    rows: list[tuple[object, ...]] = [
        (each["name"], each["type"], each["nullable"], each["name"] in key)
        for each in found["columns"]
    ]
    return [*rows, ("_offset", "long", False, False), ("_time", "timestamptz", False, False)]
