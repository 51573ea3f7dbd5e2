"""The order of a keyed topic's changes: what each one builds on, decided before it is written.

A partial update is resolved against the newest image of its key, including changes that are still
on their way to the log. Whoever publishes to a keyed topic does so through this queue: under one
short lock the change becomes the newest of its key and enters the journal's queue, so that the
order of resolving is the order of offsets. If the change that another one was resolved against is
not written, the journal refuses the other one, too. An idempotent producer's change is resolved
once: a repeat waits until the first one is written, or is not.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from frazil.errors import Conflict, NotFound
from frazil.log import judge
from frazil.model import OP_DELETE
from frazil.topic.admission import when_room

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from frazil.errors import FrazilError
    from frazil.log import Sender, Sent, TopicState
    from frazil.log.codec import Entry
    from frazil.schema import Key
    from frazil.topic.changes import Change, ChangeCodec

__all__ = []


class SentMeanwhile(Exception):
    """What was about to be resolved has been written meanwhile, by another try of the same call."""


def sent_before(state: TopicState, sender: Sender | None, *, records: int) -> list[int]:
    """Return how many records each of the batches has that a call repeats, from its first one on.

    They may be fewer than the call has: then its rest was not written.
    """
    counts: list[int] = []
    if sender is None or sender.producer is None:
        return counts
    known = {each.sequence: each.records for each in _window(state, sender)}
    sequence = sender.sequence
    while sequence < sender.sequence + records and sequence in known:
        counts.append(known[sequence])
        sequence += counts[-1]
    return counts


def refusal_of(state: TopicState, sender: Sender, *, records: int) -> Conflict | None:
    """Return why the journal would not take a batch from a producer that has nothing on its way."""
    assert sender.producer is not None
    producer = state.producers.get(sender.producer)
    if producer is None:
        return None
    if sender.epoch < producer.epoch:
        return Conflict(
            "producer is fenced by a newer epoch",
            producer=sender.producer,
            epoch=sender.epoch,
            epoch_current=producer.epoch,
        )
    verdict = judge(
        _window(state, sender),
        sequence=sender.sequence,
        count=records,
        producer=sender.producer,
    )
    return verdict if isinstance(verdict, Conflict) else None


def _window(state: TopicState, sender: Sender) -> list[Sent]:
    """Return the last batches of a producer under its epoch, oldest first."""
    assert sender.producer is not None
    producer = state.producers.get(sender.producer)
    if producer is None or producer.epoch != sender.epoch:
        return []
    return list(producer.window)


NEWEST_MAX: Final = 4096
NEWEST_BYTES_MAX: Final = 4 << 20
"""So many newest changes are remembered before those that are written are forgotten."""
POLL_S: Final = 0.0005


class Fate(Protocol):
    """Something on its way to the log; the journal's thread sets one of the flags at the end."""

    done: bool
    failed: bool


class Image(NamedTuple):
    """The newest state of a key under `codec`'s columns.

    `values` are the row's, None if there is no row or if Python has no form for one of its values
    (finer than a microsecond): then `stored` is the row, a batch of one.
    """

    values: tuple[object, ...] | None
    base: Change | None
    """The change on its way that this is the result of; None if it is written."""
    codec: ChangeCodec
    stored: pa.RecordBatch | None = None

    @property
    def exists(self) -> bool:
        """Tell whether there is such a row."""
        return self.values is not None or self.stored is not None


if TYPE_CHECKING:
    LookBelow = Callable[[Sequence[Key], ChangeCodec], Sequence[Image]]
    """Returns the written state of each key under the columns of a codec."""


class Seen(NamedTuple):
    """What a sequencer knows of a key at one moment; two that are equal tell of no change."""

    forgotten: int
    latest: Change | None
    """The last change that was queued, whatever became of it.

    It tells of changes that came and were written in between: where the last of them failed, there
    is again only the written state, and that has changed.
    """
    change: Change | None
    bulk: Fate | None
    """A batch on its way that may have the key."""


class _Bulk(NamedTuple):
    """A whole batch on its way, and the newest changes before it."""

    fate: Fate
    before: dict[Key, Change]


class _Sending(NamedTuple):
    """A batch of an idempotent producer on its way."""

    epoch: int
    sequence: int
    fate: Fate


class Sequencer:
    """Stands before the journal's queue of one keyed topic, with the queue's own interface."""

    def __init__(self, queue: Any, look_below: LookBelow) -> None:
        self._queue = queue
        self._look_below = look_below
        self._lock = threading.Lock()
        self._newest: dict[Key, Change] = {}
        """Newer than everything in `_bulks`."""
        self._newest_bytes = 0
        self._newest_max = NEWEST_MAX
        self._bulks: tuple[_Bulk, ...] = ()
        self._sending: dict[str, list[_Sending]] = {}
        """By the producers' names; some of it may have arrived."""
        self._forgotten = 0
        """Counts how often something that a look below would not see left `_newest`."""
        self.journal = queue.journal

    @property
    def wait_s(self) -> float:
        """Return how long a publish may wait for room."""
        wait: float = self._queue.wait_s
        return wait

    @property
    def queued(self) -> tuple[int, int]:
        """Return the records and bytes that wait."""
        queued: tuple[int, int] = self._queue.queued
        return queued

    def overloaded(self) -> FrazilError:
        """Return the error for a full queue."""
        error: FrazilError = self._queue.overloaded()
        return error

    def on_space(self, callback: Callable[[], None]) -> None:
        """Call back once when the queue has been emptied next."""
        self._queue.on_space(callback)

    # -- the queue -------------------------------------------------------------------------------

    def submit(self, entry: Entry) -> bool:
        """Take an entry; False if there is no room."""
        _topic, codec, change, count, size, _waiter, sender = entry
        if count or sender is not None or codec is None or codec.solo:
            return self.submit_all((entry,))
        # One change of nobody in particular, the plain case without detours.
        with self._lock:
            if len(self._newest) > self._newest_max or self._newest_bytes > NEWEST_BYTES_MAX:
                self._forget()
            newest, key = self._newest, change.key
            known = newest.get(key)
            change.previous = None if known is None else _standing(known)
            if not self._queue.submit(entry):
                change.previous = None
                return False
            newest[key] = change
            self._newest_bytes += size
        return True

    def submit_all(self, entries: Sequence[Entry]) -> bool:
        """Take entries next to each other, all or none; False if there is no room."""
        with self._lock:
            return self._submit(entries)

    def submit_repeat(self, entries: Sequence[Entry]) -> bool:
        """Take what was written before and is only to be answered again; False without room."""
        return bool(self._queue.submit_all(entries))

    def submit_waiting(self, *entries: Entry) -> None:
        """Take entries next to each other, waiting for room.

        The lock is not held meanwhile: others, on an event loop even, find their way past.

        Raises:
            Overloaded: if the queue stays full.
        """
        when_room(self, lambda: self.submit_all(entries) or None)

    def _submit(self, entries: Sequence[Entry]) -> bool:
        newest, bulks = self._newest, self._bulks
        if any(codec is not None and codec.solo for _topic, codec, *_rest in entries):
            # What is put back if there is no room must not have been changed meanwhile.
            self._newest = dict(newest)
        before = self._register(entries)
        taken = False
        try:
            taken = bool(self._queue.submit_all(entries))
        finally:
            if not taken:
                self._restore(before, newest, bulks)
        for _topic, codec, data, count, _size, _waiter, sender in entries if taken else ():
            if sender is not None and sender.producer is not None and codec is not None:
                last = data[-1] if count and not codec.solo else data
                self._note_sending(sender, cast("Fate", codec) if codec.solo else last)
        return taken

    def _register(self, entries: Sequence[Entry]) -> list[tuple[Key, Change | None]]:
        """Make the entries' changes the newest of their keys; return what to put back."""
        if len(self._newest) > self._newest_max or self._newest_bytes > NEWEST_BYTES_MAX:
            self._forget()
        before: list[tuple[Key, Change | None]] = []
        for _topic, codec, data, count, size, _waiter, _sender in entries:
            assert codec is not None
            if codec.solo:
                # A whole batch: which keys it changes is found out below, once it is written.
                self._bulks = (*_needed(self._bulks), _Bulk(cast("Fate", codec), self._newest))
                self._newest = {}
                self._forgotten += 1
                continue
            newest = self._newest
            self._newest_bytes += size
            for change in data if count else (data,):
                known = newest.get(change.key)
                before.append((change.key, known))
                change.previous = _standing(known)
                newest[change.key] = change
        return before

    def _restore(
        self,
        before: list[tuple[Key, Change | None]],
        newest: dict[Key, Change],
        bulks: tuple[_Bulk, ...],
    ) -> None:
        self._forgotten += 1
        changed = self._newest is newest
        self._newest, self._bulks = newest, bulks
        for key, known in reversed(before) if changed else ():
            if known is None:
                newest.pop(key, None)
            else:
                newest[key] = known

    def _forget(self) -> None:
        """Forget the changes that are written: from now on they are found below."""
        self._forgotten += 1
        self._newest = _unwritten(self._newest)
        self._bulks = tuple([_Bulk(bulk.fate, _unwritten(bulk.before)) for bulk in self._bulks])
        self._newest_bytes = sum(len(change.packed) for change in self._newest.values())
        # Under a long queue the next look is worth its while only when it has grown again.
        self._newest_max = max(NEWEST_MAX, 2 * len(self._newest))

    # -- idempotent producers --------------------------------------------------------------------

    def _note_sending(self, sender: Sender, fate: Fate) -> None:
        if len(self._sending) > NEWEST_MAX:
            self._sending = {name: left for name in self._sending if (left := self._on_way(name))}
        assert sender.producer is not None
        fresh = _Sending(sender.epoch, sender.sequence, fate)
        self._sending[sender.producer] = [*self._on_way(sender.producer), fresh]

    def _on_way(self, producer: str) -> list[_Sending]:
        """Return what a producer has sent and the journal has not settled."""
        sent = self._sending.get(producer, ())
        return [each for each in sent if not (each.fate.done or each.fate.failed)]

    def idle(self, producer: str) -> bool:
        """Tell whether nothing of a producer is on its way."""
        with self._lock:
            return not self._on_way(producer)

    def wait_sent(self, sender: Sender | None) -> None:
        """Wait until the journal has settled all from a producer's sequence on."""
        while sender is not None and sender.producer is not None:
            with self._lock:
                fate = self._repeated(sender)
            if fate is None:
                return
            self._wait_for(fate)

    def _repeated(self, sender: Sender | None) -> Fate | None:
        """Return the queued batch that a call repeats, or one after it."""
        if sender is None or sender.producer is None:
            return None
        for each in self._on_way(sender.producer):
            if each.epoch == sender.epoch and each.sequence >= sender.sequence:
                return each.fate
        return None

    # -- what a change builds on -----------------------------------------------------------------

    def resolve(
        self,
        keys: Sequence[Key],
        codec: ChangeCodec,
        build: Callable[[Sequence[Image]], Sequence[Entry]],
        *,
        sender: Sender | None = None,
        is_sent: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Look the keys up, build entries from their images, and submit them as one step.

        Returns False if the queue has no room. `build` may raise; it runs again when another change
        of one of the keys came in between. `is_sent` says whether a producer's call is written.

        Raises:
            SentMeanwhile: if it is, now that everything before it has arrived.
        """
        while True:
            self.wait_sent(sender)
            if is_sent():
                raise SentMeanwhile
            with self._lock:
                seen = [self._seen(key) for key in keys]
            pending = next((each.bulk for each in seen if each.bulk is not None), None)
            if pending is not None:
                self._wait_for(pending)
                continue
            below = [key for key, each in zip(keys, seen, strict=True) if each.change is None]
            rows = iter(self._look_below(below, codec) if below else ())
            images = [next(rows) if each.change is None else _image(each.change) for each in seen]
            try:
                entries = build(images)
            except (Conflict, NotFound):
                with self._lock:
                    raced = self._repeated(sender) is not None or is_sent()
                if raced:
                    # What refused it may be what the same call has written before.
                    continue
                raise
            with self._lock:
                if self._repeated(sender) is not None or is_sent():
                    continue
                if [self._seen(key) for key in keys] == seen:
                    return self._submit(entries)

    def _seen(self, key: Key) -> Seen:
        """Return what is known of a key, under the lock; nothing may mean: look below."""
        return Seen(self._forgotten, self._newest.get(key), *self._find(key))

    def _find(self, key: Key) -> tuple[Change | None, Fate | None]:
        """Return the newest change of a key that did not fail; nothing means: look below.

        Or what must be written before that can be known: a batch, which may have the key.
        """
        change = _not_failed(self._newest.get(key))
        for bulk in reversed(self._bulks) if change is None else ():
            if bulk.fate.done:
                # It is written and seen, and so is everything that went before it.
                break
            if not bulk.fate.failed:
                return None, bulk.fate
            change = _not_failed(bulk.before.get(key))
            if change is not None:
                break
        return change, None

    def _wait_for(self, fate: Fate) -> None:
        pause = threading.Event()
        while not (fate.done or fate.failed):
            if self.journal.failed is not None:
                raise self.journal.closed_error()
            pause.wait(POLL_S)


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


def _needed(bulks: Sequence[_Bulk]) -> list[_Bulk]:
    """Return the batches that still say something: from the last one that was written on."""
    last = max((n for n, bulk in enumerate(bulks) if bulk.fate.done), default=-1)
    return [
        bulk
        for bulk in bulks[last + 1 :]
        if not bulk.fate.failed or any(map(_standing, bulk.before.values()))
    ]


def _image(change: Change) -> Image:
    base = None if change.done else change
    if change.op == OP_DELETE or change.present is not None:
        # A partial change is written only where there is nothing to complete it with.
        return Image(None, base, change.codec)
    # Else a column that is widened meanwhile would get digits back that the log does not have.
    return Image(change.codec.as_stored(change.values), base, change.codec)
