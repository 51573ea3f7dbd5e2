"""How `frazil read` writes records: NDJSON, table, CSV, an Arrow IPC stream, or raw payloads."""

from __future__ import annotations

import csv
import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
import pyarrow as pa

from frazil.cli.output import plain_rows, print_table, to_json, write_out
from frazil.errors import InvalidRequest
from frazil.log.history import OFFSET_FIELD, TIME_FIELD, Batch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Format", "RecordWriter", "writer_for"]

Format = Literal["ndjson", "table", "csv", "arrow", "raw"]
_encode = msgspec.json.Encoder().encode
PART_FIELD = pa.field("_part", pa.int32(), nullable=False)


class RecordWriter(Protocol):
    """Writes batches to stdout."""

    def write(self, batch: Batch, part: int | None) -> None:
        """Write the records of a batch; `part` is the part of a partitioned topic."""


def _rows(batch: Batch, part: int | None) -> list[dict[str, object]]:
    rows = plain_rows(batch.to_arrow())
    return rows if part is None else [{"_part": part, **row} for row in rows]


class _Ndjson:
    def write(self, batch: Batch, part: int | None) -> None:
        # The rows are plain already, so the faster encoder needs no rules of its own.
        write_out(b"".join([_encode(row) + b"\n" for row in _rows(batch, part)]))


class _Table:
    def write(self, batch: Batch, part: int | None) -> None:
        rows = _rows(batch, part)
        print_table(list(rows[0]), [list(row.values()) for row in rows])


class _Csv:
    def __init__(self, schema: pa.Schema, *, parted: bool) -> None:
        names = ["_part"] if parted else []
        self._write([[*names, "_offset", "_time", *schema.names]])

    def write(self, batch: Batch, part: int | None) -> None:
        rows = [list(row.values()) for row in _rows(batch, part)]
        self._write(
            [[to_json(v) if isinstance(v, (dict, list, bool)) else v for v in row] for row in rows]
        )

    def _write(self, rows: list[list[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        write_out(text.getvalue())


class _Raw:
    def write(self, batch: Batch, part: int | None) -> None:
        del part
        payloads = batch.data.column("payload").to_pylist()
        write_out(b"".join([payload + b"\n" for payload in payloads]))


class _Arrow:
    def __init__(self, schema: pa.Schema, *, parted: bool) -> None:
        fields = [PART_FIELD] if parted else []
        self._schema = pa.schema([*fields, OFFSET_FIELD, TIME_FIELD, *schema])
        self._writer = pa.ipc.new_stream(sys.stdout.buffer, self._schema)

    def write(self, batch: Batch, part: int | None) -> None:
        data = batch.to_arrow()
        columns = list(data.columns)
        if part is not None:
            columns.insert(0, pa.array([part] * batch.count, PART_FIELD.type))
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        self._writer.close()


@contextmanager
def writer_for(
    name: Format, schema: pa.Schema, *, parted: bool, has_payloads: bool
) -> Iterator[RecordWriter]:
    """Give a writer to stdout for the columns of a topic.

    Raises:
        InvalidRequest: if the topic or the terminal does not fit the format.
    """
    if name == "raw" and not has_payloads:
        raise InvalidRequest("only message topics have raw payloads, choose another --format")
    if name == "arrow":
        if sys.stdout.isatty():
            raise InvalidRequest("Arrow data would garble the terminal, send stdout to a file")
        arrow = _Arrow(schema, parted=parted)
        try:
            yield arrow
        finally:
            arrow.close()
        return
    if name == "csv":
        yield _Csv(schema, parted=parted)
        return
    plain: dict[str, RecordWriter] = {"ndjson": _Ndjson(), "table": _Table(), "raw": _Raw()}
    yield plain[name]
