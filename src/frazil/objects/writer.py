"""Uploads of topics, object by object; a crash at any step loses and duplicates no record.

The steps of an object; a crash after any of them is harmless (`docs/internals/objects.md`):

    begun       the metadata has the intent to write it
    written     the store has answered, with an error of unknown outcome or without one
    verified    size, trailer and footer were read back
    registered  the metadata has its descriptor; `uploaded` has moved, the intent is removed

Two pieces of an upload are in memory: one is sent while the next is built.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Conflict, CorruptionError, FrazilError, NotFound, Unavailable
from frazil.log import RANGE_GAP, SpecialRange
from frazil.log import format as log_fmt
from frazil.model import topic_uid
from frazil.objects import format as fmt
from frazil.objects.descriptor import Intent, descriptor_of
from frazil.objects.format import Footer, IndexEntry
from frazil.objects.store import PIECE_BYTES_MAX, STREAM_BYTES, asked_pause_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from frazil.clock import Clock
    from frazil.log import Frame
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.descriptor import Descriptor
    from frazil.objects.frames import TopicFrames
    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = ["ObjectBuilder", "Trouble", "Uploader", "read_tail"]

OBJECT_BYTES_MAX: Final = 1 << 30
INDEX_BYTES: Final = 1 << 20
"""The distance of the entries of an object's index; a seek fetches about this much."""
RANGES_MAX: Final = 1_000
"""An object ends after this many gaps, so that its descriptor stays small."""
TAIL_BYTES: Final = 64 << 10
"""The bytes of the first read of an object's end; they contain most footers."""
RETRY_DELAY_S: Final = 0.5
RETRY_DELAY_MAX_S: Final = 60.0
WAITING_DELAY_S: Final = 2.0
"""The longest pause of a topic with waiting publishers after the store did not answer."""
GONE: Final = "removed before it was uploaded"


class ObjectBuilder:
    """Reads a topic's frames once, from an offset up to a size or an end, and builds their object.

    The object ends before a damaged frame. If its first frame is damaged, `CorruptionError` is
    raised.
    """

    def __init__(
        self,
        source: TopicFrames,
        topic_id: int,
        *,
        first: int,
        end: int,
        bytes_max: int = OBJECT_BYTES_MAX,
        index_bytes: int = INDEX_BYTES,
    ) -> None:
        self._source = source
        self._topic = topic_id
        self._first = first
        self._end = end
        self._bytes_max = bytes_max
        self._index_bytes = index_bytes
        self._digest = hashlib.sha256()
        self.offset = first
        """The offset after the last one that was read."""
        self.is_whole = False
        """Whether the last piece has been built."""
        self.length = self.frames = self.records = 0
        self._time_first_us = self._time_last_us = self._lsn_last = 0
        self._schemas: set[int] = set()
        self._producers: set[int] = set()
        self._ranges: list[SpecialRange] = []
        self._entries: list[IndexEntry] = []
        self._next_entry = fmt.HEADER_BYTES

    def pieces(self, *, broker: bytes, epoch: int, created_us: int) -> Iterator[bytearray]:
        """Yield the object in pieces: a first one of `PIECE_BYTES_MAX`, then small ones."""
        piece, size = bytearray(fmt.MAGIC), PIECE_BYTES_MAX
        for data in self._parts(broker, epoch, created_us):
            view = memoryview(data)
            while len(piece) + len(view) > size:
                room = size - len(piece)
                piece += view[:room]
                view = view[room:]
                yield piece
                piece, size = bytearray(), min(PIECE_BYTES_MAX, STREAM_BYTES)
            piece += view
        self.is_whole = True
        yield piece

    def _parts(self, broker: bytes, epoch: int, created_us: int) -> Iterator[Buffer]:
        """Yield the bytes of all frames, then footer and trailer."""
        for frames in self._read():
            yield from self._taken(frames)
        footer = fmt.encode_footer(self._footer(broker, epoch, created_us))
        yield footer + fmt.encode_trailer(footer, position=fmt.HEADER_BYTES + self.length)

    def _read(self) -> Iterator[list[Frame]]:
        """Yield verified frames, and note the gaps between them."""
        while self.offset < self._end and self.length < self._bytes_max:
            gap = self._source.gap(self._topic, self.offset)
            if gap is None:
                try:
                    frames = self._source.frames(self._topic, offset=self.offset, end=self._end)
                except CorruptionError:
                    if self.offset == self._first:
                        raise
                    return
                except NotFound as error:
                    left = error.details.get("offset_first")
                    if not isinstance(left, int) or left <= self.offset:
                        raise
                    gap = SpecialRange(self.offset, left, RANGE_GAP, GONE)
            if gap is not None:
                if gap.end > self._end or len(self._ranges) == RANGES_MAX:
                    return
                self._ranges.append(gap)
                self.offset = gap.end
                continue
            if self.frames and frames[0].head.offset < self.offset:
                # Frames made from files have other borders, so the next object begins here.
                return
            before = self.frames
            yield frames
            if self.frames - before < len(frames):
                return

    def _taken(self, frames: list[Frame]) -> Iterator[memoryview]:
        """Yield the bytes of frames that fit into the object, and count them for the footer."""
        for head, buffer, start in frames:
            at = start - head.runs * log_fmt.RUN.size
            first = at - log_fmt.FRAME_HEAD_BYTES
            size = log_fmt.FRAME_PREFIX_BYTES + head.length
            position = fmt.HEADER_BYTES + self.length
            if self.frames and self.length + size > self._bytes_max:
                return
            if not self.frames:
                self._time_first_us = head.time
            if position >= self._next_entry:
                self._entries.append(IndexEntry(head.offset, position, head.time))
                self._next_entry = position + self._index_bytes
            self._digest.update(buffer[first:at])
            self._time_last_us = max(self._time_last_us, head.time)
            self._lsn_last = max(self._lsn_last, head.lsn)
            self._schemas.add(head.schema)
            if head.runs:
                self._producers.update(run[0] for run in log_fmt.RUN.iter_unpack(buffer[at:start]))
            end = head.offset + head.records
            self.records += end - max(self.offset, head.offset)
            self.frames += 1
            self.length += size
            self.offset = end
            yield memoryview(buffer)[first : first + size]

    def _footer(self, broker: bytes, epoch: int, created_us: int) -> Footer:
        state = self._source.state(self._topic)
        schemas = state.schemas.copy()
        names = {found.id: found.name for found in list(state.producers.values())}
        return Footer(
            broker=broker,
            epoch=epoch,
            created_us=created_us,
            content_sha256=self._digest.digest(),
            lsn_last=self._lsn_last,
            topic=state.spec.id,
            uid=topic_uid(state.spec),
            spec=state.spec,
            schemas={each: schemas[each] for each in sorted(self._schemas & schemas.keys())},
            producers={each: names[each] for each in sorted(self._producers & names.keys())},
            first=self._first,
            end=self.offset,
            records=self.records,
            frames=self.frames,
            time_first_us=self._time_first_us,
            time_last_us=self._time_last_us,
            length=self.length,
            ranges=tuple(self._ranges),
            index=fmt.pack_index(self._entries),
        )


# -- verification ----------------------------------------------------------------------------------


def find_written(store: ObjectStore, intent: Intent) -> Descriptor | None:
    """Return the descriptor of an intent's object if the store has it whole, else None.

    The key is unique to the intent and written once, and an object becomes visible whole or not at
    all: a valid footer shows that all of it was written.

    Raises:
        CorruptionError: the object under the key is damaged or cut short.
        Unavailable: the store does not answer.
    """
    meta = store.head(intent.key)
    if meta is None:
        return None
    try:
        footer = read_tail(store, meta)
    except CorruptionError:
        # Read again: the answer may be damaged although the object is not.
        footer = read_tail(store, meta)
    if (footer.first, footer.epoch) != (intent.first, intent.epoch):
        raise CorruptionError("object is not the one of its key", key=intent.key)
    return descriptor_of(footer, key=intent.key, size=meta.size, etag=meta.etag)


def read_tail(store: ObjectStore, meta: ObjectMeta) -> Footer:
    """Return the footer of an object.

    Raises:
        CorruptionError: it is damaged or cut short.
        Unavailable: the store does not answer, or the object disappeared.
    """
    if meta.size < fmt.HEADER_BYTES + fmt.TRAILER_BYTES:
        raise CorruptionError("object is cut short", key=meta.key, size=meta.size)
    length = min(meta.size, TAIL_BYTES)
    tail = _get(store, meta.key, meta.size - length, length)
    trailer = fmt.decode_trailer(tail[-fmt.TRAILER_BYTES :], size=meta.size)
    start = len(tail) - fmt.TRAILER_BYTES - trailer.length
    if start >= 0:
        return fmt.read_footer(tail[start : start + trailer.length], trailer)
    return fmt.read_footer(_get(store, meta.key, trailer.position, trailer.length), trailer)


def _get(store: ObjectStore, key: str, start: int, length: int) -> bytes:
    try:
        data = store.get(key, start=start, length=length)
    except NotFound as error:
        raise Unavailable("object disappeared, try again", key=key) from error
    if len(data) != length:
        raise Unavailable("store returned too few bytes, try again", key=key, bytes=len(data))
    return data


# -- uploads ---------------------------------------------------------------------------------------


class Trouble(NamedTuple):
    """The reason why a topic's uploads fail; times are by the monotonic clock."""

    error: FrazilError
    failures: int
    failed_at: float
    retry_at: float


class Uploader:
    """Uploads topics, each by one thread at a time; different topics by any number of threads."""

    index_bytes = INDEX_BYTES

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        source: TopicFrames,
        *,
        broker: bytes,
        clock: Clock,
        object_bytes_max: int = OBJECT_BYTES_MAX,
        on_step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._source = source
        self._broker = broker
        self._clock = clock
        self._on_step = on_step
        self.object_bytes_max = object_bytes_max
        self.troubles: dict[int, Trouble] = {}
        """The reasons why topics fail, by topic."""
        self.bytes_uploaded = 0
        self.objects_uploaded = 0
        self.objects_adopted = 0
        """Objects that an earlier process wrote and this one registered."""

    # -- failures ----------------------------------------------------------------------------------

    def retry(self, topic_id: int) -> None:
        """Permit the next try of a topic at once."""
        self.troubles.pop(topic_id, None)

    def due(self, topic_id: int, *, is_waiting: bool = False) -> bool:
        """Return whether a topic may be tried now; waiting publishes shorten the pause."""
        trouble = self.troubles.get(topic_id)
        if trouble is None:
            return True
        now = self._clock.monotonic()
        hurry = is_waiting and isinstance(trouble.error, Unavailable)
        return now >= trouble.retry_at or (hurry and now >= trouble.failed_at + WAITING_DELAY_S)

    def _failures(self, topic_id: int) -> int:
        trouble = self.troubles.get(topic_id)
        return 0 if trouble is None else trouble.failures

    def _note(self, topic_id: int, error: FrazilError) -> None:
        """Record a failure; the pause grows with each, with jitter."""
        count = self._failures(topic_id) + 1
        delay_s = min(RETRY_DELAY_MAX_S, RETRY_DELAY_S * 2 ** min(count, 10))
        chance = int.from_bytes(self._clock.random_bytes(2), "little") / 0x10000
        wait_s = delay_s * (1 + chance) / 2
        wait_s = max(wait_s, asked_pause_s(error))
        now = self._clock.monotonic()
        self.troubles[topic_id] = Trouble(error, count, now, now + wait_s)

    # -- the cycle ---------------------------------------------------------------------------------

    def cycle(self, topic_id: int, *, is_waiting: bool = False) -> bool:
        """Upload one object of a topic; return False if there was no work or it failed.

        A failure is recorded in `troubles` and tried again later; other topics continue.
        """
        if not self.due(topic_id, is_waiting=is_waiting):
            return False
        try:
            done = self._adopt(topic_id) or self._upload_next(topic_id)
        except FrazilError as error:
            self._note(topic_id, error)
            return False
        self.retry(topic_id)
        return done

    def _adopt(self, topic_id: int) -> bool:
        """Register the object of a pending intent if it was written."""
        intent, found = self._catalog.fresh(topic_id).state.intent, None
        # A damaged one becomes garbage with its intent: the next upload has another key.
        with contextlib.suppress(CorruptionError):
            found = None if intent is None else find_written(self._store, intent)
        if found is None:
            return False
        self._on_step("found")
        self._catalog.register(topic_id, found)
        self._on_step("registered")
        self.objects_adopted += 1
        return True

    def _upload_next(self, topic_id: int) -> bool:
        """Upload the frames from `uploaded` on; False if there are none.

        A topic without any object begins with the oldest offset that is left.
        """
        picture = self._catalog.fresh(topic_id)
        start, durable = self._source.available(topic_id)
        first = picture.uploaded if picture.known else start
        if first >= durable:
            return False
        builder = ObjectBuilder(
            self._source,
            topic_id,
            first=first,
            end=durable,
            bytes_max=self._bytes_max(topic_id),
            index_bytes=self.index_bytes,
        )
        epoch = self._catalog.epoch
        pieces = builder.pieces(broker=self._broker, epoch=epoch, created_us=self._clock.now_us())
        head = [next(pieces)]
        if builder.offset == first:
            return False
        parts = fmt.KeyParts(
            broker=self._broker,
            topic=topic_id,
            uid=topic_uid(self._source.state(topic_id).spec),
            first=first,
            epoch=epoch,
            upload=self._clock.random_bytes(4).hex(),
        )
        intent = Intent(fmt.object_key(parts), first, epoch)
        # The intent comes first: after a crash the object is found and not uploaded again.
        self._catalog.begin(topic_id, intent)
        self._on_step("begun")
        self._write(intent.key, head, None if builder.is_whole else pieces)
        self._register(topic_id, intent)
        return True

    def _write(self, key: str, head: list[bytearray], rest: Iterator[bytearray] | None) -> None:
        """Write an object; on return it is written, or the outcome is unknown."""
        try:
            # The key is unique to this intent, so a conflict means that an earlier try succeeded.
            with contextlib.suppress(Conflict):
                if rest is None:
                    self._store.put(key, head[0])
                else:
                    self._store.put_stream(key, _joined(head, rest))
        except Unavailable as error:
            if error.details.get("outcome") != "unknown":
                raise

    def _register(self, topic_id: int, intent: Intent) -> None:
        try:
            found = find_written(self._store, intent)
        except CorruptionError as error:
            self._catalog.abandon(topic_id, why="it was damaged in transit")
            # The journal is not damaged: the same range is uploaded again under another key.
            raise Unavailable(
                "object is damaged in the store, it is uploaded again", key=intent.key, reason=error
            ) from error
        if found is None:
            raise Unavailable(
                "object is not in the store after it was written, it is uploaded again",
                key=intent.key,
            )
        self._on_step("verified")
        self._catalog.register(topic_id, found)
        self._on_step("registered")
        self.objects_uploaded += 1
        self.bytes_uploaded += found.size

    def _bytes_max(self, topic_id: int) -> int:
        """Return an object's size: half of it after each failure, down to one request.

        Otherwise a store that fails some requests could never receive an object of many parts.
        """
        halved = self.object_bytes_max >> min(self._failures(topic_id), 63)
        return min(self.object_bytes_max, max(halved, PIECE_BYTES_MAX // 2))


def _joined(head: list[bytearray], rest: Iterator[bytearray]) -> Iterator[bytearray]:
    """Yield the first piece without keeping it in memory, then the others."""
    yield head.pop()
    yield from rest
