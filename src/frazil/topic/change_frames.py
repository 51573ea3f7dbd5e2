"""The frames of a keyed topic to batches that end with `_op` and `_present`.

A frame without those two columns holds upserts of whole rows. The other columns of a change may be
null whatever the topic declares (a delete has its key only, a partial change the columns it names),
so batches declare none but the key as `not null`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import CorruptionError
from frazil.log import format as fmt
from frazil.model import OP_NAMES, OP_UPSERT
from frazil.schema import BitmapMoves, Row, RowEncoder, bitmap_bytes, column_id, plan_read
from frazil.topic.payloads import (
    OP_FIELD,
    PRESENT_FIELD,
    check_count,
    frame_payload,
    newer_flags,
    read_ipc,
)

if TYPE_CHECKING:
    from frazil.log import Frame
    from frazil.schema import IngestLimits

__all__ = ["CHANGE_FLAGS", "ChangeVersion", "change_schema", "plan_change_read"]

CHANGE_FLAGS: Final = fmt.FLAG_OP | fmt.FLAG_PRESENT
_OPS: Final = frozenset(OP_NAMES)

Reader = Callable[[pa.RecordBatch], pa.RecordBatch]


@cache
def _upsert() -> pa.Scalar:
    """Return the operation of plain rows; not at import, where Arrow would import pandas."""
    return pa.scalar(OP_UPSERT, OP_FIELD.type)


def change_schema(schema: pa.Schema, primary_key: Sequence[int]) -> pa.Schema:
    """Return the columns of a keyed topic's batches: nullable but for the key, then the two."""
    fields = [
        field if column_id(field) in primary_key else field.with_nullable(True) for field in schema
    ]
    return pa.schema([*fields, OP_FIELD, PRESENT_FIELD], metadata=schema.metadata)


def plan_change_read(written: pa.Schema, wanted: pa.Schema, primary_key: Sequence[int]) -> Reader:
    """Return a function that reads a batch of changes of one schema version as another's.

    Both schemas are the topic's columns alone. The operations stay, the bitmaps are moved.
    """
    read_columns = plan_read(written, wanted)
    moves = BitmapMoves([column_id(field) for field in written], [column_id(f) for f in wanted])
    schema = change_schema(wanted, primary_key)
    columns, system = len(wanted), len(written)

    def read(batch: pa.RecordBatch) -> pa.RecordBatch:
        # The reader goes by position and ignores the two columns after it.
        arrays = read_columns(batch).columns[:columns]
        present = moves.moved_array(batch.column(system + 1))
        return pa.RecordBatch.from_arrays([*arrays, batch.column(system), present], schema=schema)

    return read


class ChangeVersion:
    """One schema version of a keyed topic: its frames to batches. Safe to share."""

    __slots__ = ("_bitmap_widths", "_changes", "_rows", "_written", "schema")

    def __init__(
        self, written: pa.Schema, primary_key: Sequence[int], limits: IngestLimits
    ) -> None:
        self._written = written
        self.schema = change_schema(written, primary_key)
        self._rows = RowEncoder(written, limits)
        self._changes = RowEncoder(self.schema, limits)
        self._bitmap_widths = {bitmap_bytes(len(written))}

    def decode(self, frame: Frame) -> pa.RecordBatch:
        """Decode one frame under the version it was written under.

        Raises:
            CorruptionError: if the payload is none of this version.
        """
        head = frame.head
        if head.kind == fmt.KIND_ARROW:
            return self._arranged(read_ipc(frame, self._written), head.flags)
        if head.flags == CHANGE_FLAGS:
            return self.batch(self._unpacked(frame))
        if head.flags:
            raise newer_flags(head.flags)
        rows = self._rows.unpack_rows(frame_payload(frame))
        check_count(frame, len(rows))
        return self._upserts(self._rows.batch(rows).columns, len(rows))

    def decode_small(self, frames: list[Frame]) -> pa.RecordBatch:
        """Join frames of packed rows, with and without operations."""
        if not any(frame.head.flags for frame in frames):
            plain: list[Row] = []
            for frame in frames:
                found = self._rows.unpack_rows(frame_payload(frame))
                check_count(frame, len(found))
                plain += found
            return self._upserts(self._rows.batch(plain).columns, len(plain))
        rows: list[Row] = []
        for frame in frames:
            if frame.head.flags == CHANGE_FLAGS:
                rows += self._unpacked(frame)
                continue
            if frame.head.flags:
                raise newer_flags(frame.head.flags)
            found = self._rows.unpack_rows(frame_payload(frame))
            check_count(frame, len(found))
            rows += [(*row, OP_UPSERT, None) for row in found]
        return self.batch(rows)

    def batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Return rows that end with operation and bitmap as a batch."""
        return self._changes.batch(rows)

    def _unpacked(self, frame: Frame) -> list[Row]:
        rows = self._changes.unpack_rows(frame_payload(frame))
        check_count(frame, len(rows))
        widths = {len(bitmap) for row in rows if isinstance(bitmap := row[-1], bytes)}
        if not {row[-2] for row in rows} <= _OPS or not widths <= self._bitmap_widths:
            raise CorruptionError("operations of changes are damaged", lsn=frame.head.lsn)
        return rows

    def _upserts(self, columns: list[pa.Array], count: int) -> pa.RecordBatch:
        system = (pa.repeat(_upsert(), count), pa.nulls(count, PRESENT_FIELD.type))
        return pa.RecordBatch.from_arrays([*columns, *system], schema=self.schema)

    def _arranged(self, batch: pa.RecordBatch, flags: int) -> pa.RecordBatch:
        """Bring the columns of an Arrow frame into the one form; `_time` is left out."""
        count, columns = batch.num_rows, len(self._written)
        if not flags:
            return self._upserts(batch.columns, count)
        place = columns
        ops, present = pa.repeat(_upsert(), count), pa.nulls(count, PRESENT_FIELD.type)
        if flags & fmt.FLAG_OP:
            ops = batch.column(place)
            place += 1
        if flags & fmt.FLAG_PRESENT:
            present = batch.column(place)
        self._check_system(ops, present)
        arrays = [*batch.columns[:columns], ops, present]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _check_system(self, ops: pa.Array, present: pa.Array) -> None:
        bounds = pc.min_max(ops).as_py()
        fits = not ops.null_count and (not len(ops) or set(bounds.values()) <= _OPS)
        if fits and present.null_count < len(present):
            widths = pc.min_max(pc.binary_length(present)).as_py()
            fits = set(widths.values()) <= self._bitmap_widths
        if not fits:
            raise CorruptionError("operations of changes are damaged", records=len(ops))
