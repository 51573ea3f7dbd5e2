"""The query pool: slots, connections, deadlines and cancellation.

A query enters the pool, waits for the offsets that it must see, and is admitted to a slot.

Each query gets a new connection to a locked instance of DuckDB. The connection is closed after the
query, so that no state remains for the next one. Threads and memory belong to the instance. All
queries share one instance, unless the settings give each query its own part of the memory: then
each slot has an instance.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.errors import Closed, FrazilError, InvalidRequest, Overloaded, Unavailable

if TYPE_CHECKING:
    import duckdb

    from frazil.clock import Clock

DUCKDB_VERSION: Final = "1.5.5"
_OFF: Final = (
    "autoload_known_extensions",
    "autoinstall_known_extensions",
    "allow_community_extensions",
    "allow_unsigned_extensions",
    "allow_persistent_secrets",
    "python_enable_replacements",
    "enable_external_file_cache",
)


def connect_locked(
    *,
    threads: int = 0,
    memory_bytes: int,
    directories: Sequence[str] = (),
    temp_directory: str = "",
    temp_bytes_max: int = 0,
) -> duckdb.DuckDBPyConnection:
    """Open an instance in memory that reads `directories` alone, and lock its configuration.

    DuckDB spills data beyond `memory_bytes` to `temp_directory`; empty means that it must not
    spill. 0 threads means one per core.

    Raises:
        InvalidRequest: if the version of DuckDB that SQL is made for is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InvalidRequest("SQL needs DuckDB: pip install 'frazil[query]'") from error
    if duckdb.__version__ != DUCKDB_VERSION:
        raise InvalidRequest(
            "SQL needs another version of DuckDB: pip install 'frazil[query]'",
            needed=DUCKDB_VERSION,
            found=duckdb.__version__,
        )
    connection = duckdb.connect(":memory:")
    allowed = ", ".join(quoted_text(path) for path in directories)
    settings = [
        *(f"SET GLOBAL {name} = false" for name in _OFF),
        f"SET GLOBAL temp_directory = {quoted_text(temp_directory)}",
        f"SET GLOBAL memory_limit = '{memory_bytes}B'",
        "SET GLOBAL TimeZone = 'UTC'",
        "SET GLOBAL parquet_metadata_cache = true",
        # This optimizer pushes a join's keys into the scan of the other side, sometimes as a
        # Bloom filter, which the scan of an Arrow table refuses.
        "SET GLOBAL disabled_optimizers = 'join_filter_pushdown'",
        f"SET GLOBAL allowed_directories = [{allowed}]",
    ]
    if threads:
        settings.append(f"SET GLOBAL threads = {threads}")
    if temp_directory:
        settings.append(f"SET GLOBAL max_temp_directory_size = '{temp_bytes_max}B'")
    # These two come last: after them no setting can be changed.
    settings += [
        "SET GLOBAL enable_external_access = false",
        "SET GLOBAL lock_configuration = true",
    ]
    try:
        connection.execute("; ".join(settings))
    except duckdb.Error:
        connection.close()
        raise
    return connection


def quoted_text(text: str) -> str:
    """Return `text` as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


_AGAIN_S: Final = 0.05
"""DuckDB forgets an interrupt that arrives just before it begins, so it is repeated."""


TIMEOUT_S_MAX: Final = 1e6
_IDLE_S: Final = 60.0
_CLOSE_S: Final = 10.0
"""The time that closing waits for queries that do not end when they are interrupted."""


WAIT_S: Final = 5.0
"""The time that a query waits for a slot, or for an offset that it must see."""


class PoolLimits(NamedTuple):
    """The limits of all queries together, and of each one (`timeout_s`).

    Names are those of the settings.
    """

    directories: Sequence[str] = ()
    temp_directory: str = ""
    temp_bytes_max: int = 10 * 10**9
    threads: int = 0
    memory_bytes: int = 512 * 1024 * 1024
    concurrency_max: int = 4
    wait_s: float = WAIT_S
    timeout_s: float = 60.0


class RunningQuery(NamedTuple):
    """A query that is running, or whose result is being read."""

    id: int
    sql: str
    seconds: float


def check_timeout(timeout_s: object) -> None:
    """Check a time limit; None means the limit of the settings.

    Raises:
        InvalidRequest: if it is not a number of seconds above 0.
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


def too_late(seconds: float) -> Unavailable:
    """Return the error of a query whose time is over."""
    return Unavailable(
        "query took too long, read less or raise query.timeout_s", seconds=round(seconds, 3)
    )


class Lease:
    """The right of one query to run, once it has a connection. Ends with `Pool.release`."""

    def __init__(self, query_id: int, sql: str, *, begun: float, timeout_s: float) -> None:
        self.id = query_id
        self.sql = sql
        self.begun = begun
        self.deadline = begun + timeout_s
        self.connection: Any = None
        """The connection to DuckDB, from `Pool.admit` on."""
        self.stopped: FrazilError | None = None
        self.on_stop: Callable[[], None] | None = None
        self.pins: list[Any] = []
        """The snapshots that the query reads; closed when it ends."""
        self._lock = threading.Lock()
        self._released = False

    def check(self) -> None:
        """Raise the reason if the query was stopped."""
        if self.stopped is not None:
            raise self.stopped

    def stop(self, why: FrazilError) -> None:
        """Interrupt the query; its caller gets the first reason given."""
        with self._lock:
            if self._released:
                return
            if self.stopped is None:
                self.stopped = why
            if self.connection is not None:
                self.connection.interrupt()
        # Without the lock: the callback releases the lease, which takes it.
        if self.on_stop is not None:
            self.on_stop()

    def end(self) -> bool:
        """Close the connection; return whether this was the first call."""
        with self._lock:
            if self._released:
                return False
            self._released = True
        if self.connection is not None:
            self.connection.close()
        return True


class Pool:
    """Grants at most `concurrency_max` leases at a time; a thread watches their deadlines."""

    def __init__(self, limits: PoolLimits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._slots = threading.BoundedSemaphore(limits.concurrency_max)
        self._lock = threading.Lock()
        self._wake: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._entered: dict[int, Lease] = {}
        self._running: dict[int, tuple[Lease, float]] = {}
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._watch: threading.Thread | None = None
        self._next_id = 1
        self._wakes_at = 0.0
        self._closed = False

    def enter(self, sql: str, timeout_s: float | None = None) -> Lease:
        """Return a lease without a slot; its time limit begins, and it can be cancelled.

        Raises:
            InvalidRequest: if `timeout_s` is not valid.
            Closed: if the pool is closed.
        """
        check_timeout(timeout_s)
        seconds = self._limits.timeout_s if timeout_s is None else timeout_s
        with self._lock:
            self._check_open()
            lease = Lease(self._next_id, sql, begun=self._clock.monotonic(), timeout_s=seconds)
            self._next_id += 1
            self._entered[lease.id] = lease
        return lease

    def admit(self, lease: Lease) -> None:
        """Wait for a slot and give the lease its connection, until its time limit.

        Raises:
            Overloaded: if there is no slot within `wait_s`, or within the lease's time limit.
            Unavailable: if it was cancelled while it waited.
            Closed: if the pool is closed.
        """
        limits = self._limits
        left = max(lease.deadline - self._clock.monotonic(), 0.0)
        if not self._slots.acquire(timeout=min(limits.wait_s, left)):
            lease.check()
            with self._lock:
                unread = sum(each.on_stop is not None for each, _ in self._running.values())
            raise Overloaded(
                "too many queries run at once, run it again later or raise query.concurrency_max; "
                "a result that is read in pieces counts until it is read or closed",
                concurrency_max=limits.concurrency_max,
                results_unread=unread,
                retry_after_ms=int(limits.wait_s * 1_000) or 100,
            )
        try:
            with self._lock:
                lease.check()
                self._admit(lease)
        except BaseException:
            if lease.connection is None:
                self._slots.release()
            raise

    def release(self, lease: Lease) -> None:
        """End a lease; a second call does nothing."""
        if not lease.end():
            return
        with self._lock:
            self._entered.pop(lease.id, None)
            self._running.pop(lease.id, None)
        if lease.connection is not None:
            self._slots.release()
        for pin in lease.pins:
            pin.close()

    def running(self) -> list[RunningQuery]:
        """Return the running queries, oldest first."""
        now = self._clock.monotonic()
        with self._lock:
            leases = [lease for lease, _ in self._running.values()]
        return [RunningQuery(lease.id, lease.sql, now - lease.begun) for lease in leases]

    def cancel(self, query_id: int | None, why: str) -> int:
        """Stop one query, or all of them; return the number of stopped queries."""
        with self._lock:
            leases = [lease for lease, _ in self._running.values()]
            leases += self._entered.values()
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
        """Have the watch thread call a function soon; safe to call from a finalizer."""
        self._wake.put(work)

    def close(self) -> None:
        """Cancel all queries and close the instance; later calls raise `Closed`."""
        with self._lock:
            self._closed = True
        self.cancel(None, "the engine closes")
        with self._lock:
            watch, instance, self._instance = self._watch, self._instance, None
        if watch is not None:
            self._wake.put(None)
            watch.join(_CLOSE_S)
        if instance is not None:
            instance.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the query engine is closed, open the engine again")

    def _admit(self, lease: Lease) -> None:
        self._check_open()
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
        lease.connection = self._instance.cursor()
        self._entered.pop(lease.id, None)
        self._running[lease.id] = (lease, lease.deadline)
        if lease.deadline < self._wakes_at:
            # Waking the watch for each query would cost more than most queries do.
            self._wake.put(None)

    def _watch_deadlines(self) -> None:
        """Stop queries that exceed their time limit, until the pool is closed and none runs."""
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
                # A failing release must not keep the watch from the other queries.
                with suppress(FrazilError, OSError):
                    lease.stop(too_late(now - lease.begun))
            with suppress(Empty, FrazilError, OSError):
                work = self._wake.get(timeout=max(nearest - self._clock.monotonic(), 0.0))
                if work is not None:
                    work()
