"""The process of a broker: its event loop, and what signals do to it.

SIGTERM and SIGINT stop it in good order; a second one of them ends it at once, which is as safe as
any crash. SIGHUP has it read keys, roles, secrets and certificate again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import os
import resource
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, cast

from frazil.errors import CODES, FrazilError, InvalidRequest, Unavailable
from frazil.serve.broker import DRAIN_S, Broker
from frazil.serve.grpc.calls import place_of
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.config import Settings

__all__ = ["fastest_loop", "run_broker"]

FILES_BESIDE: Final = 4096
"""Open files in addition to the connections: segments, metadata, tables."""
ENDING: Final = (signal.SIGTERM, signal.SIGINT)
CLOSE_S: Final = 60.0
"""After the drain, syncing and closing get so long; then the process ends without."""
GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Thresholds of the garbage collector; Python's defaults are for programs with few objects."""


def run_broker(settings: Settings, on_ready: Callable[[Broker], None]) -> None:
    """Serve until a signal ends it. `on_ready` is called when clients are served.

    Raises:
        Conflict: if another process has the directory, with its pid.
        InvalidRequest: if a file that settings name cannot be used.
        Unavailable: if an address cannot be listened on, or the last sync failed.
        Closed: if another broker took over the data.
    """
    if sys.flags.optimize:
        raise InvalidRequest("the broker does not run without its assertions, leave out python -O")
    _allow_files(settings.serve.connections_max + FILES_BESIDE)
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_Process(settings).run(on_ready))


def fastest_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes an event loop: uvloop's where it is installed, else the standard one."""
    try:
        found = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        found = asyncio.SelectorEventLoop
    return cast("Callable[[], asyncio.AbstractEventLoop]", found)


class _Process:
    """One run of a broker process and its signals."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = asyncio.Event()
        self._broker: Broker | None = None
        self._reloads: set[asyncio.Task[None]] = set()
        self._failure: FrazilError | None = None

    async def run(self, on_ready: Callable[[Broker], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(_log_bug)
        for number in ENDING:
            loop.add_signal_handler(number, self._end)
        # From the first moment on: without a handler it would end the process.
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        broker = Broker(self._settings)
        await broker.start()
        self._broker = broker
        # The objects of the start-up stay: a full collection would scan them in vain and delay
        # every call by a tenth of a second.
        gc.collect()
        gc.freeze()
        # Every record under way is an object or two: look for circles among them less often.
        gc.set_threshold(*GC_THRESHOLDS)

        def fenced(error: FrazilError) -> None:
            loop.call_soon_threadsafe(self._fenced, error)

        broker.engine.on_fenced = fenced
        if broker.engine.ownership.fenced is not None:
            self._fenced(broker.engine.ownership.fenced)
        if not self._stop.is_set():
            on_ready(broker)
        await self._stop.wait()
        self._broker = None
        await broker.stop()
        if self._failure is not None:
            raise self._failure

    def _fenced(self, error: FrazilError) -> None:
        """End: another broker has the data, and clients must look for it there."""
        self._failure = error
        self._halt()

    def _end(self) -> None:
        for number in ENDING:
            asyncio.get_running_loop().remove_signal_handler(number)
            # The next one, whichever it is, does what the system does with it: the process is gone.
            # Python's own way with SIGINT would wait for threads, and one of them may hang.
            signal.signal(number, signal.SIG_DFL)
        self._halt()

    def _halt(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            _watch(DRAIN_S + CLOSE_S)

    def _reload(self) -> None:
        if self._broker is not None:
            task = asyncio.get_running_loop().create_task(self._broker.reload())
            self._reloads.add(task)
            task.add_done_callback(self._reloads.discard)


def _log_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a bug outside of all calls: its kind and line, never its text (it may be data)."""
    error = context.get("exception")
    warn(
        "loop_failed",
        error=type(error).__name__,
        place=place_of(error),
        what=context.get("message", ""),
    )


def _allow_files(count: int) -> None:
    """Let the process have as many files open as its connections may need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < count:
        warn("files_limited", allowed=wanted, wanted=count)


def _watch(seconds: float) -> None:
    """End the process after so long, whatever it waits for: what was acked is on the disk."""

    def end() -> None:
        warn("broker_ended_late", seconds=seconds)
        os._exit(CODES[Unavailable].exit)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
