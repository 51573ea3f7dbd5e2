"""The order of a keyed topic's changes: what each one builds on, decided before it is written.

A partial update is resolved against the newest image of its key, including changes that are still
on their way to the log. All publishing to a keyed topic goes through this queue: under one short
lock the change becomes the newest of its key and enters the journal's queue, so that the order of
resolving is the order of offsets. If the change that another one was resolved against is not
written, the journal refuses the other one, too. An idempotent producer's change is resolved when
all that the producer sent before is settled, so that a repeat is recognised and never resolved.
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
    """Something on its way to the log; the journal's thread sets `done` or `failed` at the end."""

NEWEST_MAX: Final = 4096
NEWEST_BYTES_MAX: Final = 4 << 20
"""So many newest changes are remembered before those that are written are forgotten."""


def is_next(state: TopicState, sender: Sender | None) -> bool:
    """Return whether a call is new to the journal, once all that its producer sent is settled.

    The journal answers any other call without writing it: as a repeat, or as a conflict.
    """
    if sender is None or sender.producer is None:
        return True
    producer = state.producers.get(sender.producer)
    if producer is None or sender.epoch > producer.epoch or not producer.window:
        return True
    last = producer.window[-1]
    return sender.epoch == producer.epoch and sender.sequence == last.sequence + last.records


class Image(NamedTuple):
    """The newest state of a key under `codec`'s columns."""

    values: tuple[object, ...] | None
    """The row's values, None if there is no row."""
    base: Change | None
    """The change on its way that this is the result of; None if it is written."""
    codec: ChangeCodec


if TYPE_CHECKING:
    LookBelow = Callable[[Sequence[Key], ChangeCodec], Sequence[Image]]
    """Returns the written state of each key under the columns of a codec."""


class Sequencer:
    """Stands before the journal's queue of one keyed topic, with the queue's own interface."""

    def __init__(self, queue: Any, look_below: LookBelow) -> None:
        self._queue = queue
        self._look_below = look_below
        self._lock = threading.Lock()
        self._newest: dict[Key, Change] = {}
        """The newest change of each key, of those after the last whole batch."""
        self._newest_bytes = 0
        self._newest_max = NEWEST_MAX
        self._batches: list[ArrowCodec] = []
        """Whole batches on their way. The keys they change are found below, once they are written."""
        self._before: dict[Key, Change] = {}
        """Changes on their way before the last of these batches."""
        self._sending: dict[str, Sequence[Fate]] = {}
        """What is on its way, by producer; some of it may have arrived."""
        self._forgotten = 0
        """Counts how often something that a look below would not see left `_newest`."""
        self.journal = queue.journal

    def __getattr__(self, name: str) -> Any:
        """Return what the queue itself has: `wait_s`, `on_space`, `overloaded`."""
        return getattr(self._queue, name)

    # -- the queue -------------------------------------------------------------------------------

    def submit(self, *entries: Entry) -> bool:
        """Take entries next to each other, all or none; False if there is no room."""
        with self._lock:
            return self._take(entries)

    def submit_answered(
        self, entries: Sequence[Entry], sender: Sender | None, sent: Sequence[Fate]
    ) -> bool | None:
        """Take what the journal will only answer; None if the producer sent something since."""
        with self._lock:
            return bool(self._queue.submit(*entries)) if self.is_last(sender, sent) else None

    def submit_waiting(self, *entries: Entry) -> None:
        """Take entries next to each other, waiting for room.

        The lock is not held meanwhile: others, on an event loop even, find their way past.

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
        """Forget the changes that are written: from now on they are found below."""
        self._forgotten += 1
        self._newest = _unwritten(self._newest)
        self._before = _unwritten(self._before)
        self._newest_bytes = sum(len(change.packed) for change in self._newest.values())
        # Under a long queue the next look is worth its while only when it has grown again.
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
        """Wait until all that a producer sent is settled; return it, for `is_last`."""
        while True:
            sent = self._sent(sender)
            unsettled = next((each for each in sent if not _is_settled(each)), None)
            if unsettled is None:
                return sent
            self._wait_for(unsettled)

    def is_last(self, sender: Sender | None, sent: Sequence[Fate]) -> bool:
        """Return whether a producer sent nothing after what `settled` returned."""
        return self._sent(sender) is sent

    def _sent(self, sender: Sender | None) -> Sequence[Fate]:
        """Return what is on its way of the producer of a call; nothing of a call without one."""
        producer = None if sender is None else sender.producer
        return () if producer is None else self._sending.get(producer, ())

    # -- what a change builds on -----------------------------------------------------------------

    def resolve(
        self,
        keys: Sequence[Key],
        codec: ChangeCodec,
        build: Callable[[Sequence[Image]], Sequence[Entry]],
        sender: Sender | None = None,
        sent: Sequence[Fate] = (),
    ) -> bool | None:
        """Look the keys up, build entries from their images, and submit them as one step.

        Returns False if the queue has no room, None if the producer sent something after `sent`.
        `build` may raise; it runs again when another change of one of the keys came in between.
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
        """Return the images of keys: of their changes on the way, else of what is written."""
        below = [key for key, change in zip(keys, changes, strict=True) if change is None]
        rows = iter(self._look_below(below, codec) if below else ())
        return [next(rows) if each is None else _image(each) for each in changes]

    def _seen(self, key: Key) -> tuple[int, Change | None, Change | None, ArrowCodec | None]:
        """Return what is known of a key, under the lock; equal answers mean that nothing changed.

        The second is the last change that was queued, written or failed: it shows changes that
        were queued and written in between, even if the last of them failed. The others are those
        of `_find`.
        """
        return self._forgotten, self._newest.get(key), *self._find(key)

    def _find(self, key: Key) -> tuple[Change | None, ArrowCodec | None]:
        """Return the newest change of a key that did not fail; nothing means: look below.

        Or what must be settled before that can be known: a batch, which may have the key.
        """
        change = _not_failed(self._newest.get(key))
        if change is not None or not self._batches:
            return change, None
        batch = next((each for each in self._batches if not _is_settled(each)), None)
        # A batch may be refused while changes before it are still on their way. If one batch is
        # written, so is everything before it, and a look below finds it.
        return (None, batch) if batch is not None else (_standing(self._before.get(key)), None)

    def _wait_for(self, fate: Fate) -> None:
        """Wait until the journal has settled a change; what is written and not synced is synced."""
        while not _is_settled(fate):
            self._queue.call(self.journal.sync_now)
            if self.journal.failed is not None:
                raise self.journal.closed_error()


def _is_settled(fate: Fate) -> bool:
    return fate.done or fate.failed


def _not_failed(change: Change | None) -> Change | None:
    """Return the change, or the newest one before it, that is not known to have failed.

    A change may be refused while those before it are still on their way to the disk.
    """
    while change is not None and change.failed:
        change = change.previous
    return change


def _standing(change: Change | None) -> Change | None:
    """Return the change of a key that only this queue knows of, if there is one."""
    change = _not_failed(change)
    return None if change is None or change.done else change


def _unwritten(newest: dict[Key, Change]) -> dict[Key, Change]:
    """Return those of the newest changes that only this queue knows of."""
    return {key: change for key, change in newest.items() if _standing(change) is not None}


def _image(change: Change) -> Image:
    base = None if change.done else change
    if change.op == OP_DELETE or change.present is not None:
        # A partial change is written only where there is nothing to complete it with.
        return Image(None, base, change.codec)
    # Else a column that is widened meanwhile would get digits back that the log does not have.
    return Image(change.codec.as_stored(change.values), base, change.codec)
