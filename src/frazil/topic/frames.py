"""A topic's records to frame payloads and back: the codecs of messages, rows and Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import PLAIN, Codec, Payload, Untracked
from frazil.log import format as fmt
from frazil.schema import (
    MESSAGE_SCHEMA,
    ArrowInput,
    Message,
    Row,
    RowEncoder,
    column_id,
    join_packed,
    message_batch,
    pack_messages,
    payload_batch,
    plan_read,
    unpack_messages,
)
from frazil.topic.change_batches import BulkColumns, ChangeInput
from frazil.topic.change_frames import ChangeVersion, plan_change_read
from frazil.topic.changes import ChangeCodec
from frazil.topic.payloads import (
    TIME_FIELD,
    arrow_payload,
    check_count,
    frame_payload,
    newer_flags,
    read_ipc,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log import Frame
    from frazil.schema import IngestLimits
    from frazil.topic.change_frames import Reader

__all__ = [
    "ROWS_ARROW_MIN",
    "ArrowCodec",
    "Columns",
    "KeyedColumns",
    "MessageCodec",
    "MessageTopicCodec",
    "RowCodec",
    "TableCodec",
    "arrow_payload",
]

PackedRow = tuple[Row, bytes]
ROWS_ARROW_MIN: Final = 32
"""A group of at least so many rows of a topic becomes an Arrow frame."""


class ArrowCodec(Untracked):
    """Batches that come as Arrow; each is a frame of its own, serialised by its producer."""

    solo = True

    def __init__(self, owner: TableCodec | None, schema: pa.Schema, version: int) -> None:
        self._owner = owner
        self.schema = schema
        self.version = version

    def encode(self, records: Any) -> Payload:
        payload: Payload = records
        return payload

    def upgraded(self, data: Payload, *, many: bool) -> tuple[Codec, Any]:
        """Read an old batch under the current schema and serialise it again."""
        del many
        assert self._owner is not None
        batch = pa.ipc.read_record_batch(data.data, self.schema)
        current = self._owner.arrow
        fresh = plan_read(self.schema, current.schema)(batch)
        return current, arrow_payload(fresh, self._owner.options)


class RowCodec(Untracked):
    """Rows of a table topic: packed while they are few, Arrow when that is cheaper."""

    solo = False

    def __init__(self, owner: TableCodec, schema: pa.Schema, version: int) -> None:
        self._owner = owner
        self.version = version
        self.schema = schema
        self.encoder = RowEncoder(schema, owner.limits)
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
        """Carry values over by column id; a column that is new is null, a dropped one goes."""
        current = self._owner.rows
        places = {column_id(field): index for index, field in enumerate(self.schema)}
        order = [places.get(column_id(field)) for field in current.schema]

        def carry(record: PackedRow) -> PackedRow:
            values = tuple(None if at is None else record[0][at] for at in order)
            return values, current.encoder.pack(values)

        return current, [carry(record) for record in data] if many else carry(data)


class MessageCodec(Untracked):
    """Messages with an envelope; payload-only ones go through the log's own `PLAIN`."""

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
    """What one version of a keyed topic's columns has besides: all that turns changes into it."""

    changes: ChangeCodec
    bulk: BulkColumns
    input: ChangeInput
    schema: pa.Schema
    """The columns of the batches that are read: nullable but for the key, `_op`, `_present`."""


class Columns(NamedTuple):
    """One version of a topic's columns and all that turns records into it; swapped as a whole."""

    version: int
    schema: pa.Schema
    arrow: ArrowCodec
    input: ArrowInput
    keyed: KeyedColumns | None = None


class MessageTopicCodec:
    """Everything that turns a message topic's records into frames and frames into batches."""

    kind = "message"

    def __init__(
        self, *, limits: IngestLimits, rows_arrow_min: int, options: pa.ipc.IpcWriteOptions
    ) -> None:
        self.limits = limits
        self.options = options
        self.schema = MESSAGE_SCHEMA
        self.version = 0
        self.plain = PLAIN
        self.messages = MessageCodec(rows_arrow_min, options)
        self.arrow = ArrowCodec(None, MESSAGE_SCHEMA, 0)
        self.columns = Columns(0, MESSAGE_SCHEMA, self.arrow, ArrowInput(MESSAGE_SCHEMA, limits))

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
        if any(frame.head.kind != fmt.KIND_ROWS for frame in frames):
            return None
        if not any(frame.head.flags & fmt.FLAG_PLAIN for frame in frames):
            return self._decode_packed(frames)
        if not all(f.head.flags & fmt.FLAG_PLAIN and f.head.records == 1 for f in frames):
            return None
        times = [frame.head.time for frame in frames]
        payloads = [f.buffer[f.start + 8 : f.start + f.head.size] for f in frames]
        messages = fmt.plain_payload(payloads)
        ends = 4 * (len(frames) + 1)
        view = memoryview(messages)
        batch = payload_batch(view[:ends], view[ends:], len(frames), times[0])
        stamps = pa.array(times, TIME_FIELD.type)
        place = batch.schema.get_field_index("publish_time")
        return batch.set_column(place, batch.schema.field(place), stamps)

    def _decode_packed(self, frames: list[Frame]) -> pa.RecordBatch | None:
        messages: list[Message] = []
        for frame in frames:
            found = unpack_messages(frame_payload(frame))
            check_count(frame, len(found))
            messages += found
        if any(message.publish_time is None for message in messages):
            return None
        return message_batch(messages, 0)


class TableCodec:
    """Everything that turns a table topic's records into frames and frames into batches.

    It holds the current schema version; old frames are read under it. The engine calls `use` when
    the schema changed, after the change is durable, while other threads publish and read: whoever
    needs more than one thing of the same version takes `columns` once, or one of the codecs, each
    of which carries its own schema and version.

    With a primary key (its column ids), batches end with `_op` and `_present`.
    """

    kind = "table"

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
        self._primary_key = tuple(primary_key)
        self._schemas: dict[int, pa.Schema] = {}
        self._encoders: dict[int, RowEncoder] = {}
        self._change_versions: dict[int, ChangeVersion] = {}
        self._change_reads: dict[tuple[int, int], Reader] = {}
        self.use(schemas)

    def use(self, schemas: dict[int, bytes]) -> None:
        """Take the topic's schemas; the highest version is the current one."""
        for version, data in schemas.items():
            if version not in self._schemas:
                self._schemas[version] = pa.ipc.read_schema(pa.py_buffer(data))
        version = max(self._schemas)
        schema = self._schemas[version]
        rows = RowCodec(self, schema, version)
        arrow = ArrowCodec(self, schema, version)
        keyed = self._keyed_columns(schema, version, rows.encoder) if self.keyed else None
        self.columns = Columns(version, schema, arrow, ArrowInput(schema, self.limits), keyed)
        self.rows = rows

    def _keyed_columns(self, schema: pa.Schema, version: int, encoder: RowEncoder) -> KeyedColumns:
        frames = self._change_version(version, schema)
        changes = ChangeCodec(
            schema,
            version,
            self._primary_key,
            encoder=encoder,
            frames=frames,
            limits=self.limits,
            rows_arrow_min=self.rows_arrow_min,
            options=self.options,
            current=lambda: self._current_keyed().changes,
        )
        bulk = BulkColumns(
            schema,
            version,
            self._primary_key,
            options=self.options,
            current=lambda: self._current_keyed().bulk,
        )
        changes_input = ChangeInput(schema, self._primary_key, self.limits)
        return KeyedColumns(changes, bulk, changes_input, frames.schema)

    def _current_keyed(self) -> KeyedColumns:
        keyed = self.columns.keyed
        assert keyed is not None
        return keyed

    @property
    def batch_schema(self) -> pa.Schema:
        """Return the columns of the batches that are read now."""
        columns = self.columns
        return columns.schema if columns.keyed is None else columns.keyed.schema

    @property
    def version(self) -> int:
        """Return the current schema version."""
        return self.columns.version

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self.columns.schema

    @property
    def arrow(self) -> ArrowCodec:
        """Return the codec of Arrow batches under the current columns."""
        return self.columns.arrow

    def decode(self, frame: Frame) -> pa.RecordBatch:
        """Decode one frame under the current schema."""
        current = self.columns
        written = self._written(frame)
        if current.keyed is not None:
            version = self._change_version(frame.head.schema, written)
            return self._changes_as(current, frame.head.schema, written, version.decode(frame))
        if frame.head.kind == fmt.KIND_ARROW:
            batch = read_ipc(frame, written)
        elif frame.head.flags:
            raise newer_flags(frame.head.flags)
        else:
            encoder = self._encoder(frame.head.schema, written)
            rows = encoder.unpack_rows(frame_payload(frame))
            check_count(frame, len(rows))
            batch = encoder.batch(rows)
        if frame.head.schema == current.version:
            return batch
        return plan_read(written, current.schema)(batch)

    def decode_small(self, frames: list[Frame]) -> pa.RecordBatch | None:
        """Join packed rows of one schema version into one batch."""
        current = self.columns
        head = frames[0].head
        same = all(f.head.kind == fmt.KIND_ROWS and f.head.schema == head.schema for f in frames)
        if not same:
            return None
        written = self._written(frames[0])
        if current.keyed is not None:
            version = self._change_version(head.schema, written)
            return self._changes_as(current, head.schema, written, version.decode_small(frames))
        encoder = self._encoder(head.schema, written)
        rows: list[Row] = []
        for frame in frames:
            if frame.head.flags:
                raise newer_flags(frame.head.flags)
            found = encoder.unpack_rows(frame_payload(frame))
            check_count(frame, len(found))
            rows += found
        batch = encoder.batch(rows)
        if head.schema == current.version:
            return batch
        return plan_read(written, current.schema)(batch)

    def _written(self, frame: Frame) -> pa.Schema:
        schema = self._schemas.get(frame.head.schema)
        if schema is None:
            raise CorruptionError(
                "the schema of stored records is lost", schema=frame.head.schema, lsn=frame.head.lsn
            )
        return schema

    def _encoder(self, version: int, schema: pa.Schema) -> RowEncoder:
        encoder = self._encoders.get(version)
        if encoder is None:
            encoder = self._encoders[version] = RowEncoder(schema, self.limits)
        return encoder

    def _change_version(self, number: int, schema: pa.Schema) -> ChangeVersion:
        version = self._change_versions.get(number)
        if version is None:
            version = ChangeVersion(schema, self._primary_key, self.limits)
            self._change_versions[number] = version
        return version

    def _changes_as(
        self, current: Columns, number: int, written: pa.Schema, batch: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Read a batch of changes under the current schema."""
        if number == current.version:
            return batch
        read = self._change_reads.get((number, current.version))
        if read is None:
            read = plan_change_read(written, current.schema, self._primary_key)
            self._change_reads[number, current.version] = read
        return read(batch)
