"""The order of a keyed topic's changes: what each one builds on, decided before it is written.

A partial update is resolved against the newest image of its key, including changes that are still
on their way to the log. Whoever publishes to a keyed topic does so through this queue: under one
short lock the change becomes the newest of its key and enters the journal's queue, so that the
order of resolving is the order of offsets. If the change that another one was resolved against is
not written, the journal refuses the other one, too.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from frazil.log import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from frazil.errors import FrazilError
    from frazil.ingest.changes import Change, ChangeCodec
    from frazil.log.codec import Entry
    from frazil.tiers.keys import Key

NEWEST_MAX: Final = 4096
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


class Sequencer:
    """Stands before the journal's queue of one keyed topic, with the queue's own interface."""

    def __init__(self, queue: Any, look_below: LookBelow) -> None:
        self._queue = queue
        self._look_below = look_below
        self._lock = threading.Lock()
        self._newest: dict[Key, Change] = {}
        """Newer than everything in `_bulks`."""
        self._bulks: list[Fate] = []
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
        return self.submit_all((entry,))

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
        if self.submit_all(entries):
            return
        clock = self.journal.clock
        deadline = clock.monotonic() + self.wait_s
        while True:
            room = threading.Event()
            self._queue.on_space(room.set)
            if self.submit_all(entries):
                return
            if not room.wait(max(deadline - clock.monotonic(), 0)):
                raise self.overloaded()

    def _submit(self, entries: Sequence[Entry]) -> bool:
        newest = self._newest
        before = self._register(entries)
        taken = False
        try:
            taken = bool(self._queue.submit_all(entries))
        finally:
            if not taken:
                self._newest = newest
                self._restore(before)
        return taken

    def _register(self, entries: Sequence[Entry]) -> list[tuple[Key, Change | None]]:
        """Make the entries' changes the newest of their keys; return what to put back."""
        if len(self._newest) > NEWEST_MAX:
            self._forget()
        before: list[tuple[Key, Change | None]] = []
        for _topic, codec, data, count, _size, _waiter, _sender in entries:
            assert codec is not None
            if codec.solo:
                # A whole batch: which keys it changes is found out below, once it is written.
                self._add_bulk(codec)
                continue
            newest = self._newest
            for change in data if count else (data,):
                before.append((change.key, newest.get(change.key)))
                newest[change.key] = change
        return before

    def _add_bulk(self, bulk: Any) -> None:
        self._bulks = [each for each in self._bulks if not (each.done or each.failed)]
        self._bulks.append(bulk)
        # What is in flight goes before the batch: when that is written, it is, too.
        self._newest = {}
        self._forgotten += 1

    def _restore(self, before: list[tuple[Key, Change | None]]) -> None:
        self._forgotten += 1
        for key, known in reversed(before):
            if known is None:
                self._newest.pop(key, None)
            else:
                self._newest[key] = known

    def _forget(self) -> None:
        """Forget the changes that are written: from now on they are found below."""
        self._forgotten += 1
        self._newest = {
            key: change
            for key, change in self._newest.items()
            if not (change.done or change.failed)
        }

    # -- what a change builds on -----------------------------------------------------------------

    def resolve(
        self,
        keys: Sequence[Key],
        codec: ChangeCodec,
        build: Callable[[Sequence[Image]], Sequence[Entry]],
    ) -> bool:
        """Look the keys up, build entries from their images, and submit them as one step.

        Returns False if the queue has no room. `build` may raise; it runs again when another change
        of one of the keys came in between.
        """
        while True:
            with self._lock:
                token = self._forgotten
                seen = [self._seen(key) for key in keys]
                pending = self._in_the_way(seen)
            if pending is not None:
                self._wait_for(pending)
                continue
            below = [key for key, change in zip(keys, seen, strict=True) if change is None]
            rows = iter(self._look_below(below, codec) if below else ())
            images = [next(rows) if change is None else _image(change) for change in seen]
            entries = build(images)
            with self._lock:
                now = [self._seen(key) for key in keys]
                if self._forgotten == token and _same(now, seen):
                    return self._submit(entries)

    def _seen(self, key: Key) -> Change | None:
        """Return the newest change of a key that is not known to have failed; None: look below."""
        change = self._newest.get(key)
        while change is not None and change.failed:
            change = change.base
        return change

    def _in_the_way(self, seen: Sequence[Change | None]) -> Fate | None:
        """Return the batch that must be written before images can be looked up, if there is one."""
        if all(change is not None for change in seen):
            return None
        return next((bulk for bulk in self._bulks if not (bulk.done or bulk.failed)), None)

    def _wait_for(self, fate: Fate) -> None:
        pause = threading.Event()
        while not (fate.done or fate.failed):
            if self.journal.failed is not None:
                raise self.journal.closed_error()
            pause.wait(POLL_S)


def _image(change: Change) -> Image:
    base = None if change.done else change
    if change.op == fmt.OP_DELETE or change.present is not None:
        # A partial change is written only where there is nothing to complete it with.
        return Image(None, base, change.codec)
    return Image(change.values, base, change.codec)


def _same(now: Sequence[Change | None], before: Sequence[Change | None]) -> bool:
    return all(one is other for one, other in zip(now, before, strict=True))
