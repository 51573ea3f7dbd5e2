"""Changes in bulk: Arrow data with an operation column to batches with `_op` and `_present`.

    keyed = runtime.codec.columns.keyed               # of the current schema version, taken once
    for batch in keyed.input.batches(data, op_column="op", bytes_max=..., rows_max=...):
        payload = keyed.bulk.payload(batch)
        entry = (topic, keyed.bulk.codec(), payload, batch.num_rows, payload.size, waiter, sender)

The operation is text (`insert`, `update`, `upsert`, `delete`, or Debezium's `c`, `u`, `r`, `d`, in
any case) or the number that `_op` has. A column that the data lacks is absent: an update leaves it
as it is, an insert or upsert sets it to null. An update's bitmap names what the data has, even if
that is every column: it changes a key and does not make one. Of a delete the key alone is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE, OP_INSERT, OP_NAMES, OP_UPDATE, OP_UPSERT
from frazil.schema import ArrowInput, bitmap_of, column_id, plan_read, raw_batches
from frazil.topic.change_frames import CHANGE_FLAGS, change_schema, plan_change_read
from frazil.topic.payloads import OP_FIELD, PRESENT_FIELD, arrow_payload

if TYPE_CHECKING:
    from frazil.log import Codec, Payload
    from frazil.schema import IngestLimits

__all__ = ["OP_COLUMN", "OP_TEXTS", "BulkCodec", "BulkColumns", "ChangeInput"]

OP_COLUMN: Final = OP_FIELD.name
OP_TEXTS: Final = {
    **{name: op for op, name in OP_NAMES.items()},
    "c": OP_INSERT,
    "u": OP_UPDATE,
    "r": OP_UPSERT,
    "d": OP_DELETE,
}


@cache
def _known() -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the texts of operations, their numbers, and all numbers.

    Not at import: the first list that Arrow sees makes it import pandas, if that is there.
    """
    return (
        pa.array(list(OP_TEXTS), pa.string()),
        pa.array(list(OP_TEXTS.values()), OP_FIELD.type),
        pa.array(list(OP_NAMES), OP_FIELD.type),
    )


class BulkColumns:
    """One schema version of a keyed topic, for batches; makes a codec for each batch."""

    __slots__ = ("_current", "_options", "_primary_key", "schema", "version")

    def __init__(
        self,
        schema: pa.Schema,
        version: int,
        primary_key: Sequence[int],
        *,
        options: pa.ipc.IpcWriteOptions,
        current: Callable[[], BulkColumns],
    ) -> None:
        self.schema = schema
        self.version = version
        self._primary_key = tuple(primary_key)
        self._options = options
        self._current = current

    def payload(self, batch: pa.RecordBatch) -> Payload:
        """Return a batch of changes, or of the topic's columns alone, as one frame's payload."""
        flags = CHANGE_FLAGS if len(batch.schema) > len(self.schema) else 0
        return arrow_payload(batch, self._options, flags)

    def codec(self) -> BulkCodec:
        """Return a codec for one batch of this version."""
        return BulkCodec(self)

    def upgraded(self, data: Payload) -> tuple[BulkColumns, Payload]:
        """Read a batch under the current columns and serialise it again."""
        current, key = self._current(), self._primary_key
        if data.flags:
            batch = pa.ipc.read_record_batch(data.data, change_schema(self.schema, key))
            read = plan_change_read(self.schema, current.schema, key)
        else:
            batch = pa.ipc.read_record_batch(data.data, self.schema)
            read = plan_read(self.schema, current.schema)
        return current, current.payload(read(batch))


class BulkCodec:
    """The codec of one batch, a frame of its own, serialised by its producer.

    The journal's thread sets `done` or `failed`, so that changes of its keys can wait for it.
    """

    __slots__ = ("_columns", "done", "failed", "origin", "version")

    solo = True
    tracked = True
    readable = False

    def __init__(self, columns: BulkColumns, origin: BulkCodec | None = None) -> None:
        self._columns = columns
        self.origin = origin
        self.version = columns.version
        self.done = False
        self.failed = False

    def encode(self, records: Any) -> Payload:
        payload: Payload = records
        return payload

    def upgraded(self, data: Payload, *, many: bool) -> tuple[Codec, Any]:
        """Return the batch under the current columns; this codec is settled with it."""
        del many
        columns, payload = self._columns.upgraded(data)
        return BulkCodec(columns, self), payload

    def settled(self, data: Any, *, many: bool, written: bool) -> None:
        """Take note of what became of the batch."""
        del data, many
        codec: BulkCodec | None = self
        while codec is not None:
            if written:
                codec.done = True
            else:
                codec.failed = True
            codec = codec.origin


class ChangeInput:
    """The conversion of bulk changes to one schema version. Safe to share between threads."""

    __slots__ = ("_columns", "_input", "_key", "_required", "schema")

    def __init__(self, schema: pa.Schema, primary_key: Sequence[int], limits: IngestLimits) -> None:
        self.schema = change_schema(schema, primary_key)
        self._columns = schema
        self._key = frozenset(i for i, f in enumerate(schema) if column_id(f) in primary_key)
        self._required = tuple(
            index
            for index, field in enumerate(schema)
            if not field.nullable and index not in self._key
        )
        # Which nulls are wrong depends on the operation, so they are judged here, not there.
        loose = pa.schema(list(self.schema)[:-1], metadata=schema.metadata)
        self._input = ArrowInput(loose, limits)

    def batches(
        self, data: object, *, op_column: str = OP_COLUMN, bytes_max: int, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield checked batches of changes, none above the limits, reading `data` as it goes.

        `data` is what `to_batches` takes, with a column `op_column` that is none of the topic's.

        Raises:
            InvalidRequest: with the column and the row of the first offender.
        """
        if not isinstance(op_column, str):
            raise InvalidRequest("op_column must be a name", got=type(op_column).__name__)
        if self._columns.get_field_index(op_column) >= 0:
            raise InvalidRequest(
                "operation column has the name of a column of the topic, rename it in the data",
                op_column=op_column,
            )
        row = 0
        for raw in raw_batches(data):
            changes, named = self._with_ops(raw, op_column, row)
            for piece in self._input.batches(
                changes, bytes_max=bytes_max, rows_max=rows_max, row_first=row
            ):
                yield self._finished(piece, named, row)
                row += piece.num_rows

    def _with_ops(
        self, raw: pa.RecordBatch, op_column: str, row: int
    ) -> tuple[pa.RecordBatch, frozenset[int]]:
        """Return the raw batch with the operations as numbers, and the places of its columns."""
        try:
            names = raw.schema.names
        except UnicodeDecodeError as error:
            raise InvalidRequest("column name is not valid UTF-8", cause=error) from error
        if names.count(op_column) != 1:
            why = "comes twice" if op_column in names else "is missing"
            raise InvalidRequest(f"operation column {why}", op_column=op_column)
        place = names.index(op_column)
        ops = _numbers(raw.column(place), op_column, row)
        named = {self._columns.get_field_index(n) for n in names if n != op_column}
        fields, arrays = list(raw.schema), raw.columns
        fields[place], arrays[place] = OP_FIELD, ops
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), frozenset(named - {-1})

    def _finished(self, piece: pa.RecordBatch, named: frozenset[int], row: int) -> pa.RecordBatch:
        """Judge the nulls of required columns, empty deletes, and add the bitmaps."""
        columns = len(self._columns)
        ops = piece.column(columns)
        arrays = piece.columns[:columns]
        deletes = pc.equal(ops, pa.scalar(OP_DELETE, ops.type))
        updates = pc.equal(ops, pa.scalar(OP_UPDATE, ops.type))
        for index in self._required:
            self._check_required(arrays[index], index, deletes, updates, named, row)
        if pc.any(deletes).as_py():
            arrays = [
                array if index in self._key else _emptied(array, deletes)
                for index, array in enumerate(arrays)
            ]
        if pc.any(updates).as_py():
            bitmap = pa.scalar(bitmap_of(named, columns), PRESENT_FIELD.type)
            present = pc.if_else(updates, bitmap, pa.scalar(None, PRESENT_FIELD.type))
        else:
            present = pa.nulls(piece.num_rows, PRESENT_FIELD.type)
        return pa.RecordBatch.from_arrays([*arrays, ops, present], schema=self.schema)

    def _check_required(
        self,
        array: pa.Array,
        index: int,
        deletes: pa.Array,
        updates: pa.Array,
        named: frozenset[int],
        row: int,
    ) -> None:
        if not array.null_count:
            return
        free = deletes if index in named else pc.or_(deletes, updates)
        wrong = pc.index(pc.and_not(array.is_null(), free), pa.scalar(True)).as_py()
        if wrong >= 0:
            given = index in named
            why = "column must not be null" if given else "column is missing and must not be null"
            raise InvalidRequest(why, column=self._columns.field(index).name, row=row + wrong)


def _numbers(column: pa.Array, name: str, row: int) -> pa.Array:
    """Return the operations as numbers of `_op`."""
    kind = column.type
    known_texts, of_texts, numbers = _known()
    if pt.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    try:
        if pt.is_integer(kind):
            ops = column.cast(OP_FIELD.type, safe=True)
            known = pc.is_in(ops, value_set=numbers)
        elif pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
            column.validate(full=True)
            texts = pc.utf8_lower(column.cast(pa.string()))
            places = pc.index_in(texts, value_set=known_texts)
            ops, known = of_texts.take(places), places.is_valid()
        else:
            raise InvalidRequest(
                "operations must be text or integers", op_column=name, got=column.type
            )
    except pa.ArrowException as error:
        raise InvalidRequest("operation is not known", op_column=name, cause=error) from error
    wrong = pc.index(known, pa.scalar(False)).as_py()
    if wrong >= 0:
        raise InvalidRequest(
            "operation is not known",
            op_column=name,
            row=row + wrong,
            operation=column[wrong].as_py(),
            allowed="|".join(OP_TEXTS),
        )
    return ops


def _emptied(array: pa.Array, deletes: pa.Array) -> pa.Array:
    """Return a column with nulls where the row is deleted."""
    if array.null_count == len(array):
        return array
    rows = pa.array(range(len(array)), pa.int64())
    return array.take(pc.if_else(deletes, pa.scalar(None, pa.int64()), rows))
