"""Registered objects as a history source: index look-up, ranged fetches, verified frames.

A read knows its object and the bytes in it from metadata alone: the first record takes one
request. For a reader that continues, the next blocks are fetched ahead within a budget of bytes.
"""

from __future__ import annotations

import threading
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Protocol

from frazil.errors import Closed, CorruptionError, FrazilError, NotFound, Unavailable
from frazil.log import (
    RANGE_LOST,
    Batch,
    Frame,
    Piece,
    SpecialRange,
    batches_of,
    covering,
    lost_error,
)
from frazil.log import format as fmt
from frazil.model import OffsetRange
from frazil.objects.format import HEADER_BYTES
from frazil.telemetry import warn
from frazil.tiers import HistoryPin, LruCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.log import Decoder
    from frazil.objects.descriptor import Descriptor, TopicObjects
    from frazil.objects.store import ObjectStore

__all__ = ["ByteRange", "Fetcher", "ObjectIndex", "ObjectsSource", "ScanRequest", "scan_frames"]

AHEAD_BYTES: Final = 16 << 20
"""Bytes fetched ahead, and bytes kept after their use, over all readers."""
AHEAD_THREADS: Final = 4
STALE_CALLS: Final = 64
"""A fetch ahead that is not used within this many calls makes room for others."""
BLOCK_BYTES: Final = 8 << 20
ATTEMPTS_MAX: Final = 10
INDEXES_MAX: Final = 256
POSITIONS_MAX: Final = 4_096
FAULTS_MAX: Final = 1_000
RETRY_AFTER_MS: Final = 1_000
WHOLE: Final = 1 << 62


class ByteRange(NamedTuple):
    """Bytes `[start, start + length)` of an object."""

    key: str
    start: int
    length: int


# -- the index of an object -------------------------------------------------------------------------


class ObjectIndex:
    """The intervals of an object's sparse index, and the byte ranges of requests.

    A seek fetches one interval. Readers that continue fetch blocks of intervals; all readers use
    the same block borders and so share requests.
    """

    __slots__ = ("blocks", "descriptor", "offsets", "positions", "ranges", "times")

    def __init__(self, descriptor: Descriptor, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.descriptor = descriptor
        entries = [entry for entry in descriptor.entries() if entry.position > HEADER_BYTES]
        self.offsets = [descriptor.first, *(entry.offset for entry in entries)]
        self.times = [descriptor.time_first_us, *(entry.time_us for entry in entries)]
        self.positions = [HEADER_BYTES, *(entry.position for entry in entries)]
        self.positions.append(HEADER_BYTES + descriptor.length)
        self.ranges = tuple(
            SpecialRange(r.first, r.end, r.kind, r.reason) for r in descriptor.ranges
        )
        self.blocks = self._block_starts(block_bytes)

    def _block_starts(self, block_bytes: int) -> list[int]:
        """Return the number of each block's first interval, and the number of intervals."""
        starts = [0]
        for number in range(1, self.intervals):
            if self.positions[number + 1] - self.positions[starts[-1]] > block_bytes:
                starts.append(number)
        starts.append(self.intervals)
        return starts

    @property
    def intervals(self) -> int:
        """Return how many intervals there are; at least one."""
        return len(self.offsets)

    def interval(self, offset: int) -> int:
        """Return the number of the interval that holds an offset."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def interval_at(self, position: int) -> int:
        """Return the number of the interval at a position of the object."""
        return min(max(bisect_right(self.positions, position) - 1, 0), self.intervals - 1)

    def interval_before(self, time_us: int) -> int:
        """Return the number of the interval in which the first record at or after a time may be."""
        return max(bisect_left(self.times, time_us) - 1, 0)

    def span(self, first: int, end: int) -> ByteRange:
        """Return the bytes of the intervals `[first, end)`."""
        start = self.positions[first]
        return ByteRange(self.descriptor.key, start, self.positions[end] - start)

    def rest_of_block(self, number: int) -> ByteRange:
        """Return the bytes from an interval up to the end of its block."""
        return self.span(number, self.blocks[bisect_right(self.blocks, number)])

    def blocks_from(self, position: int) -> Iterator[ByteRange]:
        """Yield the byte ranges of a sequential reader from a position on."""
        number = bisect_left(self.positions, position)
        while number < self.intervals:
            span = self.rest_of_block(number)
            if not span.length:
                # An object of gaps alone has no frames.
                return
            yield span
            number = bisect_left(self.positions, span.start + span.length)

    def offset_after(self, position: int) -> int:
        """Return the offset at which reading can continue after damage at a position."""
        number = bisect_right(self.positions, position)
        return self.offsets[number] if number < self.intervals else self.descriptor.end

    def limit(self, offset: int) -> int:
        """Return the latest end of records that are contiguous from an offset on."""
        later = (special.first for special in self.ranges if special.first > offset)
        return min(later, default=self.descriptor.end)


# -- frames in fetched bytes ------------------------------------------------------------------------


class ScanRequest(NamedTuple):
    """The wanted frames: those of a topic with offsets of `[offset, offset_end)`."""

    topic: int
    offset: int
    offset_end: int
    bytes_max: int


class Damage(NamedTuple):
    """A frame that is damaged or missing."""

    first: int
    end: int | None
    """The offset after it; None if its head is damaged, too, and only the index knows."""
    reason: str


class Scan(NamedTuple):
    """Verified frames in order; the scan ended at `position`, before damage if there is any."""

    frames: list[Frame]
    position: int
    damage: Damage | None


def scan_frames(data: bytes, position: int, wanted: ScanRequest) -> Scan:
    """Verify the frames from `position` on and return the wanted ones, without a hole.

    The scan ends at the end of `data`, where the frames reach `offset_end`, or at about
    `bytes_max`, but after at least one frame. A damaged frame below the wanted offsets is skipped
    if its head is intact.
    """
    topic, offset, offset_end, bytes_max = wanted
    view = memoryview(data)
    frames: list[Frame] = []
    size, expected, limit = 0, offset, len(data) - fmt.FRAME_HEAD_BYTES
    unpack, crc32, new_tuple = fmt.FRAME_HEAD.unpack_from, zlib.crc32, tuple.__new__
    while position <= limit:
        fields = unpack(data, position)
        payload = position + fmt.FRAME_HEAD_BYTES + fields[6] * fmt.RUN.size
        following = position + fmt.FRAME_PREFIX_BYTES + fields[1]
        crc = crc32(view[position + 16 : payload], crc32(view[payload:following]))
        if (
            crc32(view[position : position + 12], crc) != fields[2]
            or fields[7] != topic
            or not 0 < fields[3] <= fmt.KIND_ROWS
            or following > len(data)
        ):
            damage = _damage(data, position, wanted)
            if frames or damage.end is None or damage.end > offset:
                return Scan(frames, position, damage)
            position = following
            continue
        end = fields[0] + fields[8]
        if end > offset:
            if fields[0] > expected:
                return Scan(frames, position, Damage(expected, fields[0], "records are missing"))
            if frames and (fields[0] < expected or size + following - position > bytes_max):
                damaged = Damage(expected, end, "offsets go back") if fields[0] < expected else None
                return Scan(frames, position, damaged)
            frames.append(new_tuple(Frame, (new_tuple(fmt.FrameHead, fields), data, payload)))
            size += following - position
            expected = end
        position = following
        if expected >= offset_end:
            break
    if position < len(data) and expected < offset_end:
        return Scan(frames, position, Damage(expected, None, "object is cut short"))
    return Scan(frames, position, None)


def _damage(data: bytes, position: int, wanted: ScanRequest) -> Damage:
    """Return the offsets that are lost with a damaged frame."""
    head_bytes = data[position : position + fmt.FRAME_HEAD_BYTES]
    head = fmt.read_head(head_bytes, 0)
    reason = "checksum does not match"
    if fmt.head_fault(head_bytes) or head.topic != wanted.topic or head.kind > fmt.KIND_ROWS:
        return Damage(wanted.offset, None, reason)
    if position + fmt.FRAME_PREFIX_BYTES + head.length > len(data):
        return Damage(head.offset, None, reason)
    return Damage(head.offset, head.offset + head.records, reason)


# -- requests -------------------------------------------------------------------------------------


class _Ahead:
    """A range that was fetched ahead and not used yet."""

    __slots__ = ("call", "future")

    def __init__(self, future: Future[bytes], call: int) -> None:
        self.future = future
        self.call = call


class Fetcher:
    """Fetches byte ranges of objects. Any number of threads may ask; they share requests.

    Args:
        store: where objects are; it has its own retries.
        ahead_bytes: the most bytes fetched ahead, and the most bytes kept after their use.
        threads: how many requests ahead run at once; 0 fetches nothing ahead.
    """

    def __init__(
        self, store: ObjectStore, *, ahead_bytes: int, threads: int = AHEAD_THREADS
    ) -> None:
        self._store = store
        self.ahead_bytes_max = ahead_bytes
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._kept: LruCache[bytes] = LruCache(ahead_bytes)
        self._ahead: OrderedDict[ByteRange, _Ahead] = OrderedDict()
        self._under_way: dict[ByteRange, Future[bytes]] = {}
        self._lock = threading.Lock()
        self._calls = 0
        self._is_closed = False
        self._trouble: Unavailable | None = None
        """The error of the last request, if it failed."""
        self._probing = threading.Lock()
        self.ahead_bytes = 0
        self.requests = 0
        self.bytes_fetched = 0

    @property
    def cache_bytes(self) -> int:
        """Return the memory of ranges that are kept or fetched ahead."""
        return self._kept.nbytes + self.ahead_bytes

    def get(self, span: ByteRange) -> bytes:
        """Return the bytes of a range, from the cache, a pending request or a new one.

        Raises the errors of the store's `get`.
        """
        kept = self._kept.get(span)
        if kept is not None:
            return kept
        with self._lock:
            if self._is_closed:
                raise Closed("reader of objects is closed")
            under_way = self._under_way.get(span)
            if under_way is None:
                ahead = self._ahead.pop(span, None)
                self.ahead_bytes -= 0 if ahead is None else span.length
                mine = self._under_way[span] = Future()
        if under_way is not None:
            return under_way.result()
        return self._settled(span, mine, ahead)

    def again(self, span: ByteRange) -> bytes:
        """Fetch a range anew after a damaged answer and replace its cached bytes."""
        self._kept.forget(lambda key: key == span)
        data = self._fetch(span)
        self._kept.put(span, data, span.length)
        return data

    def ahead(self, spans: Sequence[ByteRange]) -> None:
        """Start to fetch the ranges that are needed next, in order, as far as the budget goes."""
        if not self._threads:
            return
        with self._lock:
            self._calls += 1
            for span in spans:
                found = self._ahead.get(span)
                if found is not None:
                    found.call = self._calls
                    self._ahead.move_to_end(span)
                    continue
                if self._is_closed or not self._has_room(span.length):
                    return
                if span in self._under_way or self._kept.get(span) is not None:
                    continue
                future = self._workers().submit(self._fetch, span)
                self._ahead[span] = _Ahead(future, self._calls)
                self.ahead_bytes += span.length

    def close(self) -> None:
        """Drop all bytes; pending requests end by themselves."""
        with self._lock:
            self._is_closed = True
            pool, self._pool = self._pool, None
            waiting = [found.future for found in self._ahead.values()]
            self._ahead.clear()
            self.ahead_bytes = 0
        for future in waiting:
            future.cancel()
        self._kept.forget()
        if pool is not None:
            # Without waiting: with a store that is down this would take all its retries.
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the lock is held ------------------------------------------------------------------------

    def _has_room(self, length: int) -> bool:
        """Drop stale fetches ahead until a range fits; tell whether it does."""
        while self.ahead_bytes + length > self.ahead_bytes_max:
            oldest = next(iter(self._ahead), None)
            if oldest is None or self._ahead[oldest].call > self._calls - STALE_CALLS:
                return False
            self._ahead.pop(oldest).future.cancel()
            self.ahead_bytes -= oldest.length
        return True

    def _workers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="frazil-objects")
        return self._pool

    # -- requests --------------------------------------------------------------------------------

    def _settled(self, span: ByteRange, mine: Future[bytes], ahead: _Ahead | None) -> bytes:
        """Fetch a range for this thread and for all that wait for it."""
        try:
            data = None if ahead is None else self._arrived(ahead.future)
            if data is None:
                data = self._fetch(span)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            self._kept.put(span, data, span.length)
            mine.set_result(data)
            return data
        finally:
            with self._lock:
                del self._under_way[span]

    def _arrived(self, future: Future[bytes]) -> bytes | None:
        """Return the bytes of a fetch ahead; None if it failed and should be repeated."""
        try:
            return future.result()
        except (FrazilError, CancelledError):
            # The reader repeats the request and raises its own error.
            return None

    def _fetch(self, span: ByteRange) -> bytes:
        """Ask the store; after a failure one thread tries and the others fail at once.

        A try takes until the store's retries end: otherwise a store that is down would block all
        reading threads, those of other topics too.
        """
        trouble = self._trouble
        if trouble is None:
            return self._ask(span)
        if not self._probing.acquire(blocking=False):
            raise Unavailable(trouble.message, **trouble.details)
        try:
            return self._ask(span)
        finally:
            self._probing.release()

    def _ask(self, span: ByteRange) -> bytes:
        try:
            data = self._store.get(span.key, start=span.start, length=span.length)
        except Unavailable as error:
            self._trouble = error
            raise
        self._trouble = None
        with self._lock:
            self.requests += 1
            self.bytes_fetched += len(data)
        return data


# -- the source -----------------------------------------------------------------------------------


class Pictures(Protocol):
    """Gives the registered objects of a topic."""

    def topic(self, topic_id: int, /) -> TopicObjects:
        """Return a topic's registered objects at this moment; never blocks."""


class _Position(NamedTuple):
    """The next position of a sequential reader, and the range it read last."""

    span: ByteRange
    position: int


class _Changed(Exception):
    """The object is no longer registered: look again."""


class ObjectsSource:
    """Reads the records of registered objects. Any number of threads may read.

    Args:
        catalog: knows the registered objects.
        store: where they are.
        codecs: returns the decoder of a topic; it raises `NotFound` for an unknown one.
        ahead_bytes: the most bytes fetched ahead, and the most kept, over all readers.
        threads: how many requests ahead run at once; 0 fetches nothing ahead.
    """

    def __init__(
        self,
        catalog: Pictures,
        store: ObjectStore,
        codecs: Callable[[int], Decoder],
        *,
        ahead_bytes: int = AHEAD_BYTES,
        threads: int = AHEAD_THREADS,
    ) -> None:
        self._catalog = catalog
        self._codecs = codecs
        self.fetcher = Fetcher(store, ahead_bytes=ahead_bytes, threads=threads)
        self._block_bytes = max(1, min(BLOCK_BYTES, ahead_bytes // 2))
        self._indexes: OrderedDict[tuple[str, int], ObjectIndex] = OrderedDict()
        self._positions: OrderedDict[tuple[int, int], _Position] = OrderedDict()
        self._pins: set[HistoryPin] = set()
        # Re-entrant, because the garbage collector may close a forgotten reader at any point.
        self._lock = threading.RLock()
        self._faults: dict[str, dict[str, object]] = {}
        """Missing or damaged objects that readers found, by object and position."""
        self._retiring: dict[int, int] = {}
        self.refetches = 0
        self.frames_read = 0

    def close(self) -> None:
        """Drop cached bytes and stop fetching ahead."""
        self.fetcher.close()

    def range(self, topic: int) -> OffsetRange:
        """Return the offsets that registered objects hold."""
        picture = self._catalog.topic(topic)
        first = self._first(picture)
        return OffsetRange(first, max(first, picture.uploaded))

    def _first(self, picture: TopicObjects) -> int:
        return max(picture.start, self._retiring.get(picture.topic, 0))

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        """Return records from `offset` on; see `HistorySource.read`.

        Raises:
            NotFound: if `offset` is below the first that objects hold.
            CorruptionError: if an object is missing or damaged; the details name what is lost.
            Unavailable: if the store cannot be reached; `retry_after_ms` says when to try again.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return self._read(self._catalog.topic(topic), offset, bytes_max)
            except _Changed:
                continue
        raise NotFound("offset is being moved, try again", topic_id=topic, offset=offset)

    def _read(self, picture: TopicObjects, offset: int, bytes_max: int) -> Piece:
        first = self._first(picture)
        if offset < first:
            raise NotFound(
                "offset is no longer in objects, start at the first available one",
                offset=offset,
                offset_first=first,
            )
        if offset >= picture.uploaded:
            return Piece([], offset)
        index = self._index_of(picture, offset)
        asked = offset
        gaps: list[OffsetRange] = []
        special = covering(index.ranges, offset)
        while special is not None:
            if special.kind == RANGE_LOST:
                if gaps:
                    # The gap comes first; the next read raises.
                    return Piece([], offset, tuple(gaps))
                raise lost_error(special, topic=picture.topic)
            gaps.append(OffsetRange(offset, special.end, special.reason))
            offset = special.end
            special = covering(index.ranges, offset)
        if offset >= index.descriptor.end:
            return Piece([], offset, tuple(gaps))
        try:
            batches = self._batches(picture, index, asked, offset, bytes_max)
        except (CorruptionError, Unavailable):
            # The gap is known without the store.
            if not gaps:
                raise
            return Piece([], offset, tuple(gaps))
        batches[0].gaps = tuple(gaps)
        return Piece(batches, batches[-1].offset_next)

    # -- frames ----------------------------------------------------------------------------------

    def _batches(
        self, picture: TopicObjects, index: ObjectIndex, asked: int, offset: int, bytes_max: int
    ) -> list[Batch]:
        """Read and decode the frames from `offset` on; the reader came from `asked`."""
        topic = picture.topic
        decoder = self._codecs(topic)
        with self._lock:
            before = self._positions.get((topic, asked))
        position, span = self._span_of(index, offset, before)
        if before is not None:
            self._go_ahead(picture, index, span)
        wanted = ScanRequest(topic, offset, index.limit(offset), bytes_max)
        found = self._scanned(index, span, position, wanted)
        batches = batches_of(found.frames, decoder, offset=offset, topic=topic)
        if batches[-1].offset_next > wanted.offset_end:
            batches[-1] = batches[-1].slice(0, wanted.offset_end - batches[-1].offset)
        self.frames_read += len(found.frames)
        self._remember(topic, batches[-1].offset_next, _Position(span, span.start + found.position))
        return batches

    def _span_of(
        self, index: ObjectIndex, offset: int, before: _Position | None
    ) -> tuple[int, ByteRange]:
        """Return the position to scan from and the bytes to fetch."""
        if before is None or before.span.key != index.descriptor.key:
            number = index.interval(offset)
            position = index.positions[number]
        else:
            span, position = before
            if position < span.start + span.length:
                return position, span
            number = index.interval_at(position)
            position = index.positions[number]
        if before is None:
            return position, index.span(number, number + 1)
        return position, index.rest_of_block(number)

    def _scanned(
        self, index: ObjectIndex, span: ByteRange, position: int, wanted: ScanRequest
    ) -> Scan:
        """Return verified frames from `wanted.offset` on, fetched a second time if need be.

        Raises:
            CorruptionError: if the record at the offset is damaged in the store as well.
        """
        at = position - span.start
        found = scan_frames(self._bytes(index, span, wanted), at, wanted)
        if not found.frames:
            self.refetches += 1
            data = self._bytes(index, span, wanted, again=True)
            found = scan_frames(data, at, wanted)
        if not found.frames:
            raise self._damaged(index, span, found, wanted)
        if self._faults:
            self._clear_faults(index.descriptor.key, position, span.start + found.position)
        return found

    def _bytes(
        self, index: ObjectIndex, span: ByteRange, wanted: ScanRequest, *, again: bool = False
    ) -> bytes:
        fetch = self.fetcher.again if again else self.fetcher.get
        try:
            return fetch(span)
        except Unavailable as error:
            details = {"retry_after_ms": RETRY_AFTER_MS, **error.details}
            raise Unavailable(error.message, **details) from error
        except NotFound:
            self._check_registered(index.descriptor, wanted.topic)
        try:
            return self.fetcher.again(span)
        except NotFound:
            self._missing(index.descriptor, wanted)

    def _check_registered(self, descriptor: Descriptor, topic: int) -> None:
        """Raise `_Changed` if the object is no longer registered: it may have expired."""
        found = self._catalog.topic(topic).find(descriptor.first)
        if found is None or found.key != descriptor.key:
            raise _Changed

    def _missing(self, descriptor: Descriptor, wanted: ScanRequest) -> NoReturn:
        self._check_registered(descriptor, wanted.topic)
        facts = {
            "topic": wanted.topic,
            "key": descriptor.key,
            "offset_first": wanted.offset,
            "offset_next": descriptor.end,
        }
        self._report_fault("object_missing", descriptor.key, facts)
        raise CorruptionError(
            "a registered object is missing or cut short in the store: bring it back under its "
            "key, from a copy or an older version; reading may go on at offset_next",
            **facts,
        )

    def _damaged(
        self, index: ObjectIndex, span: ByteRange, found: Scan, wanted: ScanRequest
    ) -> CorruptionError:
        position = span.start + found.position
        damage = found.damage or Damage(wanted.offset, None, "records are missing")
        end = damage.end
        if end is None or end <= wanted.offset:
            end = index.offset_after(position)
        facts = {
            "topic": wanted.topic,
            "offset_first": damage.first,
            "offset_next": min(max(end, wanted.offset + 1), index.descriptor.end),
            "reason": damage.reason,
            "key": index.descriptor.key,
            "position": position,
        }
        self._report_fault("object_damaged", f"{index.descriptor.key}@{position}", facts)
        return CorruptionError(
            "records in an object are damaged in the store: bring the object back under its key, "
            "from a copy or an older version; reading may go on at offset_next",
            **facts,
        )

    def _report_fault(self, name: str, what: str, facts: dict[str, object]) -> None:
        """Log a fault once, however many readers find it."""
        with self._lock:
            if what in self._faults:
                return
            if len(self._faults) < FAULTS_MAX:
                self._faults[what] = {"event": name, **facts}
        warn(name, **facts)

    def _clear_faults(self, key: str, first: int, end: int) -> None:
        """Remove the faults of a byte range that could be read."""
        with self._lock:
            for what, facts in list(self._faults.items()):
                position = facts.get("position", first)
                assert isinstance(position, int)
                if facts["key"] == key and first <= position < end:
                    del self._faults[what]

    def unreadable(self) -> list[dict[str, object]]:
        """Return the missing or damaged objects that readers found and that are still registered."""
        with self._lock:
            known = list(self._faults.items())
        found = []
        for what, facts in known:
            topic, offset = facts["topic"], facts["offset_first"]
            assert isinstance(topic, int)
            assert isinstance(offset, int)
            descriptor = self._catalog.topic(topic).find(offset)
            if descriptor is not None and descriptor.key == facts["key"]:
                found.append(facts)
                continue
            with self._lock:
                self._faults.pop(what, None)
        return found

    # -- reading ahead ----------------------------------------------------------------------------

    def _go_ahead(self, picture: TopicObjects, index: ObjectIndex, span: ByteRange) -> None:
        """Fetch the blocks after a range ahead, as far as the budget goes."""
        left = self.fetcher.ahead_bytes_max
        spans: list[ByteRange] = []
        for following in self._following(picture, index, span):
            left -= following.length
            if left < 0:
                break
            spans.append(following)
        self.fetcher.ahead(spans)

    def _following(
        self, picture: TopicObjects, index: ObjectIndex, span: ByteRange
    ) -> Iterator[ByteRange]:
        yield from index.blocks_from(span.start + span.length)
        for descriptor in picture.after(index.descriptor.end):
            yield from self._index(descriptor).blocks_from(HEADER_BYTES)

    def _remember(self, topic: int, offset: int, position: _Position) -> None:
        with self._lock:
            self._positions[topic, offset] = position
            self._positions.move_to_end((topic, offset))
            while len(self._positions) > POSITIONS_MAX:
                self._positions.popitem(last=False)

    def _index_of(self, picture: TopicObjects, offset: int) -> ObjectIndex:
        descriptor = picture.find(offset)
        if descriptor is not None:
            return self._index(descriptor)
        later = picture.after(offset)
        raise CorruptionError(
            "no object holds this offset, run `frazil doctor`; reading may go on at offset_next",
            topic=picture.topic,
            offset_first=offset,
            offset_next=later[0].first if later else picture.uploaded,
        )

    def _index(self, descriptor: Descriptor) -> ObjectIndex:
        key = (descriptor.key, descriptor.first)
        with self._lock:
            found = self._indexes.get(key)
            if found is not None:
                self._indexes.move_to_end(key)
                return found
        index = ObjectIndex(descriptor, block_bytes=self._block_bytes)
        with self._lock:
            self._indexes[key] = index
            while len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index

    # -- times and pins --------------------------------------------------------------------------

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none in objects.

        Raises:
            Unavailable: if the store cannot be reached.
        """
        for _ in range(ATTEMPTS_MAX):
            picture = self._catalog.topic(topic)
            later = (each for each in picture.descriptors if each.time_last_us >= time_us)
            descriptor = next(later, None)
            if descriptor is None:
                return None
            try:
                return max(self._first_at(descriptor, topic, time_us), self._first(picture))
            except _Changed:
                continue
        raise NotFound("objects are being moved, try again", topic_id=topic)

    def _first_at(self, descriptor: Descriptor, topic: int, time_us: int) -> int:
        """Return the first offset at or after a time in an object that has one."""
        if descriptor.time_first_us >= time_us:
            return descriptor.first
        index = self._index(descriptor)
        number = index.interval_before(time_us)
        span = index.span(number, number + 1)
        position, offset, end = span.start, index.offsets[number], index.offset_after(span.start)
        while offset < end:
            special = covering(index.ranges, offset)
            if special is not None:
                offset = special.end
                continue
            wanted = ScanRequest(topic, offset, index.limit(offset), WHOLE)
            try:
                found = self._scanned(index, span, position, wanted)
            except CorruptionError:
                # A reader that starts here gets the error.
                return offset
            for frame in found.frames:
                if frame.head.time >= time_us:
                    return max(frame.head.offset, descriptor.first)
            position = span.start + found.position
            offset = found.frames[-1].head.offset + found.frames[-1].head.records
        return end

    def time_at(self, topic: int, *, offset: int) -> int | None:
        """Return the time of an offset's index interval, from metadata alone."""
        descriptor = self._catalog.topic(topic).find(offset)
        if descriptor is None:
            return None
        index = self._index(descriptor)
        return index.times[index.interval(offset)] or None

    def pin(self, topic: int, *, offset: int) -> HistoryPin:
        """Keep the objects with records from `offset` on."""
        pin = HistoryPin(self._unpin, topic, offset)
        with self._lock:
            self._pins.add(pin)
        return pin

    def retire(self, topic: int, *, below: int) -> None:
        """Refuse reads below an offset, whose objects are about to expire; 0 allows them again.

        Readers that start meanwhile start above.
        """
        self._retiring[topic] = below
        if not below:
            del self._retiring[topic]

    def _unpin(self, pin: HistoryPin) -> None:
        with self._lock:
            self._pins.discard(pin)

    def pinned(self, topic: int) -> int | None:
        """Return the lowest offset that an open reader of the topic still needs."""
        with self._lock:
            pins = tuple(self._pins)
        # Outside the lock: the garbage collector may close a forgotten reader right here.
        return min((pin.offset for pin in pins if pin.topic == topic), default=None)
