"""The catalog of an engine's tables: the embedded one as a child process, and the way to it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Closed, InvalidRequest, Unavailable

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.lake.catalog.process import CatalogProcess
    from frazil.lake.connection import CatalogAddress
    from frazil.lake.tables import CatalogTables
    from frazil.log import DataDirectory

__all__ = ["LakeCatalog"]

READY_S: Final = 5.0
"""How long a call waits for a catalog that is being started again."""


class LakeCatalog:
    """Starts the catalog when it is needed and knows where it is.

    Starting takes a moment and is done by who asks first; the lake's thread, as a rule.
    """

    def __init__(
        self, settings: Settings, paths: DataDirectory, *, file_system: FileSystem, clock: Clock
    ) -> None:
        self._settings = settings
        self._file_system = file_system
        self._paths = paths
        self._clock = clock
        self._process: CatalogProcess | None = None
        self._tables: CatalogTables | None = None
        self._told: str | None = None
        self._closed = False
        self._lock = threading.Lock()

    def tables(self) -> CatalogTables:
        """Return the tables; the catalog is started if it is not running.

        Raises:
            Unavailable: if it does not start or does not answer.
        """
        from frazil.lake.tables import CatalogTables

        address, root = self._found()
        with self._lock:
            if self._tables is None or self._tables.address != address:
                self._tables = CatalogTables(
                    address, root=root, settings=self._settings, clock=self._clock
                )
            return self._tables

    def address(self) -> CatalogAddress:
        """Return where the catalog is; it is started if it is not running.

        Raises:
            Unavailable: if it does not start.
        """
        return self._found()[0]

    def _found(self) -> tuple[CatalogAddress, str]:
        """Return the address, and where the catalog has its warehouse."""
        from frazil.lake.connection import CatalogAddress

        with self._lock:
            if self._closed:
                raise Closed("the lake is closed")
            found = self._running().wait_ready(timeout=READY_S)
        return CatalogAddress(uri=found.uri, token=found.token or ""), found.warehouse

    def _running(self) -> CatalogProcess:
        from frazil.lake.catalog.process import CatalogOptions, CatalogProcess

        if self._process is None:
            lake, paths = self._settings.lake, self._paths
            options = CatalogOptions(
                run_directory=paths.run,
                db=paths.catalog,
                warehouse=self._warehouse(),
                port=lake.catalog.port,
                log_path=f"{paths.logs}/catalog.log",
            )
            process = CatalogProcess(options, clock=self._clock)
            process.start()
            self._process = process
        return self._process

    def _warehouse(self) -> str:
        """Return where the tables lie; the catalog itself could only die of a wrong place.

        Raises:
            InvalidRequest: if it is no local path.
            Unavailable: if it is one that cannot be made.
        """
        warehouse = self._settings.lake.warehouse or self._paths.warehouse
        path = warehouse.removeprefix("file://")
        if "://" in path:
            raise InvalidRequest(
                "the embedded catalog keeps tables on the local disk only, set lake.warehouse to a "
                "directory",
                warehouse=warehouse,
            )
        try:
            self._file_system.make_directory(path)
        except OSError as error:
            raise Unavailable(
                "tables cannot lie there, correct lake.warehouse or its rights",
                warehouse=warehouse,
                error=error,
            ) from error
        return warehouse

    def uri(self) -> str | None:
        """Return where the catalog listens now, None while it does not."""
        found = None if self._process is None else self._process.address
        return None if found is None else found.uri

    def has_moved(self) -> bool:
        """Tell once that the catalog listens at another address than before."""
        uri = self.uri()
        if uri is None:
            return False
        before, self._told = self._told, uri
        return before is not None and before != uri

    def describe(self) -> dict[str, Any]:
        """Return facts for people, ready for JSON."""
        return {
            "kind": self._settings.lake.catalog.kind,
            "uri": self.uri(),
            "restarts": 0 if self._process is None else self._process.restarts,
            "warehouse": self._settings.lake.warehouse or self._paths.warehouse,
        }

    def stop(self) -> None:
        """End the child."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
        if process is not None:
            process.stop()
