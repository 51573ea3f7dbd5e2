"""Values for people and programs: JSON on stdout, tables, and notes on stderr.

JSON has no bytes, times or NaN. Bytes are text if they are valid UTF-8, else {"base64": "..."};
times and intervals are ISO 8601; decimals are strings; NaN and the infinities are the strings "NaN",
"Infinity" and "-Infinity"; maps are objects.

CSV has these forms, too. A null is an empty cell; an empty text is "", as PostgreSQL writes them.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from frazil.errors import InvalidRequest

__all__ = [
    "agreed",
    "console",
    "csv_text",
    "naming_the_option",
    "note",
    "plain",
    "plain_row",
    "plain_rows",
    "print_json",
    "print_table",
    "progress_bar",
    "size_text",
    "stamp",
    "to_json",
    "write_out",
]

WIDTH_WITHOUT_TERMINAL = 4000
WRITE_BYTES = 1 << 16


def write_out(data: str | bytes) -> None:
    """Write to stdout exactly what is given; flushed often, so that a closed pipe is noticed."""
    view = memoryview(data.encode(errors="surrogatepass") if isinstance(data, str) else data)
    sys.stdout.flush()
    target = sys.stdout.buffer
    for start in range(0, len(view), WRITE_BYTES):
        target.write(view[start : start + WRITE_BYTES])
        target.flush()


def size_text(count: float) -> str:
    """Return a size for people, three digits in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} TB"


def stamp(us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC; far-off numbers stay numbers."""
    try:
        return _iso(dt.datetime.fromtimestamp(us / 1e6, dt.UTC))
    except (OverflowError, ValueError, OSError):
        return str(us)


def _iso(moment: dt.datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def plain(value: object) -> object:
    """Return a value as one that JSON has, by the rules of this module."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _plain_bytes(bytes(value))
    if isinstance(value, dt.datetime):
        return _iso(value)
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, pa.MonthDayNano):
        return _span(value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)


def _span(interval: pa.MonthDayNano) -> str:
    """Return an interval as ISO 8601, each unit with its own sign: P1Y2M3DT4.5S."""
    years, months = divmod(abs(interval.months), 12)
    sign = "-" if interval.months < 0 else ""
    text = f"{sign}{years}Y" if years else ""
    text += f"{sign}{months}M" if months else ""
    text += f"{interval.days}D" if interval.days else ""
    if interval.nanoseconds:
        whole, part = divmod(abs(interval.nanoseconds), 1_000_000_000)
        seconds = f"{whole}.{part:09}".rstrip("0").removesuffix(".")
        text += f"T{'-' if interval.nanoseconds < 0 else ''}{seconds}S"
    return f"P{text or 'T0S'}"


def _plain_bytes(data: bytes) -> object:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def plain_rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """Return the rows of a batch as values that JSON has."""
    columns = [
        _plain_column(batch.column(index), field) for index, field in enumerate(batch.schema)
    ]
    names = batch.schema.names
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _plain_column(column: pa.Array, field: pa.Field) -> list[object]:
    data_type = field.type
    if pt.is_timestamp(data_type) and data_type.unit == "ns":
        # Python's datetime has no nanoseconds; Arrow's own text keeps them.
        texts = pc.cast(column, pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") for text in texts]
    values = column.to_pylist()
    if pt.is_integer(data_type) or pt.is_string(data_type) or pt.is_boolean(data_type):
        return values  # type: ignore[no-any-return] # pyarrow has no types
    return [_typed(value, data_type) for value in values]


def plain_row(row: Mapping[str, object], schema: pa.Schema) -> dict[str, object]:
    """Return a row of Python's values, under the columns of a schema, as values that JSON has."""
    return {name: _typed(value, schema.field(name).type) for name, value in row.items()}


def _typed(value: Any, data_type: pa.DataType) -> object:
    """Return a value as one that JSON has; its type tells maps from lists of pairs."""
    if value is None or not pt.is_nested(data_type):
        return plain(value)
    if pt.is_map(data_type):
        return {
            str(plain(key)): _typed(item, data_type.item_type) for key, item in dict(value).items()
        }
    if pt.is_struct(data_type):
        return {field.name: _typed(value.get(field.name), field.type) for field in data_type}
    if hasattr(data_type, "value_type"):
        return [_typed(item, data_type.value_type) for item in value]
    return plain(value)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return rows of plain values as lines of CSV."""
    return "".join([",".join(map(_csv_cell, row)) + "\n" for row in rows])


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    text = to_json(value) if isinstance(value, (dict, list, bool)) else str(value)
    if text and not any(sign in text for sign in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


def to_json(value: object) -> str:
    """Return one line of strict JSON."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False)


def print_json(value: object) -> None:
    """Print a result as indented JSON on stdout."""
    write_out(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def console(*, stderr: bool = False) -> Console:
    """Return a console; without a terminal lines are never broken."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, width=width, highlight=False)


def print_table(
    names: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """Print rows as a table on stdout; nothing in them is taken as markup."""
    table = Table(*names, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    value = plain(value)
    if isinstance(value, (dict, list)):
        value = to_json(value) if value else ""
    # Control characters would move the cursor of the reader's terminal.
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in str(value))


def progress_bar() -> Progress:
    """Return a bar of bytes on stderr, to be entered; it shows nothing without a terminal."""
    screen = console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )


def agreed(question: str, *, yes: bool) -> bool:
    """Ask on a terminal; elsewhere only `--yes` counts."""
    return yes or (sys.stdin.isatty() and typer.confirm(question, err=True))


def naming_the_option(error: InvalidRequest) -> InvalidRequest:
    """Return a missing confirmation's error with the option that gives it."""
    words = error.message.replace("give confirm=True", "give --yes")
    return InvalidRequest(words.replace("confirm=True", "--yes"), **error.details)


def note(text: str) -> None:
    """Print a line on stderr."""
    typer.echo(text, err=True)
