"""Uploads one topic's frames, object by object; a crash at any step loses and doubles nothing.

The steps of an object, each a moment at which a crash is harmless (`docs/internals/objects.md`):

    hashed      the heads of its frames are hashed, its key is known
    begun       the metadata has the intent to write it
    written     the store has answered, or what it did was looked up
    verified    size, trailer and footer were read back
    registered  the metadata has its descriptor; `uploaded` has moved, the intent is gone
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, Protocol

from frazil.errors import Conflict, CorruptionError, FrazilError, NotFound, Unavailable
from frazil.objects.descriptor import descriptor_of
from frazil.objects.draft import Draft, drafted
from frazil.objects.frame_run import FrameRun, PrecededRun
from frazil.objects.looking import look
from frazil.objects.store import PIECE_BYTES_MAX
from frazil.objects.troubles import Trouble, Troubles

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.clock import Clock
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.frame_run import FrameSource
    from frazil.objects.store import ObjectStore

__all__ = [
    "FLIGHT_BYTES_MAX",
    "Flight",
    "Trouble",
    "UploadSettings",
    "Uploader",
    "next_run",
    "write",
]

FLIGHT_BYTES_MAX: Final = 64 << 20
"""The most bytes of all uploads that are in memory."""
STREAM_BYTES: Final = 2 * PIECE_BYTES_MAX
"""What an upload of many pieces has in memory: one is being sent, one is being made."""


class UploadSettings(Protocol):
    """The settings of `objects` that uploads need."""

    @property
    def object_bytes_max(self) -> int:
        """About how many bytes an object may have."""

    @property
    def index_bytes(self) -> int:
        """How far apart the entries of an object's index are."""


class Flight:
    """Bounds the memory of all uploads together."""

    def __init__(self, bytes_max: int = FLIGHT_BYTES_MAX) -> None:
        self._bytes_free = bytes_max
        self._bytes_max = bytes_max
        self._changed = threading.Condition()

    def take(self, size: int) -> int:
        """Wait until an upload of an object of `size` has its share, and return that."""
        share = min(size if size <= PIECE_BYTES_MAX else STREAM_BYTES, self._bytes_max)
        with self._changed:
            self._changed.wait_for(lambda: self._bytes_free >= share)
            self._bytes_free -= share
        return share

    def give(self, share: int) -> None:
        """Give a share back."""
        with self._changed:
            self._bytes_free += share
            self._changed.notify_all()


def write(store: ObjectStore, draft: Draft, flight: Flight) -> str:
    """Write an object and make sure that it is there; return its etag.

    Raises:
        Unavailable: it is not there, or nobody knows; `damaged` if something else became of it.
        Conflict: there is another object under its key.
    """
    share = flight.take(draft.size)
    try:
        if draft.size <= PIECE_BYTES_MAX:
            (piece,) = draft.pieces()
            store.put(draft.key, piece)
        else:
            store.put_stream(draft.key, draft, size=draft.size)
    except Conflict:
        # Perhaps it was an earlier try of this very write that arrived: looking tells.
        pass
    except Unavailable as error:
        if error.details.get("outcome") != "unknown":
            raise
    finally:
        flight.give(share)
    return _verified(store, draft)


def _verified(store: ObjectStore, draft: Draft) -> str:
    seen = look(store, draft.key, size=draft.size, sha=draft.sha)
    if seen.verdict == "ours":
        return seen.etag
    if seen.verdict == "foreign":
        raise Conflict(
            "another object has this key, uploads of the topic stop",
            key=draft.key,
            foreign=True,
            reason=seen.reason,
        )
    raise Unavailable(
        "object is not in the store as it was written, it is uploaded again",
        key=draft.key,
        found=seen.verdict,
        damaged=seen.verdict == "damaged",
        reason=seen.reason,
    )


class Uploader:
    """Uploads topics, each by one thread at a time; different topics by any number of threads."""

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        source: FrameSource,
        *,
        broker: bytes,
        clock: Clock,
        settings: UploadSettings,
        flight: Flight | None = None,
        on_step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._source = source
        self._broker = broker
        self._clock = clock
        self._settings = settings
        self._flight = flight if flight is not None else Flight()
        self._on_step = on_step
        self._troubles = Troubles(clock)
        self.rewriting = Troubles(clock)
        """Troubles with rewriting: they must not keep new data from being uploaded."""
        self.bytes_uploaded = 0
        self.objects_uploaded = 0
        self.objects_adopted = 0
        """Objects of an earlier life that were registered without being written again."""

    # -- troubles ----------------------------------------------------------------------------------

    @property
    def troubles(self) -> dict[int, Trouble]:
        """Return why topics do not go on, by topic; rewriting only where uploads do."""
        return {**self.rewriting.all(), **self._troubles.all()}

    def trouble(self, topic_id: int) -> Trouble | None:
        """Return why a topic does not go on, as `troubles` has it."""
        return self._troubles.of(topic_id) or self.rewriting.of(topic_id)

    def retry(self, topic_id: int) -> None:
        """Let a topic be tried again at once, also if it has stopped."""
        self._troubles.clear(topic_id)
        self.rewriting.clear(topic_id)

    def due(self, topic_id: int) -> bool:
        """Tell whether a topic may be tried now."""
        return self._troubles.due(topic_id)

    def note(self, topic_id: int, error: FrazilError) -> Trouble:
        """Remember a failure; the topic waits longer each time."""
        return self._troubles.note(topic_id, error)

    # -- the cycle ---------------------------------------------------------------------------------

    def cycle(self, topic_id: int) -> bool:
        """Upload one object of a topic; False if there was nothing to do or it could not be done.

        What goes wrong is remembered (`troubles`) and tried again later; other topics go on.
        """
        with self._catalog.claim(topic_id) as mine:
            if not mine or not self.due(topic_id):
                return False
            try:
                done = self._settle(topic_id) or self._upload_next(topic_id)
            except FrazilError as error:
                self.note(topic_id, error)
                return False
            self._troubles.clear(topic_id)
            return done

    def settle(self, topic_id: int) -> bool:
        """Bring an upload to its end that was begun before, without beginning another.

        It is tried now, whatever the topic's last trouble was: somebody waits, and is told what
        goes wrong by the caller, who notes it.

        Returns:
            Whether nothing is pending any more; False if another thread has the topic.

        Raises:
            FrazilError: it could not be done; the upload is pending as before.
        """
        with self._catalog.claim(topic_id) as mine:
            if not mine:
                return False
            if not self._settle(topic_id) and self._catalog.intent(topic_id) is not None:
                self._catalog.abandon(topic_id, why="its upload did not end")
            return True

    def _settle(self, topic_id: int) -> bool:
        """Register the object of an intent if it was written; else leave the intent as it is."""
        picture = self._catalog.fresh(topic_id)
        intent = self._catalog.intent(topic_id)
        if intent is None:
            return False
        if picture.known and picture.uploaded != intent.first:
            # The range came into the catalog another way; what was written for it is not needed.
            self._catalog.abandon(topic_id, why="its range is registered with another object")
            return False
        seen = look(self._store, intent.key, size=intent.size, sha=intent.sha)
        if seen.verdict == "foreign":
            raise Conflict(
                "another object has this key, uploads of the topic stop",
                key=intent.key,
                foreign=True,
                reason=seen.reason,
            )
        found = seen.footer.of(topic_id) if seen.footer is not None else None
        if seen.verdict != "ours" or found is None:
            return False
        descriptor = descriptor_of(
            found,
            key=intent.key,
            size=intent.size,
            epoch=intent.epoch,
            sha=intent.sha,
            etag=seen.etag,
            created_us=intent.created_us,
            shared=False,
        )
        self._on_step("found")
        self._catalog.register(topic_id, descriptor, intent.hint)
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
            # What lies before the damage can be had; if nothing does, the damage is met again.
            if not self._upload(topic_id, end=damaged):
                raise
            return True

    def _upload(self, topic_id: int, *, end: int | None) -> bool:
        """Upload the frames behind `uploaded`, up to `end` if that is given."""
        draft = self._next_draft(topic_id, end=end)
        if draft is None:
            return False
        self._on_step("hashed")
        # First the intent: after a crash what was written is found, and not written again.
        self._catalog.begin(topic_id, draft.intent())
        self._on_step("begun")
        try:
            etag = write(self._store, draft, self._flight)
        except Unavailable as error:
            if error.details.get("damaged"):
                # Under this key nothing whole can be created any more.
                self._catalog.abandon(topic_id, why="it was damaged on its way")
            raise
        self._on_step("verified")
        descriptor = draft.descriptors(etag=etag)[topic_id]
        self._catalog.register(topic_id, descriptor, draft.runs[0].hint)
        self._on_step("registered")
        self.objects_uploaded += 1
        self.bytes_uploaded += draft.size
        return True

    def _bytes_max(self, topic_id: int) -> int:
        """Return how large an object may be: half of it after each failure, down to one request.

        A store that answers most requests would else never take an object of many parts.
        """
        most = self._settings.object_bytes_max
        halved = most >> min(self._troubles.count(topic_id), 63)
        return min(most, max(halved, PIECE_BYTES_MAX // 2))

    def _next_draft(self, topic_id: int, *, end: int | None) -> Draft | None:
        run = next_run(
            self._source,
            self._catalog,
            topic_id,
            bytes_max=self._bytes_max(topic_id),
            end=end,
        )
        if run is None:
            return None
        return drafted(
            [run],
            broker=self._broker,
            epoch=self._catalog.epoch,
            created_us=self._clock.now_us(),
            index_bytes=self._settings.index_bytes,
        )


def next_run(
    source: FrameSource,
    catalog: ObjectCatalog,
    topic_id: int,
    *,
    bytes_max: int,
    end: int | None = None,
) -> FrameRun | None:
    """Return the frames behind what is registered of a topic; None if there are none.

    What is gone everywhere before it was uploaded is told as a gap; a topic without any object
    begins with the oldest offset that there is.
    """
    picture = catalog.fresh(topic_id)
    start, durable = source.available(topic_id)
    first = picture.uploaded if picture.known else start
    if first >= durable:
        return None
    try:
        run = source.frames(topic_id, first, bytes_max=bytes_max, end=end)
    except NotFound as error:
        found = error.details.get("offset_first")
        if not isinstance(found, int) or found <= first:
            raise
        run = source.frames(topic_id, found, bytes_max=bytes_max, end=end)
        if picture.known:
            run = PrecededRun(run, first, "gone before it was uploaded")
    assert run.end <= durable, "nothing beyond `durable` leaves the process"
    return run if run.end > run.first else None
