"""Arrow batches on stdout: table, CSV, JSON, NDJSON or an Arrow IPC stream.

JSON is an array with one row a line, NDJSON the rows alone. Columns of the same name get a number:
`a`, `a_1`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.cli.output import csv_text, plain_rows, print_table, to_json, write_out
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SINGLE", "BatchFormat", "BatchWriter", "check_format", "unique_names"]

BatchFormat = Literal["table", "csv", "json", "ndjson", "arrow"]
FORMATS: Final[tuple[BatchFormat, ...]] = ("table", "csv", "json", "ndjson", "arrow")
SINGLE: Final = frozenset({"json", "arrow"})
"""Formats of which one document is one result."""
PAGE_ROWS: Final = 1000
"""The rows of a table that are formatted together: the column widths need all of them."""
_encode = msgspec.json.Encoder().encode

Rows = list[dict[str, Any]]


def check_format(name: str) -> BatchFormat:
    """Return a format by its name.

    Raises:
        InvalidRequest: if there is no such format, or Arrow would go to a terminal.
    """
    if name == "arrow" and sys.stdout.isatty():
        raise InvalidRequest("Arrow data would garble the terminal, send stdout to a file")
    for known in FORMATS:
        if name == known:
            return known
    raise InvalidRequest("no such format", got=name, allowed="|".join(FORMATS))


def unique_names(names: Sequence[str]) -> list[str]:
    """Return names of which no two are the same: the second `a` is `a_1`."""
    found: list[str] = []
    for name in names:
        fresh, number = name, 0
        while fresh in found or (number and fresh in names):
            number += 1
            fresh = f"{name}_{number}"
        found.append(fresh)
    return found


class BatchWriter:
    """Writes the batches of one schema. Close it: some formats have an end."""

    def __init__(self, file_format: BatchFormat, schema: pa.Schema) -> None:
        self.format = check_format(file_format)
        self.rows = 0
        self._names = schema.names
        self._unique = unique_names(schema.names)
        if file_format == "csv":
            write_out(csv_text([schema.names]))
        elif file_format == "arrow":
            self._arrow = pa.ipc.new_stream(sys.stdout.buffer, schema)

    def write(
        self,
        batch: pa.RecordBatch,
        *,
        go_on: Callable[[], bool] = lambda: True,
    ) -> None:
        """Write a batch page by page, while `go_on` returns true."""
        for start in range(0, batch.num_rows, PAGE_ROWS):
            if not go_on():
                return
            page = batch.slice(start, PAGE_ROWS)
            if self.format == "arrow":
                self._arrow.write_batch(page)
                sys.stdout.buffer.flush()
            else:
                self._write_rows(self._rows(page))
            self.rows += page.num_rows

    def _rows(self, batch: pa.RecordBatch) -> Rows:
        """Return rows of JSON values; whole decimals are numbers, since SUM returns decimals."""
        rows = plain_rows(batch.rename_columns(self._unique))
        for name, field in zip(self._unique, batch.schema, strict=True):
            if pt.is_decimal(field.type) and field.type.scale == 0:
                for row in rows:
                    row[name] = None if row[name] is None else int(str(row[name]))
        return rows

    def _write_rows(self, rows: Rows) -> None:
        if self.format == "table":
            print_table(self._names, [list(row.values()) for row in rows])
        elif self.format == "csv":
            write_out(csv_text([list(row.values()) for row in rows]))
        elif self.format == "ndjson":
            write_out("".join([_json_line(row) + "\n" for row in rows]))
        else:
            between = ",\n" if self.rows else "[\n"
            write_out(between + ",\n".join([_json_line(row) for row in rows]))

    def close(self) -> None:
        """Write the end of the document."""
        if self.format == "arrow":
            self._arrow.close()
            sys.stdout.buffer.flush()
        elif self.format == "json":
            write_out("\n]\n" if self.rows else "[]\n")
        elif self.format == "table" and not self.rows:
            print_table(self._names, [])


def _json_line(row: dict[str, Any]) -> str:
    try:
        return _encode(row).decode()
    except OverflowError:
        # Sums may have more digits than the faster encoder takes.
        return to_json(row)
