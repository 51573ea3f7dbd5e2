"""Rewrites what shared objects hold of a topic as an object of its own.

Small slices of many objects are dear to read and keep whole objects alive. The frames come from
where they still are at hand, else from the objects; one transaction puts the new object in the
place of the old slices. This is the only case in which registered records are uploaded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from frazil.errors import CorruptionError, FrazilError, NotFound
from frazil.log import format as frame_format
from frazil.objects.descriptor import Descriptor, Hint
from frazil.objects.draft import Draft, drafted
from frazil.objects.frame_run import FrameRun, Tally, Topic, verify_frame
from frazil.objects.looking import read_tail
from frazil.objects.store import PIECE_BYTES_MAX, ObjectStore
from frazil.objects.uploader import Flight, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Buffer

    from frazil.clock import Clock
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.format import Range, TopicSlice
    from frazil.objects.frame_run import FrameSource
    from frazil.objects.uploader import Uploader

__all__ = ["ObjectRun", "RewriteSettings", "Rewriter"]


class RewriteSettings(Protocol):
    """The settings of `objects` that rewriting needs."""

    @property
    def object_bytes_max(self) -> int:
        """About how many bytes an object may have."""

    @property
    def index_bytes(self) -> int:
        """How far apart the entries of an object's index are."""

    @property
    def rewrite_s(self) -> float:
        """At which age shared objects are rewritten."""

    @property
    def rewrite_objects(self) -> int:
        """How many shared objects of a topic are rewritten earlier."""


@attrs.frozen(kw_only=True)
class ObjectRun:
    """The frames of neighbouring registered objects; see `FrameRun`."""

    store: ObjectStore
    topic: Topic
    descriptors: tuple[Descriptor, ...]
    hint: Hint

    @property
    def first(self) -> int:
        return self.descriptors[0].first

    @property
    def end(self) -> int:
        return self.descriptors[-1].end

    @property
    def size(self) -> int:
        return sum(found.length for found in self.descriptors)

    @property
    def ranges(self) -> tuple[Range, ...]:
        return tuple(special for found in self.descriptors for special in found.ranges)

    def pieces(self, tally: Tally | None = None) -> Iterator[Buffer]:
        for found in self.descriptors:
            position, end = found.position, found.position + found.length
            want = PIECE_BYTES_MAX
            while position < end:
                length = min(want, end - position)
                view = memoryview(self.store.get(found.key, start=position, length=length))
                whole = self._whole(view, found, position, tally)
                if not whole:
                    # A frame that is larger than a piece: take it whole.
                    want = max(2 * length, _frame_bytes(view))
                    if length == end - position or want > frame_format.BODY_BYTES_MAX * 2:
                        raise _damaged(found, position, "frame ends behind the object's slice")
                    continue
                for start in range(0, whole, PIECE_BYTES_MAX):
                    yield view[start : min(whole, start + PIECE_BYTES_MAX)]
                position += whole
                want = PIECE_BYTES_MAX

    def _whole(
        self, view: memoryview, found: Descriptor, position: int, tally: Tally | None
    ) -> int:
        """Return the bytes of the whole frames at the beginning, verified and counted."""
        at = 0
        while at + frame_format.FRAME_HEAD_BYTES <= len(view):
            length = _frame_bytes(view[at:])
            if at + length > len(view):
                break
            if tally is not None:
                head, fault = verify_frame(view, at, topic=self.topic.spec.id)
                if head is None:
                    raise _damaged(found, position + at, fault)
                runs_end = at + frame_format.FRAME_HEAD_BYTES + head.runs * frame_format.RUN.size
                tally.add(head, view[at + frame_format.FRAME_HEAD_BYTES : runs_end], length)
            at += length
        return at


def _overlaps(found: Descriptor) -> bool:
    """Tell whether the first frame begins in the object before."""
    return any(entry.offset < found.first for entry in found.entries()[:1])


def _frame_bytes(view: memoryview) -> int:
    if len(view) < frame_format.FRAME_PREFIX_BYTES:
        return frame_format.FRAME_PREFIX_BYTES
    return frame_format.FRAME_PREFIX_BYTES + int.from_bytes(view[8:12], "little")


def _damaged(found: Descriptor, position: int, reason: str) -> CorruptionError:
    return CorruptionError(
        "stored records are damaged, their object cannot be rewritten",
        key=found.key,
        position=position,
        offset_first=found.first,
        offset_next=found.end,
        reason=reason,
    )


class Rewriter:
    """Rewrites topics, each by one thread at a time."""

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        source: FrameSource,
        *,
        uploader: Uploader,
        broker: bytes,
        clock: Clock,
        settings: RewriteSettings,
        flight: Flight | None = None,
        on_step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._source = source
        self._troubles = uploader.rewriting
        self._broker = broker
        self._clock = clock
        self._settings = settings
        self._flight = flight if flight is not None else Flight()
        self._on_step = on_step
        self.objects_rewritten = 0
        self.bytes_rewritten = 0

    def due(self, topic_id: int) -> bool:
        """Tell whether a topic has many shared objects, or old ones, and may be tried now."""
        if not self._troubles.due(topic_id):
            return False
        shared = [found for found in self._catalog.topic(topic_id).descriptors if found.shared]
        if len(shared) >= self._settings.rewrite_objects:
            return True
        oldest_us = self._clock.now_us() - int(self._settings.rewrite_s * 1e6)
        return any(found.created_us <= oldest_us for found in shared)

    def rewrite(self, topic_id: int) -> bool:
        """Write the first neighbouring shared slices of a topic as one object, and replace them.

        Returns:
            Whether it was done. What goes wrong is shown with the uploader's troubles.
        """
        with self._catalog.claim(topic_id) as mine:
            if not mine or not self._troubles.due(topic_id):
                return False
            try:
                old = self._group(topic_id)
                if not old:
                    return False
                self._rewrite(topic_id, old)
            except FrazilError as error:
                self._troubles.note(topic_id, error)
                return False
            self._troubles.clear(topic_id)
            return True

    def _group(self, topic_id: int) -> tuple[Descriptor, ...]:
        """Return the first shared slices that lie one behind another, as many as fit."""
        group: list[Descriptor] = []
        size = 0
        for found in self._catalog.fresh(topic_id).descriptors:
            if not found.shared:
                if group:
                    break
                continue
            size += found.length
            full = size > self._settings.object_bytes_max or len(group) == self._catalog.replace_max
            if group and (full or group[-1].end != found.first or _overlaps(found)):
                break
            group.append(found)
        return tuple(group)

    def _rewrite(self, topic_id: int, old: Sequence[Descriptor]) -> None:
        draft = self._draft(topic_id, old)
        self._on_step("rewriting hashed")
        etag = write(self._store, draft, self._flight)
        self._on_step("rewriting verified")
        self._catalog.replace(topic_id, old, draft.descriptors(etag=etag)[topic_id])
        self._on_step("rewriting registered")
        self.objects_rewritten += 1
        self.bytes_rewritten += draft.size

    def _draft(self, topic_id: int, old: Sequence[Descriptor]) -> Draft:
        first, end = old[0].first, old[-1].end
        try:
            run = self._source.frames(
                topic_id, first, bytes_max=self._settings.object_bytes_max * 2, end=end
            )
            if (run.first, run.end) == (first, end):
                return self._drafted(run)
        except (NotFound, CorruptionError):
            # The objects have it as well.
            pass
        topic = self._described(topic_id, old)
        return self._drafted(
            ObjectRun(store=self._store, topic=topic, descriptors=tuple(old), hint=Hint())
        )

    def _drafted(self, run: FrameRun) -> Draft:
        return drafted(
            [run],
            broker=self._broker,
            epoch=self._catalog.epoch,
            created_us=self._clock.now_us(),
            index_bytes=self._settings.index_bytes,
        )

    def _described(self, topic_id: int, old: Sequence[Descriptor]) -> Topic:
        """Return what the footers of objects say of a topic, the last ones first."""
        schemas: dict[int, bytes] = {}
        producers: dict[int, str] = {}
        newest: TopicSlice | None = None
        for found in old:
            meta = self._store.head(found.key)
            if meta is None:
                raise NotFound("registered object is missing", key=found.key, topic_id=topic_id)
            footer, _sha = read_tail(self._store, meta)
            newest = footer.of(topic_id)
            if newest is None:
                raise CorruptionError("object lacks a registered topic", key=found.key)
            schemas.update(newest.schemas)
            producers.update(newest.producers)
        assert newest is not None
        return Topic(newest.spec, schemas, producers)
