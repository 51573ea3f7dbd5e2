"""Records as they are delivered: decoded once, shared by all subscriptions of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.ingest.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from frazil.log.history import Piece
    from frazil.model import OffsetRange

__all__ = ["Chunk", "Record", "chunk_of", "size_of"]

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
        *("_keys", "expired", "offset", "offset_next", "offsets"),
        *("records", "size_bytes", "sizes"),
    )

    def __init__(
        self,
        offset: int,
        offset_next: int,
        records: list[Record],
        sizes: list[int],
        expired: Sequence[OffsetRange] = (),
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

    def expired_in(self, first: int, end: int) -> int:
        """Return how many offsets of `[first, end)` a full quota took away."""
        spans = (min(gap.end, end) - max(gap.first, first) for gap in self.expired)
        return sum(span for span in spans if span > 0)

    @property
    def keys(self) -> list[str]:
        """What a KeyShared subscription goes by, of each record."""
        if self._keys is None:
            self._keys = [_key(record.value) for record in self.records]
        return self._keys


def chunk_of(piece: Piece, *, offset: int, is_message: bool) -> Chunk:
    """Decode what was read from `offset` on."""
    batches = piece.batches
    records: list[Record] = []
    sizes: list[int] = []
    for batch in batches:
        values: list[Any]
        if is_message:
            values = _messages(batch.data)
            own = list(map(size_of, values))
        else:
            values = batch.records()
            own = [batch.data.nbytes // max(batch.count, 1)] * batch.count
        sizes += own
        times = [time_us for count, time_us in batch.times for _ in range(count)]
        records += map(Record, range(batch.offset, batch.offset_next), values, times, own)
    gaps = [*piece.gaps, *(gap for batch in batches for gap in batch.gaps)]
    expired = [gap for gap in gaps if "expired" in gap.reason]
    return Chunk(offset, piece.offset_next, records, sizes, expired)


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


def _key(value: Any) -> str:
    if type(value) is Message:
        return value.key or value.producer_name or ""
    return ""
