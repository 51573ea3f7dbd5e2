"""Back-pressure: the use of memory, and how long a publish waits for it.

The use of the budget is the sum of the sources. If the resident size beyond the process's base is
larger, it counts instead: sources miss the overhead of the allocator. Three zones follow, with
hysteresis: green admits at once, yellow delays each publish, red lets publishes wait and refuses
them at a deadline. Only `admit` ever waits; flushes, reads, acks and commits do not call it. The
numbers are in docs/internals/tiers.md.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from frazil.errors import Overloaded
from frazil.fs import RealFileSystem
from frazil.telemetry import event, warn
from frazil.tiers.zones import GREEN, RED, YELLOW, ZONES, Zones

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from frazil.clock import Clock
    from frazil.config import MemorySettings

RECOUNT_S: Final = 0.01
"""A publish outside green counts again if the last count is older."""
RECLAIM_S: Final = 1.0
"""The allocators are asked for unused memory at most this often, because that is slow."""
RED_POLL_S: Final = 0.02
"""The interval at which a publish in red checks the zone."""
RETRY_AFTER_MS: Final = 1000
COUNTS: Final = ("delays", "delayed_s", "waiting", "waits", "refusals")
RSS_BASE_BYTES: Final = 512 << 20
"""The process may use this much above the budget: interpreter, libraries, buffers of the log."""


def rss_bytes() -> int:
    """Return the resident size of this process, 0 if it is unknown."""
    # Opened each time: after a fork an open file would still report the parent's size.
    try:
        file = RealFileSystem().open("/proc/self/statm", "read")
    except OSError:
        return 0
    with closing(file):
        return int(file.read_at(0, 256).split()[1]) * os.sysconf("SC_PAGE_SIZE")


def release_unused() -> None:
    """Return the allocators' unused memory to the operating system."""
    pa.default_memory_pool().release_unused()
    # Only glibc has `malloc_trim`; other C libraries return freed memory by themselves.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Pressure:
    """The zone of an engine, and the admission of publishes. Any thread may call it.

    `level` is read without a lock: a publisher calls `admit` only if it is not zero. The journal's
    thread calls `grew` between writing and syncing, which only counts and sets the zone. Callbacks
    of `on_red` run in a thread that calls `refresh`.

    Args:
        rss: reads the resident size.
        sleep: waits; a simulation passes its own function.
        reclaim: returns unused memory to the operating system.
        wake: wakes the thread that calls `refresh`, when red is entered.
    """

    def __init__(
        self,
        settings: MemorySettings,
        clock: Clock,
        *,
        rss: Callable[[], int] = rss_bytes,
        sleep: Callable[[float], object] | None = None,
        reclaim: Callable[[], None] = release_unused,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self.level = GREEN
        self.zones = Zones(settings.budget_bytes)
        self._clock = clock
        self._wait_s = settings.wait_s
        self._rss = rss
        self._sleep = sleep or threading.Event().wait
        self._reclaim = reclaim
        self._wake = wake
        self._resident_bytes = rss()
        # Memory that the process used before belongs to the program around the engine.
        self._base_bytes = max(RSS_BASE_BYTES, self._resident_bytes)
        self._sources: dict[str, Callable[[], int]] = {}
        self._counted_max: dict[str, int] = {}
        self._on_red: tuple[Callable[[], None], ...] = ()
        self.red_pending = False
        """True if red was entered and its callbacks were not called yet: `refresh` is due."""
        self._measuring = threading.Lock()
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._failing: set[str] = set()
        self._accounted_bytes = 0
        self._uncounted_bytes = 0
        self._used_bytes = 0
        self._room_bytes = self.zones.room_bytes(GREEN, 0)
        self._counted_at = clock.monotonic()
        self._reclaim_at = self._counted_at
        self._closed = False
        self._entries = [0, 0, 0]
        self._counts: dict[str, Any] = dict.fromkeys(COUNTS, 0)

    # -- measuring -------------------------------------------------------------------------------

    def add_source(self, name: str, read: Callable[[], int], *, share: float = 1.0) -> None:
        """Count the bytes that `read` returns; it is called often, from any thread.

        Args:
            name: the source's name in `stats`.
            read: returns the bytes.
            share: the source counts only up to this share of the budget. For memory that neither
                flush nor eviction frees: counted in full, it could keep the zone red for ever.
        """
        assert name not in self._sources, name
        if share < 1:
            self._counted_max[name] = int(self.zones.budget_bytes * share)
        self._sources = {**self._sources, name: read}

    def on_red(self, callback: Callable[[], None]) -> None:
        """Call back each time red is entered, e.g. to flush all topics or to cancel queries.

        The next `refresh` makes the calls, never a publish or the journal's thread.
        """
        self._on_red = (*self._on_red, callback)

    def refresh(self) -> None:
        """Count all sources, read the resident size, and change the zone if necessary.

        The background thread calls it ten times a second, after memory was freed, and after red
        was entered, for the callbacks. It does nothing while another thread counts.
        """
        self._measure(resident=True)
        if self.red_pending:
            self._call_back()

    def recount(self) -> None:
        """Count all sources like `refresh`, but with the last resident size, which is cheaper."""
        self._measure(resident=False)

    def grew(self, size: int) -> None:
        """Note `size` new bytes; the sources are counted only if the next zone may be reached."""
        # Threads may overwrite each other's number here: the next refresh corrects it.
        self._room_bytes -= size
        if self._room_bytes <= 0:
            self.recount()

    def _measure(self, *, resident: bool) -> None:
        # Without waiting for the lock: a source may wait for this very thread.
        if not self._measuring.acquire(blocking=False):
            return
        try:
            sizes = {name: self._size(name, read) for name, read in self._sources.items()}
            accounted = sum(
                min(size, self._counted_max.get(name, size)) for name, size in sizes.items()
            )
            self._uncounted_bytes = sum(sizes.values()) - accounted
            if resident:
                self._resident_bytes = self._rss()
                self._reclaim_if_it_helps(accounted)
            self._apply(sizes, accounted)
        finally:
            self._measuring.release()

    def _size(self, name: str, read: Callable[[], int]) -> int:
        """Return a source's bytes, or its last ones if it fails: the journal must not stop."""
        try:
            size = read()
        except Exception as error:  # noqa: BLE001 - a source's bug must not end the journal
            if name not in self._failing:
                warn("pressure_source_failed", source=name, error=error)
            self._failing.add(name)
            return self._sizes.get(name, 0)
        self._failing.discard(name)
        return size

    def _call_back(self) -> None:
        """Call the callbacks of red if the zone is still red."""
        with self._lock:
            lasts, self.red_pending = self.red_pending and self.level == RED, False
        for callback in self._on_red if lasts else ():
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - one that fails must not keep the others
                warn("pressure_callback_failed", error=error)

    def _reclaim_if_it_helps(self, accounted: int) -> None:
        """Free the allocators' unused memory before it alone makes publishes wait."""
        used = self._used(accounted)
        counted_level = self.zones.level(self.level, accounted)
        now = self._clock.monotonic()
        if self.zones.level(self.level, used) > counted_level and now >= self._reclaim_at:
            self._reclaim_at = now + RECLAIM_S
            self._reclaim()
            self._resident_bytes = self._rss()

    def _apply(self, sizes: dict[str, int], accounted: int) -> None:
        """Set the use and the zone."""
        with self._lock:
            if self._closed:
                return
            used = self._used(accounted)
            before = self.level
            after = self.zones.level(before, used)
            self._sizes = sizes
            self._accounted_bytes = accounted
            self._used_bytes = used
            self._room_bytes = self.zones.room_bytes(after, used)
            self._counted_at = self._clock.monotonic()
            if after == before:
                return
            self.level = after
            self.red_pending = after == RED
            self._entries[after] += 1
            if after == RED:
                self._wake()
        event(
            "pressure_zone",
            zone=ZONES[after],
            before=ZONES[before],
            percent=self.percent,
            accounted_bytes=accounted,
            rss_bytes=self._resident_bytes,
        )

    def _used(self, accounted: int) -> int:
        """Return the use: the sources' sum, or the process's growth up to twice that sum.

        The tiers cannot free the memory of the program around the engine.
        """
        beyond = self._resident_bytes - self._base_bytes - self._uncounted_bytes
        return max(accounted, min(beyond, 2 * accounted))

    # -- admission -------------------------------------------------------------------------------

    def admit(self) -> None:
        """Return when a publish may proceed: after its delay in yellow, after the end of red.

        Raises:
            Overloaded: if red lasts longer than `memory.wait_s`.
        """
        for pause_s in self._pauses():
            self._sleep(pause_s)

    async def admit_async(self) -> None:
        """Wait like `admit`, without blocking the running event loop."""
        for pause_s in self._pauses():
            await asyncio.sleep(pause_s)

    def _pauses(self) -> Iterator[float]:
        """Yield the seconds to sleep until a publish may proceed."""
        self._recount_if_old()
        if self.level == RED:
            deadline = self._clock.monotonic() + self._wait_s
            self._count("waits")
            self._count("waiting")
            try:
                while self.level == RED:
                    left = deadline - self._clock.monotonic()
                    if left <= 0:
                        raise self._refused()
                    yield min(left, RED_POLL_S)
            finally:
                self._count("waiting", -1)
        delay_s = self.zones.delay_s(self._used_bytes) if self.level == YELLOW else 0.0
        if delay_s > 0:
            self._count("delays")
            self._count("delayed_s", delay_s)
            yield delay_s

    def _recount_if_old(self) -> None:
        if self._clock.monotonic() - self._counted_at >= RECOUNT_S:
            self.recount()

    def _count(self, name: str, amount: float = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def _refused(self) -> Overloaded:
        self._count("refusals")
        message = "memory is nearly full, slow down"
        if self._used_bytes > self._accounted_bytes:
            message += "; the process holds more than its tiers, raise memory.budget_bytes"
        return Overloaded(
            message,
            used_bytes=self._used_bytes,
            accounted_bytes=self._accounted_bytes,
            budget_bytes=self.zones.budget_bytes,
            retry_after_ms=RETRY_AFTER_MS,
        )

    def close(self) -> None:
        """Admit all publishes from now on; the closed queue then refuses them."""
        with self._lock:
            self._closed = True
            self.level = GREEN

    # -- facts -----------------------------------------------------------------------------------

    @property
    def usage_ratio(self) -> float:
        """Return the used share of the budget; it may be above 1."""
        return self._used_bytes / self.zones.budget_bytes

    @property
    def percent(self) -> float:
        """Return the used share of the budget in percent."""
        return self._used_bytes * 100 / self.zones.budget_bytes

    def snapshot(self) -> SimpleNamespace:
        """Return the state as of the last count, for `stats`.

        `entries` counts how often each zone was entered, `delays` and `waits` the publishes that
        were delayed in yellow and waited in red; `waiting` do so now.
        """
        with self._lock:
            return SimpleNamespace(
                zone=ZONES[self.level],
                percent=self.percent,
                used_bytes=self._used_bytes,
                budget_bytes=self.zones.budget_bytes,
                accounted_bytes=self._accounted_bytes,
                rss_bytes=self._resident_bytes,
                rss_base_bytes=self._base_bytes,
                sources=dict(self._sizes),
                entries=dict(zip(ZONES, self._entries, strict=True)),
                delay_ms=self.zones.delay_s(self._used_bytes) * 1000
                if self.level == YELLOW
                else 0.0,
                **self._counts,
            )
