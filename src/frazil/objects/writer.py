"""Uploads topics, object by object; a crash at any step loses and doubles nothing.

The steps of an object, each a point at which a crash is harmless (`docs/internals/objects.md`):

    begun       the metadata has the intent to write it
    written     the store has answered, with an error of unknown outcome or without one
    verified    size, trailer and footer were read back
    registered  the metadata has its descriptor; `uploaded` has moved, the intent is gone
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

import attrs

from frazil.errors import Conflict, CorruptionError, FrazilError, NotFound, Unavailable
from frazil.model import topic_uid
from frazil.objects import format as fmt
from frazil.objects.descriptor import Intent, descriptor_of
from frazil.objects.format import Footer, Range
from frazil.objects.frames import FooterStats
from frazil.objects.store import PIECE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from frazil.clock import Clock
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.descriptor import Descriptor
    from frazil.objects.frames import FrameSource, UploadRange
    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = [
    "ObjectBuilder",
    "Trouble",
    "UploadMemory",
    "UploadSettings",
    "Uploader",
    "read_tail",
]

MEMORY_BYTES_MAX: Final = 64 << 20
"""The memory of all uploads together."""
STREAM_BYTES: Final = 2 * PIECE_BYTES_MAX
"""The memory of an upload of many pieces: one is sent while the next is built."""
FOOTER_ROOM_BYTES: Final = 1 << 20
"""Room for the footer of an object that is sent in one piece."""
INDEX_BYTES: Final = 1 << 20
"""The distance of the entries of an object's index; a seek fetches about this much."""
TAIL_BYTES: Final = 64 << 10
"""Bytes that the first read of an object's end fetches; they hold most footers whole."""
RETRY_DELAY_S: Final = 0.5
RETRY_DELAY_MAX_S: Final = 60.0
WAITING_DELAY_S: Final = 2.0
"""The longest pause of a topic with waiting publishers after the store did not answer."""


class UploadSettings(Protocol):
    """The settings of `objects` that uploads need."""

    @property
    def object_bytes_max(self) -> int:
        """About the most bytes of an object."""


class UploadMemory:
    """Bounds the memory of all uploads together."""

    def __init__(self, bytes_max: int = MEMORY_BYTES_MAX) -> None:
        self._bytes_free = self._bytes_max = bytes_max
        self._changed = threading.Condition()

    def take(self, size: int) -> int:
        """Wait until the memory for an object of `size` is free; return the bytes taken."""
        share = min(size if size <= PIECE_BYTES_MAX else STREAM_BYTES, self._bytes_max)
        with self._changed:
            self._changed.wait_for(lambda: self._bytes_free >= share)
            self._bytes_free -= share
        return share

    def give(self, share: int) -> None:
        """Give memory back."""
        with self._changed:
            self._bytes_free += share
            self._changed.notify_all()


class ObjectBuilder:
    """Builds one object. Iterating it yields the bytes in pieces of `PIECE_BYTES_MAX`.

    Each iteration reads the frames again and yields the same bytes, so that a write can be
    repeated. A damaged frame raises `CorruptionError` before the last piece.
    """

    def __init__(
        self,
        frames: UploadRange,
        *,
        broker: bytes,
        epoch: int,
        created_us: int,
        index_bytes: int,
    ) -> None:
        self._frames = frames
        self._broker = broker
        self._epoch = epoch
        self._created_us = created_us
        self._index_bytes = index_bytes

    def __iter__(self) -> Iterator[bytearray]:
        stats = FooterStats(
            first=self._frames.first, position=fmt.HEADER_BYTES, index_bytes=self._index_bytes
        )
        piece = bytearray(fmt.MAGIC)
        for data in self._frames.read(stats):
            view = memoryview(data)
            while len(piece) + len(view) > PIECE_BYTES_MAX:
                room = PIECE_BYTES_MAX - len(piece)
                piece += view[:room]
                view = view[room:]
                yield piece
                piece = bytearray()
            piece += view
        assert stats.position - fmt.HEADER_BYTES == self._frames.size
        footer = fmt.encode_footer(self._footer(stats))
        piece += footer + fmt.encode_trailer(footer, position=stats.position)
        while len(piece) > PIECE_BYTES_MAX:
            yield piece[:PIECE_BYTES_MAX]
            piece = piece[PIECE_BYTES_MAX:]
        yield piece

    def _footer(self, stats: FooterStats) -> Footer:
        frames = self._frames
        schemas, producers = frames.schemas, frames.producers
        return Footer(
            broker=self._broker,
            epoch=self._epoch,
            created_us=self._created_us,
            content_sha256=stats.sha256,
            lsn_last=stats.lsn_last,
            topic=frames.spec.id,
            uid=topic_uid(frames.spec),
            spec=frames.spec,
            schemas={each: schemas[each] for each in sorted(stats.schemas) if each in schemas},
            producers={
                each: producers[each] for each in sorted(stats.producers) if each in producers
            },
            first=frames.first,
            end=frames.end,
            records=stats.records,
            frames=stats.frames,
            time_first_us=stats.time_first_us,
            time_last_us=stats.time_last_us,
            length=frames.size,
            ranges=frames.ranges,
            index=stats.index,
        )


# -- verification ------------------------------------------------------------------------------------


def find_written(store: ObjectStore, intent: Intent) -> Descriptor | None:
    """Return the descriptor of an intent's object if the store has it whole, else None.

    The key is unique to the intent, and an object becomes visible whole or not at all: a valid
    footer of the intent's range shows that all of it was written.

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
        # One damaged answer does not mean that the object is damaged.
        footer = read_tail(store, meta)
    if (footer.first, footer.end, footer.epoch) != (intent.first, intent.end, intent.epoch):
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


# -- uploads -----------------------------------------------------------------------------------------


@attrs.frozen
class Trouble:
    """The reason why a topic's uploads fail."""

    error: FrazilError
    since_us: int
    count: int
    failed_at: float
    retry_at: float
    """Both by the monotonic clock."""


class Uploader:
    """Uploads topics, each by one thread at a time; different topics by any number of threads."""

    index_bytes = INDEX_BYTES

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        source: FrameSource,
        *,
        broker: bytes,
        clock: Clock,
        settings: UploadSettings,
        memory: UploadMemory | None = None,
        on_step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._source = source
        self._broker = broker
        self._clock = clock
        self._settings = settings
        self._memory = memory if memory is not None else UploadMemory()
        self._on_step = on_step
        self._troubles: dict[int, Trouble] = {}
        self.bytes_uploaded = 0
        self.objects_uploaded = 0
        self.objects_adopted = 0
        """Objects that an earlier process wrote and this one registered."""

    # -- failures ----------------------------------------------------------------------------------

    @property
    def troubles(self) -> dict[int, Trouble]:
        """Return the reasons why topics fail, by topic."""
        return self._troubles.copy()

    def trouble(self, topic_id: int) -> Trouble | None:
        """Return the reason why a topic fails."""
        return self._troubles.get(topic_id)

    def retry(self, topic_id: int) -> None:
        """Let a topic be tried again at once."""
        self._troubles.pop(topic_id, None)

    def due(self, topic_id: int, *, is_waiting: bool = False) -> bool:
        """Tell whether a topic may be tried now; waiting publishers shorten the pause."""
        trouble = self._troubles.get(topic_id)
        if trouble is None:
            return True
        now = self._clock.monotonic()
        hurry = is_waiting and isinstance(trouble.error, Unavailable)
        return now >= trouble.retry_at or (hurry and now >= trouble.failed_at + WAITING_DELAY_S)

    def _note(self, topic_id: int, error: FrazilError) -> None:
        """Record a failure; the pause grows with each, with jitter."""
        before = self._troubles.get(topic_id)
        count = before.count + 1 if before is not None else 1
        delay_s = min(RETRY_DELAY_MAX_S, RETRY_DELAY_S * 2 ** min(count, 10))
        chance = int.from_bytes(self._clock.random_bytes(2), "little") / 0x10000
        wait_s = delay_s * (1 + chance) / 2
        asked_ms = error.details.get("retry_after_ms")
        if isinstance(asked_ms, int | float):
            wait_s = max(wait_s, asked_ms / 1000)
        now = self._clock.monotonic()
        since_us = before.since_us if before is not None else self._clock.now_us()
        self._troubles[topic_id] = Trouble(error, since_us, count, now, now + wait_s)

    # -- the cycle ---------------------------------------------------------------------------------

    def cycle(self, topic_id: int, *, is_waiting: bool = False) -> bool:
        """Upload one object of a topic; False if there was nothing to do or it failed.

        A failure is recorded in `troubles` and tried again later; other topics go on.
        """
        with self._catalog.claim(topic_id) as mine:
            if not mine or not self.due(topic_id, is_waiting=is_waiting):
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
        picture = self._catalog.fresh(topic_id)
        intent = self._catalog.intent(topic_id)
        if intent is None:
            return False
        if picture.known and picture.uploaded != intent.first:
            self._catalog.abandon(topic_id, why="its range is registered with another object")
            return False
        try:
            found = find_written(self._store, intent)
        except CorruptionError:
            # The next upload has another key; this one becomes garbage with its intent.
            return False
        if found is None:
            return False
        self._on_step("found")
        self._catalog.register(topic_id, found)
        self._on_step("registered")
        self.objects_adopted += 1
        return True

    def _upload_next(self, topic_id: int) -> bool:
        try:
            return self._upload(topic_id, end=None)
        except CorruptionError as error:
            damaged = error.details.get("offset_first")
            if not isinstance(damaged, int):
                raise
            # Frames before the damage can be uploaded; without any the damage is raised again.
            if not self._upload(topic_id, end=damaged):
                raise
            return True

    def _upload(self, topic_id: int, *, end: int | None) -> bool:
        """Upload the frames from `uploaded` on, up to `end` if that is given."""
        frames = self._next_range(topic_id, end=end)
        if frames is None:
            return False
        intent = self._intent(frames)
        builder = ObjectBuilder(
            frames,
            broker=self._broker,
            epoch=intent.epoch,
            created_us=self._clock.now_us(),
            index_bytes=self.index_bytes,
        )
        # The intent comes first: after a crash the object is found and not uploaded again.
        self._catalog.begin(topic_id, intent)
        self._on_step("begun")
        self._write(intent.key, builder, frames.size)
        self._register(topic_id, intent)
        return True

    def _intent(self, frames: UploadRange) -> Intent:
        epoch = self._catalog.epoch
        parts = fmt.KeyParts(
            broker=self._broker,
            topic=frames.spec.id,
            uid=topic_uid(frames.spec),
            first=frames.first,
            end=frames.end,
            epoch=epoch,
            upload=self._clock.random_bytes(4).hex(),
        )
        return Intent(fmt.object_key(parts), frames.first, frames.end, epoch)

    def _write(self, key: str, builder: ObjectBuilder, size: int) -> None:
        """Write an object; on return it was written, or the outcome is unknown."""
        share = self._memory.take(size)
        try:
            if size + FOOTER_ROOM_BYTES > PIECE_BYTES_MAX:
                self._store.put_stream(key, builder)
            elif len(pieces := list(builder)) == 1:
                self._store.put(key, pieces[0])
            else:
                self._store.put_stream(key, pieces)
        except Conflict:
            # The key is unique to this intent: an earlier try of this write has arrived.
            pass
        except Unavailable as error:
            if error.details.get("outcome") != "unknown":
                raise
        finally:
            self._memory.give(share)

    def _register(self, topic_id: int, intent: Intent) -> None:
        try:
            found = find_written(self._store, intent)
        except CorruptionError as error:
            self._catalog.abandon(topic_id, why="it was damaged on its way")
            # Not the journal's damage: the same range is uploaded again under another key.
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

    def _next_range(self, topic_id: int, *, end: int | None) -> UploadRange | None:
        """Return the frames from `uploaded` on; None if there are none.

        Offsets that are gone from this machine before their upload become a gap; a topic without
        any object begins with the oldest offset that is left.
        """
        picture = self._catalog.fresh(topic_id)
        start, durable = self._source.available(topic_id)
        first = picture.uploaded if picture.known else start
        if first >= durable:
            return None
        bytes_max = self._bytes_max(topic_id)
        try:
            found = self._source.frames(topic_id, first, bytes_max=bytes_max, end=end)
        except NotFound as error:
            left = error.details.get("offset_first")
            if not isinstance(left, int) or left <= first:
                raise
            found = self._source.frames(topic_id, left, bytes_max=bytes_max, end=end)
            if picture.known:
                gap = Range(first, left, "gap", "gone before it was uploaded")
                found = attrs.evolve(found, first=first, ranges=(gap, *found.ranges))
        assert found.end <= durable, "nothing beyond `durable` leaves the process"
        return found if found.end > found.first else None

    def _bytes_max(self, topic_id: int) -> int:
        """Return an object's size: half of it after each failure, down to one request.

        A store that answers only most requests would else never take an object of many parts.
        """
        trouble = self._troubles.get(topic_id)
        most = self._settings.object_bytes_max
        halved = most >> min(trouble.count if trouble is not None else 0, 63)
        return min(most, max(halved, PIECE_BYTES_MAX // 2))
