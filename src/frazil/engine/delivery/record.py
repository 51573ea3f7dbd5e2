"""Records as they are delivered: decoded once, shared by all subscriptions of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from frazil.ingest.messages import Message

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.log.history import Piece

__all__ = ["Chunk", "Record", "chunk_of"]

RECORD_OVERHEAD_BYTES: Final = 256
"""What a record takes in memory besides its payload, about."""


class Record:
    """One record of a topic.

    `value` is a `Message`, or a row as a dict. `body` is where a transport keeps the bytes that it
    made of it, for the next subscription.
    """

    __slots__ = ("body", "offset", "time_us", "value")

    def __init__(self, offset: int, value: Any, time_us: int) -> None:
        self.offset = offset
        self.value = value
        self.time_us = time_us
        self.body: bytes | None = None

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
        expired: int = 0,
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
        if is_message:
            values = _messages(batch.data)
            sizes += [len(value.payload) for value in values]
        else:
            values = batch.records()
            sizes += [batch.data.nbytes // max(batch.count, 1)] * batch.count
        times = [time_us for count, time_us in batch.times for _ in range(count)]
        records += map(Record, range(batch.offset, batch.offset_next), values, times)
    gaps = [*piece.gaps, *(gap for batch in batches for gap in batch.gaps)]
    expired = sum(gap.end - gap.first for gap in gaps if "expired" in gap.reason) if gaps else 0
    return Chunk(offset, piece.offset_next, records, sizes, expired)


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
