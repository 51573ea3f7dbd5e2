"""Spark as the worker has it: started once, watched, ended together with its scratch files."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from frazil.config import Settings
from frazil.lake.connection import connect
from frazil.lake.jars import prepare
from frazil.lake.session import CATALOG_NAME, build_session, session_conf
from frazil.lake.spark_table import SparkTables
from frazil.lake.stages import SparkStages
from frazil.lake.worker_client import process_exists
from frazil.telemetry import LOGGER, TextFormatter, event, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from frazil.fs import FileSystem
    from frazil.lake.jars import Progress
    from frazil.lake.worker_jobs import WorkerConfig

__all__ = ["STARTING", "Spark", "fetch_steps", "keep_log", "kept_conf"]

LOG: Final = "lake.log"
SPARK_LOG: Final = "spark.log"
LOG_BYTES_MAX: Final = 8 << 20
LOG_FILES: Final = 3
END_SECONDS: Final = 2.0
RUN_PREFIX: Final = "spark-"
SESSION_CONF: Final = {
    # The stages depend on these; other values would change rows silently.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.caseSensitive": "false",
}
QUICK_CONF: Final = {
    # Staged files are on this machine: a job that lists them costs more than the listing.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",
    "spark.sql.parquet.columnarReaderBatchSize": "10000",
}
"""Faster defaults that the user's settings override."""
STARTING: Final = "starting"
_MB: Final = 1_000_000


class _TraceFormatter(logging.Formatter):
    """Events as everywhere, followed by the whole traces of Java and Python."""

    def __init__(self) -> None:
        super().__init__()
        self._line = TextFormatter()

    def format(self, record: logging.LogRecord) -> str:
        text = self._line.format(record)
        trace = getattr(record, "trace", "")
        if record.exc_info and record.exc_info[0] is not None:
            trace = f"{trace}\n{self.formatException(record.exc_info)}".strip()
        return f"{text}\n{trace}" if trace else text


def keep_log(data_dir: str, file_system: FileSystem) -> None:
    """Write this process's events to `logs/lake.log` of the data directory, rotated by size."""
    directory = os.path.join(data_dir, "logs")
    file_system.make_directory(directory)
    handler = logging.handlers.RotatingFileHandler(
        os.path.join(directory, LOG),
        maxBytes=LOG_BYTES_MAX,
        backupCount=LOG_FILES,
        encoding="utf-8",
    )
    handler.setFormatter(_TraceFormatter())
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)


@attrs.frozen
class Spark:
    """A session and the objects that use it."""

    session: SparkSession
    settings: Settings
    catalog: Catalog
    tables: SparkTables
    stages: SparkStages
    run_dir: str

    @classmethod
    def start(
        cls,
        config: WorkerConfig,
        *,
        epoch: int,
        file_system: FileSystem,
        report: Callable[[str], None],
    ) -> Spark:
        """Reach the catalog, find Java and the jars, start the JVM; `report` gets the steps.

        Raises:
            Unavailable: one of these is missing; the message names it.
            InvalidRequest: a setting is wrong.
        """
        settings = config.to_settings()
        catalog = connect(config.catalog)
        ready = prepare(settings, progress=fetch_steps(report), file_system=file_system)
        report(STARTING)
        for note in ready.java.notes:
            event("lake_java_passed_over", note=note, used=ready.java.home)
        runs = os.path.join(settings.data_dir, "run")
        _remove_left_overs(runs, file_system)
        run_dir = os.path.join(runs, f"{RUN_PREFIX}{epoch}-{os.getpid()}")
        lake = settings.lake
        conf = session_conf(
            jars=ready.jars,
            catalog=config.catalog,
            run_dir=run_dir,
            conf=lake.spark.conf,
            heap_bytes=lake.worker.heap_bytes,
        )
        session = build_session(
            conf,
            java=ready.java,
            run_dir=run_dir,
            log_path=os.path.join(settings.data_dir, "logs", SPARK_LOG),
            file_system=file_system,
        )
        return cls.of_session(session, settings, catalog, run_dir)

    @classmethod
    def of_session(
        cls, session: SparkSession, settings: Settings, catalog: Catalog, run_dir: str
    ) -> Spark:
        """Return the objects that use a running session."""
        given = settings.lake.spark.conf
        for key, value in kept_conf(given).items():
            warn("lake_setting_kept", setting=f"lake.spark.conf.{key}", value=value)
        wanted = {
            key: value for key, value in QUICK_CONF.items() if key not in given
        } | SESSION_CONF
        for key, value in wanted.items():
            session.conf.set(key, value)
        tables = SparkTables(session, catalog, name=CATALOG_NAME)
        stages = SparkStages(
            session, tables.columns, target_file_bytes=settings.lake.writer.target_file_bytes
        )
        return cls(session, settings, catalog, tables, stages, run_dir)

    @property
    def _process(self) -> subprocess.Popen[bytes] | None:
        gateway: Any = self.session.sparkContext._gateway  # noqa: SLF001 - no other way to it
        process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
        return process

    @property
    def pid(self) -> int:
        """Return the JVM's process id, 0 if it is not known."""
        process = self._process
        return 0 if process is None else process.pid

    def alive(self) -> bool:
        """Return whether the JVM still runs."""
        process = self._process
        return process is None or process.poll() is None

    def versions(self) -> dict[str, str]:
        """Return the versions of the running components."""
        java = self.session.sparkContext._jvm  # noqa: SLF001 - PySpark has no call for it
        found = "" if java is None else str(java.java.lang.System.getProperty("java.version"))
        return {"python": sys.version.split()[0], "spark": self.session.version, "java": found}

    def end(self) -> None:
        """End the JVM: request it, then kill it; remove its scratch files."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(OSError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(self.run_dir, ignore_errors=True)


def kept_conf(given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings whose values the user cannot change, although they are set."""
    return {
        key: value
        for key, value in SESSION_CONF.items()
        if given.get(key, value).lower() != value.lower()
    }


def fetch_steps(report: Callable[[str], None]) -> Progress:
    """Return a progress callback that reports how far the jars are fetched."""
    return lambda done, total: report(
        f"fetching Spark's jars, {done // _MB} of {-(-total // _MB)} MB"
    )


def _remove_left_overs(runs: str, file_system: FileSystem) -> None:
    """Remove the scratch files of workers that could not do it themselves."""
    with contextlib.suppress(FileNotFoundError):
        for name in file_system.list_directory(runs):
            pid = name.rpartition("-")[2]
            if name.startswith(RUN_PREFIX) and pid.isdigit() and not process_exists(int(pid)):
                shutil.rmtree(os.path.join(runs, name), ignore_errors=True)
