"""Who may run a query, and for how long: slots, connections, deadlines, cancelling.

Each query gets a connection of its own to one locked instance of DuckDB, which is closed behind
it, so that nothing of one query is left for the next. Threads and memory belong to the instance:
all queries share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.errors import Closed, FrazilError, InvalidRequest, Overloaded, Unavailable
from frazil.query.lockdown import connect_locked

if TYPE_CHECKING:
    import duckdb

    from frazil.clock import Clock

__all__ = ["Lease", "Pool", "PoolLimits", "RunningQuery", "check_timeout"]

_AGAIN_S: Final = 0.05
"""An interrupt that comes just before DuckDB begins is forgotten: it is repeated."""


TIMEOUT_S_MAX: Final = 1e6
_IDLE_S: Final = 60.0
_CLOSE_S: Final = 10.0
"""Closing waits so long for queries that do not end when they are interrupted."""


class PoolLimits(NamedTuple):
    """What queries may use: together, and each (`timeout_s`). Names are those of the settings."""

    directories: Sequence[str] = ()
    temp_directory: str = ""
    temp_bytes_max: int = 10 * 10**9
    threads: int = 0
    memory_bytes: int = 512 * 1024 * 1024
    concurrency_max: int = 4
    wait_s: float = 5.0
    timeout_s: float = 60.0


class RunningQuery(NamedTuple):
    """A query that runs now, or whose result is being read."""

    id: int
    sql: str
    seconds: float


def check_timeout(timeout_s: object) -> None:
    """Check that a time limit is one; None is the one of the settings.

    Raises:
        InvalidRequest: unless it is a number of seconds above 0.
    """
    if timeout_s is None:
        return
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= TIMEOUT_S_MAX:  # type: ignore[operator]
        raise InvalidRequest(
            "timeout_s must be a number of seconds above 0",
            got=timeout_s,
            seconds_max=TIMEOUT_S_MAX,
        )


class Lease:
    """The right of one query to run, with its connection. Ends with `Pool.release`."""

    def __init__(
        self, query_id: int, sql: str, connection: duckdb.DuckDBPyConnection, *, begun: float
    ) -> None:
        self.id = query_id
        self.sql = sql
        self.begun = begun
        self.connection = connection
        self.stopped: FrazilError | None = None
        self.on_stop: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._released = False

    def check(self) -> None:
        """Raise why the query was stopped, if it was."""
        if self.stopped is not None:
            raise self.stopped

    def stop(self, why: FrazilError) -> None:
        """Interrupt the query; the first reason given is the one that is told."""
        with self._lock:
            if self._released:
                return
            if self.stopped is None:
                self.stopped = why
            self.connection.interrupt()
        # Without the lock: whoever is asked to let go releases the lease, which takes it.
        if self.on_stop is not None:
            self.on_stop()

    def end(self) -> bool:
        """Close the connection; tells whether this was the first call."""
        with self._lock:
            if self._released:
                return False
            self._released = True
        self.connection.close()
        return True


class Pool:
    """Hands out leases, at most `concurrency_max` at a time; a thread watches their deadlines."""

    def __init__(self, limits: PoolLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._slots = threading.BoundedSemaphore(limits.concurrency_max)
        self._lock = threading.Lock()
        self._wake: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._running: dict[int, tuple[Lease, float]] = {}
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._watch: threading.Thread | None = None
        self._next_id = 1
        self._wakes_at = 0.0
        self._closed = False

    def acquire(self, sql: str, timeout_s: float | None = None) -> Lease:
        """Wait for a slot and return a lease that is interrupted after its time.

        Raises:
            InvalidRequest: if `timeout_s` is no time.
            Overloaded: if there is no slot within `wait_s`.
            Closed: if the pool is closed.
        """
        limits = self._limits
        check_timeout(timeout_s)
        if not self._slots.acquire(timeout=limits.wait_s):
            with self._lock:
                unread = sum(lease.on_stop is not None for lease, _ in self._running.values())
            raise Overloaded(
                "too many queries run at once, run it again later or raise query.concurrency_max; "
                "a result beyond query.result_bytes_ahead counts until it is read or closed",
                concurrency_max=limits.concurrency_max,
                results_unread=unread,
                retry_after_ms=int(limits.wait_s * 1_000) or 100,
            )
        try:
            with self._lock:
                return self._lease(sql, limits.timeout_s if timeout_s is None else timeout_s)
        except BaseException:
            self._slots.release()
            raise

    def release(self, lease: Lease) -> None:
        """End a lease; a second call does nothing."""
        if lease.end():
            with self._lock:
                self._running.pop(lease.id, None)
            self._slots.release()

    def running(self) -> list[RunningQuery]:
        """Return the queries that run now, oldest first."""
        now = self._clock.monotonic()
        with self._lock:
            leases = [lease for lease, _ in self._running.values()]
        return [RunningQuery(lease.id, lease.sql, now - lease.begun) for lease in leases]

    def cancel(self, query_id: int | None, why: str) -> int:
        """Stop one query, or all of them; return how many."""
        with self._lock:
            leases = [lease for lease, _ in self._running.values()]
        chosen = [lease for lease in leases if query_id is None or lease.id == query_id]
        for lease in chosen:
            lease.stop(Unavailable("query was cancelled, run it again", reason=why))
        with self._lock:
            # The watch repeats the interrupt until the query has ended.
            for lease in chosen:
                if lease.id in self._running:
                    self._running[lease.id] = (lease, self._clock.monotonic() + _AGAIN_S)
        self._wake.put(None)
        return len(chosen)

    def defer(self, work: Callable[[], None]) -> None:
        """Let the watch do something soon; safe wherever a finalizer may run."""
        self._wake.put(work)

    def close(self) -> None:
        """Cancel all queries and close the instance; later calls raise `Closed`."""
        with self._lock:
            self._closed = True
        self.cancel(None, "the engine closes")
        with self._lock:
            watch, instance = self._watch, self._instance
            self._instance = None
        if watch is not None:
            self._wake.put(None)
            watch.join(_CLOSE_S)
        if instance is not None:
            instance.close()

    def _lease(self, sql: str, timeout_s: float) -> Lease:
        if self._closed:
            raise Closed("the query engine is closed, open the engine again")
        if self._instance is None:
            limits = self._limits
            self._instance = connect_locked(
                threads=limits.threads,
                memory_bytes=limits.memory_bytes,
                directories=limits.directories,
                temp_directory=limits.temp_directory,
                temp_bytes_max=limits.temp_bytes_max,
            )
        if self._watch is None:
            self._watch = threading.Thread(
                target=self._watch_deadlines, name="frazil-query-watch", daemon=True
            )
            self._watch.start()
        now = self._clock.monotonic()
        lease = Lease(self._next_id, sql, self._instance.cursor(), begun=now)
        self._next_id += 1
        self._running[lease.id] = (lease, now + timeout_s)
        if now + timeout_s < self._wakes_at:
            # To wake the watch for each query would cost more than most queries do.
            self._wake.put(None)
        return lease

    def _watch_deadlines(self) -> None:
        """Stop queries whose time is over, until the pool is closed and none runs."""
        while True:
            with self._lock:
                if self._closed and not self._running:
                    return
                now = self._clock.monotonic()
                late = [lease for lease, deadline in self._running.values() if deadline <= now]
                for lease in late:
                    self._running[lease.id] = (lease, now + _AGAIN_S)
                nearest = min((at for _, at in self._running.values()), default=now + _IDLE_S)
                self._wakes_at = nearest
            for lease in late:
                # One that fails to let go must not keep the watch from the others.
                with suppress(FrazilError, OSError):
                    lease.stop(
                        Unavailable(
                            "query took too long, read less or raise query.timeout_s",
                            seconds=round(now - lease.begun, 3),
                        )
                    )
            with suppress(Empty, FrazilError, OSError):
                work = self._wake.get(timeout=max(nearest - self._clock.monotonic(), 0.0))
                if work is not None:
                    work()
