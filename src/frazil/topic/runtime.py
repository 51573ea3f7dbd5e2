"""The runtime of one topic: its state in a journal, its codecs, and the check of its records."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import threading
import zlib
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import FrazilError, InvalidRequest
from frazil.log import (
    FRAME_RECORDS_MAX,
    PRODUCER_WINDOW_DEFAULT,
    ChainedHistory,
    Sender,
)
from frazil.model import OP_UPSERT, WHOLE
from frazil.schema import (
    MESSAGE_SCHEMA,
    Message,
    check_attributes,
    check_message,
    key_names,
    part_of_row,
    parts_of_batch,
)
from frazil.topic.acks import check_level
from frazil.topic.changing import TopicChanges
from frazil.topic.frames import ROWS_ARROW_MIN, MessageTopicCodec, TableCodec
from frazil.topic.payloads import is_arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.log import Codec, Log, TopicState
    from frazil.log.codec import Entry
    from frazil.schema import IngestLimits
    from frazil.topic.acks import TierWaits
    from frazil.topic.frames import ArrowCodec, Columns

_TIME_TYPE = MESSAGE_SCHEMA.field("publish_time").type


def with_publish_time(data: object, now_us: int) -> object:
    """Return Arrow data of messages with a publish time; a missing one is `now_us`."""
    if not is_arrow(data):
        return data
    table: Any = data if isinstance(data, (pa.RecordBatch, pa.Table)) else pa.table(data)
    if "publish_time" in table.schema.names:
        return table
    times = pa.repeat(pa.scalar(now_us, _TIME_TYPE), table.num_rows)
    return table.append_column(MESSAGE_SCHEMA.field("publish_time"), times)


def check_message_batch(batch: pa.RecordBatch, limits: IngestLimits, now_us: int) -> None:
    """Check the envelope of a batch of messages against the limits.

    Raises:
        InvalidRequest: with the number of the first row that is too large or too far in the future.
    """
    times = batch.column("publish_time")
    latest = pa.scalar(now_us + limits.future_time_max_us, _TIME_TYPE)
    _refuse(pc.greater(times, latest), "publish time is too far in the future")
    _refuse(pc.less(times, pa.scalar(0, _TIME_TYPE)), "publish time is below zero")
    keys = pc.fill_null(pc.binary_length(batch.column("key")), 0)
    _refuse(pc.greater(keys, limits.key_bytes_max), "key is too large")
    names = pc.fill_null(pc.binary_length(batch.column("producer_name")), 0)
    _refuse(pc.greater(names, limits.key_bytes_max), "producer_name is too large")
    sizes = pc.add(pc.binary_length(batch.column("payload")).cast(pa.int64()), pc.add(keys, names))
    attributes = batch.column("attributes")
    if attributes.null_count < len(attributes):
        found = [_attribute_bytes(each, row, limits) for row, each in enumerate(attributes)]
        sizes = pc.add(sizes, pa.array(found, pa.int64()))
    _refuse(pc.greater(sizes, limits.message_bytes_max), "message is too large")


def _attribute_bytes(attributes: pa.MapScalar, row: int, limits: IngestLimits) -> int:
    pairs = attributes.as_py()
    try:
        return 0 if pairs is None else check_attributes(dict(pairs), limits)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, row=row, **error.details) from error


def _refuse(mask: pa.Array, what: str) -> None:
    row = pc.index(mask, value=True).as_py()
    if row >= 0:
        raise InvalidRequest(what, row=row)


ROW_OVERHEAD_BYTES: Final = 8
MESSAGE_OVERHEAD_BYTES: Final = 2 * ROW_OVERHEAD_BYTES
PRODUCER_CHARACTERS_MAX: Final = 200
SEQUENCE_MAX: Final = 2**63 - 1

Prepared = tuple["Codec", Any, int, int]
"""codec, data, count (0 for one record), bytes"""


class TopicRuntime:
    """The state for publishing to and reading from one topic, shared by all of its handles."""

    def __init__(
        self,
        state: TopicState,
        log: Log,
        *,
        settings: Settings,
        limits: IngestLimits,
        clock: Clock,
        options: pa.ipc.IpcWriteOptions,
    ) -> None:
        self.state = state
        self.log = log
        self.queue: Any = log.queue
        self.clock = clock
        self.settings = settings
        self.limits = limits
        self.history = ChainedHistory([log.source])
        self.refusal: Callable[[], FrazilError] | None = None
        """The refusal of publishes while publishing to this topic is stopped."""
        self.tiers: Any = None
        """The topic's memory and disk tiers, a `TopicTiers` of a layer above, or None."""
        self.pressure: Any = SimpleNamespace(level=0)
        """The admission of publishes: immediate while `level` is 0, else through `admit`."""
        self.lake: TierWaits | None = None
        """The calls that wait for the topic's table, and its ends; None without a lake."""
        self.objects: TierWaits | None = None
        """The calls that wait for uploads of the topic, and its ends; None without objects."""
        self.part = state.spec.part_index if state.spec.part_of else WHOLE
        """The topic's number in its table."""
        self.changes = TopicChanges(self)
        self.turns = itertools.count()
        """The next part of round robin; only the first part's counter is used."""
        self.routing: tuple[int, int] | None = None
        """For a part of a keyed topic: its number and the number of parts."""
        self.codec: Any
        if state.spec.kind == "message":
            self.codec = MessageTopicCodec(
                limits=limits, rows_arrow_min=ROWS_ARROW_MIN, options=options
            )
        else:
            self.codec = TableCodec(
                state.schemas,
                limits=limits,
                rows_arrow_min=ROWS_ARROW_MIN,
                options=options,
                primary_key=state.spec.primary_key,
            )
        self.is_message = state.spec.kind == "message"
        self.payload_bytes_max = limits.message_bytes_max
        state.codec = self.codec

    @property
    def name(self) -> str:
        """Return the full name."""
        return self.state.spec.name

    def wait_visible(self, offset: int, *, timeout_s: float) -> bool:
        """Wait until readers may see an offset; return False on timeout."""
        woken = threading.Event()
        deadline = self.clock.monotonic() + timeout_s
        while self.state.durable <= offset:
            woken.clear()
            self.state.waiters.append(woken.set)
            left = deadline - self.clock.monotonic()
            if self.state.durable <= offset and (left <= 0 or not woken.wait(left)):
                # Only a new record removes waiters from the list: a quiet topic would keep this one
                # for ever.
                with contextlib.suppress(ValueError):
                    self.state.waiters.remove(woken.set)
                return False
        return True

    # -- one record ------------------------------------------------------------------------------

    def prepare(self, record: object, fields: Mapping[str, Any]) -> Prepared:
        """Check one record and return the parts of its entry.

        Raises:
            InvalidRequest: if the record does not fit the topic.
        """
        if self.is_message:
            return self._prepare_message(record, fields)
        row = self.row(record, fields)
        keyed = self.codec.columns.keyed
        if keyed is not None:
            change = keyed.changes.prepare_row(row, OP_UPSERT, plain=True)
            if self.routing is not None:
                self.check_part(part_of_row(row, *self._route(change.codec.schema)))
            return change.codec, change, 0, len(change.packed) + ROW_OVERHEAD_BYTES
        codec = self.codec.rows
        packed = codec.encoder.encode(row)
        return codec, packed, 0, len(packed[1]) + ROW_OVERHEAD_BYTES

    def _route(self, schema: pa.Schema) -> tuple[list[str], int]:
        assert self.routing is not None
        return key_names(schema, self.state.spec.primary_key), self.routing[1]

    def check_part(self, part: int) -> None:
        """Refuse a record of another part: all changes of a key must be in one part, in order."""
        if self.routing is not None and part != self.routing[0]:
            raise InvalidRequest(
                "the record's key belongs to another part, publish to the partitioned topic",
                part=part,
                part_here=self.routing[0],
            )

    def row(self, record: object, fields: Mapping[str, Any]) -> Any:
        """Return the row of a call's arguments: a dict, or keywords."""
        if record is None:
            return fields
        if fields:
            raise InvalidRequest(
                "give a row either as a dict or as keywords, not both", topic=self.name
            )
        if isinstance(record, (bytes, bytearray, memoryview, str)):
            raise InvalidRequest(
                "a table topic takes rows (dict, keywords or Arrow), not bytes", topic=self.name
            )
        return record

    def _prepare_message(self, record: object, fields: Mapping[str, Any]) -> Prepared:
        if isinstance(record, (bytes, bytearray, memoryview)):
            payload = record if type(record) is bytes else bytes(record)
            if not fields:
                size = len(payload)
                if size > self.payload_bytes_max:
                    raise InvalidRequest(
                        "message is too large", bytes=size, bytes_max=self.payload_bytes_max
                    )
                return self.codec.plain, payload, 0, size + ROW_OVERHEAD_BYTES
            message = self._message({"payload": payload, **fields})
        elif isinstance(record, Message):
            message = self._message(msgspec.structs.asdict(record), time_now=False)
        elif record is None or (isinstance(record, dict) and not fields):
            message = self._message(record or fields)
        else:
            raise InvalidRequest(
                "a message topic takes a payload of bytes, and the envelope as keywords",
                topic=self.name,
                got=type(record).__name__,
            )
        size = check_message(message, self.limits, self.clock.now_us())
        return self.codec.messages, message, 0, size + MESSAGE_OVERHEAD_BYTES

    def prepare_own(self, message: Message, limits: IngestLimits | None = None) -> Prepared:
        """Check a message that the caller gives up, so that it need not be copied.

        `limits` replace the topic's limits.

        Raises:
            InvalidRequest: if it does not fit the topic.
        """
        if not self.is_message:
            raise InvalidRequest("a table topic takes rows, not messages", topic=self.name)
        size = check_message(message, limits or self.limits, self.clock.now_us())
        return self.codec.messages, message, 0, size + MESSAGE_OVERHEAD_BYTES

    def _message(self, fields: Mapping[str, Any], *, time_now: bool = True) -> Message:
        given = dict(fields)
        if isinstance(given.get("attributes"), dict):
            # The caller may change its dict while the message waits to be written.
            given["attributes"] = dict(given["attributes"])
        time = given.get("publish_time")
        if time is None:
            given["publish_time"] = self.clock.now_us() if time_now else None
        elif isinstance(time, dt.datetime):
            given["publish_time"] = microseconds(time)
        try:
            return Message(**given)
        except TypeError as error:
            raise InvalidRequest(
                "message has an unknown field or no payload",
                topic=self.name,
                fields=", ".join(map(str, given)),
                allowed=", ".join(Message.__struct_fields__),
            ) from error

    # -- many records ----------------------------------------------------------------------------

    def prepare_many(self, records: Iterable[object]) -> list[Prepared]:
        """Check all records, then return them in as few entries as the limits allow.

        Raises:
            InvalidRequest: with the number of the first bad record; nothing is published then.
        """
        self.check_records(records)
        result: list[Prepared] = []
        batch: list[Any] = []
        codec: Any = None
        size = 0
        size_max = self.settings.log.write_bytes_max
        for number, record in enumerate(records):
            try:
                own, data, _count, own_size = self.prepare(record, {})
            except InvalidRequest as error:
                raise InvalidRequest(
                    error.message, **{"record": number, **error.details}
                ) from error
            full = size + own_size > size_max or len(batch) >= FRAME_RECORDS_MAX
            if batch and (full or own is not codec):
                result.append((codec, batch, len(batch), size))
                batch, size = [], 0
            codec = own
            batch.append(data)
            size += own_size
        if not batch:
            raise InvalidRequest("there are no records to publish", topic=self.name)
        result.append((codec, batch, len(batch), size))
        return result

    def check_records(self, records: object) -> None:
        """Refuse an argument that is not an iterable of records."""
        one = isinstance(records, (str, bytes, bytearray, memoryview, Mapping))
        if one or not isinstance(records, Iterable):
            raise InvalidRequest(
                "records must be a list or another iterable of records; use append for one record",
                topic=self.name,
                got=type(records).__name__,
            )

    def prepare_arrow(self, data: object) -> list[Prepared]:
        """Convert Arrow data to the topic's schema and return a frame for each batch."""
        # Read once, so that all batches of the call are converted to the same columns.
        columns = self.codec.columns
        prepared: list[Prepared] = []
        for batch in self.arrow_batches(data, columns):
            self.check_parts(batch, columns.schema)
            prepared.append(self.bulk(columns.arrow, batch))
        if not prepared:
            raise InvalidRequest("there are no records to publish", topic=self.name)
        return prepared

    def check_parts(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        """Refuse a batch with a row that belongs to another part."""
        if self.routing is not None:
            for part in parts_of_batch(batch, *self._route(schema)):
                self.check_part(part)

    def bulk(self, arrow: ArrowCodec, batch: pa.RecordBatch) -> Prepared:
        """Return a batch of records or changes as one frame."""
        payload = arrow.payload(batch)
        # The checksum is computed in the producer's thread instead of the journal's.
        payload = payload._replace(crc=zlib.crc32(payload.data))
        return arrow.fresh() if arrow.tracked else arrow, payload, batch.num_rows, payload.size

    def entries(
        self, prepared: list[Prepared], waiters: Sequence[Any], sender: Sender | None
    ) -> list[Entry]:
        """Return the entries of one call; an idempotent producer's sequence continues over them.

        Raises:
            InvalidRequest: if the call has more frames than are remembered of a producer: if it
                was sent again, its first frames would not be recognised.
        """
        if sender is not None and sender.producer is not None:
            records = sum(max(count, 1) for _codec, _data, count, _size in prepared)
            self.check_frames(len(prepared), records, sender)
        result: list[Entry] = []
        for (codec, data, count, size), waiter in zip(prepared, waiters, strict=True):
            result.append((self.state, codec, data, count, size, waiter, sender))
            if sender is not None and sender.producer is not None:
                sender = sender._replace(sequence=sender.sequence + max(count, 1))
        return result

    def check_frames(self, frames: int, records: int, sender: Sender) -> None:
        """Refuse a producer's call that could not be recognised if it was sent again."""
        if frames > PRODUCER_WINDOW_DEFAULT:
            raise InvalidRequest(
                "the call is too large for an idempotent producer; split it into calls of at most "
                "frames_max frames, each with its own sequence",
                frames=frames,
                frames_max=PRODUCER_WINDOW_DEFAULT,
                frame_bytes_max=self.settings.log.write_bytes_max,
            )
        if sender.sequence + records - 1 > SEQUENCE_MAX:
            raise InvalidRequest(
                "the sequence of the last record is too large",
                sequence=sender.sequence,
                records=records,
            )

    def arrow_batches(
        self, data: object, columns: Columns | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Convert Arrow data to the topic's columns in pieces of at most one write."""
        if self.is_message:
            data = with_publish_time(data, self.clock.now_us())
        own: Columns = columns or self.codec.columns
        batches = own.input.batches(
            data, bytes_max=self.settings.log.write_bytes_max, rows_max=FRAME_RECORDS_MAX
        )
        for batch in batches:
            if self.is_message:
                check_message_batch(batch, self.limits, self.clock.now_us())
            yield batch

    # -- options ---------------------------------------------------------------------------------

    def sender(
        self, ack: str | None, producer: str | None, sequence: int | None, epoch: int
    ) -> Sender | None:
        """Check the options of a publish; None if they are all the defaults.

        Raises:
            InvalidRequest: if one of them is of a wrong type or out of its range.
        """
        synced = False
        if ack is not None:
            # Tables of keyed topics are not written yet, so no publish can wait for them.
            lake = None if self.state.spec.primary_key else self.lake
            check_level(ack, {"uploaded": self.objects, "committed": lake})
            synced = ack != "received"
        if producer is None:
            if sequence is not None:
                raise InvalidRequest("sequence needs a producer", sequence=sequence)
            return Sender(sync=True) if synced else None
        producer = _producer_name(producer)
        if not _is_count(sequence) or not _is_count(epoch, maximum=2**32 - 1):
            raise InvalidRequest(
                "an idempotent producer needs sequence= with a number from 0 on",
                producer=producer,
                sequence=sequence,
            )
        return Sender(producer, epoch, sequence, synced)


def _producer_name(producer: object) -> str:
    """Return the name as a plain `str`, which the journal's thread can store."""
    if isinstance(producer, str) and 0 < len(producer) <= PRODUCER_CHARACTERS_MAX:
        try:
            return str.encode(producer).decode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("producer is not valid UTF-8", producer=producer) from error
    raise InvalidRequest(
        "producer must be a text of 1 to 200 characters", got=type(producer).__name__
    )


def _is_count(value: object, *, maximum: int = SEQUENCE_MAX) -> TypeGuard[int]:
    # `is_whole` in line: every publish of an idempotent producer calls this twice.
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= maximum


def microseconds(time: dt.datetime) -> int:
    """Return a datetime as microseconds since 1970; a naive datetime is in UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=dt.UTC)
    delta = time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
