"""How `frazil read` writes records: NDJSON, table, CSV, an Arrow IPC stream, or raw payloads.

A record of a keyed topic is a change: `_op` tells which, behind `_offset` and `_time`. Columns that a
partial change does not name are null; in NDJSON they are left out.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
import pyarrow as pa

from frazil.cli.output import csv_text, plain_rows, print_table, write_out
from frazil.errors import InvalidRequest
from frazil.log import OFFSET_FIELD, TIME_FIELD, Batch
from frazil.model import OP_DELETE, OP_NAMES
from frazil.schema import positions_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Format", "RecordWriter", "writer_for"]

Format = Literal["ndjson", "table", "csv", "arrow", "raw"]
_encode = msgspec.json.Encoder().encode
PART_FIELD = pa.field("_part", pa.int32(), nullable=False)
OP_FIELD = pa.field("_op", pa.string(), nullable=False)


class RecordWriter(Protocol):
    """Writes batches to stdout."""

    def write(self, batch: Batch, part: int | None) -> None:
        """Write the records of a batch; `part` is the part of a partitioned topic."""


def _told(batch: Batch) -> pa.RecordBatch:
    """Return a batch as it is shown: a change's operation by its name, before the columns."""
    data = batch.to_arrow()
    if "_op" not in batch.data.schema.names:
        return data
    numbers = data.column("_op").to_pylist()
    ops = pa.array([OP_NAMES.get(number, str(number)) for number in numbers], pa.string())
    shown = data.drop_columns(["_op", "_present"])
    return pa.RecordBatch.from_arrays(
        [*shown.columns[:2], ops, *shown.columns[2:]],
        schema=pa.schema([*list(shown.schema)[:2], OP_FIELD, *list(shown.schema)[2:]]),
    )


def _rows(batch: Batch, part: int | None) -> list[dict[str, object]]:
    rows = plain_rows(_told(batch))
    return rows if part is None else [{"_part": part, **row} for row in rows]


def _without_unnamed(rows: list[dict[str, object]], batch: Batch) -> None:
    """Take out of rows the columns that a partial change does not name; a delete names its key."""
    names = [name for name in batch.data.schema.names if name not in {"_op", "_present"}]
    ops = batch.data.column("_op").to_pylist()
    bitmaps = batch.data.column("_present").to_pylist()
    for row, op, bitmap in zip(rows, ops, bitmaps, strict=True):
        if bitmap is None and op != OP_DELETE:
            continue
        named = {names[position] for position in positions_of(bitmap or b"")}
        for name in names:
            if name not in named and row[name] is None:
                del row[name]


class _Ndjson:
    def write(self, batch: Batch, part: int | None) -> None:
        rows = _rows(batch, part)
        if "_present" in batch.data.schema.names:
            _without_unnamed(rows, batch)
        # The rows are plain already, so the faster encoder needs no rules of its own.
        write_out(b"".join([_encode(row) + b"\n" for row in rows]))


class _Table:
    def write(self, batch: Batch, part: int | None) -> None:
        rows = _rows(batch, part)
        print_table(list(rows[0]), [list(row.values()) for row in rows])


class _Csv:
    def __init__(self, schema: pa.Schema) -> None:
        write_out(csv_text([schema.names]))

    def write(self, batch: Batch, part: int | None) -> None:
        write_out(csv_text([list(row.values()) for row in _rows(batch, part)]))


class _Raw:
    def write(self, batch: Batch, part: int | None) -> None:
        del part
        payloads = batch.data.column("payload").to_pylist()
        write_out(b"".join([payload + b"\n" for payload in payloads]))


class _Arrow:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._writer = pa.ipc.new_stream(sys.stdout.buffer, self._schema)

    def write(self, batch: Batch, part: int | None) -> None:
        columns = list(_told(batch).columns)
        if part is not None:
            columns.insert(0, pa.array([part] * batch.count, PART_FIELD.type))
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        self._writer.close()


@contextmanager
def writer_for(
    name: Format, schema: pa.Schema, *, parted: bool, keyed: bool, has_payloads: bool
) -> Iterator[RecordWriter]:
    """Give a writer to stdout for the columns of a topic.

    Raises:
        InvalidRequest: if the topic or the terminal does not fit the format.
    """
    if name == "raw" and not has_payloads:
        raise InvalidRequest("only message topics have raw payloads, choose another --format")
    fields = [*([PART_FIELD] if parted else []), OFFSET_FIELD, TIME_FIELD]
    shown = pa.schema([*fields, *([OP_FIELD] if keyed else []), *schema])
    if name == "arrow":
        if sys.stdout.isatty():
            raise InvalidRequest("Arrow data would garble the terminal, send stdout to a file")
        arrow = _Arrow(shown)
        try:
            yield arrow
        finally:
            arrow.close()
        return
    if name == "csv":
        yield _Csv(shown)
        return
    plain: dict[str, RecordWriter] = {"ndjson": _Ndjson(), "table": _Table(), "raw": _Raw()}
    yield plain[name]
