"""Payloads of frames: Arrow batches to bytes, and the checked bytes of a frame.

A frame of a keyed topic without `_op` and `_present` has upserts of whole rows. In a change all
columns but the key may be null, even if the topic requires them: a delete has only its key, a
partial change only the columns that it names. So batches of changes declare only the key as
`not null`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import TIME_FIELD, Payload
from frazil.log import format as fmt
from frazil.schema import BitmapMoves, column_id, plan_read

if TYPE_CHECKING:
    from frazil.log import Frame

Reader = Callable[[pa.RecordBatch], pa.RecordBatch]

OP_FIELD: Final = pa.field("_op", pa.int8(), nullable=False)
PRESENT_FIELD: Final = pa.field("_present", pa.binary())
_SYSTEM_FIELDS: Final = (
    (fmt.FLAG_OP, OP_FIELD),
    (fmt.FLAG_PRESENT, PRESENT_FIELD),
    (fmt.FLAG_TIME, TIME_FIELD),
)
CHANGE_FLAGS: Final = fmt.FLAG_OP | fmt.FLAG_PRESENT
_KNOWN_FLAGS: Final = fmt.FLAG_OP | fmt.FLAG_PRESENT | fmt.FLAG_TIME | fmt.FLAG_PLAIN


def is_arrow(data: object) -> bool:
    """Return whether records or changes in bulk are Arrow data."""
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def change_schema(schema: pa.Schema, primary_key: Sequence[int]) -> pa.Schema:
    """Return the columns of a keyed topic's batches, with `_op` and `_present`.

    All of the topic's columns but the key are nullable.
    """
    fields = [
        field if column_id(field) in primary_key else field.with_nullable(True) for field in schema
    ]
    return pa.schema([*fields, OP_FIELD, PRESENT_FIELD], metadata=schema.metadata)


def plan_change_read(written: pa.Schema, wanted: pa.Schema, primary_key: Sequence[int]) -> Reader:
    """Return a function that converts a batch of changes of one schema version to another.

    Both schemas have only the topic's columns. Operations are kept, bitmaps are converted.
    """
    read_columns = plan_read(written, wanted)
    moves = BitmapMoves([column_id(field) for field in written], [column_id(f) for f in wanted])
    schema = change_schema(wanted, primary_key)
    columns, system = len(wanted), len(written)

    def read(batch: pa.RecordBatch) -> pa.RecordBatch:
        # The conversion is by position and ignores the two columns after the topic's.
        arrays = read_columns(batch).columns[:columns]
        present = moves.moved_array(batch.column(system + 1))
        return pa.RecordBatch.from_arrays([*arrays, batch.column(system), present], schema=schema)

    return read


def arrow_payload(
    batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions, flags: int = 0
) -> Payload:
    """Return an Arrow batch as a frame's payload."""
    sink = batch.serialize() if options.compression is None else _compressed(batch, options)
    return Payload(fmt.KIND_ARROW, flags, sink, sink.size)


def _compressed(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    """Return the encapsulated message of a compressed batch: the stream without its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    stream = sink.getvalue()
    reader = pa.BufferReader(stream)
    pa.ipc.read_message(reader)
    start = reader.tell()
    return stream.slice(start, end - start)


def frame_payload(frame: Frame) -> memoryview:
    """Return the payload of a verified frame, not copied."""
    return memoryview(frame.buffer)[frame.start : frame.start + frame.head.size]


def check_count(frame: Frame, count: int) -> None:
    """Refuse a frame whose number of records differs from its head's."""
    if count != frame.head.records:
        raise CorruptionError(
            "frame has another number of records than its head",
            lsn=frame.head.lsn,
            records=count,
            records_said=frame.head.records,
        )


def newer_flags(flags: int) -> InvalidRequest:
    """Return the error for a frame whose flags this version does not know."""
    return InvalidRequest("records were written by a newer Frazil, upgrade", flags=flags)


def read_ipc(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Read an Arrow payload; its flags name the system columns after the topic's columns."""
    head = frame.head
    if head.flags & ~_KNOWN_FLAGS:
        raise newer_flags(head.flags)
    if head.flags:
        fields = [field for flag, field in _SYSTEM_FIELDS if head.flags & flag]
        schema = pa.schema([*schema, *fields], metadata=schema.metadata)
    data = pa.py_buffer(frame.buffer).slice(frame.start, head.size)
    try:
        batch = pa.ipc.read_record_batch(data, schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptionError("Arrow payload cannot be read", lsn=head.lsn, error=error) from error
    check_count(frame, batch.num_rows)
    return batch
