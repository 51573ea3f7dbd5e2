"""Registered objects as a history source: frames by ranged reads, checked, decoded like the log's.

A read knows its object and the bytes in it from metadata alone: the first record comes with one
request. Whoever reads on has the next blocks fetched ahead.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.log import RANGE_LOST, Batch, Piece, batches_of, covering, lost_error
from frazil.model import OffsetRange
from frazil.objects.fetch import AHEAD_THREADS, Fetcher, Span
from frazil.objects.layout import BLOCK_BYTES, Layout
from frazil.objects.walk import Damage, Walked, Wanted, walk
from frazil.telemetry import warn
from frazil.tiers import HistoryPin

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from typing import Protocol

    from frazil.log import Decoder
    from frazil.objects.descriptor import Descriptor, TopicObjects
    from frazil.objects.store import ObjectStore

    class Pictures(Protocol):
        """Where the registered objects of a topic are known."""

        def topic(self, topic_id: int, /) -> TopicObjects:
            """Return a topic's registered objects at this moment; never blocks."""


__all__ = ["ObjectsSource"]

AHEAD_BYTES: Final = 16 << 20
ATTEMPTS_MAX: Final = 10
LAYOUTS_MAX: Final = 256
PLACES_MAX: Final = 4_096
ALARMS_MAX: Final = 1_000
RETRY_AFTER_MS: Final = 1_000
WHOLE: Final = 1 << 62


class _Place(NamedTuple):
    """Where a reader that goes on will read next, and the span it read last."""

    span: Span
    position: int


class _Changed(Exception):
    """The object is no longer registered: look again."""


class ObjectsSource:
    """Gives the records of registered objects back. Any number of threads may read.

    Args:
        catalog: knows the registered objects.
        store: where they lie.
        codecs: returns the decoder of a topic; it raises `NotFound` for an unknown one.
        ahead_bytes: the most that is fetched ahead, and the most that is kept, over all readers.
        threads: how many requests ahead run at once; with 0 nothing is fetched ahead.
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
        self._layouts: OrderedDict[Hashable, Layout] = OrderedDict()
        self._places: OrderedDict[tuple[int, int], _Place] = OrderedDict()
        self._pins: set[HistoryPin] = set()
        # Re-entrant, because the garbage collector may close a forgotten reader at any point.
        self._lock = threading.RLock()
        self._alarmed: dict[str, dict[str, object]] = {}
        """What readers found missing or damaged, by object and position, with the facts."""
        self._retiring: dict[int, int] = {}
        self.refetches = 0
        self.frames_read = 0

    def close(self) -> None:
        """Let go of what is kept and stop fetching ahead."""
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
        layout = self._layout_of(picture, offset)
        asked = offset
        gaps: list[OffsetRange] = []
        special = covering(layout.ranges, offset)
        while special is not None:
            if special.kind == RANGE_LOST:
                if gaps:
                    # The gap before is told first; the next read is refused.
                    return Piece([], offset, tuple(gaps))
                raise lost_error(special, topic=picture.topic)
            gaps.append(OffsetRange(offset, special.end, special.reason))
            offset = special.end
            special = covering(layout.ranges, offset)
        if offset >= layout.descriptor.end:
            return Piece([], offset, tuple(gaps))
        try:
            batches = self._batches(picture, layout, asked, offset, bytes_max)
        except (CorruptionError, Unavailable):
            # That there is a gap is known without the store.
            if not gaps:
                raise
            return Piece([], offset, tuple(gaps))
        batches[0].gaps = tuple(gaps)
        return Piece(batches, batches[-1].offset_next)

    # -- frames ----------------------------------------------------------------------------------

    def _batches(
        self, picture: TopicObjects, layout: Layout, asked: int, offset: int, bytes_max: int
    ) -> list[Batch]:
        """Read and decode the frames from `offset` on; the reader came from `asked`."""
        topic = picture.topic
        decoder = self._codecs(topic)
        before = self._place(topic, asked)
        position, span = self._span_of(layout, offset, before)
        if before is not None:
            self._go_ahead(picture, layout, span)
        wanted = Wanted(topic, offset, layout.limit(offset), bytes_max)
        found = self._walked(layout, span, position, wanted)
        batches = batches_of(found.frames, decoder, offset=offset, topic=topic)
        if batches[-1].offset_next > wanted.offset_end:
            batches[-1] = batches[-1].slice(0, wanted.offset_end - batches[-1].offset)
        self.frames_read += len(found.frames)
        self._remember(topic, batches[-1].offset_next, _Place(span, span.start + found.position))
        return batches

    def _span_of(self, layout: Layout, offset: int, before: _Place | None) -> tuple[int, Span]:
        """Return the position to walk from and the bytes to ask for."""
        if before is None or before.span.key != layout.descriptor.key:
            number = layout.interval(offset)
            position = layout.positions[number]
        else:
            span, position = before
            if position < span.start + span.length:
                return position, span
            number = layout.interval_at(position)
            position = layout.positions[number]
        if before is None:
            return position, layout.span(number, number + 1)
        return position, layout.rest_of_block(number)

    def _walked(self, layout: Layout, span: Span, position: int, wanted: Wanted) -> Walked:
        """Return verified frames from `wanted.offset` on, fetched a second time if need be.

        Raises:
            CorruptionError: if the record at the offset is damaged in the store as well.
        """
        at = position - span.start
        found = walk(self._bytes(layout, span, wanted), at, wanted)
        if not found.frames:
            self.refetches += 1
            data = self._bytes(layout, span, wanted, again=True)
            found = walk(data, at, wanted)
        if not found.frames:
            raise self._damaged(layout, span, found, wanted)
        if self._alarmed:
            self._calm(layout.descriptor.key, position, span.start + found.position)
        return found

    def _bytes(self, layout: Layout, span: Span, wanted: Wanted, *, again: bool = False) -> bytes:
        fetch = self.fetcher.again if again else self.fetcher.get
        try:
            return fetch(span)
        except Unavailable as error:
            details = {"retry_after_ms": RETRY_AFTER_MS, **error.details}
            raise Unavailable(error.message, **details) from error
        except NotFound:
            self._check_registered(layout.descriptor, wanted.topic)
        try:
            return self.fetcher.again(span)
        except NotFound:
            self._missing(layout.descriptor, wanted)

    def _check_registered(self, descriptor: Descriptor, topic: int) -> None:
        """Look for the object in the newest picture: it may have been replaced or expired."""
        found = self._catalog.topic(topic).find(descriptor.first)
        if found is None or found.key != descriptor.key:
            raise _Changed

    def _missing(self, descriptor: Descriptor, wanted: Wanted) -> NoReturn:
        self._check_registered(descriptor, wanted.topic)
        facts = {
            "topic": wanted.topic,
            "key": descriptor.key,
            "offset_first": wanted.offset,
            "offset_next": descriptor.end,
        }
        self._alarm("object_missing", descriptor.key, facts)
        raise CorruptionError(
            "a registered object is missing or cut short in the store: bring it back under its "
            "key, from a copy or an older version; reading may go on at offset_next",
            **facts,
        )

    def _damaged(
        self, layout: Layout, span: Span, found: Walked, wanted: Wanted
    ) -> CorruptionError:
        position = span.start + found.position
        damage = found.damage or Damage(wanted.offset, None, "records are missing")
        end = damage.end
        if end is None or end <= wanted.offset:
            end = layout.offset_behind(position)
        facts = {
            "topic": wanted.topic,
            "offset_first": damage.first,
            "offset_next": min(max(end, wanted.offset + 1), layout.descriptor.end),
            "reason": damage.reason,
            "key": layout.descriptor.key,
            "position": position,
        }
        self._alarm("object_damaged", f"{layout.descriptor.key}@{position}", facts)
        return CorruptionError(
            "records in an object are damaged in the store: bring the object back under its key, "
            "from a copy or an older version; reading may go on at offset_next",
            **facts,
        )

    def _alarm(self, name: str, what: str, facts: dict[str, object]) -> None:
        """Tell of trouble once, however often readers meet it."""
        with self._lock:
            if what in self._alarmed:
                return
            if len(self._alarmed) < ALARMS_MAX:
                self._alarmed[what] = {"event": name, **facts}
        warn(name, **facts)

    def _calm(self, key: str, first: int, end: int) -> None:
        """Forget the trouble with a stretch of an object that could be read."""
        with self._lock:
            for what, facts in list(self._alarmed.items()):
                position = facts.get("position", first)
                assert isinstance(position, int)
                if facts["key"] == key and first <= position < end:
                    del self._alarmed[what]

    def unreadable(self) -> list[dict[str, object]]:
        """Return what readers found missing or damaged, as long as it is registered and so."""
        with self._lock:
            known = list(self._alarmed.items())
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
                self._alarmed.pop(what, None)
        return found

    # -- what comes next -------------------------------------------------------------------------

    def _go_ahead(self, picture: TopicObjects, layout: Layout, span: Span) -> None:
        """Have the blocks behind a span fetched, as far as the budget goes."""
        left = self.fetcher.ahead_bytes_max
        spans: list[Span] = []
        for following in self._following(picture, layout, span):
            left -= following.length
            if left < 0:
                break
            spans.append(following)
        self.fetcher.ahead(spans)

    def _following(self, picture: TopicObjects, layout: Layout, span: Span) -> Iterator[Span]:
        yield from layout.blocks_from(span.start + span.length)
        for descriptor in picture.after(layout.descriptor.end):
            yield from self._layout(descriptor).blocks_from(descriptor.position)

    def _place(self, topic: int, offset: int) -> _Place | None:
        """Return where a reader that read up to `offset` stopped; None if this is a new one."""
        with self._lock:
            return self._places.get((topic, offset))

    def _remember(self, topic: int, offset: int, place: _Place) -> None:
        with self._lock:
            self._places[topic, offset] = place
            self._places.move_to_end((topic, offset))
            while len(self._places) > PLACES_MAX:
                self._places.popitem(last=False)

    def _layout_of(self, picture: TopicObjects, offset: int) -> Layout:
        descriptor = picture.find(offset)
        if descriptor is not None:
            return self._layout(descriptor)
        behind = picture.after(offset)
        raise CorruptionError(
            "no object holds this offset, run `frazil doctor`; reading may go on at offset_next",
            topic=picture.topic,
            offset_first=offset,
            offset_next=behind[0].first if behind else picture.uploaded,
        )

    def _layout(self, descriptor: Descriptor) -> Layout:
        # Topics that share an object may begin with the same offset, at the same place and with the
        # same gap: one of them may have nothing else.
        place = (descriptor.position, descriptor.length)
        key = (descriptor.key, *place, descriptor.first, descriptor.end, descriptor.ranges)
        with self._lock:
            found = self._layouts.get(key)
            if found is not None:
                self._layouts.move_to_end(key)
                return found
        layout = Layout(descriptor, block_bytes=self._block_bytes)
        with self._lock:
            self._layouts[key] = layout
            while len(self._layouts) > LAYOUTS_MAX:
                self._layouts.popitem(last=False)
        return layout

    # -- times and pins --------------------------------------------------------------------------

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        """Return the first offset appended at or after a time, None if there is none in objects.

        Raises:
            Unavailable: if the store cannot be reached.
        """
        for _ in range(ATTEMPTS_MAX):
            picture = self._catalog.topic(topic)
            later = (each for each in picture.descriptors if each.time_last_us >= time_us)
            descriptor = next(islice(later, 1), None)
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
        layout = self._layout(descriptor)
        number = layout.interval_before(time_us)
        span = layout.span(number, number + 1)
        position, offset, end = span.start, layout.offsets[number], layout.offset_behind(span.start)
        while offset < end:
            special = covering(layout.ranges, offset)
            if special is not None:
                offset = special.end
                continue
            wanted = Wanted(topic, offset, layout.limit(offset), WHOLE)
            try:
                found = self._walked(layout, span, position, wanted)
            except CorruptionError:
                # The reader who starts here is told; it was appended then, or soon after.
                return offset
            for frame in found.frames:
                if frame.head.time >= time_us:
                    return max(frame.head.offset, descriptor.first)
            position = span.start + found.position
            offset = found.frames[-1].head.offset + found.frames[-1].head.records
        return end

    def time_at(self, topic: int, *, offset: int) -> int | None:
        """Return when the interval of the index began that has an offset; the store is not asked."""
        descriptor = self._catalog.topic(topic).find(offset)
        if descriptor is None:
            return None
        layout = self._layout(descriptor)
        return layout.times[layout.interval(offset)] or None

    def pin(self, topic: int, *, offset: int) -> HistoryPin:
        """Keep the objects that hold records from `offset` on."""
        pin = HistoryPin(self._unpin, topic, offset)
        with self._lock:
            self._pins.add(pin)
        return pin

    def retire(self, topic: int, *, below: int) -> None:
        """Give nothing below an offset any more: its objects are about to go; 0 takes that back.

        Whoever begins to read meanwhile begins behind them.
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
