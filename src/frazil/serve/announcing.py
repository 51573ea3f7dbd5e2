"""The address of a data directory's broker: a small file in the directory while the broker runs."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.engine import remove_run_file, replace_run_file
from frazil.fs import read_fully
from frazil.struct_types import learnt
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.engine import Engine
    from frazil.fs import FileSystem
    from frazil.log import DataDirectory

__all__ = ["Announced", "announce", "announced", "withdraw"]

NAME: Final = "broker.json"
BYTES_MAX: Final = 64 << 10


class Announced(msgspec.Struct):
    """A broker: its process, and where its HTTP port is."""

    pid: int
    http_url: str
    certificate_file: str = ""


def announce(engine: Engine, *, http_url: str, certificate_file: str) -> None:
    """Replace `run/broker.json`. Nothing is synced: after a crash there is no broker.

    A write error does not keep the broker from serving.
    """
    files, directory = engine.file_system, engine.paths.run
    where = os.path.abspath(certificate_file) if certificate_file else ""
    data = msgspec.json.encode(Announced(os.getpid(), http_url, where))
    try:
        replace_run_file(files, directory, NAME, data)
    except OSError as error:
        warn("broker_not_announced", path=directory, error=error)


def withdraw(engine: Engine) -> None:
    """Remove the file: the broker no longer serves this directory."""
    remove_run_file(engine, NAME, "broker_still_announced")


def announced(files: FileSystem, paths: DataDirectory) -> Announced | None:
    """Return the broker that a directory's file names, None without one.

    It may be of a broker that was killed: the file of the directory's lock has the pid.
    """
    path = f"{paths.run}/{NAME}"
    try:
        with closing(files.open(path, "read")) as file:
            data = read_fully(file, 0, BYTES_MAX)
        return msgspec.json.decode(data, type=learnt(Announced))
    except (OSError, msgspec.MsgspecError):
        return None
