"""Watches: changes under a prefix, as they are committed, without polling.

A watch never slows a commit down. Its queue is bounded; a consumer that falls behind, or asks for
changes that are no longer kept, gets a watch that is `lagging` and ends. It then watches anew and
reads the whole prefix: see `frazil.metadata.store.MetadataStore.watch`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import Overloaded
from frazil.metadata.transaction import Revision

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["WATCHES_MAX", "WATCH_BYTES_MAX", "WATCH_EVENTS_MAX", "Event", "Watch", "WatchHub"]

WATCHES_MAX: Final = 1_000
WATCH_EVENTS_MAX: Final = 10_000
WATCH_BYTES_MAX: Final = 16 << 20


@attrs.frozen
class Event:
    """One key's change: its new value, or None if it was deleted, and the revision of it."""

    key: str
    value: bytes | None
    revision: Revision

    @property
    def size(self) -> int:
        """The bytes that the event holds in memory, about."""
        return len(self.key) + len(self.value or b"")


class _EventQueue:
    """A queue of events that knows its size and whether one more fits."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.bytes = 0

    def push(self, event: Event) -> None:
        self.events.append(event)
        self.bytes += event.size

    def pop(self) -> Event:
        event = self.events.popleft()
        self.bytes -= event.size
        return event

    def clear(self) -> None:
        self.events.clear()
        self.bytes = 0

    @property
    def is_over(self) -> bool:
        return len(self.events) > WATCH_EVENTS_MAX or self.bytes > WATCH_BYTES_MAX


class Watch:
    """The events under one prefix, in the order of their revisions. Safe for any thread.

    Iterating waits for the next event and ends when the watch is closed, its store is closed or
    has failed, or it is `lagging`. The events of one transaction share a revision.

    Attributes:
        prefix: what the keys of all events start with.
        revision: the watch has every event after this revision, unless it is lagging.
    """

    def __init__(
        self, prefix: str, revision: Revision, forget: Callable[[Watch], None] | None = None
    ) -> None:
        self.prefix: Final = prefix
        self.revision: Final = revision
        self._forget = forget
        self._queue = _EventQueue()
        self._changed = threading.Condition()
        self._lagging = False
        self._ended = False

    @property
    def lagging(self) -> bool:
        """Whether events were dropped: watch anew and read the whole prefix."""
        with self._changed:
            return self._lagging

    @property
    def ended(self) -> bool:
        """Whether no further event will come."""
        with self._changed:
            return self._ended

    def push(self, event: Event) -> None:
        """Give the watch one more event; never waits. For stores."""
        if event.revision <= self.revision or not event.key.startswith(self.prefix):
            return
        with self._changed:
            if self._ended:
                return
            self._queue.push(event)
            if self._queue.is_over:
                self._lag()
            self._changed.notify_all()

    def lag(self) -> None:
        """Drop the events and end the watch as lagging. For stores."""
        with self._changed:
            self._lag()
            self._changed.notify_all()

    def _lag(self) -> None:
        # Half of the events would look like all of them: drop what waits, too.
        self._queue.clear()
        self._lagging = True
        self._ended = True

    def end(self) -> None:
        """End the watch behind the events that wait. For stores."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def drain(self) -> list[Event]:
        """Take the events that are there, without waiting."""
        with self._changed:
            events = list(self._queue.events)
            self._queue.clear()
            return events

    def close(self) -> None:
        """Drop the events and wake whoever waits for one. May be called again."""
        with self._changed:
            self._queue.clear()
            self._ended = True
            self._changed.notify_all()
        # The hub's lock is taken without holding ours: a commit takes them the other way round.
        if self._forget is not None:
            self._forget(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        with self._changed:
            while not self._queue.events:
                if self._ended:
                    raise StopIteration
                self._changed.wait()
            return self._queue.pop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class WatchHub:
    """The watches of one store and the recent events from which a new one can catch up."""

    def __init__(self, revision: Revision) -> None:
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._recent = _EventQueue()
        self._revision = revision
        # Every event after this revision is still in `_recent`.
        self._compacted = revision

    def watch(self, prefix: str, after_revision: int | None, *, reached: int = 0) -> Watch:
        """Return a watch of the events after `after_revision`, or from now on.

        `reached` is a revision that the store has come to although its events are on their way.
        """
        with self._lock:
            self._watches = [watch for watch in self._watches if not watch.ended]
            if len(self._watches) >= WATCHES_MAX:
                raise Overloaded("too many metadata watches", watches_max=WATCHES_MAX)
            after = self._revision if after_revision is None else Revision(after_revision)
            watch = Watch(prefix, after, self._forget)
            if not self._compacted <= after <= max(self._revision, reached):
                # A revision from the future was lost with the metadata that had it: start over.
                watch.lag()
                return watch
            for event in self._recent.events:
                watch.push(event)
            self._watches.append(watch)
            return watch

    def publish(self, revision: Revision, events: Sequence[Event]) -> None:
        """Give the events of one durable transaction to all watches. Calls come in order."""
        with self._lock:
            assert revision > self._revision, "revisions grow"
            self._revision = revision
            for event in events:
                self._recent.push(event)
                for watch in self._watches:
                    watch.push(event)
            while self._recent.is_over:
                self._compacted = self._recent.pop().revision

    def end(self) -> None:
        """End all watches behind the events that wait in them."""
        with self._lock:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.end()

    def lag(self) -> None:
        """End all watches as lagging: events were lost."""
        with self._lock:
            watches, self._watches = self._watches, []
        for watch in watches:
            watch.lag()

    def _forget(self, watch: Watch) -> None:
        with self._lock:
            if watch in self._watches:
                self._watches.remove(watch)
