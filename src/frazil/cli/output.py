"""Values for people and programs: JSON on stdout, tables, and notes on stderr.

JSON has no bytes, times or NaN. Bytes are text if they are valid UTF-8, else {"base64": "..."};
times and intervals are ISO 8601; decimals are strings; NaN and the infinities are the strings
"NaN", "Infinity" and "-Infinity"; maps are objects.

CSV has these forms, too. A null is an empty cell; an empty text is "", as PostgreSQL writes them.
"""

from __future__ import annotations

import base64
import datetime as dt
import functools
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
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
    "UNKNOWN",
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

UNKNOWN = "-"
WIDTH_WITHOUT_TERMINAL = 4000
WRITE_BYTES = 1 << 16
_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def write_out(data: str | bytes) -> None:
    """Write text to stdout unchanged, and flush often to detect a closed pipe."""
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
        return str(plain(dt.datetime.fromtimestamp(us / 1e6, dt.UTC)))
    except (OverflowError, ValueError, OSError):
        return str(us)


@functools.singledispatch
def plain(value: object) -> object:
    """Return a value as one that JSON has, by the rules of this module."""
    return str(value)


@plain.register
def _(value: int | str | None) -> object:
    return value


@plain.register
def _(value: float) -> object:
    return value if math.isfinite(value) else _NOT_FINITE[str(value)]


@plain.register
def _(value: bytes | bytearray | memoryview) -> object:
    data = bytes(value)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


@plain.register
def _(value: dt.date | dt.time) -> object:
    return value.isoformat().replace("+00:00", "Z")


@plain.register
def _(value: Mapping) -> object:  # type: ignore[type-arg] # singledispatch takes bare classes only
    return {str(plain(key)): plain(item) for key, item in value.items()}


@plain.register
def _(value: list | tuple | set | frozenset) -> object:  # type: ignore[type-arg] # as above
    return [plain(item) for item in value]


@plain.register(pa.MonthDayNano)
def _(value: Any) -> object:
    """Return an interval as ISO 8601, each unit with its own sign: P1Y2M-3DT4.5S."""
    years = int(value.months / 12)
    seconds = Decimal(value.nanoseconds).scaleb(-9).normalize()
    counts = ((years, "Y"), (value.months - 12 * years, "M"), (value.days, "D"))
    text = "".join([f"{count}{unit}" for count, unit in counts if count])
    return f"P{text}T{seconds:f}S" if seconds or not text else f"P{text}"


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
        # Python's datetime has no nanoseconds; Arrow's text has them.
        texts = pc.cast(column, pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") for text in texts]
    return [plain(value) for value in column.to_pylist(maps_as_pydicts="lossy")]


def plain_row(row: Mapping[str, object], schema: pa.Schema) -> dict[str, object]:
    """Return a row of Python's values, under the columns of a schema, as values that JSON has."""
    return plain_rows(pa.RecordBatch.from_pylist([dict(row)], schema))[0]


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
    """Prompt on a terminal; elsewhere only `--yes` counts."""
    return yes or (sys.stdin.isatty() and typer.confirm(question, err=True))


def naming_the_option(error: InvalidRequest) -> InvalidRequest:
    """Return a missing confirmation's error with the option that confirms."""
    words = error.message.replace("give confirm=True", "give --yes")
    return InvalidRequest(words.replace("confirm=True", "--yes"), **error.details)


def note(text: str) -> None:
    """Print a line on stderr."""
    typer.echo(text, err=True)
