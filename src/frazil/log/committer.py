"""The thread that owns a journal: it takes the queued entries, commits them, wakes the waiters.

While it sleeps, `commit_here` lets another thread own the journal for one group.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Closed, Overloaded, Unavailable
from frazil.log.codec import size_of, waiter_of
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from frazil.config import LogSettings
    from frazil.log.codec import Deliver, Entry, Waiter
    from frazil.log.journal import Journal

TICK_GROUPS: Final = 256
"""Under constant load, timed work is checked once in this many groups."""
SECONDS_KEPT: Final = 2048
QUEUE_RECORDS_MAX: Final = 100_000
"""The limit of queued records."""
QUEUE_WAIT_S: Final = 5.0
"""How long a publish waits for room in the queue before it is refused."""
HERE_S_MAX: Final = 0.002
"""A caller commits on its own thread only if the last groups took at most this time."""
HERE_BYTES_MAX: Final = 1 << 20
"""The largest group that a caller commits on its own thread."""
TICK_S_MAX: Final = 0.1
"""After such a commit the journal's thread checks timed work within this time."""


class Pending:
    """A future result: `result` waits for it. Used once, by one thread."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._value: Any = ...

    def settle(self, value: Any) -> None:
        """Set the result; only the first call counts."""
        if self._value is ...:
            self._value = value
            self._lock.release()

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait for the result, then return it or raise it.

        Raises:
            Unavailable: if no result comes in time; the outcome is then unknown.
        """
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise Unavailable("no answer in time", outcome="unknown", timeout_s=timeout_s)
        self._lock.release()
        value = self._value
        if isinstance(value, BaseException):
            raise value
        return value


class Committer:
    """A bounded queue in front of a journal, and the thread that empties it."""

    def __init__(self, journal: Journal, settings: LogSettings, *, name: str) -> None:
        self.journal = journal
        self._bytes_max = settings.queue_bytes_max
        self._records_max = QUEUE_RECORDS_MAX
        self.wait_s = QUEUE_WAIT_S
        """How long a publish may wait for room."""
        self._lock = threading.Lock()
        self._entries: list[Entry] = []
        self._bytes = 0
        self._records = 0
        self._tasks: list[tuple[Callable[[], Any], Pending]] = []
        self._wake = threading.Lock()
        self._wake.acquire()
        self._sleeping = False
        self._stopping = False
        self._owner = threading.Lock()
        """Held by the current user of the journal."""
        self._tick_s = 0.0
        """When the journal's thread wakes without a signal."""
        self._usual_s = 0.0
        """The recent duration of a group."""
        self._space_waiters: list[Callable[[], None]] = []
        self.seconds: deque[float] = deque(maxlen=SECONDS_KEPT)
        """The durations of the last groups, from the queue to their acks."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    # -- any thread ------------------------------------------------------------------------------

    def submit(self, *entries: Entry) -> bool:
        """Put entries into the queue, adjacent to each other, all or none; False if it is full.

        An empty queue takes entries beyond its limit: the caller has them in memory anyway.

        Raises:
            Closed: if the journal is closed or has failed.
        """
        if self.journal.failed is not None:
            # Before the lock: in a forked child no thread is left to release it.
            raise self.journal.closed_error()
        with self._lock:
            size = self._bytes + sum(map(size_of, entries))
            records = self._records + sum([entry[3] or 1 for entry in entries])
            if self._entries and (size > self._bytes_max or records > self._records_max):
                return False
            if self._stopping or self.journal.failed is not None:
                raise self.journal.closed_error()
            self._bytes = size
            self._records = records
            self._entries += entries
            self._wake_thread()
        return True

    def commit_here(self, entries: list[Entry]) -> bool:
        """Commit entries on the caller's thread (their loop's) unless other work is queued.

        A small group needs no other thread: waking that thread, and this one again, costs more than
        the sync does. Returns False if nothing was done: then `submit` the entries.
        """
        is_quick = self._sleeping and self._usual_s <= HERE_S_MAX and self.journal.failed is None
        if not is_quick or sum(map(size_of, entries)) > HERE_BYTES_MAX:
            return False
        if not self._owner.acquire(blocking=False):
            return False
        answered: list[tuple[list[Waiter], Sequence[Any]]] = []
        try:
            if self._entries or self._tasks or self._stopping or not self.journal.has_room(entries):
                return False
            try:
                self._commit(entries, lambda *answers: answered.append(answers))
            except BaseException as error:  # noqa: BLE001 - any bug is a fail-stop, as in `_run`
                self.journal.fail(error)
                answered.append((list(map(waiter_of, entries)), [self._unknown()] * len(entries)))
            if self.journal.clock.monotonic() + TICK_S_MAX < self._tick_s:
                with self._lock:
                    self._wake_thread()
        finally:
            self._owner.release()
        for waiters, results in answered:
            settle_futures(zip(waiters, results, strict=True))
        return True

    def _wake_thread(self) -> None:
        if self._sleeping:
            self._sleeping = False
            self._wake.release()

    def submit_waiting(self, *entries: Entry) -> None:
        """Put entries into the queue, waiting for room as long as the settings allow.

        Raises:
            Overloaded: if the queue stays full.
        """
        if self.submit(*entries):
            return
        clock = self.journal.clock
        deadline = clock.monotonic() + self.wait_s
        while True:
            room = threading.Event()
            self.on_space(room.set)
            if self.submit(*entries):
                return
            if not room.wait(max(deadline - clock.monotonic(), 0)):
                raise self.overloaded()

    def on_space(self, callback: Callable[[], None]) -> None:
        """Call back once after the queue is emptied next."""
        with self._lock:
            self._space_waiters.append(callback)

    def overloaded(self) -> Overloaded:
        """Return the error for a full queue."""
        return Overloaded(
            "the journal's queue is full, slow down",
            bytes_max=self._bytes_max,
            records_max=self._records_max,
            retry_after_ms=100,
        )

    @property
    def queued(self) -> tuple[int, int]:
        """Return the number of queued records and bytes."""
        return self._records, self._bytes

    def call(self, function: Callable[[], Any], timeout_s: float | None = None) -> Any:
        """Run a function on the journal's thread between two groups and return its result."""
        pending = Pending()
        if self.journal.failed is not None:
            raise self.journal.closed_error()
        with self._lock:
            if self._stopping:
                raise self.journal.closed_error()
            self._tasks.append((function, pending))
            self._wake_thread()
        return pending.result(timeout_s)

    def stop(self) -> None:
        """Commit the queued entries, close the journal, end the thread."""
        with self._lock:
            self._stopping = True
            self._wake_thread()
        if self._thread.is_alive():
            self._thread.join()
        with self._owner:
            self.journal.close()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        entries: list[Entry] = []
        tasks: list[tuple[Callable[[], Any], Pending]] = []
        groups = 0
        self._owner.acquire()
        try:
            while True:
                entries, tasks = self._take()
                if entries:
                    self._commit(entries, deliver)
                    entries = []
                    groups += 1
                    if groups % TICK_GROUPS == 0:
                        self.journal.tick()
                for function, pending in tasks:
                    _run_task(function, pending)
                if not entries and not tasks and not self._idle():
                    break
                if self.journal.failed is not None:
                    self._refuse_rest([], [])
        except BaseException as error:  # noqa: BLE001 - the thread's top: any bug is a fail-stop
            self.journal.fail(error)
            with self._lock:
                # The queue is not read any more: later calls are refused at once.
                self._stopping = True
            self._refuse_rest(entries, tasks)
        finally:
            self._owner.release()

    def _commit(self, entries: list[Entry], answer: Deliver) -> None:
        monotonic = self.journal.clock.monotonic
        begun = monotonic()
        self.journal.commit(entries, answer)
        took_s = monotonic() - begun
        self.seconds.append(took_s)
        self._usual_s += (took_s - self._usual_s) / 8

    def _take(self) -> tuple[list[Entry], list[tuple[Callable[[], Any], Pending]]]:
        with self._lock:
            entries, self._entries = self._entries, []
            tasks, self._tasks = self._tasks, []
            self._bytes = self._records = 0
            waiters = self._space_waiters
            if waiters:
                self._space_waiters = []
        for wake in waiters:
            wake()
        return entries, tasks

    def _idle(self) -> bool:
        """Wait for work or for timed work; False when the thread must end."""
        with self._lock:
            if self._entries or self._tasks:
                return True
            if self._stopping:
                return False
            self._sleeping = True
        timeout = self.journal.tick()
        self._tick_s = math.inf if timeout is None else self.journal.clock.monotonic() + timeout
        self._owner.release()
        try:
            if self._wake.acquire(timeout=-1 if timeout is None else max(timeout, 0.001)):
                return True
        finally:
            self._owner.acquire()
        with self._lock:
            if not self._sleeping:
                # The thread was woken between the time-out and here: remove that signal.
                self._wake.acquire()
            self._sleeping = False
        return True

    def _refuse_rest(
        self, entries: list[Entry], taken: list[tuple[Callable[[], Any], Pending]]
    ) -> None:
        rest, tasks = self._take()
        error = self.journal.closed_error()
        # Entries already taken may have been written before the bug struck.
        deliver(list(map(waiter_of, entries)), [self._unknown()] * len(entries))
        deliver(list(map(waiter_of, rest)), [error] * len(rest))
        for _function, pending in (*taken, *tasks):
            pending.settle(error)

    def _unknown(self) -> Unavailable:
        return Unavailable(
            "the journal was closed by a bug; whether the records are durable is unknown",
            outcome="unknown",
            cause=repr(self.journal.failed),
        )


def _run_task(function: Callable[[], Any], pending: Pending) -> None:
    try:
        pending.settle(function())
    except Exception as error:  # noqa: BLE001 - the caller of `call` gets whatever it was
        pending.settle(error)


def deliver(waiters: list[Waiter], results: Sequence[Ack | BaseException]) -> None:
    """Deliver results to their waiters: futures through their loops, the others directly."""
    by_loop: dict[Any, list[tuple[Any, Any]]] = {}
    for waiter, result in zip(waiters, results, strict=True):
        if isinstance(waiter, Pending):
            waiter.settle(result)
        else:
            by_loop.setdefault(waiter.get_loop(), []).append((waiter, result))
    for loop, answered in by_loop.items():
        # A closed loop raises: it has no waiters any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle_futures, answered)


def settle_futures(answered: Iterable[tuple[asyncio.Future[Ack], Any]]) -> None:
    """Settle futures on their own loop; cancelled ones are skipped."""
    for future, result in answered:
        if not future.done():
            if type(result) is Ack:
                future.set_result(result)
            else:
                future.set_exception(result)


__all__ = ["Closed", "Committer", "Pending", "deliver", "settle_futures"]
