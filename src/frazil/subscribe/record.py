"""Records as they are delivered: decoded once, shared by all subscriptions of a topic."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.schema import Message
from frazil.schema.keys import column_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from frazil.log import Piece
    from frazil.model import OffsetRange

__all__ = ["Chunk", "Record", "chunk_of", "key_of_row", "size_of"]

RECORD_OVERHEAD_BYTES: Final = 256
"""What a record takes in memory besides its payload, about."""


class Record(msgspec.Struct, gc=False, eq=False):
    """One record of a topic.

    `value` is a `Message`, or a row as a dict. `body` is where a transport keeps the bytes that it
    made of it, for the next subscription, and `body_kind` what it needs to know to use them again.
    """

    offset: int
    value: Any
    time_us: int
    size: int = 0
    body: bytes = b""
    body_kind: int = -1

    def __repr__(self) -> str:
        return f"Record({self.offset}, {self.value!r})"


class Chunk:
    """Records of `[offset, offset_next)` without those of gaps, in order; never changed."""

    __slots__ = (
        *("_key_columns", "_keys", "expired", "offset", "offset_next", "offsets"),
        *("records", "size_bytes", "sizes"),
    )

    def __init__(
        self,
        offset: int,
        offset_next: int,
        records: list[Record],
        sizes: list[int],
        expired: Sequence[OffsetRange] = (),
        key_columns: Sequence[tuple[int, Sequence[str]]] = (),
    ) -> None:
        self.offset = offset
        self.offset_next = offset_next
        self.expired = expired
        self.records = records
        self.offsets = [record.offset for record in records]
        self.sizes = sizes
        # Twice: a transport keeps the bytes that it made of a record with it.
        self.size_bytes = 2 * sum(sizes) + RECORD_OVERHEAD_BYTES * len(sizes)
        self._keys: list[str] | None = None
        # How many records of rows have a key in which columns, in order.
        self._key_columns = key_columns

    def record(self, offset: int) -> Record | None:
        """Return one record, None if there is none: `offset` is in a gap, or not in here."""
        at = bisect_right(self.offsets, offset) - 1
        return self.records[at] if at >= 0 and self.offsets[at] == offset else None

    def expired_in(self, first: int, end: int) -> int:
        """Return how many offsets of `[first, end)` a full quota took away."""
        spans = (min(gap.end, end) - max(gap.first, first) for gap in self.expired)
        return sum(span for span in spans if span > 0)

    @property
    def keys(self) -> list[str]:
        """What a KeyShared subscription goes by, of each record."""
        if self._keys is None:
            names = [each for count, each in self._key_columns for _ in range(count)]
            self._keys = (
                [key_of_row(one.value, of) for one, of in zip(self.records, names, strict=True)]
                if names
                else [_key(record.value) for record in self.records]
            )
        return self._keys


def chunk_of(
    piece: Piece, *, offset: int, is_message: bool, primary_key: Sequence[int] = ()
) -> Chunk:
    """Decode what was read from `offset` on; `primary_key` are the column ids of a keyed topic."""
    batches = piece.batches
    records: list[Record] = []
    sizes: list[int] = []
    key_columns: list[tuple[int, Sequence[str]]] = []
    for batch in batches:
        values: list[Any]
        if is_message:
            values = _messages(batch.data)
            own = list(map(size_of, values))
        else:
            values = batch.records()
            own = [batch.data.nbytes // max(batch.count, 1)] * batch.count
            if primary_key:
                key_columns.append((batch.count, _names(batch.data.schema, primary_key)))
        sizes += own
        times = [time_us for count, time_us in batch.times for _ in range(count)]
        records += map(Record, range(batch.offset, batch.offset_next), values, times, own)
    gaps = [*piece.gaps, *(gap for batch in batches for gap in batch.gaps)]
    expired = [gap for gap in gaps if "expired" in gap.reason]
    return Chunk(offset, piece.offset_next, records, sizes, expired, key_columns)


def size_of(message: Message) -> int:
    """Return how many bytes a message has, about: all that others chose of it."""
    size = len(message.payload)
    if message.key:
        size += len(message.key)
    if message.producer_name:
        size += len(message.producer_name)
    if message.attributes:
        size += sum(len(name) + len(value) + 64 for name, value in message.attributes.items())
    return size


def _messages(data: pa.RecordBatch) -> list[Any]:
    """Return the messages of a batch; columns of nulls, which most are, cost nothing."""
    count = data.num_rows
    nothing = [None] * count
    columns: list[list[Any]] = []
    for number, column in enumerate(data.columns[:8]):
        if column.null_count == count:
            columns.append(nothing)
        elif number == 3:
            columns.append(column.cast("int64").to_pylist())
        elif number == 2:
            columns.append([None if one is None else dict(one) for one in column.to_pylist()])
        else:
            columns.append(column.to_pylist())
    return list(map(Message, *columns))


def key_of_row(row: Mapping[str, object], names: Sequence[str]) -> str:
    """Return a row's primary key as a text: that of its value, of several a JSON list of theirs."""
    if len(names) == 1:
        return _text(row[names[0]])
    return msgspec.json.encode([_text(row[name]) for name in names]).decode()


def _key(value: Any) -> str:
    return (value.key or value.producer_name or "") if type(value) is Message else ""


def _names(schema: pa.Schema, column_ids: Sequence[int]) -> list[str]:
    """Return what columns are called in a batch: rows have their names of then."""
    names = {column_id(field): field.name for field in schema}
    return [names[each] for each in column_ids]


def _text(value: object) -> str:
    if type(value) is str:
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    return str(value).lower() if isinstance(value, bool) else str(value)
