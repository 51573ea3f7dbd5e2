"""A topic's records to frame payloads and back: the codecs of messages, rows and Arrow batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from frazil.errors import CorruptionError, InvalidRequest
from frazil.ingest.arrow_input import ArrowInput
from frazil.ingest.columns import column_id
from frazil.ingest.evolution import plan_read
from frazil.ingest.messages import (
    MESSAGE_SCHEMA,
    Message,
    message_batch,
    pack_messages,
    payload_batch,
    unpack_messages,
)
from frazil.ingest.rows import Row, RowEncoder, join_packed
from frazil.log import format as fmt
from frazil.log.codec import PLAIN, Codec, Payload, Untracked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.ingest.columns import IngestLimits
    from frazil.log.reader import Frame

OP_FIELD: Final = pa.field("_op", pa.int8(), nullable=False)
PRESENT_FIELD: Final = pa.field("_present", pa.binary())
TIME_FIELD: Final = pa.field("_time", pa.timestamp("us", tz="UTC"), nullable=False)
_SYSTEM_FIELDS: Final = (
    (fmt.FLAG_OP, OP_FIELD),
    (fmt.FLAG_PRESENT, PRESENT_FIELD),
    (fmt.FLAG_TIME, TIME_FIELD),
)
_KNOWN_FLAGS: Final = fmt.FLAG_OP | fmt.FLAG_PRESENT | fmt.FLAG_TIME | fmt.FLAG_PLAIN

PackedRow = tuple[Row, bytes]


def arrow_payload(
    batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions, flags: int = 0
) -> Payload:
    """Return an Arrow batch as a frame's payload."""
    sink = batch.serialize() if options.compression is None else _compressed(batch, options)
    return Payload(fmt.KIND_ARROW, flags, sink, sink.size)


def _compressed(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> pa.Buffer:
    """Return the encapsulated message alone of a compressed batch: a stream less its schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
        end = sink.tell()
    stream = sink.getvalue()
    reader = pa.BufferReader(stream)
    pa.ipc.read_message(reader)
    start = reader.tell()
    return stream.slice(start, end - start)


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


class Columns(NamedTuple):
    """One version of a topic's columns and all that turns records into it; swapped as a whole."""

    version: int
    schema: pa.Schema
    arrow: ArrowCodec
    input: ArrowInput


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
            return _read_ipc(frame, MESSAGE_SCHEMA)
        buffer = pa.py_buffer(frame.buffer)
        if head.flags & fmt.FLAG_PLAIN:
            ends = 4 * (head.records + 1)
            if ends > head.size:
                raise CorruptionError("payload frame is too short", lsn=head.lsn)
            offsets = buffer.slice(frame.start, ends)
            data = buffer.slice(frame.start + ends, head.size - ends)
            return payload_batch(offsets, data, head.records, head.time)
        messages = unpack_messages(_payload(frame))
        _check_count(frame, len(messages))
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
            found = unpack_messages(_payload(frame))
            _check_count(frame, len(found))
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
    """

    kind = "table"

    def __init__(
        self,
        schemas: dict[int, bytes],
        *,
        limits: IngestLimits,
        rows_arrow_min: int,
        options: pa.ipc.IpcWriteOptions,
    ) -> None:
        self.limits = limits
        self.rows_arrow_min = rows_arrow_min
        self.options = options
        self._schemas: dict[int, pa.Schema] = {}
        self._encoders: dict[int, RowEncoder] = {}
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
        self.columns = Columns(version, schema, arrow, ArrowInput(schema, self.limits))
        self.rows = rows

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
        if frame.head.kind == fmt.KIND_ARROW:
            batch = _read_ipc(frame, written)
        else:
            encoder = self._encoder(frame.head.schema, written)
            rows = encoder.unpack_rows(_payload(frame))
            _check_count(frame, len(rows))
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
        encoder = self._encoder(head.schema, written)
        rows: list[Row] = []
        for frame in frames:
            found = encoder.unpack_rows(_payload(frame))
            _check_count(frame, len(found))
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


def _payload(frame: Frame) -> memoryview:
    return memoryview(frame.buffer)[frame.start : frame.start + frame.head.size]


def _check_count(frame: Frame, count: int) -> None:
    if count != frame.head.records:
        raise CorruptionError(
            "frame holds another number of records than it says",
            lsn=frame.head.lsn,
            records=count,
            records_said=frame.head.records,
        )


def _read_ipc(frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Read an Arrow payload; the system columns that its flags name follow the topic's."""
    head = frame.head
    if head.flags & ~_KNOWN_FLAGS:
        raise InvalidRequest("records were written by a newer Frazil, upgrade", flags=head.flags)
    if head.flags:
        fields = [field for flag, field in _SYSTEM_FIELDS if head.flags & flag]
        schema = pa.schema([*schema, *fields], metadata=schema.metadata)
    data = pa.py_buffer(frame.buffer).slice(frame.start, head.size)
    try:
        batch = pa.ipc.read_record_batch(data, schema)
    except (pa.ArrowException, OSError, EOFError) as error:
        raise CorruptionError("Arrow payload cannot be read", lsn=head.lsn, error=error) from error
    _check_count(frame, batch.num_rows)
    return batch
