"""The order of a keyed topic's changes: each is resolved against its base before it is written.

A partial update is resolved against the newest image of its key, including changes in flight to
the log. All publishes to a keyed topic use this queue: under one short lock the change becomes the
newest of its key and enters the journal's queue, so that changes are resolved in the order of
offsets. If a base is not written, the journal also refuses the changes that were resolved against
it. An idempotent producer's change is resolved after all earlier calls of the producer are settled,
so that a repeat is recognised and never resolved.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from frazil.model import OP_DELETE
from frazil.topic.admission import when_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from frazil.log import Sender, TopicState
    from frazil.log.codec import Entry
    from frazil.schema import Key
    from frazil.topic.changes import Change, ChangeCodec
    from frazil.topic.frames import ArrowCodec

    Fate: TypeAlias = Change | ArrowCodec
    """A write in flight to the log; the journal's thread finally sets `done` or `failed`."""

NEWEST_MAX: Final = 4096
NEWEST_BYTES_MAX: Final = 4 << 20
"""The number of newest changes at which the written ones are dropped."""


def is_next(state: TopicState, sender: Sender | None) -> bool:
    """Return whether a call is new to the journal; its producer's earlier calls must be settled.

    The journal answers any other call without writing it, as a repeat or as a conflict.
    """
    if sender is None or sender.producer is None:
        return True
    producer = state.producers.get(sender.producer)
    if producer is None or sender.epoch > producer.epoch or not producer.window:
        return True
    last = producer.window[-1]
    return sender.epoch == producer.epoch and sender.sequence == last.sequence + last.records


class Image(NamedTuple):
    """The newest state of a key in `codec`'s columns."""

    values: tuple[object, ...] | None
    """The row's values, None if there is no row."""
    base: Change | None
    """The change in flight with this result; None if it is written."""
    codec: ChangeCodec


if TYPE_CHECKING:
    LookBelow = Callable[[Sequence[Key], ChangeCodec], Sequence[Image]]
    """Returns the written state of each key in the columns of a codec."""


class Sequencer:
    """Orders changes in front of the journal's queue of one keyed topic; has its interface."""

    def __init__(self, queue: Any, look_below: LookBelow) -> None:
        self._queue = queue
        self._look_below = look_below
        self._lock = threading.Lock()
        self._newest: dict[Key, Change] = {}
        """The newest change of each key after the last whole batch."""
        self._newest_bytes = 0
        self._newest_max = NEWEST_MAX
        self._batches: list[ArrowCodec] = []
        """Whole batches in flight; look-ups find their keys once they are written."""
        self._before: dict[Key, Change] = {}
        """Changes in flight before the last of these batches."""
        self._sending: dict[str, Sequence[Fate]] = {}
        """The writes in flight by producer; some may be settled already."""
        self._forgotten = 0
        """The number of removals from `_newest` that a look-up of written state would not show."""
        self.journal = queue.journal

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the queue: `wait_s`, `on_space`, `overloaded`."""
        return getattr(self._queue, name)

    # -- the queue -------------------------------------------------------------------------------

    def submit(self, *entries: Entry) -> bool:
        """Queue entries next to each other, all or none; return False if the queue is full."""
        with self._lock:
            return self._take(entries)

    def submit_answered(
        self, entries: Sequence[Entry], sender: Sender | None, sent: Sequence[Fate]
    ) -> bool | None:
        """Queue a call that the journal only answers; None if the producer sent another since."""
        with self._lock:
            return bool(self._queue.submit(*entries)) if self.is_last(sender, sent) else None

    def submit_waiting(self, *entries: Entry) -> None:
        """Queue entries next to each other, waiting for space.

        The lock is not held during the wait, so other threads and event loops can use the queue.

        Raises:
            Overloaded: if the queue stays full.
        """
        when_room(self, lambda: self.submit(*entries) or None)

    def _take(self, entries: Sequence[Entry]) -> bool:
        if not self._queue.submit(*entries):
            return False
        for _topic, codec, data, count, size, _waiter, sender in entries:
            assert codec is not None
            fate: Any = codec
            if codec.solo:
                self._note_batch(fate)
            else:
                for fate in data if count else (data,):
                    self._note(fate, size // (count or 1))
            if sender is not None and sender.producer is not None:
                self._note_sending(sender.producer, fate)
        return True

    def _note(self, change: Change, size: int) -> None:
        """Make a change the newest of its key."""
        if len(self._newest) > self._newest_max or self._newest_bytes > NEWEST_BYTES_MAX:
            self._forget()
        known = self._newest.get(change.key)
        change.previous = None if known is None else _standing(known)
        self._newest[change.key] = change
        self._newest_bytes += size

    def _note_batch(self, codec: ArrowCodec) -> None:
        self._forget()
        self._before |= self._newest
        self._newest = {}
        self._batches = [*(each for each in self._batches if not _is_settled(each)), codec]

    def _forget(self) -> None:
        """Drop the changes that are written: look-ups of written state find them from now on."""
        self._forgotten += 1
        self._newest = _unwritten(self._newest)
        self._before = _unwritten(self._before)
        self._newest_bytes = sum(len(change.packed) for change in self._newest.values())
        # With a long queue the next check is worth its cost only after more growth.
        self._newest_max = max(NEWEST_MAX, 2 * len(self._newest))

    # -- idempotent producers --------------------------------------------------------------------

    def _note_sending(self, producer: str, fate: Fate) -> None:
        if len(self._sending) > NEWEST_MAX:
            self._sending = {
                name: sent
                for name, sent in self._sending.items()
                if not all(map(_is_settled, sent))
            }
        sent = self._sending.get(producer, ())
        self._sending[producer] = [*(each for each in sent if not _is_settled(each)), fate]

    def settled(self, sender: Sender | None) -> Sequence[Fate]:
        """Wait until all writes of a producer are settled; return them, for `is_last`."""
        while True:
            sent = self._sent(sender)
            unsettled = next((each for each in sent if not _is_settled(each)), None)
            if unsettled is None:
                return sent
            self._wait_for(unsettled)

    def is_last(self, sender: Sender | None, sent: Sequence[Fate]) -> bool:
        """Return whether a producer sent nothing after the writes that `settled` returned."""
        return self._sent(sender) is sent

    def _sent(self, sender: Sender | None) -> Sequence[Fate]:
        """Return the writes in flight of a call's producer; none without a producer."""
        producer = None if sender is None else sender.producer
        return () if producer is None else self._sending.get(producer, ())

    # -- bases of changes ------------------------------------------------------------------------

    def resolve(
        self,
        keys: Sequence[Key],
        codec: ChangeCodec,
        build: Callable[[Sequence[Image]], Sequence[Entry]],
        sender: Sender | None = None,
        sent: Sequence[Fate] = (),
    ) -> bool | None:
        """Look the keys up, build entries from their images, and submit them as one step.

        Returns False if the queue is full, None if the producer sent another call after `sent`.
        `build` may raise; it runs again if another change of one of the keys was queued.
        """
        while True:
            with self._lock:
                seen = [self._seen(key) for key in keys]
            pending = next((batch for *_rest, batch in seen if batch is not None), None)
            if pending is not None:
                self._wait_for(pending)
                continue
            changes = [change for _forgotten, _latest, change, _batch in seen]
            entries = build(self._images(keys, changes, codec))
            with self._lock:
                if not self.is_last(sender, sent):
                    return None
                if [self._seen(key) for key in keys] == seen:
                    return self._take(entries)

    def _images(
        self, keys: Sequence[Key], changes: Sequence[Change | None], codec: ChangeCodec
    ) -> list[Image]:
        """Return the images of keys: from their changes in flight, else from written state."""
        below = [key for key, change in zip(keys, changes, strict=True) if change is None]
        rows = iter(self._look_below(below, codec) if below else ())
        return [next(rows) if each is None else _image(each) for each in changes]

    def _seen(self, key: Key) -> tuple[int, Change | None, Change | None, ArrowCodec | None]:
        """Return the state of a key, under the lock; equal results mean that it has not changed.

        The second item is the last change that was queued, written or failed or not. It shows
        changes that were queued and written in between, even if the last of them failed. The last
        two items are those of `_find`.
        """
        return self._forgotten, self._newest.get(key), *self._find(key)

    def _find(self, key: Key) -> tuple[Change | None, ArrowCodec | None]:
        """Return the newest change of a key that did not fail, or a batch that must settle first.

        Such a batch may have the key. If both are None, the written state has the key's image.
        """
        change = _not_failed(self._newest.get(key))
        if change is not None or not self._batches:
            return change, None
        batch = next((each for each in self._batches if not _is_settled(each)), None)
        # A batch may be refused while changes before it are still in flight. If a batch is
        # written, all changes before it are written too, and the look-up finds them.
        return (None, batch) if batch is not None else (_standing(self._before.get(key)), None)

    def _wait_for(self, fate: Fate) -> None:
        """Wait until the journal has settled a change; sync written changes."""
        while not _is_settled(fate):
            self._queue.call(self.journal.sync_now)
            if self.journal.failed is not None:
                raise self.journal.closed_error()


def _is_settled(fate: Fate) -> bool:
    return fate.done or fate.failed


def _not_failed(change: Change | None) -> Change | None:
    """Return the change, or the newest one before it, that is not known to have failed.

    A change may be refused while changes before it are still in flight to the disk.
    """
    while change is not None and change.failed:
        change = change.previous
    return change


def _standing(change: Change | None) -> Change | None:
    """Return the change of a key that only this queue has, if there is one."""
    change = _not_failed(change)
    return None if change is None or change.done else change


def _unwritten(newest: dict[Key, Change]) -> dict[Key, Change]:
    """Return those of the newest changes that only this queue has."""
    return {key: change for key, change in newest.items() if _standing(change) is not None}


def _image(change: Change) -> Image:
    base = None if change.done else change
    if change.op == OP_DELETE or change.present is not None:
        # A partial change is written only if there is no row to complete it with.
        return Image(None, base, change.codec)
    # Otherwise a column that is widened later would get digits that the log does not have.
    return Image(change.codec.as_stored(change.values), base, change.codec)
