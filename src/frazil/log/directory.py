"""The data directory: its layout, its lock, and the checks before anything is opened in it."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Final

from frazil.errors import Conflict, InvalidRequest, Unavailable
from frazil.fs import LockTaken, read_file

if TYPE_CHECKING:
    from frazil.fs import FileSystem, LockHandle

NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "fuse.sshfs", "9p", "ceph", "glusterfs", "afs"}
)
MOUNTS_BYTES_MAX: Final = 1 << 20


class DataDirectory:
    """Paths in one data directory. Names never contain a topic's name."""

    def __init__(self, root: str) -> None:
        self.root = root.rstrip("/") or "/"
        self.lock = f"{self.root}/LOCK"
        self.journal = f"{self.root}/journal"
        self.disk = f"{self.root}/disk"
        self.run = f"{self.root}/run"
        self.logs = f"{self.root}/logs"
        self.warehouse = f"{self.root}/warehouse"
        self.catalog = f"{self.root}/catalog.db"
        self.metadata = f"{self.root}/meta.db"
        self.quarantine = f"{self.root}/quarantine"


def prepare(file_system: FileSystem, paths: DataDirectory, *, allow_network_fs: bool) -> None:
    """Create the directory if it is missing and check that it may be used.

    Raises:
        InvalidRequest: if it is a file, or is on a network file system that is not allowed.
        Unavailable: if it cannot be created or read.
    """
    try:
        found = file_system.stat(paths.root)
        if found is not None and not found.is_directory:
            raise InvalidRequest(
                "the data directory is a file, choose another path", path=paths.root
            )
        if found is None:
            file_system.make_directory(paths.root)
            file_system.sync_directory(paths.root.rpartition("/")[0] or "/")
    except OSError as error:
        raise Unavailable(
            "the data directory cannot be made, check path and rights", path=paths.root, error=error
        ) from error
    kind = file_system_kind(paths.root)
    if kind in NETWORK_FILE_SYSTEMS and not allow_network_fs:
        raise InvalidRequest(
            "the data directory is on a network file system, whose syncs and locks may fail; use a "
            "local disk or set log.allow_network_fs",
            path=paths.root,
            file_system=kind,
        )


def take_lock(file_system: FileSystem, paths: DataDirectory) -> LockHandle:
    """Take the directory's lock for this process.

    Raises:
        Conflict: with the holder, if another process has it, or this process opened it already.
    """
    holder = f"pid={os.getpid()} host={socket.gethostname()}"
    try:
        return file_system.lock(paths.lock, holder)
    except LockTaken as error:
        raise Conflict(
            "the data directory is open in this process already, use that engine or close it first"
            if error.holder == holder
            else "the data directory is in use by another process, stop it or use another directory",
            path=paths.root,
            holder=error.holder or "unknown",
        ) from error
    except OSError as error:
        raise Unavailable(
            "the data directory cannot be locked, check its rights", path=paths.root, error=error
        ) from error


def file_system_kind(path: str) -> str:
    """Return the type of the mounted file system that holds `path`, empty if unknown."""
    try:
        text = read_file("/proc/self/mounts", MOUNTS_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
    entries = [words[1:3] for line in text.splitlines() if len(words := line.split(" ")) > 2]
    real = os.path.realpath(path)
    best, kind = "", ""
    for point, name in entries:
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind
