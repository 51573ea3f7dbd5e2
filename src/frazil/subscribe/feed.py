"""The records of one topic for its subscriptions.

The journal passes live records on from memory when it writes them, and they are delivered after the
answer to their publishers. Lagging subscriptions read files and objects in worker threads. All
subscriptions share decoded chunks, within one budget for all topics.
"""

from __future__ import annotations

import datetime as dt
import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import FrazilError, NotFound, Unavailable
from frazil.schema import Message
from frazil.schema.keys import column_id

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from frazil.log import Piece
    from frazil.model import OffsetRange
    from frazil.topic import TopicRuntime

__all__ = ["Chunk", "FeedCache", "Found", "Record", "TopicFeed", "key_of_row", "size_of"]

RECORD_OVERHEAD_BYTES: Final = 256
"""The estimated memory of a record in addition to its payload."""
READ_BYTES: Final = 512 << 10
"""The bytes that a worker thread reads and decodes at once."""
LIVE_BYTES: Final = 256 << 10
"""The bytes that the loop reads and decodes at once."""
LIVE_RECORDS_MAX: Final = 2048
"""A subscription that is further from the head lags: a worker thread reads for it."""
MOVING_RETRY_S: Final = 0.05
"""The pause before the next look for records that are moving between tiers."""
NOTHING_WANTED: Final = -(1 << 62)
HANDED_OVER_MAX: Final = 1024
"""The limit of frames queued for the loop; later ones are read from the log."""


class Record(msgspec.Struct, gc=False, eq=False):
    """One record of a topic: `value` is a `Message`, or a row as a dict.

    `body` caches the bytes that a transport encoded, for the next subscription; `body_kind` is
    their format.
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
        *("passed", "records", "size_bytes", "sizes"),
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
        self.passed = 0
        """How many subscriptions have read past it."""
        self.records = records
        self.offsets = [record.offset for record in records]
        self.sizes = sizes
        # Twice: a transport caches its encoded bytes in the record.
        self.size_bytes = 2 * sum(sizes) + RECORD_OVERHEAD_BYTES * len(sizes)
        self._keys: list[str] | None = None
        # Runs of rows in order: the number of records and their key columns.
        self._key_columns = key_columns

    def __contains__(self, offset: int) -> bool:
        return self.offset <= offset < self.offset_next

    def record(self, offset: int) -> Record | None:
        """Return one record, None if there is none: `offset` is in a gap, or not in here."""
        at = bisect_right(self.offsets, offset) - 1
        return self.records[at] if at >= 0 and self.offsets[at] == offset else None

    def span(self, offset: int, head: int, records_max: int, bytes_max: int) -> tuple[int, int]:
        """Return the indexes of the records from `offset` on and below `head`, within bounds."""
        offsets = self.offsets
        first = 0 if self.offset == offset else bisect_left(offsets, offset)
        count = len(offsets) if self.offset_next <= head else bisect_left(offsets, head)
        stop = min(first + records_max, count)
        while stop > first + 1 and sum(self.sizes[first:stop]) > bytes_max:
            stop = (first + stop) // 2
        return first, stop

    def expired_in(self, first: int, end: int) -> int:
        """Return how many offsets of `[first, end)` expired by a full quota."""
        spans = (min(gap.end, end) - max(gap.first, first) for gap in self.expired)
        return sum(span for span in spans if span > 0)

    @property
    def keys(self) -> list[str]:
        """The key of each record, for KeyShared."""
        if self._keys is None:
            names = [each for count, each in self._key_columns for _ in range(count)]
            self._keys = (
                [key_of_row(one.value, of) for one, of in zip(self.records, names, strict=True)]
                if names
                else [_key(record.value) for record in self.records]
            )
        return self._keys


class FeedCache:
    """Chunks of all feeds, the least recently used are dropped first."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.decoded = 0
        """The number of decoded records; subscriptions at the head share each decoding."""
        self._chunks: OrderedDict[Chunk, TopicFeed] = OrderedDict()

    def add(self, chunk: Chunk, feed: TopicFeed) -> None:
        """Add a chunk, and drop the least recently used ones beyond the budget."""
        self._chunks[chunk] = feed
        self.size_bytes += chunk.size_bytes
        while self.size_bytes > self.bytes_max and len(self._chunks) > 1:
            oldest, owner = self._chunks.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
            owner.forget(oldest)

    def use(self, chunk: Chunk) -> None:
        """Note that a chunk was used."""
        self._chunks.move_to_end(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Drop a chunk of a feed that is closed."""
        if self._chunks.pop(chunk, None) is not None:
            self.size_bytes -= chunk.size_bytes


Found = Chunk | FrazilError
"""The result of a read."""


class TopicFeed:
    """The records of one topic. All methods belong to the loop's thread, but `written`, `woken`."""

    def __init__(
        self,
        runtime: TopicRuntime,
        cache: FeedCache,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
    ) -> None:
        self.runtime = runtime
        self.readers = 0
        """How many subscriptions read it."""
        self._cache = cache
        self._loop = loop
        self._thread = threading.get_ident()
        self._executor = executor
        self._chunks: dict[int, Chunk] = {}
        self._starts: list[int] = []
        self._reading: dict[int, list[Callable[[Found], None]]] = {}
        self._waiting: list[Callable[[], None]] = []
        self._is_closed = False
        self._written: deque[tuple[int, int, Sequence[Any]]] = deque()
        """Frames of the journal's thread: first offset, time, records."""
        self._wanted = NOTHING_WANTED
        """The highest offset that a subscription has requested."""
        # Before reading the log's state, so that no record written in between is missed.
        runtime.state.followers += (self,)
        self.head = self._visible = runtime.state.durable
        """The offset after the last record whose publisher was answered."""

    # -- live records, on the journal's thread ---------------------------------------------------

    def written(self, offset: int, time_us: int, records: Sequence[Any]) -> None:
        """Take the messages of a frame that was written; they are not durable yet."""
        if offset - self._wanted <= LIVE_RECORDS_MAX and len(self._written) < HANDED_OVER_MAX:
            self._written.append((offset, time_us, records))

    def woken(self) -> None:
        """Pass news on to the loop; called after the publishers were answered."""
        state, journal = self.runtime.state, self.runtime.log.journal
        is_over = state.spec.deleted_us or journal.closed or journal.failed is not None
        if state.durable == self._visible and not is_over:
            # It was a control frame, such as an ack.
            return
        self._visible = state.durable
        is_loop_thread = threading.get_ident() == self._thread
        call = self._loop.call_soon if is_loop_thread else self._loop.call_soon_threadsafe
        try:
            call(self._news, state.durable)
        except RuntimeError:
            # The loop is closed: there are no readers, and an error in the journal's thread is
            # fatal.
            self._written.clear()

    # -- live records, on the loop ---------------------------------------------------------------

    def _news(self, head: int) -> None:
        if head > self.head:
            self.head = head
        written = self._written
        while written and written[0][0] < head:
            self._take_live(head)
        waiting, self._waiting = self._waiting, []
        for wake in waiting:
            wake()

    def _take_live(self, head: int) -> None:
        """Make a chunk of consecutive frames below the head."""
        written = self._written
        first = offset = written[0][0]
        records: list[Record] = []
        sizes: list[int] = []
        while written and written[0][0] == offset < head:
            _offset, time_us, values = written.popleft()
            for value in values:
                message = value
                if type(value) is bytes:
                    message = Message(value, None, None, time_us)
                elif value.publish_time is None:
                    message = msgspec.structs.replace(value, publish_time=time_us)
                size = len(message.payload)
                if message.key or message.producer_name or message.attributes:
                    size = size_of(message)
                records.append(Record(offset, message, time_us, size))
                sizes.append(size)
                offset += 1
        if first - self._wanted <= LIVE_RECORDS_MAX and first not in self._chunks:
            self._add(Chunk(first, offset, records, sizes))

    def follow(self, wake: Callable[[], None], offset: int) -> None:
        """Call `wake`, once, when there are records from `offset` on, or when the topic ends."""
        self._wanted = max(self._wanted, offset)
        self._waiting.append(wake)

    # -- reading ---------------------------------------------------------------------------------

    def get(self, offset: int) -> Chunk | None:
        """Return the chunk with `offset` if it is decoded, or new enough to decode from memory."""
        if offset > self._wanted:
            self._wanted = offset
        at = bisect_right(self._starts, offset) - 1
        if at >= 0:
            chunk = self._chunks[self._starts[at]]
            if offset in chunk:
                self._cache.use(chunk)
                return chunk
        if 0 < self.head - offset <= LIVE_RECORDS_MAX:
            return self._read_log(offset)
        return None

    async def fetch(self, offset: int) -> Record | None:
        """Return one record from any tier, None if there is none at the offset.

        Raises:
            NotFound: if it is no longer held, with `offset_first`.
            FrazilError: another error of the read, perhaps a transient one.
        """
        chunk = self.get(offset)
        if chunk is None:
            read: asyncio.Future[Found] = self._loop.create_future()
            self.request(offset, partial(_set_result, read))
            # The result is used directly: the cache may already have dropped it for the next read.
            found = await read
            if isinstance(found, FrazilError):
                raise found
            chunk = found
        return chunk.record(offset)

    def request(self, offset: int, done: Callable[[Found], None]) -> None:
        """Read from `offset` on in a worker thread, then call `done` with the result.

        `get` returns the chunk for a while. The read is retried while records move between tiers.
        Errors are results too: `NotFound` with `offset_first` if the records are no longer held,
        `CorruptionError` with `offset_next` after the damage.
        """
        waiting = self._reading.get(offset)
        if waiting is not None:
            waiting.append(done)
            return
        self._reading[offset] = [done]
        self._begin_read(offset)

    def _begin_read(self, offset: int) -> None:
        future = self._loop.run_in_executor(self._executor, self._read, offset)
        future.add_done_callback(partial(self._read_done, offset))

    def is_old(self, offset: int) -> bool:
        """Return whether a subscription that reads here lags."""
        return self.head - offset > LIVE_RECORDS_MAX

    def prefetch(self, offset: int) -> None:
        """Begin to read from `offset` on, unless it is cached or being read."""
        if self.is_old(offset) and offset not in self._reading and offset not in self._chunks:
            self._reading[offset] = []
            self._begin_read(offset)

    def end_error(self) -> FrazilError | None:
        """Return the error that ends the feed, None while the topic is open."""
        journal = self.runtime.log.journal
        if journal.closed or journal.failed is not None:
            return journal.closed_error()
        if self.runtime.state.spec.deleted_us:
            return NotFound("topic was deleted", topic=self.runtime.name)
        return None

    def passed(self, chunk: Chunk) -> None:
        """Drop a chunk when all subscriptions have read past it, while its memory is warm."""
        chunk.passed += 1
        if chunk.passed >= self.readers and self._chunks.get(chunk.offset) is chunk:
            self._cache.drop(chunk)
            self.forget(chunk)

    def forget(self, chunk: Chunk) -> None:
        """Drop a chunk that the cache dropped."""
        if self._chunks.pop(chunk.offset, None) is not None:
            self._starts.remove(chunk.offset)

    def close(self) -> None:
        """Drop everything."""
        self._is_closed = True
        state = self.runtime.state
        state.followers = tuple(each for each in state.followers if each is not self)
        for chunk in self._chunks.values():
            self._cache.drop(chunk)
        self._chunks = {}
        self._starts = []
        self._written.clear()

    def _read_log(self, offset: int) -> Chunk | None:
        """Read recent records from the log alone: they are in the page cache."""
        runtime = self.runtime
        if self.end_error() is not None:
            return None
        try:
            piece = runtime.log.source.read(runtime.state.id, offset=offset, bytes_max=LIVE_BYTES)
        except FrazilError:
            # It moved to the disk tier, or is damaged: `request` finds out.
            return None
        if not piece.batches:
            return None
        chunk = self._decoded(piece, offset)
        self._add(chunk)
        return chunk

    def _read(self, offset: int) -> Chunk:
        """Read and decode in a worker thread, from any tier."""
        error = self.end_error()
        if error is not None:
            raise error
        runtime = self.runtime
        piece = runtime.history.read(runtime.state.id, offset=offset, bytes_max=READ_BYTES)
        return self._decoded(piece, offset)

    def _decoded(self, piece: Piece, offset: int) -> Chunk:
        key = self.runtime.state.spec.primary_key
        return chunk_of(piece, offset=offset, is_message=self.runtime.is_message, primary_key=key)

    def _read_done(self, offset: int, future: asyncio.Future[Chunk]) -> None:
        met = None if future.cancelled() else future.exception()
        found: Found
        if isinstance(met, FrazilError):
            found = met
        elif met is not None or future.cancelled():
            found = Unavailable("records could not be read", topic=self.runtime.name, cause=met)
        else:
            found = future.result()
            if found.offset_next == found.offset:
                # The record is moving from one tier to the next.
                self._loop.call_later(MOVING_RETRY_S, self._begin_read, offset)
                return
            self._add(found)
        for done in self._reading.pop(offset):
            done(found)

    def _add(self, chunk: Chunk) -> None:
        self._cache.decoded += len(chunk.records)
        if self._is_closed:
            return
        old = self._chunks.get(chunk.offset)
        if old is not None:
            self._cache.drop(old)
        else:
            insort(self._starts, chunk.offset)
        self._chunks[chunk.offset] = chunk
        self._cache.add(chunk, self)


def chunk_of(
    piece: Piece, *, offset: int, is_message: bool, primary_key: Sequence[int] = ()
) -> Chunk:
    """Decode the read frames from `offset` on; `primary_key` are a keyed topic's column ids."""
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
    """Return about how many bytes a message has: payload, key, names and attributes."""
    size = len(message.payload) + len(message.key or "") + len(message.producer_name or "")
    if message.attributes:
        for name, value in message.attributes.items():
            size += len(name) + len(value) + 64
    return size


def key_of_row(row: Mapping[str, object], names: Sequence[str]) -> str:
    """Return a row's primary key as text: its value, or a JSON list of several."""
    if len(names) == 1:
        return _text(row[names[0]])
    return msgspec.json.encode([_text(row[name]) for name in names]).decode()


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
    return (value.key or value.producer_name or "") if type(value) is Message else ""


def _names(schema: pa.Schema, column_ids: Sequence[int]) -> list[str]:
    """Return the names of columns in a batch: rows have the names of their time."""
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


def _set_result(read: asyncio.Future[Found], found: Found) -> None:
    if not read.done():
        read.set_result(found)
