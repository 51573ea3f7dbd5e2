"""The catalog as a child process: started, waited for, started again when it dies, stopped."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, Self

import msgspec

from frazil.errors import Closed, Unavailable
from frazil.lake.catalog.address import CatalogAddress
from frazil.struct_types import learnt
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from types import TracebackType

    from frazil.clock import Clock

__all__ = ["CatalogOptions", "CatalogProcess"]

PORT_DEFAULT: Final = 8181
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
PAUSE_FIRST: Final = 0.1
PAUSE_MAX: Final = 10.0
STEADY_SECONDS: Final = 60.0
"""A child that lived this long starts the pauses from the shortest again."""
LINES_KEPT: Final = 20
READY: Final = "frazil-catalog-ready "
"""Begins the line on stdout by which the child reports its address."""


class CatalogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a catalog server; the child gets them as JSON. Port 0 is any free one.

    The address file and the token are in `run_directory`. With `parent` the server ends with that
    process, with `log_path` its events go to a file.
    """

    run_directory: str
    db: str
    warehouse: str
    port: int = PORT_DEFAULT
    log_path: str = ""
    parent: int = 0


class CatalogProcess:
    """The catalog's child process and the thread that restarts it.

    Args:
        options: how it is started.
        clock: for pauses.
    """

    def __init__(
        self,
        options: CatalogOptions,
        *,
        clock: Clock,
    ) -> None:
        self._options = options
        self._clock = clock
        self._condition = threading.Condition()
        self._child: subprocess.Popen[str] | None = None
        self._address: CatalogAddress | None = None
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES_KEPT)
        self._deaths = 0

    def start(self, *, timeout: float = START_SECONDS) -> CatalogAddress:
        """Start the child and return its address once it answers.

        Raises:
            Unavailable: it died at once or did not listen in time; the child is stopped.
        """
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="catalog-keeper", daemon=True)
            self._keeper.start()
        try:
            return self.wait_ready(timeout=timeout, deaths_max=1)
        except Unavailable:
            self.stop()
            raise

    def wait_ready(
        self, *, timeout: float = START_SECONDS, deaths_max: int | None = None
    ) -> CatalogAddress:
        """Wait until a child listens and return its address.

        Raises:
            Unavailable: none listens in time, or more than `deaths_max` died.
            Closed: it was stopped.
        """
        with self._condition:
            self._condition.wait_for(
                lambda: (
                    self._address is not None
                    or self._stopping.is_set()
                    or (deaths_max is not None and self._deaths >= deaths_max)
                ),
                timeout=timeout,
            )
            if self._address is not None:
                return self._address
            if self._stopping.is_set():
                raise Closed("catalog is stopped")
            raise Unavailable(
                "catalog does not start", reason=" | ".join(self._lines) or "no answer in time"
            )

    @property
    def address(self) -> CatalogAddress | None:
        """Return the address of the running child, None while there is none."""
        return self._address

    @property
    def restarts(self) -> int:
        """Return how many children ended without being stopped."""
        return self._deaths

    def stop(self) -> None:
        """End the child: running requests are answered first, up to a time limit."""
        self._stopping.set()
        with self._condition:
            child = self._child
            self._condition.notify_all()
        if child is not None and child.poll() is None:
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # ------------------------------------------------------------------- keeper's thread
    def _keep(self) -> None:
        pause = PAUSE_FIRST
        port = self._options.port
        while not self._stopping.is_set():
            begun = self._clock.monotonic()
            try:
                port = self._run(port)
            except OSError as error:
                self._lines.append(str(error))
            if self._clock.monotonic() - begun > STEADY_SECONDS:
                pause = PAUSE_FIRST
            with self._condition:
                self._address = None
                self._deaths += not self._stopping.is_set()
                self._condition.notify_all()
            if self._stopping.is_set():
                return
            warn("catalog_died", pause_seconds=pause, reason=[*self._lines][-1:])
            self._stopping.wait(pause)
            pause = min(pause * 2, PAUSE_MAX)

    def _run(self, port: int) -> int:
        """Run one child to its end; return the port for the next, so that addresses stay true."""
        options = msgspec.structs.replace(self._options, port=port, parent=os.getpid())
        text = msgspec.json.encode(options).decode()
        with subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", "frazil.lake.catalog", text],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as child:
            with self._condition:
                self._child = child
            if self._stopping.is_set():
                child.terminate()
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith(READY):
                    port = self._ready(line.removeprefix(READY))
                else:
                    self._lines.append(line.strip()[:500])
        return port

    def _ready(self, text: str) -> int:
        address = msgspec.json.decode(text, type=learnt(CatalogAddress))
        event("catalog_ready", uri=address.uri, pid=address.pid)
        with self._condition:
            self._address = address
            self._condition.notify_all()
        return int(address.uri.rpartition(":")[2])
