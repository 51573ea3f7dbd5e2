"""What a running engine tells other processes: its `stats`, about once a second, in a small file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from frazil.engine import stats as facts
from frazil.fs import write_fully
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.engine.registry import Registry
    from frazil.fs import FileSystem

NAME = "stats.json"


def write_told(engine: Registry) -> None:
    """Replace `run/stats.json`; readers see the old one or the new one. Nothing is synced."""
    files, directory = engine.file_system, engine.paths.run
    stats = facts.engine_stats(engine, engine.runtimes)
    told = {"time_us": engine.clock.now_us(), "pid": os.getpid(), "stats": stats}
    replace_told(files, directory, NAME, msgspec.json.encode(told, enc_hook=str))


def replace_told(files: FileSystem, directory: str, name: str, data: bytes) -> None:
    """Replace a small file of the running process as one step. Nothing is synced.

    Raises:
        OSError: if it cannot be written.
    """
    files.make_directory(directory)
    fresh = f"{directory}/{name}.tmp"
    if files.stat(fresh) is not None:
        files.unlink(fresh)
    file = files.open(fresh, "create")
    try:
        write_fully(file, 0, [data])
    finally:
        file.close()
    files.rename(fresh, f"{directory}/{name}")


def remove_told(engine: Registry) -> None:
    """Remove the file at the end: nobody runs here any more."""
    path = f"{engine.paths.run}/{NAME}"
    try:
        if engine.file_system.stat(path) is not None:
            engine.file_system.unlink(path)
    except OSError as error:
        warn("told_not_removed", path=path, error=error)
