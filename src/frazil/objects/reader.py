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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.errors import Closed, CorruptionError, FrazilError, NotFound, Unavailable
from frazil.log import (
    RANGE_LOST,
    Batch,
    Frame,
    Piece,
    batches_of,
    covering,
    lost_error,
)
from frazil.log import format as fmt
from frazil.model import OffsetRange
from frazil.objects.format import HEADER_BYTES
from frazil.telemetry import warn
from frazil.tiers import HistoryPins, LruCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from frazil.log import Decoder
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.descriptor import Descriptor, TopicObjects
    from frazil.objects.store import ObjectStore

__all__ = ["ByteRange", "Fetcher", "ObjectIndex", "ObjectsSource", "scan_frames"]

AHEAD_BYTES: Final = 16 << 20
"""Bytes fetched ahead over all readers; as many are kept after their use."""
AHEAD_THREADS: Final = 4
BLOCK_BYTES: Final = 8 << 20
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


# -- the index of an object ------------------------------------------------------------------------


class ObjectIndex:
    """The intervals of an object's sparse index, and the byte ranges of requests.

    A seek fetches one interval. Readers that continue fetch blocks of intervals; all readers use
    the same block borders and so share requests.
    """

    def __init__(self, descriptor: Descriptor, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.descriptor = descriptor
        self._block_bytes = block_bytes
        entries = [entry for entry in descriptor.entries() if entry.position > HEADER_BYTES]
        self.offsets = [descriptor.first, *(entry.offset for entry in entries)]
        self.times = [descriptor.time_first_us, *(entry.time_us for entry in entries)]
        self.positions = [HEADER_BYTES, *(entry.position for entry in entries)]
        self.positions.append(HEADER_BYTES + descriptor.length)
        self.ranges = descriptor.ranges

    def interval(self, offset: int) -> int:
        """Return the number of the interval that holds an offset."""
        return max(bisect_right(self.offsets, offset) - 1, 0)

    def span(self, first: int, end: int) -> ByteRange:
        """Return the bytes of the intervals `[first, end)`."""
        start = self.positions[first]
        return ByteRange(self.descriptor.key, start, self.positions[end] - start)

    def block(self, position: int) -> ByteRange:
        """Return the bytes from the interval at a position up to the end of its block."""
        number = min(bisect_right(self.positions, position), len(self.offsets)) - 1
        border = (self.positions[number] // self._block_bytes + 1) * self._block_bytes
        end = max(bisect_left(self.positions, border), number + 1)
        return self.span(number, min(end, len(self.offsets)))

    def blocks_from(self, position: int) -> Iterator[ByteRange]:
        """Yield the byte ranges of a sequential reader from a position on."""
        while position < self.positions[-1]:
            span = self.block(position)
            yield span
            position = span.start + span.length

    def offset_after(self, position: int) -> int:
        """Return the offset at which reading can continue after damage at a position."""
        number = bisect_right(self.positions, position)
        return self.offsets[number] if number < len(self.offsets) else self.descriptor.end

    def limit(self, offset: int) -> int:
        """Return the latest end of records that are contiguous from an offset on."""
        later = (special.first for special in self.ranges if special.first > offset)
        return min(later, default=self.descriptor.end)


# -- frames in fetched bytes -----------------------------------------------------------------------


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


def scan_frames(
    data: bytes,
    position: int,
    *,
    topic: int,
    offset: int,
    offset_end: int = WHOLE,
    bytes_max: int = WHOLE,
) -> Scan:
    """Verify the frames from `position` on; return a topic's from `offset` on, without a hole.

    The scan ends at the end of `data`, where the frames reach `offset_end`, or at about
    `bytes_max`, but after at least one frame. A damaged frame below the wanted offsets is skipped
    if its head is intact.
    """
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
            damage = _damage(data, position, topic, offset)
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


def _damage(data: bytes, position: int, topic: int, offset: int) -> Damage:
    """Return the offsets that are lost with a damaged frame."""
    head_bytes = data[position : position + fmt.FRAME_HEAD_BYTES]
    head = fmt.read_head(head_bytes, 0)
    reason = "checksum does not match"
    if fmt.head_fault(head_bytes) or head.topic != topic or head.kind > fmt.KIND_ROWS:
        return Damage(offset, None, reason)
    if position + fmt.FRAME_PREFIX_BYTES + head.length > len(data):
        return Damage(head.offset, None, reason)
    return Damage(head.offset, head.offset + head.records, reason)


# -- requests -------------------------------------------------------------------------------------


class Fetcher:
    """Fetches byte ranges of objects. Any number of threads may ask; they share requests.

    Ranges under way, fetched ahead and used are in one cache of twice `ahead_bytes`; the least
    recently used one makes room.

    Args:
        store: where objects are; it has its own retries.
        ahead_bytes: the most bytes that are fetched ahead and not used yet.
        threads: how many requests ahead run at once; 0 fetches nothing ahead.
    """

    def __init__(
        self, store: ObjectStore, *, ahead_bytes: int, threads: int = AHEAD_THREADS
    ) -> None:
        self._store = store
        self.ahead_bytes_max = ahead_bytes
        self._pool = ThreadPoolExecutor(threads, "frazil-objects") if threads else None
        self._ranges: OrderedDict[ByteRange, Future[bytes]] = OrderedDict()
        """The least recently used first."""
        self._unused: set[ByteRange] = set()
        """Ranges that were fetched ahead."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._trouble: Unavailable | None = None
        """The error of the last request, if it failed."""
        self._probing = threading.Lock()
        self.bytes_fetched = 0

    @property
    def cache_bytes(self) -> int:
        """Return the memory of all ranges."""
        return sum(span.length for span in self._ranges)

    @property
    def ahead_bytes(self) -> int:
        """Return the bytes that were fetched ahead and not used yet."""
        return sum(span.length for span in self._unused)

    def get(self, span: ByteRange) -> bytes:
        """Return the bytes of a range, from the cache, a pending request or a new one.

        Raises the errors of the store's `get`.
        """
        with self._lock:
            future = self._ranges.get(span)
            if future is None:
                mine = self._added(span, Future())
            else:
                self._ranges.move_to_end(span)
                self._unused.discard(span)
        if future is None:
            return self._answer(span, mine)
        try:
            return future.result()
        except (FrazilError, CancelledError):
            # The request was another reader's: this one tries for itself.
            return self.again(span)

    def again(self, span: ByteRange) -> bytes:
        """Fetch a range anew after a damaged answer and replace its cached bytes."""
        with self._lock:
            mine = self._added(span, Future())
        return self._answer(span, mine)

    def ahead(self, spans: Sequence[ByteRange]) -> None:
        """Start to fetch the ranges that are needed next, in order, as far as the budget goes."""
        with self._lock:
            for span in spans:
                if span in self._ranges:
                    self._ranges.move_to_end(span)
                    continue
                has_room = self.ahead_bytes + span.length <= self.ahead_bytes_max
                if self._pool is None or self._is_closed or not has_room:
                    return
                self._added(span, self._pool.submit(self._fetch, span))
                self._unused.add(span)

    def close(self) -> None:
        """Drop all bytes; pending requests end by themselves."""
        with self._lock:
            self._is_closed = True
            self._ranges.clear()
            self._unused.clear()
        if self._pool is not None:
            # Without waiting: with a store that is down this would take all its retries.
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _added(self, span: ByteRange, future: Future[bytes]) -> Future[bytes]:
        """Cache a request; the caller has the lock."""
        if self._is_closed:
            raise Closed("reader of objects is closed")
        self._ranges[span] = future
        self._ranges.move_to_end(span)
        size = self.cache_bytes
        while size > 2 * self.ahead_bytes_max:
            oldest, _future = self._ranges.popitem(last=False)
            self._unused.discard(oldest)
            size -= oldest.length
        return future

    def _answer(self, span: ByteRange, mine: Future[bytes]) -> bytes:
        """Fetch a range for this thread and for all that wait for it."""
        try:
            data = self._fetch(span)
        except BaseException as error:
            with self._lock:
                if self._ranges.get(span) is mine:
                    del self._ranges[span]
            mine.set_exception(error)
            raise
        mine.set_result(data)
        return data

    def _fetch(self, span: ByteRange) -> bytes:
        """Ask the store; after a failure one thread tries and the others fail at once.

        A try takes until the store's retries end: otherwise a store that is down would block all
        reading threads, those of other topics too.
        """
        trouble = self._trouble
        if trouble is not None and not self._probing.acquire(blocking=False):
            raise Unavailable(trouble.message, **trouble.details)
        try:
            data = self._store.get(span.key, start=span.start, length=span.length)
        except Unavailable as error:
            details = {"retry_after_ms": RETRY_AFTER_MS, **error.details}
            self._trouble = Unavailable(error.message, **details)
            raise self._trouble from error
        finally:
            if trouble is not None:
                self._probing.release()
        self._trouble = None
        with self._lock:
            self.bytes_fetched += len(data)
        return data


# -- the source -----------------------------------------------------------------------------------


class _Changed(Exception):
    """The object is no longer registered: look again."""


class ObjectsSource(HistoryPins):
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
        catalog: ObjectCatalog,
        store: ObjectStore,
        codecs: Callable[[int], Decoder],
        *,
        ahead_bytes: int = AHEAD_BYTES,
        threads: int = AHEAD_THREADS,
    ) -> None:
        super().__init__()
        self._catalog = catalog
        self._codecs = codecs
        self.fetcher = Fetcher(store, ahead_bytes=ahead_bytes, threads=threads)
        self._block_bytes = max(1, min(BLOCK_BYTES, ahead_bytes // 2))
        self._indexes: LruCache[ObjectIndex] = LruCache(INDEXES_MAX)
        self._positions: LruCache[tuple[ByteRange, int]] = LruCache(POSITIONS_MAX)
        """By topic and offset: the range that a sequential reader read last, and where it ended."""
        self._lock = threading.Lock()
        self._faults: dict[tuple[str, int], dict[str, Any]] = {}
        """Damaged objects that readers found, by key and position; 0 is a missing object."""
        self._retiring: dict[int, int] = {}
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
        while True:
            try:
                return self._read(self._catalog.topic(topic), offset, bytes_max)
            except _Changed:
                continue

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
        special = covering(index.ranges, offset)
        if special is None:
            batches = self._batches(picture, index, offset, bytes_max)
            return Piece(batches, batches[-1].offset_next)
        if special.kind == RANGE_LOST:
            raise lost_error(special, topic=picture.topic)
        # A piece of its own: the gap is known without the store.
        return Piece([], special.end, (OffsetRange(offset, special.end, special.reason),))

    # -- frames ----------------------------------------------------------------------------------

    def _batches(
        self, picture: TopicObjects, index: ObjectIndex, offset: int, bytes_max: int
    ) -> list[Batch]:
        """Read and decode the frames from an offset on."""
        topic = picture.topic
        decoder = self._codecs(topic)
        before = self._positions.get((topic, offset))
        number = index.interval(offset)
        position, span = index.positions[number], index.span(number, number + 1)
        if before is not None:
            # A reader that continues: in the bytes that it has, else with the next block.
            last, stopped = before
            if last.key == span.key:
                position, span = stopped, last
            if position >= span.start + span.length or last.key != span.key:
                span = index.block(position)
                position = span.start
            self._go_ahead(picture, index, span)
        limit = index.limit(offset)
        found = self._scanned(index, span, position, topic, offset, limit, bytes_max)
        batches = batches_of(found.frames, decoder, offset=offset, topic=topic)
        if batches[-1].offset_next > limit:
            batches[-1] = batches[-1].slice(0, limit - batches[-1].offset)
        self.frames_read += len(found.frames)
        self._positions.put((topic, batches[-1].offset_next), (span, span.start + found.position))
        return batches

    def _scanned(
        self,
        index: ObjectIndex,
        span: ByteRange,
        position: int,
        topic: int,
        offset: int,
        offset_end: int,
        bytes_max: int,
    ) -> Scan:
        """Return verified frames from `offset` on, fetched a second time if need be.

        Raises:
            CorruptionError: if the object is missing, or the record at the offset is damaged in the
                store as well.
        """
        descriptor = index.descriptor
        found: Scan | None = None
        for fetch in (self.fetcher.get, self.fetcher.again):
            try:
                data = fetch(span)
            except NotFound:
                if not self._is_registered(topic, descriptor.first, descriptor.key):
                    raise _Changed from None
                continue
            found = scan_frames(
                data,
                position - span.start,
                topic=topic,
                offset=offset,
                offset_end=offset_end,
                bytes_max=bytes_max,
            )
            if found.frames:
                if self._faults:
                    self._clear_faults(span.key, position, span.start + found.position)
                return found
        if found is None:
            raise self._fault(
                "object_missing",
                "a registered object is missing or cut short in the store: bring it back under its "
                "key, from a copy or an older version; reading may go on at offset_next",
                topic=topic,
                key=descriptor.key,
                offset_first=offset,
                offset_next=descriptor.end,
            )
        damaged_at = span.start + found.position
        damage = found.damage or Damage(offset, None, "records are missing")
        end = damage.end or 0
        if end <= offset:
            end = index.offset_after(damaged_at)
        raise self._fault(
            "object_damaged",
            "records in an object are damaged in the store: bring the object back under its key, "
            "from a copy or an older version; reading may go on at offset_next",
            topic=topic,
            offset_first=damage.first,
            offset_next=min(max(end, offset + 1), descriptor.end),
            reason=damage.reason,
            key=span.key,
            position=damaged_at,
        )

    def _fault(self, name: str, message: str, **facts: Any) -> CorruptionError:
        """Return the error of a fault, which is logged once, however many readers find it."""
        what = (facts["key"], facts.get("position", 0))
        with self._lock:
            is_new = what not in self._faults
            if is_new and len(self._faults) < FAULTS_MAX:
                self._faults[what] = {"event": name, **facts}
        if is_new:
            warn(name, **facts)
        return CorruptionError(message, **facts)

    def _clear_faults(self, key: str, first: int, end: int) -> None:
        """Remove the faults of a byte range that could be read."""
        with self._lock:
            for found, position in list(self._faults):
                if found == key and (not position or first <= position < end):
                    del self._faults[found, position]

    def unreadable(self) -> list[dict[str, Any]]:
        """Return the missing or damaged objects that readers found and that are still registered."""
        with self._lock:
            for what, facts in list(self._faults.items()):
                if not self._is_registered(facts["topic"], facts["offset_first"], facts["key"]):
                    del self._faults[what]
            return list(self._faults.values())

    def _is_registered(self, topic: int, offset: int, key: str) -> bool:
        found = self._catalog.topic(topic).find(offset)
        return found is not None and found.key == key

    # -- reading ahead ----------------------------------------------------------------------------

    def _go_ahead(self, picture: TopicObjects, index: ObjectIndex, span: ByteRange) -> None:
        """Fetch the blocks after a range ahead, as far as the budget goes."""
        left = self.fetcher.ahead_bytes_max
        spans: list[ByteRange] = []
        # Made before `ahead` takes the lock: indexes of the objects that follow are unpacked here.
        for following in self._following(picture, index, span):
            left -= following.length
            if left < 0:
                break
            spans.append(following)
        self.fetcher.ahead(spans)

    def _following(
        self, picture: TopicObjects, index: ObjectIndex, span: ByteRange
    ) -> Iterator[ByteRange]:
        """Yield the blocks after a range, up to the topic's last object."""
        yield from index.blocks_from(span.start + span.length)
        for descriptor in picture.after(index.descriptor.end):
            yield from self._index(descriptor).blocks_from(HEADER_BYTES)

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
        found = self._indexes.get(key)
        if found is None:
            found = ObjectIndex(descriptor, block_bytes=self._block_bytes)
            self._indexes.put(key, found)
        return found

    # -- times and pins --------------------------------------------------------------------------

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none in objects.

        Raises:
            Unavailable: if the store cannot be reached.
        """
        while True:
            picture = self._catalog.topic(topic)
            later = (each for each in picture.descriptors if each.time_last_us >= time_us)
            descriptor = next(later, None)
            if descriptor is None:
                return None
            try:
                return self._first_at(picture, descriptor, time_us)
            except _Changed:
                continue

    def _first_at(self, picture: TopicObjects, descriptor: Descriptor, time_us: int) -> int:
        """Return the first offset at or after a time in an object that has one."""
        index, start = self._index(descriptor), self._first(picture)
        number = max(bisect_left(index.times, time_us) - 1, 0)
        end = index.offset_after(index.positions[number])
        offset = max(index.offsets[number], start)
        if descriptor.time_first_us >= time_us:
            return offset
        while offset < end:
            try:
                piece = self._read(picture, offset, WHOLE)
            except CorruptionError:
                # A reader that starts here gets the error.
                return offset
            for batch in piece.batches:
                for count, append_us in batch.times:
                    if append_us >= time_us:
                        return offset
                    offset += count
            offset = piece.offset_next
        return offset

    def time_at(self, topic: int, *, offset: int) -> int | None:
        """Return the time of an offset's index interval, from metadata alone."""
        descriptor = self._catalog.topic(topic).find(offset)
        if descriptor is None:
            return None
        index = self._index(descriptor)
        return index.times[index.interval(offset)] or None

    def retire(self, topic: int, *, below: int) -> None:
        """Refuse reads below an offset, whose objects are about to expire; 0 allows them again.

        Readers that start meanwhile start above.
        """
        self._retiring[topic] = below
        if not below:
            del self._retiring[topic]
