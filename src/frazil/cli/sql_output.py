"""How `frazil sql` prints a result: table, CSV, JSON, NDJSON or an Arrow IPC stream; batch by batch.

JSON is an array with one row a line, NDJSON the rows alone. Columns of the same name get a number: `a`, `a_1`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.cli.output import csv_text, plain_rows, print_table, to_json, write_out
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["SINGLE", "SqlFormat", "check_format", "explain_lines", "unique_names", "write_batches"]

SqlFormat = Literal["table", "csv", "json", "ndjson", "arrow"]
FORMATS: Final[tuple[SqlFormat, ...]] = ("table", "csv", "json", "ndjson", "arrow")
SINGLE: Final = frozenset({"json", "arrow"})
"""Formats of which one document is one result."""
PAGE_ROWS: Final = 1000
"""A table is laid out for so many rows at a time: its widths need them all in memory."""
_encode = msgspec.json.Encoder().encode


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> None: ...


def check_format(name: str) -> SqlFormat:
    """Return a format by its name; refuse one that this stdout cannot take.

    Raises:
        InvalidRequest: if there is no such format, or Arrow would go to a terminal.
    """
    if name == "arrow" and sys.stdout.isatty():
        raise InvalidRequest("Arrow data would garble the terminal, send stdout to a file")
    for known in FORMATS:
        if name == known:
            return known
    raise InvalidRequest("no such format", got=name, allowed="|".join(FORMATS))


def write_batches(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    file_format: SqlFormat,
    *,
    go_on: Callable[[], bool] = lambda: True,
) -> int:
    """Print a result as it comes; return the rows. `go_on` may end it between two pages."""
    writer = _writer(file_format, schema)
    rows = 0
    try:
        for batch in _pages(batches):
            if not go_on():
                break
            writer.write(batch)
            rows += batch.num_rows
    finally:
        writer.close()
    return rows


def unique_names(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same: the second `a` is `a_1`."""
    taken = set(names)
    found: list[str] = []
    seen: set[str] = set()
    for name in names:
        fresh = name
        number = 1
        while fresh in seen or (number > 1 and fresh in taken):
            fresh = f"{name}_{number}"
            number += 1
        seen.add(fresh)
        found.append(fresh)
    return found


def explain_lines(value: object, *, indent: int = 0) -> Iterator[str]:
    """Yield what `explain` told as indented lines; a list of flat objects is a line each."""
    pad = "  " * indent
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, str) and "\n" in item:
                yield f"{pad}{key}:"
                yield from (f"{pad}  {line}" for line in item.splitlines())
            elif _is_nested(item):
                yield f"{pad}{key}:"
                yield from explain_lines(item, indent=indent + 1)
            else:
                yield f"{pad}{key}: {_flat(item)}"
    elif isinstance(value, list):
        for item in value:
            if _is_nested(item):
                yield f"{pad}-"
                yield from explain_lines(item, indent=indent + 1)
            else:
                yield f"{pad}- {_flat(item)}"
    else:
        yield f"{pad}{_flat(value)}"


def _is_nested(item: object) -> bool:
    """Tell whether a value needs lines of its own."""
    if isinstance(item, dict):
        return any(isinstance(each, (dict, list)) and each for each in item.values())
    return isinstance(item, list) and any(isinstance(each, (dict, list)) for each in item)


def _flat(item: object) -> str:
    if isinstance(item, dict):
        return ", ".join(f"{key} {_flat(each)}" for key, each in item.items()) or "none"
    if isinstance(item, list):
        return ", ".join(_flat(each) for each in item) or "none"
    return item if isinstance(item, str) else to_json(item)


def _pages(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, PAGE_ROWS):
            yield batch.slice(start, PAGE_ROWS)


def _writer(file_format: SqlFormat, schema: pa.Schema) -> _Writer:
    writers: dict[str, Callable[[pa.Schema], _Writer]] = {
        "table": _Table,
        "csv": _Csv,
        "json": _Json,
        "ndjson": _Ndjson,
        "arrow": _Arrow,
    }
    return writers[file_format](schema)


def _rows(batch: pa.RecordBatch, names: list[str]) -> list[dict[str, Any]]:
    """Return rows that JSON has; whole decimals are numbers, since SUM gives them for integers."""
    rows = plain_rows(batch.rename_columns(names))
    for name, field in zip(names, batch.schema, strict=True):
        if pt.is_decimal(field.type) and field.type.scale == 0:
            for row in rows:
                row[name] = None if row[name] is None else int(str(row[name]))
    return rows


class _Table:
    def __init__(self, schema: pa.Schema) -> None:
        self._names = schema.names
        self._unique = unique_names(schema.names)
        self._is_empty = True

    def write(self, batch: pa.RecordBatch) -> None:
        self._is_empty = False
        print_table(self._names, [list(row.values()) for row in _rows(batch, self._unique)])

    def close(self) -> None:
        if self._is_empty:
            print_table(self._names, [])


class _Csv:
    def __init__(self, schema: pa.Schema) -> None:
        self._unique = unique_names(schema.names)
        write_out(csv_text([schema.names]))

    def write(self, batch: pa.RecordBatch) -> None:
        write_out(csv_text([list(row.values()) for row in _rows(batch, self._unique)]))

    def close(self) -> None:
        pass


class _Json:
    def __init__(self, schema: pa.Schema) -> None:
        self._unique = unique_names(schema.names)
        self._between = "["

    def write(self, batch: pa.RecordBatch) -> None:
        lines = []
        for row in _rows(batch, self._unique):
            lines.append(f"{self._between}\n{_json_line(row)}")
            self._between = ","
        write_out("".join(lines))

    def close(self) -> None:
        write_out("[]\n" if self._between == "[" else "\n]\n")


class _Ndjson:
    def __init__(self, schema: pa.Schema) -> None:
        self._unique = unique_names(schema.names)

    def write(self, batch: pa.RecordBatch) -> None:
        write_out("".join([_json_line(row) + "\n" for row in _rows(batch, self._unique)]))

    def close(self) -> None:
        pass


def _json_line(row: dict[str, Any]) -> str:
    try:
        return _encode(row).decode()
    except OverflowError:
        # Sums may have more digits than the faster encoder takes.
        return to_json(row)


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        self._writer = pa.ipc.new_stream(sys.stdout.buffer, schema)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        sys.stdout.buffer.flush()

    def close(self) -> None:
        self._writer.close()
        sys.stdout.buffer.flush()
