"""`frazil get`: the rows of a keyed topic by their keys."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import pyarrow as pa
import typer

from frazil.cli.output import note, plain_row
from frazil.cli.session import session_of
from frazil.engine import PartitionedTopic
from frazil.errors import InvalidRequest
from frazil.schema import JsonRowReader, column_of, parse_csv_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.engine import Engine

__all__ = ["get", "parse_key"]

EXIT_ABSENT: Final = 1


def get(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic with a primary key.")],
    keys: Annotated[list[str], typer.Argument(help="A key; of several columns as a,b or as JSON.")],
) -> None:
    """Look rows up by key. The exit code is 1 if a key has no row."""
    session = session_of(context)
    with session.engine() as engine:
        schema = engine.topic(topic).schema
        rows = [row and plain_row(row, schema) for row in _rows(engine, topic, keys)]
    found = [list(row.values()) for row in rows if row]
    if found or session.as_json:
        session.table(rows, schema.names, found)
    for key, row in zip(keys, rows, strict=True):
        if row is None:
            note(f"no row has the key {key}")
    if None in rows:
        raise typer.Exit(EXIT_ABSENT)


def _rows(engine: Engine, name: str, texts: Sequence[str]) -> list[dict[str, Any] | None]:
    handle: Any = engine.topic(name)
    names = engine.describe(name)["primary_key"]
    if not names:
        raise InvalidRequest("look-ups need a topic with a primary key", topic=handle.name)
    keys = [parse_key(text, handle.schema, names) for text in texts]
    if isinstance(handle, PartitionedTopic):
        parts: list[Any] = [handle.parts[handle.part_of(key, {})] for key in keys]
        return [part.get(key) for part, key in zip(parts, keys, strict=True)]
    found: list[dict[str, Any] | None] = handle.get_many(keys)
    return found


def parse_key(text: str, schema: pa.Schema, names: Sequence[str]) -> dict[str, object]:
    """Return a key as a dict of its columns.

    A key of one column is the text itself, read by the column's type. One of several columns is
    CSV in the order of the key, a JSON array in that order, or a JSON object.

    Raises:
        InvalidRequest: if it does not fit.
    """
    if len(names) == 1:
        found = parse_csv_row(names, [text], schema)
    elif text.lstrip().startswith(("[", "{")):
        found = _from_json(text, schema, names)
    else:
        found = _from_csv(text, schema, names)
    if any(value is None for value in found.values()):
        _refuse(text, names)
    return found


def _from_csv(text: str, schema: pa.Schema, names: Sequence[str]) -> dict[str, object]:
    try:
        (cells,) = csv.reader([text], strict=True)
    except (csv.Error, ValueError) as error:
        raise InvalidRequest("key is not one line of CSV", key=text, cause=error) from error
    return parse_csv_row(names, cells, schema)


def _from_json(text: str, schema: pa.Schema, names: Sequence[str]) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidRequest("key is not valid JSON", key=text, cause=error) from error
    if isinstance(value, list) and len(value) == len(names):
        value = dict(zip(names, value, strict=True))
    if not isinstance(value, dict) or set(value) != set(names):
        _refuse(text, names)
    key = pa.schema([column_of(schema, name) for name in names])
    return JsonRowReader(key).convert({name: value[name] for name in names})


def _refuse(text: str, names: Sequence[str]) -> NoReturn:
    raise InvalidRequest("key must have a value for each key column", key=text, columns=names)
