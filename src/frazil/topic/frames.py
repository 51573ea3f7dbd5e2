"""The codecs of messages, rows and Arrow batches: a topic's records to frame payloads and back."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import PLAIN, TIME_FIELD, Codec, Payload, Untracked
from frazil.log import format as fmt
from frazil.model import OP_NAMES, OP_UPSERT
from frazil.schema import (
    MESSAGE_SCHEMA,
    ArrowInput,
    Message,
    Row,
    RowEncoder,
    bitmap_bytes,
    column_id,
    join_packed,
    message_batch,
    pack_messages,
    payload_batch,
    plan_read,
    unpack_messages,
)
from frazil.topic.changes import ChangeCodec, ChangeInput
from frazil.topic.payloads import (
    CHANGE_FLAGS,
    OP_FIELD,
    PRESENT_FIELD,
    Reader,
    arrow_payload,
    change_schema,
    check_count,
    frame_payload,
    newer_flags,
    plan_change_read,
    read_ipc,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log import Frame
    from frazil.schema import IngestLimits

PackedRow = tuple[Row, bytes]
ROWS_ARROW_MIN: Final = 32
"""A group of at least this many rows of a topic becomes an Arrow frame."""
_OPS: Final = frozenset(OP_NAMES)


@cache
def _upsert() -> pa.Scalar:
    """Return the operation of plain rows; not at import, because Arrow would import pandas."""
    return pa.scalar(OP_UPSERT, OP_FIELD.type)


class ArrowCodec:
    """The codec of batches in Arrow form; each batch is one frame, serialised by its producer.

    Each batch of a keyed topic has a separate codec (`fresh`). The journal's thread sets its `done`
    or `failed`, so that changes of its keys can wait for it.
    """

    solo = True
    readable = False

    def __init__(
        self,
        schema: pa.Schema,
        version: int,
        options: pa.ipc.IpcWriteOptions,
        owner: TableCodec | None = None,
        origin: ArrowCodec | None = None,
    ) -> None:
        self.schema = schema
        self.version = version
        self.tracked = owner is not None and owner.keyed
        self.done = False
        self.failed = False
        self._options = options
        self._owner = owner
        self.origin = origin

    def fresh(self, origin: ArrowCodec | None = None) -> ArrowCodec:
        """Return a codec for one batch; `origin` is settled with it."""
        return ArrowCodec(self.schema, self.version, self._options, self._owner, origin)

    def payload(self, batch: pa.RecordBatch) -> Payload:
        """Return a batch of changes, or of the topic's columns alone, as one frame's payload."""
        flags = CHANGE_FLAGS if len(batch.schema) > len(self.schema) else 0
        return arrow_payload(batch, self._options, flags)

    def encode(self, records: Any) -> Payload:
        payload: Payload = records
        return payload

    def upgraded(self, data: Payload, *, many: bool) -> tuple[Codec, Any]:
        """Read an old batch with the current schema and serialise it again."""
        del many
        assert self._owner is not None
        current = self._owner.columns.arrow
        stored = self._owner.stored_schema(self.schema) if data.flags else self.schema
        batch = pa.ipc.read_record_batch(data.data, stored)
        read = self._owner.plan(self.schema, current.schema, changes=bool(data.flags))
        return current.fresh(self), current.payload(read(batch))

    def settled(self, data: Any, *, many: bool, written: bool) -> None:
        """Record whether the batch was written or failed."""
        del data, many
        codec: ArrowCodec | None = self
        while codec is not None:
            codec.done = written
            codec.failed = not written
            codec = codec.origin


class RowCodec(Untracked):
    """The codec of a table topic's rows: few rows are packed, many are an Arrow batch."""

    solo = False

    def __init__(self, owner: TableCodec, version: int, encoder: RowEncoder) -> None:
        self._owner = owner
        self.version = version
        self.schema = encoder.schema
        self.encoder = encoder
        self.readable = self.encoder.packable

    def encode(self, records: Sequence[PackedRow]) -> Payload:
        encoder = self.encoder
        if encoder.packable and len(records) < self._owner.rows_arrow_min:
            data = join_packed([record[1] for record in records])
            return Payload(fmt.KIND_ROWS, 0, data, len(data))
        try:
            batch = encoder.batch([record[0] for record in records])
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
            raise InvalidRequest("row does not fit the topic's columns", error=error) from error
        return arrow_payload(batch, self._owner.options)

    def upgraded(self, data: Any, *, many: bool) -> tuple[Codec, Any]:
        """Map values by column id; a new column is null, a dropped column is left out."""
        current = self._owner.rows
        positions = {column_id(field): index for index, field in enumerate(self.schema)}
        order = [positions.get(column_id(field)) for field in current.schema]

        def carry(record: PackedRow) -> PackedRow:
            values = tuple(None if at is None else record[0][at] for at in order)
            return values, current.encoder.pack(values)

        return current, [carry(record) for record in data] if many else carry(data)


class MessageCodec(Untracked):
    """The codec of messages with an envelope; payload-only messages use the log's `PLAIN`."""

    solo = False
    version = 0

    def __init__(self, rows_arrow_min: int, options: pa.ipc.IpcWriteOptions) -> None:
        self._rows_arrow_min = rows_arrow_min
        self._options = options

    def encode(self, records: Sequence[Message]) -> Payload:
        if len(records) < self._rows_arrow_min:
            data = pack_messages(records)
            return Payload(fmt.KIND_ROWS, 0, data, len(data))
        return arrow_payload(message_batch(records, 0), self._options)

    def upgraded(self, data: Any, *, many: bool) -> tuple[Codec, Any]:
        del many
        return self, data


class KeyedColumns(NamedTuple):
    """The codecs that turn changes into frames, for one version of a keyed topic's columns."""

    changes: ChangeCodec
    arrow: ArrowCodec
    input: ChangeInput
    schema: pa.Schema
    """The columns of decoded batches: nullable except for the key, `_op` and `_present`."""


class Columns(NamedTuple):
    """One version of a topic's columns and its codecs; replaced as a whole."""

    version: int
    schema: pa.Schema
    arrow: ArrowCodec
    input: ArrowInput
    keyed: KeyedColumns | None = None


class MessageTopicCodec:
    """The codecs of a message topic: records to frames, and frames to batches."""

    def __init__(
        self, *, limits: IngestLimits, rows_arrow_min: int, options: pa.ipc.IpcWriteOptions
    ) -> None:
        self.options = options
        self.schema = MESSAGE_SCHEMA
        self.version = 0
        self.plain = PLAIN
        self.messages = MessageCodec(rows_arrow_min, options)
        arrow = ArrowCodec(MESSAGE_SCHEMA, 0, options)
        self.columns = Columns(0, MESSAGE_SCHEMA, arrow, ArrowInput(MESSAGE_SCHEMA, limits))

    def decode(self, frame: Frame) -> pa.RecordBatch:
        """Decode one frame; payload-only and Arrow frames are not copied."""
        head = frame.head
        if head.kind == fmt.KIND_ARROW:
            return read_ipc(frame, MESSAGE_SCHEMA)
        buffer = pa.py_buffer(frame.buffer)
        if head.flags & fmt.FLAG_PLAIN:
            ends = 4 * (head.records + 1)
            if ends > head.size:
                raise CorruptionError("payload frame is too short", lsn=head.lsn)
            offsets = buffer.slice(frame.start, ends)
            data = buffer.slice(frame.start + ends, head.size - ends)
            return payload_batch(offsets, data, head.records, head.time)
        messages = unpack_messages(frame_payload(frame))
        check_count(frame, len(messages))
        return message_batch(messages, head.time)

    def decode_small(self, frames: list[Frame]) -> pa.RecordBatch | None:
        """Join payload-only frames of single records into one batch."""
        kinds = {(frame.head.kind, frame.head.flags & fmt.FLAG_PLAIN) for frame in frames}
        if kinds == {(fmt.KIND_ROWS, 0)}:
            return self._decode_packed(frames)
        is_plain = kinds == {(fmt.KIND_ROWS, fmt.FLAG_PLAIN)}
        if not is_plain or any(frame.head.records != 1 for frame in frames):
            return None
        times = [frame.head.time for frame in frames]
        payloads = [f.buffer[f.start + 8 : f.start + f.head.size] for f in frames]
        messages = fmt.plain_payload(payloads)
        ends = 4 * (len(frames) + 1)
        view = memoryview(messages)
        batch = payload_batch(view[:ends], view[ends:], len(frames), times[0])
        stamps = pa.array(times, TIME_FIELD.type)
        index = batch.schema.get_field_index("publish_time")
        return batch.set_column(index, batch.schema.field(index), stamps)

    def _decode_packed(self, frames: list[Frame]) -> pa.RecordBatch | None:
        messages: list[Message] = []
        for frame in frames:
            found = unpack_messages(frame_payload(frame))
            check_count(frame, len(found))
            messages += found
        if any(message.publish_time is None for message in messages):
            return None
        return message_batch(messages, 0)


class TableVersion:
    """Decodes the frames of one schema version of a table topic to batches. Thread-safe."""

    def __init__(
        self, written: pa.Schema, primary_key: Sequence[int], limits: IngestLimits
    ) -> None:
        self.written = written
        self.rows = RowEncoder(written, limits)
        self.changes: RowEncoder | None = None
        """The encoder of a keyed topic's rows with `_op` and `_present`."""
        self._encoders = {0: self.rows}
        """The encoders of packed frames by their flags."""
        if primary_key:
            self.changes = RowEncoder(change_schema(written, primary_key), limits)
            self._encoders[CHANGE_FLAGS] = self.changes
        self._bitmap_widths = {bitmap_bytes(len(written))}

    def decode(self, frames: Sequence[Frame]) -> pa.RecordBatch:
        """Decode frames of packed rows, or one Arrow frame.

        Raises:
            CorruptionError: if a payload does not fit this version.
        """
        head = frames[0].head
        if head.kind == fmt.KIND_ARROW:
            batch = read_ipc(frames[0], self.written)
            return batch if self.changes is None else self._arranged(batch, head.flags)
        changed = any(frame.head.flags for frame in frames)
        rows: list[Row] = []
        for frame in frames:
            rows += self._unpacked(frame, changed=changed)
        if changed:
            return self._encoders[CHANGE_FLAGS].batch(rows)
        batch = self.rows.batch(rows)
        return batch if self.changes is None else self._arranged(batch, 0)

    def _unpacked(self, frame: Frame, *, changed: bool) -> list[Row]:
        """Return a frame's packed rows; `changed` rows end with operation and bitmap."""
        flags = frame.head.flags
        encoder = self._encoders.get(flags)
        if encoder is None:
            raise newer_flags(flags)
        rows = encoder.unpack_rows(frame_payload(frame))
        check_count(frame, len(rows))
        if not flags:
            return [(*row, OP_UPSERT, None) for row in rows] if changed else rows
        self._check_changes(rows, frame)
        return rows

    def _check_changes(self, rows: Sequence[Row], frame: Frame) -> None:
        widths = {len(bitmap) for row in rows if isinstance(bitmap := row[-1], bytes)}
        if not {row[-2] for row in rows} <= _OPS or not widths <= self._bitmap_widths:
            raise CorruptionError("operations of changes are damaged", lsn=frame.head.lsn)

    def _arranged(self, batch: pa.RecordBatch, flags: int) -> pa.RecordBatch:
        """Add the operations and bitmaps that an Arrow frame lacks; `_time` is left out."""
        count, columns = batch.num_rows, len(self.written)
        ops, present = pa.repeat(_upsert(), count), pa.nulls(count, PRESENT_FIELD.type)
        if flags & fmt.FLAG_OP:
            ops = batch.column(columns)
        if flags & fmt.FLAG_PRESENT:
            present = batch.column(columns + bool(flags & fmt.FLAG_OP))
        if flags:
            self._check_system(ops, present)
        arrays = [*batch.columns[:columns], ops, present]
        return pa.RecordBatch.from_arrays(arrays, schema=self._encoders[CHANGE_FLAGS].schema)

    def _check_system(self, ops: pa.Array, present: pa.Array) -> None:
        bounds = pc.min_max(ops).as_py()
        fits = not ops.null_count and (not len(ops) or set(bounds.values()) <= _OPS)
        if fits and present.null_count < len(present):
            widths = pc.min_max(pc.binary_length(present)).as_py()
            fits = set(widths.values()) <= self._bitmap_widths
        if not fits:
            raise CorruptionError("operations of changes are damaged", records=len(ops))


class TableCodec:
    """The codecs of a table topic: records to frames, and frames to batches.

    Old frames are read with the current schema version. The engine calls `use` after a change of
    the schema is durable, while other threads publish and read. A caller that needs several
    attributes of the same version reads `columns` once, or uses one codec: each codec has its
    schema and version.

    With a primary key (its column ids), batches end with `_op` and `_present`.
    """

    def __init__(
        self,
        schemas: dict[int, bytes],
        *,
        limits: IngestLimits,
        rows_arrow_min: int = ROWS_ARROW_MIN,
        options: pa.ipc.IpcWriteOptions,
        primary_key: Sequence[int] = (),
    ) -> None:
        self.limits = limits
        self.rows_arrow_min = rows_arrow_min
        self.options = options
        self.keyed = bool(primary_key)
        self.primary_key = tuple(primary_key)
        self._schemas: dict[int, pa.Schema] = {}
        self._versions: dict[int, TableVersion] = {}
        self._reads: dict[tuple[int, int], Reader] = {}
        self.use(schemas)

    def use(self, schemas: dict[int, bytes]) -> None:
        """Set the topic's schemas; the highest version is the current one."""
        for version, data in schemas.items():
            if version not in self._schemas:
                self._schemas[version] = pa.ipc.read_schema(pa.py_buffer(data))
        version = max(self._schemas)
        schema = self._schemas[version]
        rows = RowCodec(self, version, self._version(version).rows)
        arrow = ArrowCodec(schema, version, self.options, self)
        keyed = self._keyed_columns(arrow) if self.keyed else None
        self.columns = Columns(version, schema, arrow, ArrowInput(schema, self.limits), keyed)
        self.rows = rows

    def _keyed_columns(self, arrow: ArrowCodec) -> KeyedColumns:
        encoders = self._version(arrow.version)
        assert encoders.changes is not None
        changes = ChangeCodec(self, arrow.version, rows=encoders.rows, changes=encoders.changes)
        changes_input = ChangeInput(arrow.schema, self.primary_key, self.limits)
        return KeyedColumns(changes, arrow, changes_input, encoders.changes.schema)

    @property
    def version(self) -> int:
        """Return the current schema version."""
        return self.columns.version

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self.columns.schema

    def stored_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of a batch of changes of one schema version."""
        return change_schema(schema, self.primary_key)

    def plan(self, written: pa.Schema, wanted: pa.Schema, *, changes: bool) -> Reader:
        """Return a function that converts a batch of one schema version to another."""
        if changes:
            return plan_change_read(written, wanted, self.primary_key)
        return plan_read(written, wanted)

    def decode(self, frame: Frame) -> pa.RecordBatch:
        """Decode one frame with the current schema."""
        return self._decoded([frame])

    def decode_small(self, frames: list[Frame]) -> pa.RecordBatch | None:
        """Join packed rows of one schema version into one batch."""
        number = frames[0].head.schema
        same = all(f.head.kind == fmt.KIND_ROWS and f.head.schema == number for f in frames)
        return self._decoded(frames) if same else None

    def _decoded(self, frames: list[Frame]) -> pa.RecordBatch:
        current, head = self.columns, frames[0].head
        if head.schema not in self._schemas:
            raise CorruptionError(
                "the schema of stored records is lost", schema=head.schema, lsn=head.lsn
            )
        version = self._version(head.schema)
        batch = version.decode(frames)
        if head.schema == current.version:
            return batch
        read = self._reads.get((head.schema, current.version))
        if read is None:
            read = self.plan(version.written, current.schema, changes=self.keyed)
            self._reads[head.schema, current.version] = read
        return read(batch)

    def _version(self, number: int) -> TableVersion:
        version = self._versions.get(number)
        if version is None:
            version = TableVersion(self._schemas[number], self.primary_key, self.limits)
            self._versions[number] = version
        return version
